"""Guards that tests of jobs stand on the product: a migrated Postgres, real processes, and a worker's own loop."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson

from shared.job_queue import store
from shared.job_queue.adapters.process import ProcessRunner
from shared.job_queue.adapters.schemas import check_schema
from shared.job_queue.build import build_ports
from shared.job_queue.decide import checked_schema
from shared.job_queue.model import Command, Finished
from shared.job_queue.steps import job_kind
from shared.kernel import run
from shared.kernel.catalogue import Catalogue
from shared.kernel.clock import new_id
from shared.kernel.model import By, Taking, Turn
from shared.kernel.offers import PgOffers
from shared.kernel.ports import Ports, Store
from shared.kernel.step import Outcome, do_turn
from shared.kernel.store import PgStore
from shared.kernel.tick import TickReport, tick
from tests.support.databases import ServerAdmin
from tests.support.house import ALICE, House, tally_database
from tests.support.together import do_together

QUEUE = "default"
SCRIPT = Path(__file__).with_name("job_command.py")


class FakeRunner:
    """Runs nothing: says what was asked, and ends as the test wants."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[str], Mapping[str, str]]] = []
        self.ends: Callable[..., Finished] = lambda *_: Finished(exit_code=0)

    def run(self, argv: Any, env: Mapping[str, str], timeout_s: float, beat: Any, left_s: Any = None) -> Finished:
        self.asked.append((list(argv), env))
        return self.ends(argv, env, timeout_s, beat)


class Office(House):
    """A house where jobs are done. `runner` is a fake unless a test takes the real one."""

    def _furnish(self) -> None:
        super()._furnish()
        self.runner = FakeRunner()
        self.really = False
        self.manages = True
        self.stopping = False
        self.ports = self.ports_of(self.store)

    def ports_of(self, store: Store) -> Ports:
        assert isinstance(store, PgStore)
        return Ports(store=store, queue=self.queue, relay=self.relay, offers=PgOffers(store._engine))

    @property
    def job(self) -> Any:
        runner: Any = ProcessRunner(beat_s=0.1, grace_s=0.5) if self.really else self.runner
        built = build_ports(
            self.store._engine,
            {"PYTHONPATH": str(Path.cwd())},
            runner=runner,
            worker_id="w1",
            stopping=lambda: self.stopping,
        )
        extra = {"test": Command("test", [sys.executable, str(SCRIPT)], ())}
        object.__setattr__(built, "commands", {**built.commands, **extra})
        return job_kind(built)

    def empty(self) -> None:
        super().empty()
        for table in ("job_attempts", "offer", "pull_line", "pull_tenant", "job_workers", "job_definition_versions",
                      "job_definitions", "pull_class", "pull_queue"):  # fmt: skip
            self.sql(f"delete from {table}")

    def define(self, key: str = "test", **said: Any) -> UUID:
        definition_id = new_id()
        schema = checked_schema(said.pop("arg_schema", {
            "type": "object", "additionalProperties": False,
            "properties": {"what": {"type": "string"}, "n": {"type": "integer"}},
        }))  # fmt: skip
        check_schema(schema)
        row = {
            "id": definition_id, "key": key, "description": "", "command": "test", "timeout_seconds": 60, "max_attempts": 3,
            "queue": QUEUE, "executor": "worker", "concurrency_limit": None, "is_active": True, **said,
        }  # fmt: skip
        text = orjson.dumps({**row, "id": str(definition_id), "arg_schema": schema, "version": 1}).decode()
        self.sql("insert into super_admin (subject) values ('ada') on conflict do nothing")
        with self._own_engines[0].begin() as connection:
            assert connection.execute(store.PUT_DEFINITION, {"subject": "ada", "definition": text}).scalar_one()
        return definition_id

    def add(self, tenant: UUID = ALICE, key: str = "test", **asked: Any) -> UUID:
        by = By(source="api", manages=self.manages)
        return run.start_run(self.ports, self.job, tenant, {"definition_key": key, **asked}, by)

    def take(self, most: int = 1) -> list[Turn]:
        assert self.ports.offers is not None
        return self.ports.offers.take(QUEUE, most, new_id(), 60, "w1")

    def take_one(self) -> Turn:
        (turn,) = self.take()
        return turn

    def do(self, turn: Turn) -> Outcome:
        return do_turn(turn, self.job, self.ports)

    def do_together(
        self, turns: Sequence[Turn], taking: Taking | None = None, ports: Ports | None = None, kind: Any = None
    ) -> list[Outcome]:
        return do_together(turns, kind or self.job, ports or self.ports, taking)

    def work(self) -> list[Outcome]:
        done: list[Outcome] = []
        while turns := self.take():
            done += [self.do(turn) for turn in turns]
        return done

    def ticks(self) -> TickReport:
        return tick(self.ports, Catalogue(self.job))

    def lose(self, turn: Turn) -> None:
        self.sql("update lane set lease_until = now() - interval '1 s' where id = :id", id=turn.lane_id)

    def pass_time(self, seconds: float = 10_000) -> None:
        self.sql(
            """update lane set next_due_at = next_due_at - make_interval(secs => :s)
               where class_id is not null and status = 'active' and claim_token is null""",
            s=seconds,
        )

    def seen(self, job_id: UUID) -> Any:
        (row,) = self.sql("select * from jobs where id = :id", id=job_id)
        return row

    def attempts(self, job_id: UUID) -> list[Any]:
        return self.sql("select * from job_attempts where job_id = :id order by attempt_no", id=job_id)


def a_taking(most: int = 1) -> Taking:
    return Taking(QUEUE, 60, "w1", new_id(), most)


@contextmanager
def job_office(server: ServerAdmin, template: str) -> Iterator[Office]:
    with tally_database(server, template) as url:
        office = Office(url)
        try:
            yield office
        finally:
            office.close()
