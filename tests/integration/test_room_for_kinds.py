"""What the kernel offers to kinds of work: each test is one seam, on real Postgres."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from pg8000.exceptions import DatabaseError, InterfaceError

from shared.kernel import run as runs
from shared.kernel.catalogue import Catalogue, Kind, Outside
from shared.kernel.decide import all_or_nothing
from shared.kernel.errors import Conflict, Later, NoRoom, Overtaken, Permanent
from shared.kernel.model import (
    Already,
    By,
    Continue,
    Decision,
    Effect,
    Finish,
    Lane,
    Looks,
    NewLane,
    NewRun,
    NextPhase,
    Problem,
    Run,
    Say,
    Settlement,
    Signal,
    Start,
    Starting,
    Statement,
    StepOutcome,
    Turn,
)
from shared.kernel.ports import Ports, Tx
from shared.kernel.remote_call import LOOKS_FOR_A_TRACE, Calls
from shared.kernel.signals import MOST_ATTEMPTS, announced, dispatch
from shared.kernel.step import take_turn
from shared.kernel.store import PgStore
from shared.kernel.sweep import sweep
from tests.support.house import ALICE, BOB, House

KEEP = Statement(
    "small.keep", "insert into tally (tenant_id, run_id, lane, n) values (:tenant_id, :run_id, cast(:lane as text), 0)"
)
FIND = Statement("small.find", "select run_id from tally where lane = :lane limit 1")
SHOW = Statement(
    "small.show", "insert into tally (tenant_id, run_id, lane, n) select tenant_id, run_id, 'shown', 7 from turn"
)
SHOWN = replace(SHOW, name="small.shown", sql=SHOW.sql + " returning n, lane", returns=True)


def small(step: Callable[[Turn, Outside], Decision] = lambda *_: Finish(), **how: Any) -> Kind:
    """A kind that takes the house's place: `tally` by name, so that its rows and queues are there."""

    def one_lane(_: Tx, starting: Starting) -> NewRun:
        return NewRun(params=starting.params, lanes=[NewLane(key="l0")])

    return Kind(name="tally", take_step=step, **{"start": one_lane, **how})


def live(house: House, kind: Kind) -> Ports:
    house.kind, house.kinds = kind, Catalogue(kind)
    return house.ports


# 1. A start knows its run, who asks and why; it reads, writes rows of its own and may find the run there already.


def same_upload(tx: Tx, starting: Starting) -> NewRun | Already:
    found = tx.read(FIND, {"lane": starting.params["upload"]})
    if found:
        return Already(found[0]["run_id"])
    row = {"tenant_id": starting.tenant_id, "run_id": starting.run_id, "lane": starting.params["upload"]}
    tx.apply(Effect(KEEP, row))
    return NewRun(params=starting.params, lanes=[NewLane(key="l0")])


def test_a_start_writes_rows_under_its_runs_id_and_finds_them_the_second_time(house: House) -> None:
    ports = live(house, small(start=same_upload))

    first = runs.start_run(ports, house.kind, ALICE, {"upload": "u1"})
    second = runs.start_run(ports, house.kind, ALICE, {"upload": "u1"})
    other = runs.start_run(ports, house.kind, ALICE, {"upload": "u2"})
    theirs = runs.start_run(ports, house.kind, BOB, {"upload": "u1"})

    assert first == second
    assert len({first, other, theirs}) == 3, "another upload and another tenant are runs of their own"
    assert house.value("select count(*) from run") == 3
    assert house.value("select run_id from tally where lane = 'u2'") == other
    assert house.value("select count(*) from history where run_id = :id", id=first) == 1, (
        "the second start says nothing"
    )


def test_a_start_knows_who_asks_and_what_caused_it(house: House) -> None:
    seen: list[Starting] = []

    def start(_: Tx, starting: Starting) -> NewRun:
        seen.append(starting)
        return NewRun(params={}, lanes=[NewLane(key="l0")])

    live(house, small(start=start))
    ports = house.api_ports()
    by = By("user:ann", source="schedule", source_ref="nightly:2026-11-16")
    run_id = runs.start_run(ports, house.kind, ALICE, {}, by)

    assert (seen[0].run_id, seen[0].tenant_id, seen[0].by) == (run_id, ALICE, by)
    row = house.run(run_id)
    assert (row.source, row.source_ref, row.created_by) == ("schedule", "nightly:2026-11-16", "user:ann")


