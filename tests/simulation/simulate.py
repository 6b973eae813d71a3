"""Run schedules: `python -m tests.simulation.simulate --store memory --schedules 20000`.

A violation prints its seed and how to replay it alone.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from shared.kernel.ports import Store
from tests.simulation.backends import MemoryBackend, PgBackend, prepare_database
from tests.simulation.faults import Fault, OneFault
from tests.simulation.invariants import Violation
from tests.simulation.scenario import (
    Scenario,
    blackout_scenario,
    cancels_scenario,
    draw_scenario,
    gates_scenario,
    limits_scenario,
    operator_scenario,
    plain_scenario,
    redelivery_scenario,
    shut_scenario,
    strike_scenario,
    stubborn_scenario,
    sweeps_scenario,
)
from tests.simulation.thrift import connect_thriftily
from tests.simulation.world import DidNotRun, World
from tests.support.databases import as_user, server_admin

PROGRESS_EVERY = 5_000
MakeStore = Callable[[World], Store]
DRAW: dict[str, Callable[[int], Scenario]] = {
    "random": draw_scenario,
    "plain": plain_scenario,
    "tickless": draw_scenario,
    "sendless": draw_scenario,
    "blackout": blackout_scenario,
    "operators": operator_scenario,
    "redelivery": redelivery_scenario,
    "gates": gates_scenario,
    "limits": limits_scenario,
    "shut": shut_scenario,
    "cancels": cancels_scenario,
    "stubborn": stubborn_scenario,
    "strike": strike_scenario,
    "sweeps": sweeps_scenario,
}


class BrokenPromise(AssertionError):
    """A schedule in which an invariant did not hold, and how to see it again."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One schedule, named so that it can be replayed: `random:17`, `single:5:33:drop`, `tickless:17`, …"""

    name: str

    def world(self, make_store: MakeStore) -> World:
        mode, seed, *rest = self.name.split(":")
        if mode == "single":
            at, fault = int(rest[0]), Fault(rest[1])
            return World(plain_scenario(int(seed)), make_store, OneFault(at, fault))
        scenario = DRAW[mode](int(seed))
        if mode == "tickless":
            scenario.tick = False
        scenario.sends = mode != "sendless"
        return World(scenario, make_store)


def run_schedule(name: str, make_store: MakeStore, *, trace: bool = False) -> World:
    world = Schedule(name).world(make_store)
    if trace:
        world.trace = []
    try:
        world.run()
    except (Violation, Exception) as violation:
        if not isinstance(violation, Violation):
            traceback.print_exc()
        raise BrokenPromise(
            f"{violation}\n  replay: make simulate SCHEDULE={name} STORE={'memory' if isinstance(world.store, MemoryBackend) else 'postgres'}"
        ) from None
    finally:
        forget = getattr(world.store, "forget", None)
        if forget is not None:
            forget()
    return world


def single_fault_schedules(seed: int, make_store: MakeStore) -> Iterator[str]:
    """Every fault at every port call of one plain schedule."""
    world = run_schedule(f"plain:{seed}", make_store)
    for at in range(1, world.call_no + 1):
        for fault in Fault:
            yield f"single:{seed}:{at}:{fault}"


def random_schedules(first: int) -> Iterator[str]:
    """Random ones for ever, with one of every other mode after each tenth."""
    seed = first
    while True:
        yield f"random:{seed}"
        if seed % 10 == 0:
            yield from (f"{mode}:{seed}" for mode in DRAW if mode not in ("random", "plain"))
        seed += 1


def schedules(count: int, base: int, make_store: MakeStore) -> Iterator[str]:
    """Half of them random, half exhaustive single faults on one plain schedule after the other."""
    random, made, plain = random_schedules(base), 0, base
    while made < count:
        for name in single_fault_schedules(plain, make_store):
            yield name
            yield next(random)
            made += 2
            if made >= count:
                return
        plain += 1


@contextmanager
def memory() -> Iterator[MakeStore]:
    yield MemoryBackend


@contextmanager
def postgres() -> Iterator[MakeStore]:
    with server_admin() as admin:
        url = admin.url(admin.create_from_template(admin.create_template()))
        prepare_database(url)
        with postgres_at(url) as make_store:
            yield make_store


@contextmanager
def postgres_at(url: str) -> Iterator[MakeStore]:
    """On a prepared database."""
    worker, owner = connect_thriftily(as_user(url, "baton_worker")), connect_thriftily(url)
    try:
        yield lambda world: PgBackend(world, worker, owner)
    finally:
        worker.dispose()
        owner.dispose()


def simulate(store: str, count: int, base: int, mode: str = "") -> Counter[str]:
    """Run `count` schedules from `base` on, perhaps of one mode only; answers how often each situation occurred."""
    logging.disable(logging.CRITICAL)
    seen: Counter[str] = Counter()
    with (memory if store == "memory" else postgres)() as make_store:
        names = (f"{mode}:{base + n}" for n in range(count)) if mode else schedules(count, base, make_store)
        for name in names:
            seen.update(run_schedule(name, make_store).seen)
            seen["schedules"] += 1
            if seen["schedules"] % PROGRESS_EVERY == 0:
                print(f"  {seen['schedules']:,} of {count:,} schedules on {store}, no violation", file=sys.stderr)
    return seen


def _share(job: tuple[str, int, int, str]) -> Counter[str] | BrokenPromise | DidNotRun:
    try:
        return simulate(*job)
    except (BrokenPromise, DidNotRun) as end:  # a pool only carries an Exception by raising it
        return end


def _end(*_: object) -> None:
    sys.exit(1)


def _end_with_the_parent() -> None:
    """A worker ends in good order, with the server that it started, when it is told to or when its parent is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, _end)

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)  # to leave in good order; the signal may have come where nothing can be raised
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def simulate_on_all_cores(store: str, count: int, base: int, jobs: int, mode: str = "") -> Counter[str]:
    """The same number of schedules, shared out with seeds far apart."""
    share = -(-count // jobs)
    shares = [(store, share, base + job * 1_000_000, mode) for job in range(jobs)]
    seen: Counter[str] = Counter()
    with multiprocessing.get_context("spawn").Pool(jobs, _end_with_the_parent) as pool:
        for part in pool.imap_unordered(_share, shares):
            if not isinstance(part, Counter):
                raise part
            seen.update(part)
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=("memory", "postgres"), default="memory")
    parser.add_argument("--schedules", type=int, default=2000)
    parser.add_argument("--base", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--mode", default="", choices=("", *DRAW), help="only schedules of this mode")
    parser.add_argument("--replay", help="one schedule by its name; prints its trace")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, _end)
    began = time.monotonic()
    try:
        if args.replay:
            with (memory if args.store == "memory" else postgres)() as make_store:
                return replay(args.replay, make_store)
        seen = simulate_on_all_cores(args.store, args.schedules, args.base, args.jobs, args.mode)
    except BrokenPromise as violation:
        print(f"VIOLATION {violation}", file=sys.stderr)
        return 1
    except DidNotRun as problem:
        print(f"DID NOT RUN {problem}", file=sys.stderr)
        return 2
    took = time.monotonic() - began
    print(f"{seen.pop('schedules')} schedules on {args.store} in {took:.1f} s, 0 violations. It happened that:")
    for situation, times in sorted(seen.items()):
        print(f"  {times:9d}  {situation}")
    return 0


def replay(name: str, make_store: MakeStore) -> int:
    world = Schedule(name).world(make_store)
    world.trace = []
    try:
        world.run()
    finally:
        for entry in world.trace:
            print(*entry)
    print("no violation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
