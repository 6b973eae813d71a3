"""Search cycles as a subject: two boards in the simulation, and a stand-in for processes that are killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import sqlalchemy as sa

from infra.local.standins.boards import CLIENT_ID, CLIENT_SECRET, InfoJobsStandIn
from infra.local.standins.google_sheets import GoogleSheetsStandIn, private_key
from shared.kernel.catalogue import Kind
from shared.kernel.control import Paces
from shared.kernel.decide import Limits
from shared.kernel.errors import Permanent, Refused, Throttled, Transient
from shared.kernel.model import Already, NewRun, Signal, Start, Starting, account_name
from shared.kernel.ports import Tx
from shared.kernel.tokens import TokenRefused, Tokens
from shared.search.adapters.boards import InfoJobs
from shared.search.build import sheet_of, slot_of
from shared.search.model import CLIENTS, KIND, Job, Offer, Page, SearchConfig, query_key
from shared.search.points import SearchPoint
from shared.search.ports import Ports
from shared.search.sheets.model import HEADER, PROVIDER, WRITTEN, Block, Tab
from shared.search.sheets.ports import SheetPorts
from shared.search.sheets.store import SheetStore
from shared.search.steps import search
from shared.search.store import SearchStore
from tests.simulation.invariants import require
from tests.simulation.world import TENANTS
from tests.support.searches import ServiceAccounts
from tests.support.subject import OpenOutside, Simulated, Subject

if TYPE_CHECKING:
    from tests.chaos.matrix import Play
    from tests.simulation.subjects import SubjectWorld

SIZE = 3
ENOUGH = (4, 4, 4, 14)  # pages; then the searches are paused, so that the last cycle has no next
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


ADD_TENANT = sa.text("insert into tenant (id, name) values (:id, 'of the simulation') on conflict do nothing")
WITHOUT_NEXT = f"select 1 from searches_without_next('{UUID(int=0)}', 1)"

SHEET_CONNECTION = UUID(int=0xC3)
COMPANIES = 5
ADD_SHEET = sa.text("""
insert into search_sheet (id, tenant_id, connection, tab, zone, opens, closes)
values (:id, :tenant, :connection, 'Companies', :zone, '00:00', '00:00')""")
ADD_COMPANY = sa.text("""
insert into companies (tenant_id, id, client, external_id, name, dirty, first_seen_at, last_seen_at)
values (:tenant, :id, 'infojobs', cast(:id as text), '=name', false, :now, :now)""")
NO_MORE_NIGHTS = """
update search_sheet set active = false where ctid = any(array(
    select ctid from search_sheet where active for update skip locked))"""


def sheet_of_tenant(tenant: UUID) -> UUID:
    return UUID(int=tenant.int * 16 + 1)


def company(tenant: UUID, number: int) -> UUID:
    return UUID(int=(tenant.int * 1_000 + number) % 2**128)


def add_sheet(connection: sa.Connection, tenant: UUID, now: datetime) -> None:
    """Its window is open all day; it is noon there, so that the day does not end in the middle."""
    hour = now.astimezone(UTC).hour
    told = {"id": sheet_of_tenant(tenant), "tenant": tenant, "connection": SHEET_CONNECTION}
    connection.execute(ADD_SHEET, {**told, "zone": f"Etc/GMT{hour - 12:+d}"})
    for number in range(1, COMPANIES + 1):
        connection.execute(ADD_COMPANY, {"tenant": tenant, "id": company(tenant, number), "now": now})


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
            client: sorted(now + timedelta(hours=rng.uniform(-80, 2)) for _ in range(rng.randrange(10)))
            for client in CLIENTS
        }
        self.pages, self.enough = 0, rng.choice(ENOUGH)

    def shown(self, client: str, now: datetime) -> list[tuple[str, datetime]]:
        numbered = [(f"{client[:2]}{n}", at) for n, at in enumerate(self.times[client]) if at <= now]
        return sorted(numbered, key=lambda each: each[1], reverse=True)


class Paper:
    """The sheet of a tenant. Every request is a port call: done, and its answer may be lost. Its first one is its last
    night's: no other follows."""

    def __init__(self, world: SubjectWorld, tenant: UUID) -> None:
        self.world, self.tenant = world, tenant
        self.rows: dict[int, list[Any]] = {}
        self.size = 6  # rows of its grid, with or without anything in them
        self.asked = 0
        if world.rng.random() < 0.5:
            self.rows = {2: ["a stranger's"], 3: [str(company(tenant, 2)), "old", 0, "", "", "", "Blocked"]}
            self.rows[5] = [str(company(tenant, 4)), "old"]
            self.rows[6] = [str(company(tenant, 4)), "copied"]

    def _asked(self, name: str, effect: Callable[[], Any]) -> Any:
        self.asked += 1
        with self.world.owner.connect() as connection:
            connection.exec_driver_sql(NO_MORE_NIGHTS)
        answer = self.world.call(f"sheet.{name}", effect, error=lambda: Transient("no answer"))
        if self.world.rng.random() < self.world.scenario.upstream_trouble / 3:
            self.world.last_fault_at = self.world.now
            trouble = self.world.rng.choice(("transient", "throttled", "permanent"))
            self.world.seen[f"sheet {trouble}"] += 1
            match trouble:
                case "throttled":
                    raise Throttled(account_name(PROVIDER, str(SHEET_CONNECTION)), 30.0)
                case "permanent":
                    raise Permanent("not shared", "not_shared")
            raise Transient("no answer")
        return answer

    def look(self, tab: str) -> Tab | None:
        found: Tab | None = self._asked("look", lambda: Tab(1, self.size, len(HEADER)))
        return found

    def add_tab(self, tab: str) -> Tab:
        raise AssertionError("it is there")

    def grow(self, grid: int, rows: int) -> None:
        def effect() -> None:
            self.size = rows
            self.rows = {row: cells for row, cells in self.rows.items() if row <= rows}

        self._asked("grow", effect)

    def titles(self, tab: str, width: int) -> Any:
        return self._asked("titles", lambda: [*self.rows.get(1, []), *[""] * width][:width])

    def read(self, tab: str, columns: Sequence[int], first: int, last: int) -> Any:
        if self.rows and self.world.rng.random() < 0.1:
            self.world.seen["sheet sorted"] += 1
            self.rows[3], self.rows[5] = self.rows.get(5, []), self.rows.get(3, [])
        return self._asked("read", lambda: [list(self.rows.get(row, [])) for row in range(first, last + 1)])

    def write(self, tab: str, columns: Sequence[int], blocks: Sequence[Block]) -> None:
        def effect() -> None:
            for block in blocks:
                for number, cells in enumerate(block.values, block.row):
                    require(number <= self.size, "no row is written beyond the grid", number)
                    kept = self.rows.get(number, [])
                    self.rows[number] = [*cells, *kept[len(cells) :]]

        self._asked("write", effect)

    def keys(self) -> list[str]:
        return [str(cells[0]) for row, cells in sorted(self.rows.items()) if row > 1 and cells and cells[0]]


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
        if self.board.pages >= self.board.enough:
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
    papers = {tenant: Paper(world, tenant) for tenant in TENANTS}
    with world.owner.connect() as connection:
        for tenant in TENANTS:
            add_sheet(connection, tenant, world.clock())
            for client in CLIENTS:
                save(connection, tenant, client, world.clock(), 3, world.rng.choice((1, 2, 20)))
    sheets = SheetPorts(
        sheet=lambda turn, cursor, left: papers[turn.tenant_id],
        slot=lambda turn, cursor: world.rng.choice((0.0, 0.0, 0.0, 1.2)),
        store=world.faulty(SheetStore(world.worker)),
    )
    ports = Ports(
        client=lambda tenant, job, left: Client(board, job),
        store=world.faulty(SearchStore(world.worker)),
        sheets=sheets,
        config=CONFIG,
    )
    kind = search(ports, Limits(max_attempts=12))

    def params(asked: Mapping[str, Any]) -> dict[str, Any]:
        tenant = TENANTS[asked["tenant"]]
        with world.owner.connect() as connection:
            connection.execute(ADD_TENANT, {"id": tenant})
        return {"sheet": str(sheet_of_tenant(tenant))} if world.rng.random() < 0.4 else {}

    def at_the_end() -> None:
        judge(world, board)
        judge_sheets(world, papers)

    def start(tx: Tx, starting: Starting) -> NewRun | Already:
        """Who asks for a sheet that is no more gets a cycle."""
        try:
            return kind.start(tx, starting)
        except Refused:
            return kind.start(tx, replace(starting, params={}))

    def told_nobody(tx: Tx, signal: Signal) -> Sequence[Start]:
        """As if it had failed ten times: a run that has ended, and nothing follows by itself."""
        if world.rng.random() < 0.1:
            world.seen["not heard"] += 1
            unheard.append(signal.id)
            return ()
        return hears(tx, signal)

    def waits_for_a_tick() -> bool:
        if unheard and not world.rows(WITHOUT_NEXT):
            unheard.clear()
        return bool(unheard)

    unheard: list[int] = []
    hears = kind.listens["run.succeeded"]
    return Simulated(
        kind=replace(kind, start=start, listens=dict.fromkeys(kind.listens, told_nobody)),
        params=params,
        at_the_end=at_the_end,
        waits_for_a_tick=waits_for_a_tick,
    )


