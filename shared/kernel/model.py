"""The words of the relay as types: runs, lanes, turns, decisions. No I/O."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal
from uuid import UUID

from shared.kernel.baton import Baton
from shared.kernel.errors import Throttled
from shared.kernel.redact import redact

Json = Mapping[str, Any]

# What tells one occurrence of a cause from the next: times, ids, quoted values, numbers.
_PARTICULARS = re.compile(
    r"""\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?
      | [0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}
      | \b(?=\w*\d)\w{12,}\b
      | "[^"]*" | `[^`]*` | (?<!\w)'[^']*'(?!\w)
      | \d+(?:[.,:]\d+)*""",
    re.VERBOSE,
)
_A_LIST_OF_THEM = re.compile(r"(?<![^\s,])([^\s,]{1,80})(?:, (?:\1|…))+")


class RunStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def ended(self) -> bool:
        return self not in (RunStatus.QUEUED, RunStatus.RUNNING)


class LaneStatus(StrEnum):
    ACTIVE = "active"
    DONE = "done"
    FAILED = "failed"
    CANCELED = "canceled"


# Within one epoch a terminal state absorbs; only a retry, which opens the next epoch, leads out of it.
RUN_TRANSITIONS: Mapping[RunStatus, frozenset[RunStatus]] = {
    RunStatus.QUEUED: frozenset(set(RunStatus) - {RunStatus.QUEUED}),
    RunStatus.RUNNING: frozenset({RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELED}),
    RunStatus.SUCCEEDED: frozenset(),
    RunStatus.FAILED: frozenset(),
    RunStatus.CANCELED: frozenset(),
}
LANE_TRANSITIONS: Mapping[LaneStatus, frozenset[LaneStatus]] = {
    LaneStatus.ACTIVE: frozenset({LaneStatus.DONE, LaneStatus.FAILED, LaneStatus.CANCELED}),
    LaneStatus.DONE: frozenset(),
    LaneStatus.FAILED: frozenset(),
    LaneStatus.CANCELED: frozenset(),
}


class StepOutcome(StrEnum):
    """What a committed step did to its lane; one row of the ledger each."""

    MOVED = "moved"
    WAITED = "waited"
    RETRIED = "retried"
    THROTTLED = "throttled"
    DONE = "done"
    FAILED = "failed"
    CANCELED = "canceled"


class NoTurn(StrEnum):
    """Why a message gave no turn. None of them says anything about the work itself."""

    UNKNOWN = "unknown"  # no such lane of this kind
    STALE = "stale"  # the lane has moved on
    AHEAD = "ahead"  # the database is older than the message: it was restored
    ENDED = "ended"
    PAUSED = "paused"
    EARLY = "early"
    TWIN = "twin"  # another process holds the lease


def fingerprint(code: str, message: str) -> str:
    """Equal for equal causes, whatever times, ids, values and numbers they mention, and however many of them in a row."""
    shape = _A_LIST_OF_THEM.sub(r"\1", _PARTICULARS.sub("#", message))
    return hashlib.sha256(f"{code}|{shape}".encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Problem:
    """A failure as people read it. `cause`: of a run, the error of the lanes that it failed of, and one of them."""

    code: str
    message: str
    cause: Json | None = None

    def to_json(self) -> Json:
        message = redact(str(self.message))  # a kind may have put an exception there
        told = {"code": self.code, "message": message, "fingerprint": fingerprint(self.code, message)}
        return told if self.cause is None else {**told, "cause": self.cause}


@dataclass(frozen=True, slots=True)
class Statement:
    """A kind's own SQL. In a step it selects from `turn`: no turn, no rows.

    `turn` offers id, run_id, tenant_id, kind, key, epoch and seq (of the step being committed).
    `returns`: a write before the commit (`Outside.write`) answers what its `returning` says.
    `many`: the same with the endings of several turns in one statement. Its parameters are then in the column `given` of
    each row of `turn`, as JSON. None: a turn that ends with it ends in a statement of its own.
    `keeps_plan`: the server may keep the plan of its commit. Not for what joins many rows once in a while: its plan is made for the
    tables as they are, which costs a millisecond.
    """

    name: str
    sql: str
    returns: bool = False
    many: str | None = None
    keeps_plan: bool = True


@dataclass(frozen=True, slots=True)
class Effect:
    statement: Statement
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """How a pull lane stands among others. Its class says which queue it waits in and how many of it may run at once.

    A lower priority number comes first among a tenant's own. A tenant has one active lane per dedupe key.
    `version`: of the class as it is known here; if it is another one by now, or closed, the start fails as `Outdated`.
    `wakes`: the queue whose takers have to be woken for it.
    """

    class_id: UUID
    priority: int = 100
    dedupe_key: str | None = None
    version: int | None = None
    wakes: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLane:
    """A lane to be created. A lane that does not hold the run (clean-up) may outlive it and is not canceled with it."""

    key: str
    cursor: Json = field(default_factory=dict)
    holds_run: bool = True
    delay_s: float = 0
    max_steps: int | None = None
    time_limit_s: int | None = None
    offer: Offer | None = None  # for a kind that is pulled, and for no other


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run to be created together with its first lanes."""

    params: Json
    lanes: Sequence[NewLane]
    label: str | None = None
    time_limit_s: int | None = None
    source: str | None = None
    source_ref: str | None = None
    created_by: str | None = None
    correlation_id: str | None = None


