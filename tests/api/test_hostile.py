"""Guards the door against requests that nobody means: each is a 4xx with a problem document, never a 5xx, never done."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from shared.kernel.api import frame, sql
from shared.kernel.api.frame import DEEPEST_BODY, LARGEST_BODY
from shared.kernel.clock import new_id
from shared.kernel.paging import Pager
from tests.support.door import ANONYMOUS, Answer, Door, TenantHouse

RUN = {"kind": "tally", "params": {"lanes": 1, "target": 1}}
SOME_ID = "01a1e92e-eff8-7274-ba1e-206dafe9ad34"


def assert_refused(answer: Answer, *statuses: int) -> None:
    assert answer.status in (statuses or (400, 404, 405, 413, 415, 422)), answer
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert set(answer.json()) >= {"status", "code", "detail"}


@pytest.fixture(scope="module")
def tenant(door: Door) -> TenantHouse:
    return door.new_tenant()


BODIES = {
    "not json": "{", "nothing": "", "a list": "[]", "a string": '"x"', "null": "null", "a number": "1",
    "nul": '{"kind": "tally", "label": "a\\u0000b"}', "nul in a key": '{"kind": "tally", "params": {"a\\u0000": 1}}',
    "raw nul": '{"kind": "tally", "label": "a\x00b"}', "lone surrogate": '{"kind": "tally", "label": "\\ud800"}',
    "raw surrogate": '{"kind": "tally", "label": "\ud800"}', "deep list": '{"kind": "tally", "params": {"x": ' + "[" * 5000 + "]" * 5000 + "}}",
    "deep objects": '{"kind":"tally","params":' + '{"a":' * 100 + "1" + "}" * 100 + "}", "unknown field": '{"kind": "tally", "admin": true}',
    "nan": '{"kind": "tally", "params": {"x": NaN}}', "long label": json.dumps({"kind": "tally", "label": "x" * 201}),
    "wrong type": '{"kind": ["tally"]}', "no such kind": '{"kind": "../../etc/passwd"}',
    "sql as a kind": "{\"kind\": \"tally'; drop table run; --\"}",
}  # fmt: skip


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_a_body_that_makes_no_sense(door: Door, tenant: TenantHouse, body: str) -> None:
    count = "select count(*) from run where tenant_id = :t"
    before = door.value(count, t=tenant.id)

    assert_refused(door.call(tenant.member, "POST", "/runs", body))
    assert door.value(count, t=tenant.id) == before


def test_nesting_is_refused_one_level_beyond_the_limit(door: Door, tenant: TenantHouse) -> None:
    def nested(levels: int) -> Any:
        inner: Any = 1
        for _ in range(levels):
            inner = [inner]
        return inner

    def ask(levels: int) -> int:  # the body and its params are two levels
        params = {"lanes": 1, "target": 1, "x": nested(levels - 2)}
        return door.call(tenant.member, "POST", "/runs", {"kind": "tally", "params": params}).status

    assert (ask(DEEPEST_BODY - 1), ask(DEEPEST_BODY)) == (201, 400)


@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize("letter", ["x", "é"])
def test_a_body_may_be_so_large_in_bytes(door: Door, tenant: TenantHouse, encoded: bool, letter: str) -> None:
    frame = '{"kind": "tally", "params": {"lanes": 1, "target": 1, "x": "%s"}}'
    room = LARGEST_BODY - len(frame) + 2

    def ask(size: int) -> int:
        body = frame % (letter * (size // len(letter.encode())))
        raw = {"body": base64.b64encode(body.encode()).decode(), "isBase64Encoded": True} if encoded else {}
        return door.call(tenant.member, "POST", "/runs", body, raw=raw).status

    assert (ask(room), ask(room + 2)) == (201, 413)


@pytest.mark.parametrize("body", ["%%%", "/w==", "gA=="])
def test_a_body_that_cannot_be_decoded(door: Door, tenant: TenantHouse, body: str) -> None:
    answer = door.call(tenant.member, "POST", "/runs", RUN, raw={"body": body, "isBase64Encoded": True})

    assert_refused(answer, 400)


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/xml"],
)
def test_only_json_is_read(door: Door, tenant: TenantHouse, content_type: str) -> None:
    assert_refused(door.call(tenant.member, "POST", "/runs", RUN, headers={"Content-Type": content_type}), 415)


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "APPLICATION/JSON"])
def test_json_by_any_spelling_is_read(door: Door, tenant: TenantHouse, content_type: str) -> None:
    assert door.call(tenant.member, "POST", "/runs", RUN, headers={"Content-Type": content_type}).status == 201


PATHS = (
    "/runs/../../etc/passwd", "/runs/%2e%2e%2f%2e%2e%2fhealth", "/runs/..%2Faudit", "/runs/%00", "/runs/\x00", "/runs/\ud800",
    "/runs/1' or '1'='1", "/runs/%27%20or%201=1", "/runs//lanes", "/runs/00000000-0000-0000-0000-00000000000", "/runs/" + "a" * 5000,
    "/gates/..%2f/open", "/gates/a%0d%0ab/close", "/members/a%0d%0aSet-Cookie: x=1", "/machine/api/v1/runs", "/openapi.json", "/",
)  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_a_path_that_leads_nowhere(door: Door, tenant: TenantHouse, path: str, method: str) -> None:
    body = None if method in {"GET", "DELETE"} else {"reason": "x", "for_s": 1, "role": "viewer"}

    assert_refused(door.call(tenant.admin, method, path, body))


@pytest.mark.parametrize("path", ["/me\n", "/runs\n", "/runs/bulk\n", "/ru\tns"])
def test_a_path_with_a_line_break_is_not_the_path_without_it(door: Door, tenant: TenantHouse, path: str) -> None:
    assert_refused(door.call(tenant.admin, "GET", path), 400)


@pytest.mark.parametrize("method", ["PATCH", "HEAD", "TRACE"])
def test_a_method_that_is_not_there(door: Door, tenant: TenantHouse, method: str) -> None:
    assert_refused(door.call(tenant.admin, method, "/runs"), 404, 405)


ODD = ("a\r\nSet-Cookie: x=1", "a\x00b", "\ud800", "' or 1=1 --", "x" * 100_000, "%00", "\N{RIGHT-TO-LEFT OVERRIDE}")


@pytest.mark.parametrize("value", ODD, ids=[ascii(value)[:30] for value in ODD])
@pytest.mark.parametrize("name", ["X-Tenant-Id", "Idempotency-Key", "Last-Event-ID"])
def test_a_header_that_makes_no_sense(door: Door, tenant: TenantHouse, name: str, value: str) -> None:
    if name == "Last-Event-ID":
        answer = door.call(tenant.member, "GET", f"/runs/{door.start(tenant)}/events", headers={name: value})
    else:
        answer = door.call(tenant.member, "POST", "/runs", RUN, headers={name: value})

    if name == "Idempotency-Key" and value == "%00":
        assert answer.status == 201, "three harmless characters"
        return
    assert_refused(answer, 400, 403, 422)
    assert not any("\r" in text or "\n" in text for text in answer.headers.values())


@pytest.mark.parametrize("value", ["a\x00b", "\ud800", "x" * 100_000, "created_at desc; drop table run"])
@pytest.mark.parametrize("name", ["status", "limit", "cursor", "created_from", "order_by", "sort"])
def test_a_question_that_makes_no_sense(door: Door, tenant: TenantHouse, name: str, value: str) -> None:
    event = door.event(tenant.admin, "GET", "/api/v1/runs")
    event |= {"queryStringParameters": {name: value}, "rawQueryString": f"{name}={value}"}

    assert_refused(door.ask(event), 400, 422)


@pytest.mark.parametrize("name", ["kind", "label", "source", "created_by"])
def test_a_filter_is_a_value_and_never_sql(door: Door, tenant: TenantHouse, name: str) -> None:
    for value in ("' or '1'='1", "x; drop table run", "%", "_", "\\", "--", "$1", ":tenant_id", "null"):
        wanted: dict[str, Any] = {name: value}
        answer = door.call(tenant.admin, "GET", "/runs", **wanted)
        assert (answer.status, answer.json()["runs"]) == (200, []), value


def test_a_refusal_names_the_field_as_people_know_it(door: Door, tenant: TenantHouse) -> None:
    """Where it stood is for programs: in `fields`."""
    asked = door.call(tenant.admin, "GET", "/runs", status="over").json()
    sent = door.call(tenant.admin, "POST", "/tokens", {"name": "ci", "role": "member", "expires_in_days": 0}).json()

    assert asked["detail"].startswith("`status` must be one of: queued, ")
    assert sent["detail"] == "`expires_in_days` must be at least 1."
    assert [each["fields"][0]["field"] for each in (asked, sent)] == ["query.status", "body.expires_in_days"]


def test_the_same_parameter_twice_is_refused(door: Door, tenant: TenantHouse) -> None:
    event = door.event(tenant.admin, "GET", "/api/v1/runs")
    event |= {"queryStringParameters": {"status": "failed,queued"}, "rawQueryString": "status=failed&status=queued"}

    assert_refused(door.ask(event), 422)


def test_a_cursor_signed_with_another_key_is_broken(door: Door, tenant: TenantHouse) -> None:
    scope = ("runs", str(tenant.id), "")
    forged, true = Pager(b"x" * 32, scope, {"state": None}), Pager(door.front.cursor_key(), scope, {"state": None})
    place = ["2026-01-01T00:00:00+00:00", str(new_id())]

    assert door.call(tenant.admin, "GET", "/runs", cursor=forged.cursor(place)).code == "bad_cursor"
    assert door.call(tenant.admin, "GET", "/runs", cursor=true.cursor(place)).status == 200


def test_nobody_is_told_anything_before_he_is_known(door: Door, tenant: TenantHouse) -> None:
    """Neither whether a body is right, nor whether a path exists."""
    asked = [("POST", "/runs", "{"), ("GET", "/nope", None), ("GET", "/runs/x", None), ("PUT", "/runs", None)]

    answers = {(a.status, a.body) for a in (door.call(ANONYMOUS, m, path, body) for m, path, body in asked)}

    assert len(answers) == 1
    assert {status for status, _ in answers} == {401}


def test_an_answer_that_breaks_its_own_schema_is_our_fault(door: Door, tenant: TenantHouse) -> None:
    run_id = door.start(tenant)
    door.sql("update run set error = '[1]' where id = :id", id=run_id)

    answer = door.call(tenant.admin, "GET", f"/runs/{run_id}")

    assert (answer.status, answer.code) == (500, "unexpected")
    assert "run_id" not in answer.body


@pytest.mark.full
def test_the_documentation_comes_with_its_scripts(door: Door) -> None:
    page = door.ask(door.event(ANONYMOUS, "GET", "/docs"))

    assert page.status == 200
    assert page.headers["Content-Type"] == "text/html"
    for tag in ('<script src="http', '<link rel="stylesheet" type="text/css" href="http'):
        assert tag not in page.body
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]


@pytest.mark.full
def test_the_documentation_is_no_page_of_the_consoles_origin(door: Door) -> None:
    policy = door.ask(door.event(ANONYMOUS, "GET", "/docs")).headers["Content-Security-Policy"].split("; ")

    assert "sandbox allow-scripts" in policy  # without allow-same-origin
    assert not any(part.startswith("connect-src") for part in policy)  # so: 'none'


def test_parameters_are_shown_without_what_looks_like_a_secret(door: Door, tenant: TenantHouse) -> None:
    run_id = door.start(tenant)
    door.sql(
        """update run set params = '{"url": "https://a:canary-secret@b", "api_key": "canary-secret", "deep": [{"Password": ["canary-secret"]}],
           "pages": 3, "token": null}' where id = :id""",
        id=run_id,
    )

    answer = door.call(tenant.admin, "GET", f"/runs/{run_id}")

    params = {"url": "https://a:***@b", "api_key": "***", "deep": [{"Password": "***"}], "pages": 3, "token": None}
    assert answer.json()["params"] == params


