"""From the tables of a TOML file to a `Source`: every key known, every value of its shape. Pure.

Faults are collected, so that one check names them all. What could not be read is None in the answer, which is used only if
there were no faults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from shared.page_ingest.source import shapes
from shared.page_ingest.source.lines import Path
from shared.page_ingest.source.model import (
    Auth,
    Column,
    Count,
    ErrorRule,
    Gone,
    Page,
    Rate,
    Request,
    Resource,
    Since,
    Source,
    Split,
)
from shared.page_ingest.source.shapes import Shape, Wrong

T = TypeVar("T")
Note = Callable[[Path, str], None]

MOST_RESOURCES = 50
MOST_PARTITIONS = 5_000
MOST_ROWS_A_PAGE = 10_000
MOST_NUMBER = 2**53  # what a JSON number can carry everywhere
FORMATS = ("time", "date", "unix", "unix_ms")
MEANINGS = ("throttled", "too_big", "login", "expired", "empty", "transient", "permanent")
STYLES = ("number", "offset", "link", "next", "token", "after")
SPLITS = ("window", "numbers", "values", "parent")
USUAL_LOOKBACK = "PT10M"


class Table:
    """A table of the file, read key by key. Keys that nobody knows are faults at once."""

    def __init__(self, value: Any, path: Path, note: Note, known: tuple[str, ...] | None) -> None:
        self.path, self.note = path, note
        self.meant: set[str | None] = set()  # what misspelled keys are probably meant to be: named once is enough
        self.found: Mapping[str, Any] = value if isinstance(value, dict) else {}
        if not isinstance(value, dict):
            example = f" with {known[0]} and such" if known else ""
            note(path, f"must be a table{example}.")
        elif known is not None:
            for each in value:
                if each not in known:
                    self.meant.add(shapes.closest(each, known))
                    note((*path, each), f"unknown{shapes.nearest(each, known)}")

    def has(self, name: str) -> bool:
        return name in self.found

    def may(self, name: str, shape: Shape[T], default: T) -> T:
        return self._read(name, shape) if name in self.found else default

    def must(self, name: str, shape: Shape[T], why: str = "is missing.") -> T:
        if name in self.found:
            return self._read(name, shape)
        if name not in self.meant:
            self.note((*self.path, name), why)
        return None  # type: ignore[return-value] # noted: the answer is not used

    def one_of(self, names: tuple[str, ...]) -> str | None:
        """Which one of these keys the table has; a fault unless it has exactly one."""
        there = [each for each in names if each in self.found]
        if len(there) == 1:
            return there[0]
        wanted = ", ".join(names)
        if there:
            self.note((*self.path, there[1]), f"cannot stand beside {there[0]}. Use one of: {wanted}.")
        else:
            self.note(self.path, f"needs one of: {wanted}.")
        return None

    def table(self, name: str, *known: str) -> Table:
        return Table(self.found[name], (*self.path, name), self.note, known)

    def entries(self, name: str, shape: Shape[T], key: Shape[Any] = shapes.line, most: int = 100) -> Mapping[str, T]:
        """A table whose keys are the file's own."""
        if name not in self.found:
            return {}
        inner = Table(self.found[name], (*self.path, name), self.note, None)
        if len(inner.found) > most:
            self.note(inner.path, f"has {len(inner.found):,} entries; at most {most:,} are allowed.")
            return {}
        read: dict[str, T] = {}
        for each, value in inner.found.items():
            try:
                key(each)
                read[each] = shape(value)
            except Wrong as wrong:
                self.note((*inner.path, each), str(wrong))
        return read

    def _read(self, name: str, shape: Shape[T]) -> T:
        try:
            return shape(self.found[name])
        except Wrong as wrong:
            self.note((*self.path, name), str(wrong))
            return None  # type: ignore[return-value] # noted: the answer is not used


def read_source(tables: Mapping[str, Any], note: Note) -> Source:
    top = Table(
        tables, (), note,
        ("source", "hosts", "auth", "settings", "headers", "rate", "errors", "graphql", "contract", "resources"),
    )  # fmt: skip
    contract = top.may("contract", shapes.word("evolve", "quarantine", "stop"), "evolve")
    return Source(
        name=top.must("source", shapes.identifier, "is missing. Give the source a name."),
        hosts=top.must("hosts", shapes.listed(shapes.host, 10), "is missing. List the hosts that may be asked."),
        auth=_auth(top),
        settings=top.entries("settings", shapes.setting, shapes.identifier, most=20),
        headers=top.entries("headers", shapes.header_value, shapes.own_header, most=20),
        rate=_rate(top),
        errors=_errors(top),
        graphql=top.may("graphql", shapes.target, None),
        resources=_resources(top, contract),
    )


# --- the account ------------------------------------------------------------------------------------------------------


