"""Guards that a run's history says when it begins to fail and when it has recovered: once each, however many lanes do."""

from __future__ import annotations

import pytest

from shared.kernel import sql
from shared.kernel.errors import Transient
from shared.kernel.model import Turn
from tests.support.house import House


def edges(house: House, run_id: object) -> list[tuple[str, str]]:
    rows = house.sql(
        "select type, data from history where run_id = :id and type in ('first_failure', 'recovered') order by n",
        id=run_id,
    )
    return [(row.type, row.data["lane"]) for row in rows]


@pytest.fixture
def down(house: House) -> set[str]:
    """The lanes whose attempts fail."""
    lanes: set[str] = set()

    def visit(turn: Turn, _: int) -> None:
        if turn.key in lanes:
            raise Transient("503 Service Unavailable", "server_error")

    house.visits = visit
    return lanes


def take(house: House, run_id: object, key: str) -> None:
    house.sql("update lane set next_due_at = now(), sent_at = now() where run_id = :id", id=run_id)
    house.take_turn(run_id, key)  # type: ignore[arg-type]


def test_many_lanes_that_fail_are_one_failure_and_one_recovery(house: House, down: set[str]) -> None:
    run_id = house.start_running(lanes=3, target=9)
    down |= {"l0", "l1"}
    for key in ("l2", "l0", "l1", "l0"):
        take(house, run_id, key)
    assert edges(house, run_id) == [("first_failure", "l0")]
    (line,) = house.sql("select data from history where run_id = :id and type = 'first_failure'", id=run_id)
    assert line.data["error"]["message"] == "503 Service Unavailable"

    down.discard("l0")
    take(house, run_id, "l0")
    assert edges(house, run_id) == [("first_failure", "l0")], "another one still fails"
    down.clear()
    take(house, run_id, "l1")
    take(house, run_id, "l1")

    assert edges(house, run_id) == [("first_failure", "l0"), ("recovered", "l1")]


def test_a_run_that_goes_up_and_down_does_not_write_for_ever(
    house: House, down: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert f"< {sql.MOST_EDGES}" in str(sql.ADD_EDGE)
    monkeypatch.setattr(sql, "ADD_EDGE", type(sql.ADD_EDGE)(str(sql.ADD_EDGE).replace(f"< {sql.MOST_EDGES}", "< 2")))
    run_id = house.start_running(lanes=1, target=99)
    for _ in range(4):
        down.add("l0")
        take(house, run_id, "l0")
        down.clear()
        take(house, run_id, "l0")

    assert len(edges(house, run_id)) == 4
    assert house.tally(run_id) == [0, 1, 2, 3]
