"""Guards that revisions run one after the other, each in a transaction of its own, and that one migration runs at a time."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import context

from infra.migrations.run import CANCELED, LOCK_TIMEOUT_S, Unfinished, open_engine, within
from shared.kernel import db

# Of the session, not of a transaction: it must outlive each revision's commit. The server frees it with the connection.
ONE_AT_A_TIME = sa.text("select pg_advisory_lock(hashtext('baton.migrations'))")


def _run() -> None:
    asked = context.config.attributes

    def has_the_rest_of_the_time(ctx: Any, step: Any, heads: Any, run_args: Any) -> None:  # noqa: ARG001 - named by Alembic
        """After each revision: all of them together have the time, not each of them."""
        ctx.connection.exec_driver_sql(within(asked["ends"]))

    with open_engine(asked["url"]).connect() as connection:
        connection.exec_driver_sql(within(asked["ends"]))
        try:
            connection.execute(ONE_AT_A_TIME)
        except sa.exc.DBAPIError as error:
            if db.sqlstate(error) != CANCELED:
                raise
            raise Unfinished(
                "Another migration of this database is under way and did not end in time. Wait for it, then deploy again."
            ) from error
        # Whoever waits for a table's lock makes everybody wait who comes after it: better to give up soon and try again.
        connection.exec_driver_sql(f"set lock_timeout = '{LOCK_TIMEOUT_S}s'")
        connection.commit()
        context.configure(
            connection=connection,
            version_table="alembic_version",
            version_table_schema="public",
            transaction_per_migration=True,
            on_version_apply=has_the_rest_of_the_time,
        )
        with context.begin_transaction():
            context.run_migrations()


_run()
