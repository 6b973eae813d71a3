"""A request with its words filled in, each encoded for its place. Pure.

An entry whose only word has no value yet (`{token}` on the first page) is left out. Nothing that is filled in can change
what is asked or where: settings have shapes without quotes, and a row of a parent that is put into a longer text must look
like an id.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from shared.kernel.errors import Permanent
from shared.page_ingest.reader.words import instant
from shared.page_ingest.source.model import Request, Resource, Source, Split

Words = Mapping[str, str | int | bool | None]

_WORD = re.compile(r"\{([^{}]*)\}")
_PLAIN = re.compile(r"[A-Za-z0-9_.:@-]{1,500}")
_OUT = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """One question as it is sent. `path` is quoted; `entries` go into the query of a GET and into the body of a POST."""

    method: str
    host: str
    path: str
    query: Mapping[str, str]
    body: Any = None


def filled(source: Source, request: Request, words: Words) -> Filled:
    if request.verb == "graphql":
        host, path = placed(source, source.graphql or "/", words)
        entries = _json(request.entries, words)
        return Filled(
            method="POST", host=host, path=path, query={}, body={"query": request.target, "variables": entries}
        )
    host, path = placed(source, request.target, words)
    if request.verb == "post":
        return Filled(method="POST", host=host, path=path, query={}, body=_json(request.entries, words))
    query = {name: _as_text(value) for name, value in _json(request.entries, words).items()}
    return Filled(method="GET", host=host, path=path, query=query)


def count_request(resource: Resource) -> Request:
    """The list's own filter, without what turns pages or sorts, and what the count adds to it."""
    assert resource.count is not None
    own = resource.count.request
    if own is None or own.verb == "post":
        return own or resource.request
    filters = {
        name: value
        for name, value in resource.request.entries.items()
        if name != resource.page.sorted_by and not _turns_pages(value)
    }
    if own.verb == "graphql":
        filters = {name: value for name, value in filters.items() if re.search(rf"\${re.escape(name)}\b", own.target)}
    return Request(verb=own.verb, target=own.target, entries={**filters, **own.entries})


def _turns_pages(value: Any) -> bool:
    return (
        isinstance(value, str) and set(_WORD.findall(value)) & {"size", "number", "offset", "token", "after"} != set()
    )


def placed(source: Source, target: str, words: Words) -> tuple[str, str]:
    """Host and quoted path of a target of the file."""
    host, path = source.hosts[0], target
    if not target.startswith("/"):
        host, slash, path = target.removeprefix("https://").partition("/")
        path = slash + path
    return _text(host, words), _text(path, words, slashes=source.settings, in_path=True) or "/"


def _text(text: str, words: Words, *, slashes: Collection[str] = (), in_path: bool = False) -> str:
    """`slashes`: the words that may be several segments of a path. What a row says is one, whatever is in it."""

    def value(match: re.Match[str]) -> str:
        found = words.get(match[1])
        if found is None:
            raise Permanent(f"{{{match[1]}}} has no value. Check the settings of the connection.", "bad_settings")
        said = _as_text(found)
        if in_path:
            if not said or any(part in {"", ".", ".."} for part in said.split("/")):
                raise Permanent(f"{{{match[1]}}} is empty or a dot, so it can't be part of a path.", "bad_value")
            return quote(said, safe="/" if match[1] in slashes else "")
        if match[1] == "parent" and text != match[0] and not _PLAIN.fullmatch(said):
            raise Permanent("A row of the parent has an ID that can't be put into a longer text.", "bad_value")
        return said

    return _WORD.sub(value, text)


def _json(value: Any, words: Words) -> Any:
    found = _filled(value, words)
    return {} if found is _OUT else found


def _filled(value: Any, words: Words) -> Any:
    if isinstance(value, str):
        whole = _WORD.fullmatch(value)
        if whole is None:
            return _text(value, words)
        found = words.get(whole[1])
        return _OUT if found is None else found
    if isinstance(value, Mapping):
        inner = {name: _filled(each, words) for name, each in value.items()}
        return {name: each for name, each in inner.items() if each is not _OUT}
    if isinstance(value, list | tuple):
        return [each for each in (_filled(each, words) for each in value) if each is not _OUT]
    return value


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


# --- times ------------------------------------------------------------------------------------------------------------


def said(at: datetime, format_: str) -> str | int:
    match format_:
        case "date":
            return at.date().isoformat()
        case "unix":
            return int(at.timestamp())
        case "unix_ms":
            return int(at.timestamp()) * 1000
        case _:  # not by strftime, whose %Y has as many digits as the year
            return at.replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def _last(to: datetime, split: Split) -> str | int:
    """`{to}` where the upstream includes it: the last moment before."""
    match split.format:
        case "date":
            return (to - timedelta(days=1)).date().isoformat()
        case "unix_ms":
            return int(to.timestamp()) * 1000 - 1
        case _:
            return said(to - timedelta(seconds=1), split.format)


def words_of(
    resource: Resource, settings: Mapping[str, Any], part: Mapping[str, Any], since: str | None
) -> dict[str, Any]:
    """The words that hold for a whole partition."""
    words: dict[str, Any] = dict(settings)
    split = resource.split
    if split is not None and split.way == "window":
        begin, to = instant(part["from"]), instant(part["to"])
        words["from"] = said(begin, split.format)
        words["to"] = _last(to, split) if split.to_included else said(to, split.format)
    words |= {name: part[name] for name in ("low", "high", "value", "parent") if name in part}
    if resource.since is not None:
        rule = resource.since
        first = None if rule.first is None else said(instant(rule.first), rule.format)
        words["since"] = first if since is None else said(instant(since), rule.format)
    return words
