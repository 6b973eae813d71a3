"""Row jobs from a file to worked rows, on a real Postgres under the clock of the rig."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from shared.kernel import run as runs
from shared.kernel.decide import Limits
from shared.kernel.errors import Conflict, NotFound
from shared.kernel.metrics_emf import EmfMeter
from shared.kernel.model import Signal
from shared.row_job import control, decide, picturing
from shared.row_job.decide import Answered
from shared.row_job.model import Item
from shared.row_job.steps import RowMetric, row_job
from tests.support.pictures import packed, png
from tests.support.rig import BEGINNING, TENANT
from tests.support.rows import BY, SETTINGS, RowRig, csv_of, found, rows

__all__ = ["rows"]


def test_every_row_of_a_file_is_kept_and_worked_on_once(rows: RowRig) -> None:
    run_id = rows.upload(csv_of(700))

    assert rows.finish(run_id, 3600) == "succeeded"
    assert rows.statuses(run_id) == {"DONE": 700}
    assert [row["row_no"] for row in rows.items(run_id)] == list(range(1, 701))
    assert len(rows.provider.calls) == 700
    assert max(rows.provider.keys.values()) == 1
    first = rows.items(run_id)[0]
    assert first["input_json"] == {"title": "Product 1", "brand": "Acme", "sku": "SKU-1"}
    assert first["result_json"]["offers"][0]["title"] == "Product 1"
    assert (str(first["price"]), first["user_id"], first["attempts"]) == ("9.90", "user:ann", 1)
    events = rows.rows("select count(*) as n, count(distinct row_no) as r from search_events")
    assert (events[0]["n"], events[0]["r"]) == (700, 700)
    job = rows.job(run_id)
    assert (job["total_items"], job["processed_items"], job["failed_items"]) == (700, 700, 0)
    assert job["read_bytes"] == len(csv_of(700).encode())
    said = [row["name"] for row in rows.rows("select name from signal where name like 'row_job%'")]
    assert said == ["row_job.done"]


def test_a_canary_holds_the_rest_back_until_it_is_promoted(rows: RowRig) -> None:
    run_id = rows.upload(csv_of(40), canary=5)
    rows.pass_time(120)
    assert rows.statuses(run_id) == {"DONE": 5, "PENDING": 35}

    control.promote(rows.ports, TENANT, run_id, BY)

    assert rows.finish(run_id, 600) == "succeeded"
    assert rows.statuses(run_id) == {"DONE": 40}


def test_a_file_on_hold_waits_for_its_owner(rows: RowRig) -> None:
    file_id = rows.issue(hold=True)

    assert rows.arrive(file_id, csv_of(1).encode()) == []


def test_errors_come_again_and_end_after_five_attempts(rows: RowRig) -> None:
    rows.provider.says = lambda item, strategy: Answered(what="failed", ms=5, message="status 500")
    run_id = rows.upload(csv_of(3))

    assert rows.finish(run_id) == "succeeded"
    assert {(row["status"], row["attempts"]) for row in rows.items(run_id)} == {("ERROR", 5)}
    assert len(rows.provider.calls) == 15
    assert rows.now > 30 + 60 + 120 + 240 - 300


def test_what_is_not_found_is_looked_for_in_another_way(rows: RowRig) -> None:
    rows.provider.says = lambda item, strategy: None if strategy == "brand_title" else Answered(what="not_found", ms=5)
    run_id = rows.upload(csv_of(2))

    assert rows.finish(run_id) == "succeeded"
    assert [(attempt, strategy) for _, attempt, strategy in rows.provider.calls] == [
        (1, "exact_sku"), (1, "exact_sku"), (2, "brand_title"), (2, "brand_title"),
    ]  # fmt: skip
    assert rows.statuses(run_id) == {"DONE": 2}
    assert rows.now >= 15 * 60


def test_a_refused_row_ends_at_once_and_says_why(rows: RowRig) -> None:
    rows.provider.says = lambda item, strategy: Answered(what="invalid", ms=5, message="too vague")
    run_id = rows.upload(csv_of(1))

    assert rows.finish(run_id, 600) == "succeeded"
    (row,) = rows.items(run_id)
    assert (row["status"], row["permanent"], row["last_error"], row["attempts"]) == ("ERROR", True, "too vague", 1)


def test_being_told_to_wait_spends_no_attempt(rows: RowRig) -> None:
    waits = iter([Answered(what="throttled", ms=5, retry_after_s=2.0)] * 3)
    rows.provider.says = lambda item, strategy: next(waits, None)
    run_id = rows.upload(csv_of(4))

    assert rows.finish(run_id, 3600) == "succeeded"
    assert {row["attempts"] for row in rows.items(run_id)} == {1}
    assert "throttled" in {row["reason"] for row in rows.rows("select reason from pace_decision")}


def test_reprocess_counts_first_then_opens_rows_and_job_together(rows: RowRig) -> None:
    rows.provider.says = lambda item, strategy: (
        Answered(what="invalid", ms=5, message="no") if item.row_no % 3 == 0 else None
    )
    run_id = rows.upload(csv_of(9))
    rows.finish(run_id, 600)
    assert rows.statuses(run_id) == {"DONE": 6, "ERROR": 3}
    rows.provider.says = lambda item, strategy: None

    assert rows.reprocess(run_id, dry_run=True) == 3
    assert rows.run(run_id)["status"] == "succeeded"
    assert rows.reprocess(run_id) == 3

    assert rows.run(run_id)["status"] == "running" or rows.run(run_id)["status"] == "queued"
    assert rows.finish(run_id, 600) == "succeeded"
    assert rows.statuses(run_id) == {"DONE": 9}
    assert len(rows.provider.calls) == 12


def test_rows_named_by_number_start_anew_whatever_they_were(rows: RowRig) -> None:
    run_id = rows.upload(csv_of(4))
    rows.finish(run_id, 600)

    assert rows.reprocess(run_id, row_nos=[2, 3]) == 2
    assert rows.finish(run_id, 600) == "succeeded"
    assert len(rows.provider.calls) == 6
    assert rows.reprocess(run_id, row_nos=[99]) == 0


def test_a_kickoff_wakes_lanes_that_wait_and_no_others(rows: RowRig) -> None:
    rows.provider.says = lambda item, strategy: Answered(what="not_found", ms=5) if item.attempts == 1 else None
    run_id = rows.upload(csv_of(2))
    rows.pass_time(30)
    calls = len(rows.provider.calls)

    assert control.kickoff(rows.ports, TENANT, run_id, BY) == 2
    rows.pass_time(5)

    assert len(rows.provider.calls) == calls, "rows keep their time: a nudge looks, and finds none due"


def test_pause_resume_cancel_and_delete(rows: RowRig) -> None:
    rows.provider.says = lambda item, strategy: Answered(what="failed", ms=5, message="no")
    run_id = rows.upload(csv_of(2))
    rows.pass_time(5)
    runs.pause_run(rows.ports, TENANT, run_id, BY)
    rows.pass_time(3600)
    calls = len(rows.provider.calls)
    runs.resume_run(rows.ports, TENANT, run_id, BY)
    rows.pass_time(120)
    assert len(rows.provider.calls) > calls
    with pytest.raises(Conflict):
        control.delete(rows.ports, rows.kind, TENANT, run_id, BY)
    runs.cancel_run(rows.ports, rows.kind, TENANT, run_id, BY)
    assert rows.finish(run_id, 60) == "canceled"

    control.delete(rows.ports, rows.kind, TENANT, run_id, BY)
    rows.pass_time(60)

    assert rows.items(run_id) == []
    assert rows.rows("select 1 from search_events") == []
    with pytest.raises(NotFound):
        rows.reprocess(run_id)


def test_a_row_found_before_keeps_its_result_while_it_is_looked_for_again(rows: RowRig) -> None:
    run_id = rows.upload(csv_of(1))
    rows.finish(run_id, 600)
    rows.provider.says = lambda item, strategy: Answered(what="not_found", ms=5)
    rows.reprocess(run_id, row_nos=[1])
    rows.finish(run_id)

    (row,) = rows.items(run_id)
    assert row["status"] == "NOT_FOUND"
    assert row["result_json"]["offers"][0]["title"] == found("Product 1").offers[0].title


REFUSED = Answered(what="refused", ms=5, message="The product search doesn't accept the connection's key (status 401).")


def test_a_refused_key_stops_the_calls_and_costs_no_row_an_attempt(rows: RowRig) -> None:
    """Until somebody changes the connection one call in a quarter of an hour finds out; then everything goes on."""
    rows.provider.says = lambda item, strategy: REFUSED
    run_id = rows.upload(csv_of(200))
    rows.pass_time(60)

    assert 1 <= len(rows.provider.calls) <= 2, "each lane stops at its first"
    assert {(row["status"], row["attempts"], row["locked_by"]) for row in rows.items(run_id)} == {("PENDING", 0, None)}
    ((gate),) = rows.rows("select key, state, reason from gate")
    assert (gate["key"], gate["state"], gate["reason"]) == ("product_search", "closed", REFUSED.message)
    rows.pass_time(7200)
    assert len(rows.provider.calls) <= 2 + 8, "one call for each quarter of an hour"

    rows.provider.says = lambda item, strategy: None
    rows.rows("update gate set key = 'product_search:7' returning 1")
    rows.rows("update lane set waits_for = 'gate:product_search:7' where waits_for = 'gate:product_search' returning 1")
    said = {"connection_id": "7", "provider": "product_search", "name": "x", "change": "changed"}
    with rows.ports.store.begin(TENANT) as tx:
        assert not rows.kind.listens["provider.connection.changed"](
            tx, Signal(1, TENANT, "provider.connection.changed", said, BEGINNING)
        )

    assert rows.finish(run_id, 300) == "succeeded", "not after a quarter of an hour"
    assert {(row["status"], row["attempts"]) for row in rows.items(run_id)} == {("DONE", 1)}


def test_a_tenants_jobs_share_what_may_be_at_work(rows: RowRig) -> None:
    """Two jobs of two lanes each, and ten rows for all of them."""
    rows.use(SETTINGS.model_copy(update={"tenant_most_in_flight": 10, "provider_first_rate": 500.0}))
    at_work: list[int] = []

    def look(item: Item, strategy: str) -> Answered | None:
        at_work.append(rows.rows("select count(*) as n from job_items where status = 'PROCESSING'")[0]["n"])
        return None

    rows.provider.says = look
    both = [rows.upload(csv_of(30)), rows.upload(csv_of(30))]

    assert [rows.finish(run_id, 3600) for run_id in both] == ["succeeded", "succeeded"]
    assert 1 < max(at_work) <= 10


def test_figures_are_counted_now_and_then_and_known_by_their_names(rows: RowRig) -> None:
    rows.provider.says = lambda item, strategy: Answered(what="failed", ms=5, message="status 500")
    run_id = rows.upload(csv_of(20))
    rows.pass_time(90)

    job = rows.job(run_id)
    assert job["counts"] == {
        "total": 20, "pending": 20, "processing": 0, "done": 0, "errors": 0, "not_found": 0, "skipped": 0
    }  # fmt: skip
    assert job["counted_at"] is not None
    assert (job["total_items"], job["processed_items"]) == (20, 0)
    assert set(RowMetric) <= set(rows.counted)
    assert {str(each) for each in RowMetric} == {
        "ingest_ms", "items_sec", "error_rate", "not_found_rate", "db_latency_ewma", "pool_wait_ms", "queue_depth",
        "api_throttle_rate",
    }  # fmt: skip
    assert [decide.count_every_s(took_s) for took_s in (0.01, 3.0)] == [10.0, 60.0]


def test_what_a_step_measured_is_written_at_its_end(rows: RowRig, capsys: pytest.CaptureFixture[str]) -> None:
    """With the meter that ships: it keeps what it counts until it is told to write."""
    rows.kind = row_job(replace(rows.row_ports, meter=EmfMeter("Test")), Limits(max_attempts=4))
    run_id = rows.upload(csv_of(5))

    assert rows.finish(run_id, 300) == "succeeded"
    written = capsys.readouterr().out
    assert not [metric for metric in RowMetric if f'"{metric}"' not in written]


def test_every_image_of_an_archive_is_a_row_and_what_cannot_be_used_is_skipped(rows: RowRig) -> None:
    held = [(f"acme-{n}.png", png(10 + n, 20)) for n in range(250)]
    run_id = rows.upload(packed(*held[:100], ("../out.png", png(1, 1)), *held[100:]), name="shop.zip", job_type="image")

    assert rows.finish(run_id, 3600) == "succeeded"
    assert rows.statuses(run_id) == {"DONE": 250, "SKIPPED": 1}
    items = rows.items(run_id)
    assert [row["row_no"] for row in items] == list(range(1, 252))
    assert (items[0]["input_json"]["width"], items[0]["normalized_json"], items[0]["job_type"]) == (
        10, {"title": "acme 0"}, "image",
    )  # fmt: skip
    assert items[100]["input_json"]["problem"] == "bad_name"
    assert rows.job(run_id)["read_rows"] == 251
    said = rows.rows("select name, payload ->> 'run_id' as run_id from signal where name like 'images.%'")
    assert [(row["name"], row["run_id"]) for row in said] == [("images.ingest.completed", str(run_id))]


def test_images_are_read_on_where_a_reader_died(rows: RowRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices so short that each reads one image; every third process dies when it has written it."""
    written = count(1)

    def die(name: str) -> None:
        if next(written) % 3 == 0:
            raise ConnectionError("the process is gone")

    monkeypatch.setattr(picturing, "point", die)
    monkeypatch.setattr(picturing, "stopwatch", lambda: lambda: 1e9)
    run_id = rows.upload(packed(*((f"{n}.png", png(n, 1)) for n in range(1, 8))), name="x.zip", job_type="image")
    rows.pass_time(600)
    monkeypatch.undo()

    assert rows.finish(run_id, 3600) == "succeeded"
    assert [row["input_json"]["width"] for row in rows.items(run_id)] == list(range(1, 8))
    assert len(rows.provider.calls) == 7


def test_a_file_that_is_no_archive_of_images_fails_its_job(rows: RowRig) -> None:
    run_id = rows.upload(b"PK\x03\x04 and no more", name="x.zip", job_type="image")

    assert rows.finish(run_id, 3600) == "failed"
    assert rows.run(run_id)["error"]["code"] == "bad_zip"


def test_what_was_chosen_with_the_upload_holds(rows: RowRig) -> None:
    file_id = rows.issue(hold=True, mapping={"title": "What"})
    assert rows.arrive(file_id, b"What,title\nTV,wrong\n") == []
    run_id = runs.start_run(rows.ports, rows.kind, TENANT, {"file_id": str(file_id), "currency": "EUR"}, BY)

    assert rows.finish(run_id, 3600) == "succeeded"
    assert rows.provider.calls[0][0] == "TV"
    assert rows.run(run_id)["params"]["currency"] == "EUR"
