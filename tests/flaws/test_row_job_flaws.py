"""Each way in which persisting rows first and working on them in slices can go wrong, by name."""

from __future__ import annotations

import csv
import inspect
import io
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest
import sqlalchemy as sa

from shared.kernel import db
from shared.kernel import run as runs
from shared.kernel.control import REPORT_ONLY, Bounds, Paced, Paces, Seen, Want, trade
from shared.kernel.errors import Conflict, Refused
from shared.kernel.model import Effect, Starting, Statement
from shared.kernel.points import Point, watch_points
from shared.row_job import control, decide, export, fix, grid, steps, store, table
from shared.row_job.decide import Answered, lease_s
from shared.row_job.model import Item, RowJobParams, RowSettings, Strategy, WayPoint
from tests.support.pictures import packed, png
from tests.support.rig import TENANT
from tests.support.rows import BY, SETTINGS, RowRig, csv_of, rows
from tests.support.sheets import from_calamine, from_csv, from_openpyxl

__all__ = ["rows"]
BOB = UUID(int=0xB0)


# 1a: a lock that is shorter than the claim.


@pytest.mark.parametrize("timeout_ms", [100, 60_000])
def test_1a_a_lease_covers_its_slice_its_longest_call_and_the_commit(timeout_ms: int) -> None:
    assert lease_s(5.0, RowSettings(provider_timeout_ms=timeout_ms)) > 5.0 + timeout_ms / 1000


def test_1a_no_row_is_taken_by_two_lanes(rows: RowRig) -> None:
    run_id = rows.upload(csv_of(60))
    rows.finish(run_id, 600)

    assert {(row["row_no"], row["slot"]) for row in rows.items(run_id)} == {(n, n % 2) for n in range(1, 61)}
    assert max(rows.provider.keys.values()) == 1


# 1b: a zombie that writes over a newer result.


def test_1b_what_a_lane_brings_after_it_was_overtaken_is_not_written(rows: RowRig) -> None:
    run_id = rows.upload(csv_of(4))
    zombie: list[int] = []

    def stall(item: Item, strategy: str) -> Answered | None:
        if not zombie:
            zombie.append(item.row_no)
            rows.pass_time(400)  # the lease runs out: another one takes the lane, and finishes
            assert rows.run(run_id)["status"] == "succeeded"
            return Answered(what="invalid", ms=5, message="too late")
        return None

    rows.provider.says = stall
    rows.finish(run_id, 600)

    assert zombie
    assert rows.statuses(run_id) == {"DONE": 4}
    assert not [row for row in rows.items(run_id) if row["last_error"] == "too late"]


@pytest.mark.parametrize("of", ["another attempt", "another turn"])
def test_1b_a_result_is_written_for_the_attempt_and_the_turn_that_it_belongs_to(rows: RowRig, of: str) -> None:
    run_id, holder = rows.upload(csv_of(1)), UUID(int=5)
    rows.provider.says = lambda item, strategy: Answered(what="not_found", ms=5)
    rows.pass_time(5)
    rows.rows(
        "update job_items set status = 'PROCESSING', attempts = 2, locked_by = :h where run_id = :id returning 1",
        id=run_id, h=holder,
    )  # fmt: skip
    late: dict[str, object] = {
        "row_no": 1,
        "claimed": 1 if of == "another attempt" else 2,
        "status": "DONE",
        "attempts": 1,
        "missed": False,
        "permanent": False,
    }

    def finish(result: dict[str, object], by: UUID) -> None:
        turn = f"with turn as (select cast(:run_id as uuid) as run_id) {store.FINISH_ROWS.sql}"
        params = {"run_id": run_id, "items": db.jsonb([result]), "holder": by}
        with rows.ports.store.begin(TENANT) as tx:
            tx.apply(Effect(Statement("test.finish", turn), params))

    finish(late, UUID(int=6) if of == "another turn" else holder)
    assert rows.items(run_id)[0]["status"] == "PROCESSING"
    finish({**late, "claimed": 2}, holder)
    assert rows.items(run_id)[0]["status"] == "DONE"


# 1c: done too early.


def test_1c_a_job_does_not_end_while_its_file_is_still_being_read(rows: RowRig) -> None:
    run_id = rows.upload(csv_of(30))
    messages = [rows.receive() for _ in range(3)]
    work = [each for each in messages if each is not None]
    ingest = rows.lane(run_id, "ingest")["id"]
    for message in sorted(work, key=lambda each: str(ingest) in each.body):  # the lanes that work come first
        rows.work(message)

    assert rows.run(run_id)["status"] in ("queued", "running")
    assert rows.finish(run_id, 600) == "succeeded"
    assert rows.statuses(run_id) == {"DONE": 30}


