"""All SQL of remote queries."""

from __future__ import annotations

import sqlalchemy as sa

from shared.kernel import direct
from shared.kernel.model import RemoteCall, Statement, Turn
from shared.query_run.model import customer_key

CREATE = Statement("query_run.create", "insert into query_run (run_id, tenant_id) values (:run_id, :tenant_id)")

# A place among the tenant's queries in flight: the key makes sure that there are never more. Nothing comes back if all are
# taken, if another step was faster, or if the run has one already.
TAKE_SLOT = Statement(
    "query_run.take_slot",
    """insert into query_slot (tenant_id, slot, run_id)
       select t.tenant_id, n.n, t.run_id
       from turn t cross join generate_series(1, cast(:most as integer)) as n(n)
       where not exists (select from query_slot q where q.tenant_id = t.tenant_id and (q.slot = n.n or q.run_id = t.run_id))
       order by hashtext(t.run_id::text || n.n) limit 1
       on conflict do nothing
       returning slot""",
    returns=True,
)
ROWS = Statement(
    "query_run.rows",
    """select run_id, row_count as done, 0 as failed, row_count as total from query_run
       where run_id = any(cast(:run_ids as uuid[])) and tenant_id = :tenant_id and row_count is not null""",
)
HAS_SLOT = sa.text("select slot from query_slot where run_id = :run_id")
FREE_SLOT = Statement("query_run.free_slot", "delete from query_slot where run_id = :run_id")

KEEP_COLUMNS = Statement(
    "query_run.keep_columns",
    """update query_run q set columns = cast(:columns as jsonb), columns_from = :columns_from, note = :note,
                              results_expire_at = null
       from turn where q.run_id = turn.run_id""",
)
KEEP_RESULTS = Statement(
    "query_run.keep_results",
    """update query_run set results_expire_at = now() + make_interval(secs => cast(:kept_s as double precision)),
                            target_key = :target_key, row_count = :row_count
       where run_id = :run_id""",
)
# Who looks through an account: one of all that end there, and not more often than so.
TAKE_LOOK = Statement(
    "query_run.take_look",
    """insert into query_look as q (tenant_id, account, looked_at)
       select t.tenant_id, cast(:account as text), now() from turn t
       on conflict (tenant_id, account) do update set looked_at = now()
       where q.looked_at < now() - make_interval(secs => cast(:every_s as double precision))
       returning account""",
    returns=True,
)
# What was not found this time is gone. `found`: everything with our prefix that no run had left there before we looked.
FORGET_STRAYS = Statement(
    "query_run.forget_strays",
    """delete from query_stray s using turn t
       where s.tenant_id = t.tenant_id and s.account = :looked_through
         and not exists (select from jsonb_to_recordset(cast(:still_there as jsonb)) as f(kind text, key text)
                         where f.kind = s.kind and f.key = s.key)""",
)
KEEP_STRAYS = Statement(
    "query_run.keep_strays",
    """insert into query_stray (tenant_id, account, kind, key, first_seen_at, last_seen_at)
       select t.tenant_id, :account, f.kind, f.key, now(), now()
       from turn t cross join jsonb_to_recordset(cast(:found as jsonb)) as f(kind text, key text)
       on conflict (tenant_id, account, kind, key) do update set last_seen_at = now()""",
)
PRUNE = Statement(
    "query_run.prune",
    """delete from query_run where run_id = (select run_id from query_run where run_id = :run_id limit :most)""",
)
EXPECTED = sa.text("""
select run_id, epoch, key from remote_call where tenant_id = :tenant_id and leaves_asset and cleaned_at is null
""")
# Unknown is kept: a row that is not there says nothing.
RESULTS_ARE_KEPT = sa.text("""
select coalesce((select results_expire_at is not null and results_expire_at > now() from query_run where run_id = :run_id), true)
""")


class QueryStore:
    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def has_slot(self, turn: Turn) -> bool:
        with direct.alone(self._engine, turn.tenant_id) as line:
            return bool(line.scalars(HAS_SLOT, {"run_id": turn.run_id}))

    def expected(self, turn: Turn) -> list[str]:
        with direct.alone(self._engine, turn.tenant_id) as line:
            rows = line.all(EXPECTED, {"tenant_id": turn.tenant_id})
        return [customer_key(row["run_id"], row["epoch"], row["key"]) for row in rows]

    def results_are_kept(self, asset: RemoteCall) -> bool:
        with direct.alone(self._engine, asset.tenant_id) as line:
            (kept,) = line.scalars(RESULTS_ARE_KEPT, {"run_id": asset.run_id})
        return bool(kept)


# --- what the API asks

# The view knows tenants; which runs of a tenant somebody may see, only the run's own row knows.
GET = sa.text("""
select v.*, now() as now from shell_query_runs v
where v.id = :run_id and v.tenant_id = :tenant_id
  and exists (select from run r where r.id = :run_id and r.tenant_id = :tenant_id)
""")


# The runs first, from their own index, and then what the view says of them.
def list_runs(filters: frozenset[str], *, after: bool) -> sa.TextClause:
    conditions = ["r.kind = 'query_run'", "r.tenant_id = :tenant_id"]
    conditions += ["r.status = :status"] if "status" in filters else []
    conditions += ["r.created_by = :owner"] if "owner" in filters else []
    conditions += ["(r.created_at, r.id) < (cast(:after_at as timestamptz), cast(:after_id as uuid))"] if after else []
    return sa.text(f"""
select v.* from (
    select r.id from run r where {" and ".join(conditions)} order by r.created_at desc, r.id desc limit :most) found
join shell_query_runs v on v.id = found.id
order by v.created_at desc, v.id desc
""")


EXPORT_LANE = sa.text("""
select id, status, cursor, last_error, updated_at > now() - interval '50 s' as failed_just_now from lane
where run_id = :run_id and tenant_id = :tenant_id and key = :key
""")
STRAYS = sa.text("""
select account, kind, key, first_seen_at, last_seen_at from query_stray
where tenant_id = :tenant_id order by first_seen_at, key limit :most
""")
# What ended runs have left in the remote system: known to us, because whoever makes something notes it first.
LEFT_BEHIND = sa.text("""
select c.run_id, c.epoch, c.kind, c.remote_id, c.intended_at as made_at, r.status as run_status, r.outcome as run_outcome,
       r.finished_at as run_finished_at,
       case when c.kind = 'data_extension' and q.target_key is not null and q.results_expire_at > now()
                then 'its rows can be read until they expire'
            when c.confirmed_at is null then 'its creation was never confirmed'
            when exists (select from lane l where l.run_id = c.run_id and l.status = 'active' and not l.holds_run)
                then 'its clean-up is under way'
            when exists (select from lane l where l.run_id = c.run_id and l.status = 'failed' and not l.holds_run)
                then 'its clean-up failed; the sweep tries again'
            else 'the sweep removes it' end as why
from remote_call c
join run r on r.id = c.run_id and r.kind = 'query_run'
left join query_run q on q.run_id = c.run_id
where c.tenant_id = :tenant_id and c.leaves_asset and c.cleaned_at is null and r.finished_at is not null
order by c.intended_at, c.run_id, c.key
limit :most
""")