@dataclass(frozen=True, slots=True)
class By:
    """Who asks, why, and what caused it.

    `source` is what kind of cause it was (`api`, `schedule`, `event`, `run`) and `source_ref` which one.
    Without an actor (a trigger, a test, the command line on the spot) nothing is audited.
    """

    actor: str | None = None
    reason: str = ""
    correlation_id: str | None = None
    source: str | None = None
    source_ref: str | None = None
    manages: bool = True  # whether they run the tenant, or act for those who do


@dataclass(frozen=True, slots=True, kw_only=True)
class Starting:
    """A run that is about to exist. Its id is known, so that a kind can write rows under it in the same transaction."""

    run_id: UUID
    tenant_id: UUID
    params: Json
    by: By
    may_remember: bool = False  # what was read for an earlier start, if the offer says its version


@dataclass(frozen=True, slots=True)
class Already:
    """What was asked for is there already: this run does it. Whatever the kind wrote in its `start` is kept."""

    run_id: UUID


@dataclass(frozen=True, slots=True)
class Start:
    """A run that a listener wants started."""

    kind: str
    params: Json
    label: str | None = None


@dataclass(frozen=True, slots=True)
class RunCommand:
    """A command for jobs that starts a run of a kind, as `<kind>.start`. Its kind declares it, in `build.commands`."""

    key: str
    kind: str
    # What of a job's payload are the run's parameters.
    params: Callable[[Json], Json] = dict


@dataclass(frozen=True, slots=True)
class Signal:
    """Something that happened, as listeners hear it."""

    id: int
    tenant_id: UUID
    name: str
    payload: Json
    at: datetime


@dataclass(frozen=True, slots=True)
class Hearing:
    """A signal that one listener is to hear, and how often it was taken for that."""

    signal: Signal
    listener: str
    attempts: int


@dataclass(frozen=True, slots=True)
class Say:
    """A signal to be written with a step or an ending; the name belongs to the kind (`Kind.says`)."""

    name: str
    payload: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Room:
    """How many runs of a kind a tenant has open, counted up to the most it may have."""

    open: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    id: UUID
    tenant_id: UUID
    kind: str
    status: RunStatus
    outcome: str | None
    epoch: int
    params: Json
    correlation_id: str | None
    cancel_requested_at: datetime | None
    paused_at: datetime | None
    time_limit_s: int | None
    deadline_at: datetime | None
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A lane as the kind sees it when it judges the whole run."""

    id: UUID
    key: str
    status: LaneStatus
    holds_run: bool
    epoch: int
    cursor: Json
    last_error: Json | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A claimed turn: what one step may know and what proves that it may commit."""

    lane_id: UUID
    run_id: UUID
    tenant_id: UUID
    kind: str
    key: str
    holds_run: bool
    epoch: int
    seq: int
    resend_no: int
    token: UUID
    cursor: Json
    params: Json
    claims: int
    attempts: int
    steps: int
    max_steps: int
    deadline_at: datetime | None
    cancel_at: datetime | None
    run_status: RunStatus
    run_epoch: int
    correlation_id: str | None
    now: datetime
    probes: frozenset[str] = frozenset()
    pulled: bool = False
    queued_at: datetime | None = None  # of a turn that was pulled: since when it could have been
    # Of a turn that was pulled: the seconds since this process asked for it. Its lease cannot have begun earlier.
    since_asked_s: Callable[[], float] | None = field(default=None, compare=False)
    gated: bool = True  # whether any gate of the tenant was not open when the turn was claimed: else none need be asked

    @property
    def baton(self) -> Baton:
        return Baton(kind=self.kind, lane_id=self.lane_id, epoch=self.epoch, seq=self.seq, resend_no=self.resend_no)


