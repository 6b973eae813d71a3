"""Guards that exports are whole, of one instant, and there only when they are done; and that fixed rows find their way back."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any
from uuid import UUID

import openpyxl
import pytest
import sqlalchemy as sa

from shared.kernel import direct, files
from shared.kernel import run as runs
from shared.kernel.catalogue import Catalogue
from shared.kernel.decide import Limits
from shared.kernel.errors import Conflict, NotFound, Refused
from shared.kernel.files import UploadGone
from shared.kernel.points import Point, watch_points
from shared.kernel.sweep import sweep
from shared.row_job import control, export, fix, fixing, grid, images, steps, store
from shared.row_job.decide import Answered
from shared.row_job.model import Item, RowSettings, WayPoint
from shared.row_job.steps import row_job
from tests.support.rig import TENANT
from tests.support.rows import BY, SETTINGS, RowRig, csv_of, rows
from tests.support.sheets import from_calamine, from_csv, from_openpyxl, spelled

__all__ = ["rows"]


class Killed(BaseException):
    """The process is gone: no code of ours runs after this."""


def start(rig: RowRig, job_id: UUID, format_: str = "csv", which: str = "all") -> UUID:
    params = {"export": str(job_id), "format": format_, "rows": which}
    return runs.start_run(rig.ports, rig.kind, TENANT, params, BY)


def files_of(rig: RowRig, export_id: UUID) -> list[bytes]:
    (row,) = rig.rows("select files from row_exports where run_id = :id", id=export_id)
    return [rig.results.held[each["key"]] for each in row["files"]]


def exported(rig: RowRig, job_id: UUID, format_: str = "csv", which: str = "all") -> list[list[str]]:
    export_id = start(rig, job_id, format_, which)
    assert rig.finish(export_id, 3600) == "succeeded", rig.run(export_id)["error"]
    read = from_csv if format_ == "csv" else from_calamine
    return [row for data in files_of(rig, export_id) for row in spelled(read(data))]


def told(rig: RowRig, job_id: UUID) -> list[list[str]]:
    """What the rows are now, by the list's own statement and encoder."""
    with rig.owner.connect() as connection:
        asked = {"run_id": job_id, "tenant_id": TENANT, "after_row": 0, "most": 100_000}
        found = connection.execute(store.ITEMS_IN_ORDER, asked).mappings()
        return spelled([list(grid.HEADERS), *(grid.encode(row["cells"], grid.HEADERS) for row in found)])


