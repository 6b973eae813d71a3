"""Search cycles as a subject: two boards in the simulation, and a stand-in for processes that are killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import sqlalchemy as sa

from infra.local.standins.boards import CLIENT_ID, CLIENT_SECRET, InfoJobsStandIn
from shared.kernel.catalogue import Kind
from shared.kernel.decide import Limits
from shared.kernel.errors import Permanent, Throttled, Transient
from shared.kernel.tokens import TokenRefused
from shared.search.adapters.boards import InfoJobs
from shared.search.model import CLIENTS, KIND, Job, Offer, Page, SearchConfig, query_key
from shared.search.points import SearchPoint
from shared.search.ports import Ports
from shared.search.steps import search
from shared.search.store import SearchStore
from tests.simulation.invariants import require
from tests.simulation.world import TENANTS
from tests.support.subject import OpenOutside, Simulated, Subject

if TYPE_CHECKING:
    from tests.chaos.matrix import Play
    from tests.simulation.subjects import SubjectWorld

SIZE = 3
ENOUGH = 14  # pages; then the searches are paused, so that the last cycle has no next
TROUBLES = ("transient", "transient", "transient", "throttled", "surprise", "refused", "permanent")
CONFIG = SearchConfig(cycle_gap_s=60, rate_limit_pause_s=60, refused_pause_s=60)
CONNECTIONS = {"infojobs": UUID(int=0xC1), "adzuna": UUID(int=0xC2)}

SAVE = sa.text("""
insert into saved_search (id, tenant_id, name, client, connection, params, query_key, max_pages, max_offers, every_s,
                          fresh_within_s, seed_floor, created_at, updated_at)
