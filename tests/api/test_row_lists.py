"""Guards the lists of rows over HTTP: who sees what, in which order, by which page; and that files say what the grid says."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import boto3
import pytest
from moto import mock_aws

from shared.kernel import aws
from shared.kernel.api import shapes
from shared.kernel.baton import Baton
from shared.kernel.clock import new_id
from shared.kernel.metrics import NoMeter
from shared.kernel.step import take_turn
from shared.row_job import grid, rows_api
from shared.row_job.build import build_ports
from shared.row_job.steps import row_job
from tests.support.door import Door, TenantHouse, Who
from tests.support.sheets import digest, from_calamine, from_csv, from_openpyxl

BUCKET = "baton-uploads"


@pytest.fixture(autouse=True)
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("BATON_BUCKET", BUCKET)
    monkeypatch.setenv("PENDING_DASHBOARD_ENABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        aws.client.cache_clear()
        rows_api._counts.clear()
        s3 = boto3.client("s3", region_name="us-east-1")
        s3.create_bucket(Bucket=BUCKET)
        yield s3
    aws.client.cache_clear()


def a_job(
    door: Door, tenant: TenantHouse, who: Who, statuses: list[str], *, name: str = "rows.csv", at: str | None = None
) -> UUID:
    """A job of somebody with a row for each status, a second apart, or all at one time."""
    run_id, actor = new_id(), who.actor
    door.sql(
        """insert into run (id, tenant_id, kind, status, params, check_at, created_by)
           values (:id, :t, 'row_job', 'running', jsonb_build_object('file_id', cast(:id as text)), now() + interval '1 day', :who)""",
        id=run_id, t=tenant.id, who=actor,
    )  # fmt: skip
    door.sql("insert into files (id, tenant_id, name, created_by) values (:id, :t, :name, :who)", id=run_id, t=tenant.id, name=name, who=actor)  # fmt: skip
    door.sql(
        """insert into file_jobs (run_id, tenant_id, file_id, user_id, job_type, slots, read_rows, columns, read_at)
           values (:id, :t, :id, :who, 'csv', 1, :n, '["title", "brand"]', now())""", id=run_id, t=tenant.id, who=actor, n=len(statuses),
    )  # fmt: skip
    for number, status in enumerate(statuses, 1):
        door.sql(
            """insert into job_items (run_id, row_no, tenant_id, user_id, job_type, slot, status, input_json, normalized_json, due_at,
                                      updated_at)
               values (:id, :n, :t, :who, 'csv', 0, :status, '{"title": "old"}', jsonb_build_object('title', 'Product ' || :n), now(),
                       coalesce(cast(:at as timestamptz), timestamptz '2026-01-01' + :n * interval '1 s'))""",
            id=run_id, n=number, t=tenant.id, who=actor, status=status, at=at,
        )  # fmt: skip
    return run_id


def pages(door: Door, who: Who, path: str, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = None
    for _ in range(100):
        answer = door.call(who, "GET", path, **query, **({} if cursor is None else {"cursor": cursor}))
        assert answer.status == 200, answer.body
        page = answer.json()
        found.append(page)
        cursor = page["next"]
        if cursor is None:
            return found
    raise AssertionError("no end")


def numbers(found: list[dict[str, Any]]) -> list[int]:
    return [item["row_no"] for page in found for item in page["items"]]


MIXED = ["PENDING", "DONE", "PROCESSING", "ERROR", "PENDING", "NOT_FOUND", "PROCESSING", "SKIPPED"]


def test_several_states_are_one_list_in_order_and_items_at_work_stay_in_it(door: Door, acme: TenantHouse) -> None:
    job = a_job(door, acme, acme.member, MIXED)
    at = f"/row-jobs/{job}/items"

    pending = pages(door, acme.member, at, statuses="PENDING,PROCESSING", limit=2)
    assert numbers(pending) == [1, 3, 5, 7]
    assert all(page["live"] for page in pending)
    assert numbers(pages(door, acme.member, at, limit=3)) == list(range(1, 9))
    assert numbers(pages(door, acme.member, at, limit=3, sort="-updated_at")) == list(range(8, 0, -1))
    in_order = pages(door, acme.member, at, limit=3, sort="row_no")
    assert (numbers(in_order), in_order[0]["live"]) == (list(range(1, 9)), False)
    between = {"updated_from": "2026-01-01T00:00:03Z", "updated_before": "2026-01-01T00:00:05Z"}
    assert numbers(pages(door, acme.member, at, limit=1, **between)) == [3, 4]
    (item,) = pages(door, acme.member, at, statuses="ERROR")[0]["items"]
    assert item["input_summary"] == {"title": "Product 4", "brand": None, "sku": None}
    assert "input" not in item
    assert item["cells"][:3] == ["4", "ERROR", "Product 4"]
    both = door.call(acme.member, "GET", at, statuses="ERROR", sort="row_no")
    assert (both.status, both.code) == (422, "bad_sort")


def test_rows_of_one_time_are_told_apart_by_their_number(door: Door, acme: TenantHouse) -> None:
    job = a_job(door, acme, acme.member, ["PENDING"] * 7, at="2026-01-01T00:00:00Z")

    assert numbers(pages(door, acme.member, f"/row-jobs/{job}/items", limit=2)) == list(range(1, 8))
    assert numbers(pages(door, acme.member, f"/row-jobs/{job}/items", limit=2, sort="-updated_at")) == list(
        range(7, 0, -1)
    )
    a_job(door, acme, acme.member, ["PENDING"] * 3, at="2026-01-01T00:00:00Z")
    found = [
        (item["job_id"], item["row_no"])
        for page in pages(door, acme.member, "/pending", limit=2)
        for item in page["items"]
    ]
    assert len(found) == len(set(found)) == 10


def test_an_empty_page_is_an_answer(door: Door, acme: TenantHouse) -> None:
    job = a_job(door, acme, acme.member, [])

    queries: list[dict[str, Any]] = [{}, {"sort": "row_no"}, {"statuses": "DONE"}]
    for query in queries:
        assert door.call(acme.member, "GET", f"/row-jobs/{job}/items", **query).json()["items"] == []
    told = door.call(acme.other, "GET", "/pending").json()
    assert (told["items"], told["next"], told["pending_count"]["count"]) == ([], None, 0)


def test_a_page_ends_before_it_is_too_large_to_be_answered(
    door: Door, acme: TenantHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shapes, "LARGEST_ANSWER", 6_000)
    job = a_job(door, acme, acme.member, ["ERROR"] * 9)
    door.sql("update job_items set last_error = repeat('x', 1000) where run_id = :id", id=job)

    found = pages(door, acme.member, f"/row-jobs/{job}/items", limit=9)
    assert numbers(found) == list(range(1, 10))
    assert len(found) > 3


# 1k: a scope that follows from what is missing.


def test_1k_everybody_sees_what_is_his_and_only_a_right_shows_more(
    door: Door, acme: TenantHouse, globex: TenantHouse
) -> None:
    a_job(door, acme, acme.member, ["PENDING"], name="mine.csv")
    a_job(door, acme, acme.admin, ["PROCESSING"], name="boss.csv")
    a_job(door, globex, globex.member, ["PENDING"], name="theirs.csv")

    def names(who: Who, **query: Any) -> list[str]:
        return sorted(item["job_name"] for page in pages(door, who, "/pending", **query) for item in page["items"])

    assert names(acme.member) == ["mine.csv"]
    assert names(acme.other) == names(acme.viewer) == []
    assert names(acme.admin) == ["boss.csv"]
    assert names(acme.admin, user_id="all") == ["boss.csv", "mine.csv"]
    for who in (acme.member, acme.other, acme.viewer):
        assert door.call(who, "GET", "/pending", user_id="all").status == 403
    for who in (acme.member, acme.viewer, acme.admin):
        assert door.call(who, "GET", "/pending", user_id="all", tenants="all").status == 403
    boss = door.super_admin.choosing(acme.id)
    assert names(boss, user_id="all") == ["boss.csv", "mine.csv"]
    assert {"boss.csv", "mine.csv", "theirs.csv"} <= set(names(boss, user_id="all", tenants="all"))
    assert door.call(boss, "GET", "/pending", tenants="all").status == 403, "all of everybody is asked for in full"
    for wrong in ("", "null", "user:x", "ALL"):
        assert door.call(acme.admin, "GET", "/pending", user_id=wrong).status == 422


def test_1k_the_database_tells_nobody_who_is_not_a_super_admin(door: Door, acme: TenantHouse) -> None:
    """Even if the API were wrong about who asks."""
    a_job(door, acme, acme.member, ["PENDING"])
    asked = {
        "types": ["csv"], "statuses": ["PENDING"], "after_at": "-infinity", "after_run": UUID(int=0), "after_row": 0,
        "from_at": "-infinity", "before_at": "infinity", "most": 10,
    }  # fmt: skip
    from shared.row_job import store

    with door.engine.connect() as connection:
        for subject in (acme.admin.subject, "", None):
            assert connection.execute(store.PENDING_OF_ALL_TENANTS, {**asked, "subject": subject}).all() == []
        boss = door.super_admin.subject
        assert connection.execute(store.PENDING_OF_ALL_TENANTS, {**asked, "subject": boss}).all()
        for mine in (store.PENDING_MINE, store.COUNT_MINE):
            rows = connection.execute(mine, {**asked, "tenant_id": acme.id, "user_id": None}).mappings().all()
            assert [dict(row) for row in rows] in ([], [{"n": 0}]), "who is nobody has nothing"


# 1m: an order and a place that the caller makes up.


@pytest.mark.parametrize("sort", ["input_json", "row_no; drop table job_items", "(select 1)", "updated_at desc"])
def test_1m_the_order_is_one_of_ours(door: Door, acme: TenantHouse, sort: str) -> None:
    job = a_job(door, acme, acme.member, ["DONE"])

    assert door.call(acme.member, "GET", f"/row-jobs/{job}/items", sort=sort).status == 422


def test_1m_a_cursor_is_for_its_list_its_filter_and_its_reader(
    door: Door, acme: TenantHouse, globex: TenantHouse
) -> None:
    job, other = a_job(door, acme, acme.member, MIXED), a_job(door, acme, acme.member, MIXED)
    theirs = a_job(door, globex, globex.member, MIXED)
    at = f"/row-jobs/{job}/items"
    cursor = door.call(acme.member, "GET", at, limit=1).json()["next"]
    pending = door.call(acme.member, "GET", "/pending", limit=1).json()["next"]

    assert door.call(acme.member, "GET", at, limit=3, cursor=cursor).status == 200, "the size may change"
    asked: list[tuple[str, Who, dict[str, Any]]] = [
        (f"/row-jobs/{other}/items", acme.member, {}), (f"/row-jobs/{theirs}/items", globex.member, {}), (at, acme.admin, {}),
        (at, acme.member, {"statuses": "DONE"}), (at, acme.member, {"sort": "-updated_at"}), (at, acme.member, {"sort": "row_no"}),
        (at, acme.member, {"updated_from": "2026-01-01T00:00:00Z"}), ("/pending", acme.member, {}),
    ]  # fmt: skip
    for path, who, query in asked:
        answer = door.call(who, "GET", path, cursor=cursor, **query)
        assert (answer.status, answer.code) == (400, "bad_cursor"), (path, query)
    readers: list[tuple[Who, dict[str, Any]]] = [
        (acme.admin, {"user_id": "all"}),
        (acme.admin, {}),
        (globex.member, {}),
        (acme.member, {"job_id": str(job)}),
    ]
    for who, query in readers:
        assert door.call(who, "GET", "/pending", cursor=pending, **query).code == "bad_cursor"
    body, _, signature = cursor.partition(".")
    for forged in (f"{body[:-2]}AA.{signature}", f"{body}.{signature[:-2]}AA", body, "x.y", "", "." * 50, "é.é"):
        assert door.call(acme.member, "GET", at, cursor=forged).status in (400, 422)


# What is pending


def test_what_is_pending_is_filtered_and_says_what_its_job_is_at(door: Door, acme: TenantHouse) -> None:
    job = a_job(door, acme, acme.member, MIXED, name="a.csv")
    a_job(door, acme, acme.member, ["PENDING"], name="b.csv")
    door.sql("update run set paused_at = now() where id = :id", id=job)
    door.sql("""update file_jobs set counted_at = now(), counts = '{"total": 8, "pending": 2, "processing": 2}' where run_id = :id""", id=job)  # fmt: skip

    found = door.call(acme.member, "GET", "/pending", job_id=str(job)).json()
    assert [item["row_no"] for item in found["items"]] == [1, 3, 5, 7]
    item = found["items"][0]
    assert (item["queue_state"], item["progress"]["processed"], item["progress"]["total"]) == ("PAUSED", 4, 8), (
        "paused ones stay"
    )
    assert (item["job_name"], item["job_type"], item["user_id"]) == ("a.csv", "csv", acme.member.actor)
    assert numbers(pages(door, acme.member, "/pending", statuses="PROCESSING", limit=1)) == [3, 7]
    assert numbers(pages(door, acme.member, "/pending", job_type="image")) == []
    assert numbers(pages(door, acme.admin, "/pending", user_id="all", job_id=str(job))) == [1, 3, 5, 7]
    assert numbers(pages(door, acme.admin, "/pending", job_id=str(job))) == [], "that job is not mine"
    later = {"updated_from": "2026-01-01T00:00:05Z"}
    assert numbers(pages(door, acme.member, "/pending", **later)) == [5, 7]
    assert door.call(acme.member, "GET", "/pending", statuses="DONE").status == 422


def test_rows_of_a_deleted_job_are_passed_over_and_the_list_goes_on_behind_them(door: Door, acme: TenantHouse) -> None:
    gone = a_job(door, acme, acme.member, ["PENDING"] * 6, at="2026-01-01T00:00:00Z")
    a_job(door, acme, acme.member, ["PENDING"] * 2, at="2026-01-02T00:00:00Z")
    door.sql("update file_jobs set deleted_at = now() where run_id = :id", id=gone)

    found = pages(door, acme.member, "/pending", limit=2)
    assert [len(page["items"]) for page in found] == [0, 0, 0, 2], "an empty page is not the end"
    assert door.call(acme.member, "GET", f"/row-jobs/{gone}/items").status == 404
    assert door.call(acme.member, "GET", f"/row-jobs/{gone}/exports").status == 404
    assert door.call(acme.member, "POST", f"/row-jobs/{gone}/export").status == 404


def test_the_count_is_kept_for_a_while_with_its_age_and_has_a_cap(
    door: Door, acme: TenantHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_job(door, acme, acme.member, ["PENDING", "PROCESSING", "DONE"])
    first = door.call(acme.member, "GET", "/pending").json()["pending_count"]
    a_job(door, acme, acme.member, ["PENDING"])
    second = door.call(acme.member, "GET", "/pending").json()["pending_count"]
    assert (first["count"], first["more"], second["count"]) == (2, False, 2)
    assert second["age_s"] >= first["age_s"]
    monkeypatch.setattr(rows_api, "COUNT_KEPT_S", -1.0)
    assert door.call(acme.member, "GET", "/pending").json()["pending_count"]["count"] == 3
    assert door.call(acme.admin, "GET", "/pending").json()["pending_count"]["count"] == 0


def test_a_run_that_counts_rows_has_no_eta_of_its_lanes(door: Door, acme: TenantHouse) -> None:
    """They end together, with the last rows: how far they are says nothing."""
    job = a_job(door, acme, acme.member, MIXED)
    door.sql("update run set started_at = now() - interval '1 hour' where id = :id", id=job)
    for key, status in (("ingest", "done"), ("work:0:0", "active")):
        door.sql(
            """insert into lane (id, run_id, tenant_id, kind, key, holds_run, status, cursor, next_due_at, check_at, max_steps)
               values (:lane, :id, :t, 'row_job', :key, true, :status, '{}', now(), now() + interval '1 hour', 100)""",
            lane=new_id(), id=job, t=acme.id, key=key, status=status,
        )  # fmt: skip

    told = door.call(acme.member, "GET", f"/runs/{job}").json()
    assert (told["state"], told["progress"]["lanes_ended"], told["eta"]) == ("running", 1, None)


def test_the_list_of_all_jobs_is_behind_its_flag(
    door: Door, acme: TenantHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in ("false", "", "no"):
        monkeypatch.setenv("PENDING_DASHBOARD_ENABLED", value)
        answer = door.call(acme.admin, "GET", "/pending", user_id="all")
        assert (answer.status, answer.code) == (404, "pending_off")
    job = a_job(door, acme, acme.member, ["PENDING"])
    assert numbers(pages(door, acme.member, f"/row-jobs/{job}/items", statuses="PENDING,PROCESSING")) == [1]


# Files


def work_off(door: Door, run_id: str) -> None:
    kind = row_job(replace(build_ports(door._worker), meter=NoMeter()))
    for _ in range(50):
        lanes = door.sql(
            "select id, kind, epoch, seq, resend_no from lane where run_id = :id and status = 'active'", id=UUID(run_id)
        )
        if not lanes:
            return
        door.sql("update lane set next_due_at = now() where run_id = :id and status = 'active'", id=UUID(run_id))
        for lane in lanes:
            baton = Baton(kind=lane.kind, lane_id=lane.id, epoch=lane.epoch, seq=lane.seq, resend_no=lane.resend_no)
            take_turn(baton, kind, door.worker_ports)
    raise AssertionError("no end")


def held(s3: Any, url: str) -> bytes:
    key = url.partition("?")[0].partition(".com/")[2]
    data: bytes = s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    return data


EVIL = [
    '=HYPERLINK("http://x","y")', "+1", "-1", "@SUM(1)", "\t=1", "'=1", "a\r\nb", "\x01\x1f", "\uffff", "x" * 40_000, "😀" * 20_000,
    "שלום עולם", "_x0041_", "</t>&amp;", 'a,"b";=1', " ", "＝1",  # noqa: RUF001
]  # fmt: skip


@pytest.mark.full
def test_grid_csv_and_xlsx_say_the_same_of_hostile_rows(door: Door, acme: TenantHouse, bucket: Any) -> None:
    job = a_job(door, acme, acme.member, ["DONE"] * len(EVIL), name='../evil "name".csv')
    for number, cell in enumerate(EVIL, 1):
        door.sql(
            """update job_items set last_error = :cell, normalized_json = jsonb_build_object('title', left(:cell, 500), 'sku', '=x'),
                      result_json = jsonb_build_object('offers', jsonb_build_array(jsonb_build_object(
                          'title', cast(:cell as text), 'price', '9.90', 'url', cast(:cell as text), 'score', 0.5, 'in_stock', true)))
               where run_id = :id and row_no = :n""", id=job, n=number, cell=cell,
        )  # fmt: skip
    shown = pages(door, acme.member, f"/row-jobs/{job}/items", sort="row_no")
    truth = digest([shown[0]["columns"], *(item["cells"] for page in shown for item in page["items"])])
    for format_ in ("csv", "xlsx"):
        made = door.call(acme.member, "POST", f"/row-jobs/{job}/export", format=format_)
        assert made.status == 201, made.body
        at = f"/row-jobs/{job}/exports/{made.json()['id']}"
        assert door.call(acme.member, "GET", at).json()["status"] == "preparing"
        work_off(door, made.json()["id"])
        told = door.call(acme.member, "GET", at).json()
        assert (told["status"], told["written"], told["total"]) == ("ready", len(EVIL), len(EVIL)), told
        (file,) = told["files"]
        assert file["name"] == f"evil-name-results.{format_}"
        assert "X-Amz-Expires=60" in file["url"], "seven days"
        data = held(bucket, file["url"])
        assert len(data) == file["bytes"]
        for read in (from_csv,) if format_ == "csv" else (from_openpyxl, from_calamine):
            assert digest(read(data)) == truth
        assert door.call(acme.other, "GET", at).status == 404
    listed = door.call(acme.member, "GET", f"/row-jobs/{job}/exports").json()["exports"]
    assert [each["format"] for each in listed] == ["xlsx", "csv"]
    assert listed[0]["files"][0]["url"] is None, "links are made for who asks for one"
    door.sql("update row_exports set finished_at = now() - interval '8 days' where job_id = :id", id=job)
    gone = door.call(acme.member, "GET", at).json()
    assert (gone["status"], gone["files"]) == ("expired", [])


def test_failed_rows_come_home_and_go_back(door: Door, acme: TenantHouse, globex: TenantHouse, bucket: Any) -> None:
    job = a_job(door, acme, acme.member, ["DONE", "ERROR", "NOT_FOUND"])
    made = door.call(acme.member, "POST", f"/row-jobs/{job}/export", rows="failed").json()
    work_off(door, made["id"])
    (file,) = door.call(acme.member, "GET", f"/row-jobs/{job}/exports/{made['id']}").json()["files"]
    assert file["name"] == "rows-failed.csv"
    header, first, second = list(csv.reader(io.StringIO(held(bucket, file["url"]).decode("utf-8-sig"))))
    assert (header, first[2]) == (["baton_key", "baton_problem", "title", "brand"], "old")
    first[2] = "new"

    def upload(tenant: TenantHouse, who: Who, content: bytes) -> str:
        place = door.call(who, "POST", "/row-jobs/uploads", {"name": "fixed.csv", "size": 10_000, "hold": True}).json()
        key = f"uploads/{tenant.id}/rows/{place['file_id']}"
        bucket.put_object(Bucket=BUCKET, Key=key, Body=content)
        door.sql(
            "update files set size = :n, arrived_at = now() where id = :id", n=len(content), id=UUID(place["file_id"])
        )
        return str(place["file_id"])

    content = "".join(grid.csv_line(row) for row in (header, first, second)).encode()
    theirs = upload(globex, globex.member, content)
    assert door.call(acme.member, "POST", f"/row-jobs/{job}/resubmit", {"file_id": theirs}).code == "unknown_file"
    wrong = upload(acme, acme.member, b"title,brand\nx,y\n")
    assert door.call(acme.member, "POST", f"/row-jobs/{job}/resubmit", {"file_id": wrong}).code == "no_keys"
    assert door.call(acme.viewer, "POST", f"/row-jobs/{job}/resubmit", {"file_id": wrong}).status == 403
    file_id = upload(acme, acme.member, content)
    assert door.call(acme.member, "POST", f"/row-jobs/{job}/resubmit", {"file_id": file_id}).status == 200
    (lane,) = door.sql(
        "select id, kind, epoch, seq, resend_no from lane where run_id = :id and key like 'fix:%'", id=job
    )
    kind = row_job(replace(build_ports(door._worker), meter=NoMeter()))
    take_turn(
        Baton(kind=lane.kind, lane_id=lane.id, epoch=lane.epoch, seq=lane.seq, resend_no=lane.resend_no),
        kind,
        door.worker_ports,
    )

    (told,) = door.call(acme.member, "GET", f"/row-jobs/{job}/fixes").json()["fixes"]
    assert (told["fixed"], told["unchanged"], told["unmatched"], told["name"]) == (1, 1, 0, "fixed.csv")
    detail = door.call(acme.member, "GET", f"/row-jobs/{job}/items/2").json()
    assert (detail["status"], detail["input"]["title"], detail["normalized"]) == ("PENDING", "new", {"title": "new"})


def test_a_row_is_fixed_in_the_grid_if_it_is_as_it_was_told(door: Door, acme: TenantHouse) -> None:
    job = a_job(door, acme, acme.member, ["DONE", "ERROR"])
    at = f"/row-jobs/{job}/items"
    row = door.call(acme.member, "GET", f"{at}/2").json()
    fix = {"row_no": 2, "hash": row["hash"], "input": {"title": "new", "brand": "Acme"}}

    done = door.call(acme.member, "POST", f"/row-jobs/{job}/fix", {"rows": [fix, {**fix, "row_no": 1}]})
    assert done.status == 200, done.body
    assert done.json()["fixed"] == 1
    assert [each["code"] for each in done.json()["unmatched"]] == ["not_failed"]
    again = door.call(acme.member, "POST", f"/row-jobs/{job}/fix", {"rows": [fix]}).json()
    assert (again["fixed"], again["unmatched"][0]["code"]) == (0, "at_work")
    assert (acme.member.actor, "run.fixed", f"run:{job}") in door.audited(acme)
    assert door.call(acme.member, "GET", f"{at}/99").status == 404
    assert door.call(acme.other, "GET", f"{at}/2").status == 404
    assert door.call(acme.other, "POST", f"/row-jobs/{job}/fix", {"rows": [fix]}).status == 404
    misspelled = door.call(acme.member, "POST", f"/row-jobs/{job}/fix", {"rows": [{**fix, "input": {"tilte": "x"}}]})
    assert (misspelled.status, "no column 'tilte'" in misspelled.body) == (422, True)
    nul = {**fix, "input": {"title": "a\x00"}}
    assert door.call(acme.member, "POST", f"/row-jobs/{job}/fix", {"rows": [nul]}).status == 400