@pytest.fixture
def in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page in each step, and parts of a few rows."""
    monkeypatch.setattr(export, "PAGE", 10)
    monkeypatch.setattr(export, "STEP_S", 0.0)
    monkeypatch.setattr(export, "Parted", lambda *args, **more: files.Parted(*args, **more, part=1500))
    monkeypatch.setattr("tests.support.files.PART", 1500)


@contextmanager
def watched(see: Any) -> Iterator[None]:
    watch_points(see)
    try:
        yield
    finally:
        watch_points(None)


@pytest.mark.usefixtures("in_small_steps")
def test_a_file_is_written_over_many_steps_and_is_what_the_grid_shows(rows: RowRig) -> None:
    rows.provider.says = lambda item, strategy: (
        Answered(what="invalid", ms=5, message="=bad") if item.row_no % 7 == 0 else None
    )
    job_id = rows.upload(csv_of(95))
    rows.finish(job_id, 600)

    assert exported(rows, job_id) == told(rows, job_id)
    assert exported(rows, job_id, "xlsx") == told(rows, job_id)
    assert len(rows.rows("select 1 from step s join lane l on l.id = s.lane_id where l.key = 'export'")) > 10
    # Only whole files and what is left of a step are there.
    assert not rows.results.uploads


@pytest.mark.full
def test_a_spreadsheet_beyond_its_rows_is_several(rows: RowRig) -> None:
    rows.use(SETTINGS.model_copy(update={"export_xlsx_rows": 40}))
    job_id = rows.upload(csv_of(95))
    rows.finish(job_id, 600)
    export_id = start(rows, job_id, "xlsx")
    assert rows.finish(export_id, 600) == "succeeded"

    read = [spelled(from_openpyxl(data)) for data in files_of(rows, export_id)]
    assert [len(each) - 1 for each in read] == [40, 40, 15]
    assert {tuple(each[0]) for each in read} == {grid.HEADERS}, "each has its header"
    assert [row for each in read for row in each[1:]] == told(rows, job_id)[1:]
    (row,) = rows.rows("select written, files from row_exports where run_id = :id", id=export_id)
    assert (row["written"], [each["rows"] for each in row["files"]]) == (95, [40, 40, 15])


@pytest.mark.full
@pytest.mark.usefixtures("in_small_steps")
@pytest.mark.parametrize(
    "point", [Point.STEP_CLAIMED, WayPoint.SNAPSHOT, Point.STEP_LOOKED, WayPoint.EXPORTED, Point.STEP_COMMITTED]
)
@pytest.mark.parametrize("format_", ["csv", "xlsx"])
def test_a_process_may_die_wherever_it_is_and_no_half_file_is_seen(rows: RowRig, point: str, format_: str) -> None:
    if format_ == "xlsx":
        rows.use(SETTINGS.model_copy(update={"export_xlsx_rows": 20}))
    job_id = rows.upload(csv_of(45))
    rows.finish(job_id, 600)
    passed, deaths = Counter[str](), 0

    def die_now_and_then(here: str) -> None:
        passed[here] += 1
        if here is point and passed[here] in (1, 2, 4):
            raise Killed

    export_id = start(rows, job_id, format_)
    with watched(die_now_and_then):
        for _ in range(8):
            with suppress(Killed):
                rows.pass_time(900)
                continue
            deaths += 1
            if rows.run(export_id)["status"] != "succeeded":
                (row,) = rows.rows("select files from row_exports where run_id = :id", id=export_id)
                assert row["files"] == [], "nothing is given out before all of it is there"

    assert deaths
    assert rows.finish(export_id, 3600) == "succeeded"
    read = from_csv if format_ == "csv" else from_calamine
    found = [row for data in files_of(rows, export_id) for row in spelled(read(data)) if row != list(grid.HEADERS)]
    assert found == told(rows, job_id)[1:]


@pytest.mark.full
@pytest.mark.usefixtures("in_small_steps")
def test_a_bucket_that_forgot_the_parts_gets_them_again_of_the_same_instant(rows: RowRig) -> None:
    job_id = rows.upload(csv_of(95))
    rows.finish(job_id, 600)
    truth = told(rows, job_id)
    forgot: list[int] = []
    real = rows.results.add

    def add(key: str, upload: str, number: int, body: bytes) -> str:
        if number == 3 and not forgot:
            forgot.append(number)
            rows.results.uploads.clear()
            with rows.another_process() as other:
                other.reprocess(job_id, row_nos=list(range(1, 50)))
            raise UploadGone("NoSuchUpload")
        return real(key, upload, number, body)

    rows.results.add = add  # type: ignore[method-assign]
    found = exported(rows, job_id)

    assert forgot
    assert found == truth
    assert told(rows, job_id) != truth


def test_spreadsheets_that_are_written_anew_take_the_place_of_those_before(rows: RowRig) -> None:
    """Of a file that was lost behind others, all are written again: no row is in two of them."""
    rows.use(SETTINGS.model_copy(update={"export_xlsx_rows": 20}))
    job_id = rows.upload(csv_of(60))
    rows.finish(job_id, 600)
    put, lost = rows.results.put, list[str]()

    def forgets_the_second(key: str, body: bytes) -> None:
        if "-2-" in key and not lost:
            lost.append(key)
            raise UploadGone("NoSuchUpload")
        put(key, body)

    rows.results.put = forgets_the_second  # type: ignore[method-assign]
    found = exported(rows, job_id, "xlsx")

    assert lost
    header, *truth = told(rows, job_id)
    assert [row for row in found if row != header] == truth


@pytest.mark.usefixtures("in_small_steps")
def test_a_bucket_that_forgets_every_part_fails_the_export(rows: RowRig) -> None:
    """Guards that nobody writes the same file for ever. A function that may write and not read would."""
    job_id = rows.upload(csv_of(95))
    rows.finish(job_id, 600)
    reads: list[str] = []

    def get(key: str) -> bytes:
        reads.append(key)
        assert len(reads) < 50, "it goes on for ever"
        raise UploadGone("AccessDenied")

    rows.results.get = get  # type: ignore[method-assign]
    export_id = start(rows, job_id)
    assert rows.finish(export_id, 3600) == "failed"
    assert rows.run(export_id)["error"]["code"] == "no_storage"


@pytest.mark.full
@pytest.mark.usefixtures("in_small_steps")
@pytest.mark.parametrize("format_", ["csv", "xlsx"])
def test_one_who_was_overtaken_and_writes_late_spoils_no_file(
    rows: RowRig, monkeypatch: pytest.MonkeyPatch, format_: str
) -> None:
    """It is frozen before it writes; another does its step, with other rows because it has other time, and goes on; then it
    wakes up and writes."""
    rows.use(SETTINGS.model_copy(update={"export_xlsx_rows": 40}))
    job_id = rows.upload(csv_of(95))
    rows.finish(job_id, 600)
    real, frozen, woke = rows.results.put, list[tuple[str, bytes]](), list[str]()
    puts = count()

    def put(key: str, body: bytes) -> None:
        if not frozen and next(puts):  # not in the first step: whoever does that again takes another snapshot
            frozen.append((key, body))
            monkeypatch.setattr(export, "PAGE", 5)
            rows.use(SETTINGS.model_copy(update={"export_xlsx_rows": 30}))
            raise Killed
        real(key, body)
        if frozen and not woke:
            woke.append(key)
            real(*frozen[0])

    if format_ == "xlsx":  # each file in one piece
        monkeypatch.setattr(export, "Parted", files.Parted)
    rows.results.put = put  # type: ignore[method-assign]
    export_id = start(rows, job_id, format_)
    with suppress(Killed):
        rows.finish(export_id, 600)
    assert rows.finish(export_id, 3600) == "succeeded"
    assert woke
    read = from_csv if format_ == "csv" else from_calamine
    found = [row for data in files_of(rows, export_id) for row in spelled(read(data)) if row != list(grid.HEADERS)]
    assert found == told(rows, job_id)[1:]


@pytest.mark.full
@pytest.mark.parametrize("written", [0, 1])
def test_an_export_that_failed_takes_another_snapshot_when_it_is_retried(
    rows: RowRig, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """Also if some of it was written: rows have changed since then."""
    monkeypatch.setattr(export, "PAGE", 10)
    monkeypatch.setattr(export, "STEP_S", 0.0)
    job_id = rows.upload(csv_of(30))
    rows.finish(job_id, 600)
    real, puts = rows.results.put, list[str]()

    def full(key: str, body: bytes) -> None:
        puts.append(key)
        if len(puts) > written:
            raise ConnectionError("the bucket is full")
        real(key, body)

    rows.results.put = full  # type: ignore[method-assign]
    export_id = start(rows, job_id)
    assert rows.finish(export_id, 86_400) == "failed"
    assert not rows.rows("select 1 from row_exports where open")
    rows.results.put = real  # type: ignore[method-assign]
    rows.rows("update job_items set last_error = 'later' where run_id = :id returning 1", id=job_id)
    assert not rows.rows("select 1 from export_kept"), "nobody keeps anything for an export that has ended"
    runs.retry_run(rows.ports, rows.kind, TENANT, export_id, BY)

    assert rows.finish(export_id, 3600) == "succeeded"
    (data,) = files_of(rows, export_id)
    assert spelled(from_csv(data)) == told(rows, job_id)
    assert {row[15] for row in from_csv(data)[1:]} == {"later"}


def test_what_is_kept_for_a_new_snapshot_does_not_go_with_the_old_one(rows: RowRig) -> None:
    """Whoever takes away what an export kept that had failed may come when it is under way again."""
    job_id = rows.upload(csv_of(2))
    rows.finish(job_id, 600)
    export_id = start(rows, job_id)
    rows.rows("update row_exports set open = true, gen = 2, upto = 2 where run_id = :id returning 1", id=export_id)
    for gen in (1, 2):
        rows.rows(
            """insert into export_kept (export_id, gen, row_no, tenant_id, status, input_json, attempts, updated_at)
               values (:id, :gen, 1, :t, 'DONE', '{}', 1, clock_timestamp()) returning 1""",
            id=export_id, gen=gen, t=TENANT,
        )  # fmt: skip

    turn = sa.text(f"with turn as (select cast(:id as uuid) as run_id) {store.UNKEEP_ROWS.sql}")
    with direct.alone(rows.engine, TENANT) as line:
        line.all(turn, {"id": export_id, "most": 10})

    assert [row["gen"] for row in rows.rows("select gen from export_kept")] == [2]


@pytest.mark.full
def test_an_export_is_possible_at_any_time(rows: RowRig) -> None:
    empty = rows.upload(csv_of(3))
    runs.pause_run(rows.ports, TENANT, empty, BY)
    assert exported(rows, empty) == exported(rows, empty, "xlsx") == [list(grid.HEADERS)], "before anything is read"
    rows.provider.says = lambda item, strategy: Answered(what="not_found", ms=5) if item.row_no > 10 else None
    job_id = rows.upload(csv_of(20))
    rows.pass_time(60)
    runs.pause_run(rows.ports, TENANT, job_id, BY)
    assert exported(rows, job_id) == told(rows, job_id), "paused"
    runs.cancel_run(rows.ports, rows.kind, TENANT, job_id, BY)
    rows.finish(job_id, 600)
    assert exported(rows, job_id) == told(rows, job_id), "canceled"


@pytest.mark.full
@pytest.mark.usefixtures("in_small_steps")
def test_a_job_that_is_deleted_takes_its_files_with_it(rows: RowRig) -> None:
    job_id = rows.upload(csv_of(30))
    rows.finish(job_id, 600)
    exported(rows, job_id)
    left = [key for key in rows.results.held if key.endswith(".csv")]
    later = start(rows, job_id)
    control.delete(rows.ports, rows.kind, TENANT, job_id, BY)

    assert rows.finish(later, 3600) == "failed"
    assert rows.run(later)["error"]["code"] == "job_deleted"
    rows.pass_time(60)
    assert left
    assert not [key for key in left if key in rows.results.held]
    with pytest.raises(NotFound):
        start(rows, job_id)


@pytest.mark.parametrize("format_", ["csv", "xlsx"])
def test_a_file_that_was_being_written_when_its_job_was_deleted_goes_too(rows: RowRig, format_: str) -> None:
    """Its step has read the rows, and commits the file after those of the job were looked up."""
    job_id = rows.upload(csv_of(30))
    rows.finish(job_id, 600)
    put, written = rows.results.put, list[str]()

    def meanwhile(key: str, body: bytes) -> None:
        written.append(key)
        control.delete(rows.ports, rows.kind, TENANT, job_id, BY)
        rows.work_off()
        put(key, body)

    rows.results.put = meanwhile  # type: ignore[method-assign]
    start(rows, job_id, format_)
    rows.pass_time(60)

    assert len(written) == 1
    assert not rows.items(job_id)
    assert not rows.results.held


@pytest.mark.full
@pytest.mark.usefixtures("in_small_steps")
def test_a_job_that_is_deleted_takes_what_failed_exports_and_fixes_left(rows: RowRig) -> None:
    rows.use(SETTINGS.model_copy(update={"export_xlsx_rows": 20}))
    job_id = broken(rows, 60)
    header, *found = exported(rows, job_id, "xlsx", "failed")
    bring_back(rows, job_id, saved_by_a_spreadsheet([header, *found]))
    real = rows.results.put

    def full(key: str, body: bytes) -> None:
        if "-2-" in key:
            raise ConnectionError("the bucket is full")
        real(key, body)

    monkey = pytest.MonkeyPatch()
    monkey.setattr(export, "Parted", files.Parted)
    rows.results.put = full  # type: ignore[method-assign]
    failed = start(rows, job_id, "xlsx")
    assert rows.finish(failed, 86_400) == "failed"
    monkey.undo()
    left = [key for key in rows.results.held if "sheet-" in key or str(failed) in key]
    assert len(left) == 2

    control.delete(rows.ports, rows.kind, TENANT, job_id, BY)
    rows.pass_time(60)
    assert not [key for key in left if key in rows.results.held]


def test_two_who_ask_before_it_began_get_one_export(rows: RowRig) -> None:
    job_id = rows.upload(csv_of(3))
    rows.finish(job_id, 600)

    first = start(rows, job_id)
    assert start(rows, job_id) == first
    assert start(rows, job_id, "xlsx") != first
    rows.finish(first, 600)
    assert start(rows, job_id) != first, "that one is of another instant"


@pytest.mark.full
def test_rows_of_exports_leave_with_their_run(rows: RowRig) -> None:
    job_id = rows.upload(csv_of(3))
    rows.finish(job_id, 600)
    export_id = start(rows, job_id)
    rows.finish(export_id, 600)
    rows.rows("insert into export_kept select :id, 9, row_no, tenant_id, status, input_json, null, null, 1, null, updated_at from job_items where run_id = :job returning 1", id=export_id, job=job_id)  # fmt: skip
    run = rows.ports.store
    with run.begin(TENANT) as tx:
        mine = tx.lock_run(export_id, TENANT)
        assert mine is not None
        assert rows.kind.prune is not None
        assert [rows.kind.prune(tx, mine, 2) for _ in range(3)] == [2, 1, 0], "fewer than asked for: nothing is left"
    assert not rows.rows("select 1 from row_exports")


def test_a_sweep_leaves_nothing_of_an_old_job(rows: RowRig) -> None:
    """Calls, rows and what says that there was a job: less than a batch of each, all of it goes."""
    job_id = rows.upload(csv_of(5))
    rows.finish(job_id, 600)
    assert rows.rows("select 1 from search_events")
    rows.now += 100 * 86_400

    sweep(rows.ports, Catalogue(rows.kind))

    left = {
        table: len(rows.rows(f"select 1 from {table}")) for table in ("job_items", "search_events", "file_jobs", "run")
    }
    assert left == dict.fromkeys(left, 0)


def test_an_old_file_leaves_with_its_job_and_so_does_one_that_never_came(rows: RowRig) -> None:
    """A file says who uploaded what, and from where."""
    job_id, others_job = rows.upload(csv_of(1)), rows.upload(csv_of(1))
    for each in (job_id, others_job):
        rows.finish(each, 600)
    rows.issue("never-came.csv")
    rows.rows("update files set created_at = timestamptz '2020-01-01 00:00+00' returning 1")
    new = rows.issue("new.csv")
    (kept,) = rows.rows("select file_id from file_jobs where run_id = :id", id=others_job)

    with rows.ports.store.begin(TENANT) as tx:
        mine = tx.lock_run(job_id, TENANT)
        assert mine is not None
        assert rows.kind.prune is not None
        while rows.kind.prune(tx, mine, 10):
            pass

    assert {row["id"] for row in rows.rows("select id from files")} == {kept["file_id"], new}


# Fix and resubmit.


def bring_back(rig: RowRig, job_id: UUID, content: bytes) -> dict[str, Any]:
    file_id = rig.issue("fixed.csv", hold=True)
    assert rig.arrive(file_id, content) == []
    control.resubmit(rig.ports, rig.kind, TENANT, job_id, file_id, BY)
    control.resubmit(rig.ports, rig.kind, TENANT, job_id, file_id, BY)  # the same file counts once
    assert rig.finish(job_id, 3 * 86_400) == "succeeded", rig.run(job_id)["error"]
    (row,) = rig.rows("select * from row_fixes where file_id = :id", id=file_id)
    return dict(row)


def broken(rig: RowRig, count: int = 30) -> UUID:
    """A job where every tenth row is refused, and the second has nothing to search for."""

    def says(item: Item, strategy: str) -> Answered | None:
        return (
            Answered(what="invalid", ms=5, message="no such thing")
            if "bad" in item.normalized.get("title", "")
            else None
        )

    rig.provider.says = says
    lines = [f"{'bad' if n % 10 == 0 else 'Product'} {n},Acme,=note {n}" for n in range(1, count + 1)]
    lines[1] = ",Acme,"
    lines[2] = "a,b,c,d,e"
    job_id = rig.upload("\n".join(["title,brand,note", *lines]))
    rig.finish(job_id, 600)
    return job_id


def test_failed_rows_go_home_with_their_reasons_and_only_those_that_were_fixed_run_again(rows: RowRig) -> None:
    job_id = broken(rows)
    header, *found = exported(rows, job_id, which="failed")
    assert header == ["baton_key", "baton_problem", "title", "brand", "note"]
    assert [row[1] for row in found] == [
        "SKIPPED: The row has neither a title nor a SKU.",
        "SKIPPED: The row has 5 cells; the file has 3 columns. The line was: a,b,c,d,e",
        "ERROR: no such thing", "ERROR: no such thing", "ERROR: no such thing",
    ]  # fmt: skip
    assert found[2][2:] == ["bad 10", "Acme", "=note 10"]
    calls = len(rows.provider.calls)
    # As a spreadsheet writes it: another delimiter, other line ends, some rows fixed, one deleted, one left as it was.
    found[0][2], found[1][2], found[2][2] = "good 2", "good 3", "good 10"
    foreign = ["r999-h0123456789abcdef", "", "x", "", ""]
    stale = [found[3][0][:-1] + ("0" if found[3][0][-1] != "0" else "1"), "", "good 20", "", ""]
    lines = [header, *found[:3], found[4], foreign, stale, ["nonsense", "", "x", "", ""], found[0]]
    content = "\r\n".join(";".join(f'"{grid.guarded(cell)}"' for cell in line) for line in lines).encode("utf-16")

    told_of = bring_back(rows, job_id, content)

    assert (told_of["fixed"], told_of["unchanged"], told_of["unmatched"]) == (3, 1, 4)
    assert [(each["row"], each["code"]) for each in told_of["examples"]] == [
        (999, "unknown_row"), (20, "changed"), (2, "twice"), ("nonsense", "bad_key"),
    ]  # fmt: skip
    assert told_of["finished_at"] is not None
    assert sorted(title for title, _, _ in rows.provider.calls[calls:]) == ["good 10", "good 2", "good 3"]
    assert rows.statuses(job_id) == {"DONE": 28, "ERROR": 2}
    assert rows.items(job_id)[9]["input_json"] == {"title": "good 10", "brand": "Acme", "note": "=note 10"}


@pytest.mark.full
def test_a_spreadsheet_of_failed_rows_has_the_same_cells(rows: RowRig) -> None:
    job_id = broken(rows)

    sheet, text = exported(rows, job_id, "xlsx", "failed"), exported(rows, job_id, "csv", "failed")
    assert [row[1:] for row in sheet] == [row[1:] for row in text]
    assert [fix.read_key(row[0]) for row in text[1:]] == [
        fix.Key(key.row_no, key.hash, is_guarded=True) for row in sheet[1:] if (key := fix.read_key(row[0]))
    ]


def saved_by_a_spreadsheet(lines: list[list[str]]) -> bytes:
    """As a program saves it that somebody has changed cells in: strings that are shared, and numbers where one was typed."""
    book = openpyxl.Workbook()
    sheet = book.active
    assert sheet is not None
    for line in lines:
        sheet.append([int(cell) if cell.isdecimal() else cell for cell in line])
        for cell in sheet[sheet.max_row]:
            cell.data_type = "n" if isinstance(cell.value, int) else "s"  # what it would take for a formula is none
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()


@pytest.mark.full
@pytest.mark.parametrize("went_as", ["csv", "xlsx"])
@pytest.mark.parametrize("comes_as", ["csv", "xlsx"])
def test_fixed_rows_come_back_as_csv_or_xlsx_whichever_they_went_as(rows: RowRig, went_as: str, comes_as: str) -> None:
    """A spreadsheet opens the one and saves the other. An apostrophe that kept a formula from being one goes, one that was there
    stays."""
    rows.provider.says = lambda *_: Answered(what="invalid", ms=5, message="no such thing")
    notes = ["=1+1", "'=1+1", "''", "'n Sync", "plain", "\t-x", "＠x"]  # noqa: RUF001
    job_id = rows.upload("\n".join(["title,note", *[f"bad {n},{note}" for n, note in enumerate(notes, 1)]]))
    rows.finish(job_id, 600)
    rows.provider.says = lambda *_: None
    export_id = start(rows, job_id, went_as, "failed")
    assert rows.finish(export_id, 3600) == "succeeded"
    (data,) = files_of(rows, export_id)
    read = list(csv.reader(io.StringIO(data.decode("utf-8-sig")))) if went_as == "csv" else from_calamine(data)
    header, *found = [[str(cell) for cell in line] for line in read]
    for number, line in enumerate(found, 1):
        line[2] = f"good {number}" if number % 2 else str(number)
    out = io.StringIO()
    csv.writer(out).writerows([header, *found])
    content = out.getvalue().encode() if comes_as == "csv" else saved_by_a_spreadsheet([header, *found])

    told_of = bring_back(rows, job_id, content)

    assert (told_of["fixed"], told_of["unmatched"], told_of["examples"]) == (len(notes), 0, [])
    kept = [row["input_json"] for row in rows.items(job_id)]
    assert [row["note"] for row in kept] == notes
    assert [row["title"] for row in kept] == [f"good {n}" if n % 2 else str(n) for n in range(1, len(notes) + 1)]
    assert rows.statuses(job_id) == {"DONE": len(notes)}


def test_a_spreadsheet_that_is_uploaded_is_read_as_csv_would_be(rows: RowRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over many steps, by readers that die; what it was written down as goes with the job."""
    rows.use(SETTINGS.model_copy(update={"ingest_max_rows": 20, "ingest_min_rows": 1}))
    monkeypatch.setattr(steps, "stopwatch", lambda: partial(next, count(0.0, 10.0)))  # a batch is a step
    monkeypatch.setattr(fixing, "SHEET_S", 0.0)
    monkeypatch.setattr(images, "PIECE", 600)
    lines = [
        ["", "", ""],
        ["title", "brand", "sku"],
        *[[f'"{n}", big', "Acme", f"SKU-{n}"] for n in range(1, 61)],
        ["", "Acme", ""],
    ]
    content = saved_by_a_spreadsheet(lines)
    passed = Counter[str]()

    def die_now_and_then(here: str) -> None:
        passed[here] += 1
        if here in (Point.STEP_LOOKED, Point.STEP_COMMITTED) and passed[here] in (1, 4):
            raise Killed

    with watched(die_now_and_then):
        job_id = rows.upload(content, name="rows.xlsx")
        for _ in range(5):
            with suppress(Killed):
                rows.pass_time(900)
    assert rows.finish(job_id, 86_400) == "succeeded"

    assert rows.statuses(job_id) == {"DONE": 60, "SKIPPED": 1}
    read = [row["input_json"] for row in rows.items(job_id)]
    assert read[6] == {"title": '"7", big', "brand": "Acme", "sku": "SKU-7"}
    assert (rows.job(job_id)["read_bytes"], rows.job(job_id)["read_rows"]) == (len(content), 61)
    steps_taken = rows.rows("select count(*) as n from step s join lane l on l.id = s.lane_id where l.key = 'ingest'")
    assert steps_taken[0]["n"] > 3, "it took many steps"
    left = [key for key in rows.results.held if "sheet-" in key and key.endswith(".csv")]
    control.delete(rows.ports, rows.kind, TENANT, job_id, BY)
    rows.pass_time(60)
    assert left
    assert not [key for key in left if key in rows.results.held]


