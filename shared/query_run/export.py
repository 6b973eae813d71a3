"""A result as a file: its pages read in short steps, and written to the bucket in parts.

A step reads pages until they fill a part or its time is over.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from shared.kernel.clock import stopwatch
from shared.kernel.errors import Permanent, Transient, bad_answer
from shared.kernel.files import PART, Files, Parted, UploadGone
from shared.kernel.model import Continue, Decision, Finish, Turn
from shared.query_run.model import EXPORT_PAGE, ExportCursor, Rowset, export_epoch, export_key

PAGE: Final = EXPORT_PAGE
SMALLEST_PAGE: Final = 4
STEP_S: Final = 6.0
TOO_LARGE: Final = "answer_too_large"  # of the one HTTP client, which the API does not import for this word

Read = Callable[[int, int], Rowset]


def aligned(columns: Sequence[str], row: Mapping[str, str | None]) -> list[str | None]:
    """A row's values in the order of the columns. The remote system spells names in another case at times."""
    found = {name.casefold(): value for name, value in row.items()}
    return [found.get(name.casefold()) for name in columns]


def as_csv(rows: Sequence[Sequence[str | None]]) -> bytes:
    """RFC 4180, UTF-8, values as they are."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue().encode()


def export_step(turn: Turn, cursor: ExportCursor, read: Read, files: Files, *, part: int = PART) -> Decision:
    if turn.now >= cursor.until:
        raise Permanent("The result expired before its file was written. Run the query again.", "results_expired")
    try:
        return _export(turn, cursor, read, files, part)
    except UploadGone:
        return Continue(cursor=cursor.afresh().to_json())
    except Transient as error:
        if error.code != TOO_LARGE or cursor.size <= SMALLEST_PAGE:
            raise
        return Continue(cursor=cursor.smaller().to_json())


def _export(turn: Turn, cursor: ExportCursor, read: Read, files: Files, part: int) -> Decision:
    elapsed, key = stopwatch(), export_key(turn.tenant_id, turn.run_id, export_epoch(turn.key))
    rows, size = read(1, cursor.size).count if cursor.rows is None else cursor.rows, cursor.size
    file = Parted(files, key, cursor.upload, cursor.parts, cursor.tail, part=part)
    if cursor.page == 1:
        file.write(as_csv([cursor.columns]))
    page, pages = cursor.page, max(1, -(-rows // size))
    while page <= pages and file.waiting < part and (page == cursor.page or elapsed() < STEP_S):
        file.write(as_csv([aligned(cursor.columns, row) for row in _page(read, page, size, rows)]))
        page += 1
    moved = cursor.but(page=page, rows=rows, tail=None)
    if page > pages:
        file.finish()
        return Finish(rows=rows, cursor=moved.to_json())
    left = file.rest(f"{key}.{turn.token}")
    return Continue(cursor=moved.but(**left).to_json(), rows=(page - cursor.page) * size)


def _page(read: Read, page: int, size: int, rows: int) -> Sequence[Mapping[str, str | None]]:
    """A page of the result that was found complete: one that is shorter or of another result is none of it."""
    found = read(page, size)
    if found.count != rows:
        raise Permanent("The result is not the one that was found complete any more. Run the query again.", "changed")
    if len(found.rows) != min(size, rows - (page - 1) * size):
        raise bad_answer(f"Page {page} of the result has {len(found.rows)} rows, and should have more.")
    return found.rows
