"""The hot path of remote queries: one poll, and what a query of half an hour costs a worker.

The remote system is the stand-in, asked over HTTP through the real adapter. Beside a poll its answer is asked for alone; beside
a whole query stands the loop that it replaced: one worker that asks, sleeps and asks again.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from uuid import UUID

import sqlalchemy as sa

from infra.local.standins.mce import CLIENT_ID, CLIENT_SECRET, MceStandIn
from shared.kernel.http import Pool, new_pool
from shared.kernel.model import StepOutcome
from shared.kernel.run import start_run
from shared.kernel.step import take_turn
from shared.kernel.tokens import Tokens
from shared.query_run import decide
from shared.query_run.adapters.mce import Mce
from shared.query_run.model import Column, PollConfig, QueryCursor, QueryParams
from shared.query_run.ports import Ports
from shared.query_run.steps import query_run
from shared.query_run.store import QueryStore
from tests.bench.figures import Figure
from tests.bench.measure import Act, Side, cpu, race, versus
from tests.bench.place import TENANT, Place, trips
from tests.kinds.query_run.subject import SUBJECT
from tests.support.files import MemoryFiles

HALF_AN_HOUR_S = 29 * 60
EMPTY = ("delete from account_token", "delete from query_slot")
SQL = "/* seconds={}; rows=3 */ select id, name from people"
# Every poll is due at once, and asks for nothing but the status.
AT_ONCE = PollConfig(
    initial_delay_ms=100, max_delay_ms=100, max_poll_count=10_000, row_probe_min_runtime_ms=86_400_000, max_duration_ms=86_400_000,
    stuck_threshold_ms=86_400_000,
)  # fmt: skip


def parts(here: Place, *, quick: bool) -> Iterator[Callable[[], Sequence[Figure]]]:
    yield lambda: a_poll(here, polls=3 if quick else 40, rounds=2 if quick else 21)
    yield lambda: half_an_hour(here, seconds=40 if quick else HALF_AN_HOUR_S - 60)


class Asks:
    """The product's kind at one remote system."""

    def __init__(self, place: Place, address: str, config: PollConfig) -> None:
        self.place, self.address, self.pool = place, address, new_pool()
        ports = Ports(
            remote=self.client,
            tokens=Tokens(place.engine),
            store=QueryStore(place.engine),
            files=MemoryFiles(),
            config=config,
        )
        self.kind = query_run(ports)

    def client(self, _: UUID, params: QueryParams, time_left_s: Callable[[], float]) -> Mce:
        return Mce(self.address, CLIENT_ID, CLIENT_SECRET, params.mid, time_left_s=time_left_s, pool=self.pool)

    def start(self, sql: str) -> UUID:
        self.place.queue.bodies.clear()
        return start_run(self.place.ports, self.kind, TENANT, {"sql_text": sql, "mid": "1"})

    def turn(self) -> StepOutcome:
        outcome = take_turn(self.place.queue.next_baton(), self.kind, self.place.ports)
        assert isinstance(outcome, StepOutcome), outcome
        return outcome

    def cursor(self, run_id: UUID) -> QueryCursor:
        with self.place.owner.connect() as connection:
            found = connection.execute(
                sa.text("select cursor from lane where run_id = :id and key = 'query'"), {"id": run_id}
            )
            return QueryCursor.read(found.scalar_one())