def test_reasons_are_redacted_wherever_they_are_kept(door: Door, tenant: TenantHouse) -> None:
    run_id = door.start(tenant)

    door.call(tenant.member, "POST", f"/runs/{run_id}/cancel", {"reason": "password=canary-secret"})

    history = door.call(tenant.member, "GET", f"/runs/{run_id}/history").body
    audit = door.call(tenant.admin, "GET", "/audit").body
    assert "password=***" in history
    assert "password=***" in audit
    assert "canary-secret" not in history + audit


def test_a_path_that_is_written_out_belongs_to_its_own_methods(door: Door, tenant: TenantHouse) -> None:
    answer = door.call(tenant.admin, "GET", "/runs/bulk")

    assert_refused(answer, 405)
    assert answer.headers["Allow"] == "POST"


@pytest.mark.parametrize("written", ["0.5", "1763280000", "yesterday", "2026-11-16"])
def test_a_time_is_spelled_out(door: Door, tenant: TenantHouse, written: str) -> None:
    assert_refused(door.call(tenant.admin, "GET", "/runs", created_from=written), 422)


def at(name: str, value: str) -> dict[str, Any]:
    """A query of one parameter."""
    return {name: value}


@pytest.mark.parametrize("name", ["created_from", "created_before", "finished_from", "finished_before"])
@pytest.mark.parametrize("written", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_a_day_that_is_not_in_the_calendar_is_no_failure_of_ours(
    door: Door, tenant: TenantHouse, name: str, written: str
) -> None:
    assert_refused(door.call(tenant.admin, "GET", "/runs", **at(name, written)), 422)
    bulk = {"action": "cancel", "mode": "preview", "reason": "x", "filter": {name: written}}
    assert_refused(door.call(tenant.admin, "POST", "/runs/bulk", bulk), 422)


def test_the_first_and_the_last_moment_are_taken(door: Door, tenant: TenantHouse) -> None:
    for name, written in (("created_before", "0001-01-01T00:00:00Z"), ("created_from", "9999-12-31T23:59:59Z")):
        assert door.call(tenant.admin, "GET", "/runs", **at(name, written)).json()["runs"] == []


def test_no_answer_is_kept_by_anybody_in_between(door: Door, tenant: TenantHouse) -> None:
    run_id = door.start(tenant)
    asked = ["/me", "/runs", f"/runs/{run_id}", f"/runs/{run_id}/events", "/now", "/audit", "/members", "/nothing"]

    answers = {path: door.call(tenant.admin, "GET", path) for path in asked}
    started = door.call(tenant.admin, "POST", "/runs", {"kind": "tally", "params": {"lanes": 1, "target": 1}})

    assert started.status == 201
    assert {path: answer.headers.get("Cache-Control") for path, answer in answers.items()} == dict.fromkeys(
        asked, "no-store"
    )
    assert started.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/members/max", {"role": "emperor"}),
        ("PUT", "/members/max", "no json"),
        ("POST", "/tokens", {}),
        ("GET", "/audit?limit=soon", None),
        ("GET", "/members?nonsense=1", None),
        ("POST", "/gates/x/close", {"for_s": -1}),
    ],
)
def test_what_is_wrong_with_a_request_is_told_to_nobody_who_may_not_ask(
    door: Door, tenant: TenantHouse, method: str, path: str, body: Any
) -> None:
    path, _, query = path.partition("?")
    asked = at(*query.split("=")) if query else {}

    refused = door.call(tenant.viewer, method, path, body, **asked)
    told = door.call(tenant.admin, method, path, body, **asked)

    assert (refused.status, refused.code) == (403, "not_allowed")
    assert told.status in {400, 422}


