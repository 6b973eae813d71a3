"""The decisions of a remote query. Pure: the clock, chance and every answer are handed in.

One poll asks in this order, and each answer decides what is asked next:

    budget spent?                     -> timed out
    SOAP status  error                -> failed
                 complete, no error   -> read the rows
    row probe    rows are there       -> partial; ask whether it still runs (or ready at once, if the fast path is on)
    REST gate    runs                 -> poll again
                 does not, twice      -> failed, if SOAP still complains of an error; else read the rows
    rows         the same twice       -> ready
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from shared.kernel.model import Ending, Lane, LaneStatus, Problem, Run, RunStatus, Settlement
from shared.query_run.model import (
    LONGEST_NAME,
    MOST_COLUMNS,
    ActivityStatus,
    Phase,
    PollConfig,
    QueryCursor,
    Rowset,
    sendable,
)

TIMED_OUT, NOT_READABLE = "timed_out", "not_readable"


@dataclass(frozen=True, slots=True)
class Failed:
    problem: Problem


@dataclass(frozen=True, slots=True)
class After:
    """What an answer made of the cursor."""

    cursor: QueryCursor
    verify: bool = False


def _ms(ms: float) -> timedelta:
    return timedelta(milliseconds=ms)


# --- polling


def budget_spent(cursor: QueryCursor, now: datetime, config: PollConfig) -> Problem | None:
    """Counted from when the query was started, by the database's clock: a pause does not stop the remote query."""
    if cursor.runtime(now) >= _ms(config.max_duration_ms):
        minutes = config.max_duration_ms / 60_000
        return Problem(TIMED_OUT, f"The query did not finish within {minutes:g} minutes.")
    if cursor.poll_count >= config.max_poll_count:
        return Problem(TIMED_OUT, f"The query did not finish within {config.max_poll_count} polls.")
    return None


def time_left_s(cursor: QueryCursor, now: datetime, config: PollConfig) -> float:
    return max(0.0, (_ms(config.max_duration_ms) - cursor.runtime(now)).total_seconds())


def after_soap(cursor: QueryCursor, said: ActivityStatus | None, now: datetime) -> After | Failed:
    """`said`: None if SOAP gave no usable answer. An unknown status keeps polling."""
    if said is None:
        return After(cursor)
    if said.status == "error":
        return _query_error(said.error_msg)
    is_news = said.status != cursor.last_status or said.completed or said.error_msg
    cursor = cursor.but(
        last_status=said.status,
        signal_at=now if is_news else cursor.signal_at,
        warning=said.error_msg or cursor.warning,
        complains=bool(said.error_msg),
    )
    return After(cursor, verify=said.status == "complete" and not said.error_msg)


def _query_error(why: str | None) -> Failed:
    why = why or "Marketing Cloud gives no reason."
    return Failed(Problem("query_error", f"The query failed in Marketing Cloud: {why}"))


def wants_probe(cursor: QueryCursor, now: datetime, config: PollConfig) -> bool:
    if cursor.partial_available or cursor.runtime(now) < _ms(config.row_probe_min_runtime_ms):
        return False
    return cursor.row_probe_at is None or now - cursor.row_probe_at >= _ms(config.row_probe_min_interval_ms)


def after_probe(cursor: QueryCursor, found: Rowset | None, now: datetime, config: PollConfig) -> After:
    """Rows that are there say that the query writes, not that it is done."""
    cursor = cursor.but(row_probe_attempts=cursor.row_probe_attempts + 1, row_probe_at=now)
    if found is None or not (found.count or found.rows):
        return After(cursor)
    is_enough = config.fast_path and not cursor.complains
    return After(cursor.but(partial_available=True, fast=is_enough), verify=is_enough)


def is_stuck(cursor: QueryCursor, now: datetime, config: PollConfig) -> bool:
    """SOAP has said nothing new for so long that the other API is asked."""
    since = cursor.signal_at or cursor.poll_started_at or now
    return now - since >= _ms(config.stuck_threshold_ms)


def wants_gate(cursor: QueryCursor, said: ActivityStatus | None, now: datetime, config: PollConfig) -> bool:
    """Whether to ask if it still runs. A confirmation that came too early would not count: it is not asked for."""
    if cursor.query_definition_id is None:
        return False
    if cursor.not_running_at is not None and now - cursor.not_running_at < _ms(
        config.not_running_confirmation_min_gap_ms
    ):
        return False
    old_enough = cursor.runtime(now) >= _ms(config.completed_date_trigger_min_runtime_ms)
    return (
        cursor.not_running_confirmations > 0
        or cursor.partial_available
        or cursor.task_id is None
        or (said is not None and said.completed and old_enough)
        or cursor.complains
        or is_stuck(cursor, now, config)
    )


