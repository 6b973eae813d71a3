"""Guards runs over HTTP: start once per key, list by keyset and filter, act, and know why a run waits."""

from __future__ import annotations

import inspect
import json
import re
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.kernel import db, direct
from shared.kernel.api import runs, sql
from shared.kernel.api.runs import RunFilter
from shared.kernel.auth import Role
from shared.kernel.clock import new_id
from shared.kernel.model import Problem, StepOutcome
from shared.page_ingest import store as page_ingest
from shared.page_ingest.model import part_key
from tests.support.door import Door, TenantHouse

ASKED = {"kind": "tally", "params": {"lanes": 1, "target": 2}}


def ids(answer: Any) -> list[UUID]:
    return [UUID(run["id"]) for run in answer.json()["runs"]]


# Starting.


def test_the_same_key_starts_one_run(door: Door, acme: TenantHouse) -> None:
    first, again = (door.call(acme.member, "POST", "/runs", ASKED, headers={"Idempotency-Key": "k"}) for _ in range(2))
    other = door.call(acme.member, "POST", "/runs", {**ASKED, "label": "x"}, headers={"Idempotency-Key": "k"})
    elses = door.call(acme.other, "POST", "/runs", ASKED, headers={"Idempotency-Key": "k"})

    assert (first.status, first.body) == (again.status, again.body) == (201, first.body)
    assert (other.status, other.code) == (422, "key_reused")
    assert elses.status == 201
    assert elses.body != first.body


def test_a_tenant_has_so_many_open_runs(door: Door, acme: TenantHouse) -> None:
    door.sql("update tenant set most_open_runs = 1 where id = :t", t=acme.id)
    assert door.call(acme.member, "POST", "/runs", ASKED).status == 201

    refused = door.call(acme.member, "POST", "/runs", ASKED, headers={"Idempotency-Key": "k"})
    others = door.call(acme.other, "POST", "/runs", ASKED)
    door.sql("update tenant set most_open_runs = 2 where id = :t", t=acme.id)
    later = door.call(acme.member, "POST", "/runs", ASKED, headers={"Idempotency-Key": "k"})

    assert (refused.status, refused.code) == (429, "too_many_runs")
    assert others.status == 429, "the tenant's runs count, not only those that a member sees"
    assert later.status == 201, "a refusal is not kept"


def test_an_ingestion_is_started_with_typed_parameters(door: Door, acme: TenantHouse) -> None:
    asked = {"source": "nivoda", "low": 0, "high": 100, "label": "all", "policy": {"rule": "at_least", "percent": 90}}
    made = door.call(acme.member, "POST", "/page-ingestions", asked, headers={"Idempotency-Key": "k"})
    again = door.call(acme.member, "POST", "/page-ingestions", asked, headers={"Idempotency-Key": "k"})
    told = door.call(acme.member, "GET", f"/runs/{made.json()['id']}").json()

    assert (made.status, made.body) == (201, again.body)
    assert (told["kind"], told["label"], told["params"]["policy"]["percent"]) == ("page_ingest", "all", 90)


@pytest.mark.parametrize(
    "wrong", [{"low": 5}, {"low": 5, "high": 5}, {"low": 0, "high": 10, "sauce": 1}, {"low": "0", "high": 10}]
)
def test_an_ingestion_with_wrong_parameters_is_refused(door: Door, acme: TenantHouse, wrong: dict[str, Any]) -> None:
    answer = door.call(acme.member, "POST", "/page-ingestions", {"source": "nivoda", **wrong})

    assert (answer.status, answer.code) == (422, "invalid")


def test_partitions_come_page_by_page(door: Door, acme: TenantHouse) -> None:
    made = door.call(acme.member, "POST", "/page-ingestions", {"source": "nivoda", "low": 0, "high": 100})
    run_id = UUID(made.json()["id"])
    cursor = """{"low": 0, "high": 9, "limit": 50, "crawl": 1, "offset": 7, "tail": [], "duplicates": 0, "split": false,
                 "clean": true, "counted": 7}"""
    for n in range(5):
        door.sql(
            """insert into lane (id, run_id, tenant_id, kind, key, holds_run, cursor, next_due_at, check_at, max_steps)
               values (:id, :run, :t, 'page_ingest', 'part:' || cast(:n as text), true, cast(:c as jsonb), now(), now(), 9)""",
            id=new_id(), run=run_id, t=acme.id, n=str(n), c=cursor,
        )  # fmt: skip

    path = f"/page-ingestions/{run_id}/partitions"
    first = door.call(acme.member, "GET", path, limit=3).json()
    second = door.call(acme.member, "GET", path, limit=3, cursor=first["next"]).json()

    pages = [*first["partitions"], *second["partitions"]]
    assert [p["key"] for p in pages] == [f"part:{n}" for n in range(5)]
    assert (pages[0]["offset"], pages[0]["counted"], pages[0]["clean"]) == (7, 7, True)
    assert door.call(acme.other, "GET", path).status == 404
    assert door.call(acme.viewer, "GET", path).status == 200


def lane_of(door: Door, run_id: UUID, key: str, status: str = "active", **cursor: Any) -> UUID:
    lane_id = new_id()
    door.sql(
        """insert into lane (id, run_id, tenant_id, kind, key, holds_run, status, cursor, next_due_at, check_at, max_steps)
           select :id, id, tenant_id, kind, :key, true, :status, cast(:c as jsonb), now(), now(), 9 from run where id = :run""",
        id=lane_id, run=run_id, key=key, status=status, c=db.jsonb(cursor),
    )  # fmt: skip
    return lane_id


def crawl_of(door: Door, run_id: UUID, low: int, high: int, status: str = "done", **cursor: Any) -> UUID:
    cursor = {"offset": 0, "duplicates": 0, "split": False, "clean": True, "limit": 50, "crawl": 1, **cursor}
    return lane_of(door, run_id, part_key(low, high, cursor["crawl"]), status, low=low, high=high, **cursor)


def an_ingestion(door: Door, tenant: TenantHouse) -> UUID:
    made = door.call(tenant.member, "POST", "/page-ingestions", {"source": "nivoda", "low": 0, "high": 100})
    return UUID(made.json()["id"])