@pytest.mark.parametrize(
    ("content", "code"), [(b"PK\x03\x04" + b"x" * 50, "bad_zip"), (b"\xd0\xcf\x11\xe0" + b"x" * 50, "not_a_sheet")]
)
def test_a_spreadsheet_that_cannot_be_read_fails_its_job_with_its_code(rows: RowRig, content: bytes, code: str) -> None:
    job_id = rows.upload(content, name="rows.xlsx")

    assert rows.finish(job_id, 3600) == "failed"
    assert rows.run(job_id)["error"]["code"] == code


@pytest.mark.full
def test_a_spreadsheet_is_written_down_over_many_steps_by_readers_that_die(
    rows: RowRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixing, "SHEET_S", 0.0)
    monkeypatch.setattr(images, "PIECE", 600)
    monkeypatch.setattr(fixing, "Parted", lambda *args, **more: files.Parted(*args, **more, part=1500))
    monkeypatch.setattr("tests.support.files.PART", 1500)
    rows.use(SETTINGS.model_copy(update={"ingest_max_rows": 20, "ingest_min_rows": 1}))
    rows.provider.says = lambda *_: Answered(what="invalid", ms=5, message="no such thing")
    job_id = rows.upload(csv_of(60))
    rows.finish(job_id, 600)
    rows.provider.says = lambda *_: None
    header, *found = exported(rows, job_id, "xlsx", "failed")
    for line in found:
        line[2] = line[2].replace("Product", "Fixed")
    passed = Counter[str]()

    def die_now_and_then(here: str) -> None:
        passed[here] += 1
        if here in (Point.STEP_LOOKED, Point.STEP_COMMITTED) and passed[here] in (1, 3, 6):
            raise Killed

    file_id = rows.issue("fixed.xlsx", hold=True)
    rows.arrive(file_id, saved_by_a_spreadsheet([header, *found]))
    control.resubmit(rows.ports, rows.kind, TENANT, job_id, file_id, BY)
    with watched(die_now_and_then):
        for _ in range(8):
            with suppress(Killed):
                rows.pass_time(900)
    assert rows.finish(job_id, 86_400) == "succeeded"

    (told_of,) = rows.rows("select * from row_fixes")
    assert (told_of["fixed"], told_of["unchanged"], told_of["unmatched"]) == (60, 0, 0)
    assert [row["input_json"]["title"] for row in rows.items(job_id)] == [f"Fixed {n}" for n in range(1, 61)]
    lane = rows.rows("select count(*) as n from step s join lane l on l.id = s.lane_id where l.key like 'fix:%'")
    assert lane[0]["n"] > 8, "it took many steps"


