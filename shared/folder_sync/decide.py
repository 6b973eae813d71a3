"""The decisions of folder sync. Pure: no clock, no database, no network."""

from __future__ import annotations

from collections.abc import Sequence

from shared.folder_sync.model import MOST_RESETS, Entry, FolderCursor, Page
from shared.kernel.errors import Permanent, bad_answer


def after_page(cursor: FolderCursor, page: Page) -> FolderCursor:
    """Where the next page is. Once everything is listed, only changes follow. A page may be empty, but more of it cannot
    begin where it began: whoever believed that would ask for ever."""
    if page.has_more and page.cursor == cursor.at:
        raise bad_answer("Dropbox says that there is more, but its cursor points back to the same page.")
    return cursor.but(at=page.cursor, listing=cursor.listing and page.has_more)


def after_reset(cursor: FolderCursor) -> FolderCursor:
    """The provider has forgotten the place: everything is listed anew, and what is not found again was removed meanwhile."""
    if cursor.resets >= MOST_RESETS:
        raise Permanent("Dropbox has reset its cursor again and again.", "too_many_resets")
    return cursor.but(at=None, listing=True, generation=cursor.generation + 1, resets=cursor.resets + 1)


def last_words(entries: Sequence[Entry]) -> list[Entry]:
    """What a page comes to: of several entries of a path the last one counts, and what is deleted, or is a file now, takes
    along what was named below it before. A folder that was made anew says nothing of that: what it held before it was
    deleted is deleted still."""
    kept: dict[str, Entry] = {}
    emptied: dict[str, Entry] = {}
    for entry in entries:
        before = kept.pop(entry.path, entry)
        if entry.tag != "folder":
            kept = {path: each for path, each in kept.items() if not path.startswith(f"{entry.path}/")}
        elif before.tag != "folder":
            emptied[entry.path] = Entry(tag="deleted", path=entry.path)
        kept[entry.path] = entry
    return [*emptied.values(), *kept.values()]
