"""Guards live status: a client that is cut anywhere and comes back sees every line once, and always the last one."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.kernel.api import stream
from shared.kernel.api.room import MOST_KEPT, Room
from shared.kernel.clock import new_id
from tests.support.door import Answer, Door, TenantHouse

MOST_CONNECTIONS = 200


@dataclass
class Browser:
    """An EventSource as the standard has it: an event counts when its empty line came, and only then its id is known."""

    door: Door
    tenant: TenantHouse
    run_id: UUID
    last_id: str = ""
    lines: list[dict[str, Any]] = field(default_factory=list)
    snapshots: list[dict[str, Any]] = field(default_factory=list)
    told_end: int = 0
    retry_ms: int | None = None

    def connect(self, cut_at: int | None = None) -> Answer:
        headers = {"Last-Event-ID": self.last_id} if self.last_id else {}
        answer = self.door.call(self.tenant.member, "GET", f"/runs/{self.run_id}/events", headers=headers)
        assert answer.status in {200, 204}, answer
        self.read(answer.body.encode()[:cut_at])
        return answer

    def read(self, data: bytes) -> None:
        name, last_id = "message", self.last_id
        said: list[str] = []
        *whole, _rest = data.split(b"\n")
        for raw in whole:
            key, _, value = raw.decode().partition(": ")
            match key:
                case "":
                    if said:
                        self.last_id = last_id
                        self.dispatch(name, json.loads("\n".join(said)))
                    name, said = "message", []
                case "event":
                    name = value
                case "data":
                    said.append(value)
                case "id":
                    last_id = value
                case "retry":
                    self.retry_ms = int(value)
                case _:
                    raise AssertionError(raw)

    def dispatch(self, name: str, data: dict[str, Any]) -> None:
        match name:
            case "snapshot":
                self.snapshots.append(data)
            case "line":
                self.lines.append(data)
            case "end":
                self.told_end += 1
            case _:
                raise AssertionError(name)

    @property
    def numbers(self) -> list[int]:
        return [line["n"] for line in self.lines]


@pytest.fixture(scope="module")
def tenant(door: Door) -> TenantHouse:
    return door.new_tenant()


def a_finished_run(door: Door, tenant: TenantHouse) -> UUID:
    run_id = door.start(tenant)
    door.finish(run_id)
    return run_id


def history(door: Door, run_id: UUID) -> list[tuple[int, str]]:
    rows = door.sql("select n, type from history where run_id = :id order by n", id=run_id)
    return [(row["n"], row["type"]) for row in rows]


def test_an_answer_is_a_snapshot_then_the_lines_then_the_end(door: Door, tenant: TenantHouse) -> None:
    browser = Browser(door, tenant, a_finished_run(door, tenant))

    answer = browser.connect()

    assert answer.headers["Content-Type"] == "text/event-stream"
    assert answer.headers["Cache-Control"] == "no-store"
    assert browser.retry_ms is not None
    assert [snapshot["status"] for snapshot in browser.snapshots] == ["succeeded"]
    assert [line["type"] for line in browser.lines] == ["accepted", "running", "succeeded"]
    assert browser.told_end == 1
    assert browser.connect().status == 204


def test_a_run_that_goes_on_never_says_that_it_ended(door: Door, tenant: TenantHouse) -> None:
    browser = Browser(door, tenant, door.start(tenant))

    assert [browser.connect().status for _ in range(2)] == [200, 200]
    assert (browser.numbers, browser.told_end) == ([1], 0)


def test_a_retried_run_goes_on_in_the_same_stream(door: Door, tenant: TenantHouse) -> None:
    run_id = door.start(tenant)
    door.call(tenant.member, "POST", f"/runs/{run_id}/cancel", {})
    door.finish(run_id)
    browser = Browser(door, tenant, run_id)
    browser.connect()
    assert browser.connect().status == 204

    door.call(tenant.member, "POST", f"/runs/{run_id}/retry", {})
    assert browser.connect().status == 200
    door.finish(run_id)
    browser.connect()

    assert [line["type"] for line in browser.lines][-2:] == ["retried", "succeeded"]
    assert (browser.told_end, browser.connect().status) == (2, 204)


CUTS = st.lists(st.integers(0, 3_000), max_size=12)
ACTS = st.lists(st.sampled_from(["pause", "resume", "wake", "cancel", "step", "retry"]), max_size=8)


def do(door: Door, tenant: TenantHouse, run_id: UUID, act: str) -> None:
    if act == "step":
        door.step(run_id)
        return
    lane = f"/lanes/{door.lane(run_id)['id']}" if act == "wake" else ""
    door.call(tenant.member, "POST", f"/runs/{run_id}{lane}/{act}", {"reason": "data: x\r\n\r\nid: 99\n\nevent: end"})


@pytest.mark.full
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(acts=ACTS, cuts=CUTS)
def test_a_client_cut_at_any_byte_sees_every_line_once_and_the_last_one(
    door: Door, tenant: TenantHouse, acts: list[str], cuts: list[int]
) -> None:
    """While it is cut again and again the run moves on; at last the lines are left alone."""
    run_id = door.start(tenant, target=3)
    browser = Browser(door, tenant, run_id)
    for act, cut in zip([*acts, *[""] * len(cuts)], [*cuts, *[0] * len(acts)], strict=False):
        if act:
            do(door, tenant, run_id, act)
        browser.connect(cut)
    door.call(tenant.member, "POST", f"/runs/{run_id}/resume", {})
    door.finish(run_id)

    for _ in range(MOST_CONNECTIONS):
        if browser.connect().status == 204:
            break
    else:
        raise AssertionError("never told that it has ended")

    assert [(line["n"], line["type"]) for line in browser.lines] == history(door, run_id)
    assert browser.lines[-1]["type"] in stream.TERMINAL


@pytest.mark.full
def test_every_single_cut_of_one_answer(door: Door, tenant: TenantHouse) -> None:
    run_id = a_finished_run(door, tenant)
    whole = door.call(tenant.member, "GET", f"/runs/{run_id}/events").body.encode()

    for cut in range(0, len(whole), 7):
        browser = Browser(door, tenant, run_id)
        browser.read(whole[:cut])
        while browser.connect().status != 204:
            pass
        assert browser.numbers == [1, 2, 3], cut


def test_many_lines_come_in_several_answers(door: Door, tenant: TenantHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "LARGEST_PAGE", 2)
    browser = Browser(door, tenant, a_finished_run(door, tenant))

    browser.connect()
    assert (browser.numbers, browser.told_end) == ([1, 2], 0)
    browser.connect()
    assert (browser.numbers, browser.told_end) == ([1, 2, 3], 1)


def test_a_number_that_the_run_never_gave_is_none(door: Door, tenant: TenantHouse) -> None:
    """Whoever comes from another run's stream must not wait for lines that are there already."""
    run_id = a_finished_run(door, tenant)

    answer = door.call(tenant.member, "GET", f"/runs/{run_id}/events", after=77)

    assert answer.status == 200
    assert "id: 1\n" in answer.body