def after_gate(cursor: QueryCursor, running: bool | None, now: datetime, config: PollConfig) -> After | Failed:
    """`running`: None if that is unknown, which confirms nothing and takes nothing back.

    While a query runs, an error that SOAP tells of is not its end. Once it does not, it is: what was written is a part.
    """
    cursor = cursor.but(rest_checks=cursor.rest_checks + 1)
    if running is None:
        return After(cursor)
    if running:
        return After(cursor.but(seen_running=True, not_running_confirmations=0, not_running_at=None))
    if not cursor.seen_running and cursor.runtime(now) < _ms(config.not_running_min_runtime_ms):
        return After(cursor)  # it says so before it has begun
    confirmations = cursor.not_running_confirmations + 1
    cursor = cursor.but(not_running_confirmations=confirmations, not_running_at=now)
    if confirmations < config.not_running_confirmations:
        return After(cursor)
    return _query_error(cursor.warning) if cursor.complains else After(cursor, verify=True)


def next_delay_s(cursor: QueryCursor, now: datetime, config: PollConfig, fraction: float) -> float:
    """Twice as long each time, ±20 %, up to half a minute. The second "not running" is asked for when it first counts; if there
    is no answer to it, the polls go on as before: all of them would be spent within seconds otherwise."""
    if cursor.not_running_at is not None:
        gap = _ms(config.not_running_confirmation_min_gap_ms) - (now - cursor.not_running_at)
        if gap > timedelta():
            return max(gap.total_seconds(), 0.1)
    doublings = min(cursor.poll_count, 60)
    base_ms = min(config.initial_delay_ms * config.backoff_multiplier**doublings, config.max_delay_ms)
    jitter = 1 - config.jitter_range / 2 + fraction * config.jitter_range
    return float(base_ms * jitter / 1000)


# --- reading


def after_read(cursor: QueryCursor, found: Rowset | None, now: datetime, config: PollConfig) -> QueryCursor | Failed:
    """Rows that were read once more as they were a while before are all there are, none included. `cursor.rows` is set then.

    A read that fails takes nothing back. Rows that changed between two reads are being written: the query was taken for
    finished too early.
    """
    attempts, before = cursor.rowset_ready_attempts + 1, cursor.rowset_mark
    if found is not None and found.mark == before:
        if unsettled_s(cursor, now, config):  # somebody woke it: that was no read
            return cursor
        return cursor.but(rowset_ready_attempts=attempts, rows=found.count)
    cursor = cursor.but(rowset_ready_attempts=attempts)
    if found is not None:
        cursor = cursor.but(rowset_mark=found.mark, rowset_at=now)
    if attempts >= config.rowset_ready_max_attempts:
        why = "did not answer" if found is None else "kept changing"
        return Failed(
            Problem(NOT_READABLE, f"The query finished, but its result {why} in {attempts} attempts to read it.")
        )
    return cursor if found is None or before is None else polling_again(cursor)


def unsettled_s(cursor: QueryCursor, now: datetime, config: PollConfig) -> float:
    """How much longer the rows that were read may still change: what was written arrives there seconds later."""
    if cursor.rowset_at is None:
        return 0.0
    return max(0.0, (_ms(config.rowset_settle_ms) - (now - cursor.rowset_at)).total_seconds())


def read_delay_s(cursor: QueryCursor, now: datetime, config: PollConfig) -> float:
    if cursor.rowset_mark is not None and (left_s := unsettled_s(cursor, now, config)):
        return left_s
    doublings = min(max(cursor.rowset_ready_attempts - 1, 0), 60)
    return float(min(config.rowset_ready_initial_delay_ms * 2**doublings, config.rowset_ready_max_delay_ms) / 1000)


def verifying(cursor: QueryCursor) -> QueryCursor:
    return cursor.but(phase=Phase.VERIFY, rowset_mark=None, rowset_at=None)


def polling_again(cursor: QueryCursor) -> QueryCursor:
    """What was believed to be over is not. Reads that were made count: there are only so many for one run."""
    return cursor.but(
        phase=Phase.POLL, not_running_confirmations=0, not_running_at=None, rowset_mark=None, rowset_at=None, rows=None,
    )  # fmt: skip


def wants_last_word(cursor: QueryCursor, config: PollConfig) -> bool:
    """Who was told only that it does not run asks once more before it is ready: that answer is known to be wrong at times."""
    return cursor.not_running_confirmations >= config.not_running_confirmations


def after_last_word(
    cursor: QueryCursor, running: bool | None, said: ActivityStatus | None, config: PollConfig
) -> QueryCursor | Failed:
    """`running`: None if that is unknown. It is asked again with the next read, while there is one."""
    if running:
        return polling_again(cursor.but(seen_running=True))
    if said is not None and (said.status == "error" or said.error_msg):
        return _query_error(said.error_msg)
    if running is None and cursor.rowset_ready_attempts < config.rowset_ready_max_attempts:
        return cursor.but(rows=None)
    return cursor


