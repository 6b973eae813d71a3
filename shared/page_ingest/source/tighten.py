"""What a tenant may change about a source: smaller windows, smaller pages, a slower pace. Never the other way. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from shared.page_ingest.source import shapes
from shared.page_ingest.source.model import Duration, Pace, Resource, Source
from shared.page_ingest.source.rules import smallest_page


class Widened(ValueError):
    """The value would ask the upstream for more, or faster, than the file allows."""


def tightened(source: Source, wishes: Mapping[str, Any]) -> Source:
    """The source with a tenant's wishes: `pace`, and `RESOURCE.size` or `RESOURCE.window`."""
    for key, value in wishes.items():
        try:
            source = _with(source, key, value)
        except shapes.Wrong as wrong:
            raise Widened(f"{key} {wrong}") from None
    return source


def _with(source: Source, key: str, value: Any) -> Source:
    if key == "pace":
        pace = shapes.pace(value)
        if source.rate.pace is not None and _speed(pace) > _speed(source.rate.pace):
            raise shapes.Wrong(f"can only be slower than {source.rate.pace.text}.")
        return replace(source, rate=replace(source.rate, pace=pace))
    name, _, what = key.partition(".")
    change = CHANGES.get(what)
    if name not in source.resources or change is None:
        known = ["pace", *(f"{each}.{what}" for each in source.resources for what in CHANGES)]
        raise shapes.Wrong(f"cannot be changed{shapes.nearest(key, known)}")
    return replace(source, resources={**source.resources, name: change(source.resources[name], value)})


def _speed(pace: Pace) -> float:
    return pace.requests / pace.per


def _size(resource: Resource, value: Any) -> Resource:
    allowed = resource.page.size
    if allowed is None:
        raise shapes.Wrong("cannot be changed: the upstream chooses it.")
    size = shapes.number(smallest_page(resource.page.style), 10**9)(value)
    if size > allowed:
        raise shapes.Wrong(f"can only be smaller than {allowed:,}.")
    return replace(resource, page=replace(resource.page, size=size))


def _window(resource: Resource, value: Any) -> Resource:
    split = resource.split
    if split is None or split.window is None:
        raise shapes.Wrong("cannot be changed: this resource has no windows.")
    window: Duration = shapes.window(value)
    if window.usual_seconds > split.window.usual_seconds:
        raise shapes.Wrong(f"can only be smaller than {split.window.text}.")
    if split.format == "date" and not window.whole_days:
        raise shapes.Wrong("must be whole days.")
    return replace(resource, split=replace(split, window=window))


CHANGES: Mapping[str, Callable[[Resource, Any], Resource]] = {"size": _size, "window": _window}