@pytest.mark.full
def test_a_spreadsheet_whose_parts_the_bucket_forgot_is_written_down_again(
    rows: RowRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixing, "SHEET_S", 0.0)
    monkeypatch.setattr(images, "PIECE", 600)
    monkeypatch.setattr(fixing, "Parted", lambda *args, **more: files.Parted(*args, **more, part=1500))
    monkeypatch.setattr("tests.support.files.PART", 1500)
    rows.provider.says = lambda *_: Answered(what="invalid", ms=5, message="no such thing")
    job_id = rows.upload(csv_of(60))
    rows.finish(job_id, 600)
    rows.provider.says = lambda *_: None
    header, *found = exported(rows, job_id, "xlsx", "failed")
    content = saved_by_a_spreadsheet([header, *[[*line[:2], f"Fixed {line[0]}", *line[3:]] for line in found]])
    real, calls, forgot = rows.results.add, list[int](), list[int]()

    def add(key: str, upload: str, number: int, body: bytes) -> str:
        calls.append(number)
        assert len(calls) < 100, "nobody goes on with parts that are gone"
        if number == 2 and not forgot:
            forgot.append(number)
            rows.results.uploads.clear()
        return real(key, upload, number, body)

    rows.results.add = add  # type: ignore[method-assign]

    told_of = bring_back(rows, job_id, content)

    assert forgot
    assert (told_of["fixed"], told_of["unmatched"]) == (60, 0)