@pytest.mark.parametrize("spelled", [str.lower, str.title], ids=["lower", "title"])
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/members/max", {"role": "admin"}),
        ("PUT", "/members/max", "no json"),
        ("DELETE", f"/tokens/{SOME_ID}", None),
        ("POST", "/tokens", {"name": "ci", "role": "admin"}),
        ("PATCH", f"/admin/jobs/definitions/{SOME_ID}", {"is_enabled": False}),
        ("POST", f"/runs/{SOME_ID}/cancel", {}),
        ("POST", "/gates/upstream/close", {"for_s": 1, "reason": "x"}),
    ],
)
def test_a_method_in_other_letters_needs_the_same_role(
    door: Door, tenant: TenantHouse, method: str, path: str, body: Any, spelled: Callable[[str], str]
) -> None:
    refused = door.call(tenant.viewer, spelled(method), path, body)

    assert (refused.status, refused.code) == (403, "not_allowed")


def test_a_route_itself_asks_for_the_role_that_it_needs(
    door: Door, acme: TenantHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever way around the first look somebody finds."""
    monkeypatch.setattr(frame, "_refuse_other_roles", lambda *_: None)

    refused = door.call(acme.viewer, "POST", "/gates/upstream/close", {"for_s": 1, "reason": "x"})

    assert (refused.status, refused.code) == (403, "not_allowed")
    assert door.call(acme.admin, "POST", "/gates/upstream/close", {"for_s": 1, "reason": "x"}).status == 200


def test_a_tenant_cannot_grow_its_gates_without_end(
    door: Door, tenant: TenantHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "MOST_GATES", 3)
    closing = {"for_s": 60, "reason": "x"}

    statuses = [door.call(tenant.admin, "POST", f"/gates/g{n}/close", closing).status for n in (1, 2, 3, 4, 1)]

    assert statuses == [200, 200, 200, 429, 200]


def test_a_tenant_cannot_grow_its_members_without_end(
    door: Door, tenant: TenantHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "MOST_MEMBERS", 7)  # five are there

    statuses = [door.call(tenant.admin, "PUT", f"/members/m{n}", {"role": "viewer"}).status for n in (1, 2, 3, 1)]

    assert statuses == [200, 200, 429, 200]


def test_a_tenant_cannot_grow_its_ended_tokens_without_end(
    door: Door, tenant: TenantHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "MOST_KEPT_TOKENS", 6)  # four are there
    statuses = []
    for n in range(3):
        made = door.call(tenant.admin, "POST", "/tokens", {"name": f"t{n}", "role": "viewer"})
        statuses.append(made.status)
        if made.status == 201:
            door.call(tenant.admin, "DELETE", f"/tokens/{made.json()['id']}")
    door.sql("update machine_token set revoked_at = now() - interval '91 days' where revoked_at is not null")
    statuses.append(door.call(tenant.admin, "POST", "/tokens", {"name": "late", "role": "viewer"}).status)

    assert statuses == [201, 201, 429, 201]
    assert door.value("select count(*) from machine_token where tenant_id = :t", t=tenant.id) == 5


def test_ribbons_on_a_long_page_cost_no_more_than_on_a_short_one(door: Door, tenant: TenantHouse) -> None:
    run_id = door.start(tenant, lanes=200, target=1)
    door.sql(
        """insert into step (lane_id, epoch, seq, tenant_id, outcome)
           select l.id, 1, n, l.tenant_id, 'moved' from lane l, generate_series(1, 100) n where l.run_id = :id""",
        id=run_id,
    )

    answer = door.call(tenant.admin, "GET", f"/runs/{run_id}/lanes", ribbon=100, limit=200)
    few = door.call(tenant.admin, "GET", f"/runs/{run_id}/lanes", ribbon=100, limit=20)

    assert sum(len(lane["ribbon"]) for lane in answer.json()["lanes"]) <= sql.MOST_STEPS_SHOWN
    assert {len(lane["ribbon"]) for lane in few.json()["lanes"]} == {100}


@pytest.mark.parametrize("seed_from", ["0206-11-01", "1989-12-31", "2026-02-30"])
def test_a_search_begins_at_a_day_that_somebody_means(door: Door, tenant: TenantHouse, seed_from: str) -> None:
    saved = {"name": "n", "client": "infojobs", "connection": "main", "params": {"q": "x"}, "seed_from": seed_from}

    assert "seed_from" in door.call(tenant.admin, "POST", "/searches", saved).json()["detail"]
