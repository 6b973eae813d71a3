"""Row jobs from a file to worked rows, on a real Postgres under the clock of the rig."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from shared.kernel import direct, sql
from shared.kernel import run as runs
from shared.kernel.connections import NoVault
from shared.kernel.decide import Limits
from shared.kernel.errors import Conflict, NotFound, Permanent, Refused, StepError
from shared.kernel.metrics_emf import EmfMeter
from shared.kernel.model import Signal
from shared.row_job import control, decide, fix, grid, picturing, steps, store
from shared.row_job.decide import Answered
from shared.row_job.model import Found, Item, RowMetric, Status
from shared.row_job.ports import OpenRows
from shared.row_job.steps import row_job
from shared.row_job.store import RowStore
from tests.support.pictures import packed, png
from tests.support.plans import explain
from tests.support.rig import BEGINNING, TENANT
from tests.support.rows import BY, SETTINGS, RowRig, csv_of, found, rows

__all__ = ["rows"]


@pytest.mark.full
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


@pytest.mark.full
def test_a_canary_holds_the_rest_back_until_it_is_promoted(rows: RowRig) -> None:
    run_id = rows.upload(csv_of(40), canary=5)
    rows.pass_time(120)
    assert rows.statuses(run_id) == {"DONE": 5, "PENDING": 35}
    assert rows.job(run_id)["processed_items"] == 5, "who looks while it waits sees what is done"

    control.promote(rows.ports, TENANT, run_id, BY)

    assert rows.finish(run_id, 600) == "succeeded"
    assert rows.statuses(run_id) == {"DONE": 40}


def test_a_file_on_hold_waits_for_its_owner(rows: RowRig) -> None:
    file_id = rows.issue(hold=True)

    assert rows.arrive(file_id, csv_of(1).encode()) == []


@pytest.mark.parametrize(("options", "code"), [({}, "bad_params"), ({"connection": "gone"}, "unknown_connection")])
def test_a_file_without_a_connection_waits_for_its_owner_who_is_told_why(
    rows: RowRig, options: dict[str, Any], code: str
) -> None:
    rows.kind = row_job(replace(rows.row_ports, needs_connection=True))
    file_id = rows.issue(**options)

    assert rows.arrive(file_id, csv_of(1).encode()) == []
    with pytest.raises(Refused) as told:
        runs.start_run(rows.ports, rows.kind, TENANT, {"file_id": str(file_id)}, BY)
    assert told.value.code == code


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


def test_a_row_that_is_not_found_may_have_more_attempts_than_an_error(rows: RowRig) -> None:
    rows.use(SETTINGS.model_copy(update={"max_attempts_error": 1}))
    rows.provider.says = lambda item, strategy: Answered(what="not_found", ms=5)
    run_id = rows.upload(csv_of(1))

    assert rows.finish(run_id, 3600) == "succeeded"
    (row,) = rows.items(run_id)
    assert (row["status"], row["attempts"], row["last_error"]) == ("NOT_FOUND", 4, "No offer was found.")


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("brand,price\nAcme,9\n", "no_columns"),
        (",".join(["title", *map(str, range(1_000))]) + "\nx\n", "too_many_columns"),
        ("title,sku\n" + "\n" * 600, "no_rows"),
    ],
    ids=["only brands", "1,001 columns", "blank lines for longer than a step"],
)
def test_a_file_that_brings_nothing_fails_the_job_with_its_code(
    rows: RowRig, monkeypatch: pytest.MonkeyPatch, content: str, code: str
) -> None:
    monkeypatch.setattr(steps, "stopwatch", lambda: partial(next, count(0.0, 10.0)))  # a batch is a step
    run_id = rows.upload(content)

    assert rows.finish(run_id, 3600) == "failed"
    assert rows.run(run_id)["error"]["code"] == code


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

    assert rows.reprocess(run_id) == 0, "what was refused for what is in it would be refused again"
    assert rows.reprocess(run_id, permanent=True, dry_run=True) == 3
    assert rows.run(run_id)["status"] == "succeeded"
    assert rows.reprocess(run_id, permanent=True) == 3

    assert rows.run(run_id)["status"] == "running" or rows.run(run_id)["status"] == "queued"
    assert rows.finish(run_id, 600) == "succeeded"
    assert rows.statuses(run_id) == {"DONE": 9}
    assert len(rows.provider.calls) == 12


@pytest.mark.full
def test_an_offer_without_a_price_does_not_have_that_of_the_one_before(rows: RowRig) -> None:
    run_id = rows.upload(csv_of(1))
    rows.finish(run_id, 600)
    unpriced = Answered(what="found", ms=5, offers=[Found(title="Another")])
    rows.provider.says = lambda item, strategy: unpriced

    assert rows.reprocess(run_id, row_nos=[1]) == 1
    rows.finish(run_id, 600)

    (row,) = rows.items(run_id)
    assert (row["status"], row["result_json"]["offers"][0]["title"], row["price"]) == ("DONE", "Another", None)


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


@pytest.mark.full
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


def test_nothing_is_opened_in_a_job_that_is_being_canceled(rows: RowRig) -> None:
    """Its lanes are about to stop: rows would be open, and nobody at work on them."""
    rows.provider.says = lambda item, strategy: (
        Answered(what="invalid", ms=5, message="no") if item.row_no == 1 else Answered(what="not_found", ms=5)
    )
    run_id = rows.upload(csv_of(2))
    rows.pass_time(30)
    held = rows.row_ports.reads.fixable(TENANT, run_id, [1])
    runs.cancel_run(rows.ports, rows.kind, TENANT, run_id, BY)
    assert rows.run(run_id)["status"] == "running"

    with pytest.raises(Conflict, match="being canceled"):
        rows.reprocess(run_id, row_nos=[1])
    with pytest.raises(Conflict, match="being canceled"):
        control.fix_rows(rows.ports, rows.kind, TENANT, run_id, [fix.Fix(1, held[1].hash, {"title": "b"})], BY)
    with pytest.raises(Conflict, match="being canceled"):
        control.resubmit(rows.ports, rows.kind, TENANT, run_id, rows.issue(hold=True), BY)

    assert rows.finish(run_id, 600) == "canceled"
    assert rows.items(run_id)[0]["status"] == "ERROR"


def test_a_deleted_job_is_not_retried(rows: RowRig) -> None:
    """It would be read and worked on again, and nobody would see it."""
    run_id = rows.upload(csv_of(2))
    runs.cancel_run(rows.ports, rows.kind, TENANT, run_id, BY)
    rows.finish(run_id, 60)
    control.delete(rows.ports, rows.kind, TENANT, run_id, BY)

    with pytest.raises(Conflict, match="was deleted"):
        runs.retry_run(rows.ports, rows.kind, TENANT, run_id, BY)

    rows.pass_time(60)
    assert (rows.run(run_id)["status"], rows.items(run_id), rows.provider.calls) == ("canceled", [], [])


@pytest.mark.full
def test_a_question_that_is_asked_again_has_a_key_of_its_own(rows: RowRig) -> None:
    """A provider that knows the key repeats its old answer, or refuses other words under it."""
    rows.provider.says = lambda item, strategy: Answered(what="invalid", ms=5, message="no")
    run_id = rows.upload(csv_of(3))
    rows.finish(run_id, 600)
    held = rows.row_ports.reads.fixable(TENANT, run_id, [1])
    control.fix_rows(rows.ports, rows.kind, TENANT, run_id, [fix.Fix(1, held[1].hash, {"title": "Better"})], BY)
    rows.finish(run_id, 600)
    rows.reprocess(run_id, row_nos=[2])
    rows.finish(run_id, 600)
    rows.reprocess(run_id, permanent=True)
    rows.finish(run_id, 600)

    assert len(rows.provider.keys) == 3 + 1 + 1 + 3
    assert {attempt for _, attempt, _ in rows.provider.calls} == {1}


def test_rows_that_come_again_later_are_worked_on_now_if_somebody_says_so(rows: RowRig) -> None:
    rows.provider.says = lambda item, strategy: Answered(what="not_found", ms=5) if item.row_no == 2 else None
    run_id = rows.upload(csv_of(4))
    rows.pass_time(60)
    assert rows.statuses(run_id) == {"DONE": 3, "PENDING": 1}
    rows.provider.says = lambda item, strategy: None

    assert rows.reprocess(run_id, row_nos=[1, 2], dry_run=True) == 2
    assert rows.reprocess(run_id, row_nos=[1, 2]) == 2
    with pytest.raises(Conflict, match="1 is PENDING, 2 is PENDING"):
        rows.reprocess(run_id, row_nos=[1, 2])  # it is their turn already
    rows.pass_time(30)

    assert rows.statuses(run_id) == {"DONE": 4}, "nobody waits for the rest of the quarter of an hour"
    assert rows.items(run_id)[1]["attempts"] == 1
    assert rows.finish(run_id, 600) == "succeeded"


def test_rows_with_nothing_to_search_for_are_never_worked_on_again(rows: RowRig) -> None:
    """Nobody could: they have to be fixed first."""
    run_id = rows.upload("title,brand\na,b\n,c\nx,y,z\n")
    rows.finish(run_id, 600)

    every: list[Status] = [Status.SKIPPED, Status.DONE]
    assert rows.reprocess(run_id, statuses=every, permanent=True, dry_run=True) == 1
    assert rows.reprocess(run_id, statuses=every, permanent=True) == 1
    with pytest.raises(Conflict, match="must be fixed first: 2, 3"):
        rows.reprocess(run_id, row_nos=[1, 2, 3])
    assert rows.finish(run_id, 600) == "succeeded"
    assert rows.statuses(run_id) == {"DONE": 1, "SKIPPED": 2}


@pytest.mark.full
def test_what_a_person_opens_comes_before_what_was_never_tried(rows: RowRig) -> None:
    """Somebody waits for it; the others have not been waited for yet."""
    rows.use(SETTINGS.model_copy(update={"claim_min": 1, "claim_max": 4}))
    run_id = rows.upload(csv_of(40), canary=2)
    rows.pass_time(60)
    assert rows.statuses(run_id) == {"DONE": 2, "PENDING": 38}

    assert rows.reprocess(run_id, row_nos=[1, 2]) == 2
    control.promote(rows.ports, TENANT, run_id, BY)
    rows.finish(run_id, 600)

    again = [title for title, _, _ in rows.provider.calls[2:]]
    assert again.index("Product 1") < again.index("Product 3")
    assert again.index("Product 2") < again.index("Product 4"), "of the other lane"


@pytest.mark.full
def test_lanes_that_wait_for_those_before_them_look_less_and_less_often(rows: RowRig) -> None:
    """A row that comes again in a day holds its lane for so long; whatever is worked on again meanwhile adds lanes."""
    rows.use(SETTINGS.model_copy(update={"max_attempts_not_found": 5}))
    rows.provider.says = lambda item, strategy: Answered(what="not_found", ms=5) if item.row_no < 3 else None
    run_id = rows.upload(csv_of(6))
    rows.pass_time(3700)
    assert rows.statuses(run_id) == {"DONE": 4, "PENDING": 2}

    def taken() -> int:
        return int(rows.rows("select sum(seq)::integer as n from lane where run_id = :id", id=run_id)[0]["n"])

    for gen in range(1, 4):  # as if each time somebody had been at work
        with runs.changing(rows.ports, TENANT, run_id) as (tx, run, dues):
            dues.extend(
                runs.create_lanes(tx, run, [steps.work_lane(slot, gen) for slot in (0, 1)], rows.kind, rows.ports)
            )
        assert rows.reprocess(run_id, row_nos=[5, 6]) == 2
        rows.pass_time(10)
        assert rows.statuses(run_id) == {"DONE": 4, "PENDING": 2}, "the lanes that were there took them at once"
    before = taken()
    rows.pass_time(900)

    assert taken() - before <= 6 * (900 / 300 + 10) + 2 * 10


@pytest.mark.full
@pytest.mark.parametrize(("what", "status"), [("not_found", "NOT_FOUND"), ("invalid", "ERROR")])
def test_a_row_that_is_not_found_again_keeps_its_result_and_shows_no_old_offer(
    rows: RowRig, what: Any, status: str
) -> None:
    """Whoever reads a price beside NOT_FOUND takes it for today's. While it is looked for, the last one is shown."""

    def shown(run_id: UUID) -> tuple[str, str]:
        asked = {"run_id": run_id, "tenant_id": TENANT, "after_row": 0, "most": 10}
        with rows.owner.connect() as connection:
            (row,) = connection.execute(store.ITEMS_IN_ORDER, asked).mappings()
        told = dict(zip(grid.HEADERS, grid.encode(row["cells"], grid.HEADERS), strict=True))
        return told["status"], told["price"] + told["found_title"]

    run_id = rows.upload(csv_of(1))
    rows.finish(run_id, 600)
    assert shown(run_id) == ("DONE", "9.90Product 1")
    rows.provider.says = lambda item, strategy: Answered(what=what, ms=5)
    rows.reprocess(run_id, row_nos=[1])
    assert shown(run_id) == ("PENDING", "9.90Product 1")
    rows.finish(run_id)

    assert shown(run_id) == (status, "")
    assert rows.items(run_id)[0]["result_json"]["offers"][0]["title"] == found("Product 1").offers[0].title


