"""Tables that belong to tenants: the row level security, policies and grants of one in a single call.

    run("create table price (tenant_id uuid not null, …)")
    run(tenant_table("price", api="select"))

A table whose rows belong to runs names the column: `run="run_id"`. A member who sees only their own runs sees only their rows.

The owner sees all rows (migrations need that), everybody else only those of the tenant that `app.tenant` names; without
it, none. A table that is not named here is not reachable by the product's roles at all: they have no grants by default.
"""

from __future__ import annotations

TENANT = "tenant_id = (select nullif(current_setting('app.tenant', true), '')::uuid)"
# The worker's statements name their keys. An index that begins with the tenant is not to be taken for the policy's sake (0209).
OF_WORKER = f"({TENANT}) is true"
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
        "owner_all": ("baton_owner", "true", "true"),
        "worker_tenant": ("baton_worker", OF_WORKER, TENANT),
        **({"tenant_only": ("baton_api", TENANT, TENANT)} if run is None else {"api_rows": ("baton_api", own, own)}),
    }
    dropped = "".join(
        f"drop policy if exists {name} on {table};\n"
        for name in ("owner_all", "tenant_only", "worker_tenant", "api_rows")
    )
    made = "".join(
        f"create policy {name} on {table} to {role} using ({seen}) with check ({written});\n"
        for name, (role, seen, written) in policies.items()
    )
    return f"""
alter table {table} enable row level security;
alter table {table} force row level security;
{dropped}{made}{granted}"""
