"""Tables that belong to tenants: the row level security, policies and grants of one in a single call.

    run("create table price (tenant_id uuid not null, …)")
    run(tenant_table("price", api="select"))

The owner sees all rows (migrations need that), everybody else only those of the tenant that `app.tenant` names; without
it, none. A table that is not named here is not reachable by the product's roles at all: they have no grants by default.
"""

from __future__ import annotations

TENANT = "tenant_id = (select nullif(current_setting('app.tenant', true), '')::uuid)"


def tenant_table(table: str, *, worker: str = "select, insert, update, delete", api: str = "") -> str:
    """Statements for a table with a `tenant_id`, as its owner runs them. `worker` and `api`: what each role may do."""
    granted = "".join(
        f"grant {rights} on {table} to {role};\n"
        for role, rights in (("baton_worker", worker), ("baton_api", api))
        if rights
    )
    return f"""
alter table {table} enable row level security;
alter table {table} force row level security;
create policy owner_all on {table} to baton_owner using (true) with check (true);
create policy tenant_only on {table} to baton_worker, baton_api using ({TENANT}) with check ({TENANT});
{granted}"""
