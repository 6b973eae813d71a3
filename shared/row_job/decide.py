"""The decisions of row jobs as pure functions: how much at a time, what an answer means for a row, when it comes again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shared.row_job.model import ANYWHERE, Found, Item, RowSettings, Status, Strategy

ERROR_FIRST_S, ERROR_MOST_S = 30.0, 6 * 3600.0
NEXT_WAY_S, ALL_WAYS_AGAIN_S = 15 * 60.0, 24 * 3600.0
LEAST_LEFT_S = 2.0  # of a function's time stays for the commit


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """How many rows are written at once. All of it is in the lane's cursor, so a cold start goes on where it was."""

    rows: int
    log_s: float | None = None  # of one row, smoothed
    calm: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"batch": self.rows, "log_s": self.log_s, "calm": self.calm}


def batch_of(cursor: Mapping[str, Any], failures: int, settings: RowSettings) -> Batch:
    """The size that the lane had come to. Each time that a step failed or died here halves it: it may have been too much at once."""
    rows = min(int(cursor.get("batch", 256)), settings.ingest_max_rows) >> failures
    return Batch(
        rows=max(rows, settings.ingest_min_rows),
        log_s=cursor.get("log_s"),
        calm=0 if failures else int(cursor.get("calm", 0)),
    )


def next_batch(batch: Batch, rows: int, seconds: float, settings: RowSettings) -> tuple[Batch, str]:
    """The next size, and why. It moves by a factor of two, and not before two batches have shown what the last move did."""
    least, most = settings.ingest_min_rows, settings.ingest_max_rows
    shown = math.log(max(seconds, 1e-6) / max(rows, 1))
    log_s = shown if batch.log_s is None else 0.7 * batch.log_s + 0.3 * shown
    fit, calm = settings.db_p50_ms / 1000 / math.exp(log_s), batch.calm + 1
    if calm >= 2 and batch.rows > least and (seconds > settings.db_p95_ms / 1000 or batch.rows > 1.5 * fit):
        return Batch(rows=max(least, batch.rows // 2), log_s=log_s), "slow"
    if calm >= 2 and 2 * batch.rows <= min(0.9 * fit, most):
        return Batch(rows=2 * batch.rows, log_s=log_s), "grow"
    return Batch(rows=min(max(batch.rows, least), most), log_s=log_s, calm=calm), "hold"


def count_every_s(count_s: float) -> float:
    """How often the rows of a job are counted: a large one, for which it takes long, more seldom."""
    return max(10.0, 20 * count_s)


def slice_s(settings: RowSettings, time_left_s: float) -> float:
    """How long a slice may be: the target, and always well within what the function has left."""
    return max(0.5, min(settings.worker_target_slice_ms / 1000, 0.6 * (time_left_s - LEAST_LEFT_S)))


def claim_size(avg_item_ms: float | None, seconds: float, settings: RowSettings, pressure: float = 0.0) -> int:
    """How many rows fit into a slice: what they took so far, and a margin. `pressure`: of memory or processor, from 0 to 1."""
    if avg_item_ms is None:
        return settings.claim_min * 4
    fit = seconds * 1000 / max(avg_item_ms, 0.1) * settings.safety_factor * (1 - 0.75 * min(max(pressure, 0.0), 1.0))
    return int(min(max(fit, settings.claim_min), settings.claim_max))


def lease_s(seconds: float, settings: RowSettings) -> float:
    """How long the rows of a slice are held: the slice, the longest call and the commit together."""
    return seconds + settings.provider_timeout_ms / 1000 + LEAST_LEFT_S


def smoothed_ms(before: float | None, seconds: float, done: int) -> float | None:
    """What one row takes, all of a slice's calls together."""
    if not done:
        return before
    shown = seconds * 1000 / done
    return shown if before is None else 0.7 * before + 0.3 * shown


def ways_of(item: Item) -> list[Strategy]:
    """How a row can be looked for: by the exact SKU first, at last by anything like it."""
    known = item.normalized
    return [
        *([Strategy.EXACT_SKU] if known.get("sku") else []),
        *([Strategy.BRAND_TITLE] if known.get("brand") and known.get("title") else []),
        *([Strategy.TITLE_ONLY] if known.get("title") else []),
        Strategy.RELAXED,
    ]


def strategy_of(item: Item) -> Strategy:
    """Only an answer moves a row to its next way: an error says nothing about the one that was tried."""
    ways = ways_of(item)
    return ways[item.turned % len(ways)]


def retailers_of(item: Item, retailers: Sequence[str]) -> list[str]:
    """Each way asks another one first."""
    if not retailers:
        return []
    turn = item.turned % len(retailers)
    return [*retailers[turn:], *retailers[:turn]]


def domain_of(item: Item, retailers: Sequence[str]) -> str:
    rotated = retailers_of(item, retailers)
    return rotated[0] if rotated else ANYWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What a call brought: `found`, `not_found`, `throttled`, `failed`, `slow`, `invalid` (the row) or `refused` (the key)."""

    what: str
    ms: int
    offers: Sequence[Found] = ()
    message: str | None = None
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of a row. `again_s`: it comes again after so long; None: it has ended. `missed`: it was answered that there
    is no such thing."""

    status: Status
    attempts: int
    again_s: float | None = None
    message: str | None = None
    permanent: bool = False
    missed: bool = False


def judge(item: Item, answer: Answered, settings: RowSettings, fraction: float, spike: bool = False) -> Verdict:
    """What an answer means for its row. Being told to wait spends no attempt; it says nothing about the row."""
    match answer.what:
        case "found":
            return Verdict(status=Status.DONE, attempts=item.attempts)
        case "throttled" | "refused":
            return Verdict(status=Status.PENDING, attempts=item.attempts - 1, again_s=answer.retry_after_s)
        case "invalid":
            return Verdict(status=Status.ERROR, attempts=item.attempts, message=answer.message, permanent=True)
        case "not_found":
            ways = len(ways_of(item))
            missed = Verdict(
                status=Status.NOT_FOUND, attempts=item.attempts, message="No offer was found.", missed=True
            )
            if item.misses + 1 >= (settings.max_attempts_not_found or ways):
                return missed
            wait_s = NEXT_WAY_S if (item.turned + 1) % ways else ALL_WAYS_AGAIN_S
            return replace(missed, status=Status.PENDING, again_s=wait_s, message="No offer yet.")
        case _:
            errors = item.attempts - item.misses
            if errors >= settings.max_attempts_error:
                return Verdict(status=Status.ERROR, attempts=item.attempts, message=answer.message)
            full = min(ERROR_MOST_S, ERROR_FIRST_S * 2.0 ** (errors - 1)) * (2 if spike else 1)
            wait_s = full * (1 - fraction / 2)
            return Verdict(status=Status.PENDING, attempts=item.attempts, again_s=wait_s, message=answer.message)


GIVEN_UP_AT = 4  # the claim of a turn: the first may have died with many rows, two more have with this one alone


def lost(item: Item, settings: RowSettings, claims: int) -> bool:
    """Whether a row must be what kills its workers. `claims`: of this turn, all but this one by processes that died. No verdict
    leaves a row with so many attempts that either the errors or the misses among them are too many."""
    most = settings.max_attempts_error + (settings.max_attempts_not_found or len(Strategy)) - 1
    return item.attempts > most or (item.was_left and claims >= GIVEN_UP_AT)