@dataclass(frozen=True, slots=True)
class Due:
    """A baton to be sent, for as many seconds from now. One that is pulled is offered already, and not sent.

    `wakes`: the pull queue whose takers sleep until they are told (functions); workers look for themselves.
    """

    baton: Baton
    tenant_id: UUID
    delay_s: float
    pulled: bool = False
    wakes: str | None = None


@dataclass(frozen=True, slots=True)
class Renewed:
    """A turn that is still held, and what was asked of it meanwhile."""

    lane_id: UUID
    cancel_at: datetime | None
    paused: bool


@dataclass(frozen=True, slots=True)
class LaneState:
    """Where a lane stands, read after an answer was lost."""

    epoch: int
    seq: int
    status: LaneStatus
    claim_token: UUID | None
    due: Due


# What a kind's step answers.


@dataclass(frozen=True, slots=True, kw_only=True)
class Continue:
    """Progress was made; there is more to do.

    `renews`: the lane is meant to live on, and its step budget starts anew. `throttled`: the upstream asked to wait in the
    middle of the step; what was done is kept, and the gate closes. The lane waits with it, unless it `goes_on`: it has work
    at other upstreams.
    """

    cursor: Json
    after_s: float = 0
    effects: Sequence[Effect] = ()
    rows: int = 0
    lanes: Sequence[NewLane] = ()
    says: Sequence[Say] = ()
    renews: bool = False
    throttled: Throttled | None = None
    goes_on: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing to do yet. Spends neither an attempt nor a step."""

    after_s: float
    cursor: Json | None = None
    waits_for: str | None = None  # for people: a few words, or `gate:` and the gate's key
    asked: bool = True  # False: the upstream was not asked, so a probe is left to the next step


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The lane has done its work."""

    effects: Sequence[Effect] = ()
    rows: int = 0
    lanes: Sequence[NewLane] = ()
    says: Sequence[Say] = ()
    cursor: Json | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    """`asked`: False if the upstream was not: a probe is then left to the next step."""

    problem: Problem
    asked: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """The lane gives up because its run was canceled."""

    effects: Sequence[Effect] = ()


Decision = Continue | Wait | Finish | Fail | Cancel


@dataclass(frozen=True, slots=True, kw_only=True)
class GateClosing:
    key: str
    shared: bool
    retry_after_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneChange:
    """What one commit writes to a lane, and beside it."""

    status: LaneStatus
    outcome: StepOutcome
    attempts: int
    cursor: Json | None = None
    delay_s: float = 0
    spent: int = 0  # of the lane's step budget; negative where it is renewed
    problem: Problem | None = None
    effects: Sequence[Effect] = ()
    rows: int = 0
    lanes: Sequence[NewLane] = ()
    says: Sequence[Say] = ()
    closes_gate: GateClosing | None = None
    probe_undecided: bool = False  # the step never asked the upstream: its probe is for the next one
    waits_for: str | None = None


# What a kind answers when all lanes that hold the run have ended.


@dataclass(frozen=True, slots=True)
class NextPhase:
    lanes: Sequence[NewLane]


@dataclass(frozen=True, slots=True)
class Ending:
    status: Literal[RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELED]
    outcome: str | None = None
    problem: Problem | None = None


Settlement = NextPhase | Ending


# Endings of turns that were pulled.


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """A turn that ends with its run, and how."""

    turn: Turn
    change: LaneChange
    ending: Ending
    ms: int


# What came of one: the run's status, or the lane's where another lane holds the run; None: the turn was lost.
Ended = RunStatus | LaneStatus | None


