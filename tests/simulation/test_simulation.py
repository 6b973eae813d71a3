"""The relay under a hostile world: thousands of schedules, each decided by its seed alone."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.simulation.backends import MemoryBackend, prepare_database
from tests.simulation.simulate import MakeStore, postgres_at, random_schedules, run_schedule, schedules
from tests.support.databases import ServerAdmin
from tests.support.rings import tenths

IN_MEMORY = 2_000
ON_POSTGRES = 200
SHARED_SEEDS = 50

# Each of these must occur among nine tenths of the schedules in memory, or the simulation proves less than it says.
SITUATIONS = [
    "crash_before@db.claim",
    "crash_after@db.claim",
    "fail_after@db.claim",
    "stall_after@db.claim",
    "crash_before@db.commit",
    "crash_after@db.commit",
    "fail_before@db.commit",
    "fail_after@db.commit",
    "crash_after@queue.send",
    "fail_after@queue.send",
    "drop@queue.send",
    "crash_before@queue.delete",
    "fail_after@queue.delete",
    "crash_after@upstream.create",
    "fail_after@upstream.create",
    "conflict@tx.commit_turn",
    "conflict@tx.lock_run",
    "stall_before@db.begin",
    "stall_after@upstream.visit",
    "fail_before@tx.has_open_lanes",
    "Refused.stale",
    "Refused.early",
    "Refused.twin",
    "Refused.paused",
    "Refused.ended",
    "Overtaken",
    "GivenBack",
    "SendFailed",
    "Repair.unclaimed",
    "Repair.unsent",
    "Repair.lease_ran_out",
    "DeadLetter",
    "RunEnded.succeeded",
    "RunEnded.failed",
    "RunEnded.canceled",
]
SENTENCES = (
    "tick parked", "tick busy", "tick promoted", "tick later", "tick waiting", "gate probed", "gate opened",
    "step waited", "step throttled", "step retried", "step canceled", "step failed", "step moved", "step done",
    "zombie woke", "purge", "lost send", "killed by its own work", "stale receipt refused", "Refused.unknown",
    "action cancel", "action pause", "action resume", "action retry", "action wake", "action restart", "lanes woken together",
    "a step is woken on its way",
    "upstream surprise", "upstream throttled", "upstream transient", "PruneFailed",
)  # fmt: skip
# And each of these at least fifty times in 20,000.
OFTEN = (
    "wait made by a kind", "canceled lane waits", "on_cancel waited", "on_cancel throttled", "on_cancel retried",
    "on_cancel moved", "on_cancel done", "on_cancel canceled", "shared gate closed", "shared gate probed",
    "twin gates probed", "gate closed again by its probe", "lane timed out", "run timed out", "tick expired",
    "canceled run past its deadline", "side lane woken", "run ended before its side lane", "run pruned", "sweep",
    "send refused", "tick of more than a batch", "settle raised", "on_end raised", "commit refused", "strike", "poison",
    "asset handed out", "two lanes intend the same key",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def on_postgres(postgres_server: ServerAdmin, template: str) -> Iterator[MakeStore]:
    name = postgres_server.create_from_template(template)
    prepare_database(postgres_server.url(name))
    with postgres_at(postgres_server.url(name)) as make_store:
        yield make_store
    postgres_server.drop(name)


@tenths()
def test_no_schedule_in_memory_breaks_a_promise(tenths: range) -> None:
    seen: Counter[str] = Counter()
    count = IN_MEMORY * len(tenths) // 10
    for name in schedules(count, 7_000_000 * tenths.start, MemoryBackend):
        seen.update(run_schedule(name, MemoryBackend).seen)
    if tenths != range(1):
        missing = [situation for situation in (*SITUATIONS, *SENTENCES) if not seen[situation]]
        assert not missing
        rare = {situation: seen[situation] for situation in OFTEN if seen[situation] * 20_000 < 50 * count}
        assert not rare


@tenths()
def test_no_schedule_on_postgres_breaks_a_promise(tenths: range, on_postgres: MakeStore) -> None:
    for name in schedules(ON_POSTGRES * len(tenths) // 10, 50_000_000 + 100_000 * tenths.start, on_postgres):
        run_schedule(name, on_postgres)


@pytest.mark.full
def test_both_stores_tell_the_same_story(on_postgres: MakeStore) -> None:
    for name in itertools.islice(random_schedules(0), SHARED_SEEDS):
        in_memory = run_schedule(name, MemoryBackend, trace=True).trace
        assert in_memory == run_schedule(name, on_postgres, trace=True).trace, name
