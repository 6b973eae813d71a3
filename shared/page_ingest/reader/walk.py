"""How one page leads to the next, and where a list ends. Pure: no clock, no database, no network.

Lists by offset are walked as the built-in catalogue is (`shared/page_ingest/decide.py`): pages overlap, and who does not
find the last rows goes back. For the others the upstream says where the next page is; what is left to do is to doubt it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl

from shared.kernel.errors import Permanent
from shared.page_ingest import decide
from shared.page_ingest.model import CrawlCursor, Item, Page
from shared.page_ingest.reader.answers import PageRead, in_order
from shared.page_ingest.reader.model import ReadCursor
from shared.page_ingest.source.model import Resource

MOST_EMPTY = 100  # pages in a row without a row, though the upstream says that there are more
MOST_PAGES = 1_000_000
MOST_RESTARTS = 5
MOST_SAME = 3  # times that the same rows may come again under another name
LOST = "lost"  # the mark of a list by offset whose last rows were not where they had been
# Words in a link that count pages or rows, and those of a place. A guess, so it only ever lowers a claim.
COUNTING = re.compile(
    r"\$?_?(page|p|pg|offset|start|skip|from)([_-]?(no|nr|num|number|index|at|row))?|page\[(number|offset)\]",
    re.IGNORECASE,
)
PLACING = ("cursor", "token", "after", "before", "marker", "scroll", "continu", "seek")
RESTARTS_SMALLER = frozenset({"number", "link", "next"})  # a smaller page cannot go on in the middle


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What one page is asked with: the word of its paging and the size, or a link instead of all."""

    words: dict[str, Any]
    link: str | None = None
    at: int = 0  # of a list by offset
    size: int | None = None


def request(resource: Resource, cursor: ReadCursor) -> Asked:
    page, size = resource.page, cursor.limit
    words: dict[str, Any] = {"size": size}
    match page.style:
        case "number":
            first = page.first if isinstance(page.first, int) else 1
            words["number"] = first if cursor.place is None else cursor.place
        case "offset":
            stands = crawl(cursor)
            at, limit = decide.page_request(stands.but(empties=0) if cursor.mark == LOST else stands, None)
            return Asked(words={"size": limit, "offset": at}, at=at, size=limit)
        case "token":
            words["token"] = page.first if cursor.place is None else cursor.place
        case "after":
            words["after"] = cursor.place
        case _:
            return Asked(words=words, link=None if cursor.place is None else str(cursor.place), size=size)
    return Asked(words=words, size=size)


def crawl(cursor: ReadCursor) -> CrawlCursor:
    """A list by offset stands where a crawl of the built-in catalogue would."""
    if cursor.walk is None:
        return CrawlCursor(low=0, high=1, limit=cursor.limit or 1, counted=cursor.counted)
    return CrawlCursor.read(cursor.walk)


def wants_count(resource: Resource, cursor: ReadCursor, page: PageRead, asked: Asked) -> bool:
    """Whether this page is a reason to ask how many rows there are now."""
    if resource.count is None or resource.count.request is None or resource.count.exact is False:
        return False
    if resource.page.style == "offset":
        size = asked.size or 1
        return len(page.rows) < size or crawl(cursor).empties > 0 or cursor.received > 2 * (cursor.counted or 0) + 1_000
    return after_page(resource, cursor, page, asked, None).ended


def after_page(resource: Resource, cursor: ReadCursor, page: PageRead, asked: Asked, count: int | None) -> ReadCursor:
    """Where the reading stands after a page. `count`: how many rows there are now, if that is known exactly: one that is
    approximate or capped plans, and is no witness of anything here."""
    fresh = cursor.pages == 0
    cursor = cursor.but(pages=cursor.pages + 1, received=cursor.received + len(page.rows))
    if fresh and page.count is not None and cursor.counted is None:
        cursor = cursor.but(counted=page.count, exact=page.exact)
    cap = resource.page.most
    reached = asked.at + len(page.rows) if resource.page.style == "offset" else cursor.received
    if cap is not None and reached >= cap:
        said = f"The list of {resource.name} ends at {cap:,} rows, and this partition has as many: divide it further."
        raise Permanent(said, "cap_reached")
    if cursor.pages > MOST_PAGES:
        raise Permanent(f"Pages don't end: {cursor.received:,} rows so far.", "endless")
    match resource.page.style:
        case "offset":
            return _after_offset(cursor, page, asked, count)
        case "number":
            return _after_number(resource, cursor, page, asked, count)
        case "after":
            return _after_key(resource, cursor, page)
        case _:
            return _after_link(resource, cursor, page)


