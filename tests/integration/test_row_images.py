"""Image jobs on a real Postgres, and what was chosen with an upload."""

from __future__ import annotations

from itertools import count

import pytest

from shared.kernel import run as runs
from shared.row_job import picturing
from tests.support.pictures import packed, png
from tests.support.rig import TENANT
from tests.support.rows import BY, RowRig, rows

__all__ = ["rows"]


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
