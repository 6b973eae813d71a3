"""Guards that every block of docs/page-ingest.md does what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from shared.kernel.run import restart_lane, retry_run, start_run, wake_lane
from shared.page_ingest.model import CrawlCursor
from tests.support.ingest import IngestRig, ids
from tests.support.psql import psql
from tests.support.rig import TENANT

ROOT = Path(__file__).parents[2]
OTHER = UUID(int=0x0B)
PAGE = (ROOT / "docs" / "page-ingest.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.full
@pytest.mark.usefixtures("page_by_page")
def test_the_page_is_true(ingest: IngestRig) -> None:
    _, start, wake, restart, retry = blocks("python")
    ingest.stock(300)
    names: dict[str, Any] = {
        **{each.__name__: each for each in (start_run, wake_lane, restart_lane, retry_run, CrawlCursor)},
        "ports": ingest.ports,
        "kind": ingest.kind,
        "tenant_id": TENANT,
    }
    exec(start, names)
    run_id = names["run_id"]
    while not ingest.lanes(run_id):
        ingest.work(ingest.expect())
    ingest.work(ingest.expect())
    lane = ingest.lanes(run_id)[0]
    names |= {"lane_id": lane["id"], "cursor": lane["cursor"]}
    assert lane["cursor"]["offset"] == 30

    exec(wake, names)
    exec(restart, names)
    assert ingest.lanes(run_id)[0]["cursor"]["offset"] == 0
    assert ingest.finish(run_id) == "succeeded complete"
    exec(retry, names)
    assert ingest.finish(run_id) == "succeeded complete"

    assert ingest.diamonds() == ids(ingest.standin)
    assert [len(asked(ingest, each, run_id)) for each in blocks("sql")][-1] == 10


def asked(rig: IngestRig, statement: str, run_id: UUID, tenant: UUID | None = TENANT) -> list[str]:
    return psql(rig.owner.url, statement, tenant, run_id=run_id)


@pytest.mark.usefixtures("page_by_page")
def test_the_queries_show_a_partition_at_work_and_one_that_is_stuck(ingest: IngestRig) -> None:
    """Through psql, as a person asks; by its own clock, which is months ahead of the rig's: what is open is silent for long."""
    ingest.stock(300)
    run_id = ingest.start(partition_records=1_000)
    while not ingest.lanes(run_id):
        ingest.work(ingest.expect())
    ingest.work(ingest.expect())
    _, at_work, stuck, runs, workers, raw = blocks("sql")

    told = [asked(ingest, each, run_id) for each in (at_work, stuck, runs, workers, raw)]

    assert [len(rows) for rows in told] == [1, 1, 1, 1, 10]
    assert told[0][0].split("|")[:2] == [ingest.lanes(run_id)[0]["key"], "30"]
    assert [len(asked(ingest, each, run_id, OTHER)) for each in (at_work, stuck, runs, workers, raw)] == [0] * 5
    assert [len(asked(ingest, each, run_id, None)) for each in (at_work, stuck, runs, workers, raw)] == [0] * 5


def test_the_first_block_is_all_that_the_others_need(
    url_as: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {}
    monkeypatch.setenv("DATABASE_URL", url_as("baton_worker"))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")

    exec(blocks("python")[0], names)

    assert {"start_run", "wake_lane", "restart_lane", "retry_run", "CrawlCursor"} <= names.keys()
    assert (names["kind"].name, names["ports"].store.due_runs(1)) == ("page_ingest", [])
    names["engine"].dispose()


@pytest.mark.full
def test_the_stand_in_starts_as_the_page_says() -> None:
    _, command = blocks("sh")
    program, *arguments = command.split()
    assert program == "python"
    with subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        process.terminate()


def test_every_block_is_tried() -> None:
    assert len(re.findall(r"^```\w+$", PAGE, flags=re.MULTILINE)) == len(
        [*blocks("python"), *blocks("sql"), *blocks("sh"), *blocks("http")]  # see tests/docs for the last two
    )
