"""The errand as a subject: the shop in the simulation, and in tables for processes that are killed."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from shared.kernel import db
from shared.kernel.catalogue import Kind
from shared.kernel.decide import Limits
from shared.kernel.errors import Throttled, Transient
from shared.kernel.model import Turn
from shared.kernel.retry import Backoff
from tests.kinds.errand.kind import NAME, SCHEMA, ErrandPoint, errand_kind, params_of
from tests.simulation.invariants import Violation, require
from tests.simulation.world import TENANTS
from tests.support.subject import Simulated, Subject

if TYPE_CHECKING:
    from tests.chaos.matrix import Play
    from tests.simulation.subjects import SubjectWorld

LIMITS = Limits(max_attempts=10, backoff=Backoff(first_s=0.5, most_s=2.0))

# What the shop has is the truth: kept in tables where processes are killed.
SHOP = """
create table shop_order (key text primary key, ticket text not null, orders integer not null, present boolean not null);
create table shop_visit (what text primary key, times integer not null)
"""
ORDER = sa.text("""
insert into shop_order as o (key, ticket, orders, present) values (:key, :ticket, 1, true)
on conflict (key) do update set orders = o.orders + 1, present = true returning ticket
""")
FOUND = sa.text("select ticket from shop_order where key = :key and present")
TAKE_BACK = sa.text("update shop_order set present = false where key = :key")
VISIT = sa.text("""
insert into shop_visit as v (what, times) values (:what, 1)
on conflict (what) do update set times = v.times + 1 returning times
""")


class PgShop:
    """Closed at a run's first visit, or deaf to its first order, if its ticket says so."""

    def __init__(self, url: str) -> None:
        self._each = db.autocommit(db.connect_engine(url, connect_seconds=2))

    def is_open(self, turn: Turn) -> bool:
        return "closed" not in turn.params["ticket"] or self._one(VISIT, what=str(turn.run_id)) > 1

    def order(self, key: str, ticket: str) -> str:
        if "unheard" in ticket and self._one(VISIT, what=key) == 1:
            raise Transient("the line went dead")
        return str(self._one(ORDER, key=key, ticket=ticket))

    def find(self, key: str) -> str | None:
        return None if (found := self._one(FOUND, key=key)) is None else str(found)

    def take_back(self, key: str) -> None:
        self._one(TAKE_BACK, key=key)

    def _one(self, statement: sa.TextClause, **params: Any) -> Any:
        try:
            with self._each.connect() as connection:
                result = connection.execute(statement, params)
                return result.scalar_one_or_none() if result.returns_rows else None
        except sa.exc.DBAPIError as error:
            raise Transient("the shop did not answer") from error


class SimulatedShop:
    """Every question is a port call, and may meet trouble."""

    def __init__(self, world: SubjectWorld) -> None:
        self.world = world

    def is_open(self, turn: Turn) -> bool:
        world = self.world
        world.call("upstream.open", lambda: None, error=lambda: RuntimeError("unexpected answer"))
        if world.rng.random() < world.scenario.upstream_trouble:
            world.last_fault_at = world.now
            trouble = world.rng.choice(("closed", "closed", "transient", "throttled", "surprise"))
            world.seen[f"shop {trouble}"] += 1
            match trouble:
                case "closed":
                    return False
                case "throttled":
                    raise Throttled("shop", world.rng.choice((1.0, 30.0)))
                case "transient":
                    raise Transient("no answer")
                case _:
                    raise KeyError("surprise")
        return True

    def order(self, key: str, ticket: str) -> str:
        return self.world.create(key)

    def find(self, key: str) -> str | None:
        self.world.seen["looked for a trace"] += 1
        return self.world.find(key)

    def take_back(self, key: str) -> None:
        self.world.remove(None, key)


