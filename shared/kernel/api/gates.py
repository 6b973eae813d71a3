"""Gates: which upstreams are closed, until when, and the hand that opens or closes one."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from aws_lambda_powertools.event_handler.api_gateway import Router
from aws_lambda_powertools.event_handler.openapi.params import Body, Path
from pydantic import Field, StrictBool

from shared.kernel.api import sql
from shared.kernel.api.desk import Desk
from shared.kernel.api.frame import Problem, desk, operation
from shared.kernel.api.shapes import Cursor, Limit, Reasoned, Told
from shared.kernel.auth import MANAGES, READS
from shared.kernel.deliver import deliver_unsent
from shared.kernel.direct import Line
from shared.kernel.errors import NotFound
from shared.kernel.model import GateClosing, Json
from shared.kernel.paging import USUAL_PAGE
from shared.kernel.redact import redact

router = Router()  # type: ignore[no-untyped-call]

LONGEST_CLOSED_S = 30 * 86_400
GateKey = Annotated[str, Path(max_length=200, pattern=r"^[A-Za-z0-9_.:@-]+$", description="The gate's key")]


class Gate(Told):
    """`half_open`: its time is over, and the next step through it is the probe that opens it."""

    key: str
    is_shared: bool
    state: Literal["open", "closed", "half_open", "probing"]
    until: datetime | None
    reason: str | None
    updated_at: datetime


class Gates(Told):
    gates: list[Gate]
    next: str | None


class OpenGate(Reasoned):
    shared: StrictBool = False


class CloseGate(Reasoned):
    for_s: Annotated[int, Field(ge=1, le=LONGEST_CLOSED_S)]
    shared: StrictBool = False


class Moved(Told):
    """`woken`: lanes that waited for the gate and are due now."""

    done: Literal[True] = True
    woken: int = 0


@operation(router, "GET", "/gates", READS, tag="gates")
def list_gates(limit: Limit = USUAL_PAGE, cursor: Cursor = None) -> Gates:
    """List rate limits (gates): the tenant's own, and those that all tenants share."""
    here = desk(router)
    pager = here.pager("gates", {})
    place = pager.place(cursor)
    params: dict[str, Any] = {"most": limit + 1}
    if place is not None:
        params |= {"after_key": place[0], "after_shared": place[1]}
    rows = here.all(sql.list_gates(after=place is not None), **params)
    page = [Gate(**row) for row in rows[:limit]]
    last = page[-1] if len(rows) > limit else None
    return Gates(gates=page, next=None if last is None else pager.cursor([last.key, last.is_shared]))


@operation(router, "POST", "/gates/<key>/open", MANAGES, tag="gates")
def open_gate(key: GateKey, asked: Annotated[OpenGate, Body()]) -> Moved:
    """Open a rate limit: lanes that waited for it continue now."""
    here = desk(router)
    with here.begin() as (line, tx):
        before = _before(line, here, key, shared=asked.shared)
        if before is None:
            raise NotFound
        if asked.shared:
            _move_shared(line, here, key, None, asked.reason)
        else:
            tx.open_gate(here.tenant_id, key)
        woken = tx.wake_waiting(here.tenant_id, key)
        here.audit(tx, "gate.open", f"gate:{key}", before, {"shared": asked.shared}, asked.reason)
    deliver_unsent(here.ports, woken)
    return Moved(woken=len(woken))


@operation(router, "POST", "/gates/<key>/close", MANAGES, tag="gates", refuses=[429])
def close_gate(key: GateKey, asked: Annotated[CloseGate, Body()]) -> Moved:
    """Close a rate limit for a while: never shorter than it is closed already."""
    here = desk(router)
    with here.begin() as (line, tx):
        before = _before(line, here, key, shared=asked.shared)
        if (
            before is None
            and not asked.shared
            and line.run(sql.SOME_GATES, {"tenant_id": here.tenant_id, "most": sql.MOST_GATES}) >= sql.MOST_GATES
        ):
            raise Problem(
                429, "too_many_gates", f"This tenant already has {sql.MOST_GATES} rate limits, and none is named {key}."
            )
        reason = redact(asked.reason)
        if asked.shared:
            _move_shared(line, here, key, float(asked.for_s), reason)
        else:
            closing = GateClosing(key=key, shared=False, retry_after_s=float(asked.for_s), reason=reason)
            tx.close_gate(here.tenant_id, closing)
        after = {"shared": asked.shared, "for_s": asked.for_s}
        here.audit(tx, "gate.close", f"gate:{key}", before, after, asked.reason)
    return Moved()


def _before(line: Line, here: Desk, key: str, *, shared: bool) -> Json | None:
    if shared and not here.principal.is_super:
        raise Problem(403, "not_allowed", "All tenants share this rate limit: only a super admin can change it.")
    row = line.one(sql.GATE, {"tenant_id": here.tenant_id, "key": key, "is_shared": shared})
    return None if row is None else {"state": row["state"], "until": row["until"].isoformat(), "reason": row["reason"]}


def _move_shared(line: Line, here: Desk, key: str, closed_s: float | None, reason: str) -> None:
    """The database asks again whether he is a super admin: no policy lets this role write a row of all tenants."""
    subject = here.principal.actor.removeprefix("user:")
    moved = line.one(sql.MOVE_SHARED_GATE, {"subject": subject, "key": key, "closed_s": closed_s, "reason": reason})
    assert moved is not None
    if not moved["moved"]:
        raise NotFound
