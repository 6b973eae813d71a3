"""One test per flaw of the platform (P1-P15): each fails as soon as the flaw's rule is put back into the code."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from shared.kernel import run as runs
from shared.kernel.baton import read_baton
from shared.kernel.catalogue import Kind, Outside
from shared.kernel.decide import change_for
from shared.kernel.entry import step_handler, tick_handler
from shared.kernel.errors import Overtaken
from shared.kernel.metrics import Metric
from shared.kernel.model import (
    Continue,
    Decision,
    Due,
    Effect,
    Finish,
    LaneChange,
    NewLane,
    NewRun,
    Starting,
    StepOutcome,
    Turn,
    Wait,
)
from shared.kernel.ports import Tx
from shared.kernel.queue import Outgoing, QueueUnavailable
from shared.kernel.queue_memory import MemoryQueue
from shared.kernel.step import Lost, commit, take_turn
from shared.kernel.store import PgStore
from tests.support.lambda_calls import FakeContext, a_message, sqs_record
from tests.support.rig import (
    DEAD,
    DELAY,
    FIFO,
    LEASE_S,
    MAX_RECEIVES,
    QUEUE_SETTINGS,
    TENANT,
    VISIBILITY_S,
    MakeRig,
    Rig,
)
from tests.support.tally import ADD, QuietWorld, tally_kind

ROOT = Path(__file__).parents[2]
RESENT_WITHIN_S = 300


class Killed(BaseException):
    """The process is gone: no code of ours runs after this."""


def a_kind(take_step: Callable[[Turn], Decision], **lane: Any) -> Kind:
    def start(tx: Tx, starting: Starting) -> NewRun:
        time_limit_s = starting.params.get("time_limit_s")
        first = NewLane(key="l0", cursor={"n": 0}, **lane)
        return NewRun(params=starting.params, lanes=[first], time_limit_s=time_limit_s)

    def step(turn: Turn, outside: Outside) -> Decision:
        return take_step(turn)

    return Kind(name="tally", take_step=step, start=start)


def endless(turn: Turn) -> Decision:
    return Continue(cursor={"n": turn.cursor["n"] + 1}, after_s=turn.params.get("after_s", 0))


# P1: Lambda stops a chain after 16 hops unless told not to; then the relay's own guard is the only one.


def test_p1_a_runaway_lane_is_stopped_by_its_own_budget_of_steps(rig: Rig) -> None:
    rig.kind = a_kind(endless, max_steps=40)
    run_id = rig.start()

    assert rig.work_off(most=200) == 41

    assert rig.run(run_id)["status"] == "failed"
    assert rig.lane(run_id)["last_error"]["code"] == "max_steps"
    assert rig.lane(run_id)["steps"] == 40, "far beyond Lambda's 16 hops, and not one step more than allowed"


@pytest.mark.parametrize("whose", ["lane", "run"])
def test_p1_a_runaway_lane_is_stopped_by_its_deadline(rig: Rig, whose: str) -> None:
    rig.kind = a_kind(endless, time_limit_s=600 if whose == "lane" else None)
    run_id = rig.start(after_s=30, **({"time_limit_s": 600} if whose == "run" else {}))

    assert rig.run_to_end(run_id, within_s=900) == "failed"

    assert rig.lane(run_id)["last_error"]["code"] == "timed_out"
    assert rig.now <= 720


# P2: FIFO swallows a repeated deduplication id for five minutes and answers "ok".


@pytest.mark.parametrize("scope", ["queue", "messageGroup"])
def test_p2_a_repair_is_not_swallowed_by_deduplication(make_rig: MakeRig, scope: Any) -> None:
    rig = make_rig(**{FIFO: replace(QUEUE_SETTINGS[FIFO], dedup_scope=scope)})
    run_id = rig.start()
    rig.purge()  # the message is gone, but SQS still knows its id

    rig.now = 200
    assert rig.tick().lanes == {"unclaimed": 1}

    assert rig.now < RESENT_WITHIN_S
    assert rig.work_off() == 3
    assert rig.run(run_id)["status"] == "succeeded"


def test_p2_the_successor_of_a_dead_process_is_not_swallowed(rig: Rig) -> None:
    run_id = rig.start()
    _take_and_die(rig)

    rig.now = LEASE_S + 65
    rig.tick()

    assert rig.now < RESENT_WITHIN_S
    assert rig.work_off() == 3
    assert rig.run(run_id)["status"] == "succeeded"


def _take_and_die(rig: Rig) -> None:
    """Claim the next turn and vanish: the message stays in flight, the lease stays taken."""

    def die(turn: Turn, n: int) -> None:
        raise Killed

    living, rig.kind = rig.kind, tally_kind(QuietWorld(die))
    with pytest.raises(Killed):
        rig.work(rig.expect())
    rig.kind = living


# P3: a schedule with a constant payload, sent through a FIFO queue, loses four ticks of five.


def test_p3_every_tick_mends_however_equal_its_payload(rig: Rig) -> None:
    handler = tick_handler(rig.ports, rig.kinds)
    run_id = rig.start(target=2)
    for seq in (0, 1):
        rig.purge()
        rig.now += 200
        assert handler({}, FakeContext())["lanes"] == {"unclaimed": 1}
        assert read_baton(rig.waiting()[0]).seq == seq
        rig.work_off(most=1)

    assert rig.run(run_id)["status"] == "succeeded"


@pytest.mark.parametrize("event", [{}, {"time": "1970-01-01T00:00:00Z"}, {"id": "x", "detail": []}])
def test_p3_a_tick_that_is_fired_twice_mends_once(rig: Rig, event: dict[str, Any]) -> None:
    handler = tick_handler(rig.ports, rig.kinds)
    rig.start(lanes=3)
    rig.purge()
    rig.now = 200

    reports = [handler(event, FakeContext()) for _ in range(3)]

    assert [report["lanes"] for report in reports] == [{"unclaimed": 3}, {}, {}]
    assert len(rig.waiting()) == 3
    assert len(rig.rows("select * from repair")) == 3


def test_p3_a_lane_that_was_never_sent_is_sent_by_one_of_two_ticks(rig: Rig) -> None:
    working, rig.ports = rig.ports, replace(rig.ports, queue=Unreachable())
    run_id = rig.start()
    rig.ports = working
    assert rig.lane(run_id)["sent_at"] is None
    rig.now += 60

    rig.tick()
    rig.tick()

    assert len(rig.waiting()) == 1
    assert rig.lane(run_id)["sent_at"] is not None


class Unreachable:
    def send(self, queue: str, messages: Sequence[Outgoing]) -> list[int]:
        raise QueueUnavailable("no answer")

    def is_empty(self, queue: str) -> bool:
        raise QueueUnavailable("no answer")

    def change_visibility(self, queue: str, receipt: str, seconds: int) -> None:
        raise QueueUnavailable("no answer")


# P4: the message at the head of a group blocks all that follow it, for as long as it fails.


def test_p4_a_group_is_one_copy_of_one_lane_and_never_a_tenant(rig: Rig) -> None:
    rig.start(lanes=3)
    rig.now = 200
    rig.tick()

    stored = rig.queue.messages(FIFO).visible

    assert len(stored) == 6
    for message in stored:
        baton = read_baton(message.body)
        assert message.group == f"{baton.lane_id}:{baton.resend_no}"
    assert len({message.group for message in stored}) == 6


def test_p4_a_lane_that_kills_its_process_does_not_hold_up_its_neighbours(rig: Rig) -> None:
    def kill(turn: Turn, n: int) -> None:
        if turn.key == "l1":
            raise Killed

    rig.kind = tally_kind(QuietWorld(kill))
    run_id = rig.start(lanes=3)
    for _ in range(7):
        try:
            rig.work(rig.expect())
        except Killed:
            continue

    assert rig.now == 0
    assert [rig.lane(run_id, key)["status"] for key in ("l0", "l1", "l2")] == ["done", "active", "done"]


def test_p4_a_repair_overtakes_the_message_of_the_dead_process(rig: Rig) -> None:
    run_id = rig.start()
    _take_and_die(rig)
    rig.now = LEASE_S + 65

    rig.tick()

    assert rig.now < VISIBILITY_S, "the dead process's message still blocks its own group"
    assert rig.work_off() == 3, "the repair and everything after it go past"
    assert rig.run(run_id)["status"] == "succeeded"


def test_p4_a_lane_that_kills_every_process_is_given_up_after_five_claims(rig: Rig) -> None:
    run_id = rig.start()
    for _ in range(5):
        _take_and_die(rig)
        rig.now += LEASE_S + 65
        rig.tick()

    rig.work(rig.expect())

    assert rig.lane(run_id)["last_error"]["code"] == "poison"
    assert rig.run(run_id)["status"] == "failed"
    assert rig.tallied(run_id) == []


# P5: what is dead-lettered has no owner, and the row still says "running".


def test_p5_a_dead_letter_is_noted_and_decides_nothing(rig: Rig) -> None:
    run_id = rig.start()
    _wear_out(rig)
    run, lane = rig.run(run_id), rig.lane(run_id)

    rig.work(rig.expect(DEAD), DEAD)

    noted = rig.lane(run_id)
    assert noted["last_error"]["code"] == "dead_letter"
    assert {**noted, "last_error": None} == {**lane, "last_error": None}
    assert rig.run(run_id) == run
    assert [row["why"] for row in rig.rows("select why from repair")] == ["dead_letter"]
    assert rig.waiting() == []


def test_p5_the_tick_repairs_a_lane_whose_message_was_dead_lettered(rig: Rig) -> None:
    run_id = rig.start()
    _wear_out(rig)
    rig.next_tick_at = rig.now + 60

    assert rig.run_to_end(run_id, within_s=RESENT_WITHIN_S) == "succeeded"
    assert rig.tallied(run_id) == [0, 1, 2]


def test_p5_a_dead_letter_of_an_earlier_turn_is_not_noted(rig: Rig) -> None:
    run_id = rig.start()
    first = rig.expect()
    rig.work(first)

    rig.work(replace(first, receipt=f"{DEAD}|m0|1"), DEAD)

    assert rig.lane(run_id)["last_error"] is None


def _wear_out(rig: Rig) -> None:
    """Receive the one message until its queue gives it up, without ever taking its turn."""
    while rig.receive() is not None:
        rig.now += VISIBILITY_S
    assert len(rig.queue.messages(DEAD).visible) == 1


# P6: an event source mapping that is throttled drops messages back, and each drop counts as a receive.


def test_p6_a_receive_is_not_an_attempt(rig: Rig) -> None:
    run_id = rig.start()
    for _ in range(MAX_RECEIVES - 1):
        rig.expect()
        rig.now += VISIBILITY_S
    message = rig.expect()
    assert message.receive_count == MAX_RECEIVES

    assert rig.work(message)

    lane = rig.lane(run_id)
    assert (lane["seq"], lane["claims"], lane["attempts"], lane["steps"]) == (1, 0, 0, 1)
    assert rig.work_off() == 2
    assert rig.run(run_id)["status"] == "succeeded"


def test_p6_neither_claims_nor_attempts_follow_the_receive_count(rig: Rig) -> None:
    seen: list[tuple[int, int]] = []
    rig.kind = tally_kind(QuietWorld(lambda turn, n: seen.append((turn.claims, turn.attempts))))
    rig.start(target=1)

    rig.work(replace(rig.expect(), receive_count=1000))

    assert seen == [(1, 0)]


# P7: waiting by visibility raises the receive count, and a healthy run is dead-lettered.


def test_p7_a_lane_that_waits_seventy_times_is_never_dead_lettered(rig: Rig) -> None:
    received: list[int] = []

    def wait(turn: Turn) -> Decision:
        n = turn.cursor["n"]
        return Finish() if n == 70 else Wait(after_s=30, cursor={"n": n + 1})

    rig.kind = a_kind(wait)
    work = rig.work

    def watched(message: Any, queue: str = FIFO) -> bool:
        received.append(message.receive_count)
        return work(message, queue)

    rig.work = watched  # type: ignore[method-assign]
    run_id = rig.start()

    assert rig.run_to_end(run_id, within_s=71 * 35) == "succeeded"

    assert received == [1] * (71 + 70), "every wait is a new message, through the delay queue"
    assert rig.counted[Metric.DEAD_LETTER] == 0
    lane = rig.lane(run_id)
    assert (lane["seq"], lane["steps"], lane["attempts"]) == (71, 1, 0), "a wait spends nothing"


# P8: the answer to a commit is lost, and nobody knows whether it happened.


class AnswerLost(PgStore):
    """A store whose next commits lose their answers, before or after they took effect."""

    def __init__(self, engine: sa.Engine, *, happened: bool, times: int = 1) -> None:
        super().__init__(engine)
        self.happened = happened
        self.times = times

    def _lose(self, when: bool) -> None:
        if self.times and self.happened is when:
            self.times -= 1
            raise ConnectionResetError("the answer is lost")

    def commit_turn(self, turn: Turn, change: LaneChange, ms: int) -> Due | None:
        self._lose(when=False)
        due = super().commit_turn(turn, change, ms)
        self._lose(when=True)
        return due

    @contextmanager
    def begin(self, tenant_id: UUID | None) -> Iterator[Any]:
        with super().begin(tenant_id) as tx:
            yield tx
            self._lose(when=False)
        self._lose(when=True)


@pytest.mark.parametrize("happened", [True, False])
@pytest.mark.parametrize("step", ["first", "plain", "last"])
def test_p8_a_commit_whose_answer_was_lost_is_looked_up_and_not_repeated(rig: Rig, step: str, happened: bool) -> None:
    visits: list[int] = []
    rig.kind = tally_kind(QuietWorld(lambda turn, n: visits.append(n)))
    run_id = rig.start()
    rig.work_off(most=["first", "plain", "last"].index(step))
    message, calm = rig.expect(), rig.ports
    rig.ports = replace(rig.ports, store=AnswerLost(rig.engine, happened=happened))

    outcome = take_turn(read_baton(message.body), rig.kind, rig.ports)

    assert outcome is (StepOutcome.DONE if step == "last" else StepOutcome.MOVED)
    assert len(rig.waiting()) == (0 if step == "last" else 1), "the next baton is on its way, without the tick"
    rig.queue.delete(FIFO, message.receipt)
    rig.ports = calm
    rig.work_off()
    assert rig.run(run_id)["status"] == "succeeded"
    assert rig.tallied(run_id) == [0, 1, 2]
    assert visits == [0, 1, 2]
    assert len(rig.rows("select * from history where type = 'succeeded'")) == 1


# P9: a process that outlived its lease wakes up and overwrites its successor.


def test_p9_a_zombie_that_wakes_after_its_successor_leaves_no_trace(rig: Rig) -> None:
    zombie_sleeps = True

    def oversleep(turn: Turn, n: int) -> None:
        nonlocal zombie_sleeps
        if zombie_sleeps:
            zombie_sleeps = False
            rig.now += VISIBILITY_S + 1
            rig.tick()
            rig.work_off()

    rig.kind = tally_kind(QuietWorld(oversleep))
    run_id = rig.start()

    outcome = take_turn(read_baton(rig.expect().body), rig.kind, rig.ports)

    assert outcome is Lost.OVERTAKEN
    assert rig.run(run_id)["status"] == "succeeded"
    assert rig.tallied(run_id) == [0, 1, 2]
    assert [row["seq"] for row in rig.rows("select seq from step order by seq")] == [0, 1, 2]


@pytest.mark.parametrize("decision", [Continue(cursor={"n": 99}, effects=[Effect(ADD, {"n": 99})]), Finish()])
def test_p9_a_zombie_cannot_commit_the_turn_that_its_successor_holds(rig: Rig, decision: Decision) -> None:
    run_id = rig.start()
    rig.work_off(most=1)
    baton = read_baton(rig.expect().body)
    zombie = rig.ports.store.claim(baton, UUID(int=1), LEASE_S)
    rig.now += LEASE_S + 1
    successor = rig.ports.store.claim(baton, UUID(int=2), LEASE_S)
    assert isinstance(zombie, Turn)
    assert isinstance(successor, Turn)

    with pytest.raises(Overtaken):
        commit(zombie, change_for(decision, zombie), rig.kind, rig.ports, 0)
    rig.ports.store.release(baton, zombie.token)
    assert rig.ports.store.intend(zombie, "asset", "thing", True) is None

    lane = rig.lane(run_id)
    assert (lane["seq"], lane["cursor"], lane["claim_token"]) == (1, {"n": 1}, successor.token)
    assert rig.tallied(run_id) == [0]
    effects = [Effect(ADD, {"n": 1})]
    commit(successor, change_for(Continue(cursor={"n": 2}, effects=effects), successor), rig.kind, rig.ports, 0)
    assert rig.tallied(run_id) == [0, 1]


# P10: one failure in a batch brings the whole batch back.


def test_p10_only_what_failed_and_its_group_come_again(rig: Rig) -> None:
    broken = True

    def visit(turn: Turn, n: int) -> None:
        if turn.key == "l1" and broken:
            raise SystemError("the process is in a bad state")

    rig.kind = tally_kind(QuietWorld(visit))
    run_id = rig.start(lanes=4, target=1)
    messages = sorted((rig.expect() for _ in range(4)), key=lambda message: _key(rig, message.body))
    messages = [replace(messages[n], group="same") if n in (1, 2) else messages[n] for n in range(4)]
    handler = step_handler(rig.kind, replace(rig.ports, store=_DownFor(rig, "l1")))

    answer = handler({"Records": [sqs_record(message, FIFO) for message in messages]}, FakeContext())

    assert [each["itemIdentifier"] for each in answer["batchItemFailures"]] == [m.message_id for m in messages[1:3]]
    assert [rig.tallied(run_id, f"l{n}") for n in range(4)] == [[0], [], [], [0]]
    broken = False
    again = step_handler(rig.kind, rig.ports)({"Records": [sqs_record(m, FIFO) for m in messages]}, FakeContext())
    assert again == {"batchItemFailures": []}
    assert [rig.tallied(run_id, f"l{n}") for n in range(4)] == [[0]] * 4, "what was done is stale, not repeated"
    assert rig.run(run_id)["status"] == "succeeded"


def test_p10_a_batch_that_fails_as_a_whole_is_answered_and_not_raised(rig: Rig) -> None:
    handler = step_handler(rig.kind, rig.ports)
    records = [sqs_record(a_message("no baton", number=n, group=f"g{n}"), FIFO) for n in range(3)]

    answer = handler({"Records": records}, FakeContext())

    assert answer == {"batchItemFailures": [{"itemIdentifier": f"m{n}"} for n in range(3)]}


class _DownFor(PgStore):
    """A store that breaks in an unforeseen way whenever one lane's turn is claimed."""

    def __init__(self, rig: Rig, key: str) -> None:
        super().__init__(rig.engine)
        self._rig = rig
        self._key = key

    def claim(self, baton: Any, token: UUID, lease_s: float) -> Any:
        if _key(self._rig, baton.to_json()) == self._key:
            raise AssertionError("unforeseen")
        return super().claim(baton, token, lease_s)