# --- the end


def settle(run: Run, lanes: Sequence[Lane]) -> Settlement:  # noqa: ARG001 - the shape of a settlement
    """The one lane that holds the run says how it ends; a spent budget is an outcome of its own."""
    (lane,) = [lane for lane in lanes if lane.holds_run]
    if lane.status is LaneStatus.DONE:
        return Ending(RunStatus.SUCCEEDED, "ready")
    error = lane.last_error or {}
    code = str(error.get("code", "failed"))
    problem = Problem(code, str(error.get("message", "The query failed.")))
    outcome = code if code in (TIMED_OUT, NOT_READABLE) else "failed"
    return Ending(RunStatus.FAILED, outcome, problem)


# --- columns

COMMENT_MARKS = re.compile(r"/\*|\*/")
AFTER_THE_LIST = frozenset({"from", "into", "where", "group", "having", "order", "union", "except", "intersect"})


def select_list(sql: str) -> list[str] | None:
    """The names of the columns that a query answers; None if they cannot be told without running it (`select *`)."""
    words = _words(sql)
    if words is None or not words or words[0].casefold() != "select":
        return None
    words = words[1:]
    if words and words[0].casefold() in ("distinct", "all"):
        words = words[1:]
    if words and words[0].casefold() == "top":
        words = words[2:]
        if words and words[0].casefold() == "percent":
            words = words[1:]
    names: dict[str, str] = {}
    item: list[str] = []
    for word in [*words, "from"]:
        if word != "," and word.casefold() not in AFTER_THE_LIST:
            item.append(word)
            continue
        name = _name(item)
        if name is None or name.casefold() in names or len(names) == MOST_COLUMNS:
            return None
        names[name.casefold()] = name
        item = []
        if word != ",":
            return list(names.values())
    return None


def _name(item: Sequence[str]) -> str | None:
    """What one item of a select list is called: its alias, or the last part of a plain name."""
    if not item:
        return None
    last = item[-1]
    plain = last[0] in '["' or last[0] == "_" or last[0].isalpha()
    if not plain or last.casefold() in ("end", "null"):
        return None
    before = item[-2] if len(item) > 1 else ""
    if before.casefold() in ("collate", "and", "or", "not", "like", "is", "in", "between"):
        return None
    if before and before != "." and not (before.casefold() == "as" or before[-1] in ")'\"]" or before[-1].isalnum()):
        return None  # the end of an expression: `a + b`
    name = last[1:-1].replace(last[-1] * 2, last[-1]) if last[0] in '["' else last
    return name if 1 <= len(name) <= LONGEST_NAME and sendable(name) else None


def _words(sql: str) -> list[str] | None:
    """The words of a query outside of comments; what is in parentheses is one word. None if something is left open."""
    words: list[str] = []
    at, end = 0, len(sql)
    while at < end:
        char = sql[at]
        if char.isspace() or char == ";":
            at += 1
        elif (after := _past(sql, at)) is not None:
            if after > end:
                return None
            if char in "'\"[":
                words.append(sql[at:after])
            at = after
        elif char == "(":
            after = _parenthesised(sql, at)
            if after is None:
                return None
            words.append("()")
            at = after
        elif char.isalnum() or char in "_@#$":
            start = at
            while at < end and (sql[at].isalnum() or sql[at] in "_@#$"):
                at += 1
            words.append(sql[start:at])
        else:
            words.append(char)
            at += 1
    return words


def _past(sql: str, at: int) -> int | None:
    """Where the comment or quoted text ends that begins here; None if none does. Beyond the end: it is left open."""
    if sql.startswith("--", at):
        line_ends = sql.find("\n", at)
        return len(sql) if line_ends < 0 else line_ends
    if sql.startswith("/*", at):
        depth = 0  # T-SQL has comments in comments
        for mark in COMMENT_MARKS.finditer(sql, at):
            depth += 1 if mark.group() == "/*" else -1
            if depth == 0:
                return mark.end()
        return len(sql) + 1
    if sql[at] in "'\"[":
        return _quoted(sql, at) or len(sql) + 1
    return None


def _quoted(sql: str, at: int) -> int | None:
    closing = "]" if sql[at] == "[" else sql[at]
    at += 1
    while (found := sql.find(closing, at)) >= 0:
        if not sql.startswith(closing * 2, found):
            return found + 1
        at = found + 2
    return None


def _parenthesised(sql: str, at: int) -> int | None:
    """Where it closes. A parenthesis or a quote in a comment is neither."""
    depth = 0
    while at < len(sql):
        if (after := _past(sql, at)) is not None:
            at = after
            continue
        depth += {"(": 1, ")": -1}.get(sql[at], 0)
        at += 1
        if depth == 0:
            return at
    return None
