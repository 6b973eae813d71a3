"""The migration that makes a source's tables: written from the file, for a person to review and commit. Pure."""

from __future__ import annotations

from shared.page_ingest.source.compile import Compiled, CompiledResource

TYPES = {
    "text": "text", "int": "bigint", "number": "numeric", "bool": "boolean", "time": "timestamptz", "date": "date",
    "json": "jsonb",
}  # fmt: skip
# What every table of a source has beside its columns. `source_key` is the row's key within its connection.
OWN = """    tenant_id uuid not null,
    connection text not null,
    source_key text collate "C" not null,
{columns}    rest jsonb not null,
    hash text not null,
    run_id uuid not null,
    partition text not null,
    page bigint not null,
    said_by uuid not null,
    said_at timestamptz not null,
    missed_by uuid,
    gone_at timestamptz,
    primary key (tenant_id, connection, source_key)"""


def table_sql(each: CompiledResource, *, again: bool = False) -> str:
    create = "create table if not exists" if again else "create table"
    columns = "".join(f'    "{column.name}" {TYPES[column.type]},\n' for column in each.resource.columns)
    return f"{create} {each.table} (\n{OWN.replace('{columns}', columns)}\n);\n"


def columns_sql(each: CompiledResource) -> str:
    """For a table that is there: the columns that the file has and the table has not. One of somebody else has no `source_key`,
    and is left alone."""
    added = "".join(
        f'alter table {each.table} add column if not exists "{column.name}" {TYPES[column.type]};\n'
        for column in each.resource.columns
    )
    return f"select source_key from {each.table} limit 0;\n{added}"  # noqa: S608 - names of a compiled file


def secured_by(each: CompiledResource) -> str:
    """The call that secures a table: the worker deletes nothing there, and a member sees the rows of their own runs."""
    return f'tenant_table("{each.table}", worker="select, insert, update", api="select", run="run_id")'


def migration(compiled: Compiled, revision: str, down_revision: str, *, again: bool = False) -> str:
    """The text of a migration for all resources. `again`: some tables are there, and get what they lack; the others are made."""
    tables = "\n".join(
        table_sql(each, again=again) + (columns_sql(each) if again else "") for each in compiled.resources
    )
    secured = "".join(f"    run({secured_by(each)})\n" for each in compiled.resources)
    return f'''"""Source {compiled.source.name}: {"what its tables lack" if again else "its tables"}.

Written by `baton source migration` from {compiled.digest}.
"""

from __future__ import annotations

from alembic import op

from infra.migrations.tenancy import tenant_table

revision = "{revision}"
down_revision = "{down_revision}"
branch_labels = None
depends_on = None

TABLES = """
{tables}"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(TABLES)
{secured}    run("reset role")
'''
