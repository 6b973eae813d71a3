"""Guards that revisions run one after the other, each in a transaction of its own, and that one migration runs at a time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context

from infra.migrations.run import LOCK_TIMEOUT_S, open_engine

# Of the session, not of a transaction: it must outlive each revision's commit. The server frees it with the connection.
ONE_AT_A_TIME = sa.text("select pg_advisory_lock(hashtext('baton.migrations'))")


def _run() -> None:
    asked = context.config.attributes
    with open_engine(asked["url"]).connect() as connection:
        connection.exec_driver_sql(f"set statement_timeout = {int(asked['within_s'] * 1000)}")
        connection.execute(ONE_AT_A_TIME)
        # Whoever waits for a table's lock makes everybody wait who comes after it: better to give up soon and try again.
        connection.exec_driver_sql(f"set lock_timeout = '{LOCK_TIMEOUT_S}s'")
        connection.commit()
        context.configure(
            connection=connection,
            version_table="alembic_version",
            version_table_schema="public",
            transaction_per_migration=True,
        )
        with context.begin_transaction():
            context.run_migrations()


_run()
