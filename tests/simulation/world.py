"""One schedule: the product's own code, a virtual clock, a seeded scheduler and a hostile world.

Every handler is a greenlet. At a port call the scheduler may switch to another one, and the adversary may
crash it, fail it before or after the effect, freeze it past lease and visibility, or lose what it sends.
A transaction is one port call to the scheduler: races inside transactions are raced on two real connections
(tests/races). The seed decides everything, so a failing seed is a bug report.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import Any, TypeVar
from uuid import UUID

from greenlet import getcurrent, greenlet
from pg8000.exceptions import DatabaseError

from shared.kernel import clock
from shared.kernel import run as runs
from shared.kernel.baton import read_baton
from shared.kernel.catalogue import Catalogue, Kind, Outside
from shared.kernel.clock import Chance
from shared.kernel.dead_letter import note_dead_letter
from shared.kernel.decide import Limits
from shared.kernel.errors import NotFound, Permanent, Refused, Throttled, Transient
from shared.kernel.handle import handle_baton, handle_delayed
from shared.kernel.model import By, Decision, GatePass, Intent, Lane, Run, Turn
from shared.kernel.ports import Ports, Store, Tx
from shared.kernel.queue import Outgoing, QueueError, QueueRefused, QueueUnavailable, Received
from shared.kernel.queue_memory import Contents, MemoryQueue, QueueSettings
from shared.kernel.settings import Relay
from shared.kernel.sweep import sweep
from shared.kernel.tick import tick
from tests.simulation.backends import BEGINNING
from tests.simulation.faults import ANYWHERE, AT_COMMIT, AT_SEND, IN_TRANSACTION, Fault, Faults, RandomFaults
from tests.simulation.invariants import Invariants, Violation
from tests.simulation.scenario import DELAY, QUEUE_OF, Action, Scenario
from tests.support.sql_errors import is_no_sql
from tests.support.tally import tally_kind

T = TypeVar("T")
TENANTS = tuple(UUID(int=0xA000 + n) for n in range(3))
FIFO, DEAD = QUEUE_OF["tally"], "baton-dead.fifo"
QUEUES = (*QUEUE_OF.values(), DELAY, DEAD)
KIND_OF = {queue: kind for kind, queue in QUEUE_OF.items()}
STEP_S, TICK_S = 30, 60  # how long the functions may run
RELAY = Relay(step_timeout_s=STEP_S, lease_s=40, asset_grace_s=0, tick_batch=50)
LONGEST_S = 60 * 3600.0
MOST_MOVES = 20_000  # a thousand are many
MOST_CALLS = 3_000  # of one function: a hundred are many
EMPTY = Contents(visible=(), in_flight=(), delayed=())
# They only read, or write nothing that the invariants look at. Whatever else one of them did is seen at the next look.
UNSEEN = frozenset({
    "of", "assets", "expected", "leaked_assets", "lane_state", "intend", "confirm", "note_look", "note_cleaned",
    "put_off_cleaning",
})  # fmt: skip


class Crash(BaseException):
    """The process is gone. It is never caught by product code, which catches Exception at most."""


class DidNotRun(BaseException):
    """Postgres did not understand a statement: a schedule that goes on would blame a rule for it."""


def ask(method: Callable[..., T], args: tuple[Any, ...]) -> T:
    try:
        return method(*args)
    except DatabaseError as error:
        if is_no_sql(error):
            raise DidNotRun(error.args[0].get("M")) from error
        raise


class Actor:
    """One running function."""

    __slots__ = ("born", "calls", "dead", "faulted", "glet", "name", "stalled", "ticks", "wake_at")

    def __init__(self, name: str, body: Callable[[], None], parent: greenlet, born: float) -> None:
        self.name, self.dead, self.stalled, self.wake_at, self.born = name, False, False, 0.0, born
        self.ticks = name.startswith("tick")
        self.faulted, self.calls = False, 0
        self.glet = greenlet(body, parent)


class World:
    def __init__(self, scenario: Scenario, make_store: Callable[[World], Store], faults: Faults | None = None) -> None:
        self.scenario = scenario
        self.rng = Random(scenario.seed ^ 0x5EED)
        self.now = 0.0
        self._clock = (0.0, BEGINNING)
        self._empty_until: dict[str, float] = {}
        self.call_no = 0
        self.seen: Counter[str] = Counter()
        self.trace: list[tuple[Any, ...]] | None = None
        self.last_fault_at = 0.0
        self.fault_count = 0
        self.moves = 0
        self.actors: list[Actor] = []
        self.current: Actor | None = None
        self._hub = getcurrent()
        self.faults: Faults = faults or RandomFaults(
            Random(scenario.seed ^ 0xBAD), scenario.fault_rate, scenario.fault_budget, scenario.fault_until
        )
        self.queue = MemoryQueue(
            {
                **{
                    queue: QueueSettings(
                        fifo=True, visibility_s=180, max_receive_count=4, dead_letter=DEAD, dedup_scope="messageGroup"
                    )
                    for queue in QUEUE_OF.values()
                },
                DEAD: QueueSettings(fifo=True, visibility_s=180),
                DELAY: QueueSettings(fifo=False, visibility_s=60),
            },
            lambda: self.now,
            Random(scenario.seed ^ 0x0E0E),
        )
        self.store = make_store(self)
        self.invariants = Invariants(self)
        self.watched: set[str] = set()
        limits = Limits(max_attempts=scenario.max_attempts)
        self.kind = self._watched(tally_kind(self, limits))
        self.kinds = Catalogue(self.kind, self._watched(tally_kind(self, limits, name="count", forgets=True)))
        self.ports = Ports(
            store=FaultyStore(self, self.store),
            queue=FaultyQueue(self),
            chance=Chance(new_id=self._new_id, fraction=lambda: self.rng.randrange(64) / 64),
            meter=self,
            relay=RELAY.model_copy(update={"tick_batch": scenario.tick_batch}),
            time_left_s=self._time_left_s,
        )
        self.run_ids: list[UUID] = []
        self.things: dict[str, str] = {}
        self.made: Counter[str] = Counter()
        self.zombie_things: set[str] = set()
        self.one_asset: set[UUID] = set()
        self.stumbled: set[tuple[UUID, int, int]] = set()
        self.raised: Counter[tuple[UUID, int, str]] = Counter()
        self.actions = sorted(scenario.actions, key=lambda action: action.at)
        self.next_tick_at = self.rng.uniform(0, 60)

    def _watched(self, kind: Kind) -> Kind:
        """The kind, with all that it answers noted: what is written later must be that."""

        def noting(source: str, answer: Callable[[Turn, Outside], Decision]) -> Callable[[Turn, Outside], Decision]:
            def noted(turn: Turn, outside: Outside) -> Decision:
                try:
                    decision = answer(turn, outside)
                except Exception as error:
                    self.invariants.answered(turn, source, error)
                    raise
                self.invariants.answered(turn, source, decision)
                return decision

            return noted

        self.watched.add(kind.name)
        return replace(
            kind, take_step=noting("take_step", kind.take_step), on_cancel=noting("on_cancel", kind.on_cancel)
        )

    # What the product sees.

    def clock(self) -> datetime:
        if self._clock[0] != self.now:
            self._clock = (self.now, BEGINNING + timedelta(microseconds=round(self.now * 1_000_000)))
        return self._clock[1]

    def count(self, metric: str, value: float = 1, /, **dimensions: str) -> None:
        detail = (
            dimensions.get("reason") or dimensions.get("why") or dimensions.get("outcome") or dimensions.get("status")
        )
        self.seen[f"{metric}.{detail}" if detail else metric] += 1

    def _time_left_s(self) -> float:
        actor = self._alive()
        return actor.born + (TICK_S if actor.ticks else STEP_S) - self.now

    def monotonic(self) -> float:
        """The processes' own stopwatches run on the same clock."""
        return self.now

    def is_disturbed(self) -> bool:
        return self.current is not None and self.current.faulted

    def fault_at(self, kind: str) -> float:
        """When something last happened that may have cost a lane of this kind time."""
        shut = [
            min(self.now, each.end)
            for each in self.scenario.shut
            if each.queue in (QUEUE_OF.get(kind, FIFO), DELAY) and each.begin <= self.now
        ]
        return max(self.last_fault_at, *shut) if shut else self.last_fault_at

    def _new_id(self) -> UUID:
        return UUID(int=self.rng.getrandbits(128))

    # Port calls.

    def call(
        self,
        op: str,
        effect: Callable[[], T],
        choices: tuple[Fault, ...] = ANYWHERE,
        error: Callable[[], Exception] = lambda: ConnectionResetError("simulated"),
    ) -> T:
        """One port call of the current actor, with whatever the adversary does to it."""
        actor = self._alive()
        if self.rng.random() < self.scenario.switch_rate:
            self._switch()
        fault = self._draw(op, choices)
        if fault is not None:
            self._before(fault, actor, error)
        result = effect()
        self._note(op, result)
        if fault is not None:
            self._after(fault, actor, error)
        return result

    def _draw(self, op: str, choices: tuple[Fault, ...]) -> Fault | None:
        self.call_no += 1
        assert self.current is not None
        self.current.calls += 1
        if self.current.calls > MOST_CALLS:
            raise Violation(f"{self.current.name} does not come to an end: {op}")
        fault = self.faults.draw(self.call_no, self.now, choices)
        if fault is not None and self.scenario.redelivery and not self._redelivery_mends(op, fault):
            fault = None
        if fault is not None:
            self.seen[f"{fault}@{op}"] += 1
            self.last_fault_at = self.now
            self.fault_count += 1
            self.current.faulted = True
            self._note(f"{fault}@{op}", None)
        return fault

    def _redelivery_mends(self, op: str, fault: Fault) -> bool:
        """Whether a message that comes again is enough after this fault, without any tick."""
        assert self.current is not None
        if fault not in (Fault.CRASH_BEFORE, Fault.FAIL_BEFORE) or self.current.name.startswith("start"):
            return False
        return op != "queue.send" or self.current.name.startswith(DELAY)

    def _before(self, fault: Fault, actor: Actor, error: Callable[[], Exception]) -> None:
        match fault:
            case Fault.CRASH_BEFORE:
                self._crash(actor)
            case Fault.FAIL_BEFORE:
                raise error()
            case Fault.CONFLICT:
                raise DatabaseError({"C": "40P01", "M": "deadlock detected"})
            case Fault.STALL_BEFORE:
                self._stall(actor)

    def _after(self, fault: Fault, actor: Actor, error: Callable[[], Exception]) -> None:
        match fault:
            case Fault.CRASH_AFTER:
                self._crash(actor)
            case Fault.FAIL_AFTER:
                raise error()
            case Fault.STALL_AFTER:
                self._stall(actor)

    def _alive(self) -> Actor:
        assert self.current is not None
        if self.current.dead:
            raise Crash
        return self.current

    def _crash(self, actor: Actor) -> None:
        actor.dead = True
        raise Crash

    def _stall(self, actor: Actor) -> None:
        actor.wake_at = self.now + self.scenario.stall_s
        actor.stalled = True
        self.last_fault_at = actor.wake_at
        self._switch()

    def _switch(self) -> None:
        actor = self._alive()
        self._hub.switch()
        self.current = actor
        if actor.dead:
            raise Crash

    def _note(self, op: str, result: object) -> None:
        if self.trace is not None:
            actor = self.current.name if self.current else "world"
            if op == "db.prune":
                result = None  # of a whole day only the statistics know how many rows it had
            elif op == "tx.lock_new_signals" and isinstance(result, list):
                result = [name for _, name in result]
            elif op == "db.leaked_assets" and isinstance(result, list):
                result = [call for call, _ in result]
            self.trace.append((round(self.now, 6), actor, op, _brief(result)))

    # The outside of the tally kind.

    def visit(self, turn: Turn, n: int) -> None:
        self.invariants.visited(turn)
        if turn.key in turn.params.get("killers", ()):
            self.seen["killed by its own work"] += 1
            self._crash(self._alive())
        self.call("upstream.visit", lambda: None, error=lambda: RuntimeError("unexpected answer"))
        begin, end = self.scenario.burst
        if begin <= self.now < end:
            self.last_fault_at = self.now
            raise KeyError("a bad minute")
        if self.rng.random() >= self.scenario.upstream_trouble:
            return
        self.last_fault_at = self.now
        throttled = self.rng.random() < self.scenario.throttled_share
        trouble = "throttled" if throttled else self.rng.choice(("transient", "surprise", "transient", "permanent"))
        self.seen[f"upstream {trouble}"] += 1
        if throttled:
            gate, shared = self.rng.choice(turn.params.get("gates", ["upstream"])), self.rng.random() < 0.3
            raise Throttled(gate, self.rng.choice((1.0, 30.0, 120.0)), shared=shared)
        if trouble == "permanent":
            raise Permanent("no such thing")
        raise Transient("no answer") if trouble == "transient" else KeyError("surprise")

    def create(self, key: str) -> str:
        def effect() -> str:
            self.made[key] += 1
            self.invariants.made(key, by_a_zombie=self._alive().stalled)
            if self._alive().stalled:
                self.zombie_things.add(key)  # made by a process that outlived its lease, as Lambda's cannot
            self.things[key] = f"thing-{key}"
            return self.things[key]

        return self.call("upstream.create", effect, error=lambda: Transient("created, perhaps"))

    def find(self, key: str) -> str | None:
        return self.call("upstream.find", lambda: self.things.get(key), error=lambda: Transient("no answer"))

    def remove(self, remote_id: str | None, key: str) -> None:
        self.invariants.removed(key)

        def effect() -> None:
            self.things.pop(key, None)
            self.made[key] = 0  # what is gone may be made again

        self.call("upstream.remove", effect, error=lambda: Transient("removed, perhaps"))

    def use(self, turn: Turn, remote_id: str) -> None:
        self.invariants.used(turn, remote_id)

    def stumbles(self, turn: Turn) -> bool:
        where = (turn.lane_id, turn.epoch, turn.cursor.get("cancel", 0))
        if where in self.stumbled:
            return False
        self.stumbled.add(where)
        return True

    def settles(self, run: Run) -> None:
        self._raise_if_stubborn(run, "settle")

    def ends(self, run: Run) -> None:
        self._raise_if_stubborn(run, "on_end")

    def _raise_if_stubborn(self, run: Run, what: str) -> None:
        times = run.params.get("stubborn", {}).get(what, 0)
        raised = self.raised[run.id, run.epoch, what]
        if times < 0 or raised < times:
            self.raised[run.id, run.epoch, what] += 1
            self.seen[f"{what} raised"] += 1
            self.last_fault_at = self.now
            assert self.current is not None
            self.current.faulted = True
            raise KeyError(what)

    # The schedule.

    def run(self) -> None:
        real = vars(clock)["time"]
        vars(clock)["time"] = self
        try:
            self._run()
        finally:
            vars(clock)["time"] = real

    def _run(self) -> None:
        for number, params in enumerate(self.scenario.runs):
            self._spawn(f"start{number}", self._starter(params))
        while not self._finished():
            self._one_move()
            self.moves += 1
            if self.now > LONGEST_S or self.moves > MOST_MOVES:
                raise Violation(f"not ended after {self.now:.0f} s: {self.invariants.open_work()}")
        if self.scenario.tick:
            self._settle_down()
        self.invariants.at_the_end()

    def _starter(self, params: dict[str, Any]) -> Callable[[], None]:
        def start() -> None:
            run_id = runs.start_run(self.ports, self.kinds[params["kind"]], TENANTS[params["tenant"]], params)
            self.run_ids.append(run_id)
            if params.get("same_asset"):
                self.one_asset.add(run_id)

        return start

    def _one_move(self) -> None:
        self._clockwork()
        if self._move_something():
            self.now += self.rng.choice((0.0, 0.015625, 0.0625))
            self.invariants.after_a_move()
        else:
            self._jump()

    def _move_something(self) -> bool:
        """Let one running function go on, or deliver one message; False if neither is possible now."""
        moves: list[Actor | str] = [actor for actor in self.actors if actor.wake_at <= self.now]
        if len(moves) < self.scenario.workers:
            moves += [queue for queue in QUEUES if self._empty_until.get(queue, 0.0) <= self.now]
        while moves:
            move = moves.pop(self.rng.randrange(len(moves)))
            if isinstance(move, Actor):
                self._resume(move)
                return True
            if self._deliver(move):
                return True
        return False

    def _clockwork(self) -> None:
        scenario = self.scenario
        while self.actions and self.actions[0].at <= self.now:
            self._spawn_action(self.actions.pop(0))
        while scenario.purges and scenario.purges[0] <= self.now:
            scenario.purges.pop(0)
            self._purge()
        while scenario.sweeps and scenario.sweeps[0] <= self.now:
            scenario.sweeps.pop(0)
            self._spawn_sweep()
        if scenario.tick and self.now >= self.next_tick_at:
            self.next_tick_at += 60 * (1 + (self.now - self.next_tick_at) // 60)
            if not self.invariants.something_to_look_at():  # a tick that finds nothing only costs the simulation time
                return
            for copy in range(2 if self.rng.random() < 0.1 else 1):  # the scheduler fires at least once
                self._spawn(f"tick{copy}", self._tick)

    def _tick(self) -> None:
        actor = self._alive()
        due = self.invariants.tick_begins()
        report = tick(self.ports, self.kinds)
        self.invariants.tick_ends(due, report, disturbed=actor.faulted)

    def _spawn_sweep(self) -> None:
        def clean() -> None:
            actor = self._alive()
            sweep(self.ports, self.kinds, self.scenario.retention)
            self.invariants.sweep_ends(disturbed=actor.faulted)

        self._spawn("sweep", clean)

    def _purge(self) -> None:
        self.seen["purge"] += 1
        self.last_fault_at = self.now
        for queue in QUEUES:
            self.queue.purge(queue)
        self._empty_until.clear()
        self.invariants.tick_sent.clear()

    def _spawn(self, name: str, body: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                body()
            except Crash:
                self.seen["crash"] += 1
            except (ConnectionResetError, DatabaseError, QueueError) as error:
                self.seen["ended with an error"] += 1  # a tick, an operator's call: the next one comes
                if not actor.faulted:
                    raise Violation(f"{name} ended with an error that nothing has caused: {error!r}") from error

        actor = Actor(name, guarded, self._hub, self.now)
        self.actors.append(actor)

    def _resume(self, actor: Actor) -> None:
        if actor.wake_at:
            actor.wake_at = 0.0
            self.seen["zombie woke"] += 1
        self.current = actor
        actor.glet.switch()
        self.current = None
        if actor.glet.dead:
            self.actors.remove(actor)

    def _deliver(self, queue: str) -> bool:
        begin, end = self.scenario.strike
        if begin <= self.now < end:
            self.last_fault_at = end
            self.seen["strike"] += 1
            return False
        received = self.queue.receive(queue)
        self._empty_until.pop(DEAD, None)  # what came too often is there now
        if not received:  # until a time comes, or somebody touches it
            self._empty_until[queue] = self.queue.next_change(queue) or math.inf
        for message in received:
            self._note(f"deliver {queue}", message.body)
            self.invariants.delivered(message.body, message.dedup_id)
            copies = 2 if self.rng.random() < self.scenario.duplicate_rate else 1
            for _ in range(copies):
                self._spawn(f"{queue}#{self.call_no}", self._handler(queue, message))
        return bool(received)

    def _handler(self, queue: str, message: Received) -> Callable[[], None]:
        def handle() -> None:
            if queue in KIND_OF:
                done = handle_baton(self.ports, self.kind if queue == FIFO else self.kinds[KIND_OF[queue]], message)
            elif queue == DELAY:
                done = handle_delayed(self.ports, message)
            else:
                note_dead_letter(self.ports, message.body, message.receive_count)
                done = True
            if done:
                self.call(
                    "queue.delete", lambda: self._delete(queue, message), error=lambda: QueueUnavailable("delete")
                )

        return handle

    def _delete(self, queue: str, message: Received) -> None:
        self._empty_until.clear()
        try:
            self.queue.delete(queue, message.receipt)
        except QueueError:
            self.seen["stale receipt refused"] += 1

    def _spawn_action(self, action: Action) -> None:
        def act() -> None:
            if action.name == "start":
                self._starter(self.scenario.runs[action.run])()
                return
            if action.run >= len(self.run_ids):
                return
            try:
                self._act(action.name, self.run_ids[action.run])
                self.seen[f"action {action.name}"] += 1
            except (Refused, NotFound):
                self.seen[f"action {action.name} refused"] += 1

        self._spawn(f"action {action.name}", act)
        if action.name == "pause":  # nobody leaves a run paused for ever
            later = self.now + self.rng.choice((1.0, 70.0, 700.0))
            self.actions.append(Action(later, "resume", action.run))
            self.actions.sort(key=lambda each: each.at)

    def _act(self, name: str, run_id: UUID) -> None:
        tenant, lanes = self.invariants.tenant_of(run_id), self.invariants.lane_ids(run_id)
        kind = self.kinds[self.invariants.kind_of[run_id]]
        match name:
            case "cancel":
                runs.cancel_run(self.ports, kind, tenant, run_id, By(reason="asked"))
            case "pause":
                runs.pause_run(self.ports, tenant, run_id)
            case "resume":
                runs.resume_run(self.ports, tenant, run_id)
            case "retry":
                runs.retry_run(self.ports, kind, tenant, run_id)
            case "wake" if lanes:
                one = self.rng.choice([*lanes, *(None for _ in lanes)])
                if one is None:
                    self.seen["lanes woken together"] += runs.wake_run(self.ports, tenant, run_id)
                else:
                    runs.wake_lane(self.ports, tenant, one)
            case "restart" if lanes:
                runs.restart_lane(self.ports, tenant, self.rng.choice(lanes))

    def _jump(self) -> None:
        """Nothing can happen now: go to the next moment when something can."""
        scenario = self.scenario
        times = [actor.wake_at for actor in self.actors]
        times += [self.actions[0].at] if self.actions else []
        times += [*scenario.purges[:1], *scenario.sweeps[:1]]
        times += [self._next_tick_at()] if scenario.tick else []
        messages = [self.queue.next_change(queue) for queue in QUEUES]
        struck = scenario.strike[0] <= self.now < scenario.strike[1]
        times += [scenario.strike[1]] if struck else [time for time in messages if time is not None]
        later = [time for time in times if time > self.now]
        if not later and (self._finished() or self._deliver(DEAD)):
            return
        if not later:
            raise Violation(f"nothing will ever happen again: {self.invariants.open_work()}")
        self.now = min(later)
        self.invariants.after_a_jump()

    def _next_tick_at(self) -> float:
        """The next tick that finds anything; those before it are let off."""
        if self.invariants.something_to_look_at():
            return self.next_tick_at
        look_at = self.invariants.next_look_at()
        if look_at > 2 * LONGEST_S:
            return 0.0  # never
        return self.next_tick_at + 60 * max(0, math.ceil((look_at - self.next_tick_at) / 60))

    def _finished(self) -> bool:
        if self.actors or self.actions or self.scenario.purges or self.scenario.sweeps:
            return False
        if not self.scenario.tick:
            return all(self.queue.messages(queue) == EMPTY for queue in QUEUES)
        if self._resume_forgotten():
            return False
        return not self.invariants.open_work()

    def _resume_forgotten(self) -> bool:
        """A resume that failed is asked for again, as a person would."""
        for number, run_id in enumerate(self.run_ids):
            if self.invariants.is_paused(run_id):
                self.actions.append(Action(self.now + 60, "resume", number))
        return bool(self.actions)

    def _settle_down(self) -> None:
        """Peace: what is left of messages and assets is worked off."""
        self.faults = RandomFaults(self.rng, 0.0, 0, 0.0)
        self.now += 1000
        self._spawn_sweep()
        while self._move_something():
            self.invariants.after_a_move()

    def sent(self, queue: str, messages: Sequence[Outgoing]) -> None:
        """What the queue really took. Now and then somebody enqueues a copy by hand, too early."""
        self._empty_until.clear()
        assert self.current is not None
        if queue in KIND_OF and self.current.ticks:
            for message in messages:
                self.invariants.tick_sent[message.dedup_id or ""] = self.now
        if queue == DELAY and self.rng.random() < self.scenario.duplicate_rate:
            for message in messages:
                copy = f"by-hand-{self.call_no}"
                fifo = self.ports.relay.queue_of(read_baton(message.body).kind)
                self.queue.send(fifo, [Outgoing(body=message.body, group=copy, dedup_id=copy)])

    def refuse(self, queue: str) -> None:
        """A queue that is not there, or not for us, says so; perhaps only after a while."""
        for shut in self.scenario.shut:
            if shut.queue == queue and shut.begin <= self.now < shut.end:
                self.now += shut.slow_s
                self.seen["send refused"] += 1
                raise QueueRefused("AWS.SimpleQueueService.NonExistentQueue", queue)

    def refuse_commit(self) -> None:
        begin, end = self.scenario.outage
        if begin <= self.now < end:
            assert self.current is not None
            self.last_fault_at, self.current.faulted = self.now, True
            self.seen["commit refused"] += 1
            raise ConnectionResetError("no step can be committed")

    def sends_are_lost(self) -> bool:
        begin, end = self.scenario.blackout
        if begin <= self.now < end:
            self.last_fault_at = self.now
            return True
        assert self.current is not None
        return not self.scenario.sends and not self.current.ticks


class FaultyQueue:
    def __init__(self, world: World) -> None:
        self._world = world

    def send(self, queue: str, messages: Sequence[Outgoing]) -> list[int]:
        world = self._world

        def effect() -> list[int]:
            world.refuse(queue)
            if world.sends_are_lost():
                world.seen["lost send"] += 1
                return []
            world.sent(queue, messages)
            return world.queue.send(queue, messages)

        actor = world._alive()
        if world.rng.random() < world.scenario.switch_rate:
            world._switch()
        fault = world._draw("queue.send", AT_SEND)
        if fault is Fault.DROP:
            return []
        if fault is not None:
            world._before(fault, actor, lambda: QueueUnavailable("send"))
        result = effect()
        world._note("queue.send", [message.dedup_id or message.delay_s for message in messages])
        if fault is not None:
            world._after(fault, actor, lambda: QueueUnavailable("send"))
        return result

    def is_empty(self, queue: str) -> bool:
        world = self._world
        return world.call("queue.is_empty", lambda: world.queue.is_empty(queue), error=lambda: QueueUnavailable("ask"))

    def change_visibility(self, queue: str, receipt: str, seconds: int) -> None:
        world = self._world

        def effect() -> None:
            world._empty_until.clear()
            world.queue.change_visibility(queue, receipt, seconds)

        world.call("queue.change_visibility", effect, error=lambda: QueueUnavailable("change_visibility"))


class FaultyStore:
    """Every statement of its own is a port call; a transaction is one, with faults at each statement and at its commit."""

    def __init__(self, world: World, store: Store) -> None:
        self._world = world
        self._store = store

    def __getattr__(self, name: str) -> Callable[..., Any]:
        world, method = self._world, getattr(self._store, name)

        def statement(*args: Any) -> Any:
            def effect() -> Any:
                if name == "commit_turn":
                    world.refuse_commit()
                world.invariants.before(name, args)
                result = ask(method, args)
                world.store.dirty |= name not in UNSEEN  # type: ignore[attr-defined]
                world.invariants.after(name, args, result)
                return result

            return world.call(f"db.{name}", effect, (*ANYWHERE, Fault.CONFLICT))

        return statement

    @contextmanager
    def begin(self, tenant_id: UUID | None) -> Iterator[Tx]:
        world = self._world
        world.call("db.begin", lambda: None)
        actor = world._alive()
        world.invariants.begun()
        with self._store.begin(tenant_id) as tx:
            yield FaultyTx(world, tx)
            fault = world._draw("db.commit", AT_COMMIT)
            if fault is not None:
                world._before(fault, actor, lambda: ConnectionResetError("commit"))
        world.invariants.committed()
        world.store.dirty = True  # type: ignore[attr-defined]
        world._note("db.commit", None)
        if fault is not None:
            world._after(fault, actor, lambda: ConnectionResetError("commit"))


class FaultyTx:
    def __init__(self, world: World, tx: Tx) -> None:
        self._world = world
        self._tx = tx

    def __getattr__(self, name: str) -> Callable[..., Any]:
        world, method = self._world, getattr(self._tx, name)

        def statement(*args: Any) -> Any:
            actor = world._alive()
            fault = world._draw(f"tx.{name}", IN_TRANSACTION)
            if fault is not None:
                world._before(fault, actor, lambda: ConnectionResetError("statement"))
            if name == "commit_turn":
                world.refuse_commit()
            world.invariants.before(name, args)
            result = ask(method, args)
            world.invariants.after(name, args, result)
            world._note(f"tx.{name}", result)
            return result

        return statement


def void(_: object) -> None:
    """Drop a result."""


def _brief(result: object) -> object:
    """A result as both stores must give it; JSON only by what it says, as jsonb keeps no order."""
    match result:
        case list():
            return [_brief(each) for each in result]
        case Run():
            times = (result.cancel_requested_at, result.paused_at, result.deadline_at, result.now)
            return (result.id, result.tenant_id, result.status, result.outcome, result.epoch, *times)
        case Intent():
            return (
                result.fresh,
                result.confirmed,
                result.remote_id,
                float(result.age_s),
                result.looks,
                result.looked_s,
            )
        case GatePass():
            return (result.wait_s, sorted(result.probes), result.closed_by)
        case Lane():
            return (result.id, result.key, result.status, result.epoch, sorted(result.cursor.items()))
        case Turn():
            spent = (result.claims, result.attempts, result.steps, result.run_status, result.cancel_at, result.now)
            return (result.lane_id, result.epoch, result.seq, sorted(result.cursor.items()), *spent)
        case _:
            return repr(result)
