"""A worker: a process of its own that runs the product's functions, and may be killed at any moment."""

from __future__ import annotations

import gc
import json
import logging
import os
import pickle
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal
from uuid import UUID

import sqlalchemy as sa

from shared.kernel import db
from shared.kernel import run as runs
from shared.kernel.baton import Baton, read_baton
from shared.kernel.catalogue import Catalogue, Kind
from shared.kernel.clock import Chance, new_id
from shared.kernel.dead_letter import note_dead_letter
from shared.kernel.decide import Limits
from shared.kernel.errors import NotFound, Refused
from shared.kernel.handle import handle_baton, handle_delayed
from shared.kernel.model import By, LaneState, NoTurn, Turn
from shared.kernel.offers import PgOffers
from shared.kernel.points import watch_points
from shared.kernel.ports import Ports
from shared.kernel.pull import do_pulled
from shared.kernel.queue import Outgoing, QueueError
from shared.kernel.retry import Backoff
from shared.kernel.settings import Relay
from shared.kernel.store import PgStore
from shared.kernel.sweep import sweep
from shared.kernel.tick import tick
from tests.chaos.hub import BATONS, DELAY, FIFO, ORDERS, Address, Line, Taken, TroubledLine
from tests.chaos.outside import PgWorld
from tests.chaos.proxy import run_proxy
from tests.kinds.parcel.kind import QUEUE as PARCELS
from tests.kinds.parcel.kind import parcel_kind
from tests.support.subject import subjects
from tests.support.tally import tally_kind

TENANTS = tuple(UUID(int=0xC000 + n) for n in range(3))
RELAY = Relay(step_timeout_s=2, lease_s=3, asset_grace_s=0, tick_seconds=10)
TICK_TIMEOUT_S = 15.0
PULL_LEASE_S = 60.0
LIMITS = Limits(max_attempts=10, backoff=Backoff(first_s=0.5, most_s=2.0))
KIND_OF = sa.text("select kind from run where id = :id")
COUNTED_BY = ("reason", "why", "outcome", "status")


@dataclass(frozen=True, slots=True, kw_only=True)
class Duty:
    """What a worker is told at its birth. Every worker tallies; `outside` says which kinds it knows besides, and where
    the outside of each is."""

    role: Literal["obey", "serve", "tick", "proxy"]
    hub: Address
    database_url: str = ""
    outside_url: str = ""
    control_port: int = 0
    seed: int = 0
    die_at: tuple[str, int] | None = None
    stop_at: tuple[str, int] | None = None
    skew_s: float = 0.0
    send_trouble: float = 0.0
    cut_rate: float = 0.0
    server_port: int = 0
    outside: Mapping[str, Any] = field(default_factory=dict)


def warm_up() -> None:
    """What the zygote does once, so that its children need not: the modules of every kind are a second of work."""
    subjects()
    db.connect_engine("postgresql://nobody@127.0.0.1:1/nothing").dispose()
    gc.freeze()


def live(duty: Duty) -> None:
    logging.disable(logging.CRITICAL)
    _skew_the_clock(duty.skew_s)
    match duty.role:
        case "proxy":
            run_proxy(Line(duty.hub), duty.server_port, duty.cut_rate, Random(duty.seed))
        case "obey":
            Worker(duty).obey()
        case "serve":
            Worker(duty).serve()
        case "tick":
            Worker(duty).keep_ticking()


def _skew_the_clock(seconds: float) -> None:
    if seconds:
        true_time, true_time_ns = time.time, time.time_ns  # noqa: TID251 - it is bent here on purpose
        time.time = lambda: true_time() + seconds  # noqa: TID251 - as above
        time.time_ns = lambda: true_time_ns() + int(seconds * 1e9)


class Tracker:
    """Counts the points that were passed, stops at one of them and dies at another."""

    def __init__(self, duty: Duty) -> None:
        self.hits: Counter[str] = Counter()
        self._signals = {duty.stop_at: signal.SIGSTOP, duty.die_at: signal.SIGKILL}

    def __call__(self, point: str) -> None:
        self.hits[point] += 1
        number = self._signals.get((point, self.hits[point]))
        if number is not None:
            os.kill(os.getpid(), number)