def _auth(top: Table) -> Auth:
    if not top.has("auth"):
        top.note(("auth",), 'is missing. Say how requests are authorized, or auth = "none".')
        return Auth(way="none")
    if isinstance(top.found["auth"], str):
        top.must("auth", shapes.word("none"))
        return Auth(way="none")
    ways = ("bearer", "basic", "header", "query", "oauth")
    table = top.table("auth", *ways, "key", "url", "client_id", "client_secret", "refresh_token", "scope")
    way = table.one_of(ways)
    match way:
        case "bearer":
            _only(table, way, ())
            return Auth(way=way, fields=(table.must(way, shapes.secret_field),))
        case "basic":
            _only(table, way, ())
            fields = table.must(way, shapes.listed(shapes.secret_field, 2))
            if len(fields or ("user", "password")) != 2:
                table.note((*table.path, way), "must name two fields of the secret: user and password.")
            return Auth(way=way, fields=fields)
        case "header" | "query":
            _only(table, way, ("key",))
            named = table.must(way, shapes.header_name if way == "header" else shapes.line)
            return Auth(way=way, name=named, fields=(table.must("key", shapes.secret_field),))
        case "oauth":
            return _oauth(table)
        case _:
            return Auth(way="none")


def _oauth(table: Table) -> Auth:
    way = table.must("oauth", shapes.word("client_credentials", "refresh_token"))
    more = ("refresh_token",) if way == "refresh_token" else ()
    _only(table, "oauth", ("url", "client_id", "client_secret", "scope", *more))
    return Auth(
        way=way,
        url=table.must("url", shapes.target, "is missing. Say where access tokens come from."),
        fields=tuple(table.must(each, shapes.secret_field) for each in ("client_id", "client_secret", *more)),
        scope=table.may("scope", shapes.line, ""),
    )


def _only(table: Table, way: str, others: tuple[str, ...]) -> None:
    for each in table.found:
        if each != way and each not in others:
            table.note((*table.path, each), f"has no meaning with {way}. Leave it out.")


# --- rate and errors --------------------------------------------------------------------------------------------------


def _rate(top: Table) -> Rate:
    if not top.has("rate"):
        return Rate()
    table = top.table("rate", "left", "resets", "resets_as", "reserve", "pace")
    return Rate(
        left=table.may("left", shapes.header_place, None),
        resets=table.may("resets", shapes.header_place, None),
        resets_as=table.may("resets_as", shapes.word("unix", "seconds", "date"), "unix"),
        reserve=table.may("reserve", shapes.number(0, 1_000_000), 0),
        pace=table.may("pace", shapes.pace, None),
    )


def _errors(top: Table) -> list[ErrorRule]:
    found = top.found.get("errors", [])
    if not isinstance(found, list) or len(found) > 50:
        top.note(("errors",), "must be a list of at most 50 tables.")
        return []
    return [
        _error(Table(each, ("errors", index), top.note, ("is", "status", "has", "where", "equals")))
        for index, each in enumerate(found)
    ]


def _error(table: Table) -> ErrorRule:
    return ErrorRule(
        status=table.may("status", _statuses(200, 599), ()),
        has=table.may("has", shapes.place, None),
        where=table.may("where", shapes.place, None),
        equals=table.may("equals", shapes.scalar, None),
        means=table.must("is", shapes.word(*MEANINGS), f"is missing. Use one of: {', '.join(MEANINGS)}."),
    )


def _statuses(low: int, high: int) -> Shape[tuple[int, ...]]:
    one = shapes.number(low, high)

    def shape(value: Any) -> tuple[int, ...]:
        return (one(value),) if type(value) is int else tuple(shapes.listed(one, 20)(value))

    return shape


# --- resources --------------------------------------------------------------------------------------------------------


def _resources(top: Table, contract: str) -> dict[str, Resource]:
    found = top.found.get("resources")
    if not isinstance(found, dict) or not 1 <= len(found) <= MOST_RESOURCES:
        top.note(("resources",), f"must be 1 to {MOST_RESOURCES} tables. Add one: [resources.items]")
        return {}
    read = {}
    for name, value in found.items():
        try:
            shapes.identifier(name)
        except Wrong as wrong:
            top.note(("resources", name), str(wrong))
            continue
        read[name] = _resource(name, value, top.note, contract)
    return read