@pytest.mark.full
def test_a_reader_of_a_spreadsheet_who_was_overtaken_and_writes_late_spoils_nothing(
    rows: RowRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixing, "SHEET_S", 0.0)
    monkeypatch.setattr(images, "PIECE", 600)
    rows.provider.says = lambda *_: Answered(what="invalid", ms=5, message="no such thing")
    job_id = rows.upload(csv_of(60))
    rows.finish(job_id, 600)
    rows.provider.says = lambda *_: None
    header, *found = exported(rows, job_id, "xlsx", "failed")
    content = saved_by_a_spreadsheet([header, *[[*line[:2], f"Fixed {line[0]}", *line[3:]] for line in found]])
    real, frozen, woke = rows.results.put, list[tuple[str, bytes]](), list[str]()

    def put(key: str, body: bytes) -> None:
        if not frozen:
            frozen.append((key, body))
            monkeypatch.setattr(images, "PIECE", 900)
            raise Killed
        real(key, body)
        if not woke:
            woke.append(key)
            real(*frozen[0])

    rows.results.put = put  # type: ignore[method-assign]
    with suppress(Killed):
        bring_back(rows, job_id, content)
    assert rows.finish(job_id, 3 * 86_400) == "succeeded"
    (told_of,) = rows.rows("select fixed, unmatched from row_fixes")
    assert woke
    assert (told_of["fixed"], told_of["unmatched"]) == (60, 0)


