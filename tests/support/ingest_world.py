"""The hostile world of the simulation with page ingestion as its kind: a catalogue that changes, steps that die anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any, TypeVar

import sqlalchemy as sa

from shared.kernel import db
from shared.kernel import run as runs
from shared.kernel.answers import storable
from shared.kernel.catalogue import Catalogue
from shared.kernel.decide import Limits
from shared.kernel.errors import Permanent, Throttled, Transient
from shared.kernel.model import Turn
from shared.kernel.tokens import Token, TokenRefused, Tokens
from shared.page_ingest.model import Item, Page, PriceRange
from shared.page_ingest.ports import PageTooBig
from shared.page_ingest.ports import Ports as IngestPorts
from shared.page_ingest.steps import page_ingest
from shared.page_ingest.store import PageStore
from tests.simulation.backends import PgBackend
from tests.simulation.faults import Faults
from tests.simulation.invariants import Invariants, require
from tests.simulation.scenario import Scenario
from tests.simulation.world import FIFO, RELAY, TENANTS, FaultyStore, World

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


class IngestWorld(World):
    def __init__(self, scenario: Scenario, make_store: Any, engines: tuple[sa.Engine, sa.Engine], faults: Faults | None) -> None:  # fmt: skip
        super().__init__(scenario, make_store, faults)
        worker, owner = engines
        self.owner = db.autocommit(owner)
        with self.owner.connect() as connection:
            connection.exec_driver_sql(
                "delete from raw_item; delete from diamond; delete from upstream; delete from account_token"
            )
        names = [f"s{n:03d}" for n in range(self.rng.choice((0, 7, 25, 40)) or 6)]
        prices = [self.rng.randrange(HIGH) * 100 + self.rng.choice((0, 0, 1, 99)) for _ in names]
        changes = self.rng.choice((0, 0, 4, 12))
        self.shelf = Shelf(list(zip(names, prices, strict=True)), set(names), set(names), changes, 0.2)
        self.tokens = 0
        store: Any = FaultyStore(self, PageStore(worker))  # type: ignore[arg-type]
        tokens: Any = FaultyStore(self, Tokens(worker))  # type: ignore[arg-type]
        ingest = IngestPorts(upstream=lambda source, turn, left: Client(self, turn), tokens=tokens, store=store)
        self.kind = page_ingest(ingest, Limits(max_attempts=12))
        self.kinds = Catalogue(self.kind)
        self.ports = replace(self.ports, relay=RELAY.model_copy(update={"fifo_queue": FIFO}))
        self.invariants: Invariants = IngestInvariants(self)

    def _starter(self, params: dict[str, Any]) -> Callable[[], None]:
        wanted = {
            "source": "nivoda",
            "low": 0,
            "high": HIGH,
            "partition_records": 12,
            "page_size": 8,
            "recrawls": 5,
            "policy": {"rule": "at_least", "percent": 50} if params.get("final") else {"rule": "all"},
        }

        def start() -> None:
            run_id = runs.start_run(self.ports, self.kind, TENANTS[params["tenant"]], wanted)
            self.run_ids.append(run_id)

        return start

    def rows(self, sql: str, **params: Any) -> list[Any]:
        with self.owner.connect() as connection:
            return list(connection.execute(sa.text(sql), params).mappings().all())


class Client:
    """The upstream as one step sees it: every question is a port call, and may meet trouble."""

    def __init__(self, world: IngestWorld, turn: Turn) -> None:
        self.world, self.turn = world, turn

    def authenticate(self) -> Token:
        self.world.tokens += 1
        return self._ask("authenticate", lambda: Token(f"token{self.world.tokens}", 3_600))

    def count(self, token: str, prices: PriceRange) -> int:
        return self._ask("count", lambda: len(self.world.shelf.between(prices)))

    def page(self, token: str, prices: PriceRange, offset: int, limit: int) -> Page:
        def effect() -> Page:
            found = self.world.shelf.between(prices)[offset : offset + limit]
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
        world.shelf.change(world.rng)
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


class IngestInvariants(Invariants):
    """What holds for every relay, and what a run of page ingestion must have done at its end."""

    world: IngestWorld

    def at_the_end(self) -> None:
        for run in self.runs.values():
            lanes = [self.lanes[lane_id] for lane_id in self.run_lane_ids[run.id]]
            self.world.seen[f"ended {run.outcome}"] += 1
            consolidations = [lane.key for lane in lanes if lane.key.startswith("consolidate:")]
            require(len(consolidations) <= run.epoch, "one consolidation per epoch", consolidations)
            if run.status != "succeeded":
                continue
            require(consolidations, "a run that succeeded was consolidated", run.id)
            self._rows_of(run, lanes)

    def _rows_of(self, run: Any, lanes: list[Any]) -> None:
        world = self.world
        rows = world.rows("select external_id, tenant_id, price_cents from raw_item where run_id = :id", id=run.id)
        seen = {row["external_id"] for row in rows}
        require(all(row["tenant_id"] == run.tenant_id for row in rows), "rows belong to the run's tenant")
        require(seen <= world.shelf.ever, "nothing is seen that never was", seen - world.shelf.ever)
        present = world.rows(
            "select external_id from diamond where tenant_id = :t and gone_at is null", t=run.tenant_id
        )
        if run.outcome == "complete":
            missing = world.shelf.unchanged - seen
            require(not missing, "a complete run saw every stone that was there throughout", missing)
            require(
                seen <= {row["external_id"] for row in world.rows("select external_id from diamond")}, "consolidated"
            )
            lost = world.shelf.unchanged - {row["external_id"] for row in present}
            require(not lost, "what was there throughout is there", lost)


def ingest_store(engines: tuple[sa.Engine, sa.Engine]) -> Callable[[World], Any]:
    return lambda world: PgBackend(world, *engines)