class CountingMeter:
    """Adds up between two flushes: a killed worker takes a little of its count along."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._counts: Counter[str] = Counter()
        self._flushed_at = time.monotonic()

    def count(self, metric: str, value: float = 1, /, **dimensions: str) -> None:
        detail = next((dimensions[name] for name in COUNTED_BY if name in dimensions), "")
        self._counts[f"{metric}.{detail}" if detail else metric] += int(value)

    def flush(self, every_s: float = 0.2) -> None:
        if self._counts and time.monotonic() - self._flushed_at >= every_s:
            self._line.add(self._counts)
            self._counts = Counter()
            self._flushed_at = time.monotonic()


class WatchedStore(PgStore):
    """Tells how often a lost answer was resolved, and how: by then the commit had happened or not."""

    def __init__(self, engine: sa.Engine, line: Line) -> None:
        super().__init__(engine)
        self._line = line
        self._token = UUID(int=0)

    def claim(self, baton: Baton, token: UUID, lease_s: float) -> Turn | NoTurn:
        self._token = token
        return super().claim(baton, token, lease_s)

    def lane_state(self, lane_id: UUID) -> LaneState | None:
        state = super().lane_state(lane_id)
        happened = state is not None and state.claim_token != self._token
        self._line.add({"unknown commits: it had happened" if happened else "unknown commits: it had not": 1})
        return state


class Worker:
    def __init__(self, duty: Duty) -> None:
        rng = Random(duty.seed)
        self.duty = duty
        self.rng = rng
        self.tracker = Tracker(duty)
        self.line = TroubledLine(duty.hub, rng, duty.send_trouble) if duty.send_trouble else Line(duty.hub)
        self.meter = CountingMeter(self.line)
        self.engine = engine = db.connect_engine(duty.database_url, connect_seconds=2)
        known = [subjects()[name] for name in duty.outside]
        others = [each.build(engine, duty.outside[each.name], duty.outside_url) for each in known]
        self.kinds = Catalogue(tally_kind(PgWorld(duty.outside_url), LIMITS), parcel_kind(limits=LIMITS), *others)
        # One queue for all. A kind that is alone has the time it needs; in chaos everybody is in a hurry.
        relay = (known[0].relay if duty.role == "obey" and known else RELAY).model_copy(update={"fifo_queue": FIFO})
        self.ports = Ports(
            store=WatchedStore(engine, self.line),
            queue=self.line,
            offers=PgOffers(engine),
            # Ids of a skewed clock in chaos; ids of the seed where every hit of a point must come again.
            chance=Chance(
                new_id=new_id if duty.role != "obey" else lambda: UUID(int=rng.getrandbits(128)),
                fraction=rng.random,
            ),
            meter=self.meter,
            relay=relay,
            time_left_s=lambda: float(relay.step_timeout_s),
        )
        watch_points(self.tracker)

    # The kill matrix: one order after the other.

    def obey(self) -> None:
        """Do what the parent asks for, one thing at a time; its hanging up is the end."""
        with socket.create_connection(("127.0.0.1", self.duty.control_port)) as control:
            control.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            file = control.makefile("rwb")
            with suppress(EOFError, OSError):
                while True:
                    name, args = pickle.load(file)
                    pickle.dump(getattr(self, f"do_{name}")(*args), file)
                    file.flush()

    def do_drain(self) -> int:
        """Handle messages until every queue has nothing to give, and do what is there to be pulled."""
        handled = 0
        while True:
            taken = [Taken(queue, message) for queue in BATONS for message in self.line.receive(queue)]
            for each in taken:
                self.handle(each)
            turns = self.do_take()
            for turn in turns:
                do_pulled(turn, self.kinds, self.ports)
            if not taken and not turns:
                return handled
            handled += len(taken) + len(turns)

    def do_take(self) -> list[Turn]:
        """Whoever only takes is a worker that is lost."""
        assert self.ports.offers is not None
        return self.ports.offers.take(PARCELS, 1, self.ports.chance.new_id(), PULL_LEASE_S, "a worker")

    def do_start(self, tenant: int, params: dict[str, Any], kind: str = "tally") -> UUID:
        return runs.start_run(self.ports, self.kinds[kind], TENANTS[tenant], params)

    def do_say(self, event_id: UUID, tenant: int, name: str, payload: dict[str, Any]) -> None:
        self.ports.store.add_signal_once(event_id, TENANTS[tenant], name, payload)

    def do_act(self, name: str, tenant: int, target: UUID) -> str:
        """An operator's action on a run or a lane; answers what came of it."""
        try:
            self._act(name, TENANTS[tenant], target)
        except (Refused, NotFound) as refused:
            return type(refused).__name__
        return "done"

    def do_tick(self) -> None:
        tick(self.ports, self.kinds)

    def do_sweep(self) -> None:
        sweep(self.ports, self.kinds)

    def do_hits(self) -> Counter[str]:
        return self.tracker.hits

    def _act(self, name: str, tenant: UUID, target: UUID) -> None:
        match name:
            case "cancel":
                runs.cancel_run(self.ports, self._kind_of(target), tenant, target, By(reason="asked"))
            case "pause":
                runs.pause_run(self.ports, tenant, target)
            case "resume":
                runs.resume_run(self.ports, tenant, target)
            case "retry":
                runs.retry_run(self.ports, self._kind_of(target), tenant, target)
            case "wake":
                runs.wake_lane(self.ports, tenant, self._lane(target))
            case "restart":
                runs.restart_lane(self.ports, tenant, self._lane(target))
            case "wake_side":
                runs.wake_lane(self.ports, tenant, self._lane(target, holds_run=False))
            case _:
                raise ValueError(name)

    def _kind_of(self, run_id: UUID) -> Kind:
        with self.engine.connect() as connection:
            found = connection.execute(KIND_OF, {"id": run_id}).scalar_one_or_none()
        return self.kinds[found or "tally"]

    def _lane(self, run_id: UUID, *, holds_run: bool | None = None) -> UUID:
        """Some lane of a run."""
        with self.ports.store.begin(None) as tx:
            lanes = [lane for lane in tx.lanes(run_id) if holds_run in (None, lane.holds_run)]
        return self.rng.choice(lanes).id if lanes else run_id

    # Chaos: whatever comes.

    def serve(self) -> None:
        """Take messages for ever, each within the time that a function has."""
        while True:
            taken = self.line.take()
            if taken is None:
                self.meter.flush()
                time.sleep(0.02)
                continue
            with _time_limit(RELAY.step_timeout_s):
                self._handle_or_leave(taken)
            self.meter.flush()

    def keep_ticking(self) -> None:
        """The tick at a fast pace, the sweep now and then; an error is the next tick's business."""
        while True:
            with _time_limit(TICK_TIMEOUT_S):
                try:
                    tick(self.ports, self.kinds)
                    if self.rng.random() < 0.1:
                        sweep(self.ports, self.kinds)
                except Exception:
                    self.line.add({"ticks that ended with an error": 1})
            self.meter.flush(0)
            time.sleep(self.rng.uniform(0.2, 1.0))

    def _handle_or_leave(self, taken: Taken) -> None:
        try:
            self.handle(taken)
        except Exception as error:
            self.line.add({f"handlers that raised: {taken.queue} {type(error).__name__}": 1})

    def handle(self, taken: Taken) -> None:
        queue, message = taken
        match queue:
            case _ if queue == FIFO:
                done = handle_baton(self.ports, self.kinds[read_baton(message.body).kind], message)
            case _ if queue == DELAY:
                done = handle_delayed(self.ports, message)
            case _ if queue == ORDERS:
                done = self._carry_out(json.loads(message.body))
            case _:
                note_dead_letter(self.ports, message.body, message.receive_count)
                done = True
        if done:
            with suppress(QueueError):  # a copy of it was faster, or its visibility is over
                self.line.delete(queue, message.receipt)

    def _carry_out(self, order: dict[str, Any]) -> bool:
        """Start a run and ask for what shall happen to it later, or do that."""
        if order["op"] == "sweep":
            self.do_sweep()
            return True
        if order["op"] != "start":
            result = self.do_act(order["op"], order["tenant"], UUID(order["target"]))
            self.line.add({f"action {order['op']} {result}": 1})
            return True
        run_id = self.do_start(order["tenant"], order["params"], order.get("kind", "tally"))
        for op, delay_s in order["then"]:
            later = {"op": op, "tenant": order["tenant"], "target": str(run_id)}
            self.line.send(ORDERS, [Outgoing(body=json.dumps(later), group="", delay_s=delay_s)])
        return True


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Lambda's way: who takes too long is ended. SIGALRM without a handler does exactly that."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
