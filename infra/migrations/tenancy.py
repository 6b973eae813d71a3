"""Tables that belong to tenants: the row level security, policies and grants of one in a single call.

    run("create table price (tenant_id uuid not null, …)")
    run(tenant_table("price", api="select"))

A table whose rows belong to runs names the column: `run="run_id"`. A member who sees only their own runs sees only their rows.

The owner sees all rows (migrations need that), everybody else only those of the tenant that `app.tenant` names; without
it, none. A table that is not named here is not reachable by the product's roles at all: they have no grants by default.
"""

from __future__ import annotations

TENANT = "tenant_id = (select nullif(current_setting('app.tenant', true), '')::uuid)"
# Set for somebody who sees only what is their own; everybody else has it empty.
OWNER = "(select nullif(current_setting('app.owner', true), ''))"


def tenant_table(
    table: str, *, worker: str = "select, insert, update, delete", api: str = "", run: str | None = None
) -> str:
    """Statements for a table with a `tenant_id`, as its owner runs them; they may be run again. `worker` and `api`: what each
    role may do. `run`: the column with the run that a row belongs to."""
    granted = "".join(
        f"grant {rights} on {table} to {role};\n"
        for role, rights in (("baton_worker", worker), ("baton_api", api))
        if rights
    )
    own = f"{TENANT} and ({OWNER} is null or owns_run({run}))"
    policies = {
        "owner_all": ("baton_owner", "true"),
        **(
            {"tenant_only": ("baton_worker, baton_api", TENANT)}
            if run is None
            else {"worker_tenant": ("baton_worker", TENANT), "api_rows": ("baton_api", own)}
        ),
    }
    dropped = "".join(
        f"drop policy if exists {name} on {table};\n"
        for name in ("owner_all", "tenant_only", "worker_tenant", "api_rows")
    )
    made = "".join(
        f"create policy {name} on {table} to {roles} using ({rows}) with check ({rows});\n"
        for name, (roles, rows) in policies.items()
    )
    return f"""
alter table {table} enable row level security;
alter table {table} force row level security;
{dropped}{made}{granted}"""
