"""One page of raw items: the kind's own statement as the relay sends it, against the same rows by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

import sqlalchemy as sa

from shared.kernel import db, direct
from shared.kernel.clock import new_id
from shared.page_ingest import store
from tests.bench.figures import Figure
from tests.bench.limits.upsert import Pages
from tests.bench.measure import Act, Side, cpu, race, versus
from tests.bench.place import TENANT, Place, trips
from tests.bench.stones import Offered, stone_pages

# In a step `turn` is the lane that the commit has just won; here it is a row made of parameters.
UPSERT = sa.text(f"""
with turn as (
    select cast(:run_id as uuid) as run_id, cast(:tenant_id as uuid) as tenant_id, cast('part' as text) as key,
           cast(:seq as bigint) as seq)
{store.UPSERT_PAGE.sql}""")
WritePage = Callable[[int, Sequence[Offered]], None]


def measure(place: Place, *, size: int, count: int, rounds: int, also_rows: bool) -> list[Figure]:
    pages = stone_pages(size, count)
    ours, theirs = product_side(place, pages), limit_side(place, pages)
    found = race([ours, theirs], rounds)
    name = f"a page of {size:,} rows"
    figures = [
        versus(f"{name}, against the fastest statement", "rows/s", found, "product", "limit", ">= 0.9"),
        *cpu(name, found, "product", "limit"),
    ]
    if also_rows:
        each = rows_side(place, pages)
        found = race([ours, each], max(2, rounds // 3))
        flights = _flights(ours, size)
        each_flights = _flights(each, size)
        figures += [
            versus(f"{name}, against row by row", "rows/s", found, "product", "row by row"),
            Figure(name=f"network flights per page of {size:,} rows", value=flights, unit="", against=each_flights),
        ]
    return figures


def _flights(side: Side, size: int) -> float:
    assert side.connection is not None
    return trips(side.connection(), side.prepare())[0] * size


def product_side(place: Place, pages: Sequence[Sequence[Offered]]) -> Side:
    """On a connection that is held: a page rides in its step's commit, whose loan from the pool `step.py` measures."""
    connection = place.product_connection()
    line = direct.Line(connection)

    def writer(run_id: UUID) -> WritePage:
        connection.autocommit = True
        fixed = {"run_id": run_id, "tenant_id": TENANT}

        def write(number: int, page: Sequence[Offered]) -> None:
            effect = store.upsert_page("nivoda", [each.to_item() for each in page])
            connection.before_next(db.SET_TENANT, str(TENANT))
            line.run(UPSERT, {**fixed, "seq": number, **effect.params})

        return write

    return Side("product", _written(place, pages, writer), lambda: connection)


def limit_side(place: Place, pages: Sequence[Sequence[Offered]]) -> Side:
    def writer(run_id: UUID) -> WritePage:
        return Pages(place.limit, run_id, TENANT).one_statement

    return Side("limit", _written(place, pages, writer), place.bare_connection)


def rows_side(place: Place, pages: Sequence[Sequence[Offered]]) -> Side:
    def writer(run_id: UUID) -> WritePage:
        return Pages(place.limit, run_id, TENANT).row_by_row

    return Side("row by row", _written(place, pages, writer), place.bare_connection)


def _written(
    place: Place, pages: Sequence[Sequence[Offered]], writer: Callable[[UUID], WritePage]
) -> Callable[[], Act]:
    """Each time into an empty table, under a new run."""

    def prepare() -> Act:
        place.owner_runs("truncate raw_item")
        write = writer(new_id())

        def act() -> int:
            for number, page in enumerate(pages):
                write(number, page)
            return sum(len(page) for page in pages)

        return act

    return prepare
