"""Guards the soak itself: a few days run through, and what never leaves is noticed."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.soak.soak import Plan, soak_on
from tests.support.databases import ServerAdmin

pytestmark = pytest.mark.full


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("sweeps", [True, pytest.param(False, marks=pytest.mark.long)])
def test_only_what_is_never_swept_grows(postgres_server: ServerAdmin, sweeps: bool) -> None:
    plan = Plan(days=5, runs_a_day=20, ticks_a_day=4, sweeps=sweeps, retention=dict.fromkeys(RETAINED, 1))

    with soak_on(postgres_server, plan) as soak:
        figures = soak.run(lambda _: None)

    grown = {figure.what for figure in figures if not figure.is_flat}
    assert ("step" in grown) is not sweeps, figures
    assert {figure.what for figure in figures} >= {"run", "lane", "step", "claim", "commit", "tick", "prune"}


RETAINED = ("step", "pulse", "repair", "signal", "hearing", "answered", "pace_decision", "run")
