"""Functions that run as the owner look at temporary tables last: else a session's own table of the same name is taken for ours.

A schema for temporary tables is searched first wherever a search path does not name it, also by what such a function calls.
"""

from __future__ import annotations

from alembic import op

revision = "0170"
down_revision = "0160"
branch_labels = None
depends_on = None

LAST = """
do $$
declare
    f record;
begin
    for f in
        select p.oid::regprocedure as name, substring(c.setting from '^search_path=(.*)$') as path
        from pg_proc p cross join lateral unnest(p.proconfig) as c (setting)
        where p.prosecdef and p.pronamespace = 'public'::regnamespace and c.setting like 'search_path=%'
          and c.setting not like '%pg_temp'
    loop
        execute format('alter function %s set search_path = %s, pg_temp', f.name, f.path);
    end loop;
end
$$
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(LAST)
    run("reset role")