def _key(rig: Rig, body: str) -> str:
    found = rig.rows("select key from lane where id = :id", id=read_baton(body).lane_id)
    return str(found[0]["key"])


# P11: "are all lanes done?" asked of a replica, or before the lock, is answered about the past.


class Recording(PgStore):
    """A store that notes which statements its transactions run, in order."""

    def __init__(self, engine: sa.Engine) -> None:
        super().__init__(engine)
        self.transactions: list[list[str]] = []

    @contextmanager
    def begin(self, tenant_id: UUID | None) -> Iterator[Any]:
        with super().begin(tenant_id) as tx:
            names: list[str] = []
            self.transactions.append(names)
            yield _Noted(tx, names)


class _Noted:
    def __init__(self, tx: Any, names: list[str]) -> None:
        self._tx = tx
        self._names = names

    def __getattr__(self, name: str) -> Any:
        self._names.append(name)
        return getattr(self._tx, name)


def test_p11_the_last_lane_out_asks_after_the_lock_and_in_the_same_transaction(rig: Rig) -> None:
    run_id = rig.start(target=1)
    store = Recording(rig.engine)
    rig.ports = replace(rig.ports, store=store)

    rig.work_off()

    assert rig.run(run_id)["status"] == "succeeded"
    (names,) = store.transactions
    assert _in_order(names, ["lock_run", "commit_turn", "has_open_lanes", "lanes", "end_run", "add_history"])
    assert names[0] == "lock_run"


