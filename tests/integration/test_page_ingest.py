"""Page ingestion from its start to its end: real statements, the real adapter, an upstream that behaves or does not."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest
import sqlalchemy as sa

from infra.local.standins.nivoda import NivodaStandIn
from infra.local.standins.nivoda_faults import Fault, Operation
from shared.page_ingest import store
from tests.support.ingest import IngestRig, a_turn, ids


@pytest.mark.full
def test_a_plain_catalogue_is_ingested_once_and_exactly(ingest: IngestRig) -> None:
    standin = ingest.stock(800)
    run_id = ingest.start()

    assert ingest.finish(run_id) == "succeeded complete", ingest.run(run_id)["error"]

    assert sorted(ingest.seen(run_id)) == sorted(ids(standin))
    assert ingest.diamonds() == ids(standin)
    assert ingest.terminal_lines(run_id) == [(1, "succeeded")]
    assert len(ingest.lanes(run_id, "consolidate:")) == 1
    assert len(ingest.lanes(run_id)) >= 8
    assert standin.calls[Operation.AUTHENTICATE] == 1
    assert not standin.surprises


def misbehave(standin: NivodaStandIn) -> None:
    """Everything that an upstream does to its clients, now and then, and with an end."""
    ways: dict[str, dict[str, Any]] = {
        "throttle": {"retry_after": "7", "chance": 0.02, "budget": 6},
        "server_error": {"chance": 0.03, "budget": 10},
        "html": {"chance": 0.02, "budget": 10},
        "truncated": {"chance": 0.02, "budget": 10},
        "wrong_types": {"chance": 0.02, "budget": 10},
        "reset": {"chance": 0.02, "budget": 5},
        "errors": {"chance": 0.02, "budget": 5},
        "empty_object": {"chance": 0.01, "budget": 5},
        "null_data": {"chance": 0.01, "budget": 5},
        "expired": {"chance": 0.01, "budget": 3},
        "overfull": {"chance": 0.01, "budget": 5},
        "poison": {"chance": 0.05},
        "short_page": {"chance": 0.1, "by": 3},
        "empty_page": {"chance": 0.03, "budget": 12},
        "displaced": {"chance": 0.03, "budget": 12},
        "twins": {"chance": 0.05, "budget": 20, "share": 0.1, "distance": 2},
        "lying_total": {"chance": 0.5, "by": -40},
        "lying_count": {"chance": 0.05, "budget": 6, "by": -30},
    }
    for fault, how in ways.items():
        standin.misbehave(fault, **how)
    standin.misbehave("throttle", chance=0.02, budget=4)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2))
def test_a_misbehaving_upstream_changes_nothing_about_the_rows(ingest: IngestRig, seed: int) -> None:
    standin = ingest.stock(2_400, seed)
    misbehave(standin)
    run_id = ingest.start(partition_records=300, recrawls=5)

    assert ingest.finish(run_id) == "succeeded complete", ingest.run(run_id)["error"]

    assert sorted(ingest.seen(run_id)) == sorted(ids(standin))
    assert ingest.diamonds() == ids(standin)
    assert ingest.terminal_lines(run_id) == [(1, "succeeded")]
    assert len(ingest.lanes(run_id, "consolidate:")) == 1
    assert len(standin.struck) >= 15
    assert not standin.surprises


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2))
def test_a_catalogue_that_changes_under_the_crawl_loses_no_stone(ingest: IngestRig, seed: int) -> None:
    standin = ingest.stock(2_000, seed)
    standin.misbehave("shift", chance=0.15, budget=25, deletes=3, inserts=2, reprices=3)
    before = ingest.moment()
    run_id = ingest.start(partition_records=300, recrawls=5, page_size=50)

    assert ingest.finish(run_id) == "succeeded complete", ingest.run(run_id)["error"]

    after, seen = ingest.moment(), ingest.seen(run_id)
    assert len(seen) == len(set(seen))
    assert standin.stock.unchanged_throughout(before, after) & ids(standin) <= set(seen)
    assert standin.held_throughout(before, after) & ids(standin) <= set(seen)
    assert set(seen) <= standin.stock.ever_held(before, after)
    assert standin.struck[Fault.SHIFT] == 25


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_forty_partitions_of_two_thousand_records_from_a_misbehaving_upstream(ingest: IngestRig) -> None:
    standin = ingest.stock(120_000)
    misbehave(standin)
    standin.misbehave("shift", chance=0.02, budget=30, deletes=3, inserts=3)
    before = ingest.moment()
    run_id = ingest.start(partition_records=4_000, recrawls=5)  # halving makes partitions of 2,000 to 4,000

    assert ingest.finish(run_id) == "succeeded complete", ingest.run(run_id)["error"]

    after, seen = ingest.moment(), ingest.seen(run_id)
    first_crawls = [lane["cursor"] for lane in ingest.lanes(run_id) if lane["cursor"]["crawl"] == 1]
    assert sum(cursor["counted"] >= 2_000 for cursor in first_crawls if not cursor["split"]) >= 40
    assert len(seen) == len(set(seen))
    assert standin.held_throughout(before, after) & ids(standin) <= set(seen)
    assert set(seen) <= standin.stock.ever_held(before, after)
    assert ingest.terminal_lines(run_id) == [(1, "succeeded")]
    assert len(ingest.lanes(run_id, "consolidate:")) == 1


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_five_thousand_pages_in_one_lane_with_flat_memory(ingest: IngestRig) -> None:
    standin = ingest.stock(10_100)
    run_id = ingest.start(partition_records=100_000, page_size=4)
    while not ingest.lanes(run_id):
        ingest.work(ingest.expect())
    tracemalloc.start()
    held = []
    for _ in range(5):
        ingest.work_off(most=900)
        ingest.now += 301  # the queue in memory remembers five minutes of deduplication ids, as SQS does
        standin.log.clear()
        gc.collect()
        held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()

    assert ingest.finish(run_id) == "succeeded complete"

    (lane,) = ingest.lanes(run_id)
    assert lane["cursor"]["pages"] >= 5_000
    assert sorted(ingest.seen(run_id)) == sorted(ids(standin))
    assert max(held[1:]) - min(held[1:]) < 200_000, held


MANY_ROWS = """
insert into raw_item (run_id, external_id, tenant_id, source, offer_id, price_cents, partition, page, hash, payload, seen_at)
select cast(:run_id as uuid), n::text, cast(:tenant_id as uuid), 'nivoda', 'o', n, 'part', 0, 'h', '{}', '2026-01-01Z' from generate_series(1, 5000) n
"""


def test_a_batch_to_consolidate_costs_the_same_however_many_rows_are_left(
    ingest: IngestRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = a_turn(1)
    with ingest.owner.connect() as connection:
        connection.execute(sa.text(MANY_ROWS), {"run_id": turn.run_id, "tenant_id": turn.tenant_id})
    monkeypatch.setattr(store, "BATCH_ENDS_AT", sa.text(f"explain (format json) {store.BATCH_ENDS_AT.text}"))

    plan = str(store.PageStore(ingest.engine).batch_ends_at(turn, "", 1_000))

    assert "raw_item_pkey" in plan
    assert "Sort" not in plan, "all that is left would be sorted for each batch"
