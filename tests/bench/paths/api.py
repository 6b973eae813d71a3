"""Our share of an answer over HTTP: the handler as Lambda calls it, against its bare statements and its time in the database."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, cast

from shared.kernel.api.frame import API
from shared.kernel.clock import stopwatch
from shared.kernel.flights import Connection
from tests.bench.figures import Figure
from tests.bench.limits import api as limit
from tests.bench.limits import bare
from tests.bench.measure import Act, Side, cpu, race, versus
from tests.bench.place import Place, trips
from tests.support.door import Door, open_door

PAGE = 50
EMPTY = "truncate run, lane, step, history, repair, signal"
# Every second run of a page goes on, with four lanes that wait for one thing or another; the older ones have ended.
RUNS = f"""
insert into run (id, tenant_id, kind, status, check_at, created_at, started_at, finished_at, created_by)
select gen_random_uuid(), '{{tenant}}', 'pages', case when open then 'running' else 'succeeded' end, now() + interval '1 hour',
       now() - n * interval '1 minute', now() - n * interval '1 minute', case when not open then now() end, 'user:bench'
from generate_series(1, {{runs}}) n, lateral (select n <= {PAGE} and n % 2 = 0 as open) o
"""
LANES = """
insert into lane (id, run_id, tenant_id, kind, key, holds_run, status, cursor, next_due_at, sent_at, check_at, max_steps)
select gen_random_uuid(), r.id, r.tenant_id, r.kind, 'l' || n, true, case when finished_at is null then 'active' else 'done' end,
       '{}', now() + interval '1 hour', now(), now() + interval '1 hour', 1000000
from run r cross join generate_series(1, 4) n
"""


def measure(place: Place, *, runs: int, requests: int, rounds: int) -> list[Figure]:
    with open_door(place.url) as door, closing(bare.connect(place.url, "baton_api")) as bare_connection:
        tenant = door.new_tenant()
        fill = RUNS.format(tenant=tenant.id, runs=runs)
        place.owner_runs(EMPTY, fill, LANES, "vacuum analyze run", "vacuum analyze lane")
        run_id = door.value("select id from run where finished_at is null order by created_at desc limit 1")
        subject = str(tenant.viewer.subject)

        def get(path: str) -> Callable[[], object]:
            event = door.event(tenant.viewer, "GET", API + path, query={"limit": PAGE} if path == "/runs" else {})
            return lambda: _answered(door, event)

        def compared(name: str, path: str, bare_act: Callable[[], object]) -> list[Figure]:
            ours = Side("product", lambda: _often(get(path), requests), lambda: _connection(door))
            theirs = Side("limit", lambda: _often(bare_act, requests), lambda: bare_connection)
            return _figures(name, ours, theirs, rounds)

        figures = [
            *compared(f"GET /runs, {PAGE} of {runs:,}", "/runs", lambda: limit.page(bare_connection, subject, PAGE)),
            *compared("GET /runs/{id}", f"/runs/{run_id}", lambda: limit.one(bare_connection, subject, run_id)),
        ]
        place.owner_runs(EMPTY)
    return figures


def _figures(name: str, ours: Side, theirs: Side, rounds: int) -> list[Figure]:
    found = race([ours, theirs], rounds)
    assert ours.connection is not None
    driver = ours.connection()
    looks = [_inside(driver, ours.prepare()) for _ in range(rounds)]
    total, inside = (statistics.median(figures) for figures in zip(*looks, strict=True))
    share = statistics.median(100 * (each - within) / each for each, within in looks)
    flights, bare_flights = (trips(side.connection(), side.prepare())[0] for side in (ours, theirs) if side.connection)
    return [
        versus(f"{name}: against its bare statements", "requests/s", found, "product", "limit"),
        *cpu(name, found, "product", "limit"),
        Figure(name=f"{name}: latency, against its time in the database", value=total, unit="ms", against=inside,
               ratio=total / inside),
        Figure(name=f"{name}: our share of the latency", value=share, unit="%"),
        Figure(name=f"{name}: network flights", value=flights, unit="", against=bare_flights),
    ]  # fmt: skip


def _inside(driver: Connection, act: Act) -> tuple[float, float]:
    """Milliseconds per request, and how many of them between a flight and the last row of its answer."""
    fly, inside = driver._fly, 0.0

    def timed(*args: Any) -> None:
        nonlocal inside
        took = stopwatch()
        fly(*args)
        inside += took()

    watched: Any = driver
    watched._fly = timed
    took = stopwatch()
    try:
        done = act()
    finally:
        total = took()
        del watched._fly
    return total / done * 1000, inside / done * 1000


def _often(act: Callable[[], object], times: int) -> Act:
    def acts() -> int:
        for _ in range(times):
            act()
        return times

    return acts


def _answered(door: Door, event: Mapping[str, Any]) -> None:
    answer = door.ask(event)
    assert answer.status == 200, answer


def _connection(door: Door) -> Connection:
    """The one connection in the API's pool."""
    with door.engine.connect() as connection:
        return cast("Connection", connection.connection.dbapi_connection)