def test_an_ingestion_as_a_whole(door: Door, acme: TenantHouse) -> None:
    run_id = an_ingestion(door, acme)
    path = f"/page-ingestions/{run_id}"
    before = door.call(acme.member, "GET", path).json()
    set_plan = "status = 'done', cursor = cursor || '{\"planned\": true, \"todo\": []}'"
    door.sql(f"update lane set {set_plan} where run_id = :id and key = 'plan'", id=run_id)
    crawl_of(door, run_id, 0, 10, counted=70, offset=70, duplicates=2)
    crawl_of(door, run_id, 0, 10, crawl=2, counted=80, offset=80, duplicates=3)  # it drifted, and was crawled again
    crawl_of(door, run_id, 10, 50, split=True, counted=500, offset=90)
    crawl_of(door, run_id, 10, 20, "failed", counted=20, offset=5)
    stuck = crawl_of(door, run_id, 20, 50, "active", counted=30, offset=7)
    door.sql(
        "update lane set next_due_at = d, updated_at = d, created_at = d from (select now() - interval '1 day' as d) d where id = :id",
        id=stuck,
    )
    crawl_of(door, run_id, 50, 100, "active")
    for key, status, todo in (
        ("audit:1.1.0", "done", 0), ("audit:1.2.0", "done", 0), ("audit:1.10.0", "done", 0), ("audit:1.10.1", "active", 7),
        ("audit:1.10.2", "failed", 2),
    ):  # fmt: skip
        lane_of(door, run_id, key, status, todo=[[0, 1, 1, None]] * todo, drifted=[])
    lane_of(door, run_id, "consolidate:1", "failed", complete=True, after="x", gone_after="")
    going_on = lane_of(door, run_id, "consolidate:2", "active", complete=True, after="x", gone_after="")

    told = door.call(acme.member, "GET", path).json()

    assert (before["planned"], before["partitions"], before["counted"], before["walked"]) == (False, 0, None, 0)
    assert (before["plan"]["status"], before["plan"]["left"]) == ("active", 1)
    assert (before["audit"], before["consolidate"]) == (None, None)
    assert {name: told[name] for name in ("id", "source", "low", "high")} == {
        "id": str(run_id), "source": "nivoda", "low": 0, "high": 100,
    }  # fmt: skip
    counts = ("partitions", "done", "failed", "stuck", "split", "drifted", "counted", "walked", "duplicates")
    assert [told[name] for name in counts] == [4, 1, 1, 1, 1, 1, 130, 92, 3]
    assert (told["planned"], told["plan"]["status"], told["plan"]["left"]) == (True, "done", 0)
    assert (told["audit"]["status"], told["audit"]["left"]) == ("active", 9), "of the last audit alone"
    assert (told["consolidate"]["lane_id"], told["consolidate"]["status"], told["consolidate"]["left"]) == (
        str(going_on), "active", None,
    )  # fmt: skip
    assert door.call(acme.other, "GET", path).status == 404
    assert door.call(acme.member, "GET", f"/page-ingestions/{door.start(acme)}").status == 404


def test_an_ingestion_counts_in_rows(door: Door, acme: TenantHouse) -> None:
    run_id = an_ingestion(door, acme)

    def rows(path: str = f"/runs/{run_id}") -> Any:
        told = door.call(acme.member, "GET", path).json()
        return (told["runs"][0] if "runs" in told else told)["progress"]["rows"]

    assert rows() is None, "not planned yet"
    plan = {"planned": True, "todo": [], "parts": [[0, 10, 70], [10, 50, 500], [50, 100, 30]]}
    door.sql(
        "update lane set status = 'done', cursor = cast(:c as jsonb) where run_id = :id and key = 'plan'",
        id=run_id, c=db.jsonb(plan),
    )  # fmt: skip
    crawl_of(door, run_id, 50, 100, "active", counted=None)
    crawl_of(door, run_id, 0, 10, counted=70, offset=70)
    assert rows() == {"done": 70, "failed": 0, "all": 600, "unit": "rows"}, "the plan has counted"
    crawl_of(door, run_id, 0, 10, crawl=2, counted=80, offset=80)
    crawl_of(door, run_id, 10, 50, split=True, counted=500, offset=90)
    crawl_of(door, run_id, 10, 20, "failed", counted=600, offset=5)
    door.sql(
        'update lane set cursor = cursor || \'{"counted": 30, "offset": 7}\' where run_id = :id and key = :k',
        id=run_id,
        k=part_key(50, 100),
    )
    assert rows() == rows("/runs") == {"done": 92, "failed": 595, "all": 710, "unit": "rows"}
    door.sql("update run set status = 'failed', finished_at = now() where id = :id", id=run_id)
    an_ingestion(door, acme)
    assert rows() is not None
    assert [run["progress"]["rows"] for run in door.call(acme.member, "GET", "/runs").json()["runs"]] == [None, None]


# Coverage.


def covered(
    door: Door, tenant: TenantHouse, low: int, high: int, ended: str, days_ago: int = 0, who: Any = None
) -> UUID:
    asked = {"source": "nivoda", "low": low, "high": high}
    run_id = UUID(door.call(who or tenant.member, "POST", "/page-ingestions", asked).json()["id"])
    status, _, outcome = ended.partition(" ")
    door.sql(
        """update run set status = :s, outcome = nullif(:o, ''), finished_at = case when :s <> 'running' then now() end,
               created_at = date_trunc('day', now() at time zone 'utc') at time zone 'utc' - make_interval(days => :d) where id = :id""",
        s=status, o=outcome, d=days_ago, id=run_id,
    )  # fmt: skip
    return run_id


def test_coverage_tells_which_prices_were_read_on_which_day(door: Door, acme: TenantHouse, globex: TenantHouse) -> None:
    covered(door, acme, 0, 100, "succeeded complete", 2)
    partial = covered(door, acme, 50, 200, "succeeded partial", 1)
    crawl_of(door, partial, 50, 100)
    crawl_of(door, partial, 100, 150, split=True)
    crawl_of(door, partial, 100, 120, "failed")
    crawl_of(door, partial, 120, 150, "failed")
    crawl_of(door, partial, 150, 200, "failed")
    crawl_of(door, partial, 150, 200, crawl=2)
    covered(door, acme, 0, 999, "succeeded complete", 30)
    covered(door, acme, 0, 999, "canceled", 0)
    covered(door, globex, 0, 500, "succeeded complete")
    covered(door, acme, 190, 200, "running", who=acme.other)

    told = door.call(acme.admin, "GET", "/page-ingestion-coverage").json()

    days = {day: (date.fromisoformat(told["until"]) - timedelta(days=day)).isoformat() for day in range(28)}
    assert told["since"] == days[27]
    assert [
        (band["low"], band["high"], {each["day"]: each["state"] for each in band["days"]}) for band in told["bands"]
    ] == [
        (0, 50, {days[2]: "complete"}),
        (50, 100, {days[2]: "complete", days[1]: "read"}),
        (100, 150, {days[1]: "failed"}),
        (150, 190, {days[1]: "read"}),
        (190, 200, {days[1]: "read", days[0]: "running"}),
    ]
    assert [band["complete_at"] is None for band in told["bands"]] == [False, False, True, True, True]
    assert [band["latest_state"] for band in told["bands"]] == ["complete", "read", "failed", "read", "running"]
    assert told["bands"][2]["latest_run"] == str(partial)
    assert told["gaps"] == [{"low": 100, "high": 200}]
    mine = door.call(acme.member, "GET", "/page-ingestion-coverage", days=2).json()
    assert [(band["low"], band["high"]) for band in mine["bands"]] == [(50, 100), (100, 150), (150, 200)], (
        "their own runs"
    )
    assert mine["since"] == days[1]
    assert door.call(globex.admin, "GET", "/page-ingestion-coverage").json()["gaps"] == []
    assert door.call(acme.member, "GET", "/page-ingestion-coverage", days=91).status == 422