def work_lanes(rows: RowRig, run_id: UUID) -> list[str]:
    return [
        row["key"]
        for row in rows.rows("select key from lane where run_id = :id and key like 'work:%' order by key", id=run_id)
    ]


@pytest.mark.full
def test_rows_that_are_opened_one_by_one_need_no_more_lanes(rows: RowRig) -> None:
    """Each fix by hand would leave a lane for every share of the rows."""
    rows.provider.says = lambda item, strategy: Answered(what="not_found", ms=5) if item.row_no == 6 else None
    run_id = rows.upload(csv_of(6))
    rows.pass_time(60)
    first = work_lanes(rows, run_id)
    for n in range(1, 6):  # one lane has ended, the other waits for a row that comes again
        assert rows.reprocess(run_id, row_nos=[n]) == 1
        rows.pass_time(10)
    assert rows.statuses(run_id) == {"DONE": 5, "PENDING": 1}
    rows.provider.says = lambda item, strategy: None
    assert rows.finish(run_id) == "succeeded"
    for n in range(1, 6):
        assert rows.reprocess(run_id, row_nos=[n]) == 1
        assert rows.finish(run_id, 600) == "succeeded"

    assert work_lanes(rows, run_id) == first == ["work:0:0", "work:1:0"]
    assert len(rows.provider.calls) == 7 + 10
    assert max(rows.provider.keys.values()) == 1


