"""One case of the kill matrix: a scenario whose worker is killed -9 at a named point, and a fresh worker that goes on."""

from __future__ import annotations

import pickle
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from shared.kernel.points import Point
from tests.chaos.checks import OPEN_WORK, violations
from tests.chaos.hub import BATONS, FIFO, MAX_RECEIVE_COUNT, QUEUES, Hub
from tests.chaos.scenarios import scenarios, subject_of
from tests.chaos.stage import Stage, let_calls_end, pass_time
from tests.chaos.worker import PULL_LEASE_S, Duty
from tests.support.databases import as_user
from tests.support.subject import OpenOutside, Subject

Kill = tuple[str, int]
TICK_EVERY_S = 60.0
REPAIRED_WITHIN_S = 300.0
MOST_ROUNDS = 100

# A worker that was lost before it committed has carried nothing.
PULLED = {
    "every parcel is carried once to each of its stages": """
        select r.id, r.status, c.stages from run r
        left join (select run_id, array_agg(stage order by stage) as stages from carried group by run_id) c on c.run_id = r.id
        where r.kind = 'parcel' and c.stages is distinct from
            (select array_agg(n) from generate_series(0, coalesce((r.params ->> 'stages')::int, 1) - 1) n)""",
    "nothing that has ended is offered": """
        select lane_id from offer where lane_id in (select id from lane where status <> 'active')""",
}

EPOCH = sa.text("select epoch from run where id = :run_id")
STATUS = sa.text("select status from run where id = :run_id")


class Died(Exception):
    """The worker was killed before it answered."""


@dataclass(slots=True)
class Result:
    """What one case showed."""

    hits: Counter[str] = field(default_factory=Counter)
    deaths: int = 0
    waited_s: float = 0.0
    violations: list[str] = field(default_factory=list)

    @property
    def effort(self) -> float:
        """How long it takes to play: every minute that passes is a tick."""
        return self.hits.total() + self.waited_s / 10


