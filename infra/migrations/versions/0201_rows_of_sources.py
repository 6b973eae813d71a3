"""Members see the rows of their own runs in the tables of sources, too, as they do in `raw_item` and `diamond`."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from infra.migrations.tenancy import tenant_table

revision = "0201"
down_revision = "0200"
branch_labels = None
depends_on = None

# The tables that `baton source migration` wrote, known by the columns that each of them has.
OF_SOURCES = sa.text("""
select table_name from information_schema.columns
where table_schema = 'public'
  and column_name in ('tenant_id', 'connection', 'source_key', 'rest', 'hash', 'run_id', 'partition', 'page', 'said_by', 'said_at',
                      'missed_by', 'gone_at')
group by table_name having count(*) = 12 order by table_name
""")


def upgrade() -> None:
    bind = op.get_bind()
    run = bind.exec_driver_sql
    run("set local role baton_owner")
    for table in bind.scalars(OF_SOURCES).all():
        run(tenant_table(table, worker="select, insert, update", api="select", run="run_id"))
    run(tenant_table("source_quarantine", api="select", run="run_id"))
    for table in ("source_raw", "source_mark"):  # which the API has never read
        run(tenant_table(table, run="run_id"))
        run(f"revoke all on {table} from baton_api")
    run("reset role")