def a_poll(place: Place, *, polls: int, rounds: int) -> list[Figure]:
    with _remote() as address:
        place.owner_runs(*EMPTY)
        asks = Asks(place, address, AT_ONCE)
        run_ids: list[UUID] = []

        def prepare() -> Act:
            place.owner_runs("delete from query_slot")  # whatever is measured has its place
            run_ids.append(asks.start(SQL.format(86_400)))
            for _ in range(6):  # admitted, prepared, started; the first poll keeps the token in memory
                assert asks.turn() is StepOutcome.MOVED
            return act

        def act() -> int:
            for _ in range(polls):
                assert asks.turn() is StepOutcome.MOVED
            return polls

        def bare() -> Act:
            client = asks.client(TENANT, QueryParams(sql_text="x", mid="1"), lambda: 60.0)
            token, task = client.authenticate(), asks.cursor(run_ids[-1]).task_id
            assert task is not None

            def ask() -> int:
                for _ in range(polls):
                    assert client.status(token, task) is not None
                return polls

            return ask

        ours, theirs = Side("product", prepare, place.product_connection), Side("answers", bare)
        prepare()
        found = race([ours, theirs], rounds)
        act_ = prepare()
        flights, statements = trips(place.product_connection(), act_)
        asks.pool.clear()
    return [
        versus("polls of a remote query, against the answers alone", "polls/s", found, "product", "answers"),
        *cpu("a poll of a remote query", found, "product", "answers")[:1],
        Figure(name="network flights per poll", value=flights, unit="", against=2, goal="<= 2"),
        Figure(name="statements per poll", value=statements, unit=""),
    ]


@contextmanager
def _remote() -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, "-m", "infra.local.standins.mce"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address), address
        try:
            yield address
        finally:
            process.terminate()


# Time passes by moving every clock there is: a query of half an hour takes a few seconds.

DUE = sa.text("""
select r.status, extract(epoch from l.next_due_at - now())::float
from run r join lane l on l.run_id = r.id and l.key = 'query' where r.id = :id
""")


def half_an_hour(place: Place, *, seconds: int) -> list[Figure]:
    clock = [0.0]
    place.owner_runs(*EMPTY)
    with MceStandIn(clock=lambda: clock[0]) as standin:
        address, sql = standin.start(), SQL.format(seconds)
        ours, polls = _in_steps(place, Asks(place, address, PollConfig()), sql, clock)
        pool = new_pool()
        theirs = _in_a_loop(address, sql, clock, pool)
        pool.clear()
    label = f"worker-seconds of a query of {seconds / 60:.0f} minutes" if seconds > 60 else "worker-seconds of a query"
    return [
        Figure(name=label, value=ours, unit="s", against=theirs, ratio=ours / theirs, goal="<= 0.01"),
        Figure(name="polls of that query", value=polls, unit="", against=120, goal="<= 120"),
    ]


def _in_steps(place: Place, asks: Asks, sql: str, clock: list[float]) -> tuple[float, int]:
    """How long workers were busy, from the start until the run is ready."""
    run_id, busy_s = asks.start(sql), 0.0
    while True:
        began = time.perf_counter()
        asks.turn()
        busy_s += time.perf_counter() - began
        with place.owner.connect() as connection:
            status, due_s = connection.execute(DUE, {"id": run_id}).one()
        if status == "succeeded":
            return busy_s, asks.cursor(run_id).poll_count
        wait_s = max(0.0, due_s)
        clock[0] += wait_s
        moved = f"interval '{wait_s} s'"
        place.owner_runs(
            f"update lane set next_due_at = next_due_at - {moved}", *(each.format(by=moved) for each in SUBJECT.clocks)
        )


def _in_a_loop(address: str, sql: str, clock: list[float], pool: Pool) -> float:
    """The same questions by a worker that waits for the answer: it is busy while it sleeps."""
    began, slept_s, config = time.perf_counter(), 0.0, PollConfig()
    mce = Mce(address, CLIENT_ID, CLIENT_SECRET, "1", time_left_s=lambda: 60.0, pool=pool)
    token = mce.authenticate()
    assert mce.validate(token, sql).valid
    target = mce.create_target(token, "BTN_loop", [Column(name="id"), Column(name="name")])
    task = mce.start(token, mce.create_query(token, "BTN_loop_query", sql, "BTN_loop", target))
    cursor = QueryCursor()
    while (said := mce.status(token, task)) is None or said.status != "complete":
        wait_s = decide.next_delay_s(cursor, _NEVER, config, 0.5)
        clock[0] += wait_s
        slept_s += wait_s
        cursor = cursor.but(poll_count=cursor.poll_count + 1)
        if slept_s % 900 < wait_s:
            token = mce.authenticate()
    return slept_s + time.perf_counter() - began


_NEVER = datetime(2026, 1, 1, tzinfo=UTC)  # the backoff asks for no time unless a confirmation is due
