"""Guards that a commit whose answer was lost is read back and not repeated, and one that never arrived is."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import UUID

import pytest
import sqlalchemy as sa

from shared.kernel.model import StepOutcome
from shared.kernel.points import Point
from tests.races.acts import turn
from tests.races.stage import Actor, Stage
from tests.support.house import House
from tests.support.wire import Wire


@dataclass(slots=True)
class Lines:
    """Relays every connection to the server; the newest can be cut."""

    server_port: int
    port: int = 0
    closed: bool = False
    made: list[Wire] = field(default_factory=list)

    def answer_calls(self, listener: socket.socket) -> None:
        while True:
            client, _ = listener.accept()
            if self.closed:
                client.close()
                return
            line = Wire(self.server_port)
            self.made.append(line)
            threading.Thread(target=self._carry, args=(line, client), daemon=True).start()

    def _carry(self, line: Wire, client: socket.socket) -> None:
        try:
            with client, socket.create_connection(("127.0.0.1", self.server_port)) as far:
                line._pump(client, far)
        except OSError:
            return

    def lose_next_answer(self) -> None:
        self.made[-1].cut_after = 0


@contextmanager
def lines(server_port: int) -> Iterator[Lines]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        relay = Lines(server_port, listener.getsockname()[1])
        thread = threading.Thread(target=relay.answer_calls, args=(listener,), daemon=True)
        thread.start()
        yield relay
        relay.closed = True
        socket.create_connection(("127.0.0.1", relay.port)).close()
        thread.join()


@pytest.fixture
def relayed(house: House) -> Iterator[Lines]:
    port = sa.make_url(house.url).port
    assert port is not None
    with lines(port) as relay:
        yield relay


def worker_on(stage: Stage, relay: Lines) -> Actor:
    url = sa.make_url(stage.house.url).set(port=relay.port)
    return stage.actor("worker", url=url.render_as_string(hide_password=False))


def hang_up(house: House, name: str) -> None:
    house.sql(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = :name",
        name=name,
    )


def assert_moved_once(house: House, run_id: UUID, outcome: str) -> None:
    assert house.tally(run_id) == [0]
    assert house.ledger(run_id) == [(1, 0, outcome)]
    assert house.lane(run_id).seq == 1


def test_a_plain_commit_whose_answer_is_lost_is_read_back_and_sent_on(
    house: House, stage: Stage, relayed: Lines
) -> None:
    run_id = house.start_running()
    worker = worker_on(stage, relayed)

    stepping = worker.does(turn(house, run_id), until=Point.STEP_LOOKED)
    relayed.lose_next_answer()
    worker.goes_on()

    assert stepping.answer() is StepOutcome.MOVED
    assert_moved_once(house, run_id, "moved")
    assert house.baton(run_id).to_json() in house.waiting()
    assert worker.errors == ["InterfaceError"], "the answer was lost indeed"
    worker.errors.clear()


@pytest.mark.parametrize(("target", "outcome"), [(1, StepOutcome.DONE), (2, StepOutcome.MOVED)])
def test_a_transaction_whose_commit_is_answered_by_silence_is_read_back(
    house: House, stage: Stage, relayed: Lines, target: int, outcome: StepOutcome
) -> None:
    run_id = house.start(target=target)
    worker = worker_on(stage, relayed)

    stepping = worker.does(turn(house, run_id), until=Point.TURN_SETTLED)
    relayed.lose_next_answer()
    worker.goes_on()

    assert stepping.answer() is outcome
    assert_moved_once(house, run_id, outcome)
    assert house.endings(run_id) == (["succeeded"] if target == 1 else [])
    assert house.history(run_id).count("running") == 1
    assert len(relayed.made) == 2, "it was read back over a new connection"
    worker.errors.clear()


@pytest.mark.parametrize("target", [1, 2], ids=["ending", "plain step"])
def test_a_commit_that_never_reached_the_database_is_made_again(house: House, stage: Stage, target: int) -> None:
    run_id = house.start_running(target=target)
    worker = stage.actor("worker")

    stepping = worker.does(turn(house, run_id), until=Point.STEP_LOOKED)
    hang_up(house, "worker")
    worker.goes_on()

    outcome = stepping.answer()
    assert outcome in {StepOutcome.DONE, StepOutcome.MOVED}
    assert_moved_once(house, run_id, str(outcome))
    worker.errors.clear()


def test_a_transaction_cut_in_its_middle_is_made_again_as_a_whole(house: House, stage: Stage) -> None:
    run_id = house.start(target=1, final=True)
    worker = stage.actor("worker")

    stepping = worker.does(turn(house, run_id), until=Point.TURN_WRITTEN)
    hang_up(house, "worker")
    worker.goes_on()

    assert stepping.answer() is StepOutcome.DONE
    assert_moved_once(house, run_id, "done")
    assert house.keys(run_id) == ["final", "l0"]
    assert house.history(run_id) == ["accepted", "running", "phase"]
    worker.errors.clear()


def test_a_claim_whose_answer_is_lost_is_asked_again_and_counted_once(
    house: House, stage: Stage, relayed: Lines
) -> None:
    run_id = house.start_running()
    worker = worker_on(stage, relayed)
    worker.store.lane_state(house.lane(run_id).id)  # the connection is there before the claim

    stepping = worker.does(turn(house, run_id), until=Point.STEP_RECEIVED)
    relayed.lose_next_answer()
    worker.goes_on(until=Point.STEP_CLAIMED)

    assert house.lane(run_id).claims == 1
    worker.goes_on()
    assert stepping.answer() is StepOutcome.MOVED
    worker.errors.clear()


def test_a_lost_answer_after_which_another_took_over_sends_only_what_is_current(
    house: House, stage: Stage, relayed: Lines
) -> None:
    """Between the lost commit and the look at the row the lane has moved on once more."""
    run_id = house.start_running(target=5)
    worker, successor = worker_on(stage, relayed), stage.actor("successor")

    stepping = worker.does(turn(house, run_id), until=Point.STEP_LOOKED)
    house.expire_lease(run_id)
    successor.does(turn(house, run_id)).answer()
    successor.does(turn(house, run_id)).answer()
    relayed.lose_next_answer()
    worker.goes_on()
    stepping.answer()

    assert house.tally(run_id) == [0, 1]
    assert house.lane(run_id).seq == 2
    worker.errors.clear()