def test_the_heat_of_a_partition_is_its_steps_in_equal_shares(door: Door, acme: TenantHouse) -> None:
    run_id = an_ingestion(door, acme)
    lane_id, _ = crawl_of(door, run_id, 0, 10, counted=120), crawl_of(door, run_id, 10, 20)
    outcomes = ["moved", "waited", "moved", "retried", "throttled", "failed", "moved", "done"]
    for n, outcome in enumerate(outcomes):
        door.sql(
            "insert into step (lane_id, epoch, seq, tenant_id, outcome, rows, ms) values (:l, :e, :n, :t, :o, :n, :ms)",
            l=lane_id, e=1 + n // 6, n=n, t=acme.id, o=outcome, ms=n * 10,
        )  # fmt: skip
    path = f"/page-ingestions/{run_id}/partitions"

    def heat(shares: int) -> list[list[Any]]:
        first, second = door.call(acme.member, "GET", path, heat=shares).json()["partitions"]
        assert (first["pages_expected"], second["pages_expected"], second["heat"]) == (4, None, [])
        return [list(each.values()) for each in first["heat"]]

    assert heat(4) == [[2, 1, 5, "waited"], [2, 5, 25, "retried"], [2, 9, 45, "failed"], [2, 13, 65, "moved"]]
    assert heat(1) == [[8, 28, 35, "failed"]]
    assert [outcome for *_, outcome in heat(60)] == outcomes
    assert [p["heat"] for p in door.call(acme.member, "GET", path).json()["partitions"]] == [None, None]
    assert door.call(acme.member, "GET", path, heat=61).status == 422


def test_every_outcome_of_a_step_has_its_place_in_the_heat() -> None:
    assert set(re.findall(r"'(\w+)'", page_ingest._WORST)) == {str(outcome) for outcome in StepOutcome}


def test_a_member_sees_no_partition_of_another_even_in_the_view(door: Door, acme: TenantHouse) -> None:
    run_id = door.start(acme)
    door.sql("update lane set kind = 'page_ingest', key = 'part:1' where run_id = :id", id=run_id)
    door.sql("update run set kind = 'page_ingest' where id = :id", id=run_id)

    for view in ("partition_progress", "worker_runs", "run_metadata"):
        seen = []
        for owner in (None, acme.member.actor, acme.other.actor):
            with direct.together(door.engine, acme.id, owner) as line:
                seen += line.scalars(db_count(view), {"run_id": run_id})
        assert seen == [1, 1, 0], view


@pytest.mark.parametrize(
    ("table", "which"),
    [
        ("run", "id = :run_id"), ("lane", "run_id = :run_id"), ("history", "run_id = :run_id"),
        ("remote_call", "run_id = :run_id"), ("step", "lane_id in (select id from lane where run_id = :run_id)"),
    ],
)  # fmt: skip
def test_a_member_sees_no_row_of_anothers_run_whatever_is_asked(
    door: Door, acme: TenantHouse, table: str, which: str
) -> None:
    run_id = door.start(acme, assets=["l0"])
    door.step(run_id)
    statement = sa.text(f"select count(*) > 0 from {table} where {which}")

    seen = []
    for owner in (None, acme.member.actor, acme.other.actor):
        with direct.together(door.engine, acme.id, owner) as line:
            seen += line.scalars(statement, {"run_id": run_id})

    assert seen == [True, True, False]


def db_count(view: str) -> sa.TextClause:
    return sa.text(f"select count(*) from {view} where run_id = :run_id")


def test_a_run_of_another_kind_has_no_partitions(door: Door, acme: TenantHouse) -> None:
    assert door.call(acme.member, "GET", f"/page-ingestions/{door.start(acme)}/partitions").status == 404


# Ribbons.


def test_the_ribbon_of_a_lane_is_its_last_steps_oldest_first(door: Door, acme: TenantHouse) -> None:
    run_id = door.start(acme, lanes=2, target=5)
    for _ in range(4):
        door.step(run_id)  # of the first lane
    path = f"/runs/{run_id}/lanes"

    first, second = door.call(acme.member, "GET", path, ribbon=3).json()["lanes"]
    steps = door.call(acme.member, "GET", f"{path}/{first['id']}/steps", limit=3).json()["steps"]

    assert first["ribbon"] == steps[::-1]
    assert [(step["seq"], step["outcome"], step["rows"]) for step in first["ribbon"]] == [
        (n, "moved", 1) for n in (1, 2, 3)
    ]
    assert second["ribbon"] == []
    assert [lane["ribbon"] for lane in door.call(acme.member, "GET", path).json()["lanes"]] == [None, None]
    for wrong in (-1, 101):
        assert door.call(acme.member, "GET", path, ribbon=wrong).status == 422


def test_a_list_tells_how_fast_a_run_is_as_the_run_itself_does(door: Door, acme: TenantHouse) -> None:
    run_id = door.start(acme, lanes=4, target=1)
    door.step(run_id)
    door.sql("update run set started_at = now() - interval '10 minutes' where id = :id", id=run_id)
    clock = "select now() - started_at from run where id = :id"

    before = door.value(clock, id=run_id)
    (listed,) = door.call(acme.member, "GET", "/runs").json()["runs"]
    told = door.call(acme.member, "GET", f"/runs/{run_id}").json()

    assert (listed["rate_per_minute"], told["rate_per_minute"]) == (0.1, 0.1)
    took = datetime.fromisoformat(listed["eta"]) - datetime.fromisoformat(listed["started_at"])
    assert before <= took / 4 <= door.value(clock, id=run_id), "four lanes at the pace of the one that is done"
    assert listed.keys() < told.keys()


# Lists.


def test_runs_come_newest_first_and_each_once(door: Door, acme: TenantHouse) -> None:
    made = [door.start(acme) for _ in range(7)]
    seen: list[UUID] = []
    cursor: dict[str, Any] = {}
    while True:
        answer = door.call(acme.member, "GET", "/runs", limit=3, **cursor)
        seen += ids(answer)
        if answer.json()["next"] is None:
            break
        cursor = {"cursor": answer.json()["next"]}

    assert seen == made[::-1]


