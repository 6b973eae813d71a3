"""Guards what a run says of rows that belong to rows of another list: nothing of a parent whose own list it did not read."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from infra.local.standins.server import Reply
from shared.kernel import run as runs
from tests.integration.test_source_accounts import COUNTED_FAMILY, Shops
from tests.support.rig import TENANT
from tests.support.sources import SourceRig

WITH_COLUMNS = COUNTED_FAMILY.replace(
    "[resources.orders]", 'columns = { size = "int /size" }\ncontract = "quarantine"\n[resources.orders]'
)


def claims(sources: SourceRig, run_id: UUID) -> dict[str, tuple[str, str]]:
    ends = [lane["cursor"] for lane in sources.lanes(run_id, "consolidate/")]
    return {each["resource"]: (each["claim"], each["reason"]) for each in ends}


@pytest.mark.full
def test_the_children_of_a_quarantined_parent_are_not_claimed(sources: SourceRig) -> None:
    upstream = Shops(sources, "a", "b", text=WITH_COLUMNS)
    upstream.shops[1]["size"] = "large"
    run_id = sources.start("any")

    assert sources.finish(run_id) == "succeeded partial"

    told = claims(sources, run_id)
    assert told["shops"][0] == "complete"
    assert told["orders"] == (
        "partial", "rows of its parent shops are in quarantine, and the lists that belong to them were not read",
    )  # fmt: skip
    assert sources.keys("any_orders") == ["a-1"]
    assert sources.rows("select * from source_mark") == []
    upstream.shops[1]["size"] = 7
    assert sources.read("any") == "succeeded through T"
    assert sources.keys("any_orders") == ["a-1", "b-1"]


@pytest.mark.full
@pytest.mark.parametrize("new", ["aa", "z"])
def test_a_parent_that_a_retry_finds_has_no_watermark_until_its_children_were_read(
    sources: SourceRig, new: str
) -> None:
    """Its list of children is in no share: those were made before it was there."""
    upstream = Shops(sources, "a", "b")
    upstream.odd["b"] = Reply.json({}, 400)
    run_id = sources.start("any")
    assert sources.finish(run_id) == "failed partitions_failed"
    upstream.shops.append({"id": new})
    upstream.orders[new] = [f"{new}-1"]
    upstream.odd = {}

    runs.retry_run(sources.ports, sources.kind, TENANT, run_id)
    assert sources.finish(run_id) == "succeeded drifted"

    assert claims(sources, run_id)["orders"] == (
        "drifted", "its parent shops was read again after this list was divided; start another run",
    )  # fmt: skip
    assert sources.read("any") == "succeeded through T"
    assert f"{new}-1" in sources.keys("any_orders")


def test_a_part_of_the_parents_that_a_retry_reads_is_no_proof_of_their_children(sources: SourceRig) -> None:
    """Two partitions of parents, of which one may fail. A retry reads it, and nobody its children."""
    by_color = COUNTED_FAMILY.replace(
        'query = { limit = "{size}", cursor = "{token}" }', 'query = { color = "{value}" }', 1
    ).replace('page = { token = "/next", size = 5 }', 'page = { link = "next" }', 1)
    by_color = by_color.replace("[resources.orders]", 'split = { values = ["red", "blue"] }\n[resources.orders]')
    refused: set[str] = {"red", "b"}

    def respond(request: Any, path: str) -> Reply:
        color, shop = request.query.get("color", [""])[0], path.split("/")[-2]
        if refused & {color, shop}:
            return Reply.json({}, 400)
        items = [{"id": "r" if color == "red" else shop}] if color == "red" else [{"id": "a"}, {"id": "b"}]
        orders = [{"id": f"{shop}-1", "at": "2025-06-01T00:00:00Z"}]
        return Reply.json({"items": items, "n": len(items)} if path == "/shops" else {"items": orders})

    sources.open({})
    sources.deploy(by_color)
    sources.anything.respond = respond
    run_id = sources.start("any", policy={"rule": "at_least", "percent": 50})
    assert sources.finish(run_id) == "failed partitions_failed"
    refused.clear()

    runs.retry_run(sources.ports, sources.kind, TENANT, run_id)
    assert sources.finish(run_id) == "succeeded drifted"
    assert sources.read("any") == "succeeded through T"
    assert sources.keys("any_orders") == ["a-1", "b-1", "r-1"]