# 2. Remote calls belong to the run's epoch.


def test_a_lane_born_in_the_second_epoch_makes_its_own_call(house: House) -> None:
    made: list[str] = []

    def call(key: str) -> str:
        made.append(key)
        return f"thing-{len(made)}"

    def step(turn: Turn, outside: Outside) -> Decision:
        got = outside.once("query", kind="thing", call=call, look=lambda _: None)
        if turn.run_epoch == 1:
            raise Permanent("not this time")
        return Finish(cursor={"got": got})

    def settle(run: Run, lanes: Sequence[Lane]) -> Settlement:
        born_late = [lane for lane in lanes if lane.key == "late"]
        done = all(lane.status == "done" for lane in lanes)
        return NextPhase([NewLane(key="late")]) if done and not born_late else all_or_nothing(run, lanes)

    ports = live(house, small(step, start=lambda _, s: NewRun(params={}, lanes=[NewLane(key="first")]), settle=settle))
    run_id = runs.start_run(ports, house.kind, ALICE, {})
    take_turn(house.baton(run_id, "first"), house.kind, ports)
    runs.retry_run(ports, house.kind, ALICE, run_id)
    take_turn(house.baton(run_id, "first"), house.kind, ports)
    take_turn(house.baton(run_id, "late"), house.kind, ports)

    assert house.lane(run_id, "late").epoch == 1
    assert house.lane(run_id, "late").cursor == {"got": "thing-2"}, "the second epoch's thing, not the first's"
    assert len(set(made)) == 2
    assert [row.epoch for row in house.sql("select epoch from remote_call order by epoch")] == [1, 2]


def test_what_was_cleaned_up_is_made_anew(house: House) -> None:
    run_id = house.start()
    turn = house.claim(run_id)
    calls, made = Calls(turn, house.ports), []

    def call(_: str) -> str:
        made.append(1)
        return f"thing-{len(made)}"

    def ask() -> str:
        return calls.once("query", kind="thing", call=call, look=lambda _: None, leaves_asset=True)

    assert (ask(), ask()) == ("thing-1", "thing-1")
    house.sql("update remote_call set cleaned_at = now()")
    assert (ask(), ask()) == ("thing-2", "thing-2")
    assert house.value("select cleaned_at is null from remote_call"), "the new one is to be cleaned up again"


def test_a_lost_call_is_looked_for_as_often_and_as_late_as_its_upstream_needs(house: House) -> None:
    run_id = house.start()
    turn = house.claim(run_id)
    calls, asked = Calls(turn, house.ports), Counter[str]()
    looks = Looks(first_s=20, times=2, apart_s=15)

    def ask(found: str | None = None, answer: str | None = None) -> str:
        def look(_: str) -> str | None:
            asked["look"] += 1
            return found

        def call(_: str) -> str:
            asked["call"] += 1
            if answer is None:
                raise ConnectionError
            return answer

        return calls.once("query", kind="thing", call=call, look=look, looks=looks)

    def older(seconds: int) -> None:
        house.sql(
            f"update remote_call set intended_at = intended_at - interval '{seconds} s', looked_at = looked_at - interval '{seconds} s'"
        )

    with pytest.raises(ConnectionError):
        ask()
    with pytest.raises(Later) as early:
        ask()
    assert 19 < early.value.after_s <= 20
    assert asked == {"call": 1}, "too early to look"
    older(20)
    with pytest.raises(Later) as between:
        ask()
    assert (between.value.after_s, between.value.waits_for) == (15, LOOKS_FOR_A_TRACE)
    with pytest.raises(Later):
        ask()
    assert asked == {"call": 1, "look": 1}, "too early for the second look"
    older(15)
    with pytest.raises(ConnectionError):
        ask()
    assert asked == {"call": 2, "look": 2}, "two looks without a trace: it is called again"
    with pytest.raises(Later):
        ask()
    assert asked == {"call": 2, "look": 2}, "the second call is an intent of its own: its age counts from then"
    older(20)
    assert ask(found="there") == "there"
    assert asked == {"call": 2, "look": 3}
    assert ask() == "there"