def _after_offset(cursor: ReadCursor, page: PageRead, asked: Asked, count: int | None) -> ReadCursor:
    """A page begins with the last rows of the one before. One that has nothing, not even these, is no witness of the end: it
    is asked for again. One that is the same wherever it is asked for is no page of a list."""
    keys, before = page.keys, crawl(cursor)
    said = Page(items=(Item("", "", 0, b""),) * len(keys), fetched=len(keys), ids=keys)
    walk = decide.after_page(before.but(counted=_proven(cursor)), said, asked.at, asked.size or 1, count)
    lost = LOST if not keys and asked.at < before.offset else ""
    same = _same_elsewhere(cursor.loop, keys, asked.at)
    cursor = cursor.but(walk=walk.to_json(), shifts=walk.shifts, empties=walk.empties, mark=lost, loop=same)
    if same[2] >= MOST_SAME:
        return _ended(cursor, "the same page came wherever it was asked for: perhaps no offset turns these pages")
    if decide.crawl_ended(walk, count):
        if walk.shifts >= decide.MOST_SHIFTS:
            return _ended(cursor, "rows moved too often to be followed")
        shrunk = count is not None and count <= walk.offset
        return _ended(cursor, "the last rows were not found again at the end" if lost and not shrunk else None)
    if decide.is_endless(walk, count):
        raise Permanent(f"Pages don't end: {walk.offset:,} rows read, but the upstream counts {count:,}.", "endless")
    return _spent(cursor)


def _same_elsewhere(before: Sequence[Any], keys: Sequence[str], at: int) -> list[Any]:
    """The mark of a page, where it was asked for, and how often the same one came further on."""
    mark = _mark(keys) if keys else ""
    known, known_at, times = before or ("", 0, 0)
    if not mark or mark != known:
        return [mark, at, 0]
    return [mark, max(at, known_at), times + (at > known_at)]


def _after_number(
    resource: Resource, cursor: ReadCursor, page: PageRead, asked: Asked, count: int | None
) -> ReadCursor:
    """Nothing new is an empty page, or the last one again: some upstreams answer so beyond their end."""
    mark = _mark(page.keys)
    if page.rows and mark != cursor.mark:
        return _spent(cursor.but(place=asked.words["number"] + 1, mark=mark, empties=0))
    came = cursor.received - len(page.rows)  # a page that came before brings nothing
    known = count if count is not None or not page.exact else page.count
    cursor = cursor.but(received=came, empties=cursor.empties + 1)
    if known is not None and known <= came:
        return _ended(cursor)
    if cursor.empties < 2:
        return cursor
    if known is not None:
        return _ended(cursor, f"{known:,} rows are counted, and {came:,} came")
    first_again = page.rows and asked.words["number"] == int(resource.page.first or 0) + 1
    if first_again and len(page.rows) >= (asked.size or 1):
        return _ended(cursor, "the second page was the first one again: perhaps no number turns these pages")
    return _ended(cursor)


def _after_key(resource: Resource, cursor: ReadCursor, page: PageRead) -> ReadCursor:
    direction = resource.page.order[0] if resource.page.order else "asc"
    if page.rows:
        follows = cursor.last is None or in_order(direction, cursor.last, page.first)
        shifts = cursor.shifts + (not page.ordered or not follows)
        cursor = cursor.but(shifts=shifts, last=page.last, empties=0)
    else:
        cursor = cursor.but(empties=cursor.empties + 1)
    out_of_order = "rows came in another order than the file says" if cursor.shifts else None
    if page.at_end or (page.at_end is None and cursor.empties >= 2):
        return _ended(cursor, out_of_order)
    if not page.rows:
        return _not_all_empty(cursor)
    return _spent(_moved(cursor, page.next))


def _after_link(resource: Resource, cursor: ReadCursor, page: PageRead) -> ReadCursor:
    cursor = cursor.but(empties=0 if page.rows else cursor.empties + 1)
    if page.next is None:
        return _ended(cursor)
    if resource.page.style != "token" and counts_pages(resource, str(page.next)):
        cursor = cursor.but(numbered=True)
    # Rows without a key may be equal, page after page.
    return _spent(_moved(_not_all_empty(cursor), page.next, page.keys if resource.key is not None else ()))


def counts_pages(resource: Resource, link: str) -> bool:
    """Whether a link leads to a page by its number, so that rows which move while the list is read can be skipped. What the
    file itself asks with, such as the beginning of a window, is not counted by anybody."""
    entries = resource.request.entries
    words = {
        name: value
        for name, value in parse_qsl(link.partition("?")[2])
        if name not in entries or ("{" not in str(entries[name]) and str(entries[name]) != value)
    }
    counts = any(value.isdigit() and COUNTING.fullmatch(name) for name, value in words.items())
    return counts and not any(each in name.lower() for name in words for each in PLACING)