def _resource(name: str, value: Any, note: Note, contract: str) -> Resource:
    table = Table(
        value, ("resources", name), note,
        ("get", "post", "graphql", "query", "body", "variables", "page", "rows", "keep", "key", "count", "split", "since",
         "columns", "gone", "contract"),
    )  # fmt: skip
    keep = table.table("keep", "absent", "equal") if table.has("keep") else None
    return Resource(
        name=name,
        request=_request(table),
        page=_page(table),
        rows=table.must("rows", shapes.pointer, 'is missing. Say where the rows are; "" is the whole answer.'),
        key=_key(table),
        keep_absent=keep.may("absent", _one_or_more, ()) if keep else (),
        keep_equal=keep.entries("equal", shapes.scalar, shapes.field, most=20) if keep else {},
        count=_count(table) if table.has("count") else None,
        split=_split(table) if table.has("split") else None,
        since=_since(table) if table.has("since") else None,
        columns=[
            Column(name=each, type=kind, pointer=where)
            for each, (kind, where) in table.entries("columns", shapes.column, shapes.identifier, most=200).items()
        ],
        gone=_gone(table),
        contract=table.may("contract", shapes.word("evolve", "quarantine", "stop"), contract),
    )


def _one_or_more(value: Any) -> tuple[str, ...]:
    return (shapes.field(value),) if isinstance(value, str) else tuple(shapes.listed(shapes.field, 20)(value))


def _key(table: Table) -> tuple[str, ...] | None:
    if table.found.get("key") == "hash":
        return None
    why = 'is missing. Say what identifies a row, for example ["/id"]; or "hash" if nothing does.'
    return tuple(table.must("key", shapes.listed(shapes.field, 8), why) or ())


REQUESTS = {"get": "query", "post": "body", "graphql": "variables"}


def _request(table: Table) -> Request:
    verb = table.one_of(tuple(REQUESTS))
    for other, entries in REQUESTS.items():
        if verb is not None and other != verb and table.has(entries):
            table.note((*table.path, entries), f"belongs to {other}, and this is a {verb}. Use {REQUESTS[verb]}.")
    if verb is None:
        return Request(verb="get", target="/", entries={})
    asked = table.must(verb, shapes.text if verb == "graphql" else shapes.target)
    return Request(verb=verb, target=asked, entries=_entries(table, REQUESTS[verb]))


def _entries(table: Table, name: str) -> Mapping[str, Any]:
    """Query parameters are flat; a body and variables may be any JSON."""
    return table.entries(name, shapes.scalar if name == "query" else _json)


