"""One act on many runs: first how many it would change, then batch by batch, with a reason."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal
from uuid import UUID

from aws_lambda_powertools.event_handler.api_gateway import Router
from aws_lambda_powertools.event_handler.openapi.params import Body
from pydantic import Field

from shared.kernel import run as relay
from shared.kernel.api import sql
from shared.kernel.api.desk import Desk
from shared.kernel.api.frame import Problem, desk, operation
from shared.kernel.api.runs import RunFilter, stop
from shared.kernel.api.shapes import Reasoned, Told
from shared.kernel.auth import STARTS
from shared.kernel.errors import NotFound, Refused
from shared.kernel.paging import LONGEST_CURSOR, Pager

router = Router()  # type: ignore[no-untyped-call]

BATCH = 50

Action = Literal["cancel", "pause", "resume", "retry", "wake"]


class Bulk(Reasoned):
    """`token` is what the preview gave, then `next` of the call before: nothing is applied that nobody has counted.

    `most`: of how many this call applies it, for a trial before the rest.
    """

    filter: RunFilter = Field(default_factory=RunFilter)
    action: Action
    mode: Literal["preview", "apply"]
    token: Annotated[str, Field(max_length=LONGEST_CURSOR)] | None = None
    most: Annotated[int, Field(ge=1, le=BATCH)] | None = None


class BulkDone(Told):
    """`count`: what a preview found; `done` and `refused`: what this call did, and `runs` to which; `left`: what is still to do."""

    count: int | None
    done: int
    refused: dict[str, int]
    runs: list[UUID] = Field(default_factory=list)
    left: int
    next: str | None


@operation(router, "POST", "/runs/bulk", STARTS, tag="actions")
def act_on_many(asked: Annotated[Bulk, Body()]) -> BulkDone:
    """Cancel, pause, resume, retry or wake every run of a filter: preview, then apply until nothing is left."""
    here, wanted = desk(router), asked.filter.wanted()
    pager = here.pager("bulk", {"filter": wanted, "action": asked.action, "actor": here.principal.actor})
    wanted |= here.own()
    if asked.mode == "preview":
        return _preview(here, asked.action, wanted, pager)
    place = pager.place(asked.token)
    if place is None:
        raise Problem(422, "preview_first", "Request a preview first, then send its token.")
    return _apply(here, asked, wanted, pager, place)


def _preview(here: Desk, action: Action, wanted: dict[str, Any], pager: Pager) -> BulkDone:
    found = here.one(sql.bulk(frozenset(wanted), action, after=False, count=True), **wanted, most=sql.MOST_BULK + 1)
    assert found is not None
    if found["runs"] > sql.MOST_BULK:
        raise Problem(422, "too_many", f"More than {sql.MOST_BULK} runs match. Narrow the filter.")
    token = pager.cursor([found["now"].isoformat(), None, None])
    return BulkDone(count=found["runs"], done=0, refused={}, left=found["runs"], next=token if found["runs"] else None)


def _apply(here: Desk, asked: Bulk, wanted: dict[str, Any], pager: Pager, place: list[Any]) -> BulkDone:
    upto, after_at, after_id = place
    begun, most = after_at is not None, asked.most or BATCH
    params = {**wanted, "upto": upto, **({"after_at": after_at, "after_id": after_id} if begun else {})}
    rows = here.all(sql.bulk(frozenset(wanted), asked.action, after=begun, count=False), **params, most=most)
    refused: Counter[str] = Counter()
    done: list[UUID] = []
    for row in rows:
        code = _act(here, asked.action, row["id"], row["kind"], asked.reason)
        if code is None:
            done.append(row["id"])
        else:
            refused[code] += 1
    if len(rows) < most:
        return BulkDone(count=None, done=len(done), refused=dict(refused), runs=done, left=0, next=None)
    last = [rows[-1]["created_at"].isoformat(), str(rows[-1]["id"])]
    params |= {"after_at": last[0], "after_id": last[1]}
    rest = here.one(sql.bulk(frozenset(wanted), asked.action, after=True, count=True), **params, most=sql.MOST_BULK)
    assert rest is not None
    return BulkDone(
        count=None,
        done=len(done),
        refused=dict(refused),
        runs=done,
        left=rest["runs"],
        next=pager.cursor([upto, *last]) if rest["runs"] else None,
    )


def _act(here: Desk, action: Action, run_id: UUID, kind_name: str, reason: str) -> str | None:
    """What one run refused with; None: done."""
    kind = here.kinds.get(kind_name)
    by = here.by(reason)
    try:
        match action:
            case "pause":
                relay.pause_run(here.ports, here.tenant_id, run_id, by)
            case "resume":
                relay.resume_run(here.ports, here.tenant_id, run_id, by)
            case "wake":
                relay.wake_run(here.ports, here.tenant_id, run_id, by)
            case "cancel":
                stop(here, kind_name, run_id, by)
            case _ if kind is None:
                return "unknown_kind"
            case "retry":
                relay.retry_run(here.ports, kind, here.tenant_id, run_id, by)
    except Refused as error:
        return error.code
    except NotFound:
        return "not_found"
    return None