def judge_sheets(world: SubjectWorld, papers: Mapping[UUID, Paper]) -> None:
    require(not world.rows("select 1 from sheet_night where finished_at is null"), "every night has ended")
    require(
        not world.rows(
            """select 1 from sheet_night n join run r on r.id = n.run_id
               where (n.status = 'synced') <> (r.status = 'succeeded' and n.status <> 'canceled')"""
        ),
        "a night is synced exactly when its run has succeeded",
    )
    for tenant, paper in papers.items():
        keys = paper.keys()
        synced = world.rows("select 1 from sheet_night where tenant_id = :t and status = 'synced'", t=tenant)
        strangers = {str(company(other, n)) for other in papers if other != tenant for n in range(1, COMPANIES + 1)}
        require(not strangers & set(keys), "no tenant's companies are in another's sheet")
        said = {
            str(cells[0]) for row, cells in paper.rows.items() if row > 1 and len(cells) > WRITTEN and cells[WRITTEN]
        }
        require(said <= {str(company(tenant, 2))}, "feedback stays beside its company", said)
        if not synced:
            continue
        world.seen["sheet synced"] += 1
        ours = [key for key in keys if key != "a stranger's"]
        require(len(ours) == len(set(ours)), "no company has two rows", keys)
        blocked = world.rows("select company_id from company_feedback where tenant_id = :t", t=tenant)
        started_with_rows = "a stranger's" in keys
        require(bool(blocked) == started_with_rows, "what the sheet says is heard", blocked)
        wanted = {str(company(tenant, n)) for n in range(1, COMPANIES + 1) if not (started_with_rows and n == 2)}
        require(wanted <= set(ours), "every company has a row", wanted - set(ours))
        require(str(company(tenant, 2)) not in ours or not started_with_rows, "a blocked company has none")


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
    """Its second answer breaks off; so does one of the sheet's, after it was done."""
    with InfoJobsStandIn() as standin, GoogleSheetsStandIn() as google:
        now = standin.now()
        for n in range(POSTED):
            standin.post(now - 60 - n * 600)
        standin.misbehave("reset", after=1, budget=1)
        google.tab().cells[7, 1] = "a stranger's"
        google.misbehave("lost_answer", on=["sheet"], after=2, budget=1)
        address = (standin.start(), google.start(), private_key())
        yield OpenOutside(address, lambda connection: differences(standin, google, connection))


