"""One test per flaw of the remote query that the seed describes (0a-0o): each fails when the flaw's rule is put back.

Then the seed's own list of what is to be tested, and its table of errors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from shared.kernel import run as runs
from shared.kernel.errors import Permanent, Transient
from shared.kernel.metrics import Metric
from shared.kernel.points import Point, watch_points
from shared.kernel.sweep import sweep
from shared.kernel.tokens import Token
from shared.query_run.adapters.mce import Mce
from shared.query_run.model import Phase, QueryParams
from shared.query_run.ports import QueryMetric
from shared.query_run.steps import LATE, QueryPoint
from tests.support.queries import OTHER_TENANT, QueryRig, sql
from tests.support.rig import TENANT

MID = "7281698"


class Killed(BaseException):
    """The process is gone: no code of ours runs after this."""


@contextmanager
def killed_at(wanted: str, when: Callable[[], bool] = lambda: True) -> Iterator[None]:
    def hook(point: str) -> None:
        if point is wanted and when():
            watch_points(None)
            raise Killed

    watch_points(hook)
    try:
        with pytest.raises(Killed):
            yield
    finally:
        watch_points(None)


def keys(rig: QueryRig, run_id: UUID) -> tuple[str, str]:
    cursor = rig.cursor(run_id)
    return cursor["query_key"], cursor["target_key"]


def questions(rig: QueryRig, run_id: UUID) -> Counter[str]:
    query, target = keys(rig, run_id)
    return rig.standin.questions(query) + rig.standin.questions(target)


def until(rig: QueryRig, run_id: UUID, phase: str, within_s: float = 60) -> None:
    end = rig.now + within_s
    while rig.now < end and rig.cursor(run_id)["phase"] != phase:
        rig.pass_time(0.2)
    assert rig.cursor(run_id)["phase"] == phase, rig.run(run_id)["error"]


def terminal_lines(rig: QueryRig, run_id: UUID) -> list[tuple[int, str]]:
    lines = rig.rows(
        "select epoch, type from history where run_id = :id and type in ('succeeded', 'failed', 'canceled') order by n",
        id=run_id,
    )
    return [(line["epoch"], line["type"]) for line in lines]


def ends_well(rig: QueryRig, run_id: UUID, rows: int, epoch: int = 1) -> None:
    """Ready with exactly the rows that there are, and nobody was mistreated."""
    assert rig.finish(run_id) == "succeeded ready", rig.run(run_id)["error"]
    assert rig.shown(run_id)["row_count"] == rows
    assert terminal_lines(rig, run_id)[-1] == (epoch, "succeeded")
    assert rig.standin.wrong == []


# 0a


def test_0a_rows_that_are_there_are_not_the_result(queries: QueryRig) -> None:
    queries.standin.misbehave("stays_queued")
    run_id = queries.start(sql(seconds=90, rows=30))
    until(queries, run_id, Phase.POLL)

    queries.pass_time(60)
    shown = queries.shown(run_id)
    assert (shown["status"], shown["partial_available"]) == ("running", True)
    ends_well(queries, run_id, 30)


def test_0a_a_retried_run_does_not_find_the_rows_of_its_first_attempt(queries: QueryRig) -> None:
    run_id = queries.start(sql(seconds=10, rows=8, error="Out of space"))
    assert queries.finish(run_id) == "failed failed"
    first = keys(queries, run_id)
    queries.standin.misbehave("stays_queued")
    runs.retry_run(queries.ports, queries.kind, TENANT, run_id)
    queries.pass_time(3)

    assert (queries.cursor(run_id)["phase"], queries.cursor(run_id)["epoch"]) == (Phase.POLL, 2)
    assert not set(keys(queries, run_id)) & set(first)
    assert not queries.cursor(run_id)["partial_available"]


def test_0a_the_fast_path_is_there_for_who_asks_for_it(queries: QueryRig) -> None:
    queries.standin.misbehave("stays_queued")
    queries.configure(fast_path=True)
    run_id = queries.start(sql(seconds=90, rows=30))

    assert queries.finish(run_id, 60) == "succeeded ready"
    assert queries.counted[QueryMetric.FAST_PATH] == 1


# 0b


@pytest.mark.parametrize("fault", ["odd_running", "text_running", "html", "server_error"])
def test_0b_an_answer_that_says_nothing_is_no_confirmation(queries: QueryRig, fault: str) -> None:
    queries.standin.misbehave("early_completed")
    queries.standin.misbehave(fault, on=["isrunning"])
    run_id = queries.start(sql(seconds=200, rows=0))
    until(queries, run_id, Phase.POLL)

    queries.pass_time(150)
    assert queries.standin.struck[fault] >= 4
    assert queries.run(run_id)["status"] == "running"
    queries.standin.behave(fault)
    ends_well(queries, run_id, 0)


# 0c


def test_0c_a_start_whose_answer_was_lost_is_adopted(queries: QueryRig) -> None:
    queries.standin.misbehave("reset", on=["perform"], budget=1)
    run_id = queries.start(sql(seconds=120, rows=5))

    ends_well(queries, run_id, 5)
    assert len(queries.standin.activities) == 1
    assert queries.shown(run_id)["task_id"] is None, "the lost answer had it; the query is known by its definition"


def test_0c_a_query_that_was_over_before_anybody_looked_is_adopted_by_its_rows(queries: QueryRig) -> None:
    queries.standin.misbehave("reset", on=["perform"], budget=1)
    run_id = queries.start(sql(seconds=3, rows=5))

    ends_well(queries, run_id, 5)
    assert len(queries.standin.activities) == 1


def test_0c_a_start_that_was_never_heard_is_made_again_after_two_looks(queries: QueryRig) -> None:
    queries.standin.misbehave("server_error", on=["perform"], budget=1)
    run_id = queries.start(sql(seconds=3, rows=5))
    queries.pass_time(5)
    (unheard,) = [each.at for each in queries.standin.asked if each.what == "perform"]

    ends_well(queries, run_id, 5)
    (activity,) = queries.standin.activities
    assert activity.started_at - unheard >= 35, "looked for 20 s after the call, and 15 s after that"


@pytest.mark.parametrize("call", [1, 2, 3])
def test_0c_who_dies_between_a_call_and_its_note_makes_nothing_twice(queries: QueryRig, call: int) -> None:
    passed = iter(range(1, 10))
    run_id = queries.start(sql(seconds=120, rows=5))
    with killed_at(Point.REMOTE_CALLED, lambda: next(passed) == call):
        queries.pass_time(60)

    queries.pass_time(240)
    ends_well(queries, run_id, 5)
    assert len(queries.standin.activities) == 1
    assert (queries.standin.calls["create DataExtension"], queries.standin.calls["create QueryDefinition"]) == (1, 1)


# 0d


@pytest.mark.parametrize("point", [Point.STEP_CLAIMED, Point.REMOTE_INTENDED, Point.REMOTE_CONFIRMED])
def test_0d_a_run_that_has_no_task_yet_is_found(queries: QueryRig, point: str) -> None:
    run_id = queries.start(sql(seconds=5, rows=2))
    with killed_at(point):
        queries.pass_time(60)
    queries.purge()
    assert queries.cursor(run_id).get("task_id") is None

    ends_well(queries, run_id, 2)


# 0e


def test_0e_copies_of_a_message_make_no_second_poller(queries: QueryRig) -> None:
    queries.standin.misbehave("stays_queued")
    run_id = queries.start(sql(seconds=300, rows=0))
    until(queries, run_id, Phase.POLL)
    for _ in range(3):
        polled = queries.standin.calls["status"]
        message = next(message for _ in range(400) if (message := _next(queries)) is not None)
        for times in range(1, 6):
            queries.work(replace(message, receive_count=times))
        queries.tick()
        assert queries.standin.calls["status"] == polled + 1

    assert len(queries.waiting()) == 1


def _next(rig: QueryRig) -> Any:
    """The next message, as time passes: those that are delayed come through the forwarder."""
    message = rig.receive()
    if message is None:
        rig.now += 0.1
        if (delayed := rig.receive("baton-delay")) is not None:
            rig.work(delayed, "baton-delay")
    return message


# 0f


def test_0f_no_repair_turns_back_the_clock_or_the_counters(queries: QueryRig) -> None:
    queries.standin.misbehave("stays_queued")
    run_id = queries.start(sql(seconds=90_000, rows=0))
    until(queries, run_id, Phase.POLL)
    began = queries.now
    while queries.run(run_id)["status"] == "running" and queries.now < began + 3_600:
        queries.pass_time(200)
        queries.purge()

    run = queries.run(run_id)
    assert (run["status"], run["outcome"]) == ("failed", "timed_out")
    assert queries.now - began < 29 * 60 + 400
    assert queries.counted[Metric.REPAIR] >= 3


def test_0f_a_pause_does_not_stretch_the_remote_clock(queries: QueryRig) -> None:
    queries.configure(late_adoption=False)
    run_id = queries.start(sql(seconds=90_000, rows=0))
    until(queries, run_id, Phase.POLL)
    runs.pause_run(queries.ports, TENANT, run_id)
    queries.pass_time(3_600)
    assert queries.run(run_id)["status"] == "running"
    runs.resume_run(queries.ports, TENANT, run_id)

    assert queries.finish(run_id, 60) == "failed timed_out"


# 0g


def test_0g_a_cancel_while_a_query_is_prepared_keeps_it_from_starting(queries: QueryRig) -> None:
    run_id = queries.start(sql(seconds=10, rows=2))

    def cancel(operation: str, _: Any) -> None:
        if operation == "create QueryDefinition":
            queries.standin.before_each = None
            runs.cancel_run(queries.ports, queries.kind, TENANT, run_id)

    queries.standin.before_each = cancel
    assert queries.finish(run_id) == "canceled canceled"
    queries.pass_time(1_800)
    assert queries.standin.activities == []
    assert terminal_lines(queries, run_id) == [(1, "canceled")]
    assert queries.standin.left() == []


def test_0g_a_cancel_during_a_poll_is_not_lost(queries: QueryRig) -> None:
    run_id = queries.start(sql(seconds=600, rows=2))
    until(queries, run_id, Phase.POLL)

    def cancel(operation: str, _: Any) -> None:
        queries.standin.before_each = None
        runs.cancel_run(queries.ports, queries.kind, TENANT, run_id)

    queries.standin.before_each = cancel
    assert queries.finish(run_id, 60) == "canceled canceled"
    assert terminal_lines(queries, run_id) == [(1, "canceled")]


# 0h


def test_0h_a_canceled_query_is_cleaned_up_when_it_runs_no_more(queries: QueryRig) -> None:
    run_id = queries.start(sql(seconds=300, rows=4))
    until(queries, run_id, Phase.POLL)
    queries.pass_time(30)
    polls = queries.standin.calls["status"]
    runs.cancel_run(queries.ports, queries.kind, TENANT, run_id)

    queries.pass_time(60)
    assert queries.run(run_id)["status"] == "canceled"
    assert queries.standin.calls["status"] == polls, "polling stopped"
    assert len(queries.standin.left()) == 2, "it runs: nobody can stop it, and nothing is taken from under it"
    queries.pass_time(600)
    assert queries.standin.left() == []
    assert queries.standin.wrong == []


def test_0h_a_query_that_was_started_just_now_is_not_taken_for_one_that_has_ended(queries: QueryRig) -> None:
    run_id = queries.start(sql(seconds=100, rows=4))
    until(queries, run_id, Phase.POLL)
    queries.standin.misbehave("not_running", budget=1)
    runs.cancel_run(queries.ports, queries.kind, TENANT, run_id)

    queries.pass_time(15)
    assert queries.standin.struck["not_running"] == 1
    assert len(queries.standin.left()) == 2, "it has not been seen running yet, but it may begin"
    queries.pass_time(600)
    assert queries.standin.left() == []


def test_0h_what_a_call_without_an_answer_made_is_removed_by_its_own_run(queries: QueryRig) -> None:
    queries.standin.misbehave("reset", on=["create DataExtension"], budget=1)
    run_id = queries.start(sql(seconds=5))
    until(queries, run_id, Phase.TARGET)
    runs.cancel_run(queries.ports, queries.kind, TENANT, run_id)
    queries.pass_time(60)
    assert queries.run(run_id)["status"] == "canceled"
    assert len(queries.standin.left()) == 1, "nobody knows yet whether the call is over"

    queries.pass_time(20 * 60)
    assert queries.standin.left() == []


def test_0h_what_may_not_be_removed_now_is_removed_by_the_sweep(queries: QueryRig) -> None:
    refusals = iter([Permanent("In use.", "request_refused")])

    class Clinging(Mce):
        def delete_target(self, token: Token, key: str) -> None:
            for refusal in refusals:
                raise refusal
            super().delete_target(token, key)

    def clinging(tenant: UUID, params: QueryParams, time_left_s: Callable[[], float]) -> Mce:
        mce = queries.mce(tenant, params, time_left_s)
        mce.__class__ = Clinging
        return mce

    queries.use(clinging)
    run_id = queries.start(sql(seconds=5, error="no"))
    assert queries.finish(run_id) == "failed failed"
    queries.pass_time(300)
    assert queries.lane(run_id, "clean/1")["status"] == "failed"
    assert queries.standin.left() == [keys(queries, run_id)[1]]

    queries.now += 7_200
    sweep(queries.ports, queries.kinds)
    assert queries.standin.left() == []


@pytest.mark.parametrize("ending", ["ready", "failed", "timed_out"])
def test_0h_every_ending_is_cleaned_up_even_if_its_first_clean_up_dies(queries: QueryRig, ending: str) -> None:
    queries.configure(results_kept_s=600, max_duration_ms=120_000, late_adoption=False)
    plans: dict[str, dict[str, Any]] = {
        "ready": {"seconds": 5}, "failed": {"seconds": 5, "error": "no"}, "timed_out": {"seconds": 200},
    }  # fmt: skip
    run_id = queries.start(sql(rows=4, **plans[ending]))
    with killed_at(QueryPoint.DELETED):
        queries.pass_time(900)

    assert queries.run(run_id)["outcome"] == ending
    queries.pass_time(2_400)
    assert queries.standin.left() == []
    assert queries.standin.wrong == []


# 0i


def test_0i_a_sweep_removes_no_results_that_may_be_read(queries: QueryRig) -> None:
    run_id = queries.start(sql(seconds=5, rows=4))
    ends_well(queries, run_id, 4)
    queries.pass_time(60)
    with queries.owner.connect() as connection:  # its own clean-up has failed for good
        connection.execute(sa.text("update lane set status = 'failed' where key like 'clean/%'"))

    queries.now += 7_200
    sweep(queries.ports, queries.kinds)
    assert len(queries.standin.left()) == 1
    queries.now += 86_400
    sweep(queries.ports, queries.kinds)
    assert queries.standin.left() == []


def test_0i_a_sweep_touches_no_live_run(queries: QueryRig) -> None:
    run_id = queries.start(sql(seconds=1_200, rows=4))
    until(queries, run_id, Phase.POLL)
    sweep(queries.ports, queries.kinds)

    assert len(queries.standin.left()) == 2


def test_0i_the_clean_up_of_one_epoch_leaves_the_next_alone(queries: QueryRig) -> None:
    run_id = queries.start(sql(seconds=400, rows=4))
    until(queries, run_id, Phase.POLL)
    runs.cancel_run(queries.ports, queries.kind, TENANT, run_id)
    queries.pass_time(5)
    runs.retry_run(queries.ports, queries.kind, TENANT, run_id)

    ends_well(queries, run_id, 4, epoch=2)
    queries.pass_time(600)
    assert queries.standin.left() == [keys(queries, run_id)[1]], "the data of the second epoch, and nothing else"


# 0j


def test_0j_a_query_that_finishes_late_is_adopted_and_not_run_again(queries: QueryRig) -> None:
    run_id = queries.start(sql(seconds=45 * 60, rows=6))
    assert queries.finish(run_id) == "failed timed_out"
    assert queries.counted[QueryMetric.TIMED_OUT] == 1

    queries.pass_time(45 * 60)
    run = queries.run(run_id)
    assert (run["status"], run["outcome"], run["epoch"]) == ("succeeded", "ready", 2)
    assert queries.shown(run_id)["row_count"] == 6
    assert len(queries.standin.activities) == 1
    assert terminal_lines(queries, run_id) == [(1, "failed"), (2, "succeeded")]
    queries.pass_time(86_500)
    assert queries.standin.left() == []


def test_0j_a_query_that_never_finishes_is_watched_for_a_while_and_cleaned_up(queries: QueryRig) -> None:
    queries.configure(late_watch_s=3_600, drain_s=600)
    run_id = queries.start(sql(seconds=90_000, rows=6))
    assert queries.finish(run_id) == "failed timed_out"
    looks = queries.standin.calls["status"]

    queries.pass_time(3 * 3_600)
    assert queries.run(run_id)["status"] == "failed"
    assert 3 <= queries.standin.calls["status"] - looks <= 6
    assert queries.standin.left() == []


def test_0j_two_wrong_answers_to_a_watch_do_not_make_a_late_query_ready(queries: QueryRig) -> None:
    queries.configure(max_duration_ms=30_000, late_watch_interval_s=60)
    queries.standin.misbehave("early_completed")
    run_id = queries.start(sql(seconds=400, rows=0))
    assert queries.finish(run_id) == "failed timed_out"
    queries.standin.misbehave("not_running", budget=2)

    queries.pass_time(250)
    assert queries.standin.struck["not_running"] == 2
    assert queries.run(run_id)["epoch"] > 1, "it was taken for finished"
    assert queries.run(run_id)["status"] != "succeeded", "it runs"
    queries.pass_time(400)
    assert queries.run(run_id)["status"] == "succeeded"
    assert len(queries.standin.activities) == 1


def test_0j_a_late_result_is_adopted_by_setting(queries: QueryRig) -> None:
    queries.configure(max_duration_ms=30_000, late_watch_interval_s=60, late_adoption=False)
    run_id = queries.start(sql(seconds=60, rows=6))
    assert queries.finish(run_id) == "failed timed_out"
    queries.pass_time(300)
    assert (queries.run(run_id)["status"], queries.run(run_id)["epoch"]) == ("failed", 1)
    assert queries.standin.left() == []


def test_0j_a_retried_run_does_not_wait_for_its_late_query(queries: QueryRig) -> None:
    queries.configure(max_duration_ms=30_000, late_watch_interval_s=60)
    run_id = queries.start(sql(seconds=100, rows=6))
    assert queries.finish(run_id) == "failed timed_out"
    late = set(keys(queries, run_id))
    runs.retry_run(queries.ports, queries.kind, TENANT, run_id)

    queries.pass_time(600)
    assert (queries.run(run_id)["status"], queries.run(run_id)["epoch"]) == ("succeeded", 3), (
        "the second one came late too"
    )
    assert not late & set(queries.standin.left()), "nobody waits for the first one"
    assert queries.signals("query_run.ready") == [
        {"run_id": str(run_id), "epoch": 3, "status": "ready", "outcome": "ready", "rows": 6}
    ]


def test_0j_a_late_result_of_an_epoch_before_does_not_reopen_a_run(queries: QueryRig) -> None:
    """Timed out, found late, and before anybody heard that, retried and timed out again: the second query still runs."""
    queries.configure(max_duration_ms=30_000, late_watch_interval_s=60)
    run_id = queries.start(sql(seconds=100, rows=6))
    assert queries.finish(run_id) == "failed timed_out"
    ticks_at, queries.next_tick_at = queries.next_tick_at, queries.now + 3_600  # the tick carries signals: it is late
    queries.pass_time(200)
    assert queries.signals(LATE) == [{"run_id": str(run_id), "epoch": 1}]
    runs.retry_run(queries.ports, queries.kind, TENANT, run_id)
    assert queries.finish(run_id) == "failed timed_out"

    queries.tick()
    queries.work_off()
    assert (queries.run(run_id)["status"], queries.run(run_id)["epoch"]) == ("failed", 2)
    assert not queries.rows("select 1 from signal where name = :late and dispatched_at is null", late=LATE)
    queries.next_tick_at = ticks_at + 60 * (1 + (queries.now - ticks_at) // 60)
    queries.pass_time(600)
    assert (queries.run(run_id)["status"], queries.run(run_id)["epoch"]) == ("succeeded", 3), "by its own late result"
    assert queries.shown(run_id)["row_count"] == 6
    assert len(queries.standin.activities) == 2
    assert terminal_lines(queries, run_id) == [(1, "failed"), (2, "failed"), (3, "succeeded")]


def test_0j_a_late_result_is_read_as_often_as_any_other(queries: QueryRig) -> None:
    queries.configure(max_duration_ms=30_000, late_watch_interval_s=60)
    run_id = queries.start(sql(seconds=60, rows=6))
    until(queries, run_id, Phase.POLL)
    with queries.owner.connect() as connection:  # rows that changed under five reads
        connection.execute(
            sa.text("""update lane set cursor = cursor || '{"rowset_ready_attempts": 5}' where key = 'query'""")
        )
    assert queries.finish(run_id) == "failed timed_out"

    queries.pass_time(170)
    assert queries.run(run_id)["status"] == "succeeded", queries.run(run_id)["error"]


# 0k


def test_0k_every_time_has_a_zone(queries: QueryRig) -> None:
    times = queries.rows(
        """select table_name, column_name, data_type from information_schema.columns
           where table_name in ('query_run', 'query_slot', 'shell_query_runs') and column_name like '%\\_at'"""
    )
    assert len(times) >= 5
    assert {row["data_type"] for row in times} == {"timestamp with time zone"}
    run_id = queries.start(sql(seconds=60))
    until(queries, run_id, Phase.POLL)
    assert queries.cursor(run_id)["poll_started_at"].endswith("+00:00")


# 0l


def test_0l_the_last_line_is_in_the_history_once_and_can_be_read_again(queries: QueryRig) -> None:
    run_id = queries.start(sql(seconds=5, rows=1))
    ends_well(queries, run_id, 1)
    lines = queries.rows("select n, type from history where run_id = :id order by n", id=run_id)

    assert lines[-1]["type"] == "succeeded"
    assert [line["n"] for line in lines] == sorted({line["n"] for line in lines}), "a reader goes on after what it saw"


# 0m


def test_0m_messages_carry_ids_and_nothing_of_the_query(queries: QueryRig) -> None:
    marked = f"/* seconds=40 */ select id, name from people where secret = '{'x' * 60_000}'"
    run_id = queries.start(marked)
    until(queries, run_id, Phase.POLL)

    for body in queries.waiting():
        assert len(body) < 300
        for word in ("secret", "select", MID, str(TENANT), keys(queries, run_id)[0]):
            assert word not in body
    assert queries.shown(run_id, OTHER_TENANT) is None


# 0n


def test_0n_an_id_is_never_a_way_to_another_address(queries: QueryRig) -> None:
    queries.standin.misbehave("early_completed")
    run_id = queries.start(sql(seconds=60, rows=1))
    until(queries, run_id, Phase.POLL)
    with queries.owner.connect() as connection:
        evil = "update lane set cursor = cursor || jsonb_build_object('query_definition_id', cast(:id as text)) where key = 'query'"
        connection.execute(sa.text(evil), {"id": "x/../../../data/v1/customobjectdata/key/other"})
    queries.pass_time(100)

    assert (queries.standin.calls["isrunning"], queries.standin.calls["unknown path"]) == (0, 0)
    assert queries.run(run_id)["status"] == "running"


# 0o


def test_0o_a_message_while_it_runs_is_a_warning(queries: QueryRig) -> None:
    queries.standin.misbehave("stays_queued")
    queries.standin.misbehave("error_message", budget=3)
    run_id = queries.start(sql(seconds=40, rows=3))

    ends_well(queries, run_id, 3)
    assert queries.shown(run_id)["warning"] == "Some rows were skipped."
    assert queries.standin.struck["error_message"] == 3


@pytest.mark.parametrize(
    ("fault", "error"), [("error_message", {}), ("queued_error", {"error": "Some rows were skipped."})]
)
def test_0o_a_message_that_is_still_there_when_it_does_not_run_is_an_error(
    queries: QueryRig, fault: str, error: dict[str, Any]
) -> None:
    queries.standin.misbehave(fault)
    run_id = queries.start(sql(seconds=20, rows=40, **error))

    assert queries.finish(run_id) == "failed failed"
    assert queries.run(run_id)["error"]["code"] == "query_error"
    assert "Some rows were skipped." in queries.shown(run_id)["error_message"]
    assert queries.signals("query_run.ready") == []
    assert queries.standin.now() >= queries.standin.activities[0].ends_at, "not before it had ended"


def test_0o_an_error_that_is_told_after_it_had_stopped_is_an_error(queries: QueryRig) -> None:
    queries.standin.misbehave("stays_queued")
    run_id = queries.start(sql(seconds=20, rows=40, error="Arithmetic overflow"))
    until(queries, run_id, Phase.VERIFY)
    queries.standin.behave("stays_queued")
    queries.standin.misbehave("queued_error")

    assert queries.finish(run_id) == "failed failed"
    assert queries.run(run_id)["error"]["code"] == "query_error"


REFUSALS = [
    ("server_error", {"status": 403, "on": ["isrunning"]}, "forbidden"),
    ("server_error", {"status": 400, "on": ["status"]}, "bad_request"),
    ("odd_fault", {"on": ["status"]}, "request_refused"),
    ("server_error", {"status": 403, "on": ["rowset"]}, "forbidden"),
]


@pytest.mark.parametrize(("fault", "how", "code"), REFUSALS, ids=["403", "soap 400", "fault 5", "rows 403"])
def test_0o_one_odd_answer_does_not_end_a_healthy_query(queries: QueryRig, fault: str, how: Any, code: str) -> None:
    queries.standin.misbehave("stays_queued")  # so that all are asked
    queries.standin.misbehave(fault, **how, budget=2)
    run_id = queries.start(sql(seconds=40, rows=7))

    ends_well(queries, run_id, 7)
    assert queries.standin.struck[fault] == 2
    assert len(queries.standin.activities) == 1


@pytest.mark.parametrize(("fault", "how", "code"), REFUSALS[:3], ids=["403", "soap 400", "fault 5"])
def test_0o_what_is_refused_three_times_in_a_row_is_meant_so(
    queries: QueryRig, fault: str, how: Any, code: str
) -> None:
    queries.standin.misbehave("early_completed")
    queries.standin.misbehave(fault, **how)
    run_id = queries.start(sql(seconds=600, rows=7))

    assert queries.finish(run_id) == "failed failed"
    assert queries.run(run_id)["error"]["code"] == code
    assert queries.cursor(run_id)["refusals"] == 2, "the third ended it"


def test_0o_rows_that_arrive_seconds_after_the_end_are_part_of_the_result(queries: QueryRig) -> None:
    queries.standin.rows_late_s = 18  # 12 s after the end it is known that it has ended
    run_id = queries.start(sql(seconds=20, rows=50))

    ends_well(queries, run_id, 50)


def test_0o_a_token_that_expires_is_fetched_again(queries: QueryRig) -> None:
    queries.standin.token_lives_s = 240
    run_id = queries.start(sql(seconds=1_200, rows=3))

    ends_well(queries, run_id, 3)
    assert queries.standin.calls["token"] <= 12
    assert queries.cursor(run_id)["refusals"] == 0


def test_0o_a_token_that_expires_at_the_validation_does_not_skip_it(queries: QueryRig) -> None:
    queries.standin.misbehave("token_expired", on=["validate"], budget=1)
    run_id = queries.start(sql(invalid="nonsense"))
    assert queries.finish(run_id) == "failed failed"
    assert queries.run(run_id)["error"]["code"] == "invalid_query"
    assert queries.standin.struck["token_expired"] == 1


def test_0o_an_account_whose_new_tokens_are_refused_fails_at_once(queries: QueryRig) -> None:
    run_id = queries.start(sql(seconds=1_200, rows=3))
    until(queries, run_id, Phase.POLL)
    queries.standin.misbehave("token_expired")

    assert queries.finish(run_id, 300) == "failed failed"
    assert queries.run(run_id)["error"]["code"] == "access_refused"
    assert queries.standin.calls["token"] <= 4


@pytest.mark.parametrize("fault", ["rate_limited", "throttle", "blocked"])
def test_0o_a_throttle_holds_the_whole_account_and_no_other(queries: QueryRig, fault: str) -> None:
    queries.standin.misbehave("early_completed")
    runs_ = [queries.start(sql(seconds=300, rows=3)) for _ in range(4)]
    for run_id in runs_:
        until(queries, run_id, Phase.POLL)
    queries.pass_time(5)
    queries.standin.misbehave(
        fault, on=["status" if fault == "rate_limited" else "isrunning"], budget=1, retry_after="60"
    )
    while not queries.standin.struck[fault]:
        queries.pass_time(0.5)
    asked = sum(queries.standin.calls.values())

    queries.pass_time(20)
    assert sum(queries.standin.calls.values()) == asked, "nobody asks while the account is to wait"
    for run_id in runs_:
        ends_well(queries, run_id, 3)


# The seed's own list


def test_execute_frees_its_worker_at_once_and_polling_begins_after_two_seconds(queries: QueryRig) -> None:
    run_id = queries.start(sql(seconds=60))
    until(queries, run_id, Phase.POLL)
    assert questions(queries, run_id)["perform"] == 1
    steps = queries.rows("select ms from step")
    assert all(step["ms"] < 10_000 for step in steps)

    queries.pass_time(1.5)
    assert queries.standin.calls["status"] == 0
    queries.pass_time(1.5)
    assert queries.standin.calls["status"] == 1


def test_a_poll_puts_itself_off_with_the_right_backoff(queries: QueryRig) -> None:
    run_id = queries.start(sql(seconds=300))
    ends_well(queries, run_id, 3)
    query, _ = keys(queries, run_id)
    polls = [each.at for each in queries.standin.asked if each.what == "status" and each.key == query]
    gaps = [round(after - before) for before, after in pairwise(polls)]

    assert gaps[:5] == [2, 4, 8, 16, 30]
    assert set(gaps[5:-1]) <= {30}


def test_the_poll_budget_is_kept(queries: QueryRig) -> None:
    queries.configure(max_poll_count=7, late_adoption=False)
    run_id = queries.start(sql(seconds=5_000))

    assert queries.finish(run_id) == "failed timed_out"
    assert "7 polls" in queries.run(run_id)["error"]["message"]
    assert questions(queries, run_id)["status"] == 7


def test_not_running_is_confirmed_twice_fifteen_seconds_apart(queries: QueryRig) -> None:
    queries.standin.misbehave("early_completed")
    run_id = queries.start(sql(seconds=40, rows=0))
    ends_well(queries, run_id, 0)
    query, _ = keys(queries, run_id)
    said = [each.at for each in queries.standin.asked if each.what == "isrunning" and each.key == query]

    (activity,) = queries.standin.activities
    after = [at for at in said if at >= activity.ends_at]
    assert len(after) >= 2
    assert after[1] - after[0] >= 15
    assert queries.counted[QueryMetric.NOT_RUNNING] == 2


def test_not_running_right_after_the_start_means_nothing(queries: QueryRig) -> None:
    queries.standin.misbehave("early_completed")
    queries.standin.misbehave("not_running", budget=3)  # in the first twenty seconds
    run_id = queries.start(sql(seconds=100, rows=0))
    until(queries, run_id, Phase.POLL)
    queries.pass_time(19)

    assert queries.cursor(run_id)["not_running_confirmations"] == 0
    ends_well(queries, run_id, 0)


def test_a_result_is_read_until_it_answers_twice_alike(queries: QueryRig) -> None:
    queries.standin.misbehave("no_rowset", budget=3)
    run_id = queries.start(sql(seconds=1, rows=4))

    ends_well(queries, run_id, 4)
    assert queries.cursor(run_id)["rowset_ready_attempts"] == 5
    assert queries.counted[QueryMetric.READY_RETRY] == 4


def test_a_result_that_never_answers_is_not_readable(queries: QueryRig) -> None:
    queries.standin.misbehave("no_rowset")
    run_id = queries.start(sql(seconds=1, rows=4))

    assert queries.finish(run_id) == "failed not_readable"
    assert questions(queries, run_id)["rowset"] == 6
    queries.pass_time(120)
    assert queries.standin.left() == []


def test_zero_rows_are_a_result(queries: QueryRig) -> None:
    ends_well(queries, queries.start(sql(seconds=1, rows=0)), 0)


def test_rows_are_probed_after_five_seconds_and_at_most_every_fifteen(queries: QueryRig) -> None:
    queries.standin.misbehave("stays_queued")
    run_id = queries.start(sql(seconds=150, rows=0))
    ends_well(queries, run_id, 0)
    _, target = keys(queries, run_id)
    (activity,) = queries.standin.activities
    probes = [each.at for each in queries.standin.asked if each.what == "rowset" and each.at < activity.ends_at]

    assert probes[0] - activity.started_at >= 5
    assert min(after - before for before, after in pairwise(probes)) >= 15
    assert target


def test_soap_that_says_nothing_new_for_three_minutes_is_not_waited_for(queries: QueryRig) -> None:
    queries.standin.misbehave("stays_queued")
    run_id = queries.start(sql(seconds=30, rows=0))

    ends_well(queries, run_id, 0)
    assert queries.counted[QueryMetric.STUCK] >= 1
    (activity,) = queries.standin.activities
    assert 180 <= queries.now - activity.started_at < 300


def test_only_one_lane_polls_a_run(queries: QueryRig) -> None:
    run_id = queries.start(sql(seconds=60))
    until(queries, run_id, Phase.POLL)
    lanes = queries.rows("select key from lane where run_id = :id and holds_run", id=run_id)
    assert [lane["key"] for lane in lanes] == ["query"]


# The seed's table of errors


def test_a_poll_that_cannot_be_asked_counts_against_the_budget(queries: QueryRig) -> None:
    queries.configure(max_poll_count=9, late_adoption=False)
    run_id = queries.start(sql(seconds=5_000))
    until(queries, run_id, Phase.POLL)
    queries.standin.misbehave("server_error", on=["status"])

    assert queries.finish(run_id) == "failed timed_out"
    assert questions(queries, run_id)["status"] == 9


def test_a_query_that_fails_says_why(queries: QueryRig) -> None:
    run_id = queries.start(sql(seconds=5, error="Conversion failed when converting the varchar value"))

    assert queries.finish(run_id) == "failed failed"
    assert "Conversion failed" in queries.shown(run_id)["error_message"]
    assert [said["outcome"] for said in queries.signals("query_run.failed")] == ["failed"]


def test_a_gate_that_cannot_be_asked_leaves_soap_to_decide(queries: QueryRig) -> None:
    queries.standin.misbehave("early_completed", budget=6)
    queries.standin.misbehave("server_error", on=["isrunning"])
    run_id = queries.start(sql(seconds=60, rows=2))

    ends_well(queries, run_id, 2)
    assert queries.standin.struck["server_error"] >= 1


def test_a_worker_that_dies_in_a_poll_costs_one_lease(queries: QueryRig) -> None:
    run_id = queries.start(sql(seconds=100, rows=2))
    until(queries, run_id, Phase.POLL)
    with killed_at(Point.STEP_LOOKED):
        queries.pass_time(60)

    ends_well(queries, run_id, 2)
    assert len(queries.standin.activities) == 1


# What else is promised


def test_a_broken_query_fails_at_once_with_the_reason(queries: QueryRig) -> None:
    run_id = queries.start("/* invalid=Invalid column name 'nmae' */ select nmae from people")

    assert queries.finish(run_id, 5) == "failed failed"
    assert "Invalid column name" in queries.run(run_id)["error"]["message"]
    assert queries.standin.left() == []


def test_a_validation_that_is_down_is_skipped_and_noted(queries: QueryRig) -> None:
    queries.standin.misbehave("server_error", on=["validate"])
    run_id = queries.start(sql(seconds=5, rows=2))

    ends_well(queries, run_id, 2)
    assert "not validated" in queries.shown(run_id)["note"]


def test_columns_come_from_the_validation_where_it_names_them(queries: QueryRig) -> None:
    queries.standin.names_columns = True
    run_id = queries.start("/* seconds=5; rows=1 */ select * from people")

    ends_well(queries, run_id, 1)
    shown = queries.shown(run_id)
    assert (shown["columns_from"], [column["name"] for column in shown["columns"]]) == ("validation", ["id", "name"])


def test_columns_that_nobody_can_tell_are_asked_for(queries: QueryRig) -> None:
    run_id = queries.start("/* seconds=5 */ select * from people")
    assert queries.finish(run_id, 30) == "failed failed"
    assert queries.run(run_id)["error"]["code"] == "unknown_columns"
    told = queries.start("/* seconds=5; rows=1 */ select * from people", columns=[{"name": "id"}, {"name": "name"}])
    ends_well(queries, told, 1)


def test_the_first_that_has_no_place_waits_and_says_so(queries: QueryRig) -> None:
    queries.configure(max_in_flight=2)
    first = [queries.start(sql(seconds=60, rows=1)) for _ in range(2)]
    for run_id in first:
        until(queries, run_id, Phase.POLL)
    third = queries.start(sql(seconds=5, rows=1))
    other = queries.start(sql(seconds=5, rows=1), tenant=OTHER_TENANT)

    queries.pass_time(20)
    assert len(queries.standin.activities) == 3, "another tenant has places of its own"
    assert queries.lane(third, "query")["waits_for"] == "one of the 2 queries in flight to end"
    for run_id in (*first, third, other):
        assert queries.finish(run_id) == "succeeded ready"
    assert queries.rows("select * from query_slot") == []


def test_an_id_that_is_missing_is_looked_up_by_its_key(queries: QueryRig) -> None:
    queries.standin.misbehave("early_completed")
    run_id = queries.start(sql(seconds=60, rows=1))
    until(queries, run_id, Phase.POLL)
    found = queries.cursor(run_id)["query_definition_id"]
    with queries.owner.connect() as connection:
        connection.execute(sa.text("update lane set cursor = cursor - 'query_definition_id' where key = 'query'"))

    ends_well(queries, run_id, 1)
    assert queries.shown(run_id)["query_definition_id"] == found


def test_a_clean_up_that_finds_nothing_is_done(queries: QueryRig) -> None:
    run_id = queries.start(sql(seconds=5, error="no"))
    assert queries.finish(run_id) == "failed failed"
    queries.standin.targets.clear()
    queries.standin.definitions.clear()
    queries.pass_time(120)

    assert queries.lane(run_id, "clean/1")["status"] == "done"


def test_two_wrong_answers_that_it_does_not_run_do_not_make_a_run_ready(queries: QueryRig) -> None:
    queries.standin.misbehave("early_completed")
    run_id = queries.start(sql(seconds=300, rows=0))
    until(queries, run_id, Phase.POLL)
    queries.pass_time(25)
    queries.standin.misbehave("not_running", budget=2)

    queries.pass_time(120)
    assert queries.standin.struck["not_running"] == 2
    assert queries.run(run_id)["status"] == "running"
    ends_well(queries, run_id, 0)


def test_two_wrong_answers_and_one_that_says_nothing_do_not_make_a_run_ready(queries: QueryRig) -> None:
    wrong: list[bool | Transient] = []

    class Lying(Mce):
        def is_running(self, token: Token, object_id: str) -> bool:
            said = wrong.pop(0) if wrong else super().is_running(token, object_id)
            if isinstance(said, Transient):
                raise said
            return said

    def lying(tenant: UUID, params: QueryParams, time_left_s: Callable[[], float]) -> Mce:
        mce = queries.mce(tenant, params, time_left_s)
        mce.__class__ = Lying
        return mce

    queries.use(lying)
    queries.standin.misbehave("early_completed")
    run_id = queries.start(sql(seconds=200, rows=0))
    until(queries, run_id, Phase.POLL)
    queries.pass_time(25)
    wrong += [False, False, Transient("garbage")]

    queries.pass_time(120)
    assert wrong == []
    assert queries.run(run_id)["status"] == "running"
    ends_well(queries, run_id, 0)
