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


def table_sql(each: CompiledResource) -> str:
    columns = "".join(f'    "{column.name}" {TYPES[column.type]},\n' for column in each.resource.columns)
    return f"create table {each.table} (\n{OWN.replace('{columns}', columns)}\n);\n"


def columns_sql(each: CompiledResource) -> str:
    """For a table that is there: the columns that the file has and the table has not."""
    return "".join(
        f'alter table {each.table} add column if not exists "{column.name}" {TYPES[column.type]};\n'
        for column in each.resource.columns
    )


def migration(compiled: Compiled, revision: str, down_revision: str, *, again: bool = False) -> str:
    """The text of a migration for all resources. `again`: the tables are there, and get what they lack."""
    make = columns_sql if again else table_sql
    tables = "\n".join(make(each) for each in compiled.resources)
    secured = "" if again else "".join(
        f'    run(tenant_table("{each.table}", worker="select, insert, update", api="select"))\n'
        for each in compiled.resources
    )  # fmt: skip
    imported = "" if again else "from infra.migrations.tenancy import tenant_table\n\n"
    return f'''"""Source {compiled.source.name}: {"new columns of its tables" if again else "its tables"}.

Written by `baton source migration` from {compiled.digest}.
"""

from __future__ import annotations

from alembic import op

{imported}revision = "{revision}"
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