@pytest.mark.full
def test_a_spreadsheet_whose_parts_are_always_gone_is_reported_and_harms_nothing(
    rows: RowRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixing, "SHEET_S", 0.0)
    monkeypatch.setattr(images, "PIECE", 600)
    rows.provider.says = lambda item, strategy: Answered(what="invalid", ms=5, message="no")
    job_id = rows.upload(csv_of(60))
    rows.finish(job_id, 600)
    header, *found = exported(rows, job_id, "xlsx", "failed")
    reads: list[str] = []

    def get(key: str) -> bytes:
        reads.append(key)
        assert len(reads) < 50, "it goes on for ever"
        raise UploadGone("AccessDenied")

    rows.results.get = get  # type: ignore[method-assign]
    told_of = bring_back(rows, job_id, saved_by_a_spreadsheet([header, *found]))
    assert (told_of["fixed"], told_of["examples"][0]["code"]) == (0, "no_storage")
    assert reads


@pytest.mark.full
@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"PK\x03\x04" + b"x" * 200, "bad_zip"),
        (b"\xd0\xcf\x11\xe0" + b"x" * 600, "not_a_sheet"),
        (saved_by_a_spreadsheet([["title", "brand"], ["x", "y"]]), "no_keys"),
        (saved_by_a_spreadsheet([]), "empty_file"),
        (b"\x1f\x8b" + b"x" * 50, "not_csv"),
    ],
)
def test_a_spreadsheet_that_is_none_is_reported_and_harms_nothing(rows: RowRig, content: bytes, code: str) -> None:
    job_id = broken(rows)

    told_of = bring_back(rows, job_id, content)

    assert (told_of["fixed"], told_of["examples"][0]["code"]) == (0, code)
    assert rows.run(job_id)["status"] == "succeeded"


@pytest.mark.full
def test_a_cell_that_shows_an_error_is_not_taken_for_a_text(rows: RowRig) -> None:
    job_id = broken(rows)
    header, *found = exported(rows, job_id, "xlsx", "failed")
    book = openpyxl.Workbook()
    sheet = book.active
    assert sheet is not None
    for line in (header, *found[-2:]):
        sheet.append(line)
    for at, value in (("C2", "=1/0"), ("C3", "#REF!")):
        sheet[at] = value
        sheet[at].data_type = "f" if value.startswith("=") else "e"
    out = io.BytesIO()
    book.save(out)

    told_of = bring_back(rows, job_id, out.getvalue())

    assert (told_of["fixed"], [each["code"] for each in told_of["examples"]]) == (0, ["bad_cell", "bad_cell"])


@pytest.mark.full
def test_of_two_files_with_the_same_rows_one_has_fixed_each(rows: RowRig) -> None:
    """Both are judged by the rows as they were; only what was written counts."""
    job_id = broken(rows)
    header, *found = exported(rows, job_id, which="failed")
    real, met = rows.row_ports.reads, list[int]()
    second = [header, *[[line[0], line[1], f"second {n}", *line[3:]] for n, line in enumerate(found)]]

    class Reads:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def fixable(self, *asked: Any) -> Any:
            known = real.fixable(*asked)
            if not met:
                met.append(1)
                with rows.another_process() as other:
                    held = {n: row.hash for n, row in known.items()}
                    fixes = [fix.Fix(n, hash_, {"title": f"first {n}"}) for n, hash_ in held.items() if n != 30]
                    control.fix_rows(other.ports, other.kind, TENANT, job_id, fixes, BY)
            return known

    rows.kind = row_job(replace(rows.row_ports, reads=Reads()), Limits(max_attempts=4))
    told_of = bring_back(rows, job_id, "".join(grid.csv_line(line) for line in second).encode())

    assert (told_of["fixed"], told_of["unchanged"], told_of["unmatched"]) == (1, 0, 4)
    assert {(each["row"], each["code"]) for each in told_of["examples"]} == {(n, "changed") for n in (2, 3, 10, 20)}
    titles = {row["row_no"]: row["input_json"]["title"] for row in rows.items(job_id)}
    assert [titles[n] for n in (2, 3, 10, 20, 30)] == ["first 2", "first 3", "first 10", "first 20", "second 4"]


