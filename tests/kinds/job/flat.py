"""Whether a job costs the same however much waits: pages of a take, a heartbeat and an end, from a thousand waiting jobs to a
million, with millions that have ended, with delayed ones, with a thousand tenants, and after many were worked off."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
import sqlalchemy as sa

from shared.job_queue import store
from shared.kernel import db, sql
from shared.kernel.clock import new_id, stopwatch
from shared.kernel.model import Effect, Ending, LaneChange, LaneStatus, RunStatus, StepOutcome, Turn, TurnEnd
from shared.kernel.offers import PgOffers, _end
from tests.bench.figures import Figure
from tests.bench.flatness import FILLING, pages
from tests.bench.place import Place, place

LOOKS = 15
TENANTS = 1_000
LIMIT = 50


@dataclass(frozen=True, slots=True)
class Size:
    """Jobs that wait, that have ended and that are due tomorrow; and how many are then worked off without a vacuum."""

    waiting: int
    ended: int = 0
    later: int = 0
    worked_off: int = 0

    def __str__(self) -> str:
        told = [f"{self.waiting:,} waiting", f"{self.ended:,} ended", f"{self.later:,} delayed"]
        return ", ".join([*told, *([f"{self.worked_off:,} worked off"] if self.worked_off else [])])


# The first already has ended jobs: where a table is one page, no index can equal it.
SIZES = (Size(1_000, 100_000), Size(1_000_000, 5_000_000, 200_000), Size(1_000_000, 5_000_000, 200_000, 60_000))
QUICK = (Size(1_000), Size(3_000, 2_000, 500), Size(3_000, 2_000, 500, 500))
CLASS = UUID(int=0xC1)

FIRST = f"""
insert into pull_queue (name) values ('default');
insert into pull_class (id, queue, most_running) values ('{CLASS}', 'default', {LIMIT});
insert into pull_tenant (tenant_id, most_running) select md5('t' || n)::uuid, 5 from generate_series(0, {TENANTS - 1}) n
"""
# Rows as the product leaves them. Triggers are off: what they would add to a million lanes is written in one go.
FILL = """
set session_replication_role = replica;
insert into run (id, tenant_id, kind, label, source, status, outcome, params, check_at, created_at, finished_at)
select md5('{era}r' || n)::uuid, md5('t' || mod(n, {tenants}))::uuid, 'job', 'noop', 'api', '{run}', {outcome},
       '{{"definition_key": "noop", "payload": {{}}, "max_attempts": 3, "version": 1}}', now() + interval '1 day',
       now() + n * interval '1 us', {finished}
from generate_series({first}, {last}) n;
insert into lane (id, run_id, tenant_id, kind, key, holds_run, status, cursor, next_due_at, sent_at, check_at, max_steps, class_id,
                  priority)
select md5('{era}l' || n)::uuid, md5('{era}r' || n)::uuid, md5('t' || mod(n, {tenants}))::uuid, 'job', 'run', true, '{lane}', '{{}}',
       now() + interval '{delay}', now(), 'infinity', 100000, '{cls}', 100
from generate_series({first}, {last}) n;
set session_replication_role = origin
"""
OFFERS = f"""
insert into offer (lane_id, run_id, tenant_id, class_id, priority, queued_at, scheduled_for, due)
select id, run_id, tenant_id, class_id, priority, now() - interval '1 minute' + (random() * 50) * interval '1 s', next_due_at,
       next_due_at <= now()
from lane l where status = 'active' and class_id = '{CLASS}' and not exists (select from offer o where o.lane_id = l.id);
insert into pull_line (class_id, tenant_id, priority, head)
select class_id, tenant_id, priority, min(queued_at) from offer where due and taken_at is null group by 1, 2, 3
on conflict (class_id, tenant_id, priority) do update set active = true, head = least(pull_line.head, excluded.head)
"""
# A million rows go in faster without the indexes that no constraint needs; they are made again behind them.
INDEXES = """
select c.relname as name, pg_get_indexdef(i.indexrelid) as made from pg_index i join pg_class c on c.oid = i.indexrelid
where i.indrelid in ('run'::regclass, 'lane'::regclass, 'offer'::regclass) and not i.indisunique
"""
WORK_OFF = """
do $$ begin
    for _ in 1 .. {rounds} loop
        perform take_offers('default', 100, gen_random_uuid(), '60 s', 'w');
        update lane set status = 'done', claim_token = null, lease_until = null, seq = seq + 1
        where id in (select lane_id from offer where taken_at is not null);
        commit;
    end loop;