class Puppet:
    """The one worker of the moment."""

    def __init__(
        self,
        stage: Stage,
        hub: Hub,
        number: int,
        die_at: Kill | None = None,
        stop_at: Kill | None = None,
        outside: Mapping[str, Any] | None = None,
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(20)
            self.pid = stage.zygote.fork(
                Duty(
                    role="obey",
                    hub=hub.address,
                    database_url=as_user(stage.url, "baton_worker"),
                    outside_url=stage.url,
                    control_port=listener.getsockname()[1],
                    seed=number,
                    die_at=die_at,
                    stop_at=stop_at,
                    outside=outside or {},
                )
            )
            self._socket, _ = listener.accept()
        self._socket.settimeout(60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rwb")
        self._zygote = stage.zygote

    def ask(self, name: str, *args: Any) -> Any:
        try:
            self.tell(name, *args)
            return pickle.load(self._file)
        except (EOFError, ConnectionError) as error:
            raise Died from error

    def tell(self, name: str, *args: Any) -> None:
        pickle.dump((name, args), self._file)
        self._file.flush()

    def end(self) -> None:
        self._zygote.kill(self.pid)
        self._file.close()
        self._socket.close()


class Play:
    """What a scenario may do. A request that dies with its worker is asked for again, as a person would."""

    def __init__(
        self, stage: Stage, hub: Hub, kills: Sequence[Kill], subject: Subject | None, outside: OpenOutside
    ) -> None:
        self.result = Result()
        self._stage = stage
        self._hub = hub
        self._kills = list(kills)
        self._subject, self._outside = subject, outside
        self._expected: dict[UUID, str] = {}
        self._tenants: dict[UUID, int] = {}
        self._worker = self._next_worker()

    def _next_worker(self) -> Puppet:
        kill = self._kills.pop(0) if self._kills else None
        known = {} if self._subject is None else {self._subject.name: self._outside.address}
        return Puppet(self._stage, self._hub, self.result.deaths, kill, outside=known)

    def _ask(self, name: str, *args: Any) -> Any:
        while True:
            try:
                return self._worker.ask(name, *args)
            except Died:
                self.result.deaths += 1
                self._worker.end()
                self._worker = self._next_worker()

    def start(self, expected: str, tenant: int = 0, kind: str = "tally", **params: Any) -> UUID:
        run_id: UUID = self._ask("start", tenant, params, kind)
        self._expected[run_id], self._tenants[run_id] = expected, tenant
        return run_id

    def say(self, name: str, payload: dict[str, Any], tenant: int = 0) -> None:
        """An event from outside: asked for again it is the same one."""
        self._ask("say", UUID(int=0x5A1), tenant, name, payload)

    def act(self, name: str, run_id: UUID) -> None:
        self._ask("act", name, self._tenants[run_id], run_id)

    def work(self) -> None:
        self._ask("drain")

    def work_for_a_minute(self) -> None:
        self.work()
        self.pass_time(TICK_EVERY_S)
        self.tick()

    def work_until(self, found: str, run_id: UUID) -> None:
        """Minute by minute, until the statement finds a row."""
        for _ in range(MOST_ROUNDS):
            with self._stage.connect() as connection:
                if connection.execute(sa.text(found), {"run_id": run_id}).all():
                    return
            self.work_for_a_minute()

    def was_retried(self, run_id: UUID) -> bool:
        with self._stage.connect() as connection:
            return bool(connection.execute(EPOCH, {"run_id": run_id}).scalar_one() > 1)

    def tick(self) -> None:
        self._ask("tick")

    def sweep(self) -> None:
        self._ask("sweep")

    def lose_a_worker(self) -> None:
        """One takes what is offered, and is never heard of again."""
        self._ask("take")
        self.pass_time(PULL_LEASE_S + 1)

    def purge(self) -> None:
        for queue in BATONS:
            self._hub.queue.purge(queue)

    def pass_time(self, seconds: float) -> None:
        self.result.waited_s += seconds
        with self._stage.connect() as connection:
            pass_time(connection, self._hub, seconds)

    def wear_out_messages(self) -> None:
        """Receive what is there as often as the queue allows, and never delete it."""
        for _ in range(MAX_RECEIVE_COUNT):
            while self._hub.queue.receive(FIFO, 10):
                pass
            self._hub.skip(QUEUES[FIFO].visibility_s)

    def finish(self) -> None:
        """Tick and work every minute until nothing is open; then sweep."""
        for _ in range(MOST_ROUNDS):
            self.tick()
            self.work()
            if not self._open_work():
                break
            self.pass_time(TICK_EVERY_S)
        with self._stage.connect() as connection:
            let_calls_end(connection)
        self.sweep()
        self.result.hits = self._worker.ask("hits")

    def _open_work(self) -> int:
        with self._stage.connect() as connection:
            return int(connection.execute(OPEN_WORK).scalar_one())

    def judge(self) -> None:
        with self._stage.connect() as connection:
            rules = PULLED if self._subject is None else self._subject.rules
            self.result.violations = violations(connection, rules)
            self.result.violations += self._outside.violations(connection)
            for run_id, expected in self._expected.items():
                status = connection.execute(STATUS, {"run_id": run_id}).scalar_one()
                if status != expected:
                    self.result.violations.append(f"a kill changes no outcome: {status} instead of {expected}")

    def end(self) -> None:
        self._worker.end()


def play(stage: Stage, name: str, kills: Sequence[Kill] = ()) -> Result:
    """Run one scenario on an empty database."""
    stage.clear()
    subject = subject_of(name)
    with Hub(Random(name)) as hub, nullcontext(OpenOutside()) if subject is None else subject.outside() as outside:
        performance = Play(stage, hub, kills, subject, outside)
        try:
            scenarios()[name](performance)
            performance.finish()
            performance.judge()
        finally:
            performance.end()
    return performance.result


def check(clean: Result, result: Result, kills: Sequence[Kill]) -> list[str]:
    """What a case with kills must show besides the rules: they happened, and cost no more than the promised minutes."""
    found = list(result.violations)
    if not result.deaths:
        found.append("the worker reached its end alive")
    # A start whose answer was lost is asked for again; the first run then goes its own way, however long that is.
    asked_twice = any(point is Point.START_COMMITTED for point, _ in kills)
    allowed_s = clean.waited_s + len(kills) * REPAIRED_WITHIN_S
    if not asked_twice and result.waited_s > allowed_s:
        found.append(
            f"moves again within {REPAIRED_WITHIN_S:.0f} s: {result.waited_s:.0f} s instead of {allowed_s:.0f}"
        )
    return found