def differences(standin: InfoJobsStandIn, google: GoogleSheetsStandIn, connection: sa.Connection) -> list[str]:
    surprises = [*standin.surprises, *google.surprises, *google.wrong]
    found = [f"the stand-ins were surprised: {surprises[:3]}"] if surprises else []
    (offers,) = connection.execute(sa.text("select count(*) from offers")).scalars()
    (done,) = connection.execute(sa.text("select count(*) from query_state where high_watermark is not null")).scalars()
    if done and offers != POSTED:
        found.append(f"{offers} offers where {POSTED} were posted")
    if connection.execute(sa.text("select 1 from sheet_night where status = 'synced'")).first() is not None:
        known = connection.execute(sa.text("select cast(id as text) from companies")).scalars()
        keys = [str(row[0]) for row in google.tab().table()[1:]]
        if sorted(keys) != sorted([*known, "a stranger's"]):
            found.append(f"the sheet has the rows {keys}")
    return found


def build(engine: sa.Engine, address: Any, outside_url: str) -> Kind:
    board_url, google_url, key = address

    def client(tenant: UUID, job: Job, time_left_s: Callable[[], float]) -> InfoJobs:
        return InfoJobs(board_url, CLIENT_ID, CLIENT_SECRET, time_left_s=time_left_s, gate=job.account)

    env, accounts = {"BATON_GOOGLE_SHEETS_BASE_URL": google_url}, ServiceAccounts(key)
    sheets = SheetPorts(
        sheet=partial(sheet_of, env, accounts, Tokens(engine)),  # type: ignore[arg-type]
        slot=partial(slot_of, accounts, Paces(engine)),  # type: ignore[arg-type]
        store=SheetStore(engine),
    )
    return search(Ports(client=client, store=SearchStore(engine), sheets=sheets))


