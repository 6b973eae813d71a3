"""Guards what becomes of rows that a run did not see, and from where the next run reads: no row is gone that is there, none lost."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from infra.local.standins.server import Reply, Request
from infra.local.standins.sources import iso
from shared.kernel import run as runs
from shared.page_ingest.reader.store import just_seen
from tests.support.rig import BEGINNING, TENANT
from tests.support.sources import SourceRig, simple

COUNTED = 'count = { at = "/n" }'
LOOKED_UP = 'columns = { name = "text /name" }\ngone = { look = "/items/{name}", most = "50%" }'


class Rows:
    """Rows that the list has, and others that are there all the same. `odd`: what a look-up of a row answers instead."""

    def __init__(self, sources: SourceRig, text: str, rows: int = 20) -> None:
        self.listed: dict[int, dict[str, Any]] = {n: {"id": n, "name": f"row-{n}"} for n in range(rows)}
        self.odd: dict[str, Reply] = {}
        self.looked_up: list[str] = []
        self.asked: list[Mapping[str, list[str]]] = []
        sources.open({})
        sources.deploy(text)
        sources.anything.respond = self

    def __call__(self, request: Request, path: str) -> Reply:
        if path.startswith("/items/"):
            self.looked_up.append(path.removeprefix("/items/"))
            return self.odd.get(self.looked_up[-1], Reply.json({}))
        self.asked.append(request.query)
        asked = {name: values[0] for name, values in request.query.items()}
        found = [
            row for row in self.listed.values()
            if asked.get("from", "") <= row.get("made", "") < asked.get("to", "x") and row.get("changed", "x") >= asked.get("since", "")
        ]  # fmt: skip
        return Reply.json({"items": found, "n": len(found)})


def numbers(sources: SourceRig, *, gone: bool = False) -> set[int]:
    return set(map(int, sources.keys("any_items", gone=gone)))


# --- look-ups


@pytest.mark.full
def test_a_retry_looks_up_again_what_the_first_attempt_missed(sources: SourceRig) -> None:
    upstream = Rows(sources, simple('link = "next"', LOOKED_UP))
    assert sources.read("any") == "succeeded walked"
    for n in range(11, 20):  # the last of them is looked up by the second step
        del upstream.listed[n]
    upstream.odd = {"row-11": Reply.json({}, 404), "row-19": Reply.json({}, 400)}

    run_id = sources.start("any")
    assert sources.finish(run_id) == "failed failed"
    upstream.odd.pop("row-11")
    runs.retry_run(sources.ports, sources.kind, TENANT, run_id)
    while upstream.looked_up.count("row-19") < 2:  # refused once more, and then all are looked up anew
        sources.work_off(1)
    upstream.odd = {}

    assert sources.finish(run_id) == "succeeded walked"
    assert upstream.looked_up[-9:] == [f"row-{n}" for n in range(11, 20)]
    assert numbers(sources, gone=True) == set()
    assert all(row["missed_by"] is None for row in sources.table("any_items"))


def test_a_row_that_cannot_be_looked_up_is_not_judged_and_stops_no_other(sources: SourceRig) -> None:
    upstream = Rows(sources, simple('link = "next"', LOOKED_UP))
    for n, name in enumerate([None, "..", "", "a//b"]):
        upstream.listed[n]["name"] = name
    upstream.listed[4]["name"] = "a/b"
    assert sources.read("any") == "succeeded walked"
    for n in range(8):
        del upstream.listed[n]
    upstream.odd = {"row-6": Reply.json({}, 301), "row-7": Reply.json({}, 410), "a/b": Reply.json({}, 404)}

    assert sources.read("any") == "succeeded walked"

    assert upstream.looked_up == ["row-10", "a%2Fb", "row-5", "row-6", "row-7"], (
        "what a row says is one segment of a path"
    )
    assert numbers(sources, gone=True) == {7}


@pytest.mark.full
def test_a_404_that_the_file_calls_something_else_is_not_gone(sources: SourceRig) -> None:
    """A rule that says more than a status is about that answer; one of a status alone is about lists."""
    rules = '[{ status = 404, where = "/code", equals = "BUSY", is = "throttled" }, { status = 404, is = "permanent" }]'
    upstream = Rows(sources, simple('link = "next"', LOOKED_UP, head=[f"errors = {rules}"]))
    sources.read("any")
    del upstream.listed[7], upstream.listed[9]
    upstream.odd = {"row-7": Reply.json({"code": "BUSY"}, 404), "row-9": Reply.json({}, 404)}

    run_id = sources.start("any")
    sources.run_to_end(run_id, 120)
    assert sources.run(run_id)["status"] == "running"
    upstream.odd.pop("row-7")

    assert sources.finish(run_id) == "succeeded walked"
    assert numbers(sources, gone=True) == {9}


def test_a_look_up_that_does_not_find_what_was_just_listed_judges_nothing(sources: SourceRig) -> None:
    """The path in the file is wrong, say, and answers 404 whatever is asked; the list skipped a row."""
    upstream = Rows(sources, simple('link = "next"', LOOKED_UP))
    sources.read("any")
    skipped = upstream.listed.pop(7)
    upstream.odd = {f"row-{n}": Reply.json({}, 404) for n in range(20)}

    assert sources.read("any") == "succeeded walked"

    assert numbers(sources, gone=True) == set()
    assert fuse_of(sources) == "a row that was just listed could not be looked up either: none was judged"
    upstream.listed[7] = skipped
    assert sources.read("any") == "succeeded walked"
    assert fuse_of(sources) is None


@pytest.mark.full
def test_a_run_that_listed_nothing_reads_no_table_to_find_a_row_that_it_listed(sources: SourceRig) -> None:
    upstream = Rows(sources, simple('link = "next"', LOOKED_UP), rows=2)
    assert sources.read("any") == "succeeded walked"
    (row,) = sources.table("any_items")[:1]
    copied = {name: value for name, value in row.items() if name != "source_key"}
    names = ", ".join(f'"{name}"' for name in copied)
    sources.rows(
        f"insert into any_items (source_key, {names}) select 'x' || n, {names} from any_items, generate_series(1, 20000) n where source_key = :key returning 1",
        key=row["source_key"],
    )
    upstream.listed = {}
    run_id = sources.start("any")
    asked = {"tenant_id": TENANT, "connection": row["connection"], "run_id": run_id, "resource": "items"}

    statement = f"explain (analyze, buffers, format json) {just_seen('any_items', ('name',)).text}"
    (plan,) = sources.rows(statement, **asked)[0].values()

    assert plan[0]["Plan"]["Actual Rows"] == 0
    assert plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"] < 20


# --- two runs in a row


@pytest.mark.full
def test_two_runs_at_once_are_one_witness_and_blow_the_fuse(sources: SourceRig) -> None:
    upstream = Rows(sources, simple('link = "next"', COUNTED, 'gone = "unseen"'))
    sources.read("any")
    upstream.listed = {n: upstream.listed[n] for n in range(4)}

    both = []
    for _ in range(2):
        sources.now += 1
        both.append(sources.start("any"))
        while [lane["cursor"]["stage"] for lane in sources.lanes(both[-1], "consolidate/")] != ["gone"]:
            assert sources.work_off(1)
        runs.pause_run(sources.ports, TENANT, both[-1])  # it has looked at its fuse, and judged nothing yet
    for run_id in both:
        runs.resume_run(sources.ports, TENANT, run_id)
        assert sources.finish(run_id) == "succeeded complete"
    assert numbers(sources, gone=True) == set()

    assert sources.read("any") == "succeeded complete"
    assert numbers(sources, gone=True) == set()
    assert fuse_of(sources) == "16 of 20 rows would be gone, more than 5 %: none was judged"


def test_a_run_that_ends_late_overrules_no_newer_one(sources: SourceRig) -> None:
    upstream = Rows(sources, simple('link = "next"', 'columns = { name = "text /name" }'), rows=3)
    late = sources.start("any")
    while not sources.rows("select key from source_raw where run_id = :id and resource <> ''", id=late):
        assert sources.work_off(1)
    runs.pause_run(sources.ports, TENANT, late)
    sources.now += 1
    upstream.listed[2]["name"] = "newer"
    sources.read("any")

    runs.resume_run(sources.ports, TENANT, late)
    assert sources.finish(late) == "succeeded walked"

    assert [row["name"] for row in sources.table("any_items")] == ["row-0", "row-1", "newer"]


def fuse_of(sources: SourceRig) -> str | None:
    run_id: UUID = sources.rows("select id from run order by created_at desc limit 1")[0]["id"]
    found: str | None = sources.lanes(run_id, "consolidate/")[0]["cursor"]["fuse"]
    return found


@pytest.mark.full
def test_a_row_that_a_retried_run_sees_today_is_there_whatever_newer_runs_said_before(sources: SourceRig) -> None:
    upstream = Rows(sources, simple('link = "next"', COUNTED, 'gone = { unseen = true, most = "50%" }'))
    old = sources.start("any")
    sources.work_off(1)
    runs.cancel_run(sources.ports, sources.kind, TENANT, old)
    sources.run_to_end(old, 600)
    assert sources.read("any") == "succeeded complete"
    sold = upstream.listed.pop(3)
    for _ in range(2):
        sources.now += 3_600
        assert sources.read("any") == "succeeded complete"
    assert numbers(sources, gone=True) == {3}

    sources.now += 3_600
    upstream.listed[3] = sold
    runs.retry_run(sources.ports, sources.kind, TENANT, old)
    assert sources.run_to_end(old, 600) == "succeeded"
    assert numbers(sources, gone=True) == set()


def test_rows_of_a_list_that_had_no_windows_are_not_in_any(sources: SourceRig) -> None:
    """Nobody knows when they were made, so a run of some windows says nothing about them."""
    whole = simple('link = "next"', COUNTED, 'gone = { unseen = true, most = "50%" }')
    upstream = Rows(sources, whole)
    for n, row in upstream.listed.items():
        row["made"] = "2025-02-01" if n == 5 else "2025-01-01"
    assert sources.read("any") == "succeeded complete"
    windows = whole.replace("query = {  }", 'query = { from = "{from}", to = "{to}" }')
    (sources.folder / "any.toml").write_text(windows + '\nsplit = { window = "P31D", as = "date" }\n')
    sources.files._known = None

    for _ in range(2):
        assert sources.read("any", **{"from": "2025-01-01", "to": "2025-01-20"}) == "succeeded complete"

    assert numbers(sources, gone=True) == set()


def test_a_row_that_the_file_keeps_out_by_now_is_absent(sources: SourceRig) -> None:
    upstream = Rows(
        sources, simple('link = "next"', COUNTED, 'keep = { equal = { "/open" = true } }', 'gone = { unseen = true, most = "50%" }')
    )  # fmt: skip
    for row in upstream.listed.values():
        row["open"] = True
    sources.read("any")
    upstream.listed[7]["open"] = False

    for _ in range(2):
        assert sources.read("any") == "succeeded complete"

    assert numbers(sources, gone=True) == {7}


# --- a walk that begins anew

EXPIRES = simple(
    'token = "/next", size = 5', COUNTED, query='limit = "{size}", cursor = "{token}"',
    head=['errors = [{ status = 410, is = "expired" }]'],
)  # fmt: skip


@pytest.mark.parametrize(("hidden", "claim"), [(None, "complete"), (7, "drifted")])
def test_what_a_walk_saw_before_it_began_anew_is_not_seen_again(
    sources: SourceRig, hidden: int | None, claim: str
) -> None:
    """The first row is read, and is gone when the token expires. It must not stand for one that the list leaves out."""
    sources.open({})
    sources.deploy(EXPIRES)
    ids, expires = list(range(10)), iter([True])

    def respond(request: Request, _: str) -> Reply:
        at = int(request.query.get("cursor", ["0"])[0])
        if at and next(expires, False):
            ids.remove(0)
            return Reply.json({}, 410)
        more = {"next": str(at + 5)} if at + 5 < len(ids) else {}
        return Reply.json({"items": [{"id": n} for n in ids[at : at + 5] if n != hidden], "n": len(ids), **more})

    sources.anything.respond = respond
    run_id = sources.start("any", recrawls=0)

    assert sources.finish(run_id) == f"succeeded {claim}"
    if claim == "complete":
        assert numbers(sources) == set(range(1, 10))


# --- watermarks of windows

CHANGED = simple(
    'link = "next"', 'split = { window = "P31D" }', 'since = { field = "/changed" }',
    query='from = "{from}", to = "{to}", since = "{since}"',
)  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize(
    "narrow", [{"from": "2025-01-01", "to": "2025-02-01"}, {"from": "2025-02-01"}], ids=["to", "from"]
)
def test_a_watermark_of_some_windows_is_none_of_others(sources: SourceRig, narrow: dict[str, str]) -> None:
    upstream = Rows(sources, CHANGED)
    for n, row in upstream.listed.items():
        row |= {"made": f"2025-0{n % 4 + 1}-05T00:00:00Z", "changed": "2025-05-01T00:00:00Z"}
    assert sources.read("any", **narrow) == "succeeded through T"

    assert sources.read("any", **{"from": "2025-01-01"}) == "succeeded through T"
    assert numbers(sources) == set(range(20))
    before = len(upstream.asked)
    assert sources.read("any", **{"from": "2025-01-01"}) == "succeeded through T"
    assert all("since" in query for query in upstream.asked[before:]), "the same windows go on from where they were"


@pytest.mark.full
def test_a_run_that_ends_late_moves_no_watermark_back(sources: SourceRig) -> None:
    upstream = Rows(sources, simple('link = "next"', 'since = { field = "/changed" }', query='since = "{since}"'))
    late = sources.start("any")
    sources.work_off(1)
    runs.pause_run(sources.ports, TENANT, late)
    sources.now += 3_600
    begun = BEGINNING + timedelta(seconds=sources.now)
    assert sources.read("any") == "succeeded through T"

    runs.resume_run(sources.ports, TENANT, late)
    assert sources.finish(late) == "succeeded through T"
    sources.read("any")

    assert upstream.asked[-1]["since"] == [iso(begun - timedelta(minutes=10))]
