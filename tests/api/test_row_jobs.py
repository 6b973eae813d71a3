"""Guards what people do with row jobs over HTTP: upload, look, start, read rows, work on them again, delete."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import boto3
import openpyxl
import pytest
from botocore.stub import Stubber
from moto import mock_aws

from shared.kernel import aws
from shared.kernel.errors import Permanent, Transient
from shared.kernel.files import S3Files as Results
from shared.kernel.files import UploadGone
from shared.kernel.intake import take_in
from shared.kernel.signals import announced, dispatch
from shared.row_job.adapters.s3 import S3Files
from shared.row_job.steps import PROMOTION
from tests.support.door import Door, TenantHouse
from tests.support.pictures import packed, png
from tests.support.rows import csv_of
from tests.support.strict_s3 import forbidden, uploads_gone

BUCKET = "baton-uploads"


@pytest.fixture(autouse=True)
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("BATON_BUCKET", BUCKET)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        aws.client.cache_clear()
        s3 = boto3.client("s3", region_name="us-east-1")
        s3.create_bucket(Bucket=BUCKET)
        s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
        yield s3


def upload(door: Door, tenant: TenantHouse, **options: Any) -> dict[str, Any]:
    answer = door.call(tenant.member, "POST", "/row-jobs/uploads", {"name": "rows.csv", "size": 10_000, **options})
    assert answer.status == 201, answer.body
    place: dict[str, Any] = answer.json()
    return place


def arrive(door: Door, bucket: Any, tenant: TenantHouse, file_id: str, content: bytes) -> None:
    key = f"uploads/{tenant.id}/rows/{file_id}"
    put = bucket.put_object(Bucket=BUCKET, Key=key, Body=content)
    door.sql(
        "update files set size = :n, version_id = :v, arrived_at = now() where id = :id",
        n=len(content), v=put["VersionId"], id=UUID(file_id),
    )  # fmt: skip


def told(door: Door, bucket: Any, tenant: TenantHouse, file_id: str, content: bytes) -> None:
    """The file arrives, and the bucket says so."""
    key = f"uploads/{tenant.id}/rows/{file_id}"
    put = bucket.put_object(Bucket=BUCKET, Key=key, Body=content)
    found = {"key": key, "size": len(content), "etag": "e", "version-id": put["VersionId"]}
    event = {
        "source": "aws.s3", "detail-type": "Object Created", "detail": {"bucket": {"name": BUCKET}, "object": found},
    }  # fmt: skip
    taken = take_in(announced(door.worker_ports, door.kinds), event, BUCKET)
    assert taken["outcome"] == "taken"
    dispatch(door.worker_ports, door.kinds)  # at once only so many are told: those of other tests may be before it


def test_a_place_to_upload_to_is_for_one_file_of_one_size(door: Door, acme: TenantHouse) -> None:
    place = upload(door, acme)

    assert place["fields"]["key"] == f"uploads/{acme.id}/rows/{place['file_id']}"
    assert {"policy", "x-amz-signature", "Content-Type"} <= {*place["fields"], "x-amz-signature"}
    assert BUCKET in place["url"]
    refused = door.call(acme.member, "POST", "/row-jobs/uploads", {"name": "x.csv", "size": 10, "key": "../x"})
    assert refused.status == 422


def test_a_job_that_starts_when_its_file_arrives_is_the_uploaders_and_no_other_members(
    door: Door, acme: TenantHouse, bucket: Any
) -> None:
    file_id = upload(door, acme)["file_id"]
    told(door, bucket, acme, file_id, csv_of(3).encode())

    job_id = door.call(acme.member, "GET", f"/row-jobs/uploads/{file_id}").json()["run_id"]
    assert job_id is not None
    for at in (f"/row-jobs/{job_id}", f"/row-jobs/{job_id}/items", f"/runs/{job_id}"):
        assert [door.call(who, "GET", at).status for who in (acme.member, acme.admin, acme.other)] == [200, 200, 404]


def test_what_frees_a_job_that_waits_after_its_canary_is_promoting_it(
    door: Door, acme: TenantHouse, bucket: Any
) -> None:
    file_id = upload(door, acme)["file_id"]
    told(door, bucket, acme, file_id, csv_of(3).encode())
    job_id = door.call(acme.member, "GET", f"/row-jobs/uploads/{file_id}").json()["run_id"]
    waits = (
        "update lane set waits_for = :what, next_due_at = now() + interval '1 hour', sent_at = now() where run_id = :id"
    )

    def action(what: str) -> tuple[set[str], set[str], str]:
        door.sql(waits, what=what, id=UUID(job_id))
        lanes = door.call(acme.member, "GET", f"/runs/{job_id}/lanes").json()["lanes"]
        reasons = door.call(acme.member, "GET", f"/runs/{job_id}/why").json()["reasons"]
        one = door.call(acme.member, "GET", f"/runs/{job_id}").json()["why"]
        return {each["why"]["action"] for each in lanes}, {each["action"] for each in reasons}, one["action"]

    assert action(PROMOTION) == ({"promote"}, {"promote"}, "promote")
    assert action("rows of the file") == ({"wake"}, {"wake"}, "wake")


def test_an_upload_for_a_connection_that_is_not_there_is_refused_at_once(door: Door, acme: TenantHouse) -> None:
    """When the file has come, nobody is there to be told."""
    asked = {"name": "rows.csv", "size": 10_000, "connection": "nobody"}

    refused = door.call(acme.member, "POST", "/row-jobs/uploads", asked)

    assert (refused.status, refused.code) == (422, "unknown_connection")
    assert door.sql("select 1 from files where tenant_id = :t", t=acme.id) == []


def test_a_file_is_looked_at_before_anything_runs(door: Door, acme: TenantHouse, bucket: Any) -> None:
    file_id = upload(door, acme, hold=True, mapping={"title": "What"})["file_id"]
    assert door.call(acme.member, "GET", f"/row-jobs/uploads/{file_id}/preview").code == "not_uploaded"
    arrive(door, bucket, acme, file_id, "What;Brand\nTV;Acme\n;Acme\n".encode("utf-16"))

    preview = door.call(acme.member, "GET", f"/row-jobs/uploads/{file_id}/preview").json()

    assert (preview["encoding"], preview["delimiter"], preview["mapping"]) == ("utf-16-le", ";", {"title": "What"})
    assert [(row["normalized"], row["problem"]) for row in preview["rows"]] == [
        ({"title": "TV"}, None), (None, "The row has neither a title nor a SKU."),
    ]  # fmt: skip
    assert preview["problems"] == 1


def test_a_spreadsheet_is_looked_at_before_anything_runs(door: Door, acme: TenantHouse, bucket: Any) -> None:
    place = upload(door, acme, hold=True, name="rows.xlsx")
    assert "spreadsheetml" in place["fields"]["Content-Type"]
    book = openpyxl.Workbook()
    sheet = book.active
    assert sheet is not None
    for line in ([], ["Title", "Price", "Sum"], ["TV", 12.5, "=1/0"], [None, 3, None]):
        sheet.append(line)
    sheet["B3"].number_format = "0.00"
    out = io.BytesIO()
    book.save(out)
    arrive(door, bucket, acme, place["file_id"], out.getvalue())

    preview = door.call(acme.member, "GET", f"/row-jobs/uploads/{place['file_id']}/preview").json()

    assert (preview["job_type"], preview["encoding"], preview["columns"]) == ("csv", "xlsx", ["Title", "Price", "Sum"])
    assert preview["rows"][0]["input"] == {"Title": "TV", "Price": "12.50", "Sum": ""}
    assert [row["problem"] for row in preview["rows"]] == [None, "The row has neither a title nor a SKU."]


def test_another_mapping_is_tried_before_anything_runs(door: Door, acme: TenantHouse, bucket: Any) -> None:
    file_id = upload(door, acme, hold=True)["file_id"]
    at = f"/row-jobs/uploads/{file_id}"
    assert door.call(acme.member, "GET", at).json()["arrived"] is False
    arrive(door, bucket, acme, file_id, b"What,Brand\nTV,Acme\n")
    told = door.call(acme.member, "GET", at).json()
    assert (told["arrived"], told["run_id"], told["name"]) == (True, None, "rows.csv")

    as_it_is = door.call(acme.member, "GET", f"{at}/preview").json()
    tried = door.call(acme.member, "GET", f"{at}/preview", title="What", sku="Brand").json()

    assert (as_it_is["mapping"], as_it_is["problems"]) == ({"brand": "Brand"}, 1)
    assert (tried["mapping"], tried["rows"][0]["normalized"]) == (
        {"title": "What", "sku": "Brand"}, {"title": "TV", "sku": "Acme"},
    )  # fmt: skip
    assert door.call(acme.member, "GET", f"{at}/preview", title="nothing").code == "unknown_column"


def test_an_archive_of_images_is_looked_at_by_its_directory(door: Door, acme: TenantHouse, bucket: Any) -> None:
    place = upload(door, acme, hold=True, name="shop.ZIP")
    assert place["fields"]["Content-Type"] == "application/zip"
    arrive(door, bucket, acme, place["file_id"], packed(("acme-x200.png", png(9, 9)), ("../out.png", png(1, 1))))

    preview = door.call(acme.member, "GET", f"/row-jobs/uploads/{place['file_id']}/preview").json()

    assert (preview["job_type"], preview["problems"]) == ("image", 1)
    assert [(row["normalized"], row["input"].get("problem")) for row in preview["rows"]] == [
        ({"title": "acme x200"}, None), (None, "bad_name"),
    ]  # fmt: skip
    mapped = {"name": "shop.zip", "size": 9, "mapping": {"title": "What"}}
    refused = [
        door.call(acme.member, "GET", f"/row-jobs/uploads/{place['file_id']}/preview", title="What"),
        door.call(acme.member, "POST", "/row-jobs/uploads", mapped),
        door.call(acme.member, "POST", "/row-jobs", {"file_id": place["file_id"], "mapping": {"title": "What"}}),
    ]
    assert [each.code for each in refused] == ["no_columns"] * 3, "nobody would look at them"


@pytest.mark.parametrize("region", ["us-east-1", "eu-central-1"])
def test_a_file_goes_to_the_very_origin_that_the_console_may_speak_to(
    region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`RegionalDomainName` of the bucket, in the template; a redirect from elsewhere would lose the form."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", region)
    aws.client.cache_clear()

    assert S3Files(BUCKET).place("uploads/x", 10)["url"] == f"https://{BUCKET}.s3.{region}.amazonaws.com/"
    aws.client.cache_clear()


def test_a_scan_is_asked_for_by_its_source_and_nothing_else(door: Door, acme: TenantHouse) -> None:
    made = door.call(acme.member, "POST", "/ingestion/scan", {"source": "s3"})
    assert made.status == 201, made.body
    run = door.call(acme.member, "GET", f"/runs/{made.json()['id']}").json()
    assert (run["kind"], run["params"]["scan"], run["label"]) == ("row_job", "s3", "Scan of the inbox")
    for body in ({"source": "s3", "prefix": "../"}, {"source": "s3", "key": "x"}, {"source": "file:///etc"}, {}):
        assert door.call(acme.member, "POST", "/ingestion/scan", body).status == 422
    assert door.call(acme.member, "POST", "/ingestion/scan", {"source": "folder"}).code == "no_inbox"
    assert door.call(acme.viewer, "POST", "/ingestion/scan", {"source": "s3"}).status == 403


def test_a_job_from_its_upload_to_its_rows(door: Door, acme: TenantHouse, bucket: Any) -> None:
    file_id = upload(door, acme)["file_id"]
    early = door.call(acme.member, "POST", "/row-jobs", {"file_id": file_id})
    assert (early.status, early.code) == (409, "not_uploaded")
    arrive(door, bucket, acme, file_id, csv_of(3).encode())

    made = door.call(acme.member, "POST", "/row-jobs", {"file_id": file_id})
    again = door.call(acme.member, "POST", "/row-jobs", {"file_id": file_id})
    assert (made.status, again.status, again.json()) == (201, 200, made.json())
    job_id = made.json()["id"]
    job = door.call(acme.member, "GET", f"/row-jobs/{job_id}").json()
    assert (job["queue_state"], job["total_items"], job["user_id"]) == ("QUEUED", 0, acme.member.actor)
    assert job["ip_address"]
    for number, status in ((1, "DONE"), (2, "ERROR"), (3, "PROCESSING")):
        door.sql(
            """insert into job_items (run_id, row_no, tenant_id, user_id, job_type, slot, status, input_json, normalized_json,
                                      due_at, updated_at)
               values (:id, :n, :t, :who, 'csv', 0, :status, '{}', '{"title": "x"}', now(), now())""",
            id=UUID(job_id), n=number, t=acme.id, who=acme.member.actor, status=status,
        )  # fmt: skip
    job = door.call(acme.member, "GET", f"/row-jobs/{job_id}").json()
    assert (job["total_items"], job["processed_items"], job["failed_items"]) == (3, 2, 1)
    # As they were counted last, a list of runs has them too.
    assert door.call(acme.member, "GET", f"/runs/{job_id}").json()["progress"]["rows"] is None
    door.sql(
        "update file_jobs set total_items = 3, processed_items = 2, failed_items = 1 where run_id = :id",
        id=UUID(job_id),
    )
    (run,) = door.call(acme.member, "GET", "/runs", kind="row_job").json()["runs"]
    assert run["progress"]["rows"] == {"done": 1, "failed": 1, "all": 3, "unit": "rows"}

    first = door.call(acme.member, "GET", f"/row-jobs/{job_id}/items", limit=2).json()
    rest = door.call(acme.member, "GET", f"/row-jobs/{job_id}/items", limit=2, cursor=first["next"]).json()
    assert [row["row_no"] for row in (*first["items"], *rest["items"])] == [1, 2, 3]
    assert rest["next"] is None
    failed = door.call(acme.member, "GET", f"/row-jobs/{job_id}/items", statuses="ERROR").json()
    assert [row["row_no"] for row in failed["items"]] == [2]

    at_work = door.call(acme.member, "POST", f"/row-jobs/{job_id}/reprocess", {"scope": "items", "item_ids": [3]})
    assert (at_work.status, at_work.code) == (409, "items_open")
    dry = door.call(acme.member, "POST", f"/row-jobs/{job_id}/reprocess", {"dry_run": True}).json()
    assert dry == {"rows": 1, "dry_run": True}
    named = {"scope": "items", "item_ids": ["1", 2], "dry_run": True}
    counted = [
        door.call(acme.member, "POST", f"/row-jobs/{job_id}/reprocess", {**named, **more}).json()["rows"]
        for more in ({}, {"statuses": ["ERROR"]}, {"statuses": ["NOT_FOUND"]})
    ]
    assert counted == [2, 1, 0], "what is said of rows that are named holds too"
    done = door.call(acme.member, "POST", f"/row-jobs/{job_id}/reprocess", {"reason": "new key"}).json()
    assert done == {"rows": 1, "dry_run": False}
    assert (acme.member.actor, "run.reprocess", f"run:{job_id}") in door.audited(acme)
    mixed = door.call(acme.member, "POST", f"/row-jobs/{job_id}/reprocess", {"scope": "job", "item_ids": [1]})
    assert (mixed.status, mixed.code) == (422, "bad_scope")
    assert door.call(acme.member, "DELETE", f"/row-jobs/{job_id}").code == "not_ended"


def test_bytes_are_read_at_the_version_that_arrived(bucket: Any) -> None:
    first = bucket.put_object(Bucket=BUCKET, Key="k", Body=b"0123456789")["VersionId"]
    bucket.put_object(Bucket=BUCKET, Key="k", Body=b"changed")

    assert S3Files(BUCKET).read("k", first, 2, 3) == b"234"
    for version in (None, first):
        with pytest.raises(Permanent, match="isn't there any more"):
            S3Files(BUCKET).read("nothing", version, 0, 1)
    with forbidden(aws.client("s3")), pytest.raises(Transient, match="isn't allowed to read") as error:
        S3Files(BUCKET).read("k", first, 0, 1)
    assert error.value.code == "no_file_now", "it is there: to start anew would not help"


def test_a_bucket_that_cannot_be_asked_is_no_fault_of_the_file(door: Door, bucket: Any, acme: TenantHouse) -> None:
    """Whoever is told 503 tries again; 409 would say that another file is needed."""
    job, fixes = upload(door, acme, hold=True)["file_id"], upload(door, acme, hold=True)["file_id"]
    for file_id in (job, fixes):
        arrive(door, bucket, acme, file_id, csv_of(3).encode())
    run_id = door.call(acme.member, "POST", "/row-jobs", {"file_id": job}).json()["id"]

    def asked() -> list[tuple[int, str]]:
        answers = [
            door.call(acme.member, "GET", f"/row-jobs/uploads/{job}/preview"),
            door.call(acme.member, "POST", f"/row-jobs/{run_id}/resubmit", {"file_id": fixes}),
        ]
        return [(answer.status, answer.json().get("code", "")) for answer in answers]

    with forbidden(aws.client("s3")):
        assert asked() == [(503, "no_storage")] * 2
    assert asked() == [(200, ""), (409, "no_keys")]
    for file_id in (job, fixes):
        door.sql("update files set version_id = 'gone' where id = :id", id=UUID(file_id))
    assert asked() == [(409, "not_readable")] * 2


def test_what_a_step_left_in_the_bucket_and_is_gone_is_written_again(bucket: Any) -> None:
    """What it may not read or write is not gone: that is an error of the deployment."""
    files = Results({"BATON_BUCKET": BUCKET})
    with pytest.raises(UploadGone):
        files.get("exports/tail")
    upload = files.begin("exports/a.csv")
    with uploads_gone(aws.client("s3")):
        with pytest.raises(UploadGone):
            files.finish("exports/a.csv", upload, [], b"the end")
        bucket.put_object(Bucket=BUCKET, Key="exports/a.csv", Body=b"all of it")
        files.finish("exports/a.csv", upload, [], b"the end")  # it was finished, and nobody heard of it
        with forbidden(aws.client("s3")), pytest.raises(Transient, match="isn't allowed to use") as error:
            files.finish("exports/a.csv", upload, [], b"the end")
        assert error.value.code == "no_storage"
    with forbidden(aws.client("s3")), pytest.raises(Transient, match="isn't allowed to use") as error:
        files.get("exports/a.csv")
    assert error.value.code == "no_storage"
    with Stubber(aws.client("s3")) as stub:
        stub.add_client_error("put_object", "AccessDenied")
        with pytest.raises(Transient) as error:
            files.put("exports/b.csv", b"x")
    assert error.value.code == "no_storage"