def test_a_clean_up_by_the_sweep_knows_the_runs_parameters_and_the_time_left(house: House) -> None:
    seen: list[tuple[str, Mapping[str, Any], float]] = []

    def step(_: Turn, outside: Outside) -> Decision:
        outside.once("asset", kind="thing", call=lambda _: "thing-1", look=lambda _: None, leaves_asset=True)
        return Finish()

    kind = small(step, clean=lambda asset, params, left: seen.append((asset.remote_id or "", params, left())))
    ports = live(house, kind)
    run_id = runs.start_run(ports, kind, ALICE, {"connection": "main"})
    take_turn(house.baton(run_id), kind, ports)
    house.sql("update run set finished_at = now() - interval '2 hours'")

    sweep(ports, house.kinds, {})

    assert seen == [("thing-1", {"connection": "main"}, ports.time_left_s())]


# 3. A wait that is raised.


def test_later_waits_without_spending_anything(house: House) -> None:
    def step(turn: Turn, _: Outside) -> Decision:
        raise Later(30, "a free slot")

    ports = live(house, small(step))
    run_id = runs.start_run(ports, house.kind, ALICE, {})
    house.sql("update lane set attempts = 3, steps = 5")

    assert take_turn(house.baton(run_id), house.kind, ports) is StepOutcome.WAITED

    lane = house.lane(run_id)
    assert (lane.attempts, lane.steps, lane.seq, lane.last_error) == (3, 5, 1, None)
    assert house.value("select waits_for from lane") == "a free slot"
    assert house.value("select round(extract(epoch from next_due_at - now())) from lane") in (29, 30)


def test_a_probe_that_never_asked_leaves_the_gate_to_the_next(house: House) -> None:
    def step(turn: Turn, _: Outside) -> Decision:
        if turn.seq == 0:
            raise Later(30)
        return Finish()

    ports = live(house, small(step, gates=lambda _: ["api"]))
    house.sql(
        "insert into gate (tenant_id, key, state, until) values (:t, 'api', 'closed', now() - interval '1 s')", t=ALICE
    )
    first, second = (runs.start_run(ports, house.kind, ALICE, {}) for _ in range(2))

    take_turn(house.baton(first), house.kind, ports)
    assert house.value("select state from gate") == "closed", "nobody knows yet whether the upstream is well"

    house.sql("update lane set seq = 1 where run_id = :id", id=second)
    take_turn(house.baton(second), house.kind, ports)
    assert house.value("select state from gate") == "open", "the next one asked, and may tell"


# 4. A guarded write before the commit.


def test_a_write_before_the_commit_needs_the_turn(house: House) -> None:
    run_id = house.start()
    turn = house.claim(run_id)

    assert Calls(turn, house.ports).write(Effect(SHOW)) == []
    assert Calls(turn, house.ports).write(Effect(SHOWN)) == [{"n": 7, "lane": "shown"}]
    house.sql("update lane set claim_token = gen_random_uuid()")
    for shown in (SHOW, SHOWN):
        with pytest.raises(Overtaken):
            Calls(turn, house.ports).write(Effect(shown))

    assert house.value("select count(*) from tally") == 2


# 5. Lanes that do not hold their run.


def outliving(house: House) -> tuple[Ports, UUID]:
    def step(turn: Turn, _: Outside) -> Decision:
        if turn.key == "cleanup" and turn.epoch == 1:
            raise Later(3600, "the other side")
        return Finish()

    ports = live(house, small(step, on_end=lambda *_: [NewLane(key="cleanup", holds_run=False)]))
    run_id = runs.start_run(ports, house.kind, ALICE, {})
    take_turn(house.baton(run_id), house.kind, ports)
    take_turn(house.baton(run_id, "cleanup"), house.kind, ports)
    assert house.run(run_id).status == "succeeded"
    return ports, run_id


def test_a_clean_up_lane_is_woken_and_restarted_after_its_runs_end(house: House) -> None:
    ports, run_id = outliving(house)
    lane_id = house.lane(run_id, "cleanup").id

    runs.wake_lane(ports, ALICE, lane_id)
    assert house.value("select next_due_at <= now() from lane where id = :id", id=lane_id)
    runs.restart_lane(ports, ALICE, lane_id)
    assert take_turn(house.baton(run_id, "cleanup"), house.kind, ports) is StepOutcome.DONE
    assert house.run(run_id).status == "succeeded", "the run is not opened again by it"