def a_night(play: Play) -> None:
    """The third answer is lost after it was done; then the sheet is removed, and the next night finds it gone."""
    from tests.chaos.worker import TENANTS as THERE

    with play._stage.connect() as connection:
        add_sheet(connection, THERE[0], connection.execute(sa.text("select now()")).scalar_one())
    play.start("succeeded", kind=KIND, sheet=str(sheet_of_tenant(THERE[0])))
    for wait_s in (10, 10, 60):
        play.work()
        play.pass_time(wait_s)
    play.tick()
    with play._stage.connect() as connection:
        connection.exec_driver_sql(NO_MORE_NIGHTS)
    play.pass_time(60)
    play.tick()
    play.work()
    with play._stage.connect() as connection:
        connection.exec_driver_sql(
            "update lane set next_due_at = now(), check_at = now() where key = 'sheet' and status = 'active'"
        )
        connection.exec_driver_sql("update sheet_night set opens_at = now() - interval '1 s' where status = 'waiting'")
    play.tick()
    play.work()


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
    "every night has ended": "select night from sheet_night where finished_at is null",
    "a night is synced once": "select sheet_id from sheet_night where status = 'synced' group by 1 having count(*) > 1",
    "rows are counted once": f"select night from sheet_night where rows_written > {COMPANIES}",
}

SUBJECT = Subject(
    name=KIND,
    simulate=simulate,
    build=build,
    outside=outside,
    tables=(
        "saved_search", "query_state", "search_backfill", "ingestion_runs", "companies", "offers", "search_quarantine",
        "search_cycle", "search_sheet", "sheet_night", "sheet_row", "company_feedback", "account_token", "pace", "tenant",
    ),
    clocks=(
        "update query_state set next_due_at = next_due_at - {by}, history_due_at = history_due_at - {by}",
        "update search_cycle set begins_at = begins_at - {by}, started_at = started_at - {by}, ended_at = ended_at - {by}",
    ),
    rules=RULES,
    scenarios={each.__name__: each for each in (a_cycle, a_night)},
    points=frozenset(SearchPoint),
)  # fmt: skip
