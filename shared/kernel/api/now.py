"""What is going on now: overdue, failing, waiting and why; and system health. One statement each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from aws_lambda_powertools.event_handler.api_gateway import Router
from pydantic import Field

from shared.kernel.api import sql
from shared.kernel.api.desk import Desk
from shared.kernel.api.frame import desk, operation
from shared.kernel.api.gates import Gate
from shared.kernel.api.runs import Fix, Shown, fix_of, freed_by
from shared.kernel.api.shapes import Told
from shared.kernel.api.state import State, state_of
from shared.kernel.auth import MANAGES, READS
from shared.kernel.undeployed import sentence

router = Router()  # type: ignore[no-untyped-call]

LATE = {
    "due": "The next step is overdue. Its message is sent again automatically.",
    "lease": "A step started and didn't finish. Another worker takes over automatically.",
    "deadline": "Past its deadline. It is ended automatically.",
}


class Open(Told):
    """`more`: there are more open runs than were looked at, and the other figures are of the oldest of each kind."""

    queued: int
    running: int
    paused: int
    more: bool


class OpenOfKind(Open):
    kind: str


class Waiting(Told):
    """Runs that wait for the same: `until` is the earliest, `sentence` and `run_id` are one of them."""

    code: str
    held_by: str | None
    action: str | None
    runs: int
    until: datetime | None
    sentence: str
    run_id: UUID
    kind: str
    label: str | None


class LateRun(Told):
    id: UUID
    kind: str
    label: str | None
    status: Shown
    since: datetime
    sentence: str


class Late(Told):
    count: int
    more: bool
    runs: list[LateRun]


class Cause(Told):
    """Failed runs of one kind and one cause. `message`, `lane_key` and `fix` are the latest one's, whose id is `run_id`."""

    fingerprint: str | None
    code: str | None
    message: str | None
    kind: str
    count: int
    first_at: datetime
    last_at: datetime
    run_id: UUID
    lane_key: str | None
    fix: Fix | None


class Failures(Told):
    """Without those that are muted."""

    count: int
    more: bool
    groups: list[Cause]


class Minute(Told):
    """`failed`: steps whose attempt failed, whether it is tried again or not."""

    minute: datetime
    steps: int
    failed: int
    rows: int


class Repair(Told):
    at: datetime
    why: str
    run_id: UUID
    lane_id: UUID
    lane_key: str
    kind: str


class Now(Told):
    """`moving`: open runs that committed a step in the last five minutes and are not overdue, whatever they wait for.

    `states`: the open runs that were looked at, by what they are doing. `oldest_open`: when the oldest of them was created.
    """

    now: datetime
    tick_age_s: float | None
    oldest_open: datetime | None
    states: dict[State, int]
    open: Open
    kinds: list[OpenOfKind]
    moving: int
    waiting: list[Waiting]
    late: Late
    failing: Failures
    throughput: list[Minute]
    gates: list[Gate]
    repairs: list[Repair]


class DeadLetter(Told):
    at: datetime
    run_id: UUID
    lane_id: UUID
    lane_key: str
    kind: str


class DeadLetters(Told):
    count: int
    latest: list[DeadLetter]


class Unheard(Told):
    """What happened (`signal`), and who should have reacted to it (`listener`)."""

    at: datetime
    signal: str
    listener: str
    attempts: int
    error: dict[str, Any] | None


class GivenUp(Told):
    count: int
    latest: list[Unheard]


class RepairsBy(Told):
    why: str
    count: int


class Repairs(Told):
    count: int
    by: list[RepairsBy]
    latest: list[Repair]


class Table(Told):
    name: str
    bytes: int
    rows: int
    dead_rows: int


class Everywhere(Told):
    """Of all tenants; figures alone."""

    tenants: int
    open_runs: int
    unsent: int
    signals_waiting: int
    tables: list[Table]


class System(Told):
    """`unsent`: lanes whose message should have been sent a minute ago. `oldest_due`: of lanes that should have moved by now.

    Dead letters and repairs are those of the last day. `unheard`: deliveries that were given up, as long as their signals are kept.
    """

    now: datetime
    schema_: str = Field(alias="schema")
    tick_age_s: float | None
    sweep_age_s: float | None
    unsent: int
    oldest_due: datetime | None
    dead_letters: DeadLetters
    unheard: GivenUp
    repairs: Repairs
    everywhere: Everywhere | None


@operation(router, "GET", "/now", READS, tag="now")
def get_now() -> Now:
    """What is overdue, failing or waiting, with causes, and throughput: the last 24 hours at most."""
    here = desk(router)
    row = here.one(sql.now(own=bool(here.own())), **here.own())
    assert row is not None
    return Now(
        **{
            name: row[name]
            for name in ("now", "tick_age_s", "oldest_open", "open", "kinds", "moving", "throughput", "gates", "repairs")
        },
        waiting=[_waiting(here, each) for each in row["waiting"]],
        states=_states(row["standings"]),
        late=Late(count=row["late"], more=row["open"]["more"], runs=[_late(here, run) for run in row["late_runs"]]),
        failing=Failures(
            count=min(row["failed"], sql.MOST_FAILED),
            more=row["failed"] > sql.MOST_FAILED,
            groups=[Cause(**cause_of(group)) for group in row["failing"]],
        ),
    )  # fmt: skip


def _waiting(here: Desk, each: dict[str, Any]) -> Waiting:
    """With the action that frees it: what its kind alone can do, the database doesn't know."""
    if each["kind"] in here.kinds:
        each = {**each, "action": freed_by(here, each["kind"], each["sentence"], each["action"])}
    return Waiting(**each)


def _states(standings: list[dict[str, Any]]) -> dict[State, int]:
    counts: Counter[State] = Counter()
    for each in standings:
        counts[state_of(each)] += each["runs"]
    return dict(counts)


def cause_of(row: Mapping[str, Any]) -> dict[str, Any]:
    told = {name: row[name] for name in Cause.model_fields if name != "fix"}
    return {**told, "fix": fix_of(row["code"], row["connection"])}


def _late(here: Desk, run: dict[str, Any]) -> LateRun:
    said = LATE[run.pop("late_by")]
    return LateRun(sentence=said if run["kind"] in here.kinds else sentence(run["kind"]), **run)


@operation(router, "GET", "/system", MANAGES, tag="now")
def get_system() -> System:
    """System health: scheduler, unsent messages, dead letters, repairs; for a super admin, all tenants."""
    here = desk(router)
    subject = here.principal.actor.removeprefix("user:") if here.principal.is_super else None
    row = here.one(sql.SYSTEM, subject=subject)
    assert row is not None
    given_up = [{name: each[name] for name in DeadLetter.model_fields} for each in row["latest_dead_letters"]]
    count = sum(by["count"] for by in row["repairs_by"])
    return System(
        **{name: row[name] for name in ("now", "schema", "tick_age_s", "sweep_age_s", "unsent", "oldest_due", "everywhere")},
        dead_letters=DeadLetters(count=row["dead_letters"], latest=[DeadLetter(**each) for each in given_up]),
        unheard=GivenUp(count=row["unheard"], latest=row["latest_unheard"]),
        repairs=Repairs(count=count, by=row["repairs_by"], latest=row["latest_repairs"]),
    )  # fmt: skip