def test_1c_reprocess_reopens_the_job_with_its_rows_and_somebody_works_on_them(rows: RowRig) -> None:
    run_id = rows.upload(csv_of(6))
    rows.finish(run_id, 600)

    rows.reprocess(run_id, row_nos=[1, 2, 3])

    assert rows.run(run_id)["finished_at"] is None
    assert rows.finish(run_id, 600) == "succeeded"
    assert rows.statuses(run_id) == {"DONE": 6}
    assert len(rows.provider.calls) == 9


def test_1c_rows_that_are_opened_while_their_lane_is_ending_are_not_left_behind(rows: RowRig) -> None:
    """A lane has looked and found nothing; rows are opened; only then it commits that it is done."""
    run_id = rows.upload(csv_of(4))
    rows.pass_time(1)
    real = rows.row_ports.reads
    opened: list[int] = []

    class Reads:
        progress = staticmethod(real.progress)

        def open_rows(self, *where: object) -> object:
            left = real.open_rows(*where)  # type: ignore[arg-type]
            if left.next_due_s is None and left.read_done and not opened:
                with rows.another_process() as other:
                    opened.append(other.reprocess(run_id, row_nos=[1, 2, 3, 4]))
            return left

    rows.kind = steps.row_job(replace(rows.row_ports, reads=Reads()))  # type: ignore[arg-type]
    rows.finish(run_id, 600)

    assert opened == [4]
    assert rows.run(run_id)["status"] == "succeeded"
    assert rows.statuses(run_id) == {"DONE": 4}
    assert len(rows.provider.calls) == 8


# 1d: read twice.


def test_1d_the_same_upload_is_one_job(rows: RowRig) -> None:
    file_id = rows.issue()
    first = rows.arrive(file_id, csv_of(3).encode())

    assert rows.arrive(file_id, csv_of(5).encode(), version="v2") == first
    rows.finish(first[0], 600)
    assert len(rows.items(first[0])) == 3, "the version that arrived first is pinned"