def test_a_lane_that_held_its_run_is_not_moved_after_the_end(house: House) -> None:
    ports, run_id = outliving(house)

    with pytest.raises(Conflict, match="retry the run"):
        runs.restart_lane(ports, ALICE, house.lane(run_id).id)


# 6. Signals.


def listening(name: str, heard: list[tuple[str, int]], fails: Callable[[Signal], bool] = lambda _: False) -> Kind:
    def hear(tx: Tx, signal: Signal) -> Sequence[Start]:
        if fails(signal):
            raise RuntimeError("deaf")
        heard.append((name, signal.id))
        return ()

    return Kind(name=name, take_step=lambda *_: Finish(), listens={"order.*": hear})


def say(house: House, count: int, name: str = "order.placed", tenant: UUID = ALICE) -> None:
    house.sql(
        "insert into signal (tenant_id, name, payload) select :t, :name, jsonb_build_object('n', n) from generate_series(1, :n) n",
        t=tenant, name=name, n=count,
    )  # fmt: skip


def test_each_listener_hears_each_signal_once_in_order(house: House) -> None:
    heard: list[tuple[str, int]] = []
    kinds = Catalogue(listening("a", heard), listening("b", heard), Kind(name="deaf", take_step=lambda *_: Finish()))
    say(house, 3)
    say(house, 1, "other.thing")

    assert dispatch(house.ports, kinds) == 6
    assert dispatch(house.ports, kinds) == 0

    ids = [row.id for row in house.sql("select id from signal where name = 'order.placed' order by id")]
    for name in ("a", "b"):
        assert [n for who, n in heard if who == name] == ids
    assert house.value("select count(*) from signal where dispatched_at is null") == 0
    assert house.value("select count(*) from hearing") == 0