def test_each_filter_finds_its_runs(door: Door, acme: TenantHouse) -> None:
    plain, ended, paused = (door.start(acme) for _ in range(3))
    door.finish(ended)
    door.call(acme.member, "POST", f"/runs/{paused}/pause", {})
    door.sql("update run set label = 'l', source = 's', created_by = 'user:z' where id = :id", id=plain)
    (at,) = door.sql("select created_at, finished_at from run where id = :id", id=ended)

    def found(**query: Any) -> set[UUID]:
        return set(ids(door.call(acme.admin, "GET", "/runs", **query)))

    assert found(kind="tally") == {plain, ended, paused}
    assert found(kind="page_ingest") == set()
    assert found(status="succeeded") == found(status="succeeded", kind="tally") == {ended}
    assert found(status="paused") == {paused}
    assert found(status="queued") == {plain}
    assert found(label="l") == found(source="s") == found(created_by="user:z") == {plain}
    assert found(created_from=at["created_at"].isoformat()) == {ended, paused}
    assert found(created_before=at["created_at"].isoformat()) == {plain}
    assert found(finished_from=at["finished_at"].isoformat()) == {ended}
    assert found(finished_before=at["finished_at"].isoformat()) == set()


def test_bulk_filters_and_list_filters_have_the_same_names() -> None:
    """Besides what only a list can ask for: a part of a name, and what a run is doing now."""
    asked = set(inspect.signature(runs.list_runs).parameters) - {"limit", "cursor", "q", "state"}

    assert asked == set(RunFilter.model_fields)
    assert {*RunFilter.model_fields, "paused", "owner", "id"} == set(sql.FILTERS)


@pytest.mark.parametrize(
    "query",
    [
        {"sort": "created_at;drop table run"}, {"order": "desc"}, {"status": "open"}, {"limit": 201}, {"limit": -1},
        {"created_from": "2026-01-01T00:00:00"}, {"created_from": "yesterday"}, {"kind": "x" * 101},
        {"cursor": "x" * 1001}, {"limit": "1 or 1=1"},
    ],
    ids=str,
)  # fmt: skip
def test_a_question_that_makes_no_sense_is_refused(door: Door, acme: TenantHouse, query: dict[str, Any]) -> None:
    assert door.call(acme.admin, "GET", "/runs", **query).status == 422


# How fast, and until when.


def going(door: Door, acme: TenantHouse, *, lanes: int, done: int) -> UUID:
    """A run that began an hour ago and took 300 steps since then."""
    run_id = door.start(acme, lanes=lanes)
    door.sql("update run set status = 'running', started_at = now() - interval '1 h' where id = :id", id=run_id)
    door.sql("update lane set steps = 300 where run_id = :id and key = 'l0'", id=run_id)
    door.sql(
        "update lane set status = 'done' where id in (select id from lane where run_id = :id order by key limit :done)",
        id=run_id,
        done=done,
    )
    return run_id


def pace(door: Door, acme: TenantHouse, run_id: UUID) -> tuple[Any, Any]:
    told = door.call(acme.member, "GET", f"/runs/{run_id}").json()
    return told["rate_per_minute"], told["eta"]


def test_a_run_that_goes_on_tells_its_rate_and_when_it_will_be_done(door: Door, acme: TenantHouse) -> None:
    """With half of its lanes done it takes as long again: so the answer itself says when it was given."""
    run_id = going(door, acme, lanes=4, done=2)

    rate, eta = pace(door, acme, run_id)

    began = door.value("select started_at from run where id = :id", id=run_id)
    took = (datetime.fromisoformat(eta) - began) / 2
    assert took >= timedelta(hours=1)
    assert rate == round(300 / (took.total_seconds() / 60), 2)


def test_a_run_with_nothing_done_has_a_rate_and_no_end(door: Door, acme: TenantHouse) -> None:
    rate, eta = pace(door, acme, going(door, acme, lanes=3, done=0))

    assert rate > 0
    assert eta is None


@pytest.mark.parametrize(("lanes", "told"), [(sql.MOST_LANES - 1, True), (sql.MOST_LANES, False), (250, False)])
def test_no_pace_is_told_of_a_part_of_a_run(door: Door, acme: TenantHouse, lanes: int, told: bool) -> None:
    run_id = going(door, acme, lanes=lanes, done=100)

    assert [figure is not None for figure in pace(door, acme, run_id)] == [told, told]
    assert door.call(acme.member, "GET", f"/runs/{run_id}").json()["progress"]["more_lanes"] is not told


def test_a_run_that_did_not_begin_or_is_over_has_no_pace(door: Door, acme: TenantHouse) -> None:
    waiting, over = door.start(acme), door.start(acme, target=1)
    door.finish(over)

    assert [pace(door, acme, run_id) for run_id in (waiting, over)] == [(None, None), (None, None)]


# What it is doing, in one word.

DUE = "next_due_at = now()"
FAILED_ONCE = f"attempts = 2, last_error = '{db.jsonb(Problem('timeout', 'no answer').to_json())}'"
LATER_ON = "next_due_at = now() + interval '1 hour'"
AT_WORK = "claim_token = gen_random_uuid(), lease_until = now() + interval '1 minute'"
BEFORE = "updated_at = now() - interval '1 minute'"
ENDED_BEFORE = "lease_until = now() - interval '3 minutes', claim_token = gen_random_uuid()"


@pytest.mark.parametrize(
    ("first", "second", "state"),
    [
        (DUE, DUE, "running"),
        (AT_WORK, LATER_ON, "running"),
        ("sent_at = null", LATER_ON, "running"),
        (f"{DUE}, {FAILED_ONCE}", f"{LATER_ON}, {FAILED_ONCE}", "retrying"),
        (f"{AT_WORK}, {FAILED_ONCE}", f"{LATER_ON}, {FAILED_ONCE}", "retrying"),
        (f"{AT_WORK}, {FAILED_ONCE}", f"{LATER_ON}", "retrying"),
        (f"{LATER_ON}, {FAILED_ONCE}", f"{LATER_ON}, {FAILED_ONCE}", "retrying"),
        (f"{AT_WORK}, {FAILED_ONCE}", DUE, "retrying"),  # what has done nothing yet is no proof that anything works
        (f"{AT_WORK}, {FAILED_ONCE}, {BEFORE}", f"{DUE}, steps = 1, updated_at = now()", "running"),
        (f"{AT_WORK}, {FAILED_ONCE}, updated_at = now()", f"{DUE}, steps = 1, {BEFORE}", "retrying"),
        (f"{LATER_ON}, waits_for = 'gate:api'", f"{LATER_ON}, waits_for = 'gate:api'", "throttled"),
        (LATER_ON, LATER_ON, "waiting"),
        ("next_due_at = now() - interval '3 minutes'", LATER_ON, "stalled"),
        (ENDED_BEFORE, LATER_ON, "stalled"),
        ("next_due_at = now() - interval '3 minutes'", DUE, "running"),
        ("next_due_at = now() - interval '1 minute'", LATER_ON, "running"),
    ],
)
def test_each_word_for_a_run_means_one_thing(
    door: Door, acme: TenantHouse, first: str, second: str, state: str
) -> None:
    """Of two lanes, one of which has ended before: a run whose every attempt fails is never running, and has no ETA."""
    run_id = going(door, acme, lanes=3, done=1)
    door.sql(
        """insert into gate (tenant_id, key, state, until) values (:t, 'api', 'closed', now() + interval '2 hours')
           on conflict do nothing""",
        t=acme.id,
    )
    keys = [
        row["key"]
        for row in door.sql("select key from lane where run_id = :id and status = 'active' order by key", id=run_id)
    ]
    door.sql("update lane set sent_at = now() where run_id = :id", id=run_id)
    for key, assignments in zip(keys, (first, second), strict=True):
        door.sql(f"update lane set {assignments} where run_id = :id and key = :k", id=run_id, k=key)

    told = door.call(acme.member, "GET", f"/runs/{run_id}").json()
    (listed,) = (run for run in door.call(acme.member, "GET", "/runs").json()["runs"] if run["id"] == str(run_id))

    assert (told["status"], told["state"], listed["state"]) == ("running", state, state)
    assert (told["eta"] is not None) == (state == "running" and told["progress"]["failing"] == 0)