@dataclass(slots=True)
class Taking:
    """What is to be taken together with the end of turns, and what was."""

    queue: str
    lease_s: float
    worker: str
    token: UUID
    most: int = 1
    taken: list[Turn] = field(default_factory=list)


# What the tick sees of a lane, and what it does about it.


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneFacts:
    lane_id: UUID
    tenant_id: UUID
    kind: str
    epoch: int
    seq: int
    resend_no: int
    resends: int
    next_due_at: datetime
    sent_at: datetime | None
    lease_until: datetime | None
    cancel_at: datetime | None
    deadline_at: datetime | None
    run_paused: bool
    now: datetime


class Verdict(StrEnum):
    PARKED = "parked"
    BUSY = "busy"
    LEASE_RAN_OUT = "lease_ran_out"
    UNSENT = "unsent"
    PROMOTED = "promoted"
    LATER = "later"
    UNCLAIMED = "unclaimed"
    WAITING = "waiting"
    EXPIRED = "expired"  # its own deadline passed while it waited: its turn is due now, and fails it


REPAIRS = frozenset({Verdict.LEASE_RAN_OUT, Verdict.UNSENT, Verdict.UNCLAIMED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    verdict: Verdict
    lane: LaneFacts
    resend_no: int
    resends: int
    send: bool
    check_at: datetime | None  # None: never, until somebody wakes it
    due_now: bool = False

    @property
    def due(self) -> Due:
        lane = self.lane
        baton = Baton(kind=lane.kind, lane_id=lane.lane_id, epoch=lane.epoch, seq=lane.seq, resend_no=self.resend_no)
        delay_s = 0.0 if self.due_now else max(0.0, (lane.next_due_at - lane.now).total_seconds())
        return Due(baton, lane.tenant_id, delay_s)


BEFORE_ALL = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Place:
    """How far a tick has come through what was due when it began: it goes on after this one."""

    at: datetime | str = "-infinity"  # a time that Python cannot hold comes as its text
    id: UUID = BEFORE_ALL
    began: datetime | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DueRun:
    id: UUID
    tenant_id: UUID
    kind: str
    at_work: bool  # and within its time: it was put off, nothing is to be done
    place: Place


# The record of a call to the outside that must not happen twice.


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCall:
    run_id: UUID
    tenant_id: UUID
    run_kind: str
    epoch: int
    key: str
    kind: str
    remote_id: str | None

    @property
    def idempotency_key(self) -> str:
        return idempotency_key(self.run_id, self.epoch, self.key)


@dataclass(frozen=True, slots=True)
class PrunedRuns:
    """One batch of what old runs leave: rows of theirs, whole runs, and runs with nothing left but their kind's own rows."""

    rows: int
    runs: int
    with_rows: Sequence[tuple[UUID, UUID, str]]


@dataclass(frozen=True, slots=True)
class Intent:
    """`fresh`: written just now, so the call was never made before. Ages are the database's."""

    fresh: bool
    confirmed: bool
    remote_id: str | None
    age_s: float = 0
    looks: int = 0
    looked_s: float | None = None  # since the last look


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """How to look for the trace of a call whose answer was lost, before it is made again.

    Some upstreams show what they started only after a while: look `first_s` after the intent, `times` times, `apart_s`
    apart. Between two looks the lane waits, which spends nothing.
    """

    first_s: float = 0
    times: int = 1
    apart_s: float = 0


def idempotency_key(run_id: UUID, epoch: int, key: str) -> str:
    """The same for every try of the same call, and short enough for a remote customer key."""
    return hashlib.sha256(f"{run_id}:{epoch}:{key}".encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class GatePass:
    """The answer at the gates: closed for `wait_s`, or through, perhaps as the probe of some."""

    wait_s: float | None
    probes: frozenset[str]
    closed_by: str | None = None  # the key of the gate that opens last


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """Who did what to what, and why. `actor` is `user:<subject>` or `token:<id>`."""

    tenant_id: UUID
    actor: str
    action: str
    target: str
    before: Json | None = None
    after: Json | None = None
    reason: str = ""


def account_name(upstream: str, connection: str | None) -> str:
    """By whose account a step asks an upstream: the key of its token and of its gate within the tenant.

    Without a connection of the tenant's own it is the deployment's account.
    """
    return upstream if connection is None else f"{upstream}:{connection}"
