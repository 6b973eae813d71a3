"""A database full of runs in every state, written with the owner's SQL: for pictures, and for tests that need many rows.

What is seeded is never touched by the tick: it looks at nothing before `ASLEEP` is over.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from shared.kernel import db
from shared.kernel.clock import new_id
from shared.kernel.model import Problem
from shared.page_ingest.model import KIND, AuditCursor, ConsolidateCursor, CrawlCursor, PlanCursor, part_key

ASLEEP = timedelta(days=30)
GATE = "nivoda-lab"  # not the one that real runs of the same tenant go through
PAGE = 50
# The prices at which the planner cuts: most stones are cheap.
EDGES = (
    200,
    260,
    320,
    390,
    470,
    560,
    680,
    830,
    1000,
    1250,
    1550,
    1950,
    2500,
    3200,
    4200,
    5600,
    7600,
    11000,
    17000,
    30000,
)

TIMEOUT = Problem("timeout", "Nivoda did not answer within 20 s (page at offset 1450)")
REFUSED = Problem("nivoda_error", "Nivoda refused the query: Cannot query field 'lab_grown' on type 'DiamondFilter'")
ENDLESS = Problem("endless", "Pages don't end: 9,050 rows read, but the upstream counts 4,012.")
POISON = Problem("poison", "6 processes started this step and none finished it")
LOGIN = Problem("bad_credentials", "Nivoda refuses the password of feed@partner.example.")
PARTNER = UUID(int=0x7A)  # the connection whose password is wrong


def of_lanes(code: str, message: str, cause: Problem, lane: str) -> Problem:
    """What a run says that failed of one of its lanes."""
    return Problem(code, message, {**cause.to_json(), "lane": lane, "lanes": 1})


LAST = part_key(17000, 30000)
PARTITIONS = of_lanes("partitions_failed", "1 of 19 partitions failed ($17,000\N{EN DASH}$30,000)", REFUSED, LAST)


def id_at(at: datetime, rng: random.Random) -> UUID:
    """An id as it would have been made then: they grow with time."""
    millis = int(at.timestamp() * 1000)
    return UUID(int=millis << 80 | 7 << 76 | rng.getrandbits(12) << 64 | 2 << 62 | rng.getrandbits(62))


@contextmanager
def owner(url: str) -> Iterator[sa.Connection]:
    engine = db.connect_engine(url, pool="none", application_name="seed")
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def insert(connection: sa.Connection, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """All rows of a table in one statement; whatever none of them names gets its default."""
    if rows:
        columns = ", ".join(dict.fromkeys(f'"{name}"' for row in rows for name in row))
        statement = f"insert into {table} ({columns}) select {columns} from jsonb_populate_recordset(null::{table}, cast(:rows as jsonb))"
        connection.execute(sa.text(statement), {"rows": db.jsonb([_plain(row) for row in rows])})


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in row.items()}


@dataclass(slots=True)
class Lanes:
    """How the partitions of a run are: `done` of them, then the others as they are said to be."""

    done: int
    active: int = 0
    failed: int = 0
    canceled: int = 0
    problem: Problem | None = None


@dataclass(slots=True)
class Seed:
    """Rows of one tenant, gathered and then written at once. `people`: the actors that did it all."""

    now: datetime
    tenant_id: UUID
    people: Sequence[str]
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    lines: Counter[UUID] = field(default_factory=Counter)

    def add(self, table: str, **row: Any) -> dict[str, Any]:
        row = {"tenant_id": str(self.tenant_id), **row}
        self.rows.setdefault(table, []).append(row)
        return row

    def ago(self, **how_long: float) -> datetime:
        return self.now - timedelta(**how_long)

    # --- runs

    def run(
        self,
        status: str,
        began: datetime,
        label: str,
        lanes: Lanes,
        *,
        ended: datetime | None = None,
        outcome: str | None = None,
        problem: Problem | None = None,
        edges: Sequence[int] = EDGES,
        **more: Any,
    ) -> UUID:
        """A page ingestion with its plan, partitions, audit, ledger and history."""
        run_id = id_at(began, self.rng)
        is_waiting = status == "queued"
        self.add(
            "run", id=str(run_id), kind=KIND, label=label, status=status, outcome=outcome, epoch=1,
            params={"source": "nivoda", "low": edges[0], "high": edges[-1], "page_size": PAGE, "partition_records": 2000,
                    "recrawls": 2, "policy": {"rule": "all"}},
            check_at=self.now + ASLEEP, error=problem and problem.to_json(), created_by=self.rng.choice(self.people),
            created_at=began, started_at=None if is_waiting else began + timedelta(seconds=1.4), finished_at=ended,
            source=None, source_ref=None, paused_at=None, cancel_requested_at=None, deadline_at=None, **more,
        )  # fmt: skip
        self.history(run_id, began, "accepted", {"lanes": 1})
        plan = PlanCursor(todo=[], planned=True) if not is_waiting else PlanCursor(todo=[(edges[0], edges[-1])])
        self.lane(
            run_id, "plan", "active" if is_waiting else "done", plan.to_json(), began, steps=0 if is_waiting else 5
        )
        if is_waiting:
            return run_id
        self.history(run_id, began + timedelta(seconds=1.4), "running", {})
        self._partitions(run_id, began + timedelta(seconds=4), lanes, edges, until=ended or self.now)
        if ended is not None:
            if status == "succeeded":
                self._audit_and_consolidation(run_id, ended, edges)
            error = {} if problem is None else {"error": problem.to_json()}
            self.history(run_id, ended, status, {"outcome": outcome, **error})
        return run_id

    def _partitions(
        self, run_id: UUID, began: datetime, lanes: Lanes, edges: Sequence[int], *, until: datetime
    ) -> None:
        ranges = list(itertools.pairwise(edges))
        states = ["done"] * lanes.done + ["active"] * lanes.active + ["failed"] * lanes.failed
        states += ["canceled"] * (len(ranges) - len(states))
        for place, ((low, high), status) in enumerate(zip(ranges, states, strict=False)):
            counted = self.rng.randrange(400, 2000)
            share = 1.0 if status == "done" else self.rng.uniform(0.08, 0.9)
            pages = max(1, round(counted * share / PAGE))
            counted = pages * PAGE if status == "done" else counted  # what is done was read whole
            cursor = CrawlCursor(
                low=low, high=high, limit=PAGE, offset=min(counted, pages * PAGE), counted=counted, pages=pages,
                duplicates=3 if place % 6 == 4 else 0, shifts=1 if place % 6 == 4 else 0,
                clean=status == "done" and place % 6 != 4,
            )  # fmt: skip
            started = began + timedelta(seconds=0.4 * place)
            problem = lanes.problem if status in {"active", "failed"} else None
            self.lane(
                run_id, part_key(low, high), status, cursor.to_json(), started, steps=pages, until=until,
                problem=problem, attempts=3 if problem else 0, rows=min(PAGE, counted),
            )  # fmt: skip
        if lanes.done > 9:  # one was far larger than planned: its halves took over
            low, high = ranges[9]
            cut = CrawlCursor(low=low, high=high, limit=PAGE, offset=4050, counted=6200, pages=81, split=True, crawl=2)
            self.lane(run_id, part_key(low, high, 2), "done", cut.to_json(), began, steps=81, until=until, rows=PAGE)

    def _audit_and_consolidation(self, run_id: UUID, ended: datetime, edges: Sequence[int]) -> None:
        self.history(run_id, ended - timedelta(seconds=9), "phase", {"lanes": 1})
        drifted = [(edges[1], edges[2], 1)]
        audit = AuditCursor(todo=[], drifted=drifted).to_json()
        self.lane(run_id, "audit:1.1.0", "done", audit, ended - timedelta(seconds=9), steps=3, until=ended)
        self.history(run_id, ended - timedelta(seconds=7), "phase", {"lanes": 1})
        again = CrawlCursor(
            low=edges[1], high=edges[2], limit=PAGE, offset=812, counted=812, pages=17, crawl=2, clean=True
        )
        key = part_key(edges[1], edges[2], 2)
        self.lane(run_id, key, "done", again.to_json(), ended - timedelta(seconds=7), steps=17, until=ended, rows=PAGE)
        self.history(run_id, ended - timedelta(seconds=3), "phase", {"lanes": 1})
        done = ConsolidateCursor(complete=True, after="zzz", gone_after="zzz").to_json()
        self.lane(run_id, "consolidate:1", "done", done, ended - timedelta(seconds=3), steps=12, until=ended, rows=1000)

    def lane(
        self,
        run_id: UUID,
        key: str,
        status: str,
        cursor: Mapping[str, Any],
        began: datetime,
        *,
        steps: int,
        until: datetime | None = None,
        problem: Problem | None = None,
        attempts: int = 0,
        rows: int = 0,
    ) -> dict[str, Any]:
        """A lane and what its ledger says: pages in between which it waited, was throttled or tried again."""
        lane_id = id_at(began, self.rng)
        at, seq = began, 0
        ends = min(until or self.now, self.now)
        pace = min(4.0, max(0.05, (ends - began).total_seconds() / max(1, steps + 4)))
        for done in range(steps):
            seq = self._ledger(lane_id, seq, at, "moved", rows)
            at += timedelta(seconds=pace * self.rng.uniform(0.5, 1.0))
            if done % 17 == 11:
                outcome = self.rng.choice(["retried", "throttled", "waited"])
                seq = self._ledger(lane_id, seq, at, outcome, 0)
                at += timedelta(seconds=pace * self.rng.uniform(2, 6))
        if status != "active" and steps:
            seq = self._ledger(lane_id, seq, min(at, ends), status, 0)
        elif problem is not None:
            seq = self._ledger(lane_id, seq, at, "retried", 0)
        return self.add(
            "lane", id=str(lane_id), run_id=str(run_id), kind=KIND, key=key, holds_run=True, status=status, epoch=1, seq=seq,
            resend_no=0, resends=0, claims=0, cursor=dict(cursor), next_due_at=self.now, sent_at=self.now,
            check_at=self.now + ASLEEP, steps=steps, max_steps=100_000, attempts=attempts,
            last_error=problem and problem.to_json(), created_at=began, updated_at=min(at, ends), claim_token=None,
            lease_until=None, waits_for=None,
        )  # fmt: skip

    def _ledger(self, lane_id: UUID, seq: int, at: datetime, outcome: str, rows: int) -> int:
        moved = rows if outcome == "moved" else 0
        ms = self.rng.randrange(120, 900)
        self.add("step", lane_id=str(lane_id), epoch=1, seq=seq, outcome=outcome, rows=moved, ms=ms, at=at)
        return seq + 1

    def history(self, run_id: UUID, at: datetime, type_: str, data: Mapping[str, Any], epoch: int = 1) -> None:
        self.lines[run_id] += 1
        self.add("history", run_id=str(run_id), n=self.lines[run_id], epoch=epoch, type=type_, data=dict(data), at=at)

    def lanes_of(self, run_id: UUID, status: str = "active") -> Iterable[dict[str, Any]]:
        return [lane for lane in self.rows["lane"] if lane["run_id"] == str(run_id) and lane["status"] == status]

    def run_row(self, run_id: UUID) -> dict[str, Any]:
        return next(row for row in self.rows["run"] if row["id"] == str(run_id))

    def audit(
        self, at: datetime, actor: str, action: str, target: str, reason: str | None = None, **after: Any
    ) -> None:
        self.add("audit", at=at, actor=actor, action=action, target=target, after=after or None, reason=reason)

    def write(self, connection: sa.Connection) -> None:
        for table, rows in self.rows.items():
            insert(connection, table, rows)


@dataclass(frozen=True, slots=True)
class Seeded:
    """The runs that views and tests look at."""

    running: UUID
    gated: UUID
    retrying: UUID
    paused: UUID
    late: UUID
    queued: UUID
    failed: UUID
    succeeded: UUID
    canceled: UUID


def every_state(url: str, tenant_id: UUID, people: Sequence[str], *, ended: int = 60) -> Seeded:
    """A tenant on a bad day: one of everything that goes on or waits, and `ended` runs of the last days."""
    with owner(url) as connection:
        now: datetime = connection.execute(sa.text("select now()")).scalar_one()
        seed = Seed(now, tenant_id, people)
        seeded = _goes_on(seed, people)
        _ended_runs(seed, ended)
        _around(seed, people, seeded)
        seed.write(connection)
        connection.execute(
            sa.text(
                "insert into beat (name, at) values ('tick', now()), ('sweep', now()) on conflict (name) do nothing"
            )
        )
    return seeded


def _goes_on(seed: Seed, people: Sequence[str]) -> Seeded:
    now = seed.now
    running = seed.run("running", seed.ago(minutes=6), "Nightly, natural stones", Lanes(done=11, active=8))
    for place, lane in enumerate(seed.lanes_of(running)):
        lane["updated_at"] = seed.ago(seconds=2 + place)
        if place < 3:
            lane |= {"claim_token": str(new_id()), "lease_until": now + timedelta(days=1), "claims": 1}

    gated = seed.run("running", seed.ago(minutes=22), "Lab grown, first pass", Lanes(done=7, active=12))
    for lane in seed.lanes_of(gated):
        lane |= {
            "waits_for": f"gate:{GATE}",
            "next_due_at": now + timedelta(minutes=14),
            "updated_at": seed.ago(seconds=41),
        }

    retrying = seed.run("running", seed.ago(minutes=47), "Melee, below 1000", Lanes(done=14, active=5, problem=TIMEOUT))
    for lane in seed.lanes_of(retrying):
        lane |= {"next_due_at": now + timedelta(minutes=3, seconds=20), "updated_at": seed.ago(seconds=75)}

    paused = seed.run("running", seed.ago(hours=3), "Backfill 2024", Lanes(done=5, active=14))
    seed.run_row(paused)["paused_at"] = seed.ago(hours=1)
    seed.history(paused, seed.ago(hours=1), "paused", {"reason": "the source is being moved", "by": people[0]})

    late = seed.run("running", seed.ago(hours=5), "Partner feed, hourly", Lanes(done=16, active=3))
    seed.run_row(late)["deadline_at"] = seed.ago(minutes=12)
    for lane in seed.lanes_of(late):  # due, and nobody came: the message was lost and the tick has not looked yet
        lane |= {
            "next_due_at": seed.ago(minutes=26),
            "sent_at": seed.ago(minutes=26),
            "updated_at": seed.ago(minutes=27),
        }

    queued = seed.run("queued", seed.ago(seconds=20), "Fancy colours", Lanes(done=0))
    # Ended, and what is looked at of them.
    failed = seed.run(
        "failed", seed.ago(minutes=95), "Nightly, lab grown", Lanes(done=18, failed=1, problem=REFUSED),
        ended=seed.ago(minutes=88), outcome="partitions_failed", problem=PARTITIONS,
    )  # fmt: skip
    succeeded = seed.run(
        "succeeded", seed.ago(minutes=140), "Nightly, natural stones", Lanes(done=19), ended=seed.ago(minutes=131),
        outcome="complete",
    )  # fmt: skip
    canceled = seed.run(
        "canceled", seed.ago(minutes=200), "Wrong price range", Lanes(done=3, canceled=16), ended=seed.ago(minutes=196)
    )
    return Seeded(running, gated, retrying, paused, late, queued, failed, succeeded, canceled)


def _ended_runs(seed: Seed, count: int) -> None:
    """The last days: mostly good ones, and failures of a few causes that share their fingerprints."""
    few = EDGES[::6]
    for number in range(count):
        began = seed.ago(hours=4 + number * 0.6, minutes=seed.rng.randrange(50))
        ended = began + timedelta(minutes=seed.rng.uniform(3, 12))
        label = seed.rng.choice(
            ["Nightly, natural stones", "Nightly, lab grown", "Partner feed, hourly", "Melee, below 1000"]
        )
        lanes = Lanes(done=len(few) - 1)
        if number % 9 == 4:
            problem = (ENDLESS, POISON, LOGIN, TIMEOUT)[number // 9 % 4]
            told = of_lanes("partitions_failed", "1 of 3 partitions failed", problem, part_key(few[-2], few[-1]))
            failed = Lanes(done=len(few) - 2, failed=1, problem=problem)
            run_id = seed.run("failed", began, label, failed, ended=ended, outcome="failed", problem=told, edges=few)
            if problem is LOGIN:
                seed.run_row(run_id)["params"]["connection"] = str(PARTNER)
        elif number % 23 == 7:
            seed.run("canceled", began, label, Lanes(done=1, canceled=2), ended=ended, edges=few)
        else:
            outcome = "drifted" if number % 13 == 5 else "complete"
            seed.run("succeeded", began, label, lanes, ended=ended, outcome=outcome, edges=few)


def _around(seed: Seed, people: Sequence[str], seeded: Seeded) -> None:
    """Gates, repairs, connections, people, tokens, and who did what."""
    now, first = seed.now, people[0]
    for key, state, until, reason in (
        (GATE, "closed", now + timedelta(minutes=14), "429 Too Many Requests, Retry-After: 900"),
        ("nivoda-images", "closed", now + timedelta(minutes=2, seconds=30), "closed by hand: their maintenance window"),
        ("rapnet", "open", seed.ago(hours=2), None),
    ):
        seed.add("gate", key=key, state=state, until=until, reason=reason, updated_at=seed.ago(minutes=1))
    for minute in range(1, 60):  # more than the ledger above holds: a wave, and a dent where the gate closed
        steps = round(60 + 40 * math.sin(minute / 7) + seed.rng.uniform(0, 25)) if minute > 3 else 18
        at = (now - timedelta(minutes=minute)).replace(second=0, microsecond=0)
        failed = seed.rng.choice([0, 0, 0, 1, 2]) + (9 if minute in {21, 22} else 0)
        seed.add("pulse", minute=at, created_by=first, steps=steps, failed=failed, rows=steps * PAGE)
    whys = ("unclaimed", "lease_ran_out", "unsent", "unclaimed", "lease_ran_out", "unclaimed")
    lanes = seed.rows["lane"]
    for place, why in enumerate(whys):
        seed.add("repair", lane_id=lanes[place * 7]["id"], why=why, at=seed.ago(minutes=4 + place * 37))
    for place, (name, works, says) in enumerate((
        ("main", True, "Connected."),
        ("partner", False, "Nivoda refuses the password of feed@partner.example."),
        ("trial", None, None),
    )):  # fmt: skip
        seed.add(
            "connection", id=str(PARTNER if works is False else id_at(seed.ago(days=20 - place), seed.rng)), provider="nivoda", name=name,
            settings={"username": f"{name}@gems.example"}, secret_ref="v1", works=works, check_says=says,
            checked_at=None if works is None else seed.ago(hours=3 + place), created_by=first,
            created_at=seed.ago(days=20 - place), updated_at=seed.ago(days=4),
        )  # fmt: skip
    for place, (name, role, used, revoked) in enumerate((
        ("nightly feed", "member", seed.ago(minutes=5), None),
        ("status board", "viewer", seed.ago(seconds=50), None),
        ("old laptop", "admin", seed.ago(days=70), seed.ago(days=61)),
    )):  # fmt: skip
        at = seed.ago(days=90 - place * 20)
        seed.add(
            "machine_token", id=str(id_at(at, seed.rng)), name=name, role=role, created_by=first, created_at=at,
            hash="\\x" + hashlib.sha256(f"{seed.tenant_id}{name}".encode()).hexdigest(), last_used_at=used,
            revoked_at=revoked, expires_at=now + timedelta(days=90),
        )  # fmt: skip
    for subject, role, name in (("idp-4711", "member", "Grace Hopper"), ("idp-4712", "viewer", "Edsger Dijkstra")):
        seed.add("member", subject=subject, role=role, name=name, added_by=first, created_at=seed.ago(days=30))
    seed.audit(seed.ago(hours=1), first, "pause", f"run:{seeded.paused}", "the source is being moved")
    seed.audit(seed.ago(minutes=197), people[-1], "cancel", f"run:{seeded.canceled}", "wrong price range")
    seed.audit(seed.ago(hours=5), first, "connection.check", "connection:main", works=True)
    seed.audit(seed.ago(days=1), first, "member.put", "member:idp-4711", role="member")
    seed.audit(seed.ago(days=2), first, "token.revoke", "token:old-laptop")
    seed.audit(seed.ago(minutes=3), first, "gate.close", "gate:nivoda-images", "their maintenance window", for_s=330)


WAITING = "waits, for a test to act on it"


def waiting_runs(url: str, tenant_id: UUID, count: int, *, label: str, by: str) -> list[UUID]:
    """Runs with one lane that is due in a month: nothing moves them but what a test does."""
    with owner(url) as connection:
        now: datetime = connection.execute(sa.text("select now()")).scalar_one()
        seed = Seed(now, tenant_id, [by])
        made = [seed.run("queued", seed.ago(minutes=1 + n), label, Lanes(done=0)) for n in range(count)]
        for lane in seed.rows["lane"]:
            lane |= {"next_due_at": now + ASLEEP, "waits_for": WAITING}
        seed.write(connection)
    return made


def ended_runs(url: str, tenant_id: UUID, count: int, *, by: str, label: str = "Archive") -> None:
    """Very many runs of the past, ten seconds apart, as one statement: rows without lanes, as old ones are."""
    with owner(url) as connection:
        connection.execute(ENDED_RUNS, {"tenant_id": tenant_id, "count": count, "by": by, "label": label})
    with owner_autocommit(url) as connection:
        connection.exec_driver_sql("vacuum analyze run")


# Ids grow with the time of their runs, as the product's do.
ENDED_RUNS = sa.text("""
insert into run (id, tenant_id, kind, label, status, outcome, params, check_at, error, created_by, created_at, started_at,
                 finished_at)
select (lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0') || '7000a' || lpad(to_hex(n), 15, '0'))::uuid,
       :tenant_id, 'page_ingest', :label,
       case when mod(n, 11) = 0 then 'failed' when mod(n, 37) = 0 then 'canceled' else 'succeeded' end,
       case when mod(n, 11) = 0 then 'failed' when mod(n, 37) <> 0 then 'complete' end, '{"source": "nivoda"}', at,
       case when mod(n, 11) = 0
            then '{"code": "timeout", "message": "Nivoda did not answer within 20 s", "fingerprint": "4be0f0c6a1de"}'::jsonb end,
       :by, at, at + interval '1 s', at + interval '5 min'
from (select n, now() - interval '7 days' - n * interval '10 s' as at from generate_series(1, cast(:count as integer)) n) n
""")


@contextmanager
def owner_autocommit(url: str) -> Iterator[sa.Connection]:
    engine = db.connect_engine(url, pool="none", application_name="seed")
    try:
        with db.autocommit(engine).connect() as connection:
            yield connection
    finally:
        engine.dispose()