@pytest.mark.parametrize("late", ["next_due_at = now() - interval '3 minutes'", ENDED_BEFORE])
def test_what_is_overdue_says_so_wherever_somebody_asks_why(door: Door, acme: TenantHouse, late: str) -> None:
    """Nothing holds it, and still it does not move: that is no lane that is free to run."""
    run_id = going(door, acme, lanes=3, done=1)
    door.sql(f"update lane set sent_at = now(), {late} where run_id = :id and status = 'active'", id=run_id)

    run = door.call(acme.member, "GET", f"/runs/{run_id}").json()
    why = door.call(acme.member, "GET", f"/runs/{run_id}/why").json()
    lanes = door.call(acme.member, "GET", f"/runs/{run_id}/lanes").json()["lanes"]

    assert (run["state"], run["why"]["code"]) == ("stalled", "overdue")
    assert (why["moving"], [(each["code"], each["lanes"]) for each in why["reasons"]]) == (0, [("overdue", 2)])
    assert [lane["why"] and lane["why"]["code"] for lane in lanes if lane["status"] == "active"] == ["overdue"] * 2
    assert [lane["why"] for lane in lanes if lane["status"] == "done"] == [None]


def test_a_run_that_waits_for_a_worker_is_paused_or_over_says_so(door: Door, acme: TenantHouse) -> None:
    queued, paused, over = (door.start(acme) for _ in range(3))
    assert door.call(acme.member, "POST", f"/runs/{paused}/pause", {}).status == 200
    door.finish(over)

    states = [door.call(acme.member, "GET", f"/runs/{run_id}").json()["state"] for run_id in (queued, paused, over)]

    assert states == ["queued", "paused", "succeeded"]


# Why.

PAST, NOW, SOON, LATER = "-1 hour", "0", "0.5 s", "1 hour"
STATES = st.fixed_dictionaries(
    {
        "status": st.sampled_from(["active"] * 5 + ["done", "failed", "canceled"]),
        "due": st.sampled_from([PAST, NOW, SOON, LATER]),
        "lease": st.sampled_from([None, None, PAST, LATER]),
        "paused": st.booleans(),
        "lane_canceled": st.booleans(),
        "sent": st.booleans(),
        "gate": st.sampled_from([None, "own", "shared", "other"]),
        "gate_state": st.sampled_from(["open", "closed", "probing"]),
        "gate_until": st.sampled_from([PAST, LATER]),
        "waits_for": st.sampled_from([None, "gate:why", "gate:else", "a reply"]),
        "attempts": st.integers(0, 2),
        "run_status": st.sampled_from(["queued", "running"]),
    }
)
SET_LANE = """
update lane set status = :status, next_due_at = now() + cast(:due as interval),
    claim_token = case when cast(:lease as text) is not null and :status = 'active' then gen_random_uuid() end,
    lease_until = case when :status = 'active' then now() + cast(cast(:lease as text) as interval) end,
    cancel_at = case when :lane_canceled then now() end, sent_at = case when :sent then now() end,
    waits_for = :waits_for, attempts = :attempts, last_error = '{"code": "x", "message": "y"}'
where run_id = :run_id
"""


@pytest.fixture(scope="module")
def a_tenant(door: Door) -> TenantHouse:
    return door.new_tenant()


@pytest.mark.full
@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(state=STATES)
def test_a_lane_takes_its_turn_exactly_when_nothing_says_why_not(
    door: Door, a_tenant: TenantHouse, state: dict[str, Any]
) -> None:
    run_id = door.start(a_tenant)
    door.sql(
        "update run set status = :s, paused_at = case when :p then now() end where id = :id",
        s=state["run_status"], p=state["paused"], id=run_id,
    )  # fmt: skip
    lane = {k: state[k] for k in ("status", "due", "lease", "lane_canceled", "sent", "waits_for", "attempts")}
    door.sql(SET_LANE, run_id=run_id, **lane)
    door.sql("delete from gate")
    if state["gate"] is not None:
        tenant = {"own": a_tenant.id, "shared": None, "other": new_id()}[state["gate"]]
        door.sql(
            """insert into gate (tenant_id, key, state, until, holder)
               values (cast(:t as uuid), 'why', :s, now() + cast(:u as interval), case when :s = 'probing' then gen_random_uuid() end)""",
            t=tenant, s=state["gate_state"], u=state["gate_until"],
        )  # fmt: skip

    told = door.call(a_tenant.admin, "GET", f"/runs/{run_id}/lanes").json()["lanes"][0]["why"]
    reasons = door.sql("select * from why(:id)", id=door.lane(run_id)["id"])
    claims = door.claims(run_id)

    assert (claims and state["sent"]) == (reasons == [])
    is_held = told is not None and told["code"] != "overdue"  # of what nothing holds it is said that nobody took it
    assert is_held == (reasons != [] and state["status"] == "active")
    if told is not None and told["code"] == "gate":
        assert (told["held_by"], told["action"]) == ("why", "open_gate")


def test_why_groups_the_reasons_of_all_open_lanes(door: Door, acme: TenantHouse) -> None:
    run_id = door.start(acme, lanes=5)
    door.sql(
        "update lane set next_due_at = now() + interval '1 hour', attempts = 1 where run_id = :id and key = 'l0'",
        id=run_id,
    )
    door.sql(
        "update lane set next_due_at = now() + interval '2 hours', attempts = 2 where run_id = :id and key = 'l1'",
        id=run_id,
    )
    door.sql("update lane set sent_at = null where run_id = :id and key = 'l2'", id=run_id)

    why = door.call(acme.member, "GET", f"/runs/{run_id}/why").json()

    assert (why["status"], why["moving"], why["more"]) == ("queued", 2, False)
    assert [(r["code"], r["lanes"], r["action"]) for r in why["reasons"]] == [
        ("retrying", 2, "wake"),
        ("unsent", 1, "wake"),
    ]
    earliest = door.value("select min(next_due_at) from lane where run_id = :id and attempts > 0", id=run_id)
    assert why["reasons"][0]["until"][:19] == earliest.isoformat()[:19]


