"""DBOS on the same server in the same minutes: a durable workflow of steps, beside the product's step."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import sqlalchemy as sa

from tests.bench import rows
from tests.bench.figures import Figure
from tests.bench.measure import Act, Side, cpu, race, versus
from tests.bench.paths.step import product_side
from tests.bench.place import Place

UPSERT = sa.text("""
insert into peer_row as b (run_id, external_id, hash, body)
select :run, r ->> 'external_id', r ->> 'hash', r from jsonb_array_elements(cast(:page as jsonb)) as r
order by r ->> 'external_id'
on conflict (run_id, external_id) do update set hash = excluded.hash, body = excluded.body
where b.hash is distinct from excluded.hash
""")
SCHEMA = (
    "create table peer_row (run_id text, external_id text, hash text, body jsonb, primary key (run_id, external_id))"
)


def installed() -> bool:
    """Only the environment of `make bench` has it."""
    return importlib.util.find_spec("dbos") is not None


def measure(place: Place, *, steps: int, rounds: int) -> list[Figure]:
    with _workflows(place) as (nothing, upsert):
        sides = [product_side(place, steps), _side("nothing", nothing, steps), _side("upsert", upsert, steps)]
        found = race(sides, rounds)
    return [
        versus("one step with a page, against a DBOS step that does nothing", "steps/s", found, "product", "nothing"),
        versus("one step with a page, against a DBOS step with the page", "steps/s", found, "product", "upsert"),
        *cpu("one step, against DBOS doing nothing", found, "product", "nothing"),
    ]


def _side(name: str, workflow: Callable[[int], int], steps: int) -> Side:
    def prepare() -> Act:
        return lambda: workflow(steps)

    return Side(name, prepare)


@contextmanager
def _workflows(place: Place) -> Iterator[tuple[Callable[[int], int], Callable[[int], int]]]:
    """Two workflows: steps that do nothing, and steps that upsert the page in their own transaction."""
    peer: Any = importlib.import_module("dbos")
    url = place.admin.url(place.admin.create_from_template("template1")).replace("+pg8000", "+psycopg")
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(SCHEMA)
    peer.DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR", "console_log_level": "ERROR"})
    source = peer.SQLAlchemyDatasource.create(url, engine=engine)

    def nothing(n: int) -> int:
        return n

    def upsert(run: str, n: int) -> int:
        page = orjson.dumps(rows.page(n)).decode()
        source.sql_session().execute(UPSERT, {"run": run, "page": page})
        return n

    do_nothing = peer.DBOS.step()(nothing)
    do_upsert = source.transaction(isolation_level="READ COMMITTED")(upsert)

    def many_nothings(steps: int) -> int:
        return sum(do_nothing(n) >= 0 for n in range(steps))

    def many_upserts(steps: int) -> int:
        return sum(do_upsert(str(peer.DBOS.workflow_id), n) >= 0 for n in range(steps))

    workflow = peer.DBOS.workflow()
    nothings, upserts = workflow(many_nothings), workflow(many_upserts)
    peer.DBOS.launch()
    try:
        yield nothings, upserts
    finally:
        peer.DBOS.destroy(destroy_registry=True)
        engine.dispose()
