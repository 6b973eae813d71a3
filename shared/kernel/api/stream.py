"""Live status in short answers: what is, then every line once. Whoever was cut off comes back with the last number.

Nobody waits here for a line: whoever waits holds a copy of the function, and a dozen such streams would stall everybody else.
Whoever has very many of them is told to come back later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import orjson
from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.api_gateway import Router
from aws_lambda_powertools.event_handler.openapi.params import Header, Query

from shared.kernel.api import runs, sql
from shared.kernel.api.desk import Desk
from shared.kernel.api.frame import Problem, desk, operation
from shared.kernel.api.shapes import RunId
from shared.kernel.auth import READS
from shared.kernel.direct import Row
from shared.kernel.errors import NotFound
from shared.kernel.model import RunStatus
from shared.kernel.paging import LARGEST_PAGE

router = Router()  # type: ignore[no-untyped-call]

STREAM = "text/event-stream"
COME_BACK_MS = 2_000
TERMINAL = frozenset(str(status) for status in RunStatus if status.ended)
ANSWERS = {
    200: {"description": "A snapshot, then the lines", "content": {STREAM: {"schema": {}}}},
    204: {"description": "The run has ended and you know every line: do not come back"},
}
LastEventId = Annotated[
    int | None, Header(alias="Last-Event-ID", ge=0, le=2**31 - 1, description="The number of the last line you know")
]


@operation(router, "GET", "/runs/<run_id>/events", READS, tag="runs", answers=ANSWERS, refuses=[429])
def stream_events(
    run_id: RunId,
    last_event_id: LastEventId = None,
    after: Annotated[int, Query(ge=0, le=2**31 - 1, description="The same, for clients without the header")] = 0,
) -> Response[str]:
    """Live status as server-sent events: the run as it is now, then its events after the last you know."""
    here = desk(router)
    if here.streams is not None and (wait_s := here.streams.wait_s(here.principal.actor)):
        raise Problem(
            429,
            "too_many_streams",
            "You are watching too many runs at once. Close a tab or a `watch` command, then try again.",
            retry_after_s=wait_s,
        )
    known = after if last_event_id is None else last_event_id
    # The run before its lines: what ended by then has its terminal line among them.
    run, lines = _look(here, run_id, known)
    if not lines and run["finished_at"] is not None:
        return Response(204, body="", headers={"Cache-Control": "no-store"})
    return Response(200, STREAM, _told(run, lines), headers={"Cache-Control": "no-store"})


def _look(here: Desk, run_id: object, known: int) -> tuple[Row, Sequence[Row]]:
    found = here.one(sql.ONE_RUN, run_id=run_id)
    if found is None:
        raise NotFound
    (run,) = runs.with_rows(here, [found])
    lines = here.all(sql.HISTORY, run_id=run_id, after=known, most=LARGEST_PAGE + 1)
    if not lines and known and here.one(sql.HISTORY_LINE, run_id=run_id, n=known) is None:
        # A number that this run never gave: whoever has it knows none of these lines.
        lines = here.all(sql.HISTORY, run_id=run_id, after=0, most=LARGEST_PAGE + 1)
    return run, lines


def _told(run: Row, lines: Sequence[Row]) -> str:
    page = lines[:LARGEST_PAGE]
    told = [f"retry: {COME_BACK_MS}\n\n", _event("snapshot", runs.Run(**runs.shown(run)).model_dump_json())]
    told += [_event("line", _dumps(line), line["n"]) for line in page]
    if page and len(lines) == len(page) and page[-1]["type"] in TERMINAL:
        told.append(_event("end", _dumps({"n": page[-1]["n"], "status": page[-1]["type"]})))
    return "".join(told)


def _event(name: str, data: str, number: int | None = None) -> str:
    """JSON has no raw line break: a line of data stays one line."""
    numbered = "" if number is None else f"id: {number}\n"
    return f"{numbered}event: {name}\ndata: {data}\n\n"


def _dumps(value: Row) -> str:
    return orjson.dumps(value, default=str).decode()
