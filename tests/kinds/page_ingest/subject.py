"""Page ingestion as a subject: a catalogue that changes in the simulation, and a stand-in for processes that are killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa

from infra.local.standins.nivoda import NivodaStandIn
from shared.kernel.answers import storable
from shared.kernel.catalogue import Kind
from shared.kernel.decide import Limits
from shared.kernel.errors import Permanent, Throttled, Transient
from shared.kernel.model import Turn
from shared.kernel.tokens import Token, TokenRefused, Tokens
from shared.page_ingest.adapters.nivoda import Nivoda
from shared.page_ingest.model import KIND, Item, Page, PriceRange
from shared.page_ingest.ports import PageTooBig
from shared.page_ingest.ports import Ports as IngestPorts
from shared.page_ingest.steps import page_ingest
from shared.page_ingest.store import PageStore
from tests.simulation.invariants import require
from tests.support.subject import OpenOutside, Simulated, Subject

if TYPE_CHECKING:
    from tests.chaos.matrix import Play
    from tests.simulation.subjects import SubjectWorld

T = TypeVar("T")
HIGH = 100
TROUBLES = ("transient", "transient", "throttled", "surprise", "token", "too big", "permanent")


@dataclass(slots=True)
class Shelf:
    """Stones in the order of their making, with their prices in cents; the oldest truth there is."""

    rows: list[tuple[str, int]]
    unchanged: set[str]
    ever: set[str]
    changes_left: int
    rate: float
    tokens: int = 0

    def change(self, rng: Random) -> None:
        if not self.changes_left or rng.random() >= self.rate:
            return
        self.changes_left -= 1
        at = rng.randrange(len(self.rows))
        name, _ = self.rows[at]
        match rng.choice(("delete", "insert", "reprice", "swap")):
            case "delete" if len(self.rows) > 5:
                del self.rows[at]
                self.unchanged.discard(name)
            case "swap":  # an order that nobody promised: both stones are there throughout
                other = rng.randrange(len(self.rows))
                self.rows[at], self.rows[other] = self.rows[other], self.rows[at]
            case "reprice":
                self.rows[at] = (name, rng.randrange(HIGH * 100))
                self.unchanged.discard(name)
            case _:
                self.rows.append((f"new{self.changes_left}", rng.randrange(HIGH * 100)))
                self.ever.add(self.rows[-1][0])

    def between(self, prices: PriceRange) -> list[tuple[str, int]]:
        return [row for row in self.rows if prices.low * 100 <= row[1] <= prices.high * 100]


class Client:
    """The upstream as one step sees it: every question is a port call, and may meet trouble."""

    def __init__(self, world: SubjectWorld, shelf: Shelf, turn: Turn) -> None:
        self.world, self.shelf, self.turn = world, shelf, turn

    def authenticate(self) -> Token:
        self.shelf.tokens += 1
        return self._ask("authenticate", lambda: Token(f"token{self.shelf.tokens}", 3_600))

    def count(self, token: str, prices: PriceRange) -> int:
        return self._ask("count", lambda: len(self.shelf.between(prices)))

    def page(self, token: str, prices: PriceRange, offset: int, limit: int) -> Page:
        def effect() -> Page:
            found = self.shelf.between(prices)[offset : offset + limit]
            items = tuple(
                Item(
                    external_id=name,
                    offer_id=name,
                    price_cents=price,
                    body=storable({"diamond": {"id": name}, "price": price}),
                )
                for name, price in found
                if prices.holds(price)
            )
            return Page(items=items, fetched=len(found), ids=tuple(name for name, _ in found))

        return self._ask("page", effect)

    def _ask(self, what: str, effect: Callable[[], T]) -> T:
        world = self.world
        self.shelf.change(world.rng)
        answer = world.call(f"upstream.{what}", effect, error=lambda: Transient("no answer"))
        if world.rng.random() < world.scenario.upstream_trouble / 3:
            world.last_fault_at = world.now
            self._trouble(what, world.rng.choice(TROUBLES))
        return answer

    def _trouble(self, what: str, trouble: str) -> None:
        self.world.seen[f"upstream {trouble}"] += 1
        match trouble:
            case "throttled":
                raise Throttled("nivoda", self.world.rng.choice((1.0, 30.0, 120.0)))
            case "surprise":
                raise KeyError("surprise")
            case "token" if what != "authenticate":
                raise TokenRefused("not any more")
            case "too big" if what == "page":
                raise PageTooBig("too much")
            case "permanent" if self.world.rng.random() < 0.1:
                raise Permanent("no such thing")
        raise Transient("no answer")


def simulate(world: SubjectWorld) -> Simulated:
    names = [f"s{n:03d}" for n in range(world.rng.choice((0, 7, 25, 40)) or 6)]
    prices = [world.rng.randrange(HIGH) * 100 + world.rng.choice((0, 0, 1, 99)) for _ in names]
    changes = world.rng.choice((0, 0, 4, 12))
    shelf = Shelf(list(zip(names, prices, strict=True)), set(names), set(names), changes, 0.2)
    ingest = IngestPorts(
        upstream=lambda source, turn, left: Client(world, shelf, turn),
        tokens=world.faulty(Tokens(world.worker)),
        store=world.faulty(PageStore(world.worker)),
    )

    def params(scenario: Any) -> dict[str, Any]:
        policy = {"rule": "at_least", "percent": 50} if scenario.get("final") else {"rule": "all"}
        shape = {"source": "nivoda", "low": 0, "high": HIGH, "partition_records": 12, "page_size": 8, "recrawls": 5}
        return {**shape, "policy": policy}

    kind = page_ingest(ingest, Limits(max_attempts=12))
    return Simulated(kind=kind, params=params, at_the_end=lambda: judge(world, shelf))


def judge(world: SubjectWorld, shelf: Shelf) -> None:
    """What a run of page ingestion must have done at its end."""
    for run in world.invariants.runs.values():
        lanes = [world.invariants.lanes[lane_id] for lane_id in world.invariants.run_lane_ids[run.id]]
        world.seen[f"ended {run.outcome}"] += 1
        consolidations = [lane.key for lane in lanes if lane.key.startswith("consolidate:")]
        require(len(consolidations) <= run.epoch, "one consolidation per epoch", consolidations)
        if run.status == "succeeded":
            require(consolidations, "a run that succeeded was consolidated", run.id)
            judge_rows(world, shelf, run)


def judge_rows(world: SubjectWorld, shelf: Shelf, run: Any) -> None:
    rows = world.rows("select external_id, tenant_id, price_cents from raw_item where run_id = :id", id=run.id)
    seen = {row["external_id"] for row in rows}
    require(all(row["tenant_id"] == run.tenant_id for row in rows), "rows belong to the run's tenant")
    require(seen <= shelf.ever, "nothing is seen that never was", seen - shelf.ever)
    present = world.rows("select external_id from diamond where tenant_id = :t and gone_at is null", t=run.tenant_id)
    if run.outcome == "complete":
        missing = shelf.unchanged - seen
        require(not missing, "a complete run saw every stone that was there throughout", missing)
        kept = {row["external_id"] for row in world.rows("select external_id from diamond")}
        require(seen <= kept, "consolidated")
        lost = shelf.unchanged - {row["external_id"] for row in present}
        require(not lost, "what was there throughout is there", lost)


# Processes that are killed read a stand-in in a process that nobody kills.

STONES = 80

OUTCOMES = sa.text("select id, outcome from run")
RAW = sa.text("select external_id, price_cents from raw_item where run_id = :run_id")
DIAMONDS = sa.text("select external_id, price_cents from diamond where gone_at is null")
GONE = sa.text("select count(*) from diamond where gone_at is not null")
PHASES = sa.text("select count(*) from lane where run_id = :run_id and key like :like")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    base_url: str
    username: str
    password: str


@contextmanager
def outside() -> Iterator[OpenOutside]:
    """It shows empty pages, so that turns wait in the delay queue, and throttles once, so that a gate closes."""
    with NivodaStandIn(stones=STONES) as standin:
        standin.misbehave("empty_page", every=4, budget=3)
        standin.misbehave("throttle", after=9, budget=1, retry_after="200")
        address = Address(base_url=standin.start(), username=standin.username, password=standin.password)
        yield OpenOutside(address, lambda connection: differences(standin, connection))


def build(engine: sa.Engine, address: Address, outside_url: str) -> Kind:
    def upstream(source: str, turn: Turn, time_left_s: Callable[[], float]) -> Nivoda:
        return Nivoda(address.base_url, address.username, address.password, time_left_s=time_left_s)

    return page_ingest(IngestPorts(upstream=upstream, tokens=Tokens(engine), store=PageStore(engine)))


def differences(standin: NivodaStandIn, connection: sa.Connection) -> list[str]:
    """A run whose start was asked for twice is there twice; each must have read everything."""
    stones = {(stone.id, stone.price_cents) for stone in standin.stones}
    found = [f"the stand-in was surprised: {standin.surprises[:3]}"] if standin.surprises else []
    for run_id, outcome in connection.execute(OUTCOMES).all():
        if outcome != "complete":
            found.append(f"an ingestion is complete: {outcome}")
        found += _differences("raw rows", connection.execute(RAW, {"run_id": run_id}).all(), stones)
        for phase, least, most in (("part:%", 3, 99), ("audit:%", 1, 99), ("consolidate:%", 1, 1)):
            lanes = connection.execute(PHASES, {"run_id": run_id, "like": phase}).scalar_one()
            if not least <= lanes <= most:
                found.append(f"an ingestion has {least} to {most} lanes {phase}: {lanes}")
    found += _differences("diamonds", connection.execute(DIAMONDS).all(), stones)
    if gone := connection.execute(GONE).scalar_one():
        found.append(f"no stone is judged gone that is there: {gone}")
    return found


def _differences(what: str, found: Sequence[Any], stones: set[tuple[str, int]]) -> list[str]:
    rows = sorted((external_id, price_cents) for external_id, price_cents in found)
    if rows == sorted(stones):
        return []
    missing, foreign = stones - set(rows), set(rows) - stones
    return [f"the {what} are the catalogue: {len(rows)} rows, {len(missing)} missing, {len(foreign)} foreign"]


def an_ingestion(play: Play) -> None:
    """A few partitions of a catalogue that throttles once and shows empty pages; paused and resumed on its way."""
    wanted: dict[str, Any] = {"source": "nivoda", "low": 200, "high": 20_000, "partition_records": 30, "page_size": 10}
    run = play.start("succeeded", kind=KIND, **wanted)
    play.work()
    play.act("pause", run)
    play.act("resume", run)
    play.work()


SUBJECT = Subject(
    name=KIND,
    simulate=simulate,
    build=build,
    outside=outside,
    tables=("raw_item", "diamond", "upstream", "account_token"),
    clocks=("update account_token set refresh_until = refresh_until - {by}, token_until = token_until - {by}",),
    scenarios={an_ingestion.__name__: an_ingestion},
)