def test_1d_reading_that_broke_off_goes_on_without_a_row_twice_or_missing(
    rows: RowRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies after rows were written and before the step is committed, again and again."""
    rows.use(SETTINGS.model_copy(update={"ingest_min_rows": 8, "ingest_max_rows": 16}))
    deaths = Counter[str]()

    def die(name: str) -> None:
        if name == steps.RowPoint.ROWS_WRITTEN and deaths[name] < 3 and deaths["passed"] % 7 == 6:
            deaths[name] += 1
            deaths["passed"] += 1
            raise ConnectionError("the process is gone")
        deaths["passed"] += 1

    monkeypatch.setattr(steps, "point", die)
    run_id = rows.upload(csv_of(200))

    assert rows.finish(run_id, 7200) == "succeeded"
    assert deaths[steps.RowPoint.ROWS_WRITTEN] == 3
    assert [row["input_json"]["sku"] for row in rows.items(run_id)] == [f"SKU-{n}" for n in range(1, 201)]


def test_1d_reading_in_many_steps_goes_on_exactly_where_it_stopped(
    rows: RowRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of a step is up after every batch."""

    def one_batch() -> Callable[[], float]:
        told = iter([0.0])
        return lambda: next(told, 99.0)

    rows.use(SETTINGS.model_copy(update={"ingest_min_rows": 8, "ingest_max_rows": 16}))
    monkeypatch.setattr(steps, "stopwatch", one_batch)
    run_id = rows.upload(csv_of(60))
    rows.pass_time(10)

    assert [(row["row_no"], row["input_json"]["sku"]) for row in rows.items(run_id)] == [
        (n, f"SKU-{n}") for n in range(1, 61)
    ]
    assert len(rows.rows("select 1 from step s join lane l on l.id = s.lane_id where l.key = 'ingest'")) > 3


# 1e: counters that drift.


def test_1e_counters_are_counted_and_never_pass_the_whole(rows: RowRig) -> None:
    run_id = rows.upload(csv_of(5))
    rows.finish(run_id, 600)
    for _ in range(3):
        rows.reprocess(run_id, row_nos=[1, 2, 3, 4, 5])
        rows.finish(run_id, 600)

    job = rows.job(run_id)
    assert (job["total_items"], job["processed_items"]) == (5, 5)
    assert job["counted_at"] is not None, "a cached figure says how old it is"
    assert not re.search(
        r"(processed|failed|total)_items\s*=\s*\S*(processed|failed|total)_items\s*\+", inspect.getsource(store)
    )


# 1f: reprocess clears a live lock.


def test_1f_rows_at_work_are_refused_with_their_state(rows: RowRig) -> None:
    run_id = rows.upload(csv_of(4))
    seen: list[str] = []

    def meanwhile(item: Item, strategy: str) -> Answered | None:
        if not seen:
            with rows.another_process() as other, pytest.raises(Conflict) as refused:
                other.reprocess(run_id, row_nos=[item.row_no])
            seen.append(str(refused.value.args))
        return None

    rows.provider.says = meanwhile
    rows.finish(run_id, 600)

    assert "is PROCESSING" in seen[0]
    assert max(rows.provider.keys.values()) == 1


# 1g: one bad row and a batch that shrinks for ever.


def test_1g_a_row_that_the_database_refuses_is_found_and_set_aside(
    rows: RowRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever slips through the checks: here a NUL in a cell, which jsonb does not take."""
    monkeypatch.setattr(table, "_problem", lambda record, found, names, dialect: None)
    content = csv_of(100).replace("Product 37,", "Prod\x00uct 37,")

    run_id = rows.upload(content)

    assert rows.finish(run_id, 600) == "succeeded"
    assert rows.statuses(run_id) == {"DONE": 99, "SKIPPED": 1}
    (bad,) = [row for row in rows.items(run_id) if row["status"] == "SKIPPED"]
    assert (bad["row_no"], bad["last_error"]) == (37, "The database can't store this row.")


@pytest.mark.parametrize("of", ["rows", "images"])
def test_1g_a_step_that_failed_writes_half_as_much_at_once(rows: RowRig, of: str) -> None:
    bounds = {"ingest_min_rows": 4, "ingest_max_rows": 8}
    rows.kind = steps.row_job(replace(rows.row_ports, settings=SETTINGS.model_copy(update=bounds)))
    written: list[str] = []

    def fail_once(name: str) -> None:
        if name in (str(steps.RowPoint.ROWS_WRITTEN), str(WayPoint.PICTURED)):
            written.append(name)
            if len(written) == 1:
                raise ConnectionError("the database is gone")

    images = packed(*((f"{n}.png", png(n, 1)) for n in range(1, 9)))
    run_id = rows.upload(csv_of(8)) if of == "rows" else rows.upload(images, name="x.zip", job_type="image")
    watch_points(fail_once)
    try:
        assert rows.finish(run_id, 3600) == "succeeded"
    finally:
        watch_points(None)
    assert rows.statuses(run_id) == {"DONE": 8}
    assert len(written) == 1 + 2, "all eight at once, which failed, then twice four"


def test_1g_each_failure_halves_a_batch_down_to_its_bound() -> None:
    sizes = [decide.batch_of({"batch": 512}, failures, SETTINGS).rows for failures in (0, 1, 2, 99)]

    assert sizes == [512, 256, 128, SETTINGS.ingest_min_rows]


# 1h: a row that kills its worker.


class Killed(BaseException):
    pass


@pytest.fixture
def deaths(rows: RowRig, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When a worker died. Nothing was deleted, nothing was given back: the message and the lease run out."""
    real, when = rows.work, list[float]()

    def work(message: object, queue: str = "baton-tally.fifo") -> bool:
        try:
            return bool(real(message, queue))  # type: ignore[arg-type]
        except Killed:
            when.append(rows.now)
            return False

    monkeypatch.setattr(rows, "work", work)
    return when


@pytest.mark.parametrize("killer", [2, 18, 40])
def test_1h_a_row_that_kills_every_worker_ends_and_the_others_are_done(
    rows: RowRig, deaths: list[float], killer: int
) -> None:
    """Wherever it stands among the rows that are taken with it."""
    taken: list[int] = []

    def poison(item: Item, strategy: str) -> Answered | None:
        if item.row_no == killer:
            taken.append(item.attempts)
            raise Killed
        return None

    rows.provider.says = poison
    run_id = rows.upload(csv_of(40))
    rows.finish(run_id, 86_400)

    assert rows.statuses(run_id) == {"DONE": 39, "ERROR": 1}
    (bad,) = [row for row in rows.items(run_id) if row["status"] == "ERROR"]
    assert bad["row_no"] == killer
    assert "stopped each time" in bad["last_error"]
    assert len(deaths) <= 4, "once with others, and three times alone"
    assert set(taken) == {1}, "it is one attempt, of which nobody knows the answer"


def test_1h_rows_in_many_slices_that_kill_do_not_end_the_lane(rows: RowRig, deaths: list[float]) -> None:
    """After each death what it left is looked at before other rows are taken: six in a row end a lane."""
    killers = set(range(5, 130, 16))

    def poison(item: Item, strategy: str) -> Answered | None:
        if item.row_no in killers:
            raise Killed
        return None

    rows.provider.says = poison
    rows.use(SETTINGS.model_copy(update={"slots": 1, "claim_max": 16}))
    run_id = rows.upload(csv_of(130))

    assert rows.finish(run_id, 86_400) == "succeeded"
    assert rows.statuses(run_id) == {"DONE": 130 - len(killers), "ERROR": len(killers)}
    assert {row["row_no"] for row in rows.items(run_id) if row["status"] == "ERROR"} == killers


def test_1h_a_death_costs_the_rows_in_hand_no_attempt(rows: RowRig, deaths: list[float]) -> None:
    """Else they would never be looked for by their exact SKU, and soon not at all."""
    rows.provider.says = lambda item, strategy: (
        None if strategy == Strategy.EXACT_SKU else Answered(what="not_found", ms=5)
    )

    def dies_once(where: str) -> None:
        if where == steps.RowPoint.CLAIMED and not deaths:
            raise Killed

    run_id = rows.upload(csv_of(12))
    watch_points(dies_once)
    try:
        assert rows.finish(run_id, 600) == "succeeded"
    finally:
        watch_points(None)
    assert len(deaths) == 1
    assert {(row["status"], row["attempts"]) for row in rows.items(run_id)} == {("DONE", 1)}


def test_1h_workers_that_die_before_they_take_a_row_are_no_rows_fault(
    rows: RowRig, deaths: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    count = steps._Working._count

    def dies(self: object, last_s: float) -> float:
        if len(deaths) < 3:
            raise Killed
        return count(self, last_s)  # type: ignore[arg-type]

    monkeypatch.setattr(steps._Working, "_count", dies)
    rows.use(SETTINGS.model_copy(update={"slots": 1}))
    run_id = rows.upload(csv_of(3))

    assert rows.finish(run_id, 3600) == "succeeded"
    assert len(deaths) == 3
    assert rows.statuses(run_id) == {"DONE": 3}


# 1i: a loop over rows by a key that changes.


def exported(rows: RowRig, job_id: UUID, meanwhile: Callable[[str], None] | None = None) -> list[list[str]]:
    params = {"export": str(job_id), "format": "csv", "rows": "all"}
    export_id = runs.start_run(rows.ports, rows.kind, TENANT, params, BY)
    watch_points(meanwhile)
    try:
        assert rows.finish(export_id, 3600) == "succeeded", rows.run(export_id)["error"]
    finally:
        watch_points(None)
    (export,) = rows.rows("select files from row_exports where run_id = :id", id=export_id)
    return from_csv(rows.results.held[export["files"][0]["key"]])[1:]


def test_1i_an_export_ends_and_has_every_row_once_while_rows_are_touched(
    rows: RowRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of all rows are touched between two pages: by the time of their change, there would be no end."""
    monkeypatch.setattr(export, "PAGE", 100)
    monkeypatch.setattr(export, "STEP_S", 0.0)
    job_id = rows.upload(csv_of(1_000))
    rows.finish(job_id, 600)
    touched = []

    def touch(here: str) -> None:
        if here == Point.STEP_LOOKED:
            touched.append(
                rows.rows(
                    "update job_items set updated_at = pg_catalog.now() where run_id = :id and mod(row_no, 2) = 0 returning 1",
                    id=job_id,
                )
            )

    found = exported(rows, job_id, touch)

    assert len(touched) >= 10
    assert [row[0] for row in found] == [str(n) for n in range(1, 1_001)]
    assert rows.rows(
        "select attnotnull from pg_attribute where attrelid = 'job_items'::regclass and attname = 'updated_at'"
    )[0]["attnotnull"]


# 1j: parameters without a type.


def test_1j_a_parameter_that_may_be_null_says_its_type() -> None:
    texts = [
        each.sql if isinstance(each, Statement) else each.text
        for each in vars(store).values()
        if isinstance(each, (Statement, sa.TextClause))
    ]

    assert len(texts) > 25
    assert not [found for text in texts for found in re.findall(r"(?<!:):\w+ is (?:not )?null", text)]


def test_1j_every_statement_is_understood_by_the_driver_with_and_without_values(rows: RowRig) -> None:
    which = {"run_id": UUID(int=1), "tenant_id": TENANT, "statuses": ["ERROR"], "permanent": False}
    with rows.ports.store.begin(TENANT) as tx:
        for row_nos in (None, [1, 2]):
            assert tx.apply(Effect(store.RESET, {**which, "row_nos": row_nos})) == 0
            assert tx.read(store.COUNT_RESET, {**which, "row_nos": row_nos})[0]["count"] == 0


# 1l: rows whose tenant is not their job's.


def test_1l_a_row_cannot_have_another_tenant_than_its_job(rows: RowRig) -> None:
    run_id = rows.upload(csv_of(1))
    rows.finish(run_id, 600)

    with pytest.raises(sa.exc.DatabaseError) as refused:
        rows.rows("update job_items set tenant_id = :bob where run_id = :id returning 1", bob=BOB, id=run_id)
    assert db.sqlstate(refused.value) == "23503"


# 1n: a path or key from the caller.


@pytest.mark.parametrize("key", ["../../etc/passwd", "file:///etc/passwd", "uploads/other/rows/x", "s3://bucket/key"])
def test_1n_a_job_is_started_by_an_upload_id_and_by_nothing_else(rows: RowRig, key: str) -> None:
    for params in (
        {"file_id": key},
        {"key": key},
        {"file_id": str(UUID(int=5)), "key": key},
        {"file_id": str(UUID(int=5)), "path": key},
    ):
        with rows.ports.store.begin(TENANT) as tx, pytest.raises(Refused):
            rows.kind.start(tx, Starting(run_id=UUID(int=1), tenant_id=TENANT, params=params, by=BY))


def test_1n_another_tenants_upload_is_nobodys(rows: RowRig) -> None:
    theirs = rows.issue(tenant=BOB)

    with rows.ports.store.begin(TENANT) as tx, pytest.raises(Refused, match="unknown_file"):
        rows.kind.start(tx, Starting(run_id=UUID(int=1), tenant_id=TENANT, params={"file_id": str(theirs)}, by=BY))
    asked = {"file_id": theirs, "tenant_id": TENANT}
    assert not rows.rows(store.FILE.sql, **asked), "nor where no wall holds the one who asks"


# 1o: files that do what their cells say.


def test_1o_no_cell_of_a_file_is_a_formula_and_none_breaks_it(rows: RowRig) -> None:
    evil = ['=HYPERLINK("http://x","y")', "+1", "-1", "@x", "\t=1", "\r=1", "a\x01b", "x" * 40_000, "_x0041_"]
    job_id = rows.upload(csv_of(len(evil)))
    rows.finish(job_id, 600)
    for number, cell in enumerate(evil, 1):
        rows.rows(
            """update job_items set last_error = :cell, result_json = jsonb_build_object('offers', jsonb_build_array(
                   jsonb_build_object('title', cast(:cell as text), 'price', cast(:cell as text), 'url', cast(:cell as text))))
               where run_id = :id and row_no = :n returning 1""", id=job_id, n=number, cell=cell,
        )  # fmt: skip
    shown = [grid.encode([cell], ("error",)) for cell in evil]
    raw: dict[str, bytes] = {}
    for format_ in ("csv", "xlsx"):
        params = {"export": str(job_id), "format": format_}
        export_id = runs.start_run(rows.ports, rows.kind, TENANT, params, BY)
        assert rows.finish(export_id, 3600) == "succeeded"
        (export,) = rows.rows("select files from row_exports where run_id = :id", id=export_id)
        raw[format_] = rows.results.held[export["files"][0]["key"]]

    for read in (from_csv(raw["csv"]), from_openpyxl(raw["xlsx"]), from_calamine(raw["xlsx"])):
        for row, (cell, _) in zip(read[1:], shown, strict=True):
            assert [row[6], row[12], row[15]] == [cell] * 3
            assert row[9] == cell or (cell == "-1" and row[9] == -1), "only a number is one"
    cut = {row[0]: row[17] for row in from_csv(raw["csv"])[1:] if row[17]}
    assert cut == {"8": "found_title, price, url, error"}
    for line in csv.reader(io.StringIO(raw["csv"].decode(), newline="")):
        assert not [
            cell for at, cell in enumerate(line) if cell[:1] in "=+-@\t\r" and cell and not (at == 9 and cell == "-1")
        ]


# 1p: a file of several instants.


def instant(rows: RowRig, job_id: UUID) -> list[tuple[str, str, str]]:
    return [(str(row["row_no"]), row["status"], str(row["attempts"])) for row in rows.items(job_id)]


def test_1p_an_export_during_processing_is_of_one_instant(rows: RowRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "PAGE", 20)
    monkeypatch.setattr(export, "STEP_S", 0.0)
    rows.provider.says = lambda item, strategy: Answered(what="not_found", ms=5) if item.attempts == 1 else None
    job_id = rows.upload(csv_of(200))
    rows.pass_time(3)
    seen: list[list[tuple[str, str, str]]] = []

    def see(here: str) -> None:
        if here == WayPoint.SNAPSHOT:
            seen.append(instant(rows, job_id))
        if here == Point.STEP_COMMITTED and seen and not moved:
            moved.append(len(rows.rows("select 1 from export_kept")))
        if here == Point.STEP_LOOKED and seen:
            rows.rows(
                """update job_items set status = 'DONE', attempts = 9, updated_at = pg_catalog.now() where run_id = :id and row_no in (
                       select row_no from job_items where run_id = :id order by attempts, row_no desc limit 30) returning 1""",
                id=job_id,
            )  # fmt: skip

    moved: list[int] = []
    found = exported(rows, job_id, see)

    assert len(seen) == 1
    assert [(row[0], row[1], row[5]) for row in found] == seen[0]
    assert sum(was != now for was, now in zip(seen[0], instant(rows, job_id), strict=True)) > 100, "much had changed"
    rows.pass_time(30)
    assert not rows.rows("select 1 from export_kept"), "what was kept for it is gone"


def test_1p_a_change_that_is_being_committed_is_in_the_file_or_is_not_but_never_half(rows: RowRig) -> None:
    """Somebody changed all rows before the snapshot was opened, and commits when its first page could be read."""
    job_id = rows.upload(csv_of(10))
    rows.finish(job_id, 600)
    params = {"export": str(job_id), "format": "csv", "rows": "all"}
    export_id = runs.start_run(rows.ports, rows.kind, TENANT, params, BY)
    elsewhere = db.connect_engine(rows.owner.url.render_as_string(hide_password=False))
    with elsewhere.connect() as other:
        transaction = other.begin()
        other.execute(sa.text("update job_items set last_error = 'late' where run_id = :id"), {"id": job_id})
        rows.pass_time(30)
        assert rows.run(export_id)["status"] == "running"
        assert rows.lane(export_id, "export")["waits_for"] == "changes that are being committed"
        rows.pass_time(3600)
        assert rows.lane(export_id, "export")["seq"] < 150, "it looks less and less often"
        transaction.commit()
    elsewhere.dispose()
    assert rows.finish(export_id, 600) == "succeeded"

    (told,) = rows.rows("select files from row_exports where run_id = :id", id=export_id)
    found = from_csv(rows.results.held[told["files"][0]["key"]])[1:]
    assert [row[15] for row in found] == ["late"] * 10


# 1q: a kickoff that pins a function.


def test_1q_a_kickoff_is_clamped_and_starts_no_second_worker(rows: RowRig) -> None:
    rows.provider.says = lambda item, strategy: Answered(what="not_found", ms=5) if item.attempts == 1 else None
    run_id = rows.upload(csv_of(2))
    rows.pass_time(30)
    before = len(rows.rows("select 1 from lane where run_id = :id", id=run_id))

    for _ in range(20):
        control.kickoff(rows.ports, TENANT, run_id, BY)
    rows.pass_time(10)

    assert len(rows.rows("select 1 from lane where run_id = :id", id=run_id)) == before
    assert len(rows.provider.calls) == 2


def test_1q_a_pause_is_seen_after_one_slice(rows: RowRig) -> None:
    paused: list[int] = []

    def pause(item: Item, strategy: str) -> Answered | None:
        if not paused:
            with rows.another_process() as other:
                runs.pause_run(other.ports, TENANT, run_id, BY)
        paused.append(item.row_no)
        return None

    rows.provider.says = pause
    run_id = rows.upload(csv_of(500))
    rows.pass_time(600)

    assert len(paused) < 250, "the slice in hand, and no other"
    assert all(decide.slice_s(SETTINGS, left) <= 5 for left in (5, 30, 60, 900))
    assert decide.slice_s(SETTINGS, 5.0) < 3, "a function with five seconds ends in time"


# 1r: back-pressure that each function keeps to itself.


def test_1r_a_function_that_starts_cold_asks_no_faster_than_the_others(rows: RowRig) -> None:
    paced, bounds = Paced("acc", "shop", TENANT), Bounds(first=20.0)
    warm = Paces(rows.engine)
    trade(warm, paced, UUID(int=1), (0, Seen()), Want(4), bounds)
    trade(warm, paced, UUID(int=1), (1, Seen(sent=10, throttled=4, retry_after_s=30.0)), REPORT_ONLY, bounds)

    with rows.another_process() as other:
        cold = trade(Paces(other.engine), paced, UUID(int=2), (0, Seen()), Want(16), bounds)

    assert (cold.slots, cold.closed) == (0, True)
    assert cold.law.rate < 20


# 1s: bombs.


GOOD = "caf\u00e9,Acme,S1"
ENCODING, LONG = "The row isn't written in the file's encoding.", "A cell has 200,000 characters; 100,000 are the most."
# What is in a file, and what the job fails with: a code; or what is said of the one row that is set aside. Beside it there is
# always one good row, which is worked on.
HOSTILE: dict[str, tuple[bytes, str]] = {
    "an empty file": (b"", "empty_file"),
    "nothing but a mark": (b"\xef\xbb\xbf", "empty_file"),
    "a header only": (b"title,sku\n", "no_rows"),
    "nothing to look for": (b"colour,size\nred,4\n", "no_columns"),
    "10,000 columns": (b",".join(b"c%d" % n for n in range(10_000)) + b"\na,b\n", "too_many_columns"),
    "an open quote in the header": (b'"title,brand\na,b\n', "no_columns"),
    "a NUL in the header": (b"title,br\x00and\na,b\n", "bad_header"),
    "200 kB in a cell": (f"title,brand,sku\n{GOOD}\n{'x' * 200_000},a,b\n".encode(), LONG),
    "200 kB of header": (b"x" * 200_000 + b",title\na,b\n", "bad_header"),
    "an open quote": (f'title,brand,sku\n"never closed,a,b\n{GOOD}\n'.encode(), "A quote is opened and not closed."),
    "a NUL": (f"title,brand,sku\n{GOOD}\nnul\x00,a,b\n".encode(), "The row holds a NUL character."),
    "a lone surrogate": (f"title,brand,sku\n{GOOD}\n".encode() + b"\xed\xa0\x80,a,b\n", ENCODING),
    "a lone surrogate in UTF-16": (
        b"\xff\xfe" + f"title,brand,sku\n{GOOD}\n\ud800,a,b\n".encode("utf-16-le", "surrogatepass"), ENCODING,
    ),
    "Windows-1252 among UTF-8": (f"title,brand,sku\n{GOOD}\n".encode() + b"caf\xe9,a,b\n", ENCODING),
    "more cells than columns": (
        f"title,brand,sku\n{GOOD}\na,b,c,d,e\n".encode(), "The row has 5 cells; the file has 3 columns.",
    ),
    "neither title nor SKU": (f"title,brand,sku\n{GOOD}\n,b,\n".encode(), "The row has neither a title nor a SKU."),
}  # fmt: skip


def test_1s_what_a_hostile_file_leads_to(rows: RowRig) -> None:
    jobs = {name: rows.upload(content) for name, (content, _) in HOSTILE.items()}
    rows.pass_time(120)

    said: dict[str, str] = {}
    for name, run_id in jobs.items():
        run = rows.run(run_id)
        if run["status"] == "failed":
            said[name] = run["error"]["code"]
            continue
        assert rows.statuses(run_id) == {"DONE": 1, "SKIPPED": 1}, name
        said[name] = next(row["last_error"] for row in rows.items(run_id) if row["status"] == "SKIPPED")
    assert said == {name: outcome for name, (_, outcome) in HOSTILE.items()}
    told = [row["name"] for row in rows.rows("select name from signal where name = 'row_job.failed'")]
    assert len(told) == sum(" " not in outcome for _, outcome in HOSTILE.values())


def test_1s_a_file_that_grows_is_read_as_it_was_and_one_that_shrinks_is_refused(rows: RowRig) -> None:
    file_id = rows.issue()
    (run_id,) = rows.arrive(file_id, csv_of(5).encode())
    ((key, version), content) = next(iter(rows.files.held.items()))
    rows.files.held[key, version] = content + csv_of(5).encode()
    rows.finish(run_id, 600)
    assert len(rows.items(run_id)) == 5

    other = rows.issue()
    (second,) = rows.arrive(other, csv_of(5).encode())
    rows.files.held[key.replace(str(file_id), str(other)), "v1"] = b"title"
    assert rows.finish(second, 3600) == "failed"
    assert rows.run(second)["error"]["code"] == "file_changed"


def test_1s_hostile_rows_cost_themselves_alone(rows: RowRig) -> None:
    hostile = [
        b"x" * 200_000 + b",a,b", b"nul\x00,a,b", b"caf\xe9,a,b", b"a,b,c,d,e", b"\xed\xa0\x80,a,b",
    ]  # fmt: skip
    good = [b"caf\xc3\xa9 %d,Acme,S%d" % (n, n) for n in range(10)]
    lines = [b"title,brand,sku", *[line for pair in zip(good, hostile * 2, strict=True) for line in pair]]
    assert csv.field_size_limit() >= table.LONGEST_RECORD

    run_id = rows.upload(b"\n".join(lines) + b"\n")

    assert rows.finish(run_id, 600) == "succeeded"
    assert rows.statuses(run_id) == {"DONE": 10, "SKIPPED": 10}
    assert all(row["last_error"] for row in rows.items(run_id) if row["status"] == "SKIPPED")
    assert RowJobParams(file_id=UUID(int=1)).account == "product_search"


# 1t: what an answer says, and what it doesn't.


def no_offer(item: Item, strategy: Strategy) -> Answered:
    return Answered(what="not_found", ms=5)


def no_answer(item: Item, strategy: Strategy) -> Answered:
    return Answered(what="failed", ms=5, message="status 500")


def test_1t_an_error_does_not_take_the_exact_sku_from_a_row(rows: RowRig) -> None:
    """The product is only known by its SKU, and the first call of each row fails."""

    def says(item: Item, strategy: Strategy) -> Answered | None:
        if item.attempts == 1:
            return no_answer(item, strategy)
        return None if strategy is Strategy.EXACT_SKU else no_offer(item, strategy)

    rows.provider.says = says
    run_id = rows.upload(csv_of(3))

    assert rows.finish(run_id) == "succeeded"
    assert rows.statuses(run_id) == {"DONE": 3}
    assert {row["strategy"] for row in rows.rows("select strategy from search_events")} == {"exact_sku"}


def test_1t_errors_and_answers_are_counted_apart(rows: RowRig) -> None:
    """Four errors and three answers that there is nothing: neither is too many, and the fourth way finds it."""
    said = iter([no_answer, no_offer, no_answer, no_offer, no_answer, no_offer, no_answer])
    rows.provider.says = lambda item, strategy: answer(item, strategy) if (answer := next(said, None)) else None
    run_id = rows.upload(csv_of(1))

    assert rows.finish(run_id, 7200) == "succeeded"
    (row,) = rows.items(run_id)
    assert (row["status"], row["attempts"], row["misses"]) == ("DONE", 8, 3)
    assert [strategy for _, _, strategy in rows.provider.calls] == [
        "exact_sku", "exact_sku", "brand_title", "brand_title", "title_only", "title_only", "relaxed", "relaxed",
    ]  # fmt: skip


def test_1t_a_row_is_looked_for_in_every_way_that_it_has(rows: RowRig) -> None:
    rows.provider.says = no_offer
    run_id = rows.upload("title,brand,sku\na,b,c\na,,\n,b,c\n")

    assert rows.finish(run_id, 7200) == "succeeded", "within an hour, not days"
    ways = rows.rows(
        "select row_no, array_agg(strategy order by attempt) as ways from search_events group by 1 order by 1"
    )
    assert [row["ways"] for row in ways] == [
        ["exact_sku", "brand_title", "title_only", "relaxed"],
        ["title_only", "relaxed"],
        ["exact_sku", "relaxed"],
    ]
    assert rows.statuses(run_id) == {"NOT_FOUND": 3}


def test_1t_reprocess_goes_on_with_the_way_that_comes_next(rows: RowRig) -> None:
    rows.use(SETTINGS.model_copy(update={"max_attempts_not_found": 3}))
    rows.provider.says = no_offer
    run_id = rows.upload(csv_of(1))
    rows.finish(run_id, 7200)

    assert rows.reprocess(run_id) == 1
    rows.finish(run_id, 2 * 86_400)

    assert [strategy for _, _, strategy in rows.provider.calls] == [
        "exact_sku", "brand_title", "title_only", "relaxed", "exact_sku", "brand_title",
    ]  # fmt: skip
    (row,) = rows.items(run_id)
    assert (row["status"], row["attempts"]) == ("NOT_FOUND", 3)
    held = rows.row_ports.reads.fixable(TENANT, run_id, [1])
    control.fix_rows(rows.ports, rows.kind, TENANT, run_id, [fix.Fix(1, held[1].hash, {"title": "Better"})], BY)
    rows.finish(run_id, 7200)
    assert rows.provider.calls[6] == ("Better", 1, "exact_sku"), "another product, which nobody has looked for yet"


def test_1t_reprocess_after_an_outage_brings_every_row_home(rows: RowRig) -> None:
    """Long enough that every row has used up its attempts; one of them was refused for what is in it."""
    refused = Answered(what="invalid", ms=5, message="too vague")
    rows.provider.says = lambda item, strategy: refused if item.row_no == 4 else no_answer(item, strategy)
    run_id = rows.upload(csv_of(9))
    assert rows.finish(run_id) == "succeeded"
    assert rows.statuses(run_id) == {"ERROR": 9}
    rows.provider.says = lambda item, strategy: None

    assert rows.reprocess(run_id, dry_run=True) == 8
    assert rows.reprocess(run_id) == 8

    assert rows.finish(run_id, 600) == "succeeded"
    assert rows.statuses(run_id) == {"DONE": 8, "ERROR": 1}
    assert {row["attempts"] for row in rows.items(run_id)} == {1}
    assert rows.reprocess(run_id, permanent=True) == 1
    rows.finish(run_id, 600)
    assert rows.statuses(run_id) == {"DONE": 9}
