"""What a revision does while everybody works on: an index on a table that may be large.

    def upgrade() -> None:
        index_online("lane_by_kind", "on lane (kind, next_due_at) where status = 'active'")

It is built without a lock that keeps writers out, which cannot be in a transaction; so it is all that such a revision does.
One that was interrupted leaves an index that nothing uses: the next attempt drops it and builds anew.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from infra.migrations.run import open_engine, within

IS_BROKEN = sa.text("""
select exists (select from pg_index i join pg_class c on c.oid = i.indexrelid
               where c.relname = :name and c.relnamespace = 'public'::regnamespace and not i.indisvalid)
""")


def index_online(name: str, definition: str, *, unique: bool = False) -> None:
    """By a connection of its own, whose statements are transactions; the migration's keeps others from migrating."""
    config = op.get_context().config
    assert config is not None
    engine = open_engine(config.attributes["url"]).execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        run = connection.exec_driver_sql
        # No lock_timeout: it waits for transactions that are older than itself, with no lock in anybody's way.
        run(within(config.attributes["ends"]))
        run("set role baton_owner")
        if connection.execute(IS_BROKEN, {"name": name}).scalar_one():
            run(f"drop index concurrently if exists {name}")
        run(f"create {'unique ' if unique else ''}index concurrently if not exists {name} {definition}")
