"""Guards what people see of remote queries: their status, their rows while they may be read, what was left behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import pytest

from infra.local.standins.mce import MceStandIn
from shared.kernel import aws
from shared.kernel.clock import new_id
from shared.kernel.http import new_pool
from shared.query_run import api
from shared.query_run.adapters.mce import Mce
from shared.query_run.model import Column
from tests.support.door import Door, TenantHouse
from tests.support.vaults import mocked_vault

SQL = "/* seconds=0; rows=5 */ select id, name from people"


@pytest.fixture(autouse=True)
def vault() -> Iterator[Any]:
    with mocked_vault() as vault:
        yield vault


@pytest.fixture
def mce(monkeypatch: pytest.MonkeyPatch) -> Iterator[MceStandIn]:
    api._tokens.clear()
    with MceStandIn() as standin:
        monkeypatch.setenv("BATON_MCE_BASE_URL", standin.start())
        yield standin
    assert not standin.surprises, standin.surprises


def connection(mce: MceStandIn) -> dict[str, Any]:
    settings = {"subdomain": "mc563885gzs27c5t9", "client_id": mce.client_id, "mid": "7281698"}
    return {"provider": "mce", "name": "main", "settings": settings, "secret": {"client_secret": mce.client_secret}}


@pytest.fixture
def run_id(door: Door, acme: TenantHouse, mce: MceStandIn) -> UUID:
    """A query of a member, started by the API with a connection of the tenant."""
    door.sql("delete from connection where tenant_id = :t", t=acme.id)
    assert door.call(acme.admin, "POST", "/connections", connection(mce)).status == 201
    body = {"sql_text": SQL, "mid": "7281698", "connection": "main", "snippet_name": "people"}
    answer = door.call(acme.member, "POST", "/query-runs", body)
    assert answer.status == 201, answer.body
    return UUID(answer.json()["id"])


def ready(door: Door, run_id: UUID, mce: MceStandIn) -> str:
    """As its last step leaves it, with its rows in the stand-in."""
    pool, key = new_pool(), "BTN_" + run_id.hex
    client = Mce(f"http://127.0.0.1:{mce._server.server_address[1]}", mce.client_id, mce.client_secret, "1", time_left_s=lambda: 30.0, pool=pool)  # type: ignore[union-attr]  # fmt: skip
    token = client.authenticate()
    target = client.create_target(token, key, [Column(name="id"), Column(name="name")])
    client.start(token, client.create_query(token, "BTN_query" + run_id.hex[:20], SQL, key, target))
    pool.clear()
    mce.calls.clear()
    door.sql("update run set status = 'succeeded', outcome = 'ready', finished_at = now() where id = :id", id=run_id)
    door.sql(
        """update query_run set target_key = :key, row_count = 5, results_expire_at = now() + interval '1 h',
                                columns = '[{"name": "id", "type": "Text"}]' where run_id = :id""",
        id=run_id, key=key,
    )  # fmt: skip
    return key


def test_a_connection_to_marketing_cloud_is_checked(door: Door, acme: TenantHouse, mce: MceStandIn) -> None:
    door.sql("delete from connection where tenant_id = :t", t=acme.id)
    made = door.call(acme.admin, "POST", "/connections", connection(mce)).json()
    checked = door.call(acme.admin, "POST", f"/connections/{made['id']}/check").json()
    assert (checked["works"], mce.calls["token"]) == (True, 1)
    mce.client_secret = "another"
    assert door.call(acme.admin, "POST", f"/connections/{made['id']}/check").json()["works"] is False


def test_a_run_is_shown_under_known_names(door: Door, acme: TenantHouse, run_id: UUID) -> None:
    shown = door.call(acme.member, "GET", f"/query-runs/{run_id}").json()

    assert (shown["status"], shown["doing"], shown["poll_count"]) == ("queued", "Waiting for a free slot", 0)
    assert (shown["snippet_name"], shown["sql_text"], shown["mid"]) == ("people", SQL, "7281698")
    assert door.call(acme.other, "GET", f"/query-runs/{run_id}").status == 404, "another member's"
    stranger = door.new_tenant("Globex")
    assert door.call(stranger.admin, "GET", f"/query-runs/{run_id}").status == 404
    assert door.call(acme.member, "GET", f"/query-runs/{door.start(acme)}").status == 404, "another kind's"


@pytest.mark.parametrize("state", [
    ({"phase": "poll"}, "Running"), ({"phase": "poll", "partial_available": True}, "Running; rows are arriving"),
    ({"phase": "poll", "not_running_confirmations": 1}, "Not running any more; confirming"),
    ({"phase": "verify", "rowset_ready_attempts": 2}, "Reading the result (attempt 3)"),
    ({"phase": "start"}, "Starting the query"), ({"phase": "definition"}, "Creating the query definition"),
    ({"phase": "target"}, "Validating the query and creating its data extension"), (None, "Waiting for a free slot"),
])  # fmt: skip
def test_what_it_is_doing_is_said_in_words(state: Any) -> None:
    cursor, words = state
    assert api.doing({"status": "running", "state": cursor}) == words


def test_rows_are_read_a_page_at_a_time_with_one_token(
    door: Door, acme: TenantHouse, run_id: UUID, mce: MceStandIn
) -> None:
    assert door.call(acme.member, "GET", f"/query-runs/{run_id}/rows").code == "not_ready"
    ready(door, run_id, mce)

    first, last = (
        door.call(acme.member, "GET", f"/query-runs/{run_id}/rows", None, page=page, page_size=3).json()
        for page in (1, 2)
    )
    assert [row["id"] for row in first["rows"]] == ["0", "1", "2"]
    assert [row["id"] for row in last["rows"]] == ["3", "4"]
    assert (first["count"], first["columns"]) == (5, [{"name": "id", "type": "Text"}])
    assert mce.calls["token"] == 1
    assert door.call(acme.other, "GET", f"/query-runs/{run_id}/rows").status == 404


def test_rows_that_have_expired_are_gone(door: Door, acme: TenantHouse, run_id: UUID, mce: MceStandIn) -> None:
    ready(door, run_id, mce)
    door.sql("update query_run set results_expire_at = now() - interval '1 s' where run_id = :id", id=run_id)

    answer = door.call(acme.member, "GET", f"/query-runs/{run_id}/rows")
    assert (answer.status, answer.code) == (410, "results_expired")
    assert mce.calls["rowset"] == 0


def test_an_upstream_that_fails_is_not_an_empty_result(
    door: Door, acme: TenantHouse, run_id: UUID, mce: MceStandIn
) -> None:
    ready(door, run_id, mce)
    mce.misbehave("no_rowset")
    assert door.call(acme.member, "GET", f"/query-runs/{run_id}/rows").status == 503
    mce.behave()
    mce.misbehave("token_expired", budget=1)
    assert door.call(acme.member, "GET", f"/query-runs/{run_id}/rows").status == 200, "a new token, once"
    mce.misbehave("token_expired")
    assert door.call(acme.member, "GET", f"/query-runs/{run_id}/rows").status == 503
    mce.behave()
    assert door.call(acme.member, "GET", f"/query-runs/{run_id}/rows").status == 200, "with a new token"


def test_rows_that_are_not_those_of_the_result_are_never_shown_as_it(
    door: Door, acme: TenantHouse, run_id: UUID, mce: MceStandIn
) -> None:
    key = ready(door, run_id, mce)
    mce.targets[key].by = None
    mce.targets[key].made = mce.truth(SQL)[:3]
    answer = door.call(acme.member, "GET", f"/query-runs/{run_id}/rows")
    assert (answer.status, answer.code) == (409, "changed")


def test_a_page_that_no_function_can_answer_is_refused_with_a_reason(
    door: Door, acme: TenantHouse, run_id: UUID, mce: MceStandIn
) -> None:
    key = ready(door, run_id, mce)
    wide = [{"id": "\N{LATIN SMALL LETTER E WITH ACUTE}" * 400_000}] * 5
    mce.targets[key].by, mce.targets[key].made = None, wide
    assert door.call(acme.member, "GET", f"/query-runs/{run_id}/rows").code == "page_too_large"
    mce.targets[key].made = [{"id": "x" * 2_000_000}] * 5
    assert door.call(acme.member, "GET", f"/query-runs/{run_id}/rows").code == "page_too_large", "not even read"
    mce.targets[key].made = wide
    assert door.call(acme.member, "GET", f"/query-runs/{run_id}/rows", page_size=1).status == 200


def test_a_retry_meanwhile_leaves_a_download_its_own_result(
    door: Door, acme: TenantHouse, run_id: UUID, mce: MceStandIn, bucket: Any
) -> None:
    ready(door, run_id, mce)
    door.sql("update run set epoch = 2 where id = :id", id=run_id)
    assert door.call(acme.member, "POST", f"/query-runs/{run_id}/download", {}).json()["status"] == "preparing"
    (lane,) = door.sql("select key from lane where run_id = :id and key like 'export/%'", id=run_id)
    assert lane["key"] == "export/1"


def test_a_run_needs_a_connection_that_is_there(door: Door, acme: TenantHouse, mce: MceStandIn) -> None:
    body = {"sql_text": SQL, "mid": "1", "connection": "nobody's"}
    answer = door.call(acme.member, "POST", "/query-runs", body)
    assert (answer.status, answer.code) == (422, "unknown_connection")
    assert door.call(acme.member, "POST", "/query-runs", {"sql_text": " ", "mid": "1"}).status == 422


def test_another_tenants_connection_is_like_none_also_when_it_is_written_into_the_row(
    door: Door, acme: TenantHouse, run_id: UUID, mce: MceStandIn
) -> None:
    globex = door.new_tenant("Globex")
    theirs = door.call(globex.admin, "POST", "/connections", connection(mce)).json()["id"]
    body = {"sql_text": SQL, "mid": "1"}
    foreign, unknown = (
        door.call(acme.member, "POST", "/query-runs", {**body, "connection": wanted})
        for wanted in (theirs, str(new_id()))
    )
    assert (foreign.status, foreign.body) == (422, unknown.body)

    ready(door, run_id, mce)
    assert door.call(acme.member, "GET", f"/query-runs/{run_id}/rows").status == 200
    door.sql(
        "update run set params = jsonb_set(params, '{connection}', to_jsonb(cast(:c as text))) where id = :id",
        c=theirs, id=run_id,
    )  # fmt: skip
    mce.calls.clear()
    answer = door.call(acme.member, "GET", f"/query-runs/{run_id}/rows")
    assert (answer.status, answer.code, mce.calls.total()) == (409, "not_readable", 0)


def test_what_is_left_behind_is_listed_with_a_reason(door: Door, acme: TenantHouse, run_id: UUID) -> None:
    door.sql(
        """insert into remote_call (run_id, tenant_id, epoch, key, kind, leaves_asset, intended_at, confirmed_at, remote_id)
           values (:id, :t, 1, 'target', 'data_extension', true, now(), now(), 'x')""",
        id=run_id, t=acme.id,
    )  # fmt: skip
    assert door.call(acme.member, "GET", "/query-run-assets").json()["assets"] == [], "its run goes on"
    door.sql("update run set status = 'failed', outcome = 'failed', finished_at = now() where id = :id", id=run_id)

    (asset,) = door.call(acme.member, "GET", "/query-run-assets").json()["assets"]
    assert (asset["run_id"], asset["kind"], asset["why"]) == (str(run_id), "data_extension", "the sweep removes it")
    door.sql(
        "update query_run set target_key = 'x', results_expire_at = now() + interval '1 h' where run_id = :id",
        id=run_id,
    )
    (asset,) = door.call(acme.member, "GET", "/query-run-assets").json()["assets"]
    assert asset["why"] == "its rows can be read until they expire"
    assert door.call(acme.other, "GET", "/query-run-assets").json()["assets"] == []


def test_what_belongs_to_nobody_is_listed_apart(door: Door, acme: TenantHouse) -> None:
    door.sql("delete from query_stray")
    door.sql(
        """insert into query_stray (tenant_id, account, kind, key, first_seen_at, last_seen_at)
           values (:t, 'mce@1', 'query_definition', 'BTN_x', now(), now())""",
        t=acme.id,
    )
    (unknown,) = door.call(acme.member, "GET", "/query-run-assets").json()["unknown"]
    assert (unknown["key"], unknown["kind"], unknown["account"]) == ("BTN_x", "query_definition", "mce@1")
    stranger = door.new_tenant("Globex")
    assert door.call(stranger.admin, "GET", "/query-run-assets").json()["unknown"] == []


def test_queries_are_listed_page_by_page_and_by_status(
    door: Door, acme: TenantHouse, run_id: UUID, mce: MceStandIn
) -> None:
    body = {"sql_text": SQL, "mid": "7281698", "connection": "main"}
    others = [door.call(acme.member, "POST", "/query-runs", body).json()["id"] for _ in range(2)]
    door.start(acme)  # of another kind
    ready(door, run_id, mce)

    first = door.call(acme.member, "GET", "/query-runs", None, limit=2).json()
    rest = door.call(acme.member, "GET", "/query-runs", None, limit=2, cursor=first["next"]).json()
    assert [each["id"] for each in first["query_runs"]] == others[::-1]
    assert ([each["id"] for each in rest["query_runs"]], rest["next"]) == ([str(run_id)], None)
    for status, wanted in (("ready", [str(run_id)]), ("queued", others[::-1]), ("failed", [])):
        found = door.call(acme.member, "GET", "/query-runs", None, status=status).json()["query_runs"]
        assert [each["id"] for each in found] == wanted
    assert door.call(acme.other, "GET", "/query-runs").json()["query_runs"] == [], "another member's"
    assert len(door.call(acme.admin, "GET", "/query-runs").json()["query_runs"]) == 3


def test_a_query_is_canceled_under_its_own_address(door: Door, acme: TenantHouse, run_id: UUID) -> None:
    assert door.call(acme.member, "POST", f"/query-runs/{door.start(acme)}/cancel", {}).status == 404, "another kind's"
    assert door.call(acme.member, "POST", f"/query-runs/{run_id}/cancel", {"reason": "typo"}).status == 200
    (asked,) = door.sql("select cancel_requested_at is not null as asked from run where id = :id", id=run_id)
    assert asked["asked"]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, vault: Any) -> Any:
    """The bucket of the deployment, as moto keeps it."""
    s3 = aws.client("s3")
    s3.create_bucket(Bucket="baton-files", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    monkeypatch.setenv("BATON_BUCKET", "baton-files")
    return s3


def test_a_result_is_downloaded_as_a_file(
    door: Door, acme: TenantHouse, run_id: UUID, mce: MceStandIn, bucket: Any
) -> None:
    path = f"/query-runs/{run_id}/download"
    assert door.call(acme.member, "POST", path, {}).code == "not_ready"
    key = ready(door, run_id, mce)

    told = door.call(acme.member, "POST", path, {}).json()
    assert (told["status"], told["url"], told["rows"]) == ("preparing", None, 5)
    again = door.call(acme.member, "POST", path, {}).json()
    assert again["status"] == "preparing"
    (lane,) = door.sql("select status, holds_run from lane where run_id = :id and key = 'export/1'", id=run_id)
    assert (lane["status"], lane["holds_run"]) == ("active", False)

    # A file that could not be written says why to whoever waits for it, and is tried again by who asks later.
    failed = """update lane set status = 'failed', updated_at = now() - cast(:ago as interval),
                                last_error = '{"code": "changed", "message": "The result has changed."}'
                where run_id = :id and key = 'export/1'"""
    door.sql(failed, id=run_id, ago="5 s")
    answer = door.call(acme.member, "POST", path, {})
    assert (answer.status, answer.code) == (409, "not_written")
    assert "The result has changed." in answer.json()["detail"]
    door.sql(failed, id=run_id, ago="1 min")
    assert door.call(acme.member, "POST", path, {}).json()["status"] == "preparing"
    (lane,) = door.sql("select status, epoch from lane where run_id = :id and key = 'export/1'", id=run_id)
    assert (lane["status"], lane["epoch"]) == ("active", 2)

    where = f"exports/{acme.id}/query-runs/{run_id}-1.csv"
    bucket.put_object(Bucket="baton-files", Key=where, Body=b"id\r\n")
    door.sql("update lane set status = 'done' where run_id = :id and key = 'export/1'", id=run_id)
    told = door.call(acme.member, "POST", path, {}).json()
    assert (told["status"], told["rows_written"]) == ("ready", 5)
    asked = parse_qs(urlsplit(told["url"]).query)
    assert urlsplit(told["url"]).path.endswith(where)
    assert asked["response-content-disposition"] == [f'attachment; filename="query-{run_id}.csv"']
    assert int(asked["X-Amz-Expires"][0]) <= 900
    assert door.call(acme.other, "POST", path, {}).status == 404

    door.sql("update query_run set results_expire_at = now() - interval '1 s' where run_id = :id", id=run_id)
    answer = door.call(acme.member, "POST", path, {})
    assert (answer.status, answer.code) == (410, "results_expired")
    assert key


@pytest.mark.parametrize("action", ["retry", "cancel"])
def test_a_run_may_end_in_the_hands_of_the_api(
    door: Door, acme: TenantHouse, run_id: UUID, mce: MceStandIn, action: str
) -> None:
    """Its lane is done and its settlement is not: whoever acts on it settles it, with the rights of the API."""
    ready(door, run_id, mce)
    door.sql("update lane set status = 'done' where run_id = :id", id=run_id)
    door.sql("insert into query_slot (tenant_id, slot, run_id) values (:t, 1, :id)", t=acme.id, id=run_id)
    if action == "cancel":
        door.sql("update run set status = 'running', outcome = null, finished_at = null where id = :id", id=run_id)
    else:
        refused = door.call(acme.member, "POST", f"/runs/{run_id}/retry", {})
        assert (refused.status, refused.code) == (409, "nothing_failed")
        door.sql("update run set status = 'failed', outcome = 'settle_failed' where id = :id", id=run_id)

    answer = door.call(acme.member, "POST", f"/runs/{run_id}/{action}", {})
    assert answer.status == 200, answer.body
    assert door.call(acme.member, "GET", f"/query-runs/{run_id}").json()["status"] == "ready"
    assert door.sql("select * from query_slot where run_id = :id", id=run_id) == []
