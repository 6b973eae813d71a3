"""Guards failures by cause, their mute, the search for a run by a part of its name, and what wakes a whole run."""

from __future__ import annotations

import importlib
from typing import Any
from uuid import UUID

import pytest

from shared.kernel import db
from shared.kernel.api import sql
from shared.kernel.decide import with_cause
from shared.kernel.model import Ending, Lane, LaneStatus, Problem, RunStatus
from tests.support.door import Door, TenantHouse, Who

TIMEOUT = Problem("timeout", "no answer within 20 s")
REFUSED = Problem("bad_credentials", "The account is refused.")


def fail(door: Door, run_id: UUID, cause: Problem, *, age: str = "1 minute", connection: str | None = None) -> None:
    """As a kind whose run fails of one of its lanes."""
    told = Problem("lanes_failed", "1 lane failed: l0", {**cause.to_json(), "lane": "l0", "lanes": 1})
    door.sql(
        """update run set status = 'failed', finished_at = now() - cast(:age as interval), error = cast(:e as jsonb),
               params = params || jsonb_strip_nulls(jsonb_build_object('connection', cast(:c as text))) where id = :id""",
        id=run_id, age=age, e=db.jsonb(told.to_json()), c=connection,
    )  # fmt: skip
    door.sql("update lane set status = 'failed' where run_id = :id", id=run_id)


def asked(door: Door, who: Who, path: str, **query: Any) -> Any:
    answer = door.call(who, "GET", path, **query)
    assert answer.status == 200, answer.body
    return answer.json()


def found(door: Door, who: Who, **query: Any) -> set[str]:
    return {run["id"] for run in asked(door, who, "/runs", **query)["runs"]}


def lane(key: str, problem: Problem | None, *, holds_run: bool = True) -> Lane:
    status = LaneStatus.DONE if problem is None else LaneStatus.FAILED
    return Lane(
        id=UUID(int=1), key=key, status=status, holds_run=holds_run, epoch=1, cursor={},
        last_error=None if problem is None else problem.to_json(),
    )  # fmt: skip


# What a run failed of.


def test_a_run_names_what_most_of_its_lanes_failed_of() -> None:
    failed = Ending(RunStatus.FAILED, "failed", Problem("lanes_failed", "3 of 5 failed"))
    lanes = [lane("a", REFUSED), lane("b", TIMEOUT), lane("c", Problem("timeout", "no answer within 45 s")),
             lane("d", None), lane("e", REFUSED, holds_run=False)]  # fmt: skip

    ending = with_cause(failed, lanes)

    assert isinstance(ending, Ending)
    assert ending.problem is not None
    assert ending.problem.to_json()["cause"] == {**TIMEOUT.to_json(), "lane": "b", "lanes": 2}
    assert ending.problem.message == "3 of 5 failed"


@pytest.mark.parametrize("status", [RunStatus.SUCCEEDED, RunStatus.CANCELED])
def test_a_run_that_did_not_fail_has_no_cause(status: Any) -> None:
    ending = Ending(status, "partial", None)

    assert with_cause(ending, [lane("a", TIMEOUT)]) is ending


def test_what_failed_before_causes_were_kept_has_one(door: Door, acme: TenantHouse) -> None:
    first, second = door.start(acme), door.start(acme)
    fail(door, first, TIMEOUT)
    door.sql("update run set cause = null where id = :id", id=first)
    fill = importlib.import_module("infra.migrations.versions.0200_causes_of_old_failures").FILL

    door.sql(fill)

    causes = [door.value("select cause from run where id = :id", id=run_id) for run_id in (first, second)]
    assert causes == [TIMEOUT.to_json()["fingerprint"], None]


def test_failures_are_grouped_by_what_the_lane_failed_of(door: Door, acme: TenantHouse) -> None:
    first, second, other, long_ago = (door.start(acme) for _ in range(4))
    fail(door, first, TIMEOUT, age="7 hours")
    fail(door, second, Problem("timeout", "no answer within 45 s"))
    fail(door, other, REFUSED, connection="c-7")
    fail(door, long_ago, TIMEOUT, age="8 days")

    told = asked(door, acme.viewer, "/failures")

    assert (told["count"], told["more"]) == (3, False)
    by_code = {each["code"]: each for each in told["causes"]}
    timeouts = by_code["timeout"]
    assert (timeouts["count"], timeouts["run_id"], timeouts["lane_key"], timeouts["fix"]) == (
        2,
        str(second),
        "l0",
        None,
    )
    assert timeouts["message"] == "no answer within 45 s"
    assert (sum(timeouts["counts"]), timeouts["counts"][-2:]) == (2, [1, 1])
    assert timeouts["first_at"] < timeouts["last_at"]
    assert timeouts["sample"]["params"]["lanes"] == 1
    assert timeouts["sample"]["step"] is not None
    assert by_code["bad_credentials"]["fix"] == {"action": "fix_connection", "target": "c-7"}
    now = asked(door, acme.viewer, "/now")["failing"]
    assert {(each["code"], each["count"]) for each in now["groups"]} == {("timeout", 2), ("bad_credentials", 1)}
    run = asked(door, acme.viewer, f"/runs/{other}")
    assert (run["fix"], run["fingerprint"]) == (
        {"action": "fix_connection", "target": "c-7"},
        REFUSED.to_json()["fingerprint"],
    )
    assert found(door, acme.viewer, fingerprint=timeouts["fingerprint"]) == {str(first), str(second), str(long_ago)}


