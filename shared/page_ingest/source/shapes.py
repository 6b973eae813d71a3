"""What a single value of a source file may be. Each shape answers the value as it is used, or raises `Wrong`. Pure."""

from __future__ import annotations

import difflib
import ipaddress
import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import date
from typing import Any, TypeVar

from shared.page_ingest.source.model import Duration, Pace

T = TypeVar("T")
Shape = Callable[[Any], T]

MOST_TEXT = 8_000
MOST_SHOWN = 60
DEEPEST = 32
PERIODS = {"s": 1, "min": 60, "h": 3_600, "day": 86_400}
TYPES = {str: "text", bool: "true or false", int: "a whole number", float: "a number", list: "a list", dict: "a table"}
# Names that lead into a private network, whatever they resolve to.
PRIVATE_ENDINGS = (
    "localhost",
    "local",
    "localdomain",
    "internal",
    "intranet",
    "lan",
    "home",
    "corp",
    "private",
    "arpa",
)
# Below these a country lets anybody register a name, as in co.uk.
SHARED_ENDINGS = frozenset({"ac", "co", "com", "edu", "gov", "net", "org"})
# Who asks, to whom, and how the message is framed is never a constant of the file.
RESERVED_HEADERS = frozenset(
    {"authorization", "proxy-authorization", "cookie", "host", "content-length", "transfer-encoding", "connection",
     "te", "trailer", "upgrade"}
)  # fmt: skip


class Wrong(ValueError):
    """Why a value is not what it should be, as the end of the sentence that its key begins."""


def shown(value: object) -> str:
    """A value in a message: short, and nothing in it can move a terminal's cursor."""
    text = json.dumps(value, default=str, ensure_ascii=not str(value).isprintable())
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}\N{HORIZONTAL ELLIPSIS}"


def named(word: str) -> str:
    """A key in a message: bare if it could be written so."""
    return word if re.fullmatch(r"[A-Za-z0-9_-]{1,60}", word) else shown(word)


def nearest(word: object, known: Collection[str]) -> str:
    """The end of a sentence about a word that is not one of these."""
    close = closest(word, known)
    if close is not None:
        return f"; did you mean {close}?"
    options = ", ".join(sorted(known))
    return f". Use one of: {options}." if options else ". Nothing can be used here."


def closest(word: object, known: Iterable[str]) -> str | None:
    found = difflib.get_close_matches(str(word)[:100].lower(), sorted(known), n=1, cutoff=0.55)
    return found[0] if found else None


# --- plain values -----------------------------------------------------------------------------------------------------


def _typed(value: Any, wanted: type[T]) -> T:
    if type(value) is not wanted:
        found = TYPES.get(type(value), "a date or time")
        raise Wrong(f"must be {TYPES[wanted]}, not {found}.")
    return value


def text(value: Any) -> str:
    found = _typed(value, str)
    if not found.strip():
        raise Wrong("must not be empty.")
    if len(found) > MOST_TEXT:
        raise Wrong(f"has {len(found):,} characters; at most {MOST_TEXT:,} are allowed.")
    if "\x00" in found:
        raise Wrong("contains a null character, which no database can store.")
    return found


def line(value: Any) -> str:
    found = text(value)
    if not found.isprintable():
        raise Wrong("must be one line of printable characters.")
    return found


def number(low: int, high: int) -> Shape[int]:
    def shape(value: Any) -> int:
        found = _typed(value, int)
        if not low <= found <= high:
            raise Wrong(f"must be between {low:,} and {high:,}.")
        return found

    return shape


def flag(value: Any) -> bool:
    return _typed(value, bool)


def scalar(value: Any) -> str | int | bool:
    """What an upstream's value is compared with."""
    if type(value) is str:
        return line(value) if value else ""
    if type(value) is int:
        return number(-(2**63), 2**63 - 1)(value)
    if type(value) is bool:
        return value
    raise Wrong("must be text, a whole number, true or false.")


def word(*known: str) -> Shape[str]:
    def shape(value: Any) -> str:
        found = _typed(value, str)
        if found not in known:
            raise Wrong(f"{shown(found)} is unknown{nearest(found, known)}")
        return found

    return shape


def identifier(value: Any) -> str:
    found = _typed(value, str)
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", found):
        raise Wrong("must start with a small letter and have only small letters, digits and _, at most 40.")
    return found