def simulate(world: SubjectWorld) -> Simulated:
    """Every second run is asked for with the ticket of the one before: it must be that one. Now and then a signal asks."""
    numbers = iter(range(1_000))

    def params(scenario: Any) -> dict[str, Any]:
        return params_of(scenario, next(numbers) // 2)

    said = (
        "insert into signal (tenant_id, name, payload, at) values (:t, 'order.placed', '{\"ticket\": \"heard\"}', :at)"
    )
    with world.owner.connect() as connection:
        connection.execute(sa.text(said), {"t": world.rng.choice(TENANTS), "at": world.clock()})
    world.store.unheard = 1  # type: ignore[attr-defined]
    return Simulated(
        kind=errand_kind(SimulatedShop(world), Limits(max_attempts=12)), params=params, at_the_end=lambda: judge(world)
    )


def judge(world: SubjectWorld) -> None:
    tickets = world.rows("select tenant_id, ticket, count(*) as n from errand group by 1, 2")
    require(all(row["n"] == 1 for row in tickets), "one run per ticket")
    runs = {row["id"]: row for row in world.rows("select id, tenant_id, status, source from run")}
    kept = {row["run_id"] for row in world.rows("select run_id from errand")}
    require(kept == set(runs), "a row under the id of every run, and of no other", kept ^ set(runs))
    heard = [row for row in runs.values() if row["source"] == "event"]
    require(len(heard) == 1, "one signal, one run", len(heard))
    done = Counter((row["run_id"], row["epoch"]) for row in world.rows("select run_id, epoch from errand_done"))
    require(all(times == 1 for times in done.values()), "done once per epoch of the lane", done)
    said = Counter(
        (row["run_id"], row["epoch"])
        for row in world.rows(
            """select (payload ->> 'run_id')::uuid as run_id, (payload ->> 'epoch')::int as epoch from signal
               where name = 'errand.done'"""
        )
    )
    require(said == done, "said exactly when done", said, done)
    for run in runs.values():
        if run["status"] == "succeeded":
            require(any(run_id == run["id"] for run_id, _ in done), "a run that succeeded was done", run["id"])
    foreign = world.rows("select 1 from errand_done d join run r on r.id = d.run_id where r.tenant_id <> d.tenant_id")
    if foreign:
        raise Violation("rows belong to the run's tenant")


def build(engine: sa.Engine, address: Any, outside_url: str) -> Kind:
    return errand_kind(PgShop(outside_url), LIMITS)


# The kill matrix.


def an_errand(play: Play) -> None:
    """Asked for twice, found closed once, paused and resumed; the lane that tidies is woken after the end."""
    run = play.start("succeeded", kind=NAME, ticket="closed at first")
    assert play.start("succeeded", kind=NAME, ticket="closed at first") == run
    play.work()
    play.pass_time(31)
    play.act("pause", run)
    play.act("resume", run)
    play.work()
    play.pass_time(6)
    play.work()
    play.work_until(
        "select 1 from lane where run_id = :run_id and key like 'tidy/%' and seq = 1", run
    )  # it waits for an hour
    play.act("wake_side", run)
    play.work()


def an_order_that_never_arrived(play: Play) -> None:
    """Looked for twice, 15 seconds apart, and placed again."""
    play.start("succeeded", kind=NAME, ticket="unheard at first")
    play.work()
    for wait_s in (3, 20, 16, 6):
        play.pass_time(wait_s)
        play.work()


def a_canceled_errand(play: Play) -> None:
    run = play.start("canceled", kind=NAME, ticket="not any more")
    play.work()
    play.act("cancel", run)
    play.work()


def an_errand_that_was_heard_of(play: Play) -> None:
    play.say("order.placed", {"ticket": "heard"})
    play.tick()
    play.work()


RULES = {
    "one run per ticket": "select tenant_id, ticket from errand group by 1, 2 having count(*) > 1",
    "a row under the id of every errand": """
        select r.id from run r full join errand e on e.run_id = r.id where r.kind = 'errand' and (r.id is null or e.run_id is null)""",
    "an errand is done once per epoch of its lane": """
        select run_id, epoch from errand_done group by 1, 2 having count(*) > 1""",
    "an errand that succeeded was done": """
        select r.id from run r where r.kind = 'errand' and r.status = 'succeeded'
          and not exists (select from errand_done d where d.run_id = r.id)""",
    "it is said exactly when it is done": """
        select d.run_id, d.epoch from errand_done d
        full join (select (payload ->> 'run_id')::uuid as run_id, (payload ->> 'epoch')::int as epoch from signal
                   where name = 'errand.done') s on s.run_id = d.run_id and s.epoch = d.epoch
        where s.run_id is null or d.run_id is null""",
    "an order that left its trace is never placed again": "select key, orders from shop_order where orders > 1",
    "nothing is left in the shop": "select key from shop_order where present",
    "whatever was said was heard": "select id from signal where dispatched_at is null union all select signal_id from hearing",
}


def order(rng: Random) -> dict[str, Any]:
    name = rng.choice(("plain", "plain", "closed", "unheard"))
    return {"ticket": f"{name} {rng.getrandbits(40)}"}


SUBJECT = Subject(
    name=NAME,
    simulate=simulate,
    build=build,
    schema=SCHEMA + SHOP,
    tables=("errand", "errand_done", "shop_order", "shop_visit"),
    rules=RULES,
    scenarios={
        each.__name__: each
        for each in (an_errand, an_order_that_never_arrived, a_canceled_errand, an_errand_that_was_heard_of)
    },
    points=frozenset(ErrandPoint),
    order=order,
)