def doubted(resource: Resource, cursor: ReadCursor, page: PageRead) -> Asked | None:
    """What to ask where a list ends with its first page, and that page is full: half of it. If that names no next page either,
    the file looks for it in the wrong place, and the list would always be one page long. A count does not help: it may be that of
    the page."""
    style, size = resource.page.style, cursor.limit
    named = style in ("link", "next", "token") and page.at_end is None
    is_full = named and cursor.ended and cursor.pages == 1 and size and len(page.rows) >= size > 1
    return half_of(resource, cursor) if is_full and not cursor.sure else None


def half_of(resource: Resource, cursor: ReadCursor) -> Asked:
    return replace(request(resource, cursor.from_the_start(limit=(cursor.limit or 2) // 2)), size=None)


def hold_to_next(resource: Resource, cursor: ReadCursor, half: PageRead) -> None:
    """Fails if half a page names no next one. One of another length says nothing: its upstream sends what it likes."""
    if half.next is None and len(half.rows) == (cursor.limit or 0) // 2:
        where = "no Link header" if resource.page.style == "link" else f"nothing in {resource.page.at}"
        said = f"{resource.name} has more than {len(half.rows)} rows, and a page of so many names no next one: {where}."
        raise Permanent(said, "no_next_page")


def _not_all_empty(cursor: ReadCursor) -> ReadCursor:
    if cursor.empties > MOST_EMPTY:
        raise Permanent(f"{cursor.empties} pages in a row have no rows, and there are always more.", "endless")
    return cursor


def _moved(cursor: ReadCursor, place: str | int | None, keys: Sequence[str] = ()) -> ReadCursor:
    """On to the next place. A place that was there before leads in circles (Brent's way to notice it with one memory), and so
    do places that are always new while the same rows come again and again."""
    here = hashlib.blake2b(repr(place).encode(), digest_size=12).hexdigest()
    known, steps, power, rows, same = cursor.loop if len(cursor.loop) == 5 else (None, 0, 1, "", 0)
    if here == known or place == cursor.place:
        raise Permanent("The list leads in circles: the place of a page came twice.", "loop")
    mark = _mark(keys) if keys else ""
    same += bool(mark) and mark == rows
    if same >= MOST_SAME:
        raise Permanent("The list leads in circles: the same rows come again and again.", "loop")
    steps += 1
    loop = [here, 0, power * 2, mark, 0] if steps == power else [known, steps, power, rows, same]
    return cursor.but(place=place, loop=loop)


def _spent(cursor: ReadCursor) -> ReadCursor:
    """Whoever received four times what was counted only runs after the list."""
    counted = _proven(cursor)
    if counted is not None and cursor.received > decide.MOST_ROUNDS * counted + 2 * decide.SPARE_ROWS:
        return _ended(cursor, "the list changed faster than it could be read")
    return cursor


def _proven(cursor: ReadCursor) -> int | None:
    """What was counted when the walk began, if that was exact. A list may be any number of times as long as a cap."""
    return cursor.counted if cursor.exact else None


def _ended(cursor: ReadCursor, why: str | None = None) -> ReadCursor:
    """Of a share of parents, what was wrong with the children of one stays said whatever comes after it."""
    why = why or cursor.why
    return cursor.but(ended=True, ok=why is None, why=why)


def judged(cursor: ReadCursor, count: int | None, exact: bool, distinct: int) -> ReadCursor:
    """Whether a walk that has ended saw exactly what was there: so many different rows as were counted before and after."""
    if not cursor.ok:
        return cursor
    if cursor.shifts:
        return cursor.but(why="rows moved while they were read")
    if cursor.counted is None or count is None or not (cursor.exact and exact):
        return cursor.but(why="the upstream gave no exact count")
    if not distinct == cursor.counted == count:
        said = (
            f"{cursor.counted:,} rows were counted before, {count:,} after, and {distinct:,} different ones were read"
        )
        return cursor.but(why=said)
    return cursor.but(clean=True)


def smaller(resource: Resource, cursor: ReadCursor) -> ReadCursor | None:
    """The same with half the page; None: it cannot be smaller."""
    least = 4 if resource.page.style == "offset" else 1
    if cursor.limit is None or cursor.limit // 2 < least:
        return None
    if resource.page.style in RESTARTS_SMALLER and cursor.pages:
        return cursor.from_the_start(limit=cursor.limit // 2)
    walk = None if cursor.walk is None else {**cursor.walk, "limit": cursor.limit // 2}
    return cursor.but(limit=cursor.limit // 2, walk=walk)


def restarted(cursor: ReadCursor) -> ReadCursor:
    """A token that has expired leads nowhere: its partition begins anew."""
    if cursor.restarts >= MOST_RESTARTS:
        raise Permanent("The upstream forgot the place in its list again and again.", "expired")
    return cursor.from_the_start().but(restarts=cursor.restarts + 1)


def _mark(keys: Sequence[str]) -> str:
    return hashlib.blake2b("\n".join(keys).encode(), digest_size=8).hexdigest()