def test_p11_the_tick_judges_after_the_lock(rig: Rig) -> None:
    rig.start(time_limit_s=3600)
    rig.start()
    rig.now = 3700
    store = Recording(rig.engine)
    rig.ports = replace(rig.ports, store=store)

    rig.tick()

    lanes, run, _signals = store.transactions
    assert _in_order(lanes, ["lock_due_lanes", "facts", "apply_judgements"])
    assert _in_order(run, ["lock_run", "fail_open_lanes", "end_run"])


def test_p11_what_is_locked_is_out_of_reach_for_everyone_else(rig: Rig) -> None:
    run_id = rig.start()
    rig.now = 3700
    with rig.ports.store.begin(TENANT) as tx:
        assert tx.lock_run(run_id, TENANT) is not None
        assert rig.rows("select id from run for no key update skip locked") == []
    with rig.ports.store.begin(None) as tx:
        assert len(tx.lock_due_lanes(10)) == 1
        assert rig.rows("select id from lane for update skip locked") == []


@pytest.mark.parametrize("action", ["cancel", "pause", "resume", "retry", "restart"])
def test_p11_every_action_on_a_run_locks_it_first(rig: Rig, action: str) -> None:
    run_id = rig.start(target=1)
    lane_id = rig.lane(run_id)["id"]
    if action == "resume":
        runs.pause_run(rig.ports, TENANT, run_id)
    if action == "retry":
        runs.cancel_run(rig.ports, rig.kind, TENANT, run_id)
        rig.work_off()
    store = Recording(rig.engine)
    ports = replace(rig.ports, store=store)

    match action:
        case "cancel":
            runs.cancel_run(ports, rig.kind, TENANT, run_id)
        case "pause":
            runs.pause_run(ports, TENANT, run_id)
        case "resume":
            runs.resume_run(ports, TENANT, run_id)
        case "retry":
            runs.retry_run(ports, rig.kind, TENANT, run_id)
        case "restart":
            runs.restart_lane(ports, TENANT, lane_id)

    assert store.transactions[-1][0] == "lock_run"