def test_a_lane_that_is_claimed_while_it_is_woken_is_not_relied_on(rows: RowRig) -> None:
    """It may have seen that nothing is left, and end: the rows would be nobody's."""
    rows.provider.says = lambda item, strategy: Answered(what="not_found", ms=5) if item.row_no == 2 else None
    run_id = rows.upload(csv_of(2))
    rows.pass_time(60)
    with (
        rows.another_process() as other,
        rows.another_process() as third,
        ThreadPoolExecutor(1) as pool,
        third.engine.connect() as connection,
    ):
        connection.execute(
            sa.text(
                """update lane set claim_token = gen_random_uuid(), lease_until = next_due_at + interval '1 minute'
                   where run_id = :id and key = 'work:0:0'"""
            ),
            {"id": run_id},
        )
        waits = pool.submit(other.reprocess, run_id, row_nos=[2])
        blocked = "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '%update lane%'"
        while not rows.rows(blocked) and not waits.done():
            time.sleep(0.01)
        connection.commit()
        assert waits.result() == 1

    assert work_lanes(rows, run_id) == ["work:0:0", "work:0:1", "work:1:0"]


def act_after_a_look(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any], when: Callable[[OpenRows], bool]
) -> list[OpenRows]:
    """Once, between what an idle lane sees and the commit by which it waits for something that it has seen."""
    look, seen = RowStore.open_rows, list[OpenRows]()

    def looked(self: RowStore, *asked: Any) -> OpenRows:
        left = look(self, *asked)
        if not seen and when(left):
            seen.append(left)
            act()
        return left

    monkeypatch.setattr(RowStore, "open_rows", looked)
    return seen


