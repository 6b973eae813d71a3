"""What must hold over a whole database once the work is done; each rule is one query for the rows that break it."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import sqlalchemy as sa

from shared.kernel.model import idempotency_key

ENDED = "('succeeded', 'failed', 'canceled')"

OPEN_WORK = sa.text("""
select (select count(*) from run where finished_at is null)
     + (select count(*) from lane where status = 'active')
     + (select count(*) from signal where dispatched_at is null) + (select count(*) from hearing)
""")

RULES: Mapping[str, str] = {
    "every run has ended": f"select id, status from run where status not in {ENDED}",
    "no lane is active": "select id, run_id, key, epoch, seq from lane where status = 'active'",
    "a run is open exactly as long as a lane holds it": f"""
        select id, status from run r where (status not in {ENDED})
            <> exists (select from lane l where l.run_id = r.id and l.status = 'active' and l.holds_run)""",
    "every ended epoch has exactly one terminal line, and the last says what the run says": f"""
        select r.id, r.epoch, r.status, h.lines from run r
        left join (select run_id, array_agg(epoch order by epoch) as epochs, array_agg(type order by epoch) as lines
                   from history where type in {ENDED} group by run_id) h on h.run_id = r.id
        where h.epochs is distinct from (select array_agg(e) from generate_series(1, r.epoch) e)
           or h.lines[r.epoch] is distinct from r.status""",
    "every ended epoch is announced exactly once": f"""
        select r.id, r.epoch, s.epochs from run r
        left join (select payload ->> 'run_id' as run_id, array_agg((payload ->> 'epoch')::int order by payload ->> 'epoch') as epochs
                   from signal where name like 'run.%' group by 1) s on s.run_id = r.id::text
        where r.status in {ENDED} and s.epochs is distinct from (select array_agg(e) from generate_series(1, r.epoch) e)""",
    "history is numbered without gaps": """
        select run_id from history group by run_id having max(n) <> count(*) or min(n) <> 1""",
    "the ledger of steps has no gap and no double": """
        select l.id, l.key, l.seq, s.seqs from lane l
        left join (select lane_id, array_agg(seq order by seq) as seqs from step group by lane_id) s on s.lane_id = l.id
        where coalesce(s.seqs, array[]::bigint[])
            is distinct from coalesce((select array_agg(n) from generate_series(0, l.seq - 1) n), array[]::bigint[])""",
    "every row was counted exactly once": """
        select l.run_id, l.key, l.status, l.cursor, t.ns from lane l
        left join (select run_id, lane, array_agg(n order by n) as ns from tally group by run_id, lane) t
            on t.run_id = l.run_id and t.lane = l.key
        where l.kind = 'tally' and coalesce(t.ns, array[]::int[]) is distinct from
            coalesce((select array_agg(n) from generate_series(0, (l.cursor ->> 'n')::int - 1) n), array[]::int[])""",
    "a lane that is done has counted to its target": """
        select l.run_id, l.key, l.cursor from lane l join run r on r.id = l.run_id
        where r.kind = 'tally' and l.status = 'done' and l.holds_run and l.cursor -> 'n' is distinct from r.params -> 'target'""",
    "a run that succeeded has done all its work": """
        select r.id, l.key, l.status from run r join lane l on l.run_id = r.id
        where r.status = 'succeeded' and l.holds_run and l.status <> 'done'""",
    "no row belongs to a lane that is not there": """
        select t.run_id, t.lane from tally t where not exists (select from lane l where l.run_id = t.run_id and l.key = t.lane)""",
    "an ended lane holds no token": """
        select id, key from lane where status <> 'active' and (claim_token is not null or lease_until is not null)""",
    "every row has the tenant of its run": """
        select r.id, x.what from run r join (
            select run_id, tenant_id, 'tally' as what from tally
            union all select run_id, tenant_id, 'lane' from lane
            union all select run_id, tenant_id, 'history' from history
            union all select run_id, tenant_id, 'remote_call' from remote_call
            union all select l.run_id, s.tenant_id, 'step' from step s join lane l on l.id = s.lane_id
            union all select l.run_id, p.tenant_id, 'repair' from repair p join lane l on l.id = p.lane_id
            union all select (payload ->> 'run_id')::uuid, tenant_id, 'signal' from signal where payload ? 'run_id') x on x.run_id = r.id
        where x.tenant_id <> r.tenant_id""",
    "a call that left its trace is never made again": "select key, creates from thing where creates > 1",
}

LISTED = sa.text("select run_id, epoch, key from remote_call where leaves_asset and cleaned_at is null")
PRESENT = sa.text("select key from thing where present")


def violations(connection: sa.Connection, more: Mapping[str, str] | None = None) -> list[str]:
    """Every broken rule with its first rows; ask after the last sweep. `more`: rules of a kind of its own."""
    found = []
    for rule, query in {**RULES, **(more or {})}.items():
        rows = connection.execute(sa.text(query)).all()
        if rows:
            found.append(f"{rule}: {len(rows)} times, e.g. {rows[:3]}")
    return found + _left_outside(connection)


def _left_outside(connection: sa.Connection) -> list[str]:
    listed = {_key(*row) for row in connection.execute(LISTED)}
    present = set(connection.execute(PRESENT).scalars())
    forgotten = present - listed
    found = [f"nothing is left outside unlisted: {sorted(forgotten)[:3]}"] if forgotten else []
    if listed:
        found.append(f"the sweep leaves no asset behind: {len(listed)} still listed")
    return found


def _key(run_id: UUID, epoch: int, key: str) -> str:
    return idempotency_key(run_id, epoch, key)