@pytest.mark.parametrize("which", ["all", "failed"])
def test_rows_that_are_gone_are_missed_whichever_are_exported(
    rows: RowRig, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "PAGE", 10)
    monkeypatch.setattr(export, "STEP_S", 0.0)
    job_id = broken(rows)
    export_id = start(rows, job_id, which=which)
    gone: list[int] = []

    def take_away(here: str) -> None:
        if here is Point.STEP_COMMITTED and not gone and rows.rows("select 1 from row_exports where open"):
            gone.append(1)
            rows.rows("delete from job_items where run_id = :id and row_no = 25 returning 1", id=job_id)

    with watched(take_away):
        assert rows.finish(export_id, 3600) == "failed"
    assert rows.run(export_id)["error"]["code"] == "rows_gone"
    assert gone


def test_cells_that_may_be_of_other_columns_change_no_row(rows: RowRig) -> None:
    """A comma without quotes moves all cells behind it, and an open quote takes them in."""
    job_id = broken(rows)
    keys = {line[0].partition("-")[0]: line[0] for line in exported(rows, job_id, which="failed")}
    lines = [
        "baton_key,baton_problem,title,brand,note",
        f"{keys['r10']},,good 10, large,Acme,x",
        f'{keys["r20"]},,"good 20,Acme,x',
        f"{keys['r30']},,good 30,Acme,x, ,",
    ]

    told_of = bring_back(rows, job_id, "\n".join(lines).encode())

    assert (told_of["fixed"], [(each["row"], each["code"]) for each in told_of["examples"]]) == (
        1, [(10, "bad_row"), (20, "bad_row")],
    )  # fmt: skip
    kept = [row["input_json"] for row in rows.items(job_id)]
    assert [kept[n - 1]["title"] for n in (10, 20, 30)] == ["bad 10", "bad 20", "good 30"]
    assert kept[9] == {"title": "bad 10", "brand": "Acme", "note": "=note 10"}


@pytest.mark.full
def test_a_note_beside_the_rows_of_a_spreadsheet_moves_no_cell(rows: RowRig) -> None:
    job_id = broken(rows)
    header, *found = exported(rows, job_id, "xlsx", "failed")
    line = [*found[-1][:2], "good 30", *found[-1][3:], "look at this"]

    told_of = bring_back(rows, job_id, saved_by_a_spreadsheet([header, line]))

    assert (told_of["fixed"], told_of["unmatched"]) == (1, 0)


@pytest.mark.full
def test_a_column_that_the_job_does_not_have_is_reported_once(rows: RowRig) -> None:
    """Somebody who renames a column would wonder why nothing changes."""
    rows.use(SETTINGS.model_copy(update={"ingest_min_rows": 1, "ingest_max_rows": 1}))
    job_id = broken(rows)
    keys = [line[0] for line in exported(rows, job_id, which="failed")[3:]]
    lines = ["baton_key,Baton_Problem,Title,nobody fills it", *[f"{key},no such thing,good," for key in keys]]

    told_of = bring_back(rows, job_id, "\n".join(lines).encode())

    assert (told_of["fixed"], told_of["unchanged"]) == (0, 3)
    assert [(each["row"], each["code"]) for each in told_of["examples"]] == [("Title", "unknown_column")]


def test_columns_come_back_however_they_had_to_be_spelled(rows: RowRig) -> None:
    """Names that begin like a formula, hold what no spreadsheet does, or are ours: the file of failed rows was a job of its own."""
    columns = ["title", "@note", "a\x01b", "baton_key", "baton_problem"]
    rows.provider.says = lambda *_: Answered(what="invalid", ms=5, message="no such thing")
    key = "r7-h0123456789abcdef"
    job_id = rows.upload("\n".join([",".join(columns), *[f"bad {n},old,old,{key},ERROR" for n in (1, 2, 3)]]))
    rows.finish(job_id, 600)
    header, *found = exported(rows, job_id, "xlsx", "failed")
    assert header[2:] == ["title", "@note", "a\ufffdb", "baton_key", "baton_problem"]
    rows.provider.says = lambda *_: None
    found[0][3] = found[1][4] = "new"

    told_of = bring_back(rows, job_id, "".join(grid.csv_line(line) for line in [header, *found]).encode())

    assert (told_of["fixed"], told_of["unchanged"], told_of["unmatched"]) == (2, 1, 0)
    ours = {"baton_key": key, "baton_problem": "ERROR"}
    assert [row["input_json"] for row in rows.items(job_id)] == [
        {"title": "bad 1", "@note": "new", "a\x01b": "old", **ours},
        {"title": "bad 2", "@note": "old", "a\x01b": "new", **ours},
        {"title": "bad 3", "@note": "old", "a\x01b": "old", **ours},
    ]


@pytest.mark.full
def test_a_reader_of_fixed_rows_that_dies_is_followed_by_one_that_counts_the_same(rows: RowRig) -> None:
    rows.use(SETTINGS.model_copy(update={"ingest_max_rows": 2, "ingest_min_rows": 1}))
    job_id = broken(rows, 80)
    header, *found = exported(rows, job_id, which="failed")
    for row in found:
        row[2] = "good"
    content = "".join(grid.csv_line(line) for line in [header, *found]).encode()
    passed = Counter[str]()

    def die_now_and_then(here: str) -> None:
        passed[here] += 1
        if here is Point.STEP_LOOKED and passed[here] in (1, 3, 6):
            raise Killed

    file_id = rows.issue("fixed.csv", hold=True)
    rows.arrive(file_id, content)
    control.resubmit(rows.ports, rows.kind, TENANT, job_id, file_id, BY)
    with watched(die_now_and_then):
        for _ in range(6):
            with suppress(Killed):
                rows.pass_time(900)
    assert rows.finish(job_id, 86_400) == "succeeded"

    (told_of,) = rows.rows("select * from row_fixes")
    assert (told_of["fixed"], told_of["unmatched"]) == (len(found), 0)
    assert rows.statuses(job_id) == {"DONE": 80}


