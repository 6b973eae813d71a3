"""Guards that a step costs the same however many lanes there are, and that its updates stay on their page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from shared.kernel import db
from shared.kernel.model import StepOutcome
from tests.support.databases import ServerAdmin, as_user
from tests.support.house import House, tally_database
from tests.support.plans import Cost, Filler, Sizes, measure

pytestmark = pytest.mark.full

SMALL, LARGE = Sizes(active=1_000, ended=50_000), Sizes(active=50_000, ended=50_000)
MOST_GROWTH, ANOTHER_LEVEL = 1.3, 2  # an index that grows by a level costs a page more each time it is entered
STATEMENTS = (
    "claim", "commit", "mark_unsent", "lock_due_lanes", "facts", "apply_judgements", "due_runs", "longest_waits",
    "lock_run",
    "has_open_lanes", "last_lane_out", "lanes", "cancel_lanes",
)  # fmt: skip

Costs = dict[str, tuple[Cost, Cost]]


@pytest.fixture(scope="module")
def costs(postgres_server: ServerAdmin, template: str) -> Iterator[Costs]:
    """What each statement costs among few and among many active lanes."""
    with tally_database(postgres_server, template) as url, closing(Filler(url)) as filler:
        measured = []
        for sizes in (SMALL, LARGE):
            filler.grow(sizes)
            worker = db.connect_engine(as_user(url, "baton_worker"))
            measured.append(measure(worker, sizes))
            worker.dispose()
            filler.tidy()
        yield {name: (measured[0][name], measured[1][name]) for name in measured[0]}


def test_every_hot_statement_is_measured(costs: Costs) -> None:
    assert set(costs) == set(STATEMENTS)


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_hot_statement_touches_as_few_pages_among_many_lanes_as_among_few(costs: Costs, name: str) -> None:
    few, many = costs[name]

    assert many.buffers <= max(few.buffers * MOST_GROWTH, few.buffers + ANOTHER_LEVEL)


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_hot_statement_reads_no_table_from_end_to_end(costs: Costs, name: str) -> None:
    few, many = costs[name]

    assert (few.scanned | many.scanned) & {"lane", "run", "step"} == frozenset()


def test_the_last_lane_out_does_not_pay_for_the_lanes_that_ended_before_it(costs: Costs) -> None:
    assert max(cost.buffers for cost in costs["last_lane_out"]) <= 10


UPDATES = "select n_tup_upd as updates, n_tup_hot_upd as hot from pg_stat_user_tables where relname = 'lane'"


def test_claims_and_commits_update_their_lane_on_its_page(house: House) -> None:
    run_id = house.start_running(lanes=4, target=1000)
    (before,) = house.sql(UPDATES)

    for n in range(200):
        assert house.take_turn(run_id, f"l{n % 4}") is StepOutcome.MOVED
    with house._own_engines[1].connect() as worker:
        worker.exec_driver_sql("select pg_stat_force_next_flush()")

    (after,) = house.sql(UPDATES)
    updates, hot = after.updates - before.updates, after.hot - before.hot
    assert updates >= 400
    assert hot >= 0.95 * updates


def test_what_a_step_asks_is_planned_by_ids_also_while_the_tables_are_young(
    postgres_server: ServerAdmin, template: str
) -> None:
    """Its plans are kept, and the tables grow: they must not read all that is active, however little that is yet."""
    with tally_database(postgres_server, template) as url, closing(Filler(url, analyses=False)) as filler:
        for active in (20, 200):
            sizes = Sizes(active=active, ended=0, due=5, wide=10)
            filler.grow(sizes)
            worker = db.connect_engine(as_user(url, "baton_worker"))
            costs = measure(worker, sizes)
            worker.dispose()
            assert costs["claim"].indexes == {"lane_pkey", "run_pkey"}
            assert costs["commit"].indexes == {"lane_pkey"}
            assert not (costs["claim"].scanned | costs["commit"].scanned) & {"lane", "run"}
