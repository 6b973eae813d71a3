"""What becomes of a due time, and of an event. Pure: no clock, no database."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from itertools import chain, groupby, islice
from typing import Any

import orjson

from shared.job_queue.triggers.model import (
    LONGEST_CHAIN,
    MOST_LOOKED_AT,
    ON_TIME_S,
    Follow,
    Join,
    LastJob,
    Overlap,
    Pass,
    Passed,
    Plan,
    Skipped,
    StartAt,
    StartNow,
    Trigger,
    Verdict,
)


def plan(trigger: Trigger, dues: Iterator[datetime], now: datetime) -> Plan:
    """Sort a schedule's due times up to now, oldest first, into those to start and those to pass over.

    Every due time is in exactly one of them. `dues` starts with the first one that nothing was done about.
    """
    first_later = None
    due: list[datetime] = []
    for at in islice(dues, MOST_LOOKED_AT):
        if at > now:
            first_later = at
            break
        due.append(at)
    else:
        first_later = next(dues, None)
    oldest = now - timedelta(seconds=trigger.max_lateness_seconds)
    if first_later is not None and first_later <= now:
        # Longer ago than fits into one look. Only what is too late anyway is decided on; the rest is for the next one.
        late = [at for at in due if at < oldest]
        if late:
            rest = due[len(late)] if len(late) < len(due) else first_later
            return Plan([], _runs([(at, Skipped.TOO_LATE) for at in late]), rest)
        due = [*due, *_until(chain([first_later], dues), now)]
        first_later = due.pop()
    reasons = dict(_reasons(trigger, due, now, oldest))
    return Plan([at for at in due if at not in reasons], _runs(sorted(reasons.items())), first_later)


def _until(dues: Iterator[datetime], now: datetime) -> Iterator[datetime]:
    """Up to and with the first one that is later than now."""
    for at in dues:
        yield at
        if at > now:
            return


def _reasons(
    trigger: Trigger, due: list[datetime], now: datetime, oldest: datetime
) -> Iterator[tuple[datetime, Skipped]]:
    on_time = now - timedelta(seconds=ON_TIME_S)
    missed = [at for at in due if at < on_time]
    yield from ((at, Skipped.TOO_LATE) for at in missed if at < oldest)
    missed = [at for at in missed if at >= oldest]
    match trigger.catch_up:
        case "skip":
            yield from ((at, Skipped.MISSED) for at in missed)
        case "once":
            # One job makes up for all of them, and one that is due now does so as well.
            kept = 0 if len(due) > 0 and due[-1] >= on_time else 1
            yield from ((at, Skipped.SUPERSEDED) for at in missed[: len(missed) - kept])
        case "all":
            yield from ((at, Skipped.OVER_CAP) for at in missed[: max(0, len(missed) - trigger.catch_up_most)])


def _runs(passed: list[tuple[datetime, Skipped]]) -> list[Passed]:
    """Neighbours with one reason are one line."""
    lines = []
    for reason, group in groupby(passed, key=lambda each: each[1]):
        ats = [at for at, _ in group]
        lines.append(Passed(ats[0], ats[-1], len(ats), reason))
    return lines


def on_due(last: LastJob | None, overlap: Overlap) -> Verdict:
    """A due time while the schedule's job before it may not have ended."""
    if last is None or last.state == "ended":
        return StartNow()
    return Pass(Skipped.OVERLAP) if overlap == "skip" else Follow(last.run_id)


def on_event(last: LastJob | None, window_s: int, now: datetime) -> Verdict:
    """Events within a window share a job, but none is lost: the job that counts for an event begins after it.

    A job that nobody has begun will see what the event is about. One that is running may have looked already, so one more
    follows it. One that has ended did not see it: one more runs when the window is over.
    """
    if last is None:
        return StartNow()
    if last.state == "waiting":
        return Join(last.run_id)
    if last.state == "running":
        return Follow(last.run_id)
    opens = last.began_window_at + timedelta(seconds=window_s)
    return StartAt(opens) if opens > now else StartNow()


def loops(trigger_id: object, caused_by: object | None, chain_length: int) -> bool:
    """Whether a job would start itself again, or too many have started each other."""
    return caused_by == trigger_id or chain_length >= LONGEST_CHAIN


def payload_key(payload: Mapping[str, Any]) -> str:
    """Equal for equal payloads: events that ask for the same share a job."""
    return hashlib.sha256(orjson.dumps(payload, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]
