"""A source as a subject: a list that changes in the simulation, and a stand-in for processes that are killed.

It is page ingestion by a file, and shares its kind: the deployed example, with smaller windows and pages and without its pace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from infra.local.standins.sources import EPOCH, OpenAlex, SourcesStandIn, stock
from shared.kernel.catalogue import Kind
from shared.kernel.decide import Limits
from shared.kernel.errors import Permanent, Throttled, Transient
from shared.kernel.http import Answer
from shared.kernel.tokens import Tokens
from shared.page_ingest.model import KIND
from shared.page_ingest.ports import Ports as IngestPorts
from shared.page_ingest.reader.build import Clients
from shared.page_ingest.reader.client import Client
from shared.page_ingest.reader.files import FOLDER
from shared.page_ingest.reader.steps import Ports
from shared.page_ingest.reader.store import SourceStore
from shared.page_ingest.source.compile import compile_source
from shared.page_ingest.steps import page_ingest
from shared.page_ingest.store import PageStore
from tests.simulation.invariants import require
from tests.support.source_model import DirectWire, OneFile
from tests.support.subject import OpenOutside, Simulated, Subject

if TYPE_CHECKING:
    from tests.chaos.matrix import Play
    from tests.simulation.subjects import SubjectWorld

DAYS = 28
SPAN = {"from": "2025-01-01", "to": "2025-01-29"}
TROUBLES = ("transient", "transient", "throttled", "surprise", "too big", "permanent")


def the_file() -> OneFile:
    text = Path(FOLDER / "openalex.toml").read_text().replace('rate = { pace = "10/s" }', "")
    return OneFile(compile_source("openalex.toml", text.encode()))


class Changing:
    """The truth, and what of it was there throughout."""

    def __init__(self, rng: Random, changes: int) -> None:
        self.api = OpenAlex(rows=stock(rng.choice((0, 7, 25, 40)), rng.randrange(1_000), DAYS))
        self.unchanged = {self.key(row) for row in self.api.rows}
        self.ever = set(self.unchanged)
        self.changes_left = changes

    def key(self, row: Any) -> str:
        return str(self.api.body(row)["id"])

    def change(self, rng: Random) -> None:
        if not self.changes_left or rng.random() >= 0.2:
            return
        self.changes_left -= 1
        if self.api.rows and rng.random() < 0.4:
            row = rng.choice(self.api.rows)
            self.api.delete(row)
            self.unchanged.discard(self.key(row))
        else:
            row = self.api.insert(EPOCH + timedelta(seconds=rng.randrange(DAYS * 86_400)))
            row.id = 1_000 + len(self.ever)
            self.ever.add(self.key(row))


class SimWire(DirectWire):
    """Every question is a port call, and may meet trouble."""

    def __init__(self, world: SubjectWorld, shelf: Changing) -> None:
        super().__init__(shelf.api.answer)
        self.world, self.shelf = world, shelf

    def send(self, host: str, method: str, target: str, **how: Any) -> Answer:
        world = self.world
        self.shelf.change(world.rng)
        ask: Callable[[], Answer] = lambda: DirectWire.send(self, host, method, target, **how)  # noqa: E731 - the shape of a call
        answer = world.call("upstream.ask", ask, error=lambda: Transient("no answer"))
        if world.rng.random() < world.scenario.upstream_trouble / 3:
            world.last_fault_at = world.now
            trouble = world.rng.choice(TROUBLES)
            world.seen[f"upstream {trouble}"] += 1
            match trouble:
                case "throttled":
                    raise Throttled("openalex", world.rng.choice((1.0, 30.0, 120.0)))
                case "surprise":
                    raise KeyError("surprise")
                case "too big":
                    return Answer(413, {}, b"")
                case "permanent" if world.rng.random() < 0.1:
                    raise Permanent("no such thing")
            raise Transient("no answer")
        return answer


def nobody(*_: object) -> Any:
    raise Permanent("the built-in catalogue is not asked here")


def kind_of(engine: sa.Engine, ports: Ports, store: Any = None) -> Kind:
    built_in = IngestPorts(upstream=nobody, tokens=Tokens(engine), store=store or PageStore(engine))
    return page_ingest(built_in, Limits(max_attempts=12), lambda: ports)


def simulate(world: SubjectWorld) -> Simulated:
    shelf = Changing(world.rng, world.rng.choice((0, 0, 4, 12)))
    files = the_file()

    def client(compiled: Any, *_: Any) -> Client:
        return Client(source=compiled.source, settings={}, secret={}, wire=SimWire(world, shelf))

    ports = Ports(
        files=files, client=client, tokens=world.faulty(Tokens(world.worker)), store=world.faulty(SourceStore(world.worker))
    )  # fmt: skip

    def params(scenario: Mapping[str, Any]) -> dict[str, Any]:
        policy = {"rule": "at_least", "percent": 50} if scenario.get("final") else {"rule": "all"}
        tighten = {"works.size": 4, "works.window": "P14D"}
        return {"source": "openalex", **SPAN, "tighten": tighten, "policy": policy, "recrawls": 5}

    return Simulated(kind=kind_of(world.worker, ports), params=params, at_the_end=lambda: judge(world, shelf))


def judge(world: SubjectWorld, shelf: Changing) -> None:
    """What a run of a source must have done at its end."""
    for run in world.invariants.runs.values():
        lanes = [world.invariants.lanes[lane_id] for lane_id in world.invariants.run_lane_ids[run.id]]
        world.seen[f"ended {run.outcome}"] += 1
        consolidations = [lane.key for lane in lanes if lane.key.startswith("consolidate/")]
        require(len(consolidations) <= run.epoch, "one consolidation of a list per epoch", consolidations)
        if run.status == "succeeded":
            require(consolidations, "a run that succeeded was consolidated", run.id)
            require(run.outcome in ("complete", "drifted", "partial"), "never more than the best claim", run.outcome)
            judge_rows(world, shelf, run)


def judge_rows(world: SubjectWorld, shelf: Changing, run: Any) -> None:
    rows = world.rows("select key, tenant_id from source_raw where run_id = :id and resource <> ''", id=run.id)
    seen = {row["key"] for row in rows}
    require(all(row["tenant_id"] == run.tenant_id for row in rows), "rows belong to the run's tenant")
    require(seen <= shelf.ever, "nothing is seen that never was", seen - shelf.ever)
    if run.outcome == "complete":
        missing = shelf.unchanged - seen
        require(not missing, "a complete run saw every row that was there throughout", missing)
        present = world.rows(
            "select source_key from openalex_works where tenant_id = :t and gone_at is null", t=run.tenant_id
        )
        lost = shelf.unchanged - {row["source_key"] for row in present}
        require(not lost, "what was there throughout is there", lost)


# Processes that are killed read a stand-in in a process that nobody kills.

OUTCOMES = sa.text("select id, outcome from run")
RAW = sa.text("select key from source_raw where run_id = :run_id and resource <> ''")
KEPT = sa.text("select source_key from openalex_works where gone_at is null")
PHASES = sa.text("select count(*) from lane where run_id = :run_id and key like :like")


@contextmanager
def outside() -> Iterator[OpenOutside]:
    """It throttles once, so that a gate closes, and fails now and then."""
    with SourcesStandIn(apis={"openalex": OpenAlex(rows=stock(60, 3, DAYS))}) as standin:
        standin.misbehave("throttle", after=9, budget=1, retry_after="200")
        standin.misbehave("server_error", every=7, budget=2)
        yield OpenOutside(standin.start(), lambda connection: differences(standin, connection))


def build(engine: sa.Engine, address: str, outside_url: str) -> Kind:
    store = SourceStore(engine)
    vault: Any = None  # nobody logs in
    ports = Ports(files=the_file(), client=Clients(engine, vault, store, address), tokens=Tokens(engine), store=store)
    return kind_of(engine, ports)


def differences(standin: SourcesStandIn, connection: sa.Connection) -> list[str]:
    """A run whose start was asked for twice is there twice; each must have read everything."""
    api = standin.apis["openalex"]
    truth = sorted(str(api.body(row)["id"]) for row in api.rows)
    found = [f"the stand-in was surprised: {standin.surprises[:3]}"] if standin.surprises else []
    for run_id, outcome in connection.execute(OUTCOMES).all():
        if outcome != "complete":
            found.append(f"a run is complete: {outcome}")
        found += _differences("raw rows", connection.execute(RAW, {"run_id": run_id}).scalars().all(), truth)
        for phase, least, most in (("part/%", 2, 9), ("audit/%", 1, 9), ("consolidate/%", 1, 1)):
            lanes = connection.execute(PHASES, {"run_id": run_id, "like": phase}).scalar_one()
            if not least <= lanes <= most:
                found.append(f"a run has {least} to {most} lanes {phase}: {lanes}")
    return found + _differences("rows", connection.execute(KEPT).scalars().all(), truth)


def _differences(what: str, found: Sequence[str], truth: Sequence[str]) -> list[str]:
    if sorted(found) == truth:
        return []
    return [f"the {what} are the list: {len(found)} rows, {len(set(truth) - set(found))} missing"]


def a_source(play: Play) -> None:
    """Two windows of a list that throttles once; paused and resumed on its way."""
    tighten = {"works.size": 10, "works.window": "P14D"}
    wanted: dict[str, Any] = {"source": "openalex", "tighten": tighten, **SPAN}
    run = play.start("succeeded", kind=KIND, **wanted)
    play.work()
    play.act("pause", run)
    play.act("resume", run)
    play.work()


SUBJECT = Subject(
    name="source",
    simulate=simulate,
    build=build,
    outside=outside,
    tables=("source_raw", "source_quarantine", "source_mark", "openalex_works"),
    scenarios={a_source.__name__: a_source},
)