def test_lanes_that_wait_for_different_things_are_told_apart(door: Door, acme: TenantHouse) -> None:
    run_id = door.start(acme, lanes=3)
    door.sql(
        "update lane set next_due_at = now() + interval '1 hour', waits_for = case key when 'l0' then 'an answer' else 'the night' end"
        " where run_id = :id",
        id=run_id,
    )

    why = door.call(acme.member, "GET", f"/runs/{run_id}/why").json()["reasons"]

    assert [(reason["lanes"], reason["sentence"]) for reason in why] == [
        (2, "Waiting for the night."),
        (1, "Waiting for an answer."),
    ]


def test_a_paused_run_says_so_in_every_list(door: Door, acme: TenantHouse) -> None:
    run_id = door.start(acme)
    door.call(acme.member, "POST", f"/runs/{run_id}/pause", {"reason": "lunch"})

    (listed,) = door.call(acme.member, "GET", "/runs").json()["runs"]
    why = door.call(acme.member, "GET", f"/runs/{run_id}/why").json()

    assert (listed["why"]["code"], listed["why"]["action"]) == ("paused", "resume")
    assert [reason["code"] for reason in why["reasons"]] == ["paused"]


# A kind that is not deployed anymore.


def orphan(door: Door, tenant: TenantHouse, lanes: int = 2) -> UUID:
    run_id = door.start(tenant, lanes=lanes)
    for table in ("run", "lane"):
        door.sql(f"update {table} set kind = 'gone' where {'id' if table == 'run' else 'run_id'} = :id", id=run_id)
    return run_id


def test_a_run_whose_kind_is_gone_says_so_wherever_it_is_shown(door: Door, acme: TenantHouse) -> None:
    run_id = orphan(door, acme)
    door.sql("update lane set next_due_at = now() - interval '1 hour' where run_id = :id", id=run_id)
    says = "The kind 'gone' isn't deployed anymore, so nothing runs its steps. Deploy it again, or cancel the run."

    why = door.call(acme.member, "GET", f"/runs/{run_id}/why").json()
    run = door.call(acme.member, "GET", f"/runs/{run_id}").json()
    (listed,) = door.call(acme.member, "GET", "/runs", state="stalled").json()["runs"]
    lanes = door.call(acme.member, "GET", f"/runs/{run_id}/lanes").json()["lanes"]
    (late,) = door.call(acme.member, "GET", "/now").json()["late"]["runs"]

    assert (why["moving"], [(r["code"], r["lanes"], r["action"], r["sentence"]) for r in why["reasons"]]) == (
        0, [("not_deployed", 2, "cancel", says)],
    )  # fmt: skip
    assert run["state"] == "stalled"
    told = [run["why"], listed["why"], *(lane["why"] for lane in lanes)]
    assert {(each["code"], each["sentence"]) for each in told} == {("not_deployed", says)}
    assert late["sentence"] == says


@pytest.mark.parametrize("how", ["one", "bulk", "asked before"])
def test_a_run_whose_kind_is_gone_ends_when_it_is_canceled(door: Door, acme: TenantHouse, how: str) -> None:
    run_id = orphan(door, acme)
    door.sql(
        "update lane set claim_token = gen_random_uuid(), lease_until = now() where run_id = :id and key = 'l0'",
        id=run_id,
    )
    if how == "asked before":
        door.sql("update run set cancel_requested_at = now() where id = :id", id=run_id)

    if how == "bulk":
        asked = {"action": "cancel", "filter": {"kind": "gone"}, "reason": "obsolete"}
        counted = door.call(acme.admin, "POST", "/runs/bulk", {**asked, "mode": "preview"}).json()
        done = door.call(acme.admin, "POST", "/runs/bulk", {**asked, "mode": "apply", "token": counted["next"]}).json()
        assert (done["done"], done["refused"]) == (1, {})
    else:
        assert door.call(acme.member, "POST", f"/runs/{run_id}/cancel", {"reason": "obsolete"}).status == 200

    run = door.call(acme.member, "GET", f"/runs/{run_id}").json()
    assert (run["status"], run["outcome"], run["why"]) == ("canceled", "canceled", None)
    assert door.value("select count(*) from lane where run_id = :id and status = 'active'", id=run_id) == 0
    lines = [row["type"] for row in door.sql("select type from history where run_id = :id order by n", id=run_id)]
    assert lines == ["accepted", *([] if how == "asked before" else ["cancel_requested"]), "canceled"]
    again = door.call(acme.member, "POST", f"/runs/{run_id}/cancel", {"reason": "obsolete"})
    assert (again.status, again.code) == (409, "already_ended")


# Gates.


def closed_gate(door: Door, tenant: TenantHouse | None, key: str = "api") -> None:
    door.sql(
        """insert into gate (tenant_id, key, state, until, reason)
           values (cast(:t as uuid), :k, 'closed', now() + interval '1 hour', 'busy')""",
        t=None if tenant is None else tenant.id, k=key,
    )  # fmt: skip


def test_a_rate_limit_is_named_by_its_connection_and_never_by_another_tenants(
    door: Door, acme: TenantHouse, globex: TenantHouse
) -> None:
    run_id, ours, theirs = door.start(acme, lanes=3), new_id(), new_id()
    for tenant, connection, name in ((acme, ours, "main account"), (globex, theirs, "a secret plan")):
        door.sql(
            "insert into connection (id, tenant_id, provider, name, created_by) values (:id, :t, 'nivoda', :name, 'ann')",
            id=connection, t=tenant.id, name=name,
        )  # fmt: skip
    keys = [f"nivoda:{ours}", f"nivoda:{theirs}", "nivoda:not-an-id"]
    for number, key in enumerate(keys):
        closed_gate(door, acme, key)
        door.sql(
            "update lane set next_due_at = now() + interval '1 hour', waits_for = :k where run_id = :id and key = :lane",
            id=run_id, k=f"gate:{key}", lane=f"l{number}",
        )  # fmt: skip

    why = door.call(acme.member, "GET", f"/runs/{run_id}/why").json()["reasons"]

    assert {each["held_by"]: each["sentence"] for each in why} == {
        keys[0]: "Rate-limited by nivoda (main account): busy",
        keys[1]: f"Rate-limited by nivoda:{theirs}: busy",
        keys[2]: "Rate-limited by nivoda:not-an-id: busy",
    }