@pytest.mark.full
def test_two_thousand_signals_are_heard_exactly_once_by_each_of_two_listeners_under_two_ticks(house: House) -> None:
    """One of the listeners fails now and then: it hears what it missed later, and the other never notices."""
    add = Statement(
        "heard.add", "insert into tally (tenant_id, run_id, lane, n) values (:tenant_id, :run_id, :lane, :n)"
    )
    failed: set[int] = set()
    is_ill = threading.Event()
    is_ill.set()

    def listener(name: str, stumbles: bool) -> Kind:
        def hear(tx: Tx, signal: Signal) -> Sequence[Start]:
            row = {"tenant_id": signal.tenant_id, "run_id": UUID(int=signal.id), "lane": name, "n": signal.payload["n"]}
            tx.apply(Effect(add, row))
            if stumbles and signal.payload["n"] % 199 == 0 and is_ill.is_set():
                failed.add(signal.id)
                raise RuntimeError("not now")
            return ()

        return Kind(name=name, take_step=lambda *_: Finish(), listens={"order.placed": hear})

    kinds = Catalogue(listener("steady", stumbles=False), listener("stumbling", stumbles=True))
    say(house, 1_000)
    say(house, 1_000, tenant=BOB)
    workers = [house.ports_of(PgStore(house.engine())) for _ in range(2)]

    def both() -> None:
        threads = [threading.Thread(target=dispatch, args=(ports, kinds)) for ports in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    both()
    assert house.value("select count(*) from tally where lane = 'steady'") == 2_000
    assert house.value("select count(*) from hearing") == len(failed) == 10, "those that failed wait for their time"
    house.sql("update hearing set due_at = now()")
    is_ill.clear()
    both()
    counted = house.sql("""select lane, tenant_id, count(*) as rows, count(distinct run_id) as signals from tally
                           group by lane, tenant_id""")  # fmt: skip
    assert {(row.rows, row.signals) for row in counted} == {(1_000, 1_000)}
    assert len(counted) == 4


def test_a_listener_that_always_fails_is_given_up_and_blocks_nobody(house: House) -> None:
    heard: list[tuple[str, int]] = []
    kinds = Catalogue(listening("a", heard, lambda signal: signal.payload["n"] == 1), listening("b", heard))
    say(house, 3)

    for _ in range(MOST_ATTEMPTS + 2):
        dispatch(house.ports, kinds)
        house.sql("update hearing set due_at = now()")

    assert Counter(name for name, _ in heard) == {"a": 2, "b": 3}
    (left,) = house.sql(
        "select listener, attempts, error ->> 'message' as message, given_up_at is not null as over from hearing"
    )
    assert (left.listener, left.attempts, left.over) == ("a", MOST_ATTEMPTS, True)
    assert "deaf" in left.message


class Killed(BaseException):
    """What a process that is gone does not handle."""


def test_a_listener_that_kills_its_process_is_given_up_and_blocks_nobody(house: House) -> None:
    heard: list[tuple[str, int]] = []

    def kills(signal: Signal) -> bool:
        if signal.payload["n"] == 2:
            raise Killed
        return False

    kinds = Catalogue(listening("a", heard, kills), listening("b", heard))
    say(house, 3)
    say(house, 1, tenant=BOB)

    died = 0
    for _ in range(4 * MOST_ATTEMPTS):
        try:
            dispatch(house.ports, kinds)
        except Killed:
            died += 1
        if died == 1:
            assert house.value("select count(*) from hearing where due_at <= now() and attempts > 0") == 0
        house.sql("update hearing set due_at = now()")

    assert died == MOST_ATTEMPTS
    assert Counter(name for name, _ in set(heard)) == {"a": 3, "b": 4}, "the others, though the first batch was lost"
    (left,) = house.sql("select listener, error ->> 'code' as code, given_up_at is not null as over from hearing")
    assert (left.listener, left.code, left.over) == ("a", "poison", True)


def test_others_are_heard_while_one_tenants_listener_is_slow(house: House) -> None:
    heard: list[tuple[UUID, int]] = []
    other = house.ports_of(PgStore(house.engine()))

    def hear(_: Tx, signal: Signal) -> Sequence[Start]:
        if signal.tenant_id == ALICE:
            dispatch(other, kinds)  # another tick, while this one is at it
        heard.append((signal.tenant_id, signal.payload["n"]))
        return ()

    kinds = Catalogue(Kind(name="slow", take_step=lambda *_: Finish(), listens={"order.placed": hear}))
    say(house, 1)
    say(house, 2, tenant=BOB)

    dispatch(house.ports, kinds)

    assert heard == [(BOB, 1), (BOB, 2), (ALICE, 1)]


def test_whoever_was_slow_to_hear_hears_nothing_that_another_heard_meanwhile(house: House) -> None:
    heard: list[str] = []
    other = house.ports_of(PgStore(house.engine()))

    def hear(tx: Tx, signal: Signal) -> Sequence[Start]:
        tx.apply(
            Effect(KEEP, {"tenant_id": signal.tenant_id, "run_id": UUID(int=1), "lane": "first" if heard else "second"})
        )
        heard.append("")
        if len(heard) == 1:
            house.sql("update hearing set due_at = now()")
            assert dispatch(other, kinds) == 1
        return ()

    kinds = Catalogue(Kind(name="slow", take_step=lambda *_: Finish(), listens={"order.placed": hear}))
    say(house, 1)

    assert dispatch(house.ports, kinds) == 0

    assert [row.lane for row in house.sql("select lane from tally")] == ["first"]
    assert house.value("select count(*) from hearing") == 0


def test_whoever_was_slow_to_fail_says_nothing_of_what_another_has_by_now(house: House) -> None:
    say(house, 1)
    dispatch(house.ports, Catalogue(listening("a", [], lambda _: True)))
    house.sql("update hearing set due_at = now(), error = null")
    (slow,) = house.store.take_hearings(1, 60)
    house.sql("update hearing set due_at = now()")
    (other,) = house.store.take_hearings(1, 60)

    house.store.note_unheard(slow, None, Problem("late", "it was slow"))

    (row,) = house.sql("select attempts, error, given_up_at, due_at > now() + interval '30 s' as held from hearing")
    assert (row.attempts, row.error, row.given_up_at, row.held) == (other.attempts, None, None, True)


@pytest.mark.parametrize(
    "error", [InterfaceError("network error"), DatabaseError({"C": "40P01", "M": "deadlock detected"})]
)
def test_a_database_in_trouble_is_no_listeners_failure(house: House, error: Exception) -> None:
    def hear(_: Tx, __: Signal) -> Sequence[Start]:
        raise error

    say(house, 2)
    with suppress(InterfaceError):
        dispatch(house.ports, Catalogue(Kind(name="a", take_step=lambda *_: Finish(), listens={"order.placed": hear})))

    assert [(row.attempts, row.soon) for row in house.sql(
        "select attempts, due_at between now() and now() + interval '20 s' as soon from hearing"
    )] == [(0, True)] * 2  # fmt: skip


def test_what_was_not_heard_leaves_with_its_signal(house: House) -> None:
    """Alone it would be the first to be heard at every tick, and never be found."""
    heard: list[tuple[str, int]] = []
    kinds = Catalogue(listening("a", heard, lambda signal: signal.payload["n"] == 1))
    say(house, 1)
    dispatch(house.ports, kinds)
    house.sql("update signal set at = now() - interval '15 days'; update hearing set due_at = now()")
    house.store.prune("signal", 14, 100)
    say(house, 1, tenant=BOB)
    house.sql("update signal set payload = '{\"n\": 2}'")

    assert dispatch(house.ports, kinds) == 1
    assert house.value("select count(*) from hearing") == 0


def test_a_signal_past_its_retention_is_heard_by_nobody(house: House) -> None:
    heard: list[tuple[str, int]] = []
    say(house, 1)
    house.sql("update signal set at = now() - interval '15 days'")

    assert dispatch(house.ports, Catalogue(listening("a", heard))) == 0

    assert house.value("select dispatched_at is not null from signal"), "and nobody looks at it again"


def test_a_listener_starts_runs_in_its_tenant_with_their_cause(house: House) -> None:
    worker = small()
    starter = Kind(
        name="starter", take_step=lambda *_: Finish(),
        listens={"order.placed": lambda _, signal: [Start("tally", {"n": signal.payload["n"]})]},
    )  # fmt: skip
    say(house, 2, tenant=BOB)

    dispatch(house.ports, Catalogue(worker, starter))

    rows = house.sql("select tenant_id, source, source_ref, params from run order by source_ref")
    ids = [row.id for row in house.sql("select id from signal order by id")]
    assert [(row.tenant_id, row.source, row.source_ref) for row in rows] == [(BOB, "event", f"signal:{n}") for n in ids]


def test_what_a_run_ends_with_is_heard_at_once(house: House) -> None:
    heard: list[tuple[str, int]] = []

    def hear(_: Tx, signal: Signal) -> Sequence[Start]:
        heard.append((signal.name, signal.id))
        return ()

    listener = Kind(name="listener", take_step=lambda *_: Finish(), listens={"run.*": hear, "tally.step": hear})
    kind = small(lambda turn, _: Finish() if turn.seq else Continue(cursor={}, says=[Say("tally.step", {})]))
    house.kind = kind
    ports = announced(house.ports, Catalogue(kind, listener))
    run_id = runs.start_run(ports, kind, ALICE, {})

    take_turn(house.baton(run_id), kind, ports)
    assert [name for name, _ in heard] == ["tally.step"]
    take_turn(house.baton(run_id), kind, ports)
    assert [name for name, _ in heard] == ["tally.step", "run.succeeded"]


def test_a_kind_cannot_say_what_belongs_to_another(house: House) -> None:
    kind = small(lambda *_: Finish(says=[Say("query_run.ready", {})]))
    ports = live(house, kind)
    run_id = runs.start_run(ports, kind, ALICE, {})

    assert take_turn(house.baton(run_id), kind, ports) is StepOutcome.RETRIED
    assert "may say tally." in house.lane(run_id).last_error["message"]
    assert house.value("select count(*) from signal") == 0


# 7. Caps.


def test_a_cap_belongs_to_a_kind_and_holds_for_retries_too(house: House) -> None:
    kind = small(most_open_runs=1)
    ports = live(house, kind)
    first = runs.start_run(ports, kind, ALICE, {})
    with pytest.raises(NoRoom, match="1 runs of tally are already open"):
        runs.start_run(ports, kind, ALICE, {})
    runs.start_run(ports, kind, BOB, {})
    runs.start_run(ports, replace(kind, name="another"), ALICE, {})
    runs.cancel_run(ports, kind, ALICE, first)
    take_turn(house.baton(first), kind, ports)
    second = runs.start_run(ports, kind, ALICE, {})

    with pytest.raises(NoRoom):
        runs.retry_run(ports, kind, ALICE, first)

    take_turn(house.baton(second), kind, ports)
    runs.retry_run(ports, kind, ALICE, first)


def test_a_signal_waits_for_room_however_long_it_takes(house: House) -> None:
    """An upload that arrives while its tenant has as many runs open as it may have is no upload to be forgotten."""
    kind = small(most_open_runs=1, listens={"order.placed": lambda *_: [Start("tally", {})]})
    ports = live(house, kind)
    first = runs.start_run(ports, kind, ALICE, {})
    say(house, 1)
    for _ in range(3 * MOST_ATTEMPTS):
        house.sql("update hearing set due_at = now()")
        dispatch(ports, Catalogue(kind))
    (waiting,) = house.sql("select given_up_at, error, due_at > now() as later from hearing")
    assert (waiting.given_up_at, waiting.later, waiting.error["code"]) == (None, True, "too_many_runs")

    take_turn(house.baton(first), kind, ports)
    house.sql("update hearing set due_at = now()")
    dispatch(ports, Catalogue(kind))

    assert house.value("select count(*) from hearing") == 0
    assert house.value("select count(*) from run") == 2


# 8. Work that is meant to live.


def test_a_lane_may_renew_its_budget_of_steps(house: House) -> None:
    def step(turn: Turn, _: Outside) -> Decision:
        return Continue(cursor={}, renews=turn.steps == 3)

    kind = small(step, start=lambda _, s: NewRun(params={}, lanes=[NewLane(key="l0", max_steps=4)]))
    ports = live(house, kind)
    run_id = runs.start_run(ports, kind, ALICE, {})

    outcomes = {take_turn(house.baton(run_id), kind, ports) for _ in range(12)}

    assert outcomes == {StepOutcome.MOVED}
    assert house.lane(run_id).steps <= 4


# 10. A kind is built when it is first used.


def test_a_catalogue_builds_what_is_asked_for_and_no_more() -> None:
    built: list[str] = []

    def build(name: str) -> Callable[[], Kind]:
        def make() -> Kind:
            built.append(name)
            return Kind(name=name, take_step=lambda *_: Finish())

        return make

    kinds = Catalogue(a=build("a"), b=build("b"))

    assert (sorted(kinds), "b" in kinds, kinds.get("c"), built) == (["a", "b"], True, None, [])
    assert (kinds["b"].name, kinds["b"].name, built) == ("b", "b", ["b"])


def test_a_kind_hears_by_the_longest_of_its_patterns(house: House) -> None:
    heard: list[str] = []

    def hear_as(pattern: str) -> Callable[[Tx, Signal], Sequence[Start]]:
        def hear(_: Tx, __: Signal) -> Sequence[Start]:
            heard.append(pattern)
            return ()

        return hear

    patterns = {each: hear_as(each) for each in ("order.*", "order.placed.*", "order.placed.now")}
    kinds = Catalogue(Kind(name="a", take_step=lambda *_: Finish(), listens=patterns))
    for name in ("order.gone", "order.placed.late", "order.placed.now"):
        say(house, 1, name)
    dispatch(house.ports, kinds)

    assert heard == ["order.*", "order.placed.*", "order.placed.now"]


def test_what_a_dispatcher_has_no_time_for_is_heard_by_the_next_at_once(house: House) -> None:
    heard: list[int] = []

    def hear(_: Tx, signal: Signal) -> Sequence[Start]:
        heard.append(signal.id)
        if len(heard) == 1:
            raise RuntimeError("together it fails, so they are heard one by one")
        return ()

    kinds = Catalogue(Kind(name="a", take_step=lambda *_: Finish(), listens={"order.placed": hear}))
    say(house, 3)
    looks = iter([True, True])
    dispatch(house.ports, kinds, lambda: next(looks, False))
    before = len(heard)
    dispatch(house.ports, kinds)

    assert (before, len(heard)) == (2, 4)