values (:id, :tenant, :client, :client, :connection, '{}', :key, :max_pages, 1000, 3600, 3600, :floor, :now, :now)""")
SAVE_STATE = sa.text("""
insert into query_state (tenant_id, query_key, search_id, client, account, zone, seed_floor, next_due_at, fresh_at)
values (:tenant, :key, :id, :client, :account, :zone, :floor, :now, :now)""")

# A process that stands still in the middle of its commit must not make whoever pauses stand still too.
PAUSE = """
update query_state set active = false where ctid = any(array(
    select ctid from query_state where active for update skip locked))"""


def save(connection: sa.Connection, tenant: UUID, client: str, now: datetime, days: float, max_pages: int) -> None:
    told = {
        "id": UUID(int=tenant.int * 16 + len(client)), "tenant": tenant, "client": client, "connection": CONNECTIONS[client],
        "key": query_key(client, {}), "max_pages": max_pages, "floor": now - timedelta(days=days), "now": now,
        "account": f"{client}:{CONNECTIONS[client]}", "zone": CLIENTS[client].zone,
    }  # fmt: skip
    connection.execute(SAVE, {name: told[name] for name in told if name not in ("account", "zone")})
    connection.execute(SAVE_STATE, {name: told[name] for name in told if name not in ("connection", "max_pages")})


class Board:
    """Every page is a port call, and may meet trouble. What is posted stays; more comes as time passes."""

    def __init__(self, world: SubjectWorld) -> None:
        self.world = world
        rng, now = world.rng, world.clock()
        self.times = {
            client: sorted(now + timedelta(hours=rng.uniform(-80, 2)) for _ in range(rng.randrange(14)))
            for client in CLIENTS
        }
        self.pages = 0

    def shown(self, client: str, now: datetime) -> list[tuple[str, datetime]]:
        numbered = [(f"{client[:2]}{n}", at) for n, at in enumerate(self.times[client]) if at <= now]
        return sorted(numbered, key=lambda each: each[1], reverse=True)


class Client:
    def __init__(self, board: Board, job: Job) -> None:
        self.board, self.job = board, job

    def page(self, params: Any, bucket: int, number: int) -> Page:
        world, client = self.board.world, self.job.client

        def effect() -> Page:
            shown = self.board.shown(client, world.clock())
            offers = [
                Offer(
                    external_id=name, title=name, at=at, company=name[-1], company_name=name[-1], payload={"id": name}
                )
                for name, at in shown[(number - 1) * SIZE : number * SIZE]
            ]
            return Page(offers=offers, bad=[], total=len(shown), size=SIZE, is_last=number * SIZE >= len(shown))

        answer: Page = world.call("upstream.page", effect, error=lambda: Transient("no answer"))
        self.board.pages += 1
        if self.board.pages >= ENOUGH:
            with world.owner.connect() as connection:
                connection.exec_driver_sql(PAUSE)
        if world.rng.random() < world.scenario.upstream_trouble:
            world.last_fault_at = world.now
            self._trouble(world.rng.choice(TROUBLES))
        return answer

    def _trouble(self, trouble: str) -> None:
        self.board.world.seen[f"board {trouble}"] += 1
        match trouble:
            case "throttled":
                raise Throttled(self.job.account, 30.0)
            case "surprise":
                raise KeyError("surprise")
            case "refused":
                raise TokenRefused("not you")
            case "permanent":
                raise Permanent("no such search", "request_refused")
        raise Transient("no answer")


def simulate(world: SubjectWorld) -> Simulated:
    board = Board(world)
    with world.owner.connect() as connection:
        for tenant in TENANTS:
            for client in CLIENTS:
                save(connection, tenant, client, world.clock(), 3, world.rng.choice((1, 2, 20)))
    ports = Ports(
        client=lambda tenant, job, left: Client(board, job),
        store=world.faulty(SearchStore(world.worker)),
        config=CONFIG,
    )
    kind = search(ports, Limits(max_attempts=12))
    return Simulated(kind=kind, params=lambda _: {}, at_the_end=lambda: judge(world, board))


def judge(world: SubjectWorld, board: Board) -> None:
    require(not world.rows("select 1 from search_cycle where ended_at is null"), "every cycle has ended")
    require(not world.rows("select 1 from query_state where status = 'RUNNING'"), "nothing stays running")
    require(not world.rows("select 1 from ingestion_runs where finished_at is null"), "every execution is closed")
    require(
        not world.rows(
            """select 1 from search_cycle a join search_cycle b on a.tenant_id = b.tenant_id and a.run_id <> b.run_id
               where a.begins_at < b.begins_at and a.ended_at > b.begins_at and b.ended_at > b.begins_at
                 and exists (select from ingestion_runs i where i.run_id = a.run_id and i.started_at >= b.begins_at)"""
        ),
        "two cycles of a tenant never overlap",
    )
    for row in world.rows(
        """select q.*, lower(r) as lo, upper(r) as hi from query_state q left join lateral unnest(q.covered) as r on true"""
    ):
        if row["lo"] is None:
            continue
        world.seen["covered something"] += 1
        found = {
            each["external_id"]
            for each in world.rows(
                "select external_id from offers where tenant_id = :t and client = :c",
                t=row["tenant_id"],
                c=row["client"],
            )
        }
        wanted = {
            f"{row['client'][:2]}{n}" for n, at in enumerate(board.times[row["client"]]) if row["lo"] <= at < row["hi"]
        }
        require(wanted <= found, "what is covered was read", wanted - found)
    wrong = world.rows(
        """select q.query_key from query_state q
           where q.high_watermark is distinct from (
               select max(i.window_to) from ingestion_runs i where i.tenant_id = q.tenant_id and i.query_key = q.query_key
                 and i.purpose = 'head' and i.stop_reason = 'window_exhausted')"""
    )
    require(not wrong, "only exhausted heads move the watermark", wrong)
    (said,) = world.rows("select count(*) as n from signal where name = 'search.completed'")
    (done,) = world.rows("select count(*) as n from ingestion_runs where stop_reason = 'window_exhausted'")
    require(said["n"] == done["n"], "completed is said exactly when it is", said["n"], done["n"])


# Processes that are killed ask a stand-in in a process that nobody kills.

POSTED = 120


@contextmanager
def outside() -> Iterator[OpenOutside]:
    """Its second answer breaks off."""
    with InfoJobsStandIn() as standin:
        now = standin.now()
        for n in range(POSTED):
            standin.post(now - 60 - n * 600)
        standin.misbehave("reset", after=1, budget=1)
        yield OpenOutside(standin.start(), lambda connection: differences(standin, connection))


def differences(standin: InfoJobsStandIn, connection: sa.Connection) -> list[str]:
    found = [f"the stand-in was surprised: {standin.surprises[:3]}"] if standin.surprises else []
    (offers,) = connection.execute(sa.text("select count(*) from offers")).scalars()
    (done,) = connection.execute(sa.text("select count(*) from query_state where high_watermark is not null")).scalars()
    return found + ([f"{offers} offers where {POSTED} were posted"] if done and offers != POSTED else [])


def build(engine: sa.Engine, address: str, outside_url: str) -> Kind:
    def client(tenant: UUID, job: Job, time_left_s: Callable[[], float]) -> InfoJobs:
        return InfoJobs(address, CLIENT_ID, CLIENT_SECRET, time_left_s=time_left_s, gate=job.account)

    return search(Ports(client=client, store=SearchStore(engine)))


def a_cycle(play: Play) -> None:
    """Its second page breaks off; then the search is paused, and the next cycle finds nothing to do."""
    from tests.chaos.worker import TENANTS as THERE

    with play._stage.connect() as connection:
        now = connection.execute(sa.text("select now()")).scalar_one()
        save(connection, THERE[0], "infojobs", now, 1, 20)
    play.start("succeeded", kind=KIND)
    for wait_s in (10, 10, 60):
        play.work()
        play.pass_time(wait_s)
    play.tick()
    with play._stage.connect() as connection:
        connection.exec_driver_sql("update query_state set active = false")
    play.pass_time(1_000)
    play.tick()
    play.work()


RULES = {
    "nothing stays running": "select query_key from query_state where status = 'RUNNING'",
    "every execution is closed": "select id from ingestion_runs where finished_at is null",
    "one execution of a window in a cycle": """
        select run_id, query_key, purpose from ingestion_runs group by 1, 2, 3 having count(*) > 1""",
    "a page counts once": "select id from ingestion_runs where pages_fetched > 3",
}

SUBJECT = Subject(
    name=KIND,
    simulate=simulate,
    build=build,
    outside=outside,
    tables=(
        "saved_search", "query_state", "search_backfill", "ingestion_runs", "companies", "offers", "search_quarantine",
        "search_cycle",
    ),
    clocks=(
        "update query_state set next_due_at = next_due_at - {by}, history_due_at = history_due_at - {by}",
        "update search_cycle set begins_at = begins_at - {by}, started_at = started_at - {by}, ended_at = ended_at - {by}",
    ),
    rules=RULES,
    scenarios={each.__name__: each for each in (a_cycle,)},
    points=frozenset(SearchPoint),
    schedules=200,
)  # fmt: skip