def test_opening_a_gate_frees_what_waited_for_it(door: Door, acme: TenantHouse, globex: TenantHouse) -> None:
    mine, theirs = door.start(acme), door.start(globex)
    for tenant, run_id in ((acme, mine), (globex, theirs)):
        closed_gate(door, tenant)
        door.sql(
            "update lane set next_due_at = now() + interval '1 hour', waits_for = 'gate:api' where run_id = :id",
            id=run_id,
        )
    held = door.call(acme.admin, "GET", f"/runs/{mine}/why").json()["reasons"]

    opened = door.call(acme.admin, "POST", "/gates/api/open", {"reason": "they said it works"})

    assert [(r["code"], r["held_by"], r["action"]) for r in held] == [("gate", "api", "open_gate")]
    assert opened.json()["woken"] == 1
    assert door.call(acme.admin, "GET", f"/runs/{mine}/why").json()["reasons"] == []
    assert door.claims(mine)
    assert door.call(globex.admin, "GET", f"/runs/{theirs}/why").json()["reasons"][0]["code"] == "gate"
    assert door.audited(acme)[-1] == (acme.admin.actor, "gate.open", "gate:api")


def test_closing_a_gate_is_seen_and_audited(door: Door, acme: TenantHouse) -> None:
    key = f"up-{new_id()}"

    closed = door.call(acme.admin, "POST", f"/gates/{key}/close", {"reason": "token=abcdefgh", "for_s": 600})

    assert closed.status == 200
    (gate,) = (g for g in door.call(acme.viewer, "GET", "/gates").json()["gates"] if g["key"] == key)
    assert (gate["state"], gate["is_shared"], gate["reason"]) == ("closed", False, "token=***")
    line = door.call(acme.admin, "GET", "/audit").json()["lines"][0]
    assert (line["action"], line["before"], line["after"]["for_s"]) == ("gate.close", None, 600)


def test_gates_come_page_by_page(door: Door, acme: TenantHouse) -> None:
    for n in range(4):
        door.call(acme.admin, "POST", f"/gates/{acme.id}-{n}/close", {"reason": "x", "for_s": 1})
    seen: list[str] = []
    cursor: dict[str, Any] = {}
    while True:
        page = door.call(acme.admin, "GET", "/gates", limit=2, **cursor).json()
        seen += [gate["key"] for gate in page["gates"]]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}

    assert len(seen) == len(set(seen))
    assert [key for key in seen if key.startswith(str(acme.id))] == [f"{acme.id}-{n}" for n in range(4)]


@pytest.mark.parametrize("act", ["open", "close"])
def test_a_shared_gate_is_moved_by_a_super_admin_only(door: Door, acme: TenantHouse, act: str) -> None:
    key = f"shared-{new_id()}"
    closed_gate(door, None, key)
    body = {"reason": "x", "shared": True, **({"for_s": 7200} if act == "close" else {})}

    refused = door.call(acme.admin, "POST", f"/gates/{key}/{act}", body)
    moved = door.call(door.super_admin.choosing(acme.id), "POST", f"/gates/{key}/{act}", body)

    assert (refused.status, refused.code) == (403, "not_allowed")
    assert moved.status == 200
    assert door.value("select state from gate where key = :k", k=key) == {"open": "open", "close": "closed"}[act]
    forged = "select move_shared_gate(:who, :k, null, 'x')"
    assert door.value(forged, who=acme.admin.subject, k=key) is False, "the database asks too"
    door.sql("delete from gate where key = :k", k=key)  # every tenant would see it


@pytest.mark.parametrize(
    "key", ["n\N{LATIN SMALL LETTER A WITH ACUTE}", "n\N{ARABIC-INDIC DIGIT ONE}", "a b", "a%20b", "a%0Ab"]
)
def test_a_gates_key_is_what_the_document_says(door: Door, acme: TenantHouse, key: str) -> None:
    answer = door.call(acme.admin, "POST", f"/gates/{key}/close", {"reason": "x", "for_s": 1})

    assert (answer.status, answer.code) == (422, "invalid")
    assert door.sql("select 1 from gate where tenant_id = :t", t=acme.id) == []


def test_another_tenants_gate_is_like_none(door: Door, acme: TenantHouse, globex: TenantHouse) -> None:
    closed_gate(door, globex, f"g-{globex.id}")

    theirs = door.call(acme.admin, "POST", f"/gates/g-{globex.id}/open", {"reason": "x"})
    unknown = door.call(acme.admin, "POST", f"/gates/g-{new_id()}/open", {"reason": "x"})

    assert (theirs.status, theirs.body) == (unknown.status, unknown.body) == (404, theirs.body)


@pytest.mark.parametrize("act", ["open", "close"])
def test_moving_a_gate_needs_a_reason(door: Door, acme: TenantHouse, act: str) -> None:
    assert door.call(acme.admin, "POST", f"/gates/api/{act}", {"reason": "", "for_s": 1}).status == 422


# Acting on many.


def act_on_all(door: Door, who: Any, action: str, **chosen: Any) -> tuple[int, int, dict[str, int], int]:
    """Preview, then apply until nothing is left: what was counted, done, refused, and the calls it took."""
    asked = {"action": action, "reason": "why not", "filter": chosen}
    preview = door.call(who, "POST", "/runs/bulk", {**asked, "mode": "preview"}).json()
    token, done, calls = preview["next"], 0, 0
    refused: dict[str, int] = {}
    while token is not None:
        told = door.call(who, "POST", "/runs/bulk", {**asked, "mode": "apply", "token": token}).json()
        assert told["left"] == preview["count"] - done - told["done"] - sum(refused.values())
        done, refused, calls, token = done + told["done"], {**refused, **told["refused"]}, calls + 1, told["next"]
    return preview["count"], done, refused, calls