def test_a_member_sees_the_causes_of_their_own_runs(door: Door, acme: TenantHouse) -> None:
    mine, others = door.start(acme), door.start(acme, acme.other)
    fail(door, mine, TIMEOUT)
    fail(door, others, REFUSED)

    assert [each["code"] for each in asked(door, acme.member, "/failures")["causes"]] == ["timeout"]


def test_what_is_muted_is_no_alarm_and_still_listed_until_it_is_unmuted(door: Door, acme: TenantHouse) -> None:
    fail(door, door.start(acme), TIMEOUT)
    cause = {"kind": "tally", "fingerprint": TIMEOUT.to_json()["fingerprint"]}

    assert door.call(acme.admin, "POST", "/failures/mute", {**cause, "reason": "known", "days": 3}).status == 200

    assert asked(door, acme.viewer, "/now")["failing"] == {"count": 0, "more": False, "groups": []}
    (listed,) = asked(door, acme.viewer, "/failures")["causes"]
    assert (listed["muted"]["reason"], listed["muted"]["by"]) == ("known", acme.admin.actor)
    door.sql("update failure_mute set until = now() where tenant_id = :t", t=acme.id)
    assert asked(door, acme.viewer, "/now")["failing"]["count"] == 1, "a mute ends by itself"
    assert door.call(acme.admin, "POST", "/failures/mute", {**cause, "reason": "known"}).status == 200
    assert door.call(acme.admin, "POST", "/failures/unmute", {**cause, "reason": "fixed"}).status == 200
    assert asked(door, acme.viewer, "/now")["failing"]["count"] == 1
    target = f"failure:tally/{cause['fingerprint']}"
    assert [line[1:] for line in door.audited(acme) if line[1].startswith("failure.")] == [
        ("failure.mute", target), ("failure.mute", target), ("failure.unmute", target),
    ]  # fmt: skip


def test_only_so_many_causes_are_muted(door: Door, acme: TenantHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "MOST_MUTED", 1)
    mute = {"kind": "tally", "reason": "x"}

    answers = [door.call(acme.admin, "POST", "/failures/mute", {**mute, "fingerprint": each}) for each in "aba"]

    assert [answer.status for answer in answers] == [200, 429, 200]  # again for the same one adds nothing


# A trial before the rest.


def test_a_trial_changes_a_few_and_the_rest_follows_by_the_same_token(door: Door, acme: TenantHouse) -> None:
    runs = [door.start(acme) for _ in range(4)]
    for run_id in runs:
        fail(door, run_id, TIMEOUT)
    chosen = {"kind": "tally", "fingerprint": TIMEOUT.to_json()["fingerprint"]}
    bulk = {"action": "retry", "reason": "the upstream is back", "filter": chosen}
    preview = door.call(acme.admin, "POST", "/runs/bulk", {**bulk, "mode": "preview"}).json()

    tried = door.call(
        acme.admin, "POST", "/runs/bulk", {**bulk, "mode": "apply", "token": preview["next"], "most": 1}
    ).json()
    rest = door.call(acme.admin, "POST", "/runs/bulk", {**bulk, "mode": "apply", "token": tried["next"]}).json()

    assert preview["count"] == 4
    assert (tried["done"], tried["runs"], tried["left"]) == (1, [str(runs[-1])], 3)
    assert (rest["done"], rest["left"], rest["next"]) == (3, 0, None)
    assert found(door, acme.admin, status="running") == {str(each) for each in runs}


# To find a run.


