"""What may become of an ingestion run: policies, retries, splits, overlapping runs and tenants, views, bad input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from infra.local.standins.nivoda_faults import Fault, Operation
from infra.local.standins.nivoda_stones import Stone
from shared.kernel import db
from shared.kernel import run as runs
from shared.kernel import sweep as sweeping
from shared.kernel.baton import Baton
from shared.kernel.catalogue import Catalogue
from shared.kernel.errors import Permanent, Refused
from shared.kernel.metrics import Metric
from shared.kernel.model import Run, Turn, account_name
from shared.kernel.ports import Tx
from shared.kernel.queue import Outgoing
from shared.kernel.sweep import sweep
from shared.page_ingest import decide, steps, store
from shared.page_ingest.adapters.nivoda import Nivoda
from shared.page_ingest.api import latest_phases
from shared.page_ingest.model import CrawlCursor, IngestSettings, PriceRange
from shared.page_ingest.ports import Upstream
from tests.support.databases import as_user
from tests.support.ingest import OTHER_TENANT, IngestRig, a_turn, ids
from tests.support.rig import DEAD, FIFO, TENANT, RigDatabase

pytestmark = pytest.mark.full


class BrokenAt:
    """The real adapter, except that it fails for good on partitions that hold certain prices."""

    def __init__(self, rig: IngestRig, *dollars: int) -> None:
        self.rig = rig
        self.dollars = set(dollars)

    def __call__(self, source: str, turn: Turn, time_left_s: Callable[[], float]) -> Upstream:
        real, broken = self.rig.nivoda(source, turn, time_left_s), self

        class Client:
            authenticate, count = real.authenticate, real.count

            def page(self, token: str, prices: PriceRange, offset: int, limit: int) -> Any:
                if any(prices.low <= dollars < prices.high for dollars in broken.dollars):
                    raise Permanent("this shelf is closed", "closed")
                return real.page(token, prices, offset, limit)

        return Client()


@pytest.fixture
def shop(ingest: IngestRig) -> IngestRig:
    ingest.stock(600)
    return ingest


@pytest.mark.usefixtures("page_by_page")
def test_the_summary_of_a_run_adds_up(shop: IngestRig) -> None:
    run_id = shop.start()
    assert shop.finish(run_id) == "succeeded complete"

    (told,) = shop.view(store.SUMMARY.text, run_id=run_id, tenant_id=TENANT)
    heat = shop.view(
        store.list_partitions(after=False, with_heat=True).text, run_id=run_id, tenant_id=TENANT, most=99, heat=60
    )

    parts = shop.lanes(run_id)
    assert told["partitions"] == told["done"] == len(parts) > 1
    assert (told["failed"], told["stuck"], told["split"], told["drifted"], told["duplicates"]) == (0, 0, 0, 0, 0)
    assert told["counted"] == told["walked"] == sum(part["cursor"]["counted"] for part in parts)
    assert told["walked"] >= len(ids(shop.standin)), "upstream a price may belong to two ranges"
    phases = latest_phases(told["phases"])
    assert {name: [(lane["status"], lane["left"]) for lane in lanes] for name, lanes in phases.items()} == {
        "plan": [("done", 0)], "audit": [("done", 0)], "consolidate": [("done", None)],
    }  # fmt: skip
    for row in heat:
        assert len(row["heat"]) == decide.pages_expected(row["counted"], row["page_size"])
        assert {each["outcome"] for each in row["heat"]} == {"moved", "done"}


def test_a_failed_partition_fails_the_run_and_can_be_run_again_alone(shop: IngestRig) -> None:
    broken = BrokenAt(shop, 5_000)
    shop.use(broken)
    run_id = shop.start()
    assert shop.finish(run_id) == "failed partitions_failed"
    failed = [lane for lane in shop.lanes(run_id) if lane["status"] == "failed"]
    assert [lane["last_error"]["code"] for lane in failed] == ["closed"]
    assert not shop.diamonds(), "nothing was consolidated"
    seqs = {lane["key"]: lane["seq"] for lane in shop.lanes(run_id) if lane["status"] == "done"}

    broken.dollars.clear()
    runs.retry_run(shop.ports, shop.kind, TENANT, run_id)

    assert shop.finish(run_id) == "succeeded complete"
    assert shop.diamonds() == ids(shop.standin)
    assert {lane["key"]: lane["seq"] for lane in shop.lanes(run_id) if lane["key"] in seqs} == seqs
    assert shop.terminal_lines(run_id) == [(1, "failed"), (2, "succeeded")]
    assert [lane["key"] for lane in shop.lanes(run_id, "consolidate:")] == ["consolidate:2"]


def test_enough_partitions_are_enough_and_the_rest_can_follow(shop: IngestRig) -> None:
    broken = BrokenAt(shop, 5_000)
    shop.use(broken)
    run_id = shop.start(policy={"rule": "at_least", "percent": 50})
    assert shop.finish(run_id) == "succeeded partial"
    (failed,) = [lane for lane in shop.lanes(run_id) if lane["status"] == "failed"]
    missing = ids(shop.standin, failed["cursor"]["low"], failed["cursor"]["high"])
    assert missing
    assert shop.diamonds() == ids(shop.standin) - missing

    broken.dollars.clear()
    runs.retry_run(shop.ports, shop.kind, TENANT, run_id)

    assert shop.finish(run_id) == "succeeded complete"
    assert shop.diamonds() == ids(shop.standin)
    assert [lane["key"] for lane in shop.lanes(run_id, "consolidate:")] == ["consolidate:1", "consolidate:2"]
    assert shop.terminal_lines(run_id) == [(1, "succeeded"), (2, "succeeded")]


@pytest.mark.parametrize(("critical", "ends"), [(5_000, "failed partitions_failed"), (15_000, "succeeded partial")])
def test_a_critical_partition_must_succeed(shop: IngestRig, critical: int, ends: str) -> None:
    shop.use(BrokenAt(shop, 5_000))
    run_id = shop.start(policy={"rule": "critical", "prices": [critical]})

    assert shop.finish(run_id) == ends


def test_a_partition_that_grows_while_it_is_crawled_is_cut(ingest: IngestRig) -> None:
    standin = ingest.stock(60)
    grown: list[str] = []

    def grow(operation: Operation, variables: Any) -> None:
        if operation is Operation.PAGE and not grown:
            grown.extend(standin.stock.insert() for _ in range(400))

    standin.before_each = grow
    run_id = ingest.start(partition_records=60, page_size=20, recrawls=5)

    assert ingest.finish(run_id) == "succeeded complete"

    assert sorted(ingest.seen(run_id)) == sorted(ids(standin))
    assert [row for row in ingest.view("select * from partition_progress") if row["split"]]
    metadata = ingest.view("select * from run_metadata")[0]
    assert metadata["expected_workers"] == metadata["completed_workers"] > 1


def test_what_two_complete_runs_do_not_see_is_gone_but_never_deleted(shop: IngestRig) -> None:
    everything = ids(shop.standin)
    assert shop.finish(shop.start()) == "succeeded complete"
    sold = {stone.id for stone in shop.standin.stones[::7]}
    for stone_id in sold:
        shop.standin.stock.delete(stone_id)
    shop.now += 3_600

    broken = BrokenAt(shop, 5_000)
    shop.use(broken)
    for _ in range(2):
        assert shop.finish(shop.start(policy={"rule": "at_least", "percent": 50})) == "succeeded partial"
    assert shop.diamonds(gone=True) == set(), "a run that did not see all cannot say what is gone"

    broken.dollars.clear()
    shop.now += 3_600
    assert shop.finish(shop.start(high=5_000)) == "succeeded complete"
    assert shop.diamonds(gone=True) == set(), "one witness is not enough"
    shop.now += 3_600
    assert shop.finish(shop.start(high=5_000)) == "succeeded complete"
    cheap = {row["external_id"] for row in shop.rows("select external_id from diamond where price_cents < 500000")}
    assert shop.diamonds(gone=True) == sold & cheap, "and a run says nothing about prices that it did not look at"

    for _ in range(2):
        shop.now += 3_600
        assert shop.finish(shop.start()) == "succeeded complete"
    assert (shop.diamonds(), shop.diamonds(gone=True)) == (everything - sold, sold)


def test_a_retried_run_is_no_second_witness_of_its_own(shop: IngestRig) -> None:
    shop.finish(shop.start())
    sold = shop.standin.stock.delete(shop.standin.stones[3].id)
    shop.now += 60
    broken = BrokenAt(shop)
    shop.use(broken)
    run_id = shop.start()
    assert shop.finish(run_id) == "succeeded complete"

    runs.retry_run(shop.ports, shop.kind, TENANT, run_id)
    assert shop.finish(run_id) == "succeeded complete"

    assert shop.diamonds(gone=True) == set()
    (row,) = shop.rows("select missed_by from diamond where external_id = :id", id=sold)
    assert row["missed_by"] == run_id


def test_two_runs_at_once_are_one_witness(shop: IngestRig) -> None:
    shop.finish(shop.start())
    sold = shop.standin.stock.delete(shop.standin.stones[3].id)
    shop.now += 60
    first = shop.start()
    shop.now += 1
    second = shop.start()
    assert (shop.finish(first), shop.finish(second)) == ("succeeded complete", "succeeded complete")
    assert shop.diamonds(gone=True) == set()

    shop.now += 60
    assert shop.finish(shop.start()) == "succeeded complete"
    assert shop.diamonds(gone=True) == {sold}


@pytest.mark.parametrize("at_once", [True, False])
def test_two_newer_runs_are_two_witnesses_to_a_run_that_comes_late_unless_they_looked_at_once(
    shop: IngestRig, at_once: bool
) -> None:
    late = shop.start()
    while not shop.lanes(late, "consolidate:"):
        shop.work(shop.expect())
    runs.pause_run(shop.ports, TENANT, late)
    sold = shop.standin.stock.delete(shop.standin.stones[3].id)
    shop.now += 60
    first = shop.start()
    if not at_once:
        assert shop.finish(first) == "succeeded complete"
    shop.now += 1
    second = shop.start()
    assert (shop.finish(first), shop.finish(second)) == ("succeeded complete", "succeeded complete")

    runs.resume_run(shop.ports, TENANT, late)
    assert shop.finish(late) == "succeeded complete"
    assert shop.diamonds(gone=True) == (set() if at_once else {sold})

    shop.now += 60
    assert shop.finish(shop.start()) == "succeeded complete"
    assert shop.diamonds(gone=True) == {sold}


def test_a_stone_that_a_retried_run_finds_is_not_gone_because_newer_runs_looked_before_it_was_there(
    shop: IngestRig,
) -> None:
    old = shop.start()
    assert shop.finish(old) == "succeeded complete"
    for _ in range(2):
        shop.now += 3_600
        assert shop.finish(shop.start()) == "succeeded complete"
    new = shop.standin.stock.insert(price_cents=shop.standin.stones[3].price_cents)

    shop.now += 3_600
    runs.retry_run(shop.ports, shop.kind, TENANT, old)
    assert shop.finish(old) == "succeeded complete"

    (row,) = shop.rows("select gone_at, missed_by from diamond where external_id = :id", id=new)
    assert (row["gone_at"], row["missed_by"]) == (None, None)


def test_a_stone_that_a_retried_run_sees_today_is_there_whatever_newer_runs_said_before(shop: IngestRig) -> None:
    """It reads again where the count has changed since."""
    old, stone, other = shop.start(), shop.standin.stones[3], shop.standin.stones[4]
    assert shop.finish(old) == "succeeded complete"
    shop.standin.stock.reprice(stone.id, 10**9)
    for _ in range(2):
        shop.now += 3_600
        assert shop.finish(shop.start()) == "succeeded complete"
    assert shop.diamonds(gone=True) == {stone.id}

    shop.now += 3_600
    shop.standin.stock.reprice(stone.id, stone.price_cents)
    for cents in (1, 2):  # again, and once more
        shop.standin.stock.reprice(other.id, stone.price_cents + cents)
        shop.standin.stock.insert(price_cents=stone.price_cents)
        runs.retry_run(shop.ports, shop.kind, TENANT, old)
        assert shop.finish(old) == "succeeded complete"
        assert shop.diamonds(gone=True) == set()
        (row,) = shop.rows("select price_cents from diamond where external_id = :id", id=other.id)
        assert row["price_cents"] == stone.price_cents + cents
        shop.now += 3_600

    shop.standin.stock.delete(stone.id)
    for _ in range(2):
        assert shop.finish(shop.start()) == "succeeded complete"
        shop.now += 3_600
    assert shop.diamonds(gone=True) == {stone.id}, "newer runs have the last word again"


def test_a_retried_run_has_no_word_on_what_it_saw_before_a_newer_one_ended(shop: IngestRig) -> None:
    """It saw the stone after the newer run had begun, and does not read it again: the newer one may have looked later."""
    stone = shop.standin.stones[3]
    old = shop.start()
    shop.now += 1
    newer = shop.start()
    runs.pause_run(shop.ports, TENANT, newer)
    shop.now += 60
    while not shop.lanes(old, "consolidate:"):
        shop.work(shop.expect())
    runs.cancel_run(shop.ports, shop.kind, TENANT, old)
    shop.finish(old)
    shop.now += 60
    shop.standin.stock.reprice(stone.id, stone.price_cents + 1)
    runs.resume_run(shop.ports, TENANT, newer)
    assert shop.finish(newer) == "succeeded complete"

    shop.now += 60
    runs.retry_run(shop.ports, shop.kind, TENANT, old)
    assert shop.finish(old) == "succeeded complete"

    (row,) = shop.rows("select price_cents from diamond where external_id = :id", id=stone.id)
    assert row["price_cents"] == stone.price_cents + 1


def test_a_stone_that_comes_back_after_it_was_missed_once_begins_anew(shop: IngestRig) -> None:
    shop.finish(shop.start())
    stone = shop.standin.stones[3]
    for there in (False, True, False):
        shop.standin.stock.reprice(stone.id, stone.price_cents if there else 10**9)
        shop.now += 60
        assert shop.finish(shop.start()) == "succeeded complete"
        assert stone.id in shop.diamonds()

    shop.now += 60
    assert shop.finish(shop.start()) == "succeeded complete"
    assert shop.diamonds(gone=True) == {stone.id}


def test_what_a_second_crawl_of_the_same_run_does_not_see_is_not_there(shop: IngestRig) -> None:
    before = ids(shop.standin)
    run_id = shop.start()
    while not shop.lanes(run_id, "audit:"):
        shop.work(shop.expect())
    sold = shop.standin.stones[0]
    shop.standin.stock.delete(sold.id)

    assert shop.finish(run_id) == "succeeded complete"

    assert any(lane["key"].endswith("#2") for lane in shop.lanes(run_id)), "its partition was crawled again"
    assert shop.diamonds() == set(shop.seen(run_id)) == before - {sold.id}


def test_what_a_restarted_crawl_does_not_see_is_not_there(shop: IngestRig) -> None:
    run_id = shop.start(partition_records=5_000)
    while not shop.lanes(run_id):
        shop.work(shop.expect())
    shop.work(shop.expect())
    (lane,) = shop.lanes(run_id)
    sold = shop.standin.stones[0]
    assert sold.id in shop.seen(run_id)
    shop.standin.stock.delete(sold.id)

    cursor = CrawlCursor.read(lane["cursor"]).from_the_start.to_json()
    runs.restart_lane(shop.ports, TENANT, lane["id"], cursor)
    assert shop.finish(run_id) == "succeeded complete"

    assert [each["key"] for each in shop.lanes(run_id)] == [lane["key"]], (
        "one crawl, of which the second beginning counts"
    )
    assert shop.diamonds() == set(shop.seen(run_id)) == ids(shop.standin)


def test_two_stones_that_change_places_across_a_page_boundary_make_no_complete_run(ingest: IngestRig) -> None:
    standin = ingest.stock(300)
    swapped = list[int]()

    def swap(operation: Operation, variables: Any) -> None:
        if operation is Operation.PAGE and variables["offset"] > 40 and len(swapped) < 1:
            swapped.append(variables["offset"])
            standin.stock.swap(5, 120)

    standin.before_each = swap
    run_id = ingest.start(partition_records=5_000)
    while not ingest.lanes(run_id, "audit:"):
        ingest.work(ingest.expect())
    missing = ids(standin) - set(ingest.seen(run_id))
    (lane,) = ingest.lanes(run_id)
    assert len(missing) == 1
    assert (lane["cursor"]["shifts"], lane["cursor"]["offset"]) == (0, lane["cursor"]["counted"])
    assert not lane["cursor"]["clean"]

    assert ingest.finish(run_id) == "succeeded complete"
    assert set(ingest.seen(run_id)) == ids(standin), "the second crawl found it"


def test_stones_that_are_listed_for_another_price_than_they_show_make_no_complete_run(
    shop: IngestRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upstream that filters by one price and shows another: what lies between the two belongs to no partition."""
    everything, shown = ids(shop.standin), Stone.to_item
    assert shop.finish(shop.start()) == "succeeded complete"
    monkeypatch.setattr(Stone, "to_item", lambda stone: {**shown(stone), "price": stone.price_cents * 103 // 100})

    for _ in range(3):
        shop.now += 3_600
        run_id = shop.start()
        assert shop.finish(run_id) == "succeeded drifted"
        assert set(shop.seen(run_id)) < everything, "some of them were kept by nobody"
    assert (shop.diamonds(), shop.diamonds(gone=True)) == (everything, set())


def test_a_stone_has_its_typed_columns_and_the_rest_as_it_came(shop: IngestRig) -> None:
    run_id = shop.start()
    shop.finish(run_id)
    stone = shop.standin.stones[0]

    (row,) = shop.view("select * from diamond where external_id = :id", id=stone.id)
    (raw,) = shop.view("select * from raw_diamonds_nivoda where supplier_stone_id = :id", id=stone.id)

    assert (row["offer_id"], row["price_cents"], float(row["carats"])) == (
        stone.offer_id,
        stone.price_cents,
        stone.carats,
    )
    assert (row["shape"], row["availability"], row["source_run"]) == (stone.shape, stone.availability, run_id)
    wanted = {"color": "color", "clarity": "clarity", "lab": "lab", "certificate": "certNumber"}
    assert all(row[column] == stone.rest[name] for column, name in wanted.items())
    assert row["rest"]["diamond"]["supplierStockId"] == f"S{stone.created}"
    assert (raw["nivoda_stone_id"], raw["raw_payload"], len(raw["source_hash"])) == (stone.offer_id, row["rest"], 32)


def test_a_row_is_written_once_by_each_crawl_that_sees_it(shop: IngestRig) -> None:
    run_id = shop.start()
    while not shop.lanes(run_id, "audit:"):
        shop.work(shop.expect())
    before = {row["external_id"]: row["v"] for row in shop.rows("select external_id, xmin::text as v from raw_item")}
    stone = shop.standin.stones[0]
    shop.standin.stock.insert(price_cents=stone.price_cents)  # the partition drifts and is crawled again

    assert shop.finish(run_id) == "succeeded complete"

    after = {row["external_id"]: row["v"] for row in shop.rows("select external_id, xmin::text as v from raw_item")}
    (again,) = [lane["cursor"] for lane in shop.lanes(run_id) if lane["key"].endswith("#2")]
    crawled_again = ids(shop.standin, again["low"], again["high"])
    assert len(after) == len(before) + 1
    assert {key for key in before if after[key] != before[key]} == crawled_again & before.keys()


def test_consolidation_goes_in_bounded_batches(shop: IngestRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "CONSOLIDATE_BATCH", 50)
    shop.finish(shop.start())
    for stone in shop.standin.stones[:120]:
        shop.standin.stock.delete(stone.id)
    for _ in range(2):
        shop.now += 60
        run_id = shop.start()
        assert shop.finish(run_id) == "succeeded complete"

    (lane,) = shop.lanes(run_id, "consolidate:")
    assert lane["steps"] == -(-len(shop.seen(run_id)) // 50) + -(-120 // 50) + 1
    assert shop.diamonds() == ids(shop.standin)


def test_a_page_that_is_too_big_is_asked_for_in_halves_and_that_is_remembered(ingest: IngestRig) -> None:
    standin = ingest.stock(300)
    standin.misbehave("too_big_above", above=20)
    assert ingest.finish(ingest.start(page_size=50)) == "succeeded complete"
    refused = standin.struck[Fault.TOO_BIG_ABOVE]
    assert 2 <= refused <= 20
    assert [row["page_size"] for row in ingest.rows("select page_size from upstream")] == [12]

    assert ingest.finish(ingest.start(page_size=50)) == "succeeded complete"
    assert standin.struck[Fault.TOO_BIG_ABOVE] == refused, "the next run knows it from the start"


def test_three_slow_answers_make_pages_small_for_minutes_and_not_for_a_day(ingest: IngestRig) -> None:
    standin = ingest.stock(300)
    standin.misbehave("too_big_above", above=4, budget=3)
    assert ingest.finish(ingest.start(page_size=50)) == "succeeded complete"
    sizes = []
    for _ in range(5):
        standin.log.clear()
        assert ingest.finish(ingest.start(page_size=50)) == "succeeded complete"
        sizes.append(max(call.limit for call in standin.log if call.operation is Operation.PAGE))
        ingest.now += 300

    assert sizes == [6, 12, 24, 48, 50]
    assert [row["limit"] for row in ingest.rows("select distinct cursor ->> 'limit' as limit from lane where key like 'part:%'")] == ["50"]  # fmt: skip


def test_an_account_that_fails_at_growing_is_tried_ever_less_often(ingest: IngestRig) -> None:
    standin = ingest.stock(120)
    standin.misbehave("too_big_above", above=20)
    refused = []
    for _ in range(24):  # two hours
        before = standin.struck[Fault.TOO_BIG_ABOVE]
        assert ingest.finish(ingest.start()) == "succeeded complete"
        refused.append(standin.struck[Fault.TOO_BIG_ABOVE] - before > 0)
        ingest.now += 300

    assert sum(refused) <= 6, refused


def test_the_page_size_of_one_account_says_nothing_about_another(shop: IngestRig) -> None:
    turn = a_turn(1)
    shop.rows(
        """insert into upstream (tenant_id, source, page_size, page_size_until)
           values (:t, 'nivoda:a', 6, 'infinity') returning 1""",
        t=TENANT,
    )

    assert shop.store.page_size(turn, "nivoda:a") == 6
    assert shop.store.page_size(turn, "nivoda:b") is None
    assert shop.store.page_size(replace(turn, tenant_id=OTHER_TENANT), "nivoda:a") is None


def test_an_upstream_that_can_answer_nothing_fails_the_partition_with_its_reason(ingest: IngestRig) -> None:
    standin = ingest.stock(30)
    standin.misbehave("too_big_above", above=1)
    run_id = ingest.start()

    assert ingest.finish(run_id, within_s=24 * 3600) == "failed partitions_failed"

    assert ingest.lanes(run_id)[0]["last_error"]["code"] == "page_too_big"


def test_a_token_that_ends_is_fetched_again_once_for_all(shop: IngestRig) -> None:
    run_id = shop.start()
    while not shop.lanes(run_id):
        shop.work(shop.expect())
    shop.standin.expire_tokens()

    assert shop.finish(run_id) == "succeeded complete"

    assert shop.standin.calls[Operation.AUTHENTICATE] == 2


@pytest.mark.parametrize("uses", [1, 2, 3])
def test_a_token_that_dies_after_a_few_uses_is_fetched_again_and_the_work_goes_on(shop: IngestRig, uses: int) -> None:
    shop.standin.token_lives_calls = uses
    run_id = shop.start(partition_records=60)

    ended = shop.finish(run_id, within_s=24 * 3600)

    assert ended == "succeeded complete" if uses > 1 else ended.startswith("succeeded")
    assert shop.diamonds() == ids(shop.standin)
    assert shop.lane(run_id, "plan")["steps"] > 1, "what each token was good for was kept"


def test_a_token_that_is_never_accepted_is_not_asked_for_without_end(shop: IngestRig) -> None:
    shop.standin.misbehave("expired")
    run_id = shop.start()

    assert shop.finish(run_id, within_s=24 * 3600) == "failed failed"

    assert shop.lane(run_id, "plan")["last_error"]["code"] == "token_refused"
    assert shop.standin.calls[Operation.AUTHENTICATE] <= 12


def test_a_wrong_password_fails_the_run_at_once_and_says_so(shop: IngestRig) -> None:
    def with_wrong_password(source: str, turn: Turn, time_left_s: Callable[[], float]) -> Upstream:
        return Nivoda(shop.base_url, shop.standin.username, "wrong", time_left_s=time_left_s)

    shop.use(with_wrong_password)
    run_id = shop.start()

    assert shop.finish(run_id) == "failed failed"

    assert "Nivoda refuses this account. " in shop.run(run_id)["error"]["message"]
    assert shop.standin.calls[Operation.AUTHENTICATE] == 1


def test_runs_of_one_tenant_at_the_same_time_do_not_disturb_each_other(shop: IngestRig) -> None:
    both = [shop.start(), shop.start(partition_records=60)]

    assert [shop.finish(run_id) for run_id in both] == ["succeeded complete"] * 2

    for run_id in both:
        assert sorted(shop.seen(run_id)) == sorted(ids(shop.standin))
        assert shop.terminal_lines(run_id) == [(1, "succeeded")]


def test_a_canceled_run_stops_and_can_go_on(shop: IngestRig) -> None:
    run_id = shop.start()
    while not shop.lanes(run_id):
        shop.work(shop.expect())
    runs.cancel_run(shop.ports, shop.kind, TENANT, run_id)
    calls = shop.standin.calls.total()
    assert shop.finish(run_id) == "canceled canceled"
    assert shop.standin.calls.total() == calls

    runs.retry_run(shop.ports, shop.kind, TENANT, run_id)

    assert shop.finish(run_id) == "succeeded complete"
    assert shop.diamonds() == ids(shop.standin)


# --- bad input


@pytest.mark.parametrize("wrong", [{"source": "elsewhere"}, {"low": 900, "high": 500}, {"page_size": 51}])
def test_a_run_that_makes_no_sense_leaves_nothing_behind(shop: IngestRig, wrong: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        shop.start(**wrong)

    assert not shop.rows("select 1 from run")
    assert not shop.rows("select 1 from lane")


def test_messages_that_are_no_batons_of_ours_disturb_nobody(shop: IngestRig) -> None:
    run_id = shop.start()
    foreign = Baton(kind="tally", lane_id=UUID(int=9), epoch=1, seq=0, resend_no=0).to_json()
    unknown = Baton(kind="page_ingest", lane_id=UUID(int=9), epoch=1, seq=0, resend_no=0).to_json()
    for n, body in enumerate(["garbage", "{}", '{"v":99}', "[]", foreign, unknown]):
        shop.queue.send(FIFO, [Outgoing(body=body, group=f"g{n}", dedup_id=f"d{n}")])

    assert shop.finish(run_id) == "succeeded complete"
    shop.pass_time(4 * 3600)

    assert sorted(shop.seen(run_id)) == sorted(ids(shop.standin))
    assert shop.counted[Metric.UNREADABLE] >= 5
    assert not shop.queue.messages(FIFO).visible
    assert not shop.queue.messages(DEAD).visible


def test_a_lane_that_nobody_knows_fails_with_its_name(shop: IngestRig) -> None:
    run_id = shop.start()
    while not shop.lanes(run_id):
        shop.work(shop.expect())
    shop.rows("update lane set key = 'mystery' where id = :id returning 1", id=shop.lanes(run_id)[0]["id"])

    shop.pass_time(60)

    assert shop.lane(run_id, "mystery")["last_error"]["code"] == "unknown_lane"


# --- what people see


SEED_QUERIES = {
    "active": "select * from partition_progress where completed = false order by updated_at desc",
    "stuck": "select * from partition_progress where completed = false and updated_at < now() - interval '10 minutes'",
    "workers": """select rm.run_id, rm.completed_workers, rm.expected_workers, rm.failed_workers
                  from run_metadata rm where rm.completed_at is null""",
    "one": "select * from partition_progress where run_id = :run_id and completed = true",
}


@pytest.mark.usefixtures("page_by_page")
def test_the_monitoring_queries_of_the_seed_work(shop: IngestRig) -> None:
    run_id = shop.start()
    while not shop.lanes(run_id):
        shop.work(shop.expect())
    for _ in range(4):
        shop.work(shop.expect())

    active = shop.view(SEED_QUERIES["active"])
    (workers,) = shop.view(SEED_QUERIES["workers"])
    assert len(active) == len(shop.lanes(run_id)) == workers["expected_workers"]
    assert max(row["next_offset"] for row in active) >= 30
    assert workers["completed_workers"] == workers["failed_workers"] == 0

    shop.finish(run_id)
    assert not shop.view(SEED_QUERIES["workers"])
    assert len(shop.view(SEED_QUERIES["one"], run_id=run_id)) == workers["expected_workers"]
    assert shop.view(SEED_QUERIES["stuck"]) == []


def test_a_partition_is_stuck_when_it_was_silent_for_far_longer_than_its_pace(shop: IngestRig) -> None:
    run_id = shop.start(partition_records=5_000)
    while not shop.lanes(run_id):
        shop.work(shop.expect())

    def stuck(silent_s: int, pace_s: int) -> bool:
        shop.rows(
            """update lane set steps = 10, updated_at = pg_catalog.now() - make_interval(secs => :silent), next_due_at = created_at,
               created_at = pg_catalog.now() - make_interval(secs => :silent + 10 * :pace)
               where run_id = :id and key like 'part:%' returning 1""",
            id=run_id,
            silent=silent_s,
            pace=pace_s,
        )
        return bool(shop.view("select stuck from partition_progress")[0]["stuck"])

    assert not stuck(silent_s=100, pace_s=2)
    assert stuck(silent_s=130, pace_s=2)
    assert not stuck(silent_s=550, pace_s=60)
    assert stuck(silent_s=650, pace_s=60)
    runs.pause_run(shop.ports, TENANT, run_id)
    assert not stuck(silent_s=650, pace_s=60)


VIEWS = ("raw_diamonds_nivoda", "partition_progress", "worker_runs", "run_metadata", "raw_item", "diamond")


def test_a_tenant_sees_only_its_own(shop: IngestRig) -> None:
    mine, theirs = shop.start(), shop.start(tenant=OTHER_TENANT)
    assert [shop.finish(run_id) for run_id in (mine, theirs)] == ["succeeded complete"] * 2

    for name in VIEWS:
        for tenant in (TENANT, OTHER_TENANT):
            found = {row["tenant_id"] for row in shop.view(f"select tenant_id from {name}", tenant)}
            assert found == {tenant}, name
        assert shop.view(f"select * from {name}", UUID(int=0xC0)) == []


def test_the_worker_is_bound_to_the_tenant_of_its_turn(shop: IngestRig, rig_database: RigDatabase) -> None:
    shop.finish(shop.start())
    engine = db.connect_engine(as_user(rig_database.url, "baton_worker"))
    tables = ("raw_item", "diamond", "account_token", "upstream")

    def counts(tenant: UUID | None) -> list[int]:
        with engine.begin() as connection:
            if tenant is not None:
                connection.execute(sa.text("select set_config('app.tenant', :t, true)"), {"t": str(tenant)})
            return [connection.execute(sa.text(f"select count(*) from {table}")).scalar_one() for table in tables]

    assert counts(None) == counts(OTHER_TENANT) == [0, 0, 0, 0]
    assert min(counts(TENANT)[:3]) > 0
    foreign = sa.text("insert into upstream (tenant_id, source) values (:t, 'nivoda')")
    with engine.begin() as connection:
        connection.execute(sa.text("select set_config('app.tenant', :t, true)"), {"t": str(TENANT)})
        with pytest.raises(sa.exc.DBAPIError, match="row-level security"):
            connection.execute(foreign, {"t": str(OTHER_TENANT)})
        connection.rollback()
    engine.dispose()


def with_accounts(shop: IngestRig, accounts: Mapping[UUID, str | None]) -> None:
    """Each run by a connection of its own."""

    def upstream(source: str, turn: Turn, time_left_s: Callable[[], float]) -> Upstream:
        gate = account_name(source, turn.params.get("connection"))
        username, password = shop.standin.username, shop.standin.password
        return Nivoda(shop.base_url, username, password, time_left_s=time_left_s, gate=gate, pool=shop.pool)

    shop.use(upstream)
    for run_id, connection in accounts.items():
        shop.rows(
            "update run set params = params || jsonb_strip_nulls(jsonb_build_object('connection', cast(:c as text))) where id = :id returning 1",
            id=run_id,
            c=connection,
        )


@pytest.mark.parametrize("connection", [None, "1"])
def test_a_throttled_upstream_is_left_alone_by_every_partition(shop: IngestRig, connection: str | None) -> None:
    run_id = shop.start()
    with_accounts(shop, {run_id: connection})
    while not shop.lanes(run_id):
        shop.work(shop.expect())
    shop.standin.misbehave("throttle", budget=1, retry_after="300")
    before = shop.standin.calls.total()

    shop.pass_time(290)

    assert shop.standin.calls.total() == before + 1, "one was told to wait, and all waited"
    assert shop.finish(run_id) == "succeeded complete"
    assert {lane["attempts"] for lane in shop.lanes(run_id)} == {0}


def test_a_429_on_one_account_does_not_stop_the_tenants_other_accounts(shop: IngestRig) -> None:
    one, other = shop.start(), shop.start()
    with_accounts(shop, {one: "1", other: "2"})
    shop.standin.misbehave("throttle", budget=1, retry_after="3000")

    shop.pass_time(600)

    states = {run["id"]: run["status"] for run in shop.rows("select id, status from run")}
    assert sorted(states.values()) == ["running", "succeeded"]
    assert [row["key"] for row in shop.rows("select key from gate where state <> 'open'")] in (
        ["nivoda:1"],
        ["nivoda:2"],
    )


@pytest.mark.parametrize("fault", ["drip", "slow"])
def test_a_slow_upstream_is_called_slow_and_never_poison(ingest: IngestRig, fault: str) -> None:
    standin = ingest.stock(30)
    run_id = ingest.start()
    while not ingest.lanes(run_id):
        ingest.work(ingest.expect())
    standin.misbehave(fault, on=["count"], seconds=0.5 if fault == "drip" else 5)
    in_time, ingest.ports = ingest.ports, replace(ingest.ports, time_left_s=lambda: 3.2)

    ingest.work(ingest.expect())

    lane = ingest.lanes(run_id)[0]
    assert (lane["claims"], lane["attempts"], lane["last_error"]["code"]) == (0, 1, "slow_upstream")
    assert "Slow upstream" in lane["last_error"]["message"]
    standin.behave()
    ingest.ports = in_time
    assert ingest.finish(run_id) == "succeeded complete"


@pytest.mark.parametrize("allowed", [1, 2, 5])
def test_an_upstream_that_allows_few_calls_at_a_time_is_ingested_all_the_same(ingest: IngestRig, allowed: int) -> None:
    shop = ingest
    shop.stock(120)
    shop.standin.misbehave("throttle", every=allowed + 1, retry_after="60")
    run_id = shop.start(partition_records=60)

    ended = shop.finish(run_id, within_s=7 * 86_400)

    assert ended == "succeeded complete" if allowed > 1 else ended.startswith("succeeded")
    assert shop.diamonds() == ids(shop.standin)
    steps = shop.rows("select outcome, count(*) as n from step group by 1")
    assert {row["outcome"] for row in steps} <= {"moved", "done", "throttled", "waited"}, "nothing was tried in vain"


def test_a_step_reads_some_pages_and_writes_them_at_once(shop: IngestRig) -> None:
    run_id = shop.start(partition_records=5_000)
    while not shop.lanes(run_id):
        shop.work(shop.expect())

    shop.work(shop.expect())

    (lane,) = shop.lanes(run_id)
    assert (lane["seq"], lane["cursor"]["pages"]) == (1, shop.pages_per_step)
    assert len(shop.seen(run_id)) == lane["cursor"]["offset"] == 30 + (shop.pages_per_step - 1) * 27


@pytest.mark.usefixtures("page_by_page")
def test_a_message_is_a_page_unless_a_deployment_says_otherwise(shop: IngestRig) -> None:
    run_id = shop.start(partition_records=5_000)
    while not shop.lanes(run_id):
        shop.work(shop.expect())

    for pages in (1, 2, 3):
        shop.work(shop.expect())
        (lane,) = shop.lanes(run_id)
        assert (lane["seq"], lane["cursor"]["pages"]) == (pages, pages)
    assert len(shop.seen(run_id)) == 30 + 27 + 27
    assert IngestSettings().pages_per_step == 1


def test_pages_before_a_429_are_kept_and_the_gate_closes_for_everybody(shop: IngestRig) -> None:
    run_id = shop.start(partition_records=5_000)
    while not shop.lanes(run_id):
        shop.work(shop.expect())
    shop.standin.misbehave("throttle", on=["page"], after=3, budget=1, retry_after="300")

    shop.work(shop.expect())

    (lane,) = shop.lanes(run_id)
    assert (lane["seq"], lane["cursor"]["pages"], lane["waits_for"]) == (1, 3, "gate:nivoda")
    assert len(shop.seen(run_id)) == lane["cursor"]["offset"]
    assert [(row["key"], row["state"]) for row in shop.rows("select key, state from gate")] == [("nivoda", "closed")]
    calls = shop.standin.calls.total()
    shop.pass_time(290)
    assert shop.standin.calls.total() == calls
    assert shop.finish(run_id) == "succeeded complete"


def test_pages_before_a_failure_are_kept(shop: IngestRig) -> None:
    run_id = shop.start(partition_records=5_000)
    while not shop.lanes(run_id):
        shop.work(shop.expect())
    shop.standin.misbehave("server_error", on=["page"], after=3, budget=1)

    shop.work(shop.expect())

    (lane,) = shop.lanes(run_id)
    assert (lane["seq"], lane["attempts"], lane["cursor"]["pages"]) == (1, 0, 3)
    assert len(shop.seen(run_id)) == lane["cursor"]["offset"]
    assert shop.finish(run_id) == "succeeded complete"


def test_the_ledger_has_one_row_for_every_step(shop: IngestRig) -> None:
    shop.finish(shop.start())

    for row in shop.rows("select l.seq, (select count(*) from step s where s.lane_id = l.id) as steps from lane l"):
        assert row["seq"] == row["steps"]


def raw_rows(rig: IngestRig) -> dict[UUID, int]:
    return {row["run_id"]: row["n"] for row in rig.rows("select run_id, count(*) as n from raw_item group by 1")}


def test_an_old_run_leaves_with_its_raw_rows_and_the_diamonds_stay(
    shop: IngestRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "BATCH", 100)
    old = [shop.start(), shop.start(tenant=OTHER_TENANT)]
    assert [shop.finish(run_id) for run_id in old] == ["succeeded complete"] * 2
    shop.now += 2 * 86_400
    young = shop.start()
    assert shop.finish(young) == "succeeded complete"
    rows, diamonds = raw_rows(shop), shop.rows("select * from diamond order by tenant_id, external_id")
    assert min(rows[run_id] for run_id in old) > 3 * sweeping.BATCH

    shop.now += 89 * 86_400
    assert sweep(shop.ports, shop.kinds)["run"] == 2

    assert raw_rows(shop) == {young: rows[young]}
    assert [row["id"] for row in shop.rows("select id from run")] == [young]
    assert shop.rows("select * from diamond order by tenant_id, external_id") == diamonds
    assert sweep(shop.ports, shop.kinds)["run"] == 0


def test_a_run_that_is_half_pruned_stays_closed_and_the_next_sweep_ends_it(
    shop: IngestRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "BATCH", 100)
    shop.use(BrokenAt(shop, 5_000))
    run_id = shop.start()
    assert shop.finish(run_id) == "failed partitions_failed"
    shop.now += 91 * 86_400
    before, batches = raw_rows(shop)[run_id], iter([True, False])

    def dies_in_its_second_batch(tx: Tx, run: Run, most: int) -> int:
        pruned = steps.prune(tx, run, most)
        assert next(batches)
        return pruned

    assert sweep(shop.ports, Catalogue(replace(shop.kind, prune=dies_in_its_second_batch)))["run"] == 0
    assert raw_rows(shop) == {run_id: before - sweeping.BATCH}
    with pytest.raises(Refused, match="past its retention"):
        runs.retry_run(shop.ports, shop.kind, TENANT, run_id)
    assert shop.run(run_id)["status"] == "failed"

    shop.now += 900
    assert sweep(shop.ports, shop.kinds)["run"] == 1
    assert (raw_rows(shop), shop.rows("select id from run")) == ({}, [])
