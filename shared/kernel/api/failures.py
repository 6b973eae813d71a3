"""Failures of all kinds by cause: what, since when, how often, one of them in full; and what is known and muted."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from aws_lambda_powertools.event_handler.api_gateway import Router
from aws_lambda_powertools.event_handler.openapi.params import Body
from pydantic import Field

from shared.kernel.api import sql
from shared.kernel.api.frame import Problem, desk, operation
from shared.kernel.api.now import Cause, cause_of
from shared.kernel.api.shapes import Asked, Because, Done, Reasoned, Told
from shared.kernel.auth import MANAGES, READS
from shared.kernel.direct import Row
from shared.kernel.redact import redact_json

router = Router()  # type: ignore[no-untyped-call]

LONGEST_MUTE_DAYS = 90


class Mute(Told):
    reason: str
    by: str
    at: datetime
    until: datetime


class Sample(Told):
    """The latest of them: `step` and `cursor` say where its lane stood."""

    run_id: UUID
    label: str | None
    lane_key: str | None
    step: int | None
    cursor: dict[str, Any] | None
    params: dict[str, Any] | None


class Failure(Cause):
    """`counts`: how many runs failed of it, in buckets of `bucket_s` seconds, oldest first."""

    counts: list[int]
    muted: Mute | None
    sample: Sample


class FailureList(Told):
    """Of the last seven days. `more`: there are more failed runs than were looked at."""

    count: int
    more: bool
    bucket_s: int
    causes: list[Failure]


class OfCause(Asked):
    kind: Annotated[str, Field(min_length=1, max_length=100)]
    fingerprint: Annotated[str, Field(min_length=1, max_length=100)]


class MuteCause(OfCause, Reasoned):
    days: Annotated[int, Field(ge=1, le=LONGEST_MUTE_DAYS)] = 7


class UnmuteCause(OfCause, Because):
    pass


class Kind(Told):
    """`used`: the tenant has runs of it."""

    name: str
    used: bool


class Kinds(Told):
    kinds: list[Kind]


@operation(router, "GET", "/failures", READS, tag="now")
def list_failures() -> FailureList:
    """Failed runs of the last week by cause: what, since when, how often, and one of them in full. Muted ones come last."""
    here = desk(router)
    rows = here.all(sql.failures(own=bool(here.own())), **here.own())
    seen = rows[0]["failed"] if rows else 0
    return FailureList(
        count=min(seen, sql.MOST_FAILURES),
        more=seen > sql.MOST_FAILURES,
        bucket_s=sql.BUCKET_S,
        causes=[_failure(row) for row in rows],
    )


def _failure(row: Row) -> Failure:
    muted = None
    if row["muted_at"] is not None:
        muted = Mute(reason=row["mute_reason"], by=row["muted_by"], at=row["muted_at"], until=row["muted_until"])
    sample = Sample(
        run_id=row["run_id"], label=row["sample_label"], lane_key=row["lane_key"], step=row["sample_step"],
        cursor=row["sample_cursor"] and redact_json(row["sample_cursor"]),
        params=row["sample_params"] and redact_json(row["sample_params"]),
    )  # fmt: skip
    return Failure(**cause_of(row), counts=row["counts"], muted=muted, sample=sample)


@operation(router, "POST", "/failures/mute", MANAGES, tag="now", refuses=[429])
def mute_failure(asked: Annotated[MuteCause, Body()]) -> Done:
    """Mute a known cause for a while: it is no alarm any more, and still listed."""
    here = desk(router)
    with here.begin() as (line, tx):
        params = {
            "tenant_id": here.tenant_id,
            "kind": asked.kind,
            "fingerprint": asked.fingerprint,
            "reason": asked.reason,
        }
        if not line.run(
            sql.MUTE, {**params, "actor": here.principal.actor, "days": asked.days, "most": sql.MOST_MUTED}
        ):
            raise Problem(429, "too_many_muted", f"{sql.MOST_MUTED} causes are muted already. Unmute some first.")
        here.audit(tx, "failure.mute", _target(asked), None, {"days": asked.days}, asked.reason)
    return Done()


@operation(router, "POST", "/failures/unmute", MANAGES, tag="now")
def unmute_failure(asked: Annotated[UnmuteCause, Body()]) -> Done:
    """Unmute a cause. One that isn't muted stays so."""
    here = desk(router)
    with here.begin() as (line, tx):
        params = {"tenant_id": here.tenant_id, "kind": asked.kind, "fingerprint": asked.fingerprint}
        if line.run(sql.UNMUTE, params):
            here.audit(tx, "failure.unmute", _target(asked), None, None, asked.reason)
    return Done()


def _target(asked: OfCause) -> str:
    return f"failure:{asked.kind}/{asked.fingerprint}"


@operation(router, "GET", "/kinds", READS, tag="runs")
def list_kinds() -> Kinds:
    """The kinds that are deployed or have runs, and which of them the tenant uses."""
    here = desk(router)
    own = here.own()
    used = {row["kind"] for row in here.all(sql.OWN_KINDS if own else sql.USED_KINDS, **own)}
    gone = sorted(used - set(here.kinds))  # runs outlive what was deployed when they started
    return Kinds(kinds=[Kind(name=name, used=name in used) for name in (*here.kinds, *gone)])