def test_a_run_is_found_by_a_part_of_its_label_or_id(
    door: Door, acme: TenantHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    nightly, percent, plain = (door.start(acme) for _ in range(3))
    door.sql("update run set label = 'Nightly, natural stones' where id = :id", id=nightly)
    door.sql("update run set label = '100%_done' where id = :id", id=percent)

    assert found(door, acme.viewer, q="NATURAL st") == {str(nightly)}
    assert found(door, acme.viewer, q="0%_d") == {str(percent)}
    assert found(door, acme.viewer, q="%") == {str(percent)}, "what people write is no pattern"
    assert found(door, acme.viewer, q=str(plain)) == found(door, acme.viewer, q=str(plain)[-8:]) == {str(plain)}
    assert found(door, acme.viewer, q="no such thing") == set()
    assert found(door, acme.viewer, q="stones", status="failed") == set()
    monkeypatch.setattr(sql, "SIFTED", 1)
    sql.list_runs.cache_clear()
    try:
        seen: list[str] = []
        page = asked(door, acme.viewer, "/runs", q="Nightly")
        while True:
            seen += [run["id"] for run in page["runs"]]
            if page["next"] is None:
                break
            page = asked(door, acme.viewer, "/runs", q="Nightly", cursor=page["next"])
        assert seen == [str(nightly)], "however many were looked through in between"
    finally:
        sql.list_runs.cache_clear()


def test_runs_are_listed_by_what_they_are_doing(door: Door, acme: TenantHouse) -> None:
    queued, retrying, paused, waiting = (door.start(acme) for _ in range(4))
    error = db.jsonb(TIMEOUT.to_json())
    door.sql("update run set status = 'running' where id = :id", id=retrying)
    door.sql(
        f"update lane set attempts = 1, last_error = '{error}', next_due_at = now() + interval '1 hour' where run_id = :id",
        id=retrying,
    )
    door.sql("update lane set next_due_at = now() + interval '1 hour' where run_id = :id", id=waiting)
    assert door.call(acme.member, "POST", f"/runs/{paused}/pause", {}).status == 200

    states = {
        each: found(door, acme.viewer, state=each) for each in ("queued", "retrying", "paused", "waiting", "failed")
    }

    assert states == {
        "queued": {str(queued)}, "retrying": {str(retrying)}, "paused": {str(paused)}, "waiting": {str(waiting)}, "failed": set(),
    }  # fmt: skip
    assert asked(door, acme.viewer, "/now")["states"] == {"queued": 1, "retrying": 1, "paused": 1, "waiting": 1}


def test_kinds_are_used_when_there_are_runs_of_them(door: Door, acme: TenantHouse, globex: TenantHouse) -> None:
    door.start(acme, acme.other)

    def used(who: Who) -> set[str]:
        return {each["name"] for each in asked(door, who, "/kinds")["kinds"] if each["used"]}

    assert (used(acme.viewer), used(acme.member), used(acme.other), used(globex.admin)) == (
        {"tally"},
        set(),
        {"tally"},
        set(),
    )


# To wake a run.


def test_waking_a_run_makes_its_waiting_lanes_due_once(door: Door, acme: TenantHouse) -> None:
    run_id = door.start(acme, lanes=3)
    door.sql("update lane set sent_at = now()")
    door.sql("update lane set next_due_at = now() + interval '1 hour' where run_id = :id and key <> 'l0'", id=run_id)

    woken = [
        door.call(acme.member, "POST", f"/runs/{run_id}/wake", {"reason": "now"}).json()["lanes"] for _ in range(2)
    ]

    assert woken == [2, 0]
    assert door.value("select count(*) from lane where run_id = :id and next_due_at > now()", id=run_id) == 0
    lines = door.sql("select data from history where run_id = :id and type = 'woken'", id=run_id)
    assert [line["data"] for line in lines] == [{"lanes": 2, "reason": "now", "by": acme.member.actor}]


@pytest.mark.parametrize(("before", "code"), [("pause", "paused"), ("cancel", "being_canceled")])
def test_what_is_held_by_somebody_is_not_woken(door: Door, acme: TenantHouse, before: str, code: str) -> None:
    run_id = door.start(acme)
    assert door.call(acme.member, "POST", f"/runs/{run_id}/{before}", {}).status == 200

    answer = door.call(acme.member, "POST", f"/runs/{run_id}/wake", {})

    assert (answer.status, answer.code) == (409, code)


def test_only_what_failed_is_woken_in_bulk(door: Door, acme: TenantHouse) -> None:
    retrying, waiting = door.start(acme), door.start(acme)
    door.sql("update run set status = 'running' where tenant_id = :t", t=acme.id)
    door.sql("update lane set next_due_at = now() + interval '1 hour' where tenant_id = :t", t=acme.id)
    door.sql("update lane set attempts = 1 where run_id = :id", id=retrying)
    bulk = {"action": "wake", "reason": "x", "filter": {}}
    preview = door.call(acme.admin, "POST", "/runs/bulk", {**bulk, "mode": "preview"}).json()

    done = door.call(acme.admin, "POST", "/runs/bulk", {**bulk, "mode": "apply", "token": preview["next"]}).json()

    assert (preview["count"], done["runs"]) == (1, [str(retrying)])
    assert door.value("select next_due_at > now() from lane where run_id = :id", id=waiting)