def test_a_lane_that_looked_just_before_a_canary_was_promoted_looks_again(
    rows: RowRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for the promotion for an hour."""
    run_id = rows.upload(csv_of(40), canary=4)
    promote = partial(control.promote, rows.ports, TENANT, run_id, BY)
    seen = act_after_a_look(monkeypatch, promote, lambda left: left.held_back)

    assert rows.finish(run_id, 60) == "succeeded"
    assert len(seen) == 1
    assert rows.statuses(run_id) == {"DONE": 40}
    assert not rows.rows("select 1 from repair"), "nobody had to find out that it was late"


def test_a_lane_that_looked_just_before_rows_were_opened_looks_again(
    rows: RowRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lane behind it would wait for it, and it for the row that comes again in a quarter of an hour."""
    rows.provider.says = lambda item, strategy: Answered(
        what={1: "not_found", 3: "invalid"}.get(item.row_no, "failed"), ms=5
    )
    run_id = rows.upload(csv_of(3))
    again = partial(rows.reprocess, run_id, row_nos=[3])
    seen = act_after_a_look(monkeypatch, again, lambda left: left.read_done and (left.next_due_s or 0) > 600)
    rows.pass_time(60)

    assert len(seen) == 1
    assert [title for title, *_ in rows.provider.calls].count("Product 3") == 2


@pytest.mark.parametrize("problem", [NoVault(), Permanent("The connection was not found.", "connection_gone")])
def test_who_cannot_be_asked_at_all_costs_no_row_an_attempt(rows: RowRig, problem: StepError) -> None:
    """Else some minutes without the vault would end every row that was due, and none was ever searched for."""
    rows.row_ports = replace(rows.row_ports, search=lambda *_: raising(problem))
    rows.kind = row_job(rows.row_ports, Limits(max_attempts=8))
    run_id = rows.upload(csv_of(6))

    assert rows.finish(run_id) == "failed"
    assert {(row["status"], row["attempts"], row["locked_by"]) for row in rows.items(run_id)} == {("PENDING", 0, None)}
    rows.use()
    runs.retry_run(rows.ports, rows.kind, TENANT, run_id)
    assert rows.finish(run_id, 600) == "succeeded"
    assert sorted(rows.provider.calls) == [(f"Product {n}", 1, "exact_sku") for n in range(1, 7)]


def raising(problem: StepError) -> Any:
    raise copy(problem)  # each time another one: what a step makes of it is its own


REFUSED = Answered(what="refused", ms=5, message="The product search doesn't accept the connection's key (status 401).")


@pytest.mark.full
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


def test_a_connection_that_works_again_wakes_all_that_waited_for_it(
    rows: RowRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are: so many at once is a bound of one statement, not of what is woken."""
    rows.provider.says = lambda item, strategy: REFUSED
    run_id = rows.upload(csv_of(4))
    rows.pass_time(60)
    few = sa.text(sql.WAKE_WAITING.text.replace(f"limit {sql.MOST_WOKEN}", "limit 1"))
    assert few.text != sql.WAKE_WAITING.text
    monkeypatch.setattr(sql, "WAKE_WAITING", few)
    rows.rows("update gate set key = 'product_search:7' returning 1")
    waited = rows.rows(
        "update lane set waits_for = 'gate:product_search:7' where waits_for = 'gate:product_search' returning resend_no"
    )
    assert len(waited) == 2
    said = {"connection_id": "7", "provider": "product_search", "name": "x", "change": "changed"}
    with rows.ports.store.begin(TENANT) as tx:
        rows.kind.listens["provider.connection.changed"](
            tx, Signal(1, TENANT, "provider.connection.changed", said, BEGINNING)
        )

    woken = rows.rows("select resend_no from lane where run_id = :id and waits_for is not null", id=run_id)
    assert sum(row["resend_no"] for row in woken) == sum(row["resend_no"] for row in waited) + 2


@pytest.mark.full
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
    assert at_work[0] <= 10 // 4, "four lanes share them"


@pytest.mark.full
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


@pytest.mark.full
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


@pytest.mark.full
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


@pytest.mark.full
def test_what_was_chosen_with_the_upload_holds(rows: RowRig) -> None:
    file_id = rows.issue(hold=True, mapping={"title": "What"})
    assert rows.arrive(file_id, b"What,title\nTV,wrong\n") == []
    run_id = runs.start_run(rows.ports, rows.kind, TENANT, {"file_id": str(file_id), "currency": "EUR"}, BY)

    assert rows.finish(run_id, 3600) == "succeeded"
    assert rows.provider.calls[0][0] == "TV"
    assert rows.run(run_id)["params"]["currency"] == "EUR"


def test_only_keys_of_work_lanes_are_read_as_numbers(rows: RowRig) -> None:
    """A plan for any slot may ask for the number in a key before it asks whose key it is."""
    with rows.another_process() as other:
        sa.event.listen(
            other.engine, "connect", lambda line, _: line.execute_simple("set plan_cache_mode = force_generic_plan")
        )
        any_plan(other)


def any_plan(rows: RowRig) -> None:
    run_id = rows.upload(csv_of(3))
    rows.rows(
        """insert into job_items (run_id, row_no, tenant_id, job_type, slot, status, input_json, normalized_json, due_at, updated_at)
           values (:id, 1, :t, 'csv', 0, 'PENDING', '{}', '{}', timestamptz '2000-01-01', clock_timestamp()) returning 1""",
        id=run_id, t=TENANT,
    )  # fmt: skip
    keys = rows.rows("select key from lane where run_id = :id and status = 'active' order by key", id=run_id)
    assert [row["key"] for row in keys] == ["ingest", "work:0:0", "work:1:0"]
    turn = "with turn as (select cast(:run_id as uuid) as run_id, cast(:tenant_id as uuid) as tenant_id, 'row_job' as kind)"
    asked = {
        "run_id": run_id,
        "tenant_id": TENANT,
        "holder": TENANT,
        "lease_s": 60.0,
        "most": 9,
        "alone": False,
        "tenant_most": 9,
    }

    def claimed(gen: int) -> list[int]:
        with direct.alone(rows.engine, TENANT) as line:
            taken = line.all(
                sa.text(f"{turn}, c as ({store.CLAIM.sql}) select * from c"), {**asked, "slot": 0, "gen": gen}
            )
        return [row["row_no"] for row in taken]

    reads = store.RowStore(rows.engine)
    assert [reads.open_rows(TENANT, run_id, 0, gen).elder for gen in (0, 1)] == [False, True]
    assert [claimed(gen) for gen in (1, 0)] == [[], [1]]


@pytest.mark.full
def test_a_claim_reads_only_what_it_takes_of_a_large_new_job(rows: RowRig) -> None:
    """Nothing of it has ended, so a plan that guesses how many rows it takes expects many."""
    run_id = rows.upload(csv_of(3))
    rows.rows(
        """insert into job_items (run_id, row_no, tenant_id, job_type, slot, status, input_json, normalized_json, due_at, updated_at)
           select :id, n, :t, 'csv', 0, 'PENDING', '{}', '{}', timestamptz '2000-01-01', clock_timestamp()
           from generate_series(1, 20000) n returning 1""",
        id=run_id, t=TENANT,
    )  # fmt: skip
    (lane,) = rows.rows("select id from lane where run_id = :id and key = 'work:0:0'", id=run_id)
    with rows.owner.connect() as connection:
        connection.exec_driver_sql("analyze job_items")
    asked = {
        "lane_id": lane["id"], "epoch": 1, "seq": 0, "token": TENANT, "holder": TENANT, "lease_s": 60.0, "most": 9,
        "alone": False, "tenant_most": 5_000, "slot": 0, "gen": 0,
    }  # fmt: skip
    rows.rows(
        "update lane set claim_token = :t, lease_until = clock_timestamp() where id = :id returning 1",
        t=TENANT, id=lane["id"],
    )  # fmt: skip
    with rows.engine.begin() as connection:
        connection.execute(sa.text("select set_config('app.tenant', :t, true)"), {"t": str(TENANT)})
        cost = explain(connection, sql.write_now(store.CLAIM), asked)
    assert "job_items" not in cost.scanned, cost
