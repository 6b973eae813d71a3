"""The hot paths of saved searches: a page with its upsert, and which search is next among ten thousand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from shared.kernel.clock import new_id, process_time
from shared.kernel.model import StepOutcome
from shared.kernel.run import start_run
from shared.kernel.step import take_turn
from shared.search.model import PAGE_SIZE, Offer, Page, query_key
from shared.search.ports import Ports
from shared.search.sheets.ports import SheetPorts
from shared.search.sheets.store import SheetStore
from shared.search.steps import search
from shared.search.store import NEXT_JOB, SearchStore
from tests.bench.figures import Figure
from tests.bench.limits.search import Lane
from tests.bench.measure import Act, Side, cpu, race, versus
from tests.bench.place import TENANT, Place, trips
from tests.kinds.search.subject import save

BEGAN = process_time()
# As many as there are elsewhere: with an empty table no index can be compared.
FEW, MANY = 10, 10_000
FILL = """
with made as (
    insert into saved_search (id, tenant_id, name, client, connection, params, query_key, max_pages, max_offers, every_s,
                              fresh_within_s, seed_floor)
    select gen_random_uuid(), '{tenant}', 's' || n, 'infojobs', gen_random_uuid(), '{{}}', md5(n::text), 20, 1000, 86400, 129600, now()
    from generate_series({first}, {last}) n returning *)
insert into query_state (tenant_id, query_key, search_id, client, account, zone, seed_floor, next_due_at, fresh_at, last_success_at)
select tenant_id, query_key, id, client, 'infojobs:x', 'UTC', seed_floor, now() - mod(abs(hashtext(query_key)), 1000) * interval '1 minute',
       now(), now() - (1440 + mod(abs(hashtext(query_key)), 1000)) * interval '1 minute'
from made"""


GATES = """
insert into gate (tenant_id, key, state, until, updated_at)
select gen_random_uuid(), 'infojobs:' || n, 'closed', now() + interval '1 hour', now() from generate_series(1, 2000) n"""


def parts(here: Place, *, quick: bool) -> Iterator[Callable[[], Sequence[Figure]]]:
    yield lambda: a_page(here, pages=3 if quick else 30, rounds=2 if quick else 21)
    yield lambda: the_next(here)


def offers(number: int) -> list[Offer]:
    return [
        Offer(
            external_id=f"{number:06d}-{n:03d}", title=f"Engineer {n} in Barcelona", at=BEGAN - timedelta(minutes=number),
            company=f"c{n % 20}", company_name=f"Company {n % 20}", location="Barcelona", link=f"https://board.example/{n}",
            payload={"id": f"{number}-{n}", "title": f"Engineer {n}", "city": "Barcelona", "text": "x" * 300},
        )
        for n in range(PAGE_SIZE)
    ]  # fmt: skip


class Endless:
    """A board with a page behind every page."""

    def __init__(self, pages: Sequence[list[Offer]]) -> None:
        self.pages, self.asked = pages, 0

    def page(self, params: Any, bucket: int, number: int) -> Page:
        self.asked += 1
        found = self.pages[self.asked % len(self.pages)]
        return Page(offers=found, bad=[], total=10_000_000, size=PAGE_SIZE, is_last=False)


def a_page(place: Place, *, pages: int, rounds: int) -> list[Figure]:
    made = [offers(n) for n in range(rounds * pages + 100)]
    board = Endless(made)
    sheets: Any = SheetPorts(sheet=lambda *_: None, slot=lambda *_: 0.0, store=SheetStore(place.engine))  # type: ignore[arg-type]
    kind = search(Ports(client=lambda *_: board, store=SearchStore(place.engine), sheets=sheets))

    def prepare() -> Act:
        place.owner_runs(
            *(f"delete from {table}" for table in ("search_cycle", "saved_search", "query_state", "ingestion_runs"))
        )
        with place.owner.begin() as connection:
            save(connection, TENANT, "infojobs", BEGAN - timedelta(hours=1), 1, 1_000)
            connection.execute(sa.text("update saved_search set max_offers = 100000"))
        place.queue.bodies.clear()
        start_run(place.ports, kind, TENANT, {})
        for _ in range(3):  # picked, and two pages: nothing is made for the first time
            assert take_turn(place.queue.next_baton(), kind, place.ports) is StepOutcome.MOVED
        return act

    def act() -> int:
        for _ in range(pages):
            assert take_turn(place.queue.next_baton(), kind, place.ports) is StepOutcome.MOVED
        return pages

    def bare() -> Act:
        lane = Lane(place.limit, TENANT, query_key("infojobs", {}))
        lane.create(
            {"phase": "fetch", "job": {"walk": {"page": 1, "lo": "2026-01-01T00:00:00+00:00"}, "name": "x" * 300}}
        )
        asked = iter(made)

        def ask() -> int:
            for _ in range(pages):
                lane.step(next(asked))
            return pages

        return ask

    ours = Side("product", prepare, place.product_connection)
    theirs = Side("limit", bare, place.bare_connection)
    found = race([ours, theirs], rounds)
    flights, statements = trips(place.product_connection(), prepare())
    return [
        versus("pages of a search with their upsert, against the same by hand", "pages/s", found, "product", "limit", "0.9"),
        *cpu("a page of a search", found, "product", "limit"),
        Figure(name="network flights per page of a search", value=flights, unit="", against=2, goal="<= 2"),
        Figure(name="statements per page of a search", value=statements, unit=""),
    ]  # fmt: skip


def the_next(place: Place) -> list[Figure]:
    """Both sizes in a database whose other tenants have as many, and gates of their own: an index is as deep for ten
    searches as for all, and nothing is so small that it is read whole."""
    place.owner_runs("delete from saved_search", "delete from query_state", GATES, "vacuum analyze gate")
    _fill(place, new_id(), 1, MANY)
    found = []
    for tenant, many in ((new_id(), FEW), (new_id(), MANY)):
        _fill(place, tenant, 1, many)
        found.append(buffers(place, tenant))
    few, many = found
    return [
        Figure(
            name=f"pages read for the next of {MANY:,} searches", value=many, unit="", against=few, ratio=many / few,
            goal="<= 1.3",
        )
    ]  # fmt: skip


def buffers(place: Place, tenant: UUID) -> int:
    """What it touches once its pages are warm."""
    asked = sa.text(f"explain (analyze, buffers, timing off, format json) {NEXT_JOB.text}")
    with place.owner.connect() as connection:
        for _ in range(2):
            (answer,) = connection.execute(asked, {"tenant_id": tenant, "run_id": UUID(int=1)}).scalar_one()
    return int(answer["Plan"]["Shared Hit Blocks"] + answer["Plan"]["Shared Read Blocks"])


def _fill(place: Place, tenant: UUID, first: int, last: int) -> None:
    place.owner_runs(FILL.format(tenant=tenant, first=first, last=last), "vacuum analyze saved_search, query_state")