def secret_field(value: Any) -> str:
    """Never quoted: what stands here by mistake is the secret itself."""
    try:
        return identifier(value)
    except Wrong:
        raise Wrong("must be the name of a field of the secret, such as token; never the secret itself.") from None


def listed(shape: Shape[T], most: int) -> Shape[Sequence[T]]:
    def read(value: Any) -> Sequence[T]:
        found = _typed(value, list)
        if not 1 <= len(found) <= most:
            raise Wrong(f"must have between 1 and {most:,} elements.")
        if len({shown(each) if type(each) in {list, dict} else (type(each), each) for each in found}) < len(found):
            raise Wrong("has the same element twice.")
        return tuple(shape(each) for each in found)

    return read


# --- places in an answer ----------------------------------------------------------------------------------------------


def pointer(value: Any) -> str:
    """A JSON Pointer (RFC 6901)."""
    found = _typed(value, str)
    if found and not found.startswith("/"):
        raise Wrong(
            f'{shown(found)} is not a JSON Pointer: it starts with /, for example "/{found.lstrip("$.")[:20]}".'
        )
    if re.search(r"~(?![01])", found):
        raise Wrong("in a JSON Pointer ~ is written as ~0 and / within a name as ~1.")
    if found.count("/") > DEEPEST or len(found) > 300 or not (found.isprintable()):
        raise Wrong(f"must be one line of at most 300 characters and {DEEPEST} levels.")
    return found


def field(value: Any) -> str:
    """A pointer into a row: the row as a whole is no field."""
    found = pointer(value)
    if not found:
        raise Wrong('must name a field, for example "/id".')
    return found


def header_name(value: Any) -> str:
    found = _typed(value, str)
    if not re.fullmatch(r"[A-Za-z0-9-]{1,60}", found):
        raise Wrong("must be the name of a header: letters, digits and -.")
    return found


def own_header(value: Any) -> str:
    found = header_name(value)
    if found.lower() in RESERVED_HEADERS:
        raise Wrong(f"{found} is set by Baton. Credentials belong in auth.")
    return found


def header_value(value: Any) -> str:
    found = line(value)
    if not found.isascii():
        raise Wrong("must be plain ASCII: that is all a header can carry.")
    return found


def place(value: Any) -> str:
    """`header:name` or a pointer into the body."""
    found = _typed(value, str)
    if found.startswith("header:"):
        return f"header:{header_name(found.removeprefix('header:')).lower()}"
    if not found.startswith("/"):
        raise Wrong('must be "header:NAME" or a JSON Pointer into the body, for example "/error/code".')
    return pointer(found)


def header_place(value: Any) -> str:
    found = place(value)
    if not found.startswith("header:"):
        raise Wrong('must be a header, for example "header:x-ratelimit-remaining".')
    return found


def order(value: Any) -> tuple[str, str]:
    direction, _, where = _typed(value, str).partition(" ")
    if direction not in {"asc", "desc"} or not where:
        raise Wrong('must be a direction and a field, for example "desc /created".')
    return direction, field(where.strip())


# --- time, pace and shares --------------------------------------------------------------------------------------------


def duration(value: Any) -> Duration:
    found = _typed(value, str)
    parts = re.fullmatch(
        r"P(?=.)(?:(\d{1,3})Y)?(?:(\d{1,4})M)?(?:(\d{1,4})W)?(?:(\d{1,4})D)?"
        r"(?:T(?=.)(?:(\d{1,5})H)?(?:(\d{1,6})M)?(?:(\d{1,8})S)?)?",
        found, re.ASCII,
    )  # fmt: skip
    if parts is None:
        raise Wrong(f"{shown(found)} is not a duration. Write P7D for 7 days, P1M for a month, PT10M for 10 minutes.")
    years, months, weeks, days, hours, minutes, seconds = (int(each or 0) for each in parts.groups())
    span = Duration(
        text=found,
        months=years * 12 + months,
        seconds=((weeks * 7 + days) * 24 + hours) * 3_600 + minutes * 60 + seconds,
    )
    if not 1 <= span.usual_seconds <= 10 * 366 * 86_400:
        raise Wrong("must be between a second and ten years.")
    return span


def window(value: Any) -> Duration:
    found = duration(value)
    if found.usual_seconds < 60:
        raise Wrong("must be a minute at least.")
    return found