def test_a_client_without_headers_says_it_in_the_query(door: Door, tenant: TenantHouse) -> None:
    run_id = a_finished_run(door, tenant)
    path = f"/runs/{run_id}/events"

    assert "id: 2\n" not in door.call(tenant.member, "GET", path, after=2).body
    assert door.call(tenant.member, "GET", path, after=3).status == 204
    assert "id: 1\n" in door.call(tenant.member, "GET", path, after=3, headers={"Last-Event-ID": "0"}).body


def test_no_stream_holds_a_copy_of_the_function(door: Door, tenant: TenantHouse) -> None:
    """A dozen that wait would stall every tenant: an answer is what is known now, and says when to come back."""
    run_id = door.start(tenant)

    answer = door.call(tenant.member, "GET", f"/runs/{run_id}/events", after=1)

    assert answer.body.startswith(f"retry: {stream.COME_BACK_MS}\n")
    assert door.call(tenant.member, "GET", f"/runs/{run_id}/events", after=1, wait_s=20).status == 422


@pytest.mark.parametrize("asked", [{"after": -1}, {"after": 2**31}])
def test_numbers_have_limits(door: Door, tenant: TenantHouse, asked: dict[str, Any]) -> None:
    assert door.call(tenant.member, "GET", f"/runs/{new_id()}/events", **asked).status == 422


@pytest.mark.full
def test_one_viewer_with_very_many_streams_stalls_nobody(
    door: Door, tenant: TenantHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as the most eager browser has are answered; the rest of them is told when to come back, and nobody else is."""
    now = [100.0]
    monkeypatch.setattr(door.front, "streams", Room(clock=lambda: now[0]))
    globex = door.new_tenant("Globex")
    ours, theirs = (f"/runs/{door.start(each)}/events" for each in (tenant, globex))

    answers = [door.call(tenant.viewer, "GET", ours) for _ in range(300)]
    refused = [each for each in answers if each.status == 429]

    assert [each.status for each in answers[:40]] == [200] * 40
    assert len(refused) == 260
    assert {(each.code, each.headers["Retry-After"]) for each in refused} == {("too_many_streams", "1")}
    for who, path in (
        (globex.viewer, theirs),
        (globex.member, "/runs"),
        (tenant.admin, ours),
        (tenant.viewer, "/runs"),
    ):
        assert door.call(who, "GET", path).status == 200
    now[0] += 1
    assert [door.call(tenant.viewer, "GET", ours).status for _ in range(11)] == [200] * 10 + [429]


def test_all_streams_together_leave_room_for_everything_else(
    door: Door, tenant: TenantHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door.front, "streams", Room(each_burst=10, all_burst=25, clock=lambda: 0.0))
    path = f"/runs/{door.start(tenant)}/events"
    people = (tenant.viewer, tenant.member, tenant.admin)

    statuses = [door.call(who, "GET", path).status for _ in range(10) for who in people]

    assert statuses.count(200) == 25
    assert {door.call(who, "GET", "/runs").status for who in people} == {200}


def test_no_crowd_of_strangers_fills_the_memory() -> None:
    room = Room(all_burst=math.inf)

    for n in range(MOST_KEPT + 50):
        assert room.wait_s(f"user:{n}") == 0

    assert len(room._people) == MOST_KEPT