def _json(value: Any) -> Any:
    if isinstance(value, dict):
        return {shapes.line(name): _json(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_json(each) for each in value]
    if type(value) is float and abs(value) < MOST_NUMBER:
        return value
    return shapes.scalar(value)


def _page(table: Table) -> Page:
    if not table.has("page"):
        table.note((*table.path, "page"), f"is missing. Say how to get the next page: {', '.join(STYLES)}.")
        return Page(style="link")
    inner = table.table("page", *STYLES, "size", "most", "first", "more", "end", "order", "sorted_by")
    style = inner.one_of(STYLES)
    if style is None:
        return Page(style="link")
    only = {
        "number": ("sorted_by",), "offset": ("sorted_by",), "link": (), "next": ("more", "end"),
        "token": ("first", "more", "end"), "after": ("more", "end", "order"),
    }  # fmt: skip
    _only(inner, style, (*only[style], "size", "most"))
    at: Shape[Any] = {
        "number": shapes.number(0, 1), "offset": shapes.number(0, 0), "link": shapes.word("next"),
        "next": shapes.field, "token": shapes.place, "after": shapes.field,
    }[style]  # fmt: skip
    found = inner.must(style, at)
    size = shapes.number(1, MOST_ROWS_A_PAGE)
    counts_rows = style in {"number", "offset", "after"}
    return Page(
        style=style,
        at="" if isinstance(found, int) else found,
        first=found if isinstance(found, int) else inner.may("first", shapes.line, None),
        size=inner.must("size", size, "is missing. Say how many rows a page has.") if counts_rows
        else inner.may("size", size, None),
        most=inner.may("most", shapes.number(1, 10**9), None),
        more=inner.may("more", shapes.field, None),
        end=inner.may("end", shapes.field, None),
        order=inner.must("order", shapes.order, 'is missing. Say how the list is sorted, for example "asc /id".')
        if style == "after" else None,
        sorted_by=inner.must(
            "sorted_by", shapes.line,
            'is missing: without an order, rows can change places between pages. Name the parameter that sorts, or'
            ' "upstream" if the API promises an order.',
        ) if style in {"number", "offset"} else None,
    )  # fmt: skip


def _count(table: Table) -> Count:
    inner = table.table("count", "at", "exact", *REQUESTS, *REQUESTS.values())
    own = [each for each in (*REQUESTS, *REQUESTS.values()) if inner.has(each)]
    return Count(
        at=inner.must("at", shapes.field, "is missing. Say where the count is in the answer."),
        request=_count_request(table, inner) if own else None,
        exact=_exact(inner),
    )


def _count_request(table: Table, inner: Table) -> Request | None:
    """A count is asked as the list is, unless it says otherwise: `count = { query = { ... } }` adds to the list's query."""
    own = [each for each in REQUESTS if inner.has(each)]
    listed = [each for each in REQUESTS if table.has(each)]
    if len(listed) != 1 or len(own) > 1 or (own and own != listed):
        verb = listed[0] if len(listed) == 1 else "list"
        inner.note((*inner.path, *own[-1:]), f"must be asked as the list is, with {verb}.")
        return None
    verb = listed[0]
    for each in REQUESTS.values():
        if inner.has(each) and each != REQUESTS[verb]:
            inner.note((*inner.path, each), f"has no meaning with {verb}. Use {REQUESTS[verb]}.")
    target = table.found[verb]
    if own:
        target = inner.must(verb, shapes.text if verb == "graphql" else shapes.target)
    return Request(verb=verb, target=target, entries=_entries(inner, REQUESTS[verb]))


def _exact(inner: Table) -> bool | Mapping[str, str | int | bool]:
    if isinstance(inner.found.get("exact"), dict):
        found = inner.entries("exact", shapes.scalar, shapes.field, most=5)
        if not found:
            inner.note((*inner.path, "exact"), 'must say what shows it, for example { "/precision" = "EXACT" }.')
        return found
    return inner.may("exact", shapes.flag, True)


def _split(table: Table) -> Split | None:
    return _split_of(Table(table.found["split"], (*table.path, "split"), table.note, None), inner=False)


def _split_of(given: Table, *, inner: bool) -> Split | None:
    ways = ("numbers", "values") if inner else SPLITS
    table = Table(given.found, given.path, given.note, (*ways, *(() if inner else ("as", "to", "moves", "key", "then")), "most"))  # fmt: skip
    way = table.one_of(ways) if given.found or not inner else None
    most = table.may("most", shapes.number(1, 10_000_000), None)
    then = _then(table) if table.has("then") else None
    match way:
        case "window":
            _only(table, way, ("as", "to", "moves", "most", "then"))
            return Split(
                way=way,
                window=table.must(way, shapes.window),
                format=table.may("as", shapes.word(*FORMATS), "time"),
                to_included=table.may("to", shapes.word("included", "excluded"), "excluded") == "included",
                moves=table.may("moves", shapes.flag, None),
                most=most,
                then=then,
            )
        case "numbers":
            _only(table, way, ("most",))
            return Split(way=way, numbers=table.must(way, _numbers), most=most)
        case "values":
            _only(table, way, ("most", "then"))
            values = table.must(way, shapes.listed(shapes.scalar, MOST_PARTITIONS))
            return Split(way=way, values=values, most=most, then=then)
        case "parent":
            _only(table, way, ("key", "then"))
            return Split(
                way=way,
                parent=table.must(way, shapes.identifier),
                parent_key=table.must("key", shapes.field, "is missing. Name the field of the parent's rows to use."),
                then=then,
            )
        case _:
            return None


def _then(table: Table) -> Split | None:
    return _split_of(Table(table.found["then"], (*table.path, "then"), table.note, None), inner=True)


def _numbers(value: Any) -> tuple[int, int]:
    low, high = 0, MOST_NUMBER
    found = shapes.listed(shapes.number(low, high), 2)(value)
    if len(found) != 2 or found[0] >= found[1]:
        raise Wrong("must be two numbers, the smaller first: [0, 1_000_000].")
    return found[0], found[1]


def _since(table: Table) -> Since:
    inner = table.table("since", "field", "lookback", "lag", "as", "first")
    return Since(
        field=inner.must("field", shapes.field, 'is missing. Name the field that changes, for example "/updated_at".'),
        lookback=inner.may("lookback", shapes.duration, shapes.duration(USUAL_LOOKBACK)),
        lag=inner.may("lag", shapes.duration, None),
        format=inner.may("as", shapes.word(*FORMATS), "time"),
        first=inner.may("first", shapes.day, None),
    )


def _gone(table: Table) -> Gone:
    if not table.has("gone"):
        return Gone(way="never")
    if isinstance(table.found["gone"], str):
        return Gone(way=table.must("gone", shapes.word("unseen", "never")))
    ways = ("look", "flag", "unseen")
    inner = table.table("gone", *ways, "status", "most", "equals")
    way = inner.one_of(ways)
    if way is None:
        return Gone(way="never")
    _only(inner, way, {"look": ("status", "most"), "flag": ("equals",), "unseen": ("most",)}[way])
    if way == "unseen" and inner.must(way, shapes.flag) is False:
        inner.note((*inner.path, way), 'must be true. For no rule at all write gone = "never".')
    return Gone(
        way=way,
        most=inner.may("most", shapes.percent, 5.0),
        look=inner.must(way, shapes.target) if way == "look" else "",
        status=inner.may("status", _statuses(400, 499), (404, 410)),
        flag=inner.must(way, shapes.field) if way == "flag" else "",
        equals=inner.must("equals", shapes.scalar) if inner.has("equals") else True,
    )