def pace(value: Any) -> Pace:
    found = _typed(value, str)
    parts = re.fullmatch(r"([1-9]\d{0,5})/(s|min|h|day)", found, re.ASCII)
    if parts is None:
        raise Wrong(f"{shown(found)} is not a pace. Write 5/s, 100/min, 5000/h or 10000/day.")
    return Pace(text=found, requests=int(parts[1]), per=PERIODS[parts[2]])


def percent(value: Any) -> float:
    found = _typed(value, str)
    parts = re.fullmatch(r"(\d{1,2}(?:\.\d{1,3})?)\s?%", found, re.ASCII)
    if parts is None or not 0 < float(parts[1]) <= 50:
        raise Wrong('must be a share of the table, more than 0 and at most half of it, for example "1%".')
    return float(parts[1])


def day(value: Any) -> str:
    try:
        return date.fromisoformat(_typed(value, str)).isoformat()
    except Wrong:
        raise
    except ValueError:
        raise Wrong(f'{shown(value)} is not a day. Write it as text, for example "2015-01-31".') from None


# --- where requests go ------------------------------------------------------------------------------------------------


def host(value: Any) -> str:
    """A public name. A tenant may fill in a label, never the domain: the file decides who gets the secret."""
    found = _typed(value, str)
    if "/" in found or "@" in found:
        raise Wrong(f"{shown(found)} must be a host alone, without https:// and without a path.")
    if _is_address(found):
        raise Wrong(f"{shown(found)} is an address. Use the host's name.")
    if ":" in found:
        raise Wrong(f"{shown(found)} must have no port: requests go to 443.")
    labels = found.split(".")
    if any(not re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?|\{[a-z][a-z0-9_]*\}", each) for each in labels):
        raise Wrong(f"{shown(found)} is not a host. Use small letters, digits and -; a setting is a whole label.")
    if labels[-1] in PRIVATE_ENDINGS or len(labels) < 2:
        raise Wrong(f"{shown(found)} is a private name. Only public hosts can be a source.")
    domain = 3 if len(labels[-1]) == 2 and labels[-2] in SHARED_ENDINGS else 2
    if any("{" in each for each in labels[-domain:]):
        raise Wrong(
            f"{shown(found)} would let a tenant choose the domain. Only labels before the domain may be settings."
        )
    if len(found) > 200:
        raise Wrong("is longer than a host can be.")
    return found


def _is_address(found: str) -> bool:
    bare = found.strip("[]")
    try:
        ipaddress.ip_address(bare)
    except ValueError:
        return bool(re.fullmatch(r"(?:0x[0-9a-f]+|\d+)(?:\.(?:0x[0-9a-f]+|\d+))*(?::\d+)?", bare, re.IGNORECASE))
    return True


def target(value: Any) -> str:
    """A path at the first host, or a whole URL."""
    found = line(value)
    if found.lower().startswith("http://"):
        raise Wrong("must use https: nothing is asked, and no secret is sent, over http.")
    path = found
    if not found.startswith("/"):
        if not found.startswith("https://"):
            raise Wrong(f'{shown(found)} must be a path such as "/v1/items", or a URL that starts with https://.')
        _, slash, path = found.removeprefix("https://").partition("/")
        path = slash + path
    if found.startswith("//") or any(each in {".", ".."} for each in path.split("/")) or "\\" in found:
        raise Wrong("must be a plain path: no //, no . or .. and no backslash.")
    if "?" in path or "#" in path:
        raise Wrong("must have no ? and no #. Put parameters into query.")
    if re.search(r"[\s%\"'<>]", path):
        raise Wrong("must be written plainly: Baton encodes what is put into it.")
    return found


def setting(value: Any) -> str:
    """The shape of a tenant's value. None of them has a quote, a blank or a ?, so none can change what is asked."""
    found = _typed(value, str)
    if found in {"label", "int", "date"} or re.fullmatch(r"segment(?:/segment){0,3}", found):
        return found
    hint = nearest(found, ["label", "int", "date", "segment", "segment/segment"])
    raise Wrong(f"{shown(found)} is not a shape{hint}")


def column(value: Any) -> tuple[str, str]:
    kind, _, where = _typed(value, str).partition(" ")
    known = ("text", "int", "number", "bool", "time", "date", "json")
    if kind not in known:
        raise Wrong(f"{shown(kind)} is not a type{nearest(kind, known)}")
    if not where:
        raise Wrong(f'must be a type and a field, for example "{kind} /name".')
    return kind, field(where.strip())
