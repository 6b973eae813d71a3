"""Saved searches from their first cycle on: windows, history, gates, companies."""

from __future__ import annotations

from tests.support.searches import DAY_S, SearchRig


def test_a_first_search_reads_the_head_and_then_its_history(searches: SearchRig) -> None:
    searches.now = 40 * DAY_S
    searches.infojobs.post_days(10 * DAY_S, 30, 10, late=0)
    key = searches.save(days=20)
    searches.start()
    searches.go(3600 * 2)
    state = searches.state(key)
    assert state["status"] == "SUCCESS", (state, searches.executions())
    assert state["seed_cursor"] == state["seed_floor"]
    ((lo, hi),) = searches.covered(key)
    assert searches.infojobs.truth(lo, hi) <= searches.offers("infojobs")
    assert sorted(each["purpose"] for each in searches.executions(key))[:2] == ["head", "seed"]
    assert {each["stop_reason"] for each in searches.executions(key)} == {"window_exhausted"}
