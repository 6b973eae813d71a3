"""Guards what a caller is told when the database is held up or away: 503, when to come back, and nothing half done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from infra.local.private import give_passwords
from infra.migrations.run import migrate
from shared.kernel import db
from shared.kernel.api.desk import PgRegister
from shared.kernel.clock import new_id
from shared.kernel.points import Point, watch_points
from tests.support.databases import as_user, scratch_server
from tests.support.door import ANONYMOUS, Answer, Door, TenantHouse, Who

PATIENCE_S = 60.0
KEY = {"Idempotency-Key": "k"}
RUN = {"kind": "tally", "params": {"lanes": 1, "target": 1}}
RUNS = "select count(*) from run where tenant_id = :t"
CLAIMED = "insert into answered (tenant_id, actor, key, request_hash) values (:t, :actor, 'k', 'x')"
WAITS = """select pid from pg_stat_activity
           where datname = current_database() and usename = 'baton_api' and wait_event_type = 'Lock'"""


def assert_later(answer: Answer, code: str) -> None:
    assert (answer.status, answer.code) == (503, code)
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert int(answer.headers["Retry-After"]) > 0
    assert "try again" in answer.json()["detail"].lower()
    assert "pg8000" not in answer.body
    assert "55P03" not in answer.body


@contextmanager
def held(door: Door, statement: str, **params: Any) -> Iterator[None]:
    """Somebody's open transaction, in which `statement` was done."""
    engine = db.connect_engine(door.url, pool="none")
    with engine.connect() as connection, connection.begin() as transaction:
        connection.execute(sa.text(statement), params)
        yield
        transaction.rollback()
    engine.dispose()


@pytest.fixture
def impatient(door: Door) -> Iterator[Callable[..., None]]:
    """Lets the API's role wait for less than the ten seconds of its migration."""
    role = f"alter role baton_api in database {door.value('select current_database()')}"

    def be(**settings: str) -> None:
        for name, value in settings.items():
            door.sql(f"{role} set {name} = '{value}'")
        door.engine.dispose()  # a role's settings hold from the next connection

    yield be
    door.sql(f"{role} reset all")
    door.engine.dispose()


def test_a_lock_that_is_not_given_is_a_503_and_nothing_is_done(
    door: Door, acme: TenantHouse, impatient: Callable[..., None]
) -> None:
    run_id = door.start(acme)
    impatient(lock_timeout="50ms")

    with held(door, "select 1 from run where id = :id for update", id=run_id):
        busy = door.call(acme.member, "POST", f"/runs/{run_id}/cancel", {})
        others = door.call(acme.member, "GET", f"/runs/{run_id}")
    assert_later(busy, "busy")
    assert (others.status, others.json()["cancel_requested_at"]) == (200, None), "who only looks waits for nobody"

    assert door.call(acme.member, "POST", f"/runs/{run_id}/cancel", {}).status == 200


def test_a_key_that_another_request_holds_for_long_is_a_503(
    door: Door, acme: TenantHouse, impatient: Callable[..., None]
) -> None:
    impatient(lock_timeout="50ms")

    with held(door, CLAIMED, t=acme.id, actor=acme.member.actor):
        busy = door.call(acme.member, "POST", "/runs", RUN, headers=KEY)
    assert_later(busy, "busy")
    assert door.value(RUNS, t=acme.id) == 0

    assert door.call(acme.member, "POST", "/runs", RUN, headers=KEY).status == 201


def test_a_statement_that_takes_too_long_is_a_503(
    door: Door, acme: TenantHouse, impatient: Callable[..., None]
) -> None:
    impatient(lock_timeout="0", statement_timeout="100ms")

    with held(door, "lock table run in access exclusive mode"):
        busy = [door.call(acme.viewer, "GET", path) for path in ("/runs", f"/runs/{new_id()}")]
    for answer in busy:
        assert_later(answer, "busy")

    assert door.call(acme.viewer, "GET", "/runs").status == 200


def test_a_connection_that_is_cut_while_it_waits_is_a_503_and_the_next_request_has_another(
    door: Door, acme: TenantHouse
) -> None:
    run_id = door.start(acme)
    answers: list[Answer] = []

    def ask() -> None:
        answers.append(door.call(acme.member, "POST", f"/runs/{run_id}/pause", {}))

    with held(door, "select 1 from run where id = :id for update", id=run_id):
        thread = threading.Thread(target=ask)
        thread.start()
        deadline = time.monotonic() + PATIENCE_S
        cuts = 0
        while thread.is_alive():  # a request that was cut before it did anything is tried once more
            assert time.monotonic() < deadline, "the request does not wait"
            for waiting in door.sql(WAITS):
                cuts += 1
                door.sql("select pg_terminate_backend(:pid)", pid=waiting["pid"])
            time.sleep(0.01)
    (cut,) = answers
    assert cuts >= 2

    assert_later(cut, "no_database")
    assert door.call(acme.member, "GET", f"/runs/{run_id}").json()["status"] == "queued"


def test_a_start_that_was_cut_after_its_commit_is_found_again_by_its_key(door: Door, acme: TenantHouse) -> None:
    """Nobody can tell whether such a commit was done: whoever asks again with his key is told the truth."""

    def cut(point: str) -> None:
        if point is Point.START_COMMITTED:
            raise ConnectionResetError("the answer to the commit was lost")

    watch_points(cut)
    try:
        lost = door.call(acme.member, "POST", "/runs", RUN, headers=KEY)
    finally:
        watch_points(None)
    again = door.call(acme.member, "POST", "/runs", RUN, headers=KEY)

    assert_later(lost, "no_database")
    assert again.status == 201
    assert door.value(RUNS, t=acme.id) == 1


@pytest.mark.full
def test_a_database_that_is_down_is_a_503_until_it_is_up(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant, who = new_id(), Who("ann")
    with scratch_server() as server:
        migrate(server.url())
        give_passwords(server.url())
        owner = db.connect_engine(server.url(), pool="none")
        with owner.begin() as connection:
            connection.execute(sa.text("insert into tenant (id, name) values (:t, 'Acme')"), {"t": tenant})
            member = "insert into member (tenant_id, subject, role, added_by) values (:t, 'ann', 'viewer', 'test')"
            connection.execute(sa.text(member), {"t": tenant})
        engine = db.connect_engine(as_user(server.url(), "baton_api"))
        monkeypatch.setattr(door.front, "engine", engine)
        monkeypatch.setattr(door.front, "register", PgRegister(engine))
        asked = ("/runs", "/me", f"/runs/{new_id()}/events")
        assert door.call(who, "GET", "/runs").status == 200

        server.stop("immediate")
        away = [door.call(who, "GET", path) for path in asked]
        server.restart()
        back = [door.call(who, "GET", path).status for path in asked]
        engine.dispose()

    for answer in away:
        assert_later(answer, "no_database")
        assert str(server.port) not in answer.body
    assert back == [200, 200, 404]


@pytest.mark.full
def test_every_operation_says_that_it_may_be_busy(door: Door) -> None:
    document = door.ask(door.event(ANONYMOUS, "GET", "/openapi.json")).json()

    said = [each["responses"]["503"] for path in document["paths"].values() for each in path.values()]

    assert said
    assert all("Retry-After" in refusal["headers"] for refusal in said)
