"""Thirty days of two boards: late offers, crashes, a rate limit, a dead upstream, both changes of the clocks."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from random import Random

import pytest

from shared.kernel.points import watch_points
from shared.search.points import SearchPoint
from tests.support.rig import BEGINNING
from tests.support.searches import DAY_S, SearchRig

pytestmark = pytest.mark.full


class Killed(BaseException):
    """The process is gone: no code of ours runs after this."""


@pytest.mark.long
@pytest.mark.parametrize("begins", [datetime(2026, 3, 10, 9, tzinfo=UTC), datetime(2026, 10, 8, 9, tzinfo=UTC)])
def test_a_month_hands_off(searches: SearchRig, begins: datetime) -> None:
    """The clocks change within each of the two months."""
    start, rng = (begins - BEGINNING).total_seconds(), Random(3)
    searches.now = start
    for board in searches.boards.values():
        board.post_days(start - 12 * DAY_S, 42, 12, late=0.15)
    keys = {client: searches.save(client, days=10) for client in searches.boards}
    searches.start()

    def dies_now_and_then(point: str) -> None:
        if point in (SearchPoint.FETCHED, SearchPoint.PICKED) and rng.random() < 0.1:
            raise Killed

    watch_points(dies_now_and_then)
    try:
        for day in range(30):
            if day == 4:
                searches.infojobs.misbehave("throttle", budget=1)
            if day == 8:
                searches.adzuna.misbehave("server_error")
            if day == 11:
                searches.adzuna.behave()
            end = start + (day + 1) * DAY_S
            while searches.now < end:
                try:
                    searches.go(end - searches.now)
                except Killed:
                    continue
    finally:
        watch_points(None)
    searches.go(3 * DAY_S)  # what is late comes within two days
    first, last = start - 10 * DAY_S, start + 30 * DAY_S
    for client, board in searches.boards.items():
        found = {
            row["external_id"]: row
            for row in searches.rows("select external_id, updated_at from offers where client = :c", c=client)
        }
        for day in range(40):
            lo, hi = first + day * DAY_S, first + (day + 1) * DAY_S
            here = {name for name, row in found.items() if lo <= searches.seconds(row["updated_at"]) < hi}
            assert here == board.truth(lo, hi), (client, day)
        state = searches.state(keys[client])
        assert state["status"] == "SUCCESS"
        ((lo, hi),) = searches.covered(keys[client])
        assert lo <= first
        assert hi >= last
        failed = [each for each in searches.executions(keys[client]) if each["stop_reason"] == "error"]
        assert bool(failed) == (client == "adzuna")
    throttled = [each for each in searches.executions(keys["infojobs"]) if each["stop_reason"] == "rate_limited"]
    (closed,) = throttled
    asked = [searches.seconds(closed["started_at"])]
    later = [at for at, _, _ in searches.infojobs.log if at > asked[0] + 600]
    assert later[0] - asked[0] >= 6 * 3_600
    began = [
        row["begins_at"]
        for row in searches.rows("select begins_at from search_cycle where ended_at > begins_at order by 1")
    ]
    assert all((b - a).total_seconds() >= 900 for a, b in pairwise(began))