@pytest.mark.parametrize("action", ["cancel", "pause", "resume", "retry"])
def test_applying_changes_what_the_preview_counted(
    door: Door, acme: TenantHouse, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    monkeypatch.setattr("shared.kernel.api.bulk.BATCH", 2)
    _open, paused, ended, canceled, succeeded = ([door.start(acme) for _ in range(3)] for _ in range(5))
    for run_id in paused:
        door.call(acme.admin, "POST", f"/runs/{run_id}/pause", {})
    for run_id in (*ended, *canceled):
        door.call(acme.admin, "POST", f"/runs/{run_id}/cancel", {})
    for run_id in (*ended, *succeeded):
        door.finish(run_id)
    lines = "select count(*) from audit where tenant_id = :t"
    before = door.value(lines, t=acme.id)

    count, done, refused, calls = act_on_all(door, acme.admin, action)

    assert (count, done, refused) == ({"cancel": 6, "pause": 3, "resume": 3, "retry": 3}[action], count, {})
    assert calls >= count // 2
    assert door.value(lines, t=acme.id) == before + count
    assert act_on_all(door, acme.admin, action)[:2] == (0, 0), "what was done is not done again"


def test_acting_on_many_keeps_to_the_filter_and_to_ones_own(door: Door, acme: TenantHouse) -> None:
    mine, others = door.start(acme), door.start(acme, acme.other)
    door.sql("update run set label = 'l' where id = any(:ids)", ids=[mine, others])
    unlabelled = door.start(acme)

    assert act_on_all(door, acme.member, "cancel", label="l")[:2] == (1, 1)
    asked = "select id from run where tenant_id = :t and cancel_requested_at is not null"
    assert [row["id"] for row in door.sql(asked, t=acme.id)] == [mine]
    assert unlabelled != mine


def test_runs_that_began_after_the_preview_are_left_alone(door: Door, acme: TenantHouse) -> None:
    door.start(acme)
    asked = {"action": "cancel", "reason": "x", "filter": {}}
    preview = door.call(acme.admin, "POST", "/runs/bulk", {**asked, "mode": "preview"}).json()
    late = door.start(acme)

    told = door.call(acme.admin, "POST", "/runs/bulk", {**asked, "mode": "apply", "token": preview["next"]}).json()

    assert told["done"] == 1
    assert door.value("select cancel_requested_at is null from run where id = :id", id=late)


def test_what_ended_meanwhile_is_not_counted_as_done(door: Door, acme: TenantHouse) -> None:
    first, second = door.start(acme), door.start(acme)
    asked = {"action": "cancel", "reason": "x", "filter": {}}
    preview = door.call(acme.admin, "POST", "/runs/bulk", {**asked, "mode": "preview"}).json()
    door.finish(first)

    told = door.call(acme.admin, "POST", "/runs/bulk", {**asked, "mode": "apply", "token": preview["next"]}).json()

    assert (preview["count"], told["done"]) == (2, 1)
    assert door.value("select cancel_requested_at is not null from run where id = :id", id=second)


def test_nothing_is_applied_that_nobody_counted(door: Door, acme: TenantHouse) -> None:
    door.start(acme)
    asked = {"action": "cancel", "reason": "x", "filter": {}}
    token = door.call(acme.admin, "POST", "/runs/bulk", {**asked, "mode": "preview"}).json()["next"]
    apply = {**asked, "mode": "apply", "token": token}

    wrong = {
        "no token": ({**apply, "token": None}, acme.admin),
        "another action": ({**apply, "action": "pause"}, acme.admin),
        "another filter": ({**apply, "filter": {"kind": "tally"}}, acme.admin),
        "another person": (apply, acme.member),
        "another admin": (apply, acme.machines[Role.ADMIN]),
        "a changed token": ({**apply, "token": "A" + token[1:]}, acme.admin),
        "no reason": ({**apply, "reason": ""}, acme.admin),
    }
    codes = {name: door.call(who, "POST", "/runs/bulk", body).code for name, (body, who) in wrong.items()}

    assert codes == {
        "no token": "preview_first", "another action": "bad_cursor", "another filter": "bad_cursor",
        "another person": "bad_cursor", "another admin": "bad_cursor", "a changed token": "bad_cursor", "no reason": "invalid",
    }  # fmt: skip
    assert (
        door.value("select count(*) from run where tenant_id = :t and cancel_requested_at is not null", t=acme.id) == 0
    )


def test_too_many_runs_at_once_are_refused(door: Door, acme: TenantHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.kernel.api.sql.MOST_BULK", 1)
    door.start(acme)
    door.start(acme)

    answer = door.call(acme.admin, "POST", "/runs/bulk", {"action": "cancel", "mode": "preview", "reason": "x"})

    assert (answer.status, answer.code) == (422, "too_many")


def test_a_partition_is_read_again_from_its_first_page_after_a_look_at_what_that_means(
    door: Door, acme: TenantHouse
) -> None:
    run_id = door.start(acme)
    door.sql(
        """update run set kind = 'page_ingest', params = '{"source": "nivoda", "low": 0, "high": 9}' where id = :id""",
        id=run_id,
    )
    read = {"low": 0, "high": 9, "limit": 30, "crawl": 1, "offset": 84, "pages": 3, "tail": ["a"], "began": 1}
    door.sql(
        "update lane set kind = 'page_ingest', key = 'part:0000000000-0000000009', cursor = cast(:c as jsonb), seq = 3 where run_id = :id",
        id=run_id, c=json.dumps(read),
    )  # fmt: skip
    lane_id = door.value("select id from lane where run_id = :id", id=run_id)
    path = f"/runs/{run_id}/lanes/{lane_id}/restart"

    looked = door.call(acme.member, "POST", path, {"from_start": True, "dry_run": True}).json()
    assert looked == {"restarted": False, "again": "3 pages with 84 rows"}
    assert door.value("select cursor ->> 'offset' from lane where id = :id", id=lane_id) == "84"

    done = door.call(acme.member, "POST", path, {"from_start": True, "reason": "wrong prices"}).json()
    assert done == {"restarted": True, "again": "3 pages with 84 rows"}
    (lane,) = door.sql("select cursor, epoch from lane where id = :id", id=lane_id)
    assert (lane["cursor"]["offset"], lane["cursor"]["high"], lane["epoch"]) == (0, 9, 2)
    assert (acme.member.actor, "run.lane_restarted", f"run:{run_id}") in door.audited(acme)


def test_a_partition_that_has_ended_is_not_read_again_behind_those_who_count_on_it(
    door: Door, acme: TenantHouse
) -> None:
    """The catalogue may be taking its rows over: without those that are not read again yet."""
    run_id = door.start(acme)
    cursor = '{"low": 0, "high": 9, "limit": 30, "offset": 84, "pages": 3, "tail": []}'
    door.sql(
        """update lane set kind = 'page_ingest', key = 'part:0000000000-0000000009', cursor = cast(:c as jsonb), status = 'done'
           where run_id = :id""",
        id=run_id, c=cursor,
    )  # fmt: skip
    (before,) = door.sql("select id, epoch, cursor from lane where run_id = :id", id=run_id)

    refused = door.call(acme.member, "POST", f"/runs/{run_id}/lanes/{before['id']}/restart", {"from_start": True})

    assert (refused.status, refused.code) == (409, "lane_ended")
    assert door.sql("select id, epoch, cursor from lane where run_id = :id", id=run_id) == [before]


@pytest.mark.parametrize("what", ["plan", "part:0000000000-0000000009"])
def test_a_lane_without_a_beginning_to_go_back_to_is_not_restarted_from_there(
    door: Door, acme: TenantHouse, what: str
) -> None:
    """A plan has made its partitions; one that was cut has halves, which do its work."""
    run_id = door.start(acme)
    door.sql(
        "update lane set kind = 'page_ingest', key = :key, cursor = '{\"split\": true}' where run_id = :id",
        id=run_id,
        key=what,
    )
    lane_id = door.value("select id from lane where run_id = :id", id=run_id)

    refused = door.call(acme.member, "POST", f"/runs/{run_id}/lanes/{lane_id}/restart", {"from_start": True})

    assert (refused.status, refused.code) == (422, "no_start")