def _in_order(names: list[str], wanted: list[str]) -> bool:
    rest = iter(names)
    return all(name in rest for name in wanted)


# P12: what a session remembers, the next user of the connection inherits.


def test_p12_a_tenant_does_not_outlive_its_transaction(rig: Rig) -> None:
    run_id = rig.start()
    with rig.ports.store.begin(TENANT) as tx:
        tx.lock_run(run_id, TENANT)
        assert _tenant_of(tx) == str(TENANT)
    rig.work_off(most=2)  # one step in a transaction, one in autocommit

    with rig.ports.store.begin(None) as tx:
        assert _tenant_of(tx) == ""


def _tenant_of(tx: Any) -> str:
    return str(tx._line.scalars(sa.text("select coalesce(current_setting('app.tenant', true), '')"), {})[0])


SESSION_STATE = {
    "a session's advisory lock": re.compile(r"pg_(try_)?advisory_lock"),
    "a setting of the session": re.compile(r"set_config\([^)]*,\s*false\s*\)", re.IGNORECASE),
    "SET SESSION": re.compile(r"\bset session (?!characteristics when)", re.IGNORECASE),
    "a tenant set for the session": re.compile(r"\bset\s+app\.tenant", re.IGNORECASE),
}


def test_p12_no_code_leaves_state_in_a_session() -> None:
    sources = [*(ROOT / "shared").rglob("*.py"), *(ROOT / "infra").rglob("*.py")]
    assert len(sources) > 30

    found = [
        f"{path.relative_to(ROOT)}: {what}"
        for path in sources
        for what, pattern in SESSION_STATE.items()
        if pattern.search(path.read_text())
    ]

    # A migration is one transaction per revision on a connection of its own, which is closed when it is done.
    assert found == ["infra/migrations/env.py: a session's advisory lock"]


