"""Guards what follows in a run of several lists: parents first, each list with its own claim, the weakest speaks for the run."""

from __future__ import annotations

from random import Random
from typing import Any

from infra.local.standins.server import Reply, Request
from shared.kernel.model import Ending, Lane, LaneStatus, RunStatus
from shared.page_ingest.reader.settle import settle
from shared.page_ingest.source.compile import compile_source
from tests.support.source_model import DirectWire, World

FAMILY = """
source = "any"
hosts = ["api.example.com"]
auth = "none"
[resources.shops]
get = "/shops"
query = { cursor = "{token}" }
page = { token = "/next" }
rows = "/items"
key = ["/id"]
count = { at = "/n" }
[resources.orders]
get = "/shops/{parent}/orders"
query = { cursor = "{token}" }
page = { token = "/next" }
rows = "/items"
key = ["/id"]
split = { parent = "shops", key = "/id" }
[resources.notes]
get = "/orders/{parent}/notes"
query = { cursor = "{token}" }
page = { token = "/next" }
rows = "/items"
key = ["/id"]
split = { parent = "orders", key = "/id" }
"""


def respond(request: Request, path: str) -> Reply:
    _, _, *rest = path.split("/")
    if not rest:
        return Reply.json({"items": [{"id": f"s{n}"} for n in range(3)], "n": 3})
    return Reply.json({"items": [{"id": f"{rest[0]}-{n}"} for n in range(2)]})


def family(answer: Any = respond, **params: Any) -> World:
    return World(compile_source("any.toml", FAMILY.encode()), DirectWire(answer), Random(0), **params)


def consolidated(world: World) -> Ending:
    """The run's end once every list is in its table."""
    found = world.run()
    assert not isinstance(found, Ending), found
    lanes = [world._lane(key) for key in world.lanes]
    made = settle(world._run(), lanes)
    assert not isinstance(made, Ending)
    done = [
        Lane(
            id=lanes[0].id,
            key=new.key,
            status=LaneStatus.DONE,
            holds_run=True,
            epoch=1,
            cursor=new.cursor,
            last_error=None,
        )
        for new in made.lanes
    ]
    ended = settle(world._run(), [*lanes, *done])
    assert isinstance(ended, Ending)
    return ended


def test_children_are_read_after_their_parents_and_claim_no_more() -> None:
    world = family()
    found = world.run()
    assert not isinstance(found, Ending)
    assert {name: claim for name, (claim, _) in found.items()} == {
        "shops": "complete",
        "orders": "walked",
        "notes": "walked",
    }
    assert len(world.seen("orders")) == 6
    assert len(world.seen("notes")) == 12


def test_the_weakest_list_speaks_for_the_run() -> None:
    ended = consolidated(family())
    assert (ended.status, ended.outcome) == (RunStatus.SUCCEEDED, "walked")
    assert consolidated(family(resources=["shops"])).outcome == "complete"


def test_a_parent_that_drifted_takes_its_children_along() -> None:
    def wrong(request: Request, path: str) -> Reply:
        return Reply.json({"items": [{"id": "s1"}], "n": 2}) if path == "/shops" else respond(request, path)

    found = family(wrong, recrawls=0).run()
    assert not isinstance(found, Ending)
    assert [claim for claim, _ in found.values()] == ["drifted"] * 3
    assert found["notes"][1].startswith("because of its parent orders: because of its parent shops:")


def test_a_list_of_no_parents_has_no_partitions_and_ends() -> None:
    found = family(lambda *_: Reply.json({"items": [], "n": 0})).run()
    assert not isinstance(found, Ending)
    assert {name: claim for name, (claim, _) in found.items()} == {
        "shops": "complete",
        "orders": "walked",
        "notes": "walked",
    }


def test_a_child_that_is_chosen_brings_its_parents_along() -> None:
    world = family(resources=["orders"])
    found = world.run()
    assert not isinstance(found, Ending)
    assert set(found) == {"shops", "orders"}
