"""Runs against a Marketing Cloud that means harm: each ends with the truth, or says why it cannot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from shared.kernel.errors import Transient
from shared.kernel.run import retry_run
from shared.kernel.tokens import Token
from shared.query_run.adapters.mce import Mce
from shared.query_run.model import Column, Phase, QueryParams, Validation
from shared.query_run.ports import QueryMetric
from tests.support.queries import QueryRig, sql
from tests.support.rig import TENANT


def ends_well(queries: QueryRig, run_id: Any, rows: int) -> None:
    assert queries.finish(run_id) == "succeeded ready", queries.run(run_id)["error"]
    assert queries.shown(run_id)["row_count"] == rows
    assert queries.standin.wrong == []


@pytest.mark.full
def test_a_token_that_dies_after_three_uses(queries: QueryRig) -> None:
    queries.standin.token_uses = 3
    queries.standin.misbehave("early_completed")
    run_id = queries.start(sql(seconds=60, rows=4))

    ends_well(queries, run_id, 4)
    assert len(queries.standin.activities) == 1
    queries.pass_time(90_000)
    assert queries.standin.left() == []


def test_a_throttle_between_two_questions_repeats_neither(queries: QueryRig) -> None:
    """The row probe was answered, the question after it was not: the probe is not made again for that."""
    queries.standin.misbehave("early_completed")
    queries.standin.misbehave("throttle", on=["isrunning"], every=2, retry_after="3")
    run_id = queries.start(sql(seconds=150, rows=0))

    ends_well(queries, run_id, 0)
    assert queries.standin.struck["throttle"] >= 3
    target = queries.cursor(run_id)["target_key"]
    (activity,) = queries.standin.activities
    probes = [each.at for each in queries.standin.asked if (each.what, each.key) == ("rowset", target)]
    while_it_ran = [at for at in probes if at < activity.ends_at]
    assert min(after - before for before, after in pairwise(while_it_ran)) >= 15


@pytest.mark.full
@pytest.mark.parametrize("fault", ["throttle", "blocked"])
def test_a_throttle_at_the_first_read_keeps_what_the_poll_found(queries: QueryRig, fault: str) -> None:
    queries.standin.misbehave(fault, on=["rowset"], budget=2, retry_after="1")
    run_id = queries.start(sql(seconds=1, rows=4))

    ends_well(queries, run_id, 4)
    query = queries.cursor(run_id)["query_key"]
    assert queries.standin.questions(query)["status"] == queries.cursor(run_id)["poll_count"]


@pytest.mark.full
def test_an_account_that_is_to_wait_for_a_day_stretches_no_query(queries: QueryRig) -> None:
    """Whoever was throttled and whoever waits behind it ends with its own 29 minutes; the account waits on."""
    runs = [queries.start(sql(seconds=1_500, rows=4)) for _ in range(3)]
    queries.pass_time(60)
    queries.standin.misbehave("throttle", retry_after="86400")
    queries.pass_time(45 * 60)

    assert [queries.run(run_id)["outcome"] for run_id in runs] == ["timed_out"] * 3
    assert queries.standin.struck["throttle"] == 1
    (gate,) = queries.rows("select state, until - updated_at >= interval '5 hours' as long from gate")
    assert gate == {"state": "closed", "long": True}, "a query that gives up has not asked, so it opens nothing"


def test_a_retried_query_waits_for_its_account_and_has_time_of_its_own(queries: QueryRig) -> None:
    """What its first epoch had spent is not counted again while the account is told to wait."""
    run_id = queries.start(sql(seconds=1_500, rows=4))
    queries.pass_time(60)
    queries.standin.misbehave("throttle", retry_after="7200")
    queries.pass_time(45 * 60)
    assert queries.run(run_id)["outcome"] == "timed_out"

    retry_run(queries.ports, queries.kind, TENANT, run_id)
    queries.pass_time(60)

    assert queries.run(run_id)["status"] == "running"
    assert queries.lane(run_id, "query")["waits_for"].startswith("gate:")


def test_what_is_there_already_is_found_in_any_language(queries: QueryRig) -> None:
    queries.standin.taken_says = "Ein Objekt mit diesem Schlüssel ist schon vorhanden ({})."
    queries.standin.misbehave("duplicate_key", budget=2)
    run_id = queries.start(sql(seconds=5, rows=2))

    ends_well(queries, run_id, 2)
    assert queries.standin.struck["duplicate_key"] == 2


def test_what_is_gone_is_gone_by_any_code(queries: QueryRig) -> None:
    queries.standin.missing_code = "12345"
    run_id = queries.start(sql(seconds=5, error="no"))
    assert queries.finish(run_id) == "failed failed"
    queries.standin.targets.clear()
    queries.standin.definitions.clear()
    queries.pass_time(120)

    assert queries.lane(run_id, "clean/1")["status"] == "done"


def test_a_quick_query_without_rows_whose_start_was_lost_is_started_again_and_that_is_told(queries: QueryRig) -> None:
    """It left no trace: nobody can know that it ran."""
    queries.standin.misbehave("reset", on=["perform"], budget=1)
    run_id = queries.start(sql(seconds=1, rows=0))

    ends_well(queries, run_id, 0)
    assert len(queries.standin.activities) == 2
    assert queries.cursor(run_id)["starts"] == 2
    assert queries.counted[QueryMetric.STARTED_AGAIN] == 1


def test_a_definition_that_somebody_removes_does_not_end_the_run(queries: QueryRig) -> None:
    run_id = queries.start(sql(seconds=100, rows=3))
    while queries.cursor(run_id)["phase"] != Phase.POLL:
        queries.pass_time(0.5)
    queries.pass_time(20)
    queries.standin.definitions.clear()

    ends_well(queries, run_id, 3)


@pytest.mark.parametrize(("seconds", "outcome"), [(8, "succeeded ready"), (300, "failed not_readable")])
def test_a_status_that_is_complete_too_early_never_makes_a_part_the_result(
    queries: QueryRig, seconds: int, outcome: str
) -> None:
    """Two reads differ while rows arrive. There are six of them: then it is said that it cannot be read."""
    queries.standin.says_complete_early = True
    run_id = queries.start(sql(seconds=seconds, rows=6_000))

    assert queries.finish(run_id) == outcome
    assert queries.shown(run_id)["row_count"] in (None, 6_000)
    assert queries.cursor(run_id)["rowset_ready_attempts"] <= 6


@pytest.mark.full
def test_the_retention_in_marketing_cloud_is_longer_than_results_are_kept(queries: QueryRig) -> None:
    for kept_s, days in ((600, 1), (86_400, 2), (5 * 86_400, 6)):
        queries.configure(results_kept_s=kept_s)
        run_id = queries.start(sql(seconds=1, rows=1))
        ends_well(queries, run_id, 1)
        assert queries.standin.targets[queries.cursor(run_id)["target_key"]].kept_days == days


@pytest.mark.full
@pytest.mark.parametrize("fault", ["slow", "drip"])
def test_an_answer_that_does_not_end_costs_a_poll_and_no_more(queries: QueryRig, fault: str) -> None:
    queries.patience_s = 3.0
    run_id = queries.start(sql(seconds=20, rows=2))
    while queries.cursor(run_id)["phase"] != Phase.POLL:
        queries.pass_time(0.5)
    queries.standin.misbehave(fault, on=["status"], budget=1, seconds=5.0)

    ends_well(queries, run_id, 2)
    assert max(row["ms"] for row in queries.rows("select ms from step")) < 10_000


def until(queries: QueryRig, seconds: int, seen: Callable[[], object]) -> None:
    end = queries.now + seconds
    while not seen():
        assert queries.now < end
        queries.pass_time(1)


def test_a_confirmation_that_nobody_answers_for_two_minutes_costs_no_run(queries: QueryRig) -> None:
    """It was heard once that the query does not run, and then the gate is away. Polls go on at their own pace until it is back."""
    queries.standin.misbehave("early_completed")
    run_id = queries.start(sql(seconds=60, rows=4))
    until(queries, 120, lambda: queries.cursor(run_id).get("not_running_confirmations"))
    queries.standin.misbehave("server_error", on=["isrunning"])
    before = queries.cursor(run_id)["poll_count"]
    queries.pass_time(120)
    assert queries.cursor(run_id)["poll_count"] - before <= 10
    queries.standin.behave("server_error")

    ends_well(queries, run_id, 4)


@pytest.mark.full
def test_a_watch_that_nobody_answers_looks_no_more_often(queries: QueryRig) -> None:
    queries.standin.misbehave("early_completed")
    run_id = queries.start(sql(seconds=2_000, rows=4))
    assert queries.finish(run_id) == "failed timed_out"
    until(queries, 3_600, lambda: queries.lane(run_id, "clean/1")["cursor"]["query"].get("not_running_confirmations"))
    queries.standin.misbehave("server_error", on=["isrunning"])
    looks = queries.lane(run_id, "clean/1")["cursor"]["looks"]
    queries.pass_time(3_600)
    assert queries.lane(run_id, "clean/1")["cursor"]["looks"] - looks <= 6
    queries.standin.behave("server_error")
    queries.pass_time(1_800)

    assert (queries.run(run_id)["status"], queries.shown(run_id)["row_count"]) == ("succeeded", 4)


def test_the_columns_that_are_kept_are_those_that_were_made(queries: QueryRig) -> None:
    """The answer to the creation is lost, and the next validation says other names: rows would be shown as nulls under them."""
    said = iter([["id", "name"], ["one", "two"], ["one", "two"]])

    class Changing(Mce):
        def validate(self, token: Token, sql: str) -> Validation:
            return Validation(valid=True, columns=[Column(name=name) for name in next(said)])

        def create_target(self, token: Token, key: str, columns: Sequence[Column], kept_days: int = 1) -> str:
            super().create_target(token, key, columns, kept_days)
            raise Transient("The answer was lost.")

    def remote(_: UUID, params: QueryParams, time_left_s: Callable[[], float]) -> Mce:
        there = queries.standin
        return Changing(queries.base_url, there.client_id, there.client_secret, params.mid, time_left_s=time_left_s)

    queries.use(remote)
    run_id = queries.start(sql(seconds=5, rows=2))

    ends_well(queries, run_id, 2)
    assert [each["name"] for each in queries.shown(run_id)["columns"]] == ["id", "name"]
