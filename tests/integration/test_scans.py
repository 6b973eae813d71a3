"""Scans on a real Postgres: what is taken and when, and that a file is one job however often it is seen."""

from __future__ import annotations

from uuid import UUID

import pytest

from shared.kernel import run as runs
from shared.kernel.errors import Refused
from shared.kernel.model import By
from shared.kernel.points import watch_points
from shared.row_job.build import commands
from shared.row_job.model import WayPoint
from tests.support.rig import TENANT
from tests.support.rows import RowRig, csv_of, rows

__all__ = ["rows"]
OTHER = UUID(int=99)


def test_a_file_is_taken_when_its_size_is_unchanged_between_two_scans(rows: RowRig) -> None:
    rows.inbox.waiting["a.csv"] = (b"title\n", "1")
    rows.scan()
    assert rows.inbox.brought == [], "one look says nothing"

    rows.inbox.waiting["a.csv"] = (csv_of(2).encode(), "1")  # it grows
    rows.scan()
    assert rows.inbox.brought == [], "it was being written"

    run_id = rows.scan()
    assert len(rows.inbox.brought) == 1
    assert rows.run(run_id)["status"] == "succeeded"
    (file,) = rows.rows("select name, created_by, arrived_at from files")
    assert (file["name"], file["created_by"], file["arrived_at"]) == ("a.csv", None, None)


def test_a_file_that_is_written_again_with_the_same_size_is_another(rows: RowRig) -> None:
    rows.inbox.waiting["a.csv"] = (b"title\nTV\n", "1")
    rows.scan()
    rows.inbox.waiting["a.csv"] = (b"title\nPC\n", "2")
    rows.scan()
    assert rows.inbox.brought == []
    rows.scan()
    rows.scan()
    assert len(rows.inbox.brought) == 1
    rows.inbox.waiting["a.csv"] = (b"title\nAC\n", "3")
    for _ in range(2):
        rows.scan()
    assert len(set(rows.inbox.brought)) == 2, "what is new in it is a job of its own"


def test_the_same_file_is_one_job_however_often_it_is_seen_and_brought(rows: RowRig) -> None:
    rows.inbox.waiting["a.csv"] = (csv_of(3).encode(), "1")
    for _ in range(4):
        rows.scan()
    assert len(rows.inbox.brought) == 1
    (key,) = rows.inbox.brought
    assert key == f"uploads/{TENANT}/rows/{key.rsplit('/', 1)[1]}", "our own key, of the tenant"
    (run_id,) = rows.hear(key)

    # A scan whose end was lost brings it again, and the bucket tells of it again: Already.
    rows.rows("update scanned_files set file_id = null returning 1")
    rows.scan()
    assert rows.inbox.brought == [key, key]
    assert rows.hear(key) == [run_id]
    assert rows.finish(run_id) == "succeeded"
    assert len(rows.items(run_id)) == 3
    assert len(rows.rows("select 1 from file_jobs")) == 1


def test_a_file_that_is_written_again_while_it_is_taken_is_taken_again(rows: RowRig) -> None:
    """The scan that has the old one must not say of the new one that it is taken."""
    rows.inbox.waiting["a.csv"] = (b"title\nTV\n", "1")
    rows.scan()

    def seen_by_another(here: str) -> None:
        if here == WayPoint.BROUGHT:
            rows.rows("update scanned_files set stamp = '2' returning 1")

    watch_points(seen_by_another)
    try:
        rows.scan()
    finally:
        watch_points(None)

    assert [row["file_id"] for row in rows.rows("select file_id from scanned_files")] == [None]
    rows.inbox.waiting["a.csv"] = (b"title\nPC\n", "2")
    rows.scan()
    assert len(set(rows.inbox.brought)) == 2


def test_a_file_that_takes_many_steps_comes_whole(rows: RowRig) -> None:
    rows.inbox.waiting["large.csv"] = (csv_of(5).encode(), "1")
    rows.inbox.parts = 4
    rows.scan()
    run_id = rows.scan()

    assert len(rows.inbox.brought) == 1
    (lane,) = rows.rows("select steps from lane where run_id = :id and key like 'take:%'", id=run_id)
    assert lane["steps"] == 4


def test_tenants_do_not_see_each_others_files(rows: RowRig) -> None:
    rows.inbox.waiting["a.csv"] = (csv_of(1).encode(), "1")
    rows.scan()
    rows.scan(tenant=OTHER)
    assert rows.inbox.brought == [], "what another tenant saw is no earlier scan"


def test_jobs_of_a_scan_have_its_options_and_the_type_of_their_name(rows: RowRig) -> None:
    rows.inbox.waiting |= {"a.csv": (csv_of(1).encode(), "1"), "pictures.zip": (b"PK", "1")}
    for _ in range(2):
        rows.scan(retailers=["shop1.example"], canary=2)

    told = {row["name"]: row["options"] for row in rows.rows("select name, options from files")}
    assert told["a.csv"] == {
        "retailers": ["shop1.example"],
        "canary": 2,
        "locale": "en-US",
        "currency": "USD",
        "job_type": "csv",
    }
    assert told["pictures.zip"]["job_type"] == "image"


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"scan": "ftp"}, "server: name the connection"),
        ({"scan": "s3", "server": "x"}, "only for a scan of one"),
        ({"scan": "ftp", "server": "nobody"}, "no connection to ftp"),
        ({"scan": "s3", "prefix": "../"}, "prefix"),
        ({"scan": "s3", "key": "inbox/other/x.csv"}, "key"),
        ({"scan": "file:///etc/passwd"}, "scan"),
    ],
)
def test_a_caller_names_no_path(rows: RowRig, params: dict[str, str], says: str) -> None:
    with pytest.raises(Refused, match=says):
        runs.start_run(rows.ports, rows.kind, TENANT, params, By())


def test_a_schedule_can_start_it() -> None:
    (command,) = (each for each in commands() if each.key == "row_jobs.scan")

    assert command.params({"source": "s3", "connection": "search"}) == {"scan": "s3", "connection": "search"}
