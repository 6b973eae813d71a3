"""Guards what a run leaves to others: rows of a newer run, requests of the reserve, and batches of a sweep that stay small."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from infra.local.standins.server import Reply, Request
from shared.kernel import run as runs
from shared.kernel import sweep as sweeping
from shared.kernel.catalogue import Catalogue
from shared.kernel.model import Run
from shared.kernel.ports import Tx
from shared.kernel.sweep import sweep
from tests.support.rig import BEGINNING, TENANT
from tests.support.sources import SourceRig, simple

QUARANTINE = simple('link = "next"', 'columns = { n = "int /n" }', 'contract = "quarantine"')


def opened(sources: SourceRig, text: str, *rows: dict[str, Any]) -> None:
    sources.open({})
    sources.deploy(text)
    shows(sources, *rows)


def shows(sources: SourceRig, *rows: dict[str, Any]) -> None:
    sources.anything.respond = lambda *_: Reply.json({"items": list(rows)})


def held_after_reading(sources: SourceRig, **params: Any) -> UUID:
    """A run that has read its rows and moved none of them."""
    run_id = sources.start("any", **params)
    while not sources.rows("select key from source_raw where run_id = :id and resource <> ''", id=run_id):
        assert sources.work_off(1)
    runs.pause_run(sources.ports, TENANT, run_id)
    sources.now += 1
    return run_id


def in_quarantine(sources: SourceRig) -> list[Any]:
    return [row["payload"]["n"] for row in sources.rows("select payload from source_quarantine order by key")]


def test_a_run_that_ends_late_takes_nothing_out_of_the_quarantine_that_came_after_it(sources: SourceRig) -> None:
    opened(sources, QUARANTINE, {"id": "a", "n": 1})
    late = held_after_reading(sources)
    shows(sources, {"id": "a", "n": "one"})
    sources.read("any")
    assert in_quarantine(sources) == ["one"]

    runs.resume_run(sources.ports, TENANT, late)
    assert sources.finish(late) == "succeeded walked"

    assert in_quarantine(sources) == ["one"]


def test_a_replay_is_not_as_new_as_what_was_quarantined_after_it_read(sources: SourceRig) -> None:
    opened(sources, QUARANTINE, {"id": "a", "n": "one"})
    sources.read("any")
    sources.deploy(QUARANTINE.replace("int /n", "text /n"))
    replay = held_after_reading(sources, replay=True)
    shows(sources, {"id": "a", "n": 3})
    sources.read("any")
    assert in_quarantine(sources) == [3]

    runs.resume_run(sources.ports, TENANT, replay)
    assert sources.finish(replay) == "succeeded replayed"

    assert in_quarantine(sources) == [3]
    assert sources.keys("any_items") == [], "what was read before says nothing in the name of a newer run"


# --- look-ups

LOOKED_UP = simple(
    'link = "next"', 'columns = { name = "text /name" }', 'gone = { look = "/items/{name}", most = "50%" }'
)
NEWER = """
update any_items set missed_by = null, said_at = :at, said_by = :by where source_key = '1' returning source_key
"""


def test_a_row_that_a_newer_run_finds_while_it_is_looked_up_is_there(sources: SourceRig) -> None:
    opened(sources, LOOKED_UP, *({"id": n, "name": f"row-{n}"} for n in range(4)))
    sources.read("any")

    def respond(_: Request, path: str) -> Reply:
        if path == "/items/row-1":  # as the newer run moves its rows into the table
            sources.rows(NEWER, at=BEGINNING.replace(year=BEGINNING.year + 1), by=UUID(int=1))
            return Reply.json({}, 404)
        if path.startswith("/items/"):  # a row that was just listed: look-ups find what is there
            return Reply.json({})
        return Reply.json({"items": [{"id": n, "name": f"row-{n}"} for n in (0, 2, 3)]})

    sources.anything.respond = respond
    assert sources.read("any") == "succeeded walked"

    assert sources.keys("any_items", gone=True) == []
    assert [row["missed_by"] for row in sources.table("any_items")] == [None] * 4


def test_look_ups_that_blow_the_fuse_say_nothing_of_any_row(sources: SourceRig) -> None:
    opened(sources, LOOKED_UP, *({"id": n, "name": f"row-{n}"} for n in range(4)))
    first = sources.start("any")
    sources.finish(first)
    sources.now += 1
    sources.anything.respond = lambda _, path: (
        Reply.json({}, 404) if path.startswith("/items/") else Reply.json({"items": []})
    )

    assert sources.read("any") == "succeeded walked"

    assert {(row["said_by"], row["missed_by"], row["gone_at"]) for row in sources.table("any_items")} == {
        (first, None, None)
    }


# --- the reserve


def test_a_list_that_ends_with_the_reserve_closes_the_gate_for_all_others(sources: SourceRig) -> None:
    at: list[float] = []

    def respond(request: Request, _: str) -> Reply:
        at.append(sources.now)
        resets = max(0.0, 1_000 - sources.now)
        told = {"X-Left": "0" if resets else "99", "X-Resets": str(resets)}
        return Reply(body=Reply.json({"items": [{"id": request.query["v"][0]}]}).body, headers=told)

    rate = 'rate = { left = "header:x-left", resets = "header:x-resets", resets_as = "seconds", reserve = 5 }'
    text = simple('link = "next"', 'split = { values = ["a", "b", "c"] }', query='v = "{value}"', head=[rate])
    sources.open({})
    sources.deploy(text)
    sources.anything.respond = respond

    assert sources.read("any") == "succeeded walked"

    assert sources.keys("any_items") == ["a", "b", "c"]
    assert [moment < 1_000 for moment in at] == [True, False, False], "the first answer has left nothing for the others"


@pytest.mark.parametrize("first", ["count", "page"])
def test_a_second_question_leaves_the_reserve_alone_too(sources: SourceRig, first: str) -> None:
    """A list whose count is a question of its own: before its first page, and again after its last one."""
    at: list[float] = []

    def respond(request: Request, path: str) -> Reply:
        at.append(sources.now)
        is_used_up = len(at) == (1 if first == "count" else 2)
        resets = {"X-Left": "0", "X-Resets": "500"} if is_used_up else {"X-Left": "99", "X-Resets": "0"}
        body = {"n": 2} if path == "/count" else {"items": [{"id": "a"}, {"id": "b"}]}
        return Reply(body=Reply.json(body).body, headers=resets)

    rate = 'rate = { left = "header:x-left", resets = "header:x-resets", resets_as = "seconds", reserve = 5 }'
    sources.open({})
    sources.deploy(simple('link = "next"', 'count = { at = "/n", get = "/count" }', head=[rate]))
    sources.anything.respond = respond

    assert sources.read("any") == "succeeded complete"

    asked_before = 1 if first == "count" else 2
    assert len([moment for moment in at if moment < at[0] + 500]) == asked_before
    assert len(at) <= 6


# --- retention


def marked(sources: SourceRig, run_id: UUID, parents: int) -> None:
    """Watermarks that a run wrote, as if it had read the children of so many parents."""
    sources.rows(
        """insert into source_mark (tenant_id, source, connection, resource, part, scope, through, run_id)
           select :tenant, 'any', '', 'orders', :run || n, 's', timestamptz '2025-01-01', cast(:run as uuid) from generate_series(1, :parents) n
           returning run_id""",
        tenant=TENANT, run=str(run_id), parents=parents,
    )  # fmt: skip


def test_the_rows_and_the_quarantine_of_an_old_run_leave_in_small_batches(
    sources: SourceRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "BATCH", 3)
    opened(sources, QUARANTINE, *({"id": n, "n": n if n < 5 else "no"} for n in range(10)))
    old = sources.start("any")
    sources.finish(old)
    marked(sources, old, 4)
    young = UUID(int=2)
    marked(sources, young, 1)
    sources.now += 91 * 86_400
    batches: list[tuple[int, int]] = []

    def left() -> int:
        tables = ("source_raw", "source_quarantine", "source_mark")
        return sum(int(sources.rows(f"select count(*) as n from {table}")[0]["n"]) for table in tables)

    def prune(tx: Tx, run: Run, most: int) -> int:
        assert sources.kind.prune is not None
        said = sources.kind.prune(tx, run, most)
        batches.append((said, most))
        return said

    before = left()
    assert sweep(sources.ports, Catalogue(replace(sources.kind, prune=prune)))["run"] == 1

    assert [row["run_id"] for row in sources.rows("select run_id from source_mark")] == [young]
    assert left() == 1
    assert sum(said for said, _ in batches) == before - 1 == 19
    assert all(said <= most == 3 for said, most in batches)
