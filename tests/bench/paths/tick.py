"""The tick after a lost queue: every lane is overdue and gets its baton again."""

from __future__ import annotations

from collections.abc import Callable

from shared.kernel.catalogue import Catalogue
from shared.kernel.flights import Connection
from shared.kernel.tick import tick
from tests.bench.figures import Figure
from tests.bench.limits.tick import drain
from tests.bench.measure import Act, Side, cpu, race, versus
from tests.bench.pages import PAGES
from tests.bench.place import TENANT, Place

RUNS = f"""
insert into run (id, tenant_id, kind, status, check_at)
select gen_random_uuid(), '{TENANT}', 'pages', 'running', now() + interval '1 hour' from generate_series(1, %d)
"""
LANES = """
insert into lane (id, run_id, tenant_id, kind, key, holds_run, cursor, next_due_at, sent_at, check_at, max_steps)
select gen_random_uuid(), r.id, r.tenant_id, r.kind, 'l' || n, true, '{}', now(), now(), now(), 1000000
from run r cross join generate_series(1, 100) n
"""
OVERDUE = """
update lane set next_due_at = now() - interval '1 hour', sent_at = now() - interval '1 hour',
                check_at = now() - random() * interval '1 hour', resends = 0
"""
EMPTY = "truncate run, lane, step, history, repair, signal, bench_row"


def measure(place: Place, *, lanes: int, rounds: int) -> list[Figure]:
    place.owner_runs(EMPTY, RUNS % (lanes // 100), LANES)
    batch = place.ports.relay.tick_batch

    def product() -> int:
        report = tick(place.ports, Catalogue(PAGES))
        assert report.finished
        return report.lanes.total()

    def side(name: str, act: Act, connection: Callable[[], Connection]) -> Side:
        def prepare() -> Act:
            place.queue.bodies.clear()
            place.owner_runs("truncate repair", OVERDUE, "vacuum analyze lane")
            return act

        return Side(name, prepare, connection)

    found = race(
        [
            side("product", product, place.product_connection),
            side("update", lambda: drain(place.limit, batch, note=False), place.bare_connection),
            side("update and note", lambda: drain(place.limit, batch, note=True), place.bare_connection),
        ],
        rounds,
    )
    place.owner_runs(EMPTY)
    return [
        versus(f"{lanes:,} overdue lanes, against update returning", "lanes/s", found, "product", "update"),
        versus("the same with the repair rows", "lanes/s", found, "product", "update and note"),
        *cpu("an overdue lane, with its repair row", found, "product", "update and note"),
    ]