# P13: a template change replaces a queue, and everything in it is gone.


@pytest.mark.parametrize("after", range(0, 9, 2))
def test_p13_a_run_whose_queues_are_all_purged_still_ends(rig: Rig, after: int) -> None:
    run_id = rig.start(lanes=2, target=3, delays=(0, 20), final=True)
    if rig.work_off(most=after) < after:
        rig.pass_time(20)

    rig.purge()

    assert rig.run_to_end(run_id, within_s=3 * RESENT_WITHIN_S) == "succeeded"
    for key in ("l0", "l1", "final"):
        assert rig.tallied(run_id, key) == [0, 1, 2]


def test_p13_after_a_purge_the_run_moves_again_within_five_minutes(rig: Rig) -> None:
    run_id = rig.start()
    rig.purge()

    rig.pass_time(RESENT_WITHIN_S)

    assert rig.run(run_id)["status"] == "succeeded"


# P14: a message of another version, or with a field too many, is copied on for ever or crashes its reader.


def test_p14_a_message_of_an_unknown_version_goes_back_and_crashes_nothing(rig: Rig) -> None:
    run_id = rig.start()
    message = rig.expect()
    later = replace(message, body=json.dumps({**json.loads(message.body), "v": 2}))

    answer = step_handler(rig.kind, rig.ports)({"Records": [sqs_record(later, FIFO)]}, FakeContext())

    assert answer == {"batchItemFailures": [{"itemIdentifier": message.message_id}]}
    assert rig.counted[Metric.UNREADABLE] == 1
    assert rig.lane(run_id)["claims"] == 0