@pytest.mark.full
def test_fixed_rows_are_worked_on_although_their_lane_waits_for_others(rows: RowRig) -> None:
    """Lanes with rows that come again in a quarter of an hour learn of those that a file brings meanwhile."""

    def says(item: Item, strategy: str) -> Answered | None:
        what = {"bad": "invalid", "later": "not_found"}.get(item.normalized["title"].split()[0])
        return None if what is None else Answered(what=what, ms=5, message="no")

    rows.use(
        SETTINGS.model_copy(update={"ingest_max_rows": 1, "ingest_min_rows": 1})
    )  # a row in each step: lanes look between them
    rows.provider.says = says
    job_id = rows.upload("\n".join(["title", *[f"bad {n}" for n in range(1, 7)], "later 7", "later 8"]))
    rows.pass_time(60)
    assert rows.statuses(job_id) == {"ERROR": 6, "PENDING": 2}
    held = rows.row_ports.reads.fixable(TENANT, job_id, range(1, 7))
    file_id = rows.issue("fixed.csv", hold=True)
    lines = [f"r{n}-h{row.hash},good {n}" for n, row in held.items()]
    rows.arrive(file_id, "\n".join(["baton_key,title", *lines]).encode())
    control.resubmit(rows.ports, rows.kind, TENANT, job_id, file_id, BY)
    rows.pass_time(60)

    assert [row["status"] for row in rows.items(job_id)] == ["DONE"] * 6 + ["PENDING"] * 2


@pytest.mark.full
def test_a_fixed_row_may_be_longer_than_a_batch(rows: RowRig) -> None:
    rows.use(SETTINGS.model_copy(update={"ingest_max_batch_bytes": 10_000}))
    job_id = broken(rows)
    header, *found = exported(rows, job_id, which="failed")
    for line in found:
        line[2], line[4] = "good", "x" * 30_000

    told_of = bring_back(rows, job_id, "".join(grid.csv_line(line) for line in [header, *found]).encode())

    assert (told_of["fixed"], told_of["unmatched"]) == (len(found), 0)
    assert rows.statuses(job_id) == {"DONE": 30}


def test_a_file_that_is_no_table_of_failed_rows_is_reported_and_harms_nothing(rows: RowRig) -> None:
    job_id = broken(rows)

    told_of = bring_back(rows, job_id, csv_of(3).encode())

    assert (told_of["fixed"], told_of["unmatched"], told_of["examples"][0]["code"]) == (0, 1, "no_keys")
    assert rows.run(job_id)["status"] == "succeeded"


def test_a_file_of_fixed_rows_that_is_gone_does_not_fail_the_job(rows: RowRig) -> None:
    """It would fail again with every retry, and whatever else is done to the job with it."""
    job_id = broken(rows)
    file_id = rows.issue("fixed.csv", hold=True)
    rows.arrive(file_id, b"baton_key,title\nr10-h0123456789abcdef,x\n")
    control.resubmit(rows.ports, rows.kind, TENANT, job_id, file_id, BY)
    rows.files.held.clear()

    assert rows.finish(job_id, 3600) == "succeeded"
    (told_of,) = rows.rows("select * from row_fixes")
    assert (told_of["fixed"], [each["code"] for each in told_of["examples"]]) == (0, ["file_gone"])
    assert told_of["finished_at"] is not None


@pytest.mark.full
def test_a_file_whose_reading_was_canceled_can_be_brought_back_again(rows: RowRig) -> None:
    job_id = broken(rows)
    header, *found = exported(rows, job_id, which="failed")
    for row in found:
        row[2] = "good"
    file_id = rows.issue("fixed.csv", hold=True)
    rows.arrive(file_id, "".join(grid.csv_line(line) for line in [header, *found]).encode())
    control.resubmit(rows.ports, rows.kind, TENANT, job_id, file_id, BY)
    runs.cancel_run(rows.ports, rows.kind, TENANT, job_id, BY)
    assert rows.finish(job_id, 600) == "canceled"
    assert [row["finished_at"] for row in rows.rows("select finished_at from row_fixes")] == [None]

    control.resubmit(rows.ports, rows.kind, TENANT, job_id, file_id, BY)
    control.resubmit(rows.ports, rows.kind, TENANT, job_id, file_id, BY)

    assert rows.finish(job_id, 86_400) == "succeeded"
    (told_of,) = rows.rows("select * from row_fixes")
    assert (told_of["fixed"], told_of["finished_at"] is not None) == (len(found), True)
    assert rows.statuses(job_id) == {"DONE": 30}


def test_a_file_is_brought_back_to_one_job_and_only_when_it_is_there(rows: RowRig) -> None:
    job_id, other = broken(rows), broken(rows)
    (own,) = rows.rows("select file_id from file_jobs where run_id = :id", id=job_id)
    waiting = rows.issue("fixed.csv", hold=True)

    def refused(file_id: UUID, job: UUID = job_id) -> str:
        with pytest.raises((Conflict, Refused)) as why:
            control.resubmit(rows.ports, rows.kind, TENANT, job, file_id, BY)
        return str(why.value.code)

    assert refused(own["file_id"]) == "file_used"
    assert refused(waiting) == "not_uploaded"
    assert refused(UUID(int=99)) == "unknown_file"
    bring_back(rows, job_id, csv_of(1).encode())
    (used,) = rows.rows("select file_id from row_fixes")
    assert refused(used["file_id"], other) == "file_used"


@pytest.mark.full
def test_rows_are_fixed_at_once_in_the_grid(rows: RowRig) -> None:
    job_id = broken(rows)
    held = rows.row_ports.reads.fixable(TENANT, job_id, [2, 10, 5])

    judged = control.fix_rows(
        rows.ports, rows.kind, TENANT, job_id,
        [fix.Fix(2, held[2].hash, {"title": "good 2"}), fix.Fix(10, "0" * 16, {"title": "x"}), fix.Fix(5, held[5].hash, {"title": "x"})],
        BY,
    )  # fmt: skip

    assert (len(judged.rows), [each["code"] for each in judged.unmatched]) == (1, ["changed", "not_failed"])
    assert rows.finish(job_id, 600) == "succeeded"
    row = rows.items(job_id)[1]
    assert (row["status"], row["input_json"]["title"], row["last_error"]) == ("DONE", "good 2", None)


def test_settings_of_exports_have_bounds() -> None:
    with pytest.raises(ValueError, match="export_xlsx_rows"):
        RowSettings(export_xlsx_rows=1_048_576)
