"""Guards the claims of sources: whatever changes between any two questions, no run says more than it knows.

10,000 worlds in `make verify`, some hundreds in `make check`. A world has a list, a way to turn its pages, partitions or none,
counts, trouble on the wire; rows come, go, move and change places between any two questions.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Mapping
from random import Random
from typing import Any
from urllib.parse import urlencode

import pytest

from infra.local.standins.server import Reply, Request
from shared.kernel.model import Ending
from shared.page_ingest.reader.settle import RANK
from shared.page_ingest.source.compile import compile_source
from tests.support.source_model import DirectWire, List, Tally, World, tallied, trouble

SEEDS = int(os.environ.get("BATON_MODEL_SEEDS", "600"))
SHARES = max(1, SEEDS // 600)
STYLES = ("offset", "token", "next", "link", "after", "number")
SIZE = 5


def page_words(style: str) -> tuple[str, str]:
    """The table `page` and the entries of the query that turn pages."""
    return {
        "offset": ('offset = 0, sorted_by = "sort", size = 5', 'limit = "{size}", offset = "{offset}", sort = "id"'),
        "number": ('number = 1, sorted_by = "sort", size = 5', 'limit = "{size}", page = "{number}", sort = "id"'),
        "token": ('token = "/next", size = 5', 'limit = "{size}", cursor = "{token}"'),
        "next": ('next = "/next", size = 5', 'limit = "{size}"'),
        "link": ('link = "next", size = 5', 'limit = "{size}"'),
        "after": ('after = "/id", order = "asc /id", more = "/more", size = 5', 'limit = "{size}", after = "{after}"'),
    }[style]


def written(style: str, *, count: str, split: str, since: bool, twist: str) -> str:
    page, query = page_words(style)
    asked = [query]
    if split == "numbers":
        asked.append('low = "{low}", high = "{high}"')
    if split == "values":
        asked.append('half = "{value}"')
    if since:
        asked.append('since = "{since}"')
    lines = [
        'source = "any"', 'hosts = ["api.example.com"]', 'auth = "none"', "[resources.items]", 'get = "/items"',
        f"query = {{ {', '.join(asked)} }}", f"page = {{ {page} }}", 'rows = "/items"', 'key = ["/id"]',
    ]  # fmt: skip
    if count == "own":
        lines.append('count = { get = "/count", at = "/n" }')
    elif count == "listed":
        lines.append('count = { at = "/n" }')
    elif count == "rough":
        lines.append('count = { at = "/n", exact = false }')
    if split == "numbers":
        lines.append("split = { numbers = [0, 100], most = 20 }")
    if split == "values":
        lines.append('split = { values = ["low", "high"] }')
    if since:
        lines.append('since = { field = "/t" }')
    if twist == "keep":
        lines.append('keep = { absent = "/hidden" }')
    return "\n".join(lines)


class Upstream:
    """The list on the wire, in every style. Tokens and keys name a place in the list's immutable order, by id."""

    def __init__(self, rng: Random, shown: List, style: str, *, faults: bool, lies: bool) -> None:
        self.rng, self.list, self.style, self.faults, self.lies = rng, shown, style, faults, lies

    def __call__(self, request: Request, path: str) -> Reply:
        query = {name: values[0] for name, values in request.query.items()}
        rows = self.chosen(query)
        if path == "/count":
            return Reply.json({"n": len(rows)})
        if self.style not in ("offset", "number"):
            rows = sorted(
                rows, key=lambda row: (row["t"], row["id"]) if "since" in query or self.by_time else row["id"]
            )
        size = int(query["limit"])
        more: dict[str, Any] = {}
        if self.style == "offset":
            page = rows[int(query["offset"]) :][:size]
        elif self.style == "number":
            page = rows[(int(query["page"]) - 1) * size :][:size]
        else:
            page, more = self.keyed(request, rows, query, size)
        if self.faults and self.rng.random() < 0.05 and self.style in ("offset", "number"):
            page = page[: self.rng.randrange(len(page) + 1)]  # a short page, or none at all
        if self.lies and page and self.rng.random() < 0.1:
            page = [row for row in page if row is not page[self.rng.randrange(len(page))]]
        headers = {"Link": f'<{more.pop("link")}>; rel="next"'} if "link" in more else {}
        body = {"items": [dict(row) for row in page], "n": len(rows), **more}
        return Reply(body=json.dumps(body).encode(), headers=headers)

    by_time = False

    def chosen(self, query: Mapping[str, str]) -> list[dict[str, Any]]:
        rows = self.list.rows
        if "low" in query:
            rows = [row for row in rows if int(query["low"]) <= row["at"] < int(query["high"])]
        if "half" in query:
            rows = [row for row in rows if (row["at"] < 50) is (query["half"] == "low")]
        if "since" in query:
            rows = [row for row in rows if row["t"] >= query["since"]]
        return list(rows)

    def keyed(
        self, request: Request, rows: list[dict[str, Any]], query: Mapping[str, str], size: int
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        at = query.get("cursor") or query.get("after")
        key: Callable[[dict[str, Any]], Any] = lambda row: row["id"]  # noqa: E731 - a name for it
        if self.by_time:
            key = lambda row: [row["t"], row["id"]]  # noqa: E731 - as above
            rows.sort(key=key)
        if at is not None:
            place = json.loads(base64.b64decode(at)) if self.style != "after" else int(at)
            rows = [row for row in rows if key(row) > place]
        page = rows[:size]
        if len(rows) <= size:
            return page, {"more": False}
        token = base64.b64encode(json.dumps(key(page[-1])).encode()).decode()
        if self.style in ("next", "link"):
            token = f"/items?{urlencode({**query, 'cursor': token})}"
            if self.rng.random() < 0.5:
                token = f"https://api.example.com{token}"
        return page, {"more": True, "link" if self.style == "link" else "next": token}


def play(seed: int) -> tuple[str, str]:
    """One world. Answers its style and its claim; fails if the claim is more than is true."""
    rng = Random(seed)
    style = rng.choice(STYLES)
    count = rng.choice(("own", "own", "listed", "rough", "none"))
    split = rng.choice(("none", "none", "numbers", "values")) if count != "none" else rng.choice(("none", "values"))
    since = style != "after" and rng.random() < 0.2
    lies = rng.random() < 0.1
    compiled = compile_source(
        "any.toml", written(style, count=count, split=split, since=since, twist=rng.choice(("", "keep"))).encode()
    )
    shown = List(
        rng, rng.choice((0, 3, 14, 40, 60)), 0 if lies else rng.choice((0, 3, 12)), rng.choice((0.05, 0.3)),
        swaps=style == "offset" and not since and rng.random() < 0.5,  # changes are asked for in an order that is promised
    )  # fmt: skip
    upstream = Upstream(rng, shown, style, faults=rng.random() < 0.5, lies=lies)
    upstream.by_time = since and style not in ("offset", "number")

    def before() -> None:
        shown.change()
        trouble(rng, 0.05)

    wire = DirectWire(upstream, before)
    world = World(compiled, wire, rng, recrawls=rng.choice((0, 2, 5)))
    found = world.run()
    if isinstance(found, Ending):
        return style, f"failed: {found.problem.code if found.problem else found.outcome}"
    claim, reason = found["items"]
    (best,) = compiled.resources
    assert RANK[claim] <= RANK[best.best.claim], f"seed {seed}: {claim} is more than {best.best.claim}"
    seen = {int(key) for key in world.seen("items")}
    assert seen <= shown.ever, f"seed {seed}: nothing is seen that never was"
    missing = shown.untouched - seen
    if claim == "complete" or (claim == "through T" and not lies):  # nothing but a count shows a row that is kept back
        assert not missing, f"seed {seed}: {style} says {claim} ({reason}) without {sorted(missing)}"
    return style, claim


@pytest.mark.full
@pytest.mark.parametrize("share", range(SHARES))
def test_no_run_claims_more_than_is_true(share: int) -> None:
    found: Tally = Tally(int)
    for seed in range(share, SEEDS, SHARES):
        style, claim = play(seed)
        found[f"{style} {claim}"] += 1
    claims = {claim.partition(" ")[2] for claim in found}
    assert claims >= {"complete", "through T", "walked", "drifted"}, tallied(found)
    assert not any(claim == "number complete" for claim in found), tallied(found)


@pytest.mark.parametrize("style", STYLES)
def test_every_way_to_turn_pages_reads_a_list_that_stands_still(style: str) -> None:
    rng = Random(1)
    shown = List(rng, 57, 0, 0, swaps=False)
    compiled = compile_source("any.toml", written(style, count="own", split="none", since=False, twist="").encode())
    world = World(compiled, DirectWire(Upstream(rng, shown, style, faults=False, lies=False)), rng)
    found = world.run()
    assert not isinstance(found, Ending)
    assert found["items"][0] == ("walked" if style == "number" else "complete")
    assert {int(key) for key in world.seen("items")} == shown.untouched
