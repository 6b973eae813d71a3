"""The `{words}` that a request is filled in with: which there are, and where they stand. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from shared.page_ingest.source.lines import Path
from shared.page_ingest.source.model import Page, Request, Resource, Split

OF_PAGES = {"number": "number", "offset": "offset", "token": "token", "after": "after"}
OF_SPLITS = {"window": ("from", "to"), "numbers": ("low", "high"), "values": ("value",), "parent": ("parent",)}
RESERVED = frozenset({"size", "since", *OF_PAGES.values(), *(word for words in OF_SPLITS.values() for word in words)})
PAGING = frozenset({"size", *OF_PAGES.values()})


def words(text: str) -> list[str]:
    return re.findall(r"\{([^{}]*)\}", text)


def has_stray_brace(text: str) -> bool:
    return any(brace in re.sub(r"\{[^{}]*\}", "", text) for brace in "{}")


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Every text within the entries of a request, with its path."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from leaves(each, (*path, name))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from leaves(each, (*path, index))


def texts(request: Request, entries_name: str) -> Iterator[tuple[Path, str]]:
    """Every text of a request that is filled in. The text of a GraphQL query is not: its variables are."""
    if request.verb != "graphql":
        yield (request.verb,), request.target
    yield from leaves(request.entries, (entries_name,))


def used(request: Request) -> frozenset[str]:
    return frozenset(word for _, text in texts(request, "entries") for word in words(text))


def of_split(split: Split | None) -> tuple[str, ...]:
    if split is None:
        return ()
    return (*OF_SPLITS[split.way], *of_split(split.then))


def of_page(page: Page) -> tuple[str, ...]:
    return (OF_PAGES[page.style],) if page.style in OF_PAGES else ()


def known(resource: Resource, settings: Mapping[str, str]) -> frozenset[str]:
    since = ("since",) if resource.since else ()
    size = ("size",) if resource.page.size else ()
    return frozenset((*settings, *of_page(resource.page), *of_split(resource.split), *since, *size))


def is_filter(value: Any) -> bool:
    """Whether an entry of a request may choose rows: all do but those that only turn pages."""
    named = {word for _, text in leaves(value) for word in words(text)}
    return not named or not named <= PAGING
