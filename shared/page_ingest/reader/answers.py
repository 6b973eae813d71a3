"""What an upstream answered, read by the words of the file. Pure, and strict: not understood is an error, never empty.

A row is read once, where it arrives: its key, whether it is kept, whether it fits its columns, and the values of these. What
reaches SQL has been checked here.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import lru_cache
from itertools import pairwise, repeat
from types import NoneType
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import orjson

from shared.kernel.answers import storable
from shared.kernel.errors import Permanent, bad_answer
from shared.page_ingest.source.model import Column, ErrorRule, Page, Pointer, Resource

MISSING: Final = object()
LARGEST_ROW: Final = 256 * 2**10
LONGEST_KEY: Final = 500
LONGEST_PLACE: Final = 7_000  # of a cursor of 8 KiB
LONGEST_ORDER: Final = 200
DEEPEST: Final = 32
MOST_COUNT: Final = 10**12
MOST_INT: Final = 2**63
EXACT_FLOAT: Final = 2**53  # beyond it a float is no longer the number that was written

_UNKEPT = re.compile("[\x00\ud800-\udfff]")

TOO_DEEP: Final = f"The row is nested deeper than {DEEPEST} levels."

ROW, KEPT_OUT, GONE, QUARANTINED = "row", "kept_out", "gone", "quarantined"


class Row(NamedTuple):
    """One row as it came. `cols` are the values of its columns, in their order; `why`: what is wrong with it."""

    key: str
    state: str
    body: bytes
    cols: Sequence[Any] = ()
    why: str = ""

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.body).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRead:
    """One page. `next`: where the next one is, None at the end; for lists by number, offset and key None says nothing."""

    rows: Sequence[Row]
    next: str | int | None = None
    at_end: bool | None = None  # as the upstream says; None: it does not say
    count: int | None = None
    exact: bool = False
    ordered: bool = True
    first: Any = None  # the order's value of the first row and of the last
    last: Any = None

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(row.key for row in self.rows)


# --- pointers ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=2_000)
def steps_of(pointer: Pointer) -> tuple[str, ...]:
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])


def at(value: Any, pointer: Pointer) -> Any:
    for step in steps_of(pointer):
        if isinstance(value, dict):
            value = value.get(step, MISSING)
        elif isinstance(value, list) and step.isascii() and step.isdigit() and len(step) < 7:
            value = value[int(step)] if int(step) < len(value) else MISSING
        else:
            return MISSING
        if value is MISSING:
            return MISSING
    return value


def there(place: str, headers: Mapping[str, str], body: Any) -> Any:
    """A header or a value of the body. Null is as good as missing."""
    found = headers.get(place.removeprefix("header:"), MISSING) if place.startswith("header:") else at(body, place)
    return MISSING if found is None else found


def is_deep(value: Any, left: int = DEEPEST) -> bool:
    if not isinstance(value, dict | list):
        return False
    if not left:
        return True
    return any(is_deep(each, left - 1) for each in (value.values() if isinstance(value, dict) else value))


# --- errors -----------------------------------------------------------------------------------------------------------


def rule_for(rules: Sequence[ErrorRule], status: int, headers: Mapping[str, str], body: Any) -> ErrorRule | None:
    """The first rule that holds for this answer."""
    for rule in rules:
        if rule.status and status not in rule.status:
            continue
        if not rule.status and rule.has is None and rule.where is None:
            continue
        if rule.has is not None and there(rule.has, headers, body) is MISSING:
            continue
        if rule.where is not None and not same(there(rule.where, headers, body), rule.equals):
            continue
        return rule
    return None


def same(found: Any, wanted: Any) -> bool:
    """Equal, and of one type: true is not 1. A header is text whatever the file says."""
    return type(found) is type(wanted) and found == wanted


# --- a page -----------------------------------------------------------------------------------------------------------


def read_page(
    resource: Resource, body: Any, headers: Mapping[str, str], size: int | None, asked: str, raw: bytes
) -> PageRead:
    """`asked` is the URL that was asked, without secrets: links are held to its origin. `raw`: the body as it came."""
    found = at(body, resource.rows)
    if not isinstance(found, list):
        where = resource.rows or "the answer"
        raise bad_answer(f"{where} is {_called(found)} instead of a list of rows.")
    if size is not None and len(found) > max(size, 1) * 2 + 100:
        raise bad_answer(f"The page has {len(found)} rows; {size} were asked for.")
    # With so few brackets beside one for each row, none is nested too deeply: they need not be looked at one by one.
    is_plain = raw.count(b"{") + raw.count(b"[") <= len(found) + DEEPEST and b"\\u0000" not in raw
    rows = (_plain_rows(resource, found) if is_plain else None) or _each_row(resource, found, is_plain=is_plain)
    count, exact = (
        read_count(resource, body) if resource.count is not None and resource.count.request is None else (None, False)
    )
    next_, at_end = _next(resource.page, found, body, headers, asked)
    ordered, first, last = _order(resource.page, found)
    return PageRead(
        rows=rows, next=next_, at_end=at_end, count=count, exact=exact, ordered=ordered, first=first, last=last
    )  # fmt: skip


def read_count(resource: Resource, body: Any) -> tuple[int, bool]:
    """The count, and whether it proves anything."""
    count = resource.count
    assert count is not None
    found = at(body, count.at)
    if isinstance(found, str) and re.fullmatch(r"[0-9]{1,12}", found):
        found = int(found)
    if type(found) is float and found.is_integer():
        found = int(found)
    if type(found) is not int or not 0 <= found <= MOST_COUNT:
        raise bad_answer(f"{count.at} is {_called(found)} instead of a count.")
    if isinstance(count.exact, bool):
        return found, count.exact
    return found, all(same(at(body, where), wanted) for where, wanted in count.exact.items())


def _next(
    page: Page, rows: Sequence[Any], body: Any, headers: Mapping[str, str], asked: str
) -> tuple[Any, bool | None]:
    at_end = _says_end(page, body)
    link: str | int | None
    match page.style:
        case "link":
            return kept_origin(_linked(headers.get("link", "")), asked), None
        case "next":
            found = there(page.at, headers, body)
            link = None if _is_none(found) or at_end else kept_origin(_texted(found, page.at), asked)
        case "token":
            found = there(page.at, headers, body)
            link = None if _is_none(found) or at_end else _token(found, page.at)
        case "after":
            return (_key_of(rows[-1], page.at) if rows else None), at_end
        case _:
            return None, None
    if link is None and at_end is False:
        raise bad_answer(f"The answer says that there is more, but {page.at} does not say where.")
    return link, at_end


def _is_none(found: Any) -> bool:
    """How upstreams say that nothing follows: they leave it out, or it is null, nothing, or false."""
    return found is MISSING or found is False or found == ""


def _says_end(page: Page, body: Any) -> bool | None:
    where = page.more or page.end
    if where is None:
        return None
    found = at(body, where)
    if type(found) is not bool:
        raise bad_answer(f"{where} is {_called(found)} instead of true or false.")
    return found is (page.end is not None)


def _texted(found: Any, where: str) -> str:
    if not isinstance(found, str):
        raise bad_answer(f"{where} is {_called(found)} instead of text.")
    return found


def _token(found: Any, where: str) -> str | int:
    if type(found) is int and _is_kept_whole(found):
        return found
    text = _texted(found, where)
    if not _is_kept_whole(text):
        raise bad_answer(f"The token in {where} has characters that cannot be kept.")
    if len(text.encode()) > LONGEST_PLACE:
        raise Permanent(f"The token in {where} is longer than a cursor may be.", "cursor_too_long")
    return text


def _key_of(row: Any, pointer: Pointer) -> str | int:
    found = at(row, pointer)
    if (type(found) is int or (isinstance(found, str) and 0 < len(found) <= LONGEST_KEY)) and _is_kept_whole(found):
        return found
    raise bad_answer(f"The last row has no {pointer} to go on after.")


def _is_kept_whole(value: str | int) -> bool:
    """Whether a cursor can keep it as it is: no NUL, no half of a character, no number of more than 64 bits."""
    return not _UNKEPT.search(value) if isinstance(value, str) else -MOST_INT <= value < 2 * MOST_INT


def _order(page: Page, rows: Sequence[Any]) -> tuple[bool, Any, Any]:
    """Whether the rows are in the order that the file names, and its first and last value."""
    if page.order is None or not rows:
        return True, None, None
    direction, pointer = page.order
    values = [_in_short(at(row, pointer)) for row in rows]
    ordered = None not in values and all(in_order(direction, a, b) for a, b in pairwise(values))
    return ordered, values[0], values[-1]


def _in_short(value: Any) -> Any:
    """A value that rows are in order by, as a cursor keeps it: what is in order as a whole is so by its beginnings too. None:
    nothing can be in order by it."""
    if isinstance(value, str):
        return _UNKEPT.sub("\N{REPLACEMENT CHARACTER}", value[:LONGEST_ORDER])
    return value if type(value) is float or (type(value) is int and _is_kept_whole(value)) else None


def in_order(direction: str, before: Any, then: Any) -> bool:
    numbers = type(before) in (int, float) and type(then) in (int, float)
    if not numbers and not (isinstance(before, str) and isinstance(then, str)):
        return False
    return bool(before <= then) if direction == "asc" else bool(before >= then)


# --- links ------------------------------------------------------------------------------------------------------------

# No part of them goes back: an upstream chooses the text, and must not choose how long it takes to read.
_BETWEEN = re.compile(r"[\s,]*+")
_TARGET = re.compile(r"<([^<>]*+)>")
_PARAM = re.compile(
    r"""\s*+;\s*+(?:([\w!#$%&*+.^`|~'-]++)\s*+(?:=\s*+(?:"((?:[^"\\]|\\.)*+)"|([^\s;,"]*+)))?)?""", re.DOTALL
)
_DONE = re.compile(r"\s*+(?:,|$)")


def _linked(header: str) -> str | None:
    """The target of rel="next" in a Link header (RFC 8288)."""
    if len(header) > 4 * LONGEST_PLACE:
        raise bad_answer("The Link header is too long.")
    found: str | None = None
    at_ = _past(_BETWEEN, header, 0)
    while at_ < len(header):
        target = _TARGET.match(header, at_)
        if target is None:
            raise bad_answer("The Link header cannot be read.")
        at_, rel = target.end(), None
        while param := _PARAM.match(header, at_):
            at_ = param.end()
            if rel is None and (param[1] or "").lower() == "rel":  # of two the first one counts
                rel = param[2] or param[3] or ""
        if not _DONE.match(header, at_):
            raise bad_answer("The Link header cannot be read.")
        if "next" in (rel or "").strip("'").lower().split():
            if found is not None and found != target[1]:
                raise bad_answer("The Link header names two next pages.")
            found = target[1]
        at_ = _past(_BETWEEN, header, at_)
    return found


def _past(pattern: re.Pattern[str], text: str, at_: int) -> int:
    match = pattern.match(text, at_)
    return match.end() if match else at_


def kept_origin(link: str | None, asked: str) -> str | None:
    """A link as a path with its query, at the host that was asked and nowhere else. A relative one begins at `asked`."""
    if link is None:
        return None
    if not link.isprintable() or " " in link or "\\" in link:
        raise bad_answer("The link to the next page is not a URL.")
    if len(link.encode()) > LONGEST_PLACE:
        raise Permanent("The link to the next page is longer than a cursor may be.", "cursor_too_long")
    try:
        there_, here = urlsplit(link), urlsplit(asked)
        port = there_.port
    except ValueError:
        raise bad_answer("The link to the next page is not a URL.") from None
    if there_.scheme or there_.netloc:
        same_host = there_.scheme == "https" and there_.hostname == here.hostname and port in (None, 443)
        if not same_host or there_.username is not None or there_.password is not None:
            raise Permanent("The link to the next page leads to another host: it was not followed.", "foreign_link")
    path = there_.path
    if not path and there_.query:
        path = here.path
    elif path and not path.startswith("/") and not there_.netloc:  # beside the page that names it
        path = f"{here.path.rpartition('/')[0]}/{path}"
    if (
        not path.startswith("/")
        or path.startswith("//")
        or any(part in {".", ".."} for part in unquote(path).split("/"))
    ):
        raise bad_answer("The link to the next page is not a plain path.")
    return path + (f"?{there_.query}" if there_.query else "")


def without(link: str, name: str) -> str:
    """A link without the parameter that carries the secret."""
    path, _, query = link.partition("?")
    kept = [(each, value) for each, value in parse_qsl(query, keep_blank_values=True) if each != name]
    return f"{path}?{urlencode(kept, quote_via=quote)}" if kept else path


# --- rows -------------------------------------------------------------------------------------------------------------


def read_row(resource: Resource, row: Any) -> Row:
    return row_reader(resource)(row)


def _each_row(resource: Resource, found: Sequence[Any], *, is_plain: bool) -> list[Row]:
    read, fitting = row_reader(resource, is_plain=is_plain), _fitting(resource.columns, found)
    return list(map(read, found) if fitting is None else map(read, found, fitting))


def _plain_rows(resource: Resource, found: Sequence[Any]) -> list[Row] | None:
    """What `row_reader` makes of a page with nothing to decide: every row is kept, has a plain key, and fits. None: look at each."""
    path = () if resource.key is None or len(resource.key) != 1 else steps_of(resource.key[0])
    decides = resource.keep_absent or resource.keep_equal or resource.gone.way == "flag"
    if decides or len(path) != 1 or (fitting := _fitting(resource.columns, found)) is None:
        return None
    keys = [row.get(path[0]) for row in found]
    if (
        set(map(type, keys)) != {str}
        or not all(keys)
        or max(map(len, keys)) > LONGEST_KEY
        or not "".join(keys).isprintable()
    ):
        return None
    try:
        bodies = [orjson.dumps(row, option=orjson.OPT_SORT_KEYS) for row in found]
    except orjson.JSONEncodeError:
        return None
    return None if max(map(len, bodies)) > LARGEST_ROW else list(map(Row, keys, repeat(ROW), bodies, fitting))


def row_reader(resource: Resource, *, is_plain: bool = False) -> Callable[..., Row]:
    """Reads rows, each with what is to be done with it. One without a key, or too large to be kept, is not a row of this list.

    What the file says is looked up here, once for all rows of a page. The values of a row's columns may be known by then.
    """
    key_of, is_kept, columns = _key_reader(resource), _keeper(resource), _column_readers(resource.columns)
    gone = resource.gone
    flag = _getter(gone.flag) if gone.way == "flag" else None
    evolves = resource.contract == "evolve"

    def read(row: Any, fitting: Sequence[Any] | None = None) -> Row:
        if type(row) is not dict:
            raise bad_answer(f"A row is {_called(row)} instead of an object.")
        try:
            body = orjson.dumps(row, option=orjson.OPT_SORT_KEYS)
        except orjson.JSONEncodeError:
            body = b""
        if not body or not (is_plain or _is_plain(body)):
            if is_deep(row):
                return too_deep(row)
            body = storable(row)
        key = key_of(row, body)
        if len(body) > LARGEST_ROW:
            why = f"The row has {len(body) // 1024} KiB; at most {LARGEST_ROW // 1024} are kept."
            return _refused(resource, key, why, b'{"too_large": true}')
        if is_kept is not None and not is_kept(row):
            return Row(key, KEPT_OUT, b"null")
        cols, why = _fitted(columns, row) if fitting is None else (fitting, "")
        if why and not evolves:
            return _refused(resource, key, why, body)
        is_gone = flag is not None and same(flag(row), gone.equals)
        return Row(key, GONE if is_gone else ROW, body, cols)

    def too_deep(row: dict[str, Any]) -> Row:
        if resource.key is None:
            raise bad_answer(TOO_DEEP)
        return _refused(resource, key_of(row, b""), TOO_DEEP, b'{"too_deep": true}')

    return read


def _is_plain(body: bytes) -> bool:
    """Fewer brackets than levels, and no NUL: the common row need not be walked through."""
    return b"\\u0000" not in body and body.count(b"{") + body.count(b"[") <= DEEPEST


def _refused(resource: Resource, key: str, why: str, body: bytes) -> Row:
    if resource.contract == "quarantine":
        return Row(key, QUARANTINED, body, (), why)
    raise Permanent(f"A row of {resource.name} does not fit: {why}", "contract")


def _getter(pointer: Pointer) -> Callable[[dict[str, Any]], Any]:
    """What a pointer leads to, in an object."""
    steps = steps_of(pointer)
    if len(steps) != 1:
        return lambda row: at(row, pointer)
    (name,) = steps
    return lambda row: row.get(name, MISSING)


def _key_reader(resource: Resource) -> Callable[[dict[str, Any], bytes], str]:
    if resource.key is None:
        return lambda _, body: hashlib.sha256(body).hexdigest()
    if len(resource.key) == 1:
        pointer, get = resource.key[0], _getter(resource.key[0])

        def of_one(row: dict[str, Any], _: bytes) -> str:
            found = get(row)
            if type(found) is str and 0 < len(found) <= LONGEST_KEY and found.isprintable():
                return found
            return _key(str(_part_of_key(pointer, found)))

        return of_one
    parts = [(pointer, _getter(pointer)) for pointer in resource.key]

    def of(row: dict[str, Any], _: bytes) -> str:
        found = [_part_of_key(pointer, get(row)) for pointer, get in parts]
        return _key(orjson.dumps(found).decode() if _small(found) else "")

    return of


def _part_of_key(pointer: Pointer, found: Any) -> str | int:
    if type(found) is int or (type(found) is str and found):
        return found
    raise bad_answer(f"A row has no {pointer} to know it by: it is {_called(found)}.")


def _key(key: str) -> str:
    if 0 < len(key) <= LONGEST_KEY and key.isprintable():
        return key
    raise bad_answer(f"The key of a row is not printable text of at most {LONGEST_KEY} characters.")


def _small(found: Sequence[Any]) -> bool:
    return all(-MOST_INT <= each < MOST_INT for each in found if type(each) is int) and all(
        each.isprintable() for each in found if isinstance(each, str)
    )


def _keeper(resource: Resource) -> Callable[[dict[str, Any]], bool] | None:
    absent = [_getter(pointer) for pointer in resource.keep_absent]
    equal = [(_getter(pointer), wanted) for pointer, wanted in resource.keep_equal.items()]
    if not absent and not equal:
        return None

    def is_kept(row: dict[str, Any]) -> bool:
        if any(get(row) not in (MISSING, None) for get in absent):
            return False
        return all(same(get(row), wanted) for get, wanted in equal)

    return is_kept


# The name of the field, if the pointer has one step.
_Column = tuple[str | None, Callable[[Any], Any], Column]


def _column_readers(columns: Sequence[Column]) -> list[_Column]:
    paths = [steps_of(column.pointer) for column in columns]
    return [
        (path[0] if len(path) == 1 else None, _FITS[column.type], column)
        for path, column in zip(paths, columns, strict=True)
    ]


def _fitting(columns: Sequence[Column], rows: Sequence[Any]) -> Iterable[Sequence[Any]] | None:
    """The values of each row, if on this page all of them fit and are kept as they came; None: look at each row. One look at a
    column is a third of the work of a look at each of its values."""
    if not columns or set(map(type, rows)) != {dict}:
        return None
    found = []
    for column in columns:
        path, fits = steps_of(column.pointer), _FITS_AS_IT_IS.get(column.type)
        if len(path) != 1 or fits is None:
            return None
        values = [row.get(path[0]) for row in rows]
        kinds = set(map(type, values))
        if NoneType in kinds:
            kinds.discard(NoneType)
            if kinds and not fits(kinds, [value for value in values if value is not None]):
                return None
        elif not fits(kinds, values):
            return None
        found.append(values)
    return zip(*found, strict=True)


def _fitted(columns: Sequence[_Column], row: dict[str, Any]) -> tuple[list[Any], str]:
    """The values of the columns. One that does not fit is null, and the first of these is named."""
    values: list[Any] = []
    why = ""
    for name, fit, column in columns:
        value = row.get(name) if name is not None else at(row, column.pointer)
        if value is not None:
            found = value
            value = None if found is MISSING else fit(found)
            if value is MISSING:
                why = why or f"{column.pointer} is {_called(found)}, not {column.type}."
                value = None
        values.append(value)
    return values, why


def _fit_text(value: Any) -> Any:
    if type(value) is not str:
        return MISSING
    return value if value.isprintable() else value.replace("\x00", "").encode("utf-8", "replace").decode()


def _fit_int(value: Any) -> Any:
    if type(value) is int:
        return value if -MOST_INT <= value < MOST_INT else MISSING
    return int(value) if type(value) is float and value.is_integer() and abs(value) <= EXACT_FLOAT else MISSING


_NUMBER = re.compile(r"-?[0-9]{1,30}(\.[0-9]{1,30})?")
_DAY = re.compile(r"\d{4}-\d\d-\d\d(T|$)")
_INSTANT = re.compile(r"[0-9-]{10}T[0-9:]{8}Z")


def _fit_number(value: Any) -> Any:
    if type(value) is str:
        return value if _NUMBER.fullmatch(value) else MISSING  # money is often sent as text
    if type(value) is int:
        return MISSING if abs(value) >= 10**30 else value if -MOST_INT <= value < MOST_INT else str(value)
    return value if type(value) is float and math.isfinite(value) else MISSING


def _fit_time(value: Any) -> Any:
    """A time with its zone; one without is taken for UTC, as most APIs mean it."""
    if not isinstance(value, str) or not 10 <= len(value) <= 40:
        return MISSING
    try:
        found = datetime.fromisoformat(value)
        if _INSTANT.fullmatch(value):
            return value  # as it is
        return (found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)).isoformat()
    except (ValueError, OverflowError):
        return MISSING


def _fit_date(value: Any) -> Any:
    if not isinstance(value, str):
        return MISSING
    try:
        return date.fromisoformat(value[:10]).isoformat() if _DAY.match(value) else MISSING
    except ValueError:
        return MISSING


def _fit_json(value: Any) -> Any:
    return orjson.Fragment(storable(value))


_FITS: Mapping[str, Callable[[Any], Any]] = {
    "text": _fit_text, "int": _fit_int, "number": _fit_number, "time": _fit_time, "date": _fit_date, "json": _fit_json,
    "bool": lambda value: value if type(value) is bool else MISSING,
}  # fmt: skip


def _are_small(values: list[Any]) -> bool:
    return bool(min(values) >= -MOST_INT and max(values) < MOST_INT)


def _are_numbers(kinds: set[type], values: list[Any]) -> bool:
    if kinds == {str}:
        return all(map(_NUMBER.fullmatch, values))
    return kinds <= {int, float} and _are_small(values) and all(map(math.isfinite, values))


def _are_instants(kinds: set[type], values: list[Any]) -> bool:
    try:
        return kinds == {str} and all(map(_INSTANT.fullmatch, values)) and all(map(datetime.fromisoformat, values))
    except ValueError:
        return False


# Whether what `_FITS` answers for each of these values is that value.
_FITS_AS_IT_IS: Mapping[str, Callable[[set[type], list[Any]], bool]] = {
    "text": lambda kinds, values: kinds == {str} and "".join(values).isprintable(),
    "int": lambda kinds, values: kinds == {int} and _are_small(values), "number": _are_numbers, "time": _are_instants,
    "bool": lambda kinds, _: kinds == {bool},
}  # fmt: skip


def _called(value: Any) -> str:
    if value is MISSING:
        return "missing"
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null")
