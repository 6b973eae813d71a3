"""Guards that revisions run in one transaction, one migration at a time, on the connection that `run.migrate` was asked for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context

from infra.migrations.run import open_engine

ONE_AT_A_TIME = sa.text("select pg_advisory_xact_lock(hashtext('baton.migrations'))")


def _run() -> None:
    with open_engine(context.config.attributes["url"]).connect() as connection:
        context.configure(connection=connection, version_table="alembic_version", version_table_schema="public")
        with context.begin_transaction():
            connection.execute(ONE_AT_A_TIME)
            context.run_migrations()


_run()