def test_p14_a_message_with_a_field_too_many_is_refused(rig: Rig) -> None:
    rig.start()
    message = rig.expect()
    more = replace(message, body=json.dumps({**json.loads(message.body), "cursor": {"n": 99}}))

    assert not rig.work(more)
    assert rig.counted[Metric.UNREADABLE] == 1


def test_p14_a_message_holds_ids_and_nothing_else(rig: Rig) -> None:
    sent: list[Outgoing] = []
    send = rig.queue.send

    def watched(queue: str, messages: Sequence[Outgoing]) -> list[int]:
        sent.extend(messages)
        return send(queue, messages)

    rig.queue.send = watched  # type: ignore[method-assign]
    run_id = rig.start(delays=(0, 5), secret="canary-7f3a", final=True)

    assert rig.run_to_end(run_id, within_s=120) == "succeeded"

    assert len(sent) > 5
    for message in sent:
        assert set(json.loads(message.body)) == {"v", "kind", "lane_id", "epoch", "seq", "resend_no"}
        assert "canary" not in message.body
        assert str(TENANT) not in message.body


# P15: FIFO looks at the first 120,000 messages only, so copies of one lane's message hide other lanes.


class Counting(MemoryQueue):
    """Counts, after every change, how many messages of one lane wait, and how many there are at all."""

    most_waiting = 0
    most_live = 0

    def send(self, queue: str, messages: Sequence[Outgoing]) -> list[int]:
        missed = super().send(queue, messages)
        self.look()
        return missed

    def look(self) -> None:
        waiting: Counter[UUID] = Counter()
        live: Counter[UUID] = Counter()
        for queue in (FIFO, DELAY, DEAD):
            contents = self.messages(queue)
            for message in (*contents.visible, *contents.delayed):
                waiting[read_baton(message.body).lane_id] += 1
            for message in (*contents.visible, *contents.delayed, *contents.in_flight):
                live[read_baton(message.body).lane_id] += 1
        self.most_waiting = max(self.most_waiting, *waiting.values(), 0)
        self.most_live = max(self.most_live, *live.values(), 0)


def test_p15_without_faults_a_lane_has_one_message_and_at_most_its_own_predecessor_in_hand(rig: Rig) -> None:
    queue = Counting(QUEUE_SETTINGS, lambda: rig.now, Random(5))
    rig.queue, rig.ports = queue, replace(rig.ports, queue=queue)
    run_id = rig.start(lanes=3, target=6, delays=(0, 0.5, 30, 800, 1500), final=True)

    assert rig.run_to_end(run_id, within_s=5 * 3600) == "succeeded"

    assert queue.most_waiting == 1, "nothing that waits is ever doubled"
    assert queue.most_live == 2, "the one in hand is deleted only after its successor was sent"
    assert rig.counted[Metric.REPAIR] == 0
    assert rig.counted[Metric.REFUSED] == 0
    assert rig.waiting() == []


def test_p15_a_long_backlog_is_not_multiplied_by_the_tick(rig: Rig) -> None:
    """Nobody takes the messages for four hours: the copies stay few, because the tick's patience doubles."""
    rig.start()
    for _ in range(4 * 60):
        rig.now += 60
        rig.tick()

    assert len(rig.waiting()) <= 15, "one copy every three minutes would be 80"
