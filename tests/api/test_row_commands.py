"""Guards `baton rows` as one types it: lists that fit the terminal, files that are taken home, changed and brought back."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import boto3
import openpyxl
import pytest

from infra.client import show
from shared.kernel.model import Signal
from shared.row_job import rows_api
from shared.row_job.build import build_ports
from shared.row_job.steps import row_job
from tests.api.test_client import Command, as_admin, baton
from tests.api.test_row_lists import BUCKET, MIXED, a_job, bucket
from tests.api.test_rows_docs import work_off
from tests.support.door import Door, TenantHouse
from tests.support.rig import BEGINNING
from tests.support.sheets import from_csv
from tests.support.terminal import Terminal

__all__ = ["as_admin", "baton", "bucket"]

pytestmark = pytest.mark.full


class Answer:
    def __init__(self, status: int, body: bytes = b"") -> None:
        self.status, self._body = status, body

    def stream(self, size: int) -> Iterator[bytes]:
        yield from (self._body[at : at + size] for at in range(0, len(self._body), size))


class Wire:
    """The way to the bucket, as strict as the bucket is: a form with its fields first and the file last, or a link that was signed."""

    def __init__(self, **_: object) -> None: ...

    def request(self, method: str, url: str, **sent: Any) -> Answer:
        return self._take(sent["body"], sent["headers"]) if method == "POST" else self._give(url)

    def _take(self, body: Iterable[bytes], headers: dict[str, str]) -> Answer:
        whole = b"".join(body)
        assert len(whole) == int(headers["content-length"])
        line = b"--" + headers["content-type"].partition("boundary=")[2].encode()
        first, *parts, end = whole.split(line)
        assert (first, end) == (b"", b"--\r\n")
        fields = dict[str, bytes]()
        for part in parts:
            head, _, content = part.partition(b"\r\n\r\n")
            fields[head.split(b'name="')[1].partition(b'"')[0].decode()] = content.removesuffix(b"\r\n")
        assert list(fields)[-1] == "file"
        if not {"policy", "x-amz-signature"} & {name.lower() for name in fields}:
            return Answer(403)
        boto3.client("s3").put_object(Bucket=BUCKET, Key=fields["key"].decode(), Body=fields["file"])
        return Answer(204)

    def _give(self, url: str) -> Answer:
        asked = urlsplit(url)
        if not {"Signature", "X-Amz-Signature"} & set(parse_qs(asked.query)):
            return Answer(403)
        key = asked.path.lstrip("/").removeprefix(f"{BUCKET}/")
        return Answer(200, boto3.client("s3").get_object(Bucket=BUCKET, Key=key)["Body"].read())


@pytest.fixture
def job(as_admin: Command, door: Door, acme: TenantHouse, monkeypatch: pytest.MonkeyPatch) -> tuple[Command, UUID]:
    """A job with a row in each state, and a cloud that goes on whenever the command waits."""
    job_id = a_job(
        door, acme, acme.admin, MIXED, name="a list of products with a name that is far too long for a terminal.csv"
    )
    door.sql("update run set created_by = :who where id = :id", who=acme.admin.actor, id=job_id)
    kind = row_job(build_ports(door._worker))

    def goes_on() -> None:
        for row in door.sql("select id from files where arrived_at is null and tenant_id = :t and hold", t=acme.id):
            key = f"uploads/{acme.id}/rows/{row.id}"
            size = boto3.client("s3").head_object(Bucket=BUCKET, Key=key)["ContentLength"]
            signal = Signal(1, acme.id, "object.created", {"key": key, "size": size}, BEGINNING)
            with door.worker_ports.store.begin(acme.id) as tx:
                assert kind.listens["object.created"](tx, signal) == []
            return
        for row in door.sql("select id from run where params ? 'export' and finished_at is null"):
            work_off(door, row.id)
            return
        for row in door.sql("select run_id from lane where key like 'fix:%' and status = 'active'"):
            door.sql(
                "delete from lane where run_id = :id and key like 'work:%'", id=row.run_id
            )  # nobody works on rows here
            work_off(door, row.run_id)
            return
        raise AssertionError("it waits, and nothing is under way")

    monkeypatch.setattr(show, "pause", goes_on)
    monkeypatch.setattr("urllib3.PoolManager", Wire)
    rows_api._counts.clear()
    return as_admin, job_id


def screen(baton: Command, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    lines = Terminal(monkeypatch)(lambda: baton(*words)).splitlines()
    assert lines
    assert [line for line in lines if show._wide(line) > 80] == []
    return lines


def test_lists_of_rows_fit_the_terminal(job: tuple[Command, UUID], door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    baton, job_id = job
    long = "Produkt \N{FULLWIDTH LATIN CAPITAL LETTER A}" * 30
    door.sql("update job_items set normalized_json = jsonb_build_object('title', cast(:long as text)), last_error = :long where run_id = :id", id=job_id, long=long)  # fmt: skip

    grid = screen(baton, monkeypatch, "rows", "items", str(job_id))
    assert [line.split()[0] for line in grid[1:]] == [str(n) for n in range(1, 9)]
    failed = screen(baton, monkeypatch, "rows", "items", str(job_id), "--status", "ERROR", "--status", "NOT_FOUND")
    assert [line.split()[:2] for line in failed[1:]] == [["4", "ERROR"], ["6", "NOT_FOUND"]]
    pending = screen(baton, monkeypatch, "rows", "pending", "--all")
    assert len(pending) == 5
    assert "PROCESSING" in pending[2]
    few = baton.json("rows", "pending", "--all", "--status", "PROCESSING", "--job", str(job_id), "--limit", "1")
    assert [row["row_no"] for row in few["items"]] == [3]
    assert screen(baton, monkeypatch, "rows", "pending", "--type", "image", "--all") == ["Nothing to show."]


def test_rows_are_taken_home_fixed_and_brought_back(
    job: tuple[Command, UUID], door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    baton, job_id = job
    name = "a-list-of-products-with-a-name-that-is-far-too-long-for-a-terminal"

    first = screen(baton, monkeypatch, "rows", "export", str(job_id), "--out", str(tmp_path))
    assert first[0].split() == ["file", "rows"]
    assert len(from_csv((tmp_path / f"{name}-results.csv").read_bytes())) == 9
    baton("rows", "export", str(job_id), "--out", str(tmp_path))
    assert (tmp_path / f"{name}-results-2.csv").exists(), "nothing is written over"
    (kept,) = baton.json("rows", "export", str(job_id), "--failed", "--format", "xlsx", "--out", str(tmp_path))
    assert kept == {"file": str(tmp_path / f"{name}-failed.xlsx"), "rows": 3}
    assert not list(tmp_path.glob("*.part"))

    book = openpyxl.load_workbook(kept["file"])
    sheet = book.active
    assert sheet is not None
    assert [cell.value for cell in sheet["B"]] == ["baton_problem", "ERROR", "NOT_FOUND", "SKIPPED"]
    sheet["C2"], sheet["D3"], sheet["A4"] = "new title", "new brand", "=nonsense"
    changed = tmp_path / "changed.xlsx"
    out = io.BytesIO()
    book.save(out)
    changed.write_bytes(out.getvalue())
    told = baton("rows", "resubmit", str(job_id), str(changed))
    assert told.splitlines()[0] == "2 rows will be worked on again, 0 weren't changed, 1 didn't match."
    assert "isn't one of a downloaded row" in told
    rows = door.sql("select row_no, status, input_json from job_items where run_id = :id order by row_no", id=job_id)
    assert [(row.row_no, row.status, row.input_json) for row in rows if row.row_no in (4, 6, 8)] == [
        (4, "PENDING", {"title": "new title"}), (6, "PENDING", {"title": "old", "brand": "new brand"}), (8, "SKIPPED", {"title": "old"}),
    ]  # fmt: skip
    csv = tmp_path / "other.csv"
    csv.write_text("title\nx\n")
    assert "no column named baton_key" in baton("rows", "resubmit", str(job_id), str(csv), code=1)
    assert "is not a file" in baton("rows", "resubmit", str(job_id), str(tmp_path / "nothing.csv"), code=1)


def test_one_row_is_fixed_or_worked_on_again(job: tuple[Command, UUID], door: Door) -> None:
    baton, job_id = job

    assert "will be worked on again" in baton("rows", "fix", str(job_id), "4", "--set", "title=a=b", "--set", "brand=")
    (row,) = door.sql("select status, input_json from job_items where run_id = :id and row_no = 4", id=job_id)
    assert (row.status, row.input_json) == ("PENDING", {"title": "a=b"})
    assert "didn't fail" in baton("rows", "fix", str(job_id), "2", "--set", "title=x", code=1)
    assert "has no column 'titel'" in baton("rows", "fix", str(job_id), "6", "--set", "titel=x", code=1)
    assert "Nothing was changed" in baton("rows", "fix", str(job_id), "6", "--set", "title=old")
    assert baton("rows", "reprocess", str(job_id), "--dry-run") == "1 row would be worked on again.\n"
    assert "3 is PROCESSING" in baton("rows", "reprocess", str(job_id), "--row", "3", code=1)
    assert baton("rows", "reprocess", str(job_id), "--row", "2", "--row", "8") == "2 rows will be worked on again.\n"
