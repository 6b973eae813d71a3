"""The decision tree of a remote query, branch by branch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from pydantic import ValidationError

from shared.kernel.model import Ending, Lane, LaneStatus, Run, RunStatus
from shared.kernel.settings import BadSettings
from shared.query_run import decide
from shared.query_run.decide import After, Failed
from shared.query_run.model import ActivityStatus, Phase, PollConfig, QueryCursor, QueryParams, Rowset, customer_key

START = datetime(2026, 1, 1, tzinfo=UTC)
CONFIG = PollConfig()
TASK, DEFINITION = "10684", "2f5d0f0e-8a6e-4f0e-9d2a-000000000001"


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def cursor(**changes: Any) -> QueryCursor:
    usual = {"phase": Phase.POLL, "poll_started_at": START, "signal_at": START, "task_id": TASK}
    return QueryCursor(**{**usual, "query_definition_id": DEFINITION, **changes})


def said(status: str = "queued", error_msg: str = "", completed: bool = False) -> ActivityStatus:
    return ActivityStatus(status=status, error_msg=error_msg, completed=completed)


def rowset(count: int = 1, mark: str = "m") -> Rowset:
    return Rowset(count=count, rows=[{"id": "1"}] * min(count, 1), mark=mark)


def test_the_constants_are_those_of_the_design() -> None:
    assert CONFIG.model_dump(
        exclude={"late_adoption", "late_watch_interval_s", "late_watch_s", "drain_s", "look_around_s"}
    ) == {
        "initial_delay_ms": 2_000,
        "max_delay_ms": 30_000,
        "backoff_multiplier": 2,
        "jitter_range": 0.4,
        "max_poll_count": 120,
        "max_duration_ms": 1_740_000,
        "completed_date_trigger_min_runtime_ms": 5_000,
        "stuck_threshold_ms": 180_000,
        "not_running_confirmations": 2,
        "not_running_confirmation_min_gap_ms": 15_000,
        "not_running_min_runtime_ms": 20_000,
        "rowset_ready_max_attempts": 6,
        "rowset_ready_initial_delay_ms": 1_500,
        "rowset_ready_max_delay_ms": 8_000,
        "rowset_settle_ms": 8_000,
        "row_probe_min_runtime_ms": 5_000,
        "row_probe_min_interval_ms": 15_000,
        "row_probe_page_size": 1,
        "fast_path": False,
        "results_kept_s": 86_400,
        "max_in_flight": 50,
    }


def test_a_constant_out_of_bounds_is_named() -> None:
    with pytest.raises(BadSettings, match="BATON_QUERY_MAX_POLL_COUNT"):
        PollConfig.from_env({"BATON_QUERY_MAX_POLL_COUNT": "0"}, "BATON_QUERY_")
    assert PollConfig.from_env({"BATON_QUERY_FAST_PATH": "1"}, "BATON_QUERY_").fast_path


@pytest.mark.parametrize(("polls", "least", "most"), [
    (0, 1.6, 2.4), (1, 3.2, 4.8), (2, 6.4, 9.6), (3, 12.8, 19.2), (4, 24, 36), (119, 24, 36),
])  # fmt: skip
def test_the_next_poll_is_twice_as_far_up_to_half_a_minute(polls: int, least: float, most: float) -> None:
    delays = [decide.next_delay_s(cursor(poll_count=polls), at(1), CONFIG, fraction) for fraction in (0.0, 0.5, 1.0)]
    assert delays == pytest.approx([least, (least + most) / 2, most])


def test_the_second_not_running_is_asked_for_when_it_counts() -> None:
    waiting = cursor(poll_count=9, not_running_at=at(100), not_running_confirmations=1)
    assert decide.next_delay_s(waiting, at(100), CONFIG, 0.9) == 15


@pytest.mark.parametrize(("seconds", "polls", "spent"), [
    (0, 0, False), (1739.9, 119, False), (1740, 0, True), (1, 120, True), (10_000, 3, True),
])  # fmt: skip
def test_the_budget_is_time_and_polls(seconds: float, polls: int, spent: bool) -> None:
    problem = decide.budget_spent(cursor(poll_count=polls), at(seconds), CONFIG)
    assert (problem is not None) is spent
    assert problem is None or problem.code == "timed_out"


@pytest.mark.parametrize("raw", ["Complete", " complete ", "COMPLETE", "complete\n"])
def test_a_status_is_trimmed_and_lower_cased(raw: str) -> None:
    after = decide.after_soap(cursor(), ActivityStatus.read(raw, None, None), at(1))
    assert isinstance(after, After)
    assert after.verify


@pytest.mark.parametrize(("answer", "verify", "warning"), [
    (None, False, None),
    (said("queued"), False, None),
    (said("processing"), False, None),
    (said("something new"), False, None),
    (said(""), False, None),
    (said("queued", completed=True), False, None),
    (said("complete"), True, None),
    (said("complete", "3 rows skipped"), False, "3 rows skipped"),
    (said("", "3 rows skipped"), False, "3 rows skipped"),
    (said("queued", "3 rows skipped"), False, "3 rows skipped"),
])  # fmt: skip
def test_soap_answers(answer: ActivityStatus | None, verify: bool, warning: str | None) -> None:
    after = decide.after_soap(cursor(), answer, at(1))
    assert isinstance(after, After)
    assert (after.verify, after.cursor.warning) == (verify, warning)


def test_a_warning_outlives_answers_without_one() -> None:
    after = decide.after_soap(cursor(warning="3 rows skipped"), said("queued"), at(1))
    assert isinstance(after, After)
    assert after.cursor.warning == "3 rows skipped"


def test_an_error_fails_with_its_reason() -> None:
    after = decide.after_soap(cursor(), said("error", "Invalid column"), at(1))
    assert isinstance(after, Failed)
    assert after.problem.code == "query_error"
    assert "Invalid column" in after.problem.message
    assert isinstance(decide.after_soap(cursor(), said("error"), at(1)), Failed)


@pytest.mark.parametrize(("state", "seconds", "wanted"), [
    ({}, 4.9, False),
    ({}, 5, True),
    ({"row_probe_at": at(10)}, 24.9, False),
    ({"row_probe_at": at(10)}, 25, True),
    ({"partial_available": True}, 500, False),
])  # fmt: skip
def test_when_rows_are_probed(state: dict[str, Any], seconds: float, wanted: bool) -> None:
    assert decide.wants_probe(cursor(**state), at(seconds), CONFIG) is wanted


def test_rows_are_partial_until_the_query_is_known_to_be_over() -> None:
    after = decide.after_probe(cursor(), rowset(), at(30), CONFIG)
    assert after.cursor.partial_available
    assert not after.verify
    assert decide.wants_gate(after.cursor, said(), at(30), CONFIG)
    for nothing in (None, rowset(0)):
        assert not decide.after_probe(cursor(), nothing, at(30), CONFIG).cursor.partial_available


def test_the_fast_path_takes_rows_for_the_result() -> None:
    after = decide.after_probe(cursor(), rowset(), at(30), PollConfig(fast_path=True))
    assert after.verify
    assert after.cursor.fast


@pytest.mark.parametrize(("state", "answer", "seconds", "asked"), [
    ({}, said(), 60, False),
    ({}, None, 60, False),
    ({}, said(completed=True), 4, False),
    ({}, said(completed=True), 5, True),
    ({"complains": True}, said("complete", "skipped"), 1, True),
    ({"complains": True}, None, 1, True),
    ({}, said(), 180, True),  # nothing new for three minutes
    ({"signal_at": at(100)}, said(), 200, False),
    ({"partial_available": True}, said(), 6, True),
    ({"task_id": None}, None, 2, True),
    ({"not_running_confirmations": 1, "not_running_at": at(50)}, said(), 64, False),
    ({"not_running_confirmations": 1, "not_running_at": at(50)}, said(), 65, True),
    ({"query_definition_id": None, "partial_available": True}, said(), 60, False),
])  # fmt: skip
def test_when_the_gate_is_asked(state: dict[str, Any], answer: Any, seconds: float, asked: bool) -> None:
    assert decide.wants_gate(cursor(**state), answer, at(seconds), CONFIG) is asked


@pytest.mark.parametrize(("state", "running", "seconds", "confirmations", "verify"), [
    ({}, True, 30, 0, False),
    ({}, None, 30, 0, False),
    ({}, False, 19.9, 0, False),  # it says so before it has begun
    ({}, False, 20, 1, False),
    ({"seen_running": True}, False, 6, 1, False),
    ({"not_running_confirmations": 1, "not_running_at": at(20)}, False, 35, 2, True),
    ({"not_running_confirmations": 1, "not_running_at": at(20)}, True, 35, 0, False),
    ({"not_running_confirmations": 1, "not_running_at": at(20)}, None, 35, 1, False),
])  # fmt: skip
def test_what_the_gate_says(
    state: dict[str, Any], running: bool | None, seconds: float, confirmations: int, verify: bool
) -> None:
    after = decide.after_gate(cursor(**state), running, at(seconds), CONFIG)
    assert isinstance(after, After)
    assert (after.cursor.not_running_confirmations, after.verify) == (confirmations, verify)


CONFIRMED = {"not_running_confirmations": 1, "not_running_at": at(20)}


def test_an_error_message_is_the_end_once_it_does_not_run() -> None:
    told = decide.after_soap(cursor(**CONFIRMED), said("queued", "Arithmetic overflow"), at(35))
    assert isinstance(told, After)
    assert decide.wants_gate(told.cursor, None, at(35), CONFIG)
    runs = decide.after_gate(told.cursor, True, at(35), CONFIG)
    assert isinstance(runs, After), "while it runs, it is not"
    stopped = decide.after_gate(told.cursor, False, at(35), CONFIG)
    assert isinstance(stopped, Failed)
    assert (stopped.problem.code, "Arithmetic overflow" in stopped.problem.message) == ("query_error", True)
    withdrawn = decide.after_soap(told.cursor, said("queued"), at(35))
    assert isinstance(withdrawn, After)
    assert isinstance(decide.after_gate(withdrawn.cursor, False, at(35), CONFIG), After)


def test_rows_of_a_query_with_an_error_message_are_not_enough() -> None:
    fast = PollConfig(fast_path=True)
    assert decide.after_probe(cursor(), rowset(), at(9), fast).verify
    assert not decide.after_probe(cursor(complains=True), rowset(), at(9), fast).verify


def read_often(answers: list[Rowset | None], apart_s: float = 8) -> QueryCursor | Failed:
    state: QueryCursor | Failed = decide.verifying(cursor())
    for n, answer in enumerate(answers):
        assert isinstance(state, QueryCursor)
        state = decide.after_read(state, answer, at(100 + n * apart_s), CONFIG)
    return state


def test_two_reads_within_seconds_prove_nothing() -> None:
    """What a query wrote arrives where it is read seconds later."""
    soon = read_often([rowset(7), rowset(7), rowset(7)], apart_s=3.9)
    assert isinstance(soon, QueryCursor)
    assert (soon.rows, soon.rowset_ready_attempts) == (None, 1)
    assert decide.read_delay_s(soon, at(103), CONFIG) == 5
    later = decide.after_read(soon, rowset(7), at(108), CONFIG)
    assert isinstance(later, QueryCursor)
    assert later.rows == 7


@pytest.mark.parametrize("count", [0, 7])
def test_a_result_that_is_read_twice_alike_is_ready_with_or_without_rows(count: int) -> None:
    once = read_often([rowset(count)])
    assert isinstance(once, QueryCursor)
    assert once.rows is None
    twice = read_often([None, rowset(count), None, rowset(count)])
    assert isinstance(twice, QueryCursor)
    assert twice.rows == count


def test_a_result_that_changes_or_does_not_answer_is_not_ready() -> None:
    assert isinstance(read_often([None] * 5), QueryCursor)
    changing: list[Rowset | None] = [rowset(n, str(n)) for n in range(6)]
    unreadable: list[list[Rowset | None]] = [[None] * 6, changing, [rowset(), *[None] * 5]]
    for answers in unreadable:
        failed = read_often(answers)
        assert isinstance(failed, Failed)
        assert failed.problem.code == "not_readable"


def test_a_result_that_changes_is_still_being_written() -> None:
    state = decide.verifying(cursor(not_running_confirmations=2, not_running_at=at(50)))
    for answer in (rowset(1, "a"), rowset(2, "b")):
        after = decide.after_read(state, answer, at(60), CONFIG)
        assert isinstance(after, QueryCursor)
        state = after
    assert (state.phase, state.not_running_confirmations, state.rowset_ready_attempts) == (Phase.POLL, 0, 2)
    assert decide.verifying(state).rowset_ready_attempts == 2, "there are six reads for one run, not for one try"


def test_who_was_told_only_that_it_does_not_run_asks_once_more() -> None:
    assert decide.wants_last_word(cursor(not_running_confirmations=2), CONFIG)
    assert not decide.wants_last_word(cursor(), CONFIG)


def test_a_last_word_that_is_unknown_is_asked_for_again_while_there_are_reads() -> None:
    read = cursor(phase=Phase.VERIFY, rows=4, rowset_mark="a", rowset_ready_attempts=2)
    assert decide.after_last_word(read, None, None, CONFIG) == read.but(rows=None)
    last = read.but(rowset_ready_attempts=6)
    assert decide.after_last_word(last, None, None, CONFIG) == last
    assert decide.after_last_word(read, False, said(), CONFIG) == read
    runs = decide.after_last_word(read, True, None, CONFIG)
    assert isinstance(runs, QueryCursor)
    assert runs.phase == Phase.POLL


@pytest.mark.parametrize("answer", [said("error"), said("queued", "Arithmetic overflow")])
def test_a_last_word_that_is_an_error_is_one(answer: ActivityStatus) -> None:
    read = cursor(phase=Phase.VERIFY, rows=4, rowset_mark="a", rowset_ready_attempts=2)
    after = decide.after_last_word(read, False, answer, CONFIG)
    assert isinstance(after, Failed)
    assert after.problem.code == "query_error"


def test_reads_are_ever_further_apart() -> None:
    delays = [decide.read_delay_s(cursor(rowset_ready_attempts=n), at(60), CONFIG) for n in range(1, 6)]
    assert delays == [1.5, 3, 6, 8, 8]


def test_the_cursor_survives_its_way_through_the_database() -> None:
    full = cursor(not_running_at=at(3), row_probe_at=at(4), rowset_at=at(5), warning="w", rows=0)
    assert QueryCursor.read(full.to_json()) == full
    assert QueryCursor.read(QueryCursor().to_json()) == QueryCursor()


def test_keys_fit_and_belong_to_one_epoch() -> None:
    run_id = UUID(int=1)
    keys = {customer_key(run_id, epoch, what) for epoch in (1, 2) for what in ("target", "query")}
    assert len(keys) == 4
    assert {len(key) for key in keys} == {36}


def ending(status: LaneStatus, error: dict[str, Any] | None = None) -> Ending:
    lane = Lane(id=UUID(int=1), key="query", status=status, holds_run=True, epoch=1, cursor={}, last_error=error)
    side = Lane(id=UUID(int=2), key="clean/1", status=LaneStatus.FAILED, holds_run=False, epoch=1, cursor={}, last_error=None)  # fmt: skip
    run = Run(
        id=UUID(int=3), tenant_id=UUID(int=4), kind="query_run", status=RunStatus.RUNNING, outcome=None, epoch=1, params={},
        correlation_id=None, cancel_requested_at=None, paused_at=None, time_limit_s=None, deadline_at=None, now=START,
    )  # fmt: skip
    settled = decide.settle(run, [lane, side])
    assert isinstance(settled, Ending)
    return settled


def test_endings() -> None:
    assert ending(LaneStatus.DONE) == Ending(RunStatus.SUCCEEDED, "ready")
    assert ending(LaneStatus.FAILED, {"code": "timed_out", "message": "late"}).outcome == "timed_out"
    assert ending(LaneStatus.FAILED, {"code": "not_readable", "message": "no"}).outcome == "not_readable"
    failed = ending(LaneStatus.FAILED, {"code": "query_error", "message": "bad"})
    assert (failed.status, failed.outcome) == (RunStatus.FAILED, "failed")
    assert failed.problem is not None
    assert failed.problem.message == "bad"


@pytest.mark.parametrize(("text", "names"), [
    ("select id, name from t", ["id", "name"]),
    ("SELECT DISTINCT TOP 10 t.id, s.[Full Name] FROM t", ["id", "Full Name"]),
    ("select count(*) as n, max(x) biggest from t", ["n", "biggest"]),
    ("/* a, b */ select 'a,from' as what, -- from\n b from t", ["what", "b"]),
    ("select case when a = 1 then 'x' else b end as kind from t", ["kind"]),
    ("select [a]]b] from t", ["a]b"]),
    ("select (select max(x) from u) as x, y from t", ["x", "y"]),
    ("select a from t union select b from u", ["a"]),
    ("select * from t", None),
    ("select t.* from t", None),
    ("select a, A from t", None),
    ("select a + b from t", None),
    ("select count(*) from t", None),
    ("select 1 from t", None),
    ("select case when a then b end from t", None),
    ("select a,, b from t", None),
    ("select 1 as a union all select 2 as b", ["a"]),
    ("select 1 as a union all select 2 as b from t", ["a"]),
    ("select a into x from t", ["a"]),
    ("select a where 1 = b", ["a"]),
    ("select [] from t", None),
    ('select a as "" from t', None),
    (f"select [{'x' * 129}] from t", None),
    ("select [a\x07] from t", None),
    (f"select {', '.join(f'c{n}' for n in range(1_001))} from t", None),
    ("select 'open from t", None),
    ("update t set a = 1", None),
    ("", None),
])  # fmt: skip
def test_the_columns_that_a_select_list_names(text: str, names: list[str] | None) -> None:
    assert decide.select_list(text) == names


@pytest.mark.parametrize("bad", [
    {"sql_text": "  "}, {"sql_text": "select \x00"}, {"sql_text": "select \ud800"}, {"mid": "12a"}, {"mid": ""}, {"eid": "x"},
    {"columns": []}, {"columns": [{"name": "a"}, {"name": "A"}]}, {"columns": [{"name": "a", "type": "Blob"}]}, {"more": 1},
    {"sql_text": "s" * 64_001},
])  # fmt: skip
def test_parameters_that_make_no_sense_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        QueryParams.model_validate({"sql_text": "select a from b", "mid": "1", **bad})


def test_a_confirmation_without_an_answer_spends_polls_no_faster_than_before() -> None:
    """It was heard once that the query does not run, and from then on nobody answers: the polls last as long as the query may take."""
    now, seen = at(40), cursor(poll_count=5, seen_running=True)
    heard = decide.after_gate(seen, running=False, now=now, config=CONFIG)
    assert isinstance(heard, After)
    seen = heard.cursor
    while decide.budget_spent(seen, now, CONFIG) is None:
        now += timedelta(seconds=decide.next_delay_s(seen, now, CONFIG, fraction=0.5))
        if decide.wants_gate(seen, None, now, CONFIG):
            heard = decide.after_gate(seen, running=None, now=now, config=CONFIG)
            assert isinstance(heard, After)
            seen = heard.cursor
        seen = seen.but(poll_count=seen.poll_count + 1)
    assert now >= at(CONFIG.max_duration_ms / 1000)


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("select (1 /* ' */) as a, (2 /* ' */) as b from t", ["a", "b"]),
        ("select (1 -- it's\n) as a, 'x' as b from t", ["a", "b"]),
        ("select f(a /* ( */) as x, b as y from t", ["x", "y"]),
        ("select (a /* ) */, 1) as x, b from t", ["x", "b"]),
        ("select a /* /* one in another */ , b as c -- */\n from t", ["a"]),
        ("select (a /* left open ) as x from t", None),
    ],
)
def test_what_is_in_a_comment_is_no_part_of_a_query(sql: str, names: list[str] | None) -> None:
    """A column that is missed has no place in the data extension, and its values are gone without a word."""
    assert decide.select_list(sql) == names
