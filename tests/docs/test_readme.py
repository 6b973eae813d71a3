"""Guards that the README is true: its kind runs, and it answers what somebody with two minutes asks."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.migrations.tenancy import tenant_table
from shared.kernel import run as runs
from tests.support.blocks import blocks_of
from tests.support.rig import TENANT, Rig, make_rig, rig, rig_database

__all__ = ["make_rig", "rig", "rig_database"]

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"


def test_the_kind_of_the_readme_runs(rig: Rig) -> None:
    (code,) = (block.text for block in blocks_of(README) if block.language == "python")
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec", dont_inherit=True), names)
    with rig.owner.connect() as connection:
        connection.exec_driver_sql("drop table if exists reminder")
        connection.exec_driver_sql(
            "create table reminder (tenant_id uuid not null, run_id uuid not null, n integer not null);"
            + tenant_table("reminder")
        )
    rig.kind = replace(names["REMINDER"], name="tally")  # the rig's queue has this name

    rig.tick_every_s = 3_600  # it waits for days

    run_id = runs.start_run(rig.ports, rig.kind, TENANT, {"times": 3})

    assert rig.run_to_end(run_id, within_s=4 * 86_400) == "succeeded"
    assert [row["n"] for row in rig.rows("select n from reminder where run_id = :id order by n", id=run_id)] == [
        0,
        1,
        2,
    ]


def test_the_kind_is_about_fifteen_lines() -> None:
    (code,) = (block.text for block in blocks_of(README) if block.language == "python")

    assert len([line for line in code.splitlines() if line.strip()]) <= 20


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("## What it is for", "work that outlives a Lambda function"),
        ("**When not to use it:**", "must answer within a second"),
        ("## What it costs", "about $20 a month"),
        ("## Start", "make up"),
        ("## How it compares", "**Choose instead:**"),
        ("## How it is proved", "make simulate"),
    ],
)
def test_it_answers(question: str, answer: str) -> None:
    section = README.read_text().partition(question)[2].partition("\n## ")[0]

    assert answer in section


def test_it_names_the_prices_of_the_guide() -> None:
    costs = README.read_text().partition("## What it costs")[2].partition("\n## ")[0]
    guide = (ROOT / "docs" / "deploy.md").read_text().partition("## What it costs")[2].partition("\n## ")[0]
    (with_everything,) = re.findall(r"^\| \*\*with NAT\*\* \| \*\*(\d+)\*\* \|$", guide, re.MULTILINE)
    (alone,) = re.findall(r"without a VPC \| about (\d+), and the database", guide)

    assert f"about ${alone} a month with a Postgres that Lambda can reach" in costs
    assert f"about ${with_everything} with everything created from scratch" in costs


def test_the_pictures_are_there() -> None:
    pictures = re.findall(r"!\[(.+?)\]\((.+?)\)", README.read_text())

    assert len(pictures) == 3
    assert all((ROOT / path).exists() and len(text) > 20 for text, path in pictures)
    assert "prefers-color-scheme: dark" in (ROOT / "docs/images/architecture.svg").read_text()
