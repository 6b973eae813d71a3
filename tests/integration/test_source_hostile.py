"""Guards the claim against upstreams that do what real ones do: every case once had a claim that was not true."""

from __future__ import annotations

from typing import Any

import pytest

from infra.local.standins.server import Reply, Request
from shared.page_ingest.reader.walk import counts_pages
from shared.page_ingest.source.compile import compile_source
from tests.support.sources import SourceRig, simple

SINCE = 'since = { field = "/at" }'


class Numbered:
    """A list by change, oldest first, in pages of ten. Its links are page numbers: when a row changes, it moves to the end, and
    every row behind its old place moves up by one. `moves`: on which page the first row does so; with `replaced` it leaves
    instead, and another one comes at the end."""

    def __init__(self, moves: int = 0, page: str = "page", style: str = "link", *, replaced: bool = False) -> None:
        self.rows = [{"id": n, "at": f"2025-01-01T00:{n:02d}:00Z"} for n in range(30)]
        self.moves, self.page, self.style, self.replaced = moves, page, style, replaced

    def __call__(self, request: Request, _: str) -> Reply:
        number = int(request.query.get(self.page, ["1"])[0])
        if number == self.moves:
            self.moves = 0
            first = self.rows.pop(0)
            self.rows.append({"id": 30 if self.replaced else first["id"], "at": "2026-06-01T00:00:00Z"})
        found = self.rows[(number - 1) * 10 : number * 10]
        link = f"https://api.example.com/items?{self.page}={number + 1}" if number * 10 < len(self.rows) else None
        body: dict[str, Any] = {"items": found, "n": len(self.rows)}
        if self.style == "next":
            return Reply.json({**body, "next": link})
        headers = {} if link is None else {"Link": f'<{link}>; rel="next"'}
        return Reply(body=Reply.json(body).body, headers=headers)


@pytest.mark.parametrize(("style", "page"), [("link", "page"), ("next", "page"), ("link", "start")])
@pytest.mark.parametrize("more", [SINCE, 'count = { at = "/n" }'], ids=["since", "count"])
def test_a_link_that_is_a_page_number_proves_no_more_than_one(
    sources: SourceRig, style: str, page: str, more: str
) -> None:
    """The row that stood first on the second page is on the first one by now, which was read before."""
    sources.open({})
    turned = 'link = "next"' if style == "link" else 'next = "/next"'
    sources.deploy(simple(turned, more, query='since = "{since}"' if more == SINCE else ""))
    sources.anything.respond = Numbered(2, page, style, replaced=more != SINCE)
    run_id = sources.start("any")

    assert sources.finish(run_id) == "succeeded walked"

    assert "10" not in sources.keys("any_items"), "a row was skipped, so nothing more may be said"
    assert "page numbers" in sources.lanes(run_id, "consolidate/")[0]["cursor"]["reason"]
    assert sources.rows("select * from source_mark") == []


@pytest.mark.parametrize(
    ("link", "counts"),
    [
        ("/items?page=2", True), ("/items?per_page=10&PAGE=2", True), ("/items?pageNumber=2", True), ("/items?page%5Bnumber%5D=2", True),
        ("/items?$skip=100", True), ("/items?startAt=50", True), ("/items?start_index=50", True), ("/items?fixed=1&offset=50", True),
        ("/items?page=x2", False), ("/items?cursor=2", False), ("/items?page=2&after=abc", False), ("/items?from=100", False),
        ("/items?p=7", False), ("/items?p=8", True), ("/items/page/2", False), ("/items?after_id=2", False), ("/items?starting=3", False),
    ],
)  # fmt: skip
def test_which_links_count_pages(link: str, counts: bool) -> None:
    text = simple(
        'link = "next"', 'split = { window = "P1D", as = "unix" }', query='from = "{from}", to = "{to}", p = "7"'
    )
    resource = compile_source("any.toml", text.encode()).resources[0].resource
    assert counts_pages(resource, link) == counts


def test_a_list_of_one_page_needs_no_link_and_is_read_through_its_time(sources: SourceRig) -> None:
    sources.open({})
    sources.deploy(simple('link = "next"', SINCE, query='since = "{since}"'))
    upstream = sources.anything.respond = Numbered()
    upstream.rows = upstream.rows[:9]
    assert sources.read("any") == "succeeded through T"