end $$
"""
ATTEMPT = Effect(store.END_ATTEMPT, {
    "attempt_status": "succeeded", "attempt_worker": "w", "exit_code": 0, "stdout": None, "stderr": None, "attempt_error": None,
})  # fmt: skip
CHANGE = LaneChange(status=LaneStatus.DONE, outcome=StepOutcome.DONE, attempts=1, effects=[ATTEMPT])


def measure(sizes: Sequence[Size]) -> list[Figure]:
    found: dict[Size, dict[str, float]] = {}
    with place(FILLING) as here:
        here.owner_runs(*FIRST.split(";\n"))
        now = Size(0)
        for size in sizes:
            elapsed = stopwatch()
            _grow(here, now, size)
            print(f"  {size}: filled in {elapsed():.0f} s", flush=True)
            found[size] = _look(here)
            now = size
    base = found[sizes[0]]
    return [
        Figure(
            name=f"{name} of a job, pages: {size}", value=cost, unit="pages", against=base[name], ratio=cost / base[name],
            goal="<= 1.3",
        )
        for size in sizes[1:]
        for name, cost in found[size].items()
    ]  # fmt: skip


def _grow(here: Place, now: Size, then: Size) -> None:
    with here.owner.connect() as connection:
        indexes = [(row.name, row.made) for row in connection.execute(sa.text(INDEXES))]
    many = then.waiting + then.ended > now.waiting + now.ended + 200_000
    here.owner_runs(*(f"drop index {name}" for name, _ in indexes if many))
    _fill(here, now, then)
    here.owner_runs(*(made for _, made in indexes if many))
    if (then.waiting, then.ended, then.later) != (now.waiting, now.ended, now.later):
        here.owner_runs("vacuum analyze run", "vacuum analyze lane", "vacuum analyze offer", "vacuum analyze pull_line")
    if then.worked_off > now.worked_off:
        _with_limits(here, 10_000)
        here.owner_runs(WORK_OFF.format(rounds=(then.worked_off - now.worked_off) // 100))
        _with_limits(here, None)


def _fill(here: Place, now: Size, then: Size) -> None:
    waits = {"run": "queued", "lane": "active", "outcome": "null", "finished": "null"}
    ended = {"run": "succeeded", "lane": "done", "outcome": "'done'", "finished": "now()"}
    for era, first, last, delay, said in (
        ("w", now.waiting, then.waiting, "0", waits),
        ("e", now.ended, then.ended, "0", ended),
        ("d", now.later, then.later, "1 day", waits),
    ):
        if last > first:
            given = {"era": era, "first": first, "last": last - 1, "delay": delay, "tenants": TENANTS, "cls": CLASS}
            here.owner_runs(*FILL.format(**given, **said).strip().split(";\n"))
    here.owner_runs(*OFFERS.split(";\n"))


def _with_limits(here: Place, most: int | None) -> None:
    """While many are taken at once the caps are wide; what they counted is then forgotten, as after a change of a cap."""
    here.owner_runs(
        f"update pull_class set most_running = {most or LIMIT}, running = null",
        f"update pull_tenant set most_running = {most or 5}, running = null",
    )


def _look(here: Place) -> dict[str, float]:
    """The medians of some takes of one, each renewed and ended."""
    costs: dict[str, list[float]] = {"take": [], "renew": [], "finish": []}
    for _ in range(LOOKS):
        token = new_id()
        given = {"queue": "default", "most": 1, "token": token, "lease": "60 s", "worker": "w"}
        costs["take"].append(_pages(here, sql.TAKE_OFFERS, given))
        turn = _taken(here, token)
        ids = {"lane_ids": [str(turn.lane_id)], "tokens": [str(token)], "lease": "60 s"}
        costs["renew"].append(_pages(here, sql.RENEW, ids))
        statement, params = _end(TurnEnd(turn, CHANGE, Ending(RunStatus.SUCCEEDED, "done"), 1))
        costs["finish"].append(_pages(here, statement, params, turn.tenant_id))
    return {name: statistics.median(each) for name, each in costs.items()}


def _taken(here: Place, token: UUID) -> Turn:
    # `explain` tells what a take costs, not what it took.
    with here.owner.connect() as connection:
        run_id = connection.execute(
            sa.text("select run_id from lane where claim_token = :t and status = 'active'"), {"t": token}
        ).scalar_one()
    turn = PgOffers(here.engine).held(run_id, token)
    assert turn is not None
    return turn


def _pages(here: Place, statement: sa.TextClause, params: dict[str, Any], tenant: UUID | None = None) -> int:
    explained = sa.text(f"explain (analyze, buffers, format json) {statement.text}")
    with db.autocommit(here.engine).connect() as connection:
        if tenant is not None:
            db.set_tenant(connection, tenant)
        answer = connection.execute(explained, params).scalar_one()
    (found,) = orjson.loads(answer) if isinstance(answer, str) else answer
    return pages(found["Plan"])
