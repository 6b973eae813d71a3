"""Guards the way to Postgres: what a statement costs, whom it runs as, and what is left after an error."""

from __future__ import annotations

import io
import ipaddress
import socket
import ssl
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pg8000.exceptions
import pytest
import sqlalchemy as sa
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pg8000 import dbapi

from shared.kernel import flights as driver
from shared.kernel.db import (
    autocommit,
    connect_engine,
    flights,
    is_conflict,
    is_disconnect,
    jsonb,
    set_tenant,
    sqlstate,
    tls_for,
)
from tests.support.wire import wire

ALICE = uuid.UUID("a11ce000-0000-4000-8000-000000000001")
ECHO = sa.text("select cast(:x as int)")
TENANT = sa.text("select nullif(current_setting('app.tenant', true), '') where :x = 1")
FAILS = sa.text("select 1 / cast(:x as int)")


@pytest.fixture
def database_url(module_database_url: str) -> str:
    return module_database_url


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    made = connect_engine(database_url)
    with made.begin() as tx:
        tx.exec_driver_sql("drop table if exists probe")
        tx.exec_driver_sql("create table probe (id int primary key, body jsonb)")
    yield made
    made.dispose()


@pytest.fixture
def plain(database_url: str) -> Iterator[dbapi.Connection]:
    with closing(dbapi.connect(**_address(database_url))) as connection:
        yield connection


@pytest.fixture
def fast(database_url: str) -> Iterator[driver.Connection]:
    with closing(driver.Connection(**_address(database_url))) as connection:
        yield connection


def _address(url: str, **changes: Any) -> dict[str, Any]:
    where = sa.make_url(url)
    address = {"user": where.username, "password": where.password, "host": where.host, "port": where.port}
    address |= {"database": where.database}
    return address | {"ssl_context": False} | changes


def _port(url: str) -> int:
    return sa.make_url(url).port or 5432


def _tenant(conn: sa.Connection) -> str | None:
    return conn.execute(TENANT, {"x": 1}).scalar()


# What a statement costs.


def test_a_statement_in_autocommit_is_one_flight(engine: sa.Engine) -> None:
    with autocommit(engine).connect() as conn:
        before = flights(conn)
        assert conn.execute(ECHO, {"x": 7}).scalar() == 7
        assert flights(conn) - before == 1


def test_a_tenant_rides_along_with_the_statement_in_autocommit(engine: sa.Engine) -> None:
    with autocommit(engine).connect() as conn:
        before = flights(conn)
        set_tenant(conn, ALICE)
        assert _tenant(conn) == str(ALICE)
        assert flights(conn) - before == 1


@pytest.mark.parametrize("statements", [1, 2, 10])
def test_a_transaction_of_n_statements_is_n_plus_one_flights(engine: sa.Engine, statements: int) -> None:
    with engine.connect() as conn:
        before = flights(conn)
        set_tenant(conn, ALICE)
        for number in range(statements):
            assert conn.execute(ECHO, {"x": number}).scalar() == number
        conn.commit()
        assert flights(conn) - before == statements + 1


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_transaction_that_did_nothing_costs_nothing(engine: sa.Engine, end: str) -> None:
    with engine.connect() as conn:
        before = flights(conn)
        conn.begin()
        getattr(conn, end)()
        assert flights(conn) == before


def test_a_checkout_and_a_checkin_cost_no_flight(engine: sa.Engine) -> None:
    with engine.connect() as conn:
        before = flights(conn)
    for _ in range(3):
        with autocommit(engine).connect():
            pass
    with engine.connect() as conn:
        assert flights(conn) == before


def test_a_first_statement_without_parameters_folds_its_begin_too(fast: driver.Connection) -> None:
    fast.cursor().execute("create table bare (id int);")
    assert (fast.flights, fast._in_transaction) == (1, True)
    fast.rollback()
    assert (fast.flights, fast._in_transaction) == (2, False)


def test_several_commands_in_one_text_still_run_in_one_transaction(fast: driver.Connection) -> None:
    fast.cursor().execute("create table one (id int); create table two (id int)")
    fast.rollback()
    cursor = fast.cursor()
    cursor.execute("select to_regclass('one'), to_regclass('two')")
    assert cursor.fetchall() == ([None, None],)


def test_the_counter_agrees_with_the_turns_of_the_line(database_url: str) -> None:
    with (
        wire(_port(database_url)) as line,
        closing(driver.Connection(**_address(database_url, port=line.port))) as connection,
    ):
        handshake = line.turns
        cursor = connection.cursor()
        connection.before_next("select set_config('app.tenant', $1, true)", str(ALICE))
        cursor.execute("select %s::int", (1,))
        cursor.execute("select %s::int", (2,))
        connection.commit()
        connection.autocommit = True
        cursor.execute("select %s::text", ("x" * 200_000,))
        assert (line.turns - handshake, connection.flights) == (4, 4)


def test_no_named_statement_is_left_on_the_server(fast: driver.Connection) -> None:
    cursor = fast.cursor()
    cursor.execute("select %s::int", (1,))
    cursor.execute("select count(*) from pg_prepared_statements where name <> %s", ("",))
    assert cursor.fetchall() == ([0],)


def test_small_packets_are_not_held_back(fast: driver.Connection) -> None:
    assert fast._usock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def test_a_server_that_falls_silent_is_noticed_within_half_a_minute(fast: driver.Connection) -> None:
    """A worker that waits for an answer of a host that is gone would hold its turns until somebody looks."""
    line = fast._usock
    assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    told = {name: line.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name, _ in driver.SILENCE}
    assert told["TCP_KEEPIDLE"] + told["TCP_KEEPINTVL"] * told["TCP_KEEPCNT"] <= 30
    assert 0 < told["TCP_USER_TIMEOUT"] <= 30_000


def test_a_statement_may_take_longer_than_the_handshake(database_url: str) -> None:
    with closing(driver.Connection(**_address(database_url, timeout=0.3))) as connection:
        cursor = connection.cursor()
        cursor.execute("select pg_sleep(%s::float)", (0.5,))
        assert cursor.rowcount == 1


# What comes back.


@pytest.mark.parametrize(
    ("sql", "args"),
    [
        ("select %s::int, %s::text, %s::numeric, %s::bool", (1, "ä€😀", "1.50", True)),
        ("select %s::timestamptz, %s::uuid, %s::bytea", (datetime(2026, 1, 2, tzinfo=UTC), ALICE, b"\x00\xff")),
        ("select null::int, %s::text, %s::int[]", (None, [1, None, 3])),
        ("select n, repeat(%s, n) from generate_series(0, 99) n", ("ab",)),
        ("select %s::int where false", (1,)),
        ("select 'infinity'::timestamptz, '-infinity'::date, 'NaN'::numeric, %s::float", (1e300,)),
        ("select '{\"a\": [1, 2.5, null]}'::jsonb, '[]'::json, interval '1 day', %s::int2", (3,)),
        ("insert into result (id) values (%s), (2) returning id, id * 10", (1,)),
        ("insert into result (id) select n from generate_series(1, %s) n", (50,)),
        ("update result set id = id where id > %s", (0,)),
        ("delete from result where id = %s", (-1,)),
        ("select '100%%', %s::int %% 2", (3,)),
        ("create table other (id int)", ()),
        ("select 1 as a, 'b' as b", ()),
        ("", ()),
    ],
)
def test_rows_counts_and_columns_come_as_pg8000_gives_them(
    plain: dbapi.Connection, fast: driver.Connection, sql: str, args: tuple[Any, ...]
) -> None:
    answers = []
    for connection in (plain, fast):
        cursor = connection.cursor()
        cursor.execute("create table result (id int primary key)")
        cursor.execute(sql, args)
        rows = None if cursor.description is None else cursor.fetchall()
        answers.append((repr(rows), cursor.rowcount, cursor.description))
        connection.rollback()
    assert answers[0] == answers[1]


def test_many_sets_of_parameters_add_their_row_counts(engine: sa.Engine) -> None:
    with engine.begin() as tx:
        done = tx.execute(sa.text("insert into probe (id) values (:id)"), [{"id": n} for n in range(5)])
        assert done.rowcount == 5


def test_rows_inserted_by_sqlalchemy_core_return_their_keys(engine: sa.Engine) -> None:
    probe = sa.table("probe", sa.column("id", sa.Integer))
    with engine.begin() as tx:
        ids = tx.execute(sa.insert(probe).returning(probe.c.id), [{"id": n} for n in range(3)])
        assert ids.scalars().all() == [0, 1, 2]


def test_sixty_four_rows_of_thirty_kilobytes_travel_as_one_parameter(engine: sa.Engine) -> None:
    rows = [{"id": n, "body": {"text": "ü" * 15_000}} for n in range(64)]
    with autocommit(engine).connect() as conn:
        before = flights(conn)
        conn.execute(
            sa.text(
                "insert into probe select * from jsonb_to_recordset(cast(:rows as jsonb)) as r(id int, body jsonb)"
            ),
            {"rows": jsonb(rows)},
        )
        assert flights(conn) - before == 1
        found = conn.execute(sa.text("select id, body from probe where id >= :x order by id"), {"x": 0})
        assert [row._asdict() for row in found] == rows


def test_an_infinite_time_comes_as_its_text(engine: sa.Engine) -> None:
    with engine.connect() as conn:
        assert conn.execute(sa.text("select 'infinity'::timestamptz")).scalar() == "infinity"


def test_answers_that_arrive_in_shreds_are_put_together(database_url: str) -> None:
    with (
        wire(_port(database_url), dribble=True) as line,
        closing(driver.Connection(**_address(database_url, port=line.port))) as connection,
    ):
        cursor = connection.cursor()
        cursor.execute("select n, repeat('x', n) from generate_series(1, %s) n", (50,))
        assert cursor.fetchall() == tuple([n, "x" * n] for n in range(1, 51))


def test_notices_and_changed_settings_between_the_answers_are_taken_in(fast: driver.Connection) -> None:
    cursor = fast.cursor()
    cursor.execute(
        "create function pg_temp.shout() returns int language plpgsql as $$ begin raise notice 'hey'; return 1; end $$"
    )
    fast.before_next("select set_config('application_name', $1, true)", "renamed")
    cursor.execute("select pg_temp.shout() + %s::int", (1,))
    assert cursor.fetchall() == ([2],)
    assert [notice[b"M"] for notice in fast.notices] == [b"hey"]
    assert fast.parameter_statuses["application_name"] == "renamed"


def test_a_copy_goes_in_and_out_with_the_tenant_on_board(fast: driver.Connection) -> None:
    cursor = fast.cursor()
    cursor.execute("create table copied (id int, who text default current_setting('app.tenant'))")
    fast.before_next("select set_config('app.tenant', $1, true)", "alice")
    cursor.execute("copy copied (id) from stdin", stream=io.BytesIO(b"1\n2\n"))
    out = io.BytesIO()
    cursor.execute("copy copied to stdout", stream=out)
    assert out.getvalue() == b"1\talice\n2\talice\n"


# Whom it runs as.


def test_a_tenant_holds_for_the_whole_transaction(engine: sa.Engine) -> None:
    with engine.begin() as tx:
        set_tenant(tx, ALICE)
        assert [_tenant(tx), _tenant(tx)] == [str(ALICE), str(ALICE)]


def test_a_tenant_ends_with_its_statement_in_autocommit(engine: sa.Engine) -> None:
    with autocommit(engine).connect() as conn:
        set_tenant(conn, ALICE)
        assert [_tenant(conn), _tenant(conn)] == [str(ALICE), None]


def test_a_tenant_rides_along_with_a_statement_without_parameters(engine: sa.Engine) -> None:
    with autocommit(engine).connect() as conn:
        set_tenant(conn, ALICE)
        assert conn.exec_driver_sql("select current_setting('app.tenant')").scalar() == str(ALICE)


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("sent", [True, False], ids=["sent", "never sent"])
def test_a_tenant_does_not_outlive_its_transaction(engine: sa.Engine, end: str, *, sent: bool) -> None:
    with engine.connect() as conn:
        set_tenant(conn, ALICE)
        if sent:
            assert _tenant(conn) == str(ALICE)
        getattr(conn, end)()
        assert _tenant(conn) is None


@pytest.mark.parametrize("each", [False, True], ids=["transaction", "autocommit"])
def test_a_tenant_that_was_never_sent_does_not_meet_the_next_user(engine: sa.Engine, *, each: bool) -> None:
    with (autocommit(engine) if each else engine).connect() as conn:
        held = conn.connection.dbapi_connection
        set_tenant(conn, ALICE)
    with engine.connect() as conn:
        assert conn.connection.dbapi_connection is held
        assert _tenant(conn) is None


@pytest.mark.parametrize("each", [False, True], ids=["transaction", "autocommit"])
def test_a_tenant_does_not_outlive_an_error(engine: sa.Engine, *, each: bool) -> None:
    with (autocommit(engine) if each else engine).connect() as conn:
        set_tenant(conn, ALICE)
        with pytest.raises(sa.exc.DatabaseError):
            conn.execute(FAILS, {"x": 0})
        conn.rollback()
        assert _tenant(conn) is None


def test_a_statement_that_cannot_be_encoded_takes_its_tenant_with_it(fast: driver.Connection) -> None:
    fast.before_next("select set_config('app.tenant', $1, true)", str(ALICE))
    with pytest.raises(UnicodeEncodeError):
        fast.cursor().execute("select %s::text", ("\ud800",))
    cursor = fast.cursor()
    cursor.execute("select nullif(current_setting('app.tenant', true), %s)", ("",))
    assert cursor.fetchall() == ([None],)


def test_a_statement_sent_ahead_is_undone_when_the_next_one_fails(engine: sa.Engine) -> None:
    with autocommit(engine).connect() as conn:
        conn.connection.dbapi_connection.before_next("insert into probe (id) values ($1)", 1)  # type: ignore[union-attr]
        with pytest.raises(sa.exc.DatabaseError):
            conn.execute(FAILS, {"x": 0})
        assert conn.exec_driver_sql("select count(*) from probe").scalar() == 0


def test_autocommit_ends_when_the_connection_goes_back(engine: sa.Engine) -> None:
    with autocommit(engine).connect() as conn:
        conn.execute(sa.text("insert into probe (id) values (:x)"), {"x": 1})
    with engine.connect() as conn:
        conn.execute(sa.text("insert into probe (id) values (:x)"), {"x": 2})
    with engine.connect() as conn:
        assert conn.exec_driver_sql("select array_agg(id) from probe").scalar() == [1]


# What is left after an error.

ERRORS = [
    pytest.param("selec %s", 1, "42601", id="syntax"),
    pytest.param("insert into failing values (%s), (1)", 1, "23505", id="unique violation"),
    pytest.param("select 1 / (n - %s) from generate_series(1, 5000) n", 4000, "22012", id="in the middle of a result"),
    pytest.param("select %s::int", "x", "22P02", id="bad parameter"),
    pytest.param("select %s; select 2", 1, "42601", id="two commands"),
]


def _fail(connection: driver.Connection, sql: str, arg: Any, state: str) -> None:
    with pytest.raises(pg8000.exceptions.DatabaseError) as caught:
        connection.cursor().execute(sql, (arg,))
    assert sqlstate(caught.value) == state


@pytest.mark.parametrize(("sql", "arg", "state"), ERRORS)
def test_an_error_in_autocommit_leaves_the_connection_ready(
    fast: driver.Connection, sql: str, arg: Any, state: str
) -> None:
    fast.autocommit = True
    fast.cursor().execute("create temp table failing (id int primary key)")
    _fail(fast, sql, arg, state)
    cursor = fast.cursor()
    cursor.execute("select %s::int", (5,))
    assert cursor.fetchall() == ([5],)
    assert fast.flights == 3


@pytest.mark.parametrize(("sql", "arg", "state"), [ERRORS[0], ERRORS[3]])
def test_an_error_in_the_first_statement_still_leaves_a_transaction_to_roll_back(
    fast: driver.Connection, sql: str, arg: Any, state: str
) -> None:
    _fail(fast, sql, arg, state)
    _fail(fast, "select %s::int", 1, "25P02")
    fast.rollback()
    cursor = fast.cursor()
    cursor.execute("select %s::int", (5,))
    assert cursor.fetchall() == ([5],)


@pytest.mark.parametrize("each", [False, True], ids=["transaction", "autocommit"])
def test_an_error_in_a_statement_sent_ahead_stops_the_one_behind_it(fast: driver.Connection, *, each: bool) -> None:
    fast.autocommit = True
    fast.cursor().execute("create temp table failing (id int primary key)")
    fast.autocommit = each
    fast.before_next("select 1 / $1::int", 0)
    _fail(fast, "insert into failing values (%s)", 1, "22012")
    fast.rollback()
    cursor = fast.cursor()
    cursor.execute("select count(*) from failing where id > %s", (0,))
    assert cursor.fetchall() == ([0],)


def test_a_failed_transaction_cannot_be_committed(fast: driver.Connection) -> None:
    _fail(fast, "selec %s", 1, "42601")
    with pytest.raises(pg8000.exceptions.InterfaceError, match="failed transaction"):
        fast.commit()
    assert not fast._in_transaction


@pytest.mark.parametrize("each", [False, True], ids=["at commit", "at the end of the statement in autocommit"])
def test_a_deferred_constraint_is_not_missed_after_its_statement_completed(
    fast: driver.Connection, *, each: bool
) -> None:
    fast.autocommit = True
    fast.cursor().execute("create temp table late (id int unique deferrable initially deferred)")
    fast.autocommit = each
    with pytest.raises(pg8000.exceptions.DatabaseError) as caught:  # noqa: PT012
        fast.cursor().execute("insert into late values (%s), (1)", (1,))
        fast.commit()
    assert sqlstate(caught.value) == "23505"
    cursor = fast.cursor()
    cursor.execute("select count(*) from late where id = %s", (1,))
    assert cursor.fetchall() == ([0],)


def test_a_savepoint_saves_the_rest_of_a_transaction(engine: sa.Engine) -> None:
    with engine.begin() as tx:
        with pytest.raises(sa.exc.DatabaseError), tx.begin_nested():
            tx.execute(FAILS, {"x": 0})
        assert tx.execute(ECHO, {"x": 1}).scalar() == 1


# A connection that is lost.


def _kill(conn: sa.Connection, url: str) -> None:
    """End the session behind `conn`, which stays where it is, from another one."""
    pid = conn.exec_driver_sql("select pg_backend_pid()").scalar()
    conn.rollback()
    with autocommit(connect_engine(url, pool="none")).connect() as other:
        other.execute(sa.text("select pg_terminate_backend(cast(:pid as int), 5000)"), {"pid": pid})


@pytest.mark.parametrize("each", [False, True], ids=["transaction", "autocommit"])
def test_a_killed_connection_is_a_disconnect_and_the_next_checkout_works(
    engine: sa.Engine, database_url: str, *, each: bool
) -> None:
    chosen = autocommit(engine) if each else engine
    with chosen.connect() as conn:
        _kill(conn, database_url)
        with pytest.raises(sa.exc.InterfaceError) as caught:
            conn.execute(ECHO, {"x": 1})
        assert is_disconnect(caught.value)
        assert sqlstate(caught.value) == "57P01"
        assert caught.value.connection_invalidated
    with chosen.connect() as conn:
        assert conn.execute(ECHO, {"x": 2}).scalar() == 2


def test_a_connection_killed_in_the_pool_fails_one_checkout_only(engine: sa.Engine, database_url: str) -> None:
    with engine.connect() as conn:
        _kill(conn, database_url)
    outcomes: list[object] = []
    for _ in range(2):
        try:
            with engine.begin() as tx:
                outcomes.append(tx.execute(ECHO, {"x": 1}).scalar())
        except sa.exc.InterfaceError as error:
            outcomes.append("lost" if is_disconnect(error) else error)
    assert outcomes == ["lost", 1]


def test_autocommit_survives_a_reconnect_on_the_same_handle(engine: sa.Engine, database_url: str) -> None:
    with autocommit(engine).connect() as conn:
        _kill(conn, database_url)
        with pytest.raises(sa.exc.InterfaceError):
            conn.execute(ECHO, {"x": 1})
        conn.rollback()
        conn.execute(sa.text("insert into probe (id) values (:x)"), {"x": 1})
    with engine.connect() as conn:
        assert conn.exec_driver_sql("select count(*) from probe").scalar() == 1


@pytest.mark.parametrize("passed", [0, 3, 40])
def test_an_answer_that_is_cut_short_makes_the_connection_unusable(database_url: str, passed: int) -> None:
    with (
        wire(_port(database_url)) as line,
        closing(driver.Connection(**_address(database_url, port=line.port))) as connection,
    ):
        line.cut_after = passed
        with pytest.raises(pg8000.exceptions.InterfaceError, match="network error") as caught:
            connection.cursor().execute("select %s::text", ("x" * 100,))
        assert is_disconnect(caught.value)
        assert connection.closed
        for use in (connection.rollback, connection.commit, lambda: connection.cursor().execute("select 1")):
            with pytest.raises(pg8000.exceptions.InterfaceError, match="connection is closed"):
                use()


def test_a_value_that_cannot_be_decoded_never_leaves_its_rows_to_the_next_reader(engine: sa.Engine) -> None:
    def refuse(_: str) -> None:
        raise ValueError("no such number")

    with engine.connect() as conn:
        conn.connection.dbapi_connection.register_in_adapter(23, refuse)  # type: ignore[union-attr]
        with pytest.raises(ValueError, match="no such number"):
            conn.execute(sa.text("select n from generate_series(1, :x) n"), {"x": 9})
    with engine.connect() as conn:
        assert conn.execute(ECHO, {"x": 2}).scalar() == 2


def test_a_server_that_is_not_there_is_a_disconnect() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(sa.exc.InterfaceError) as caught:
        connect_engine(f"postgresql://postgres@127.0.0.1:{port}/x", connect_seconds=1).connect()
    assert is_disconnect(caught.value)


def test_the_loser_of_a_race_is_a_conflict_not_a_disconnect(engine: sa.Engine, database_url: str) -> None:
    rival = connect_engine(database_url, pool="none")
    update = sa.text("update probe set body = '1' where id = :x")
    with engine.begin() as tx:
        tx.execute(sa.text("insert into probe (id) values (:x)"), {"x": 1})
    with engine.connect() as mine:
        mine.exec_driver_sql("set transaction isolation level repeatable read")
        mine.execute(sa.text("select from probe where id = :x"), {"x": 1})
        with rival.begin() as theirs:
            theirs.execute(update, {"x": 1})
        with pytest.raises(sa.exc.DatabaseError) as caught:
            mine.execute(update, {"x": 1})
    assert (sqlstate(caught.value), is_conflict(caught.value), is_disconnect(caught.value)) == ("40001", True, False)


@pytest.mark.parametrize(
    ("error", "gone"),
    [
        pytest.param(pg8000.exceptions.InterfaceError("network error"), True, id="cut"),
        pytest.param(pg8000.exceptions.DatabaseError({"C": "57P03"}), True, id="still starting"),
        pytest.param(pg8000.exceptions.DatabaseError({"C": "08006"}), True, id="class 08"),
        pytest.param(ConnectionResetError(), True, id="socket"),
        pytest.param(pg8000.exceptions.InterfaceError("in failed transaction block"), False, id="failed transaction"),
        pytest.param(pg8000.exceptions.DatabaseError({"C": "57014"}), False, id="statement time-out"),
        pytest.param(pg8000.exceptions.DatabaseError({"C": "23505"}), False, id="unique violation"),
        pytest.param(ValueError("network error"), False, id="a stranger"),
    ],
)
def test_only_a_lost_connection_is_a_disconnect(error: Exception, *, gone: bool) -> None:
    assert is_disconnect(error) is gone


# The pool, the password and the url.


def test_each_connection_asks_for_the_password_anew(database_url: str) -> None:
    asked: list[int] = []

    def token() -> str:
        asked.append(1)
        return str(sa.make_url(database_url).password or "secret")

    engine = connect_engine(database_url, pool="none", password=token)
    for _ in range(2):
        with engine.connect() as conn:
            conn.execute(ECHO, {"x": 1})
    assert len(asked) == 2


def test_the_server_sees_the_name_of_the_application(database_url: str) -> None:
    engine = connect_engine(database_url, pool="none", application_name="lanes")
    with engine.connect() as conn:
        assert conn.exec_driver_sql("show application_name").scalar() == "lanes"


def test_an_error_does_not_print_its_parameters(engine: sa.Engine) -> None:
    with engine.connect() as conn, pytest.raises(sa.exc.DatabaseError) as caught:
        conn.execute(sa.text("select 1 / 0 where :x <> ''"), {"x": "a customer's name"})
    assert "customer" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+pg8000"])
def test_every_spelling_of_a_postgres_url_is_understood(scheme: str) -> None:
    assert connect_engine(f"{scheme}://u@127.0.0.1/d").url.drivername == "postgresql+pg8000"


@pytest.mark.parametrize(
    "url", ["mysql://h/d", "postgresql+psycopg://h/d", "postgresql://h/d?sslmode=prefer", "postgresql://h/d?sslmod=x"]
)
def test_a_url_that_would_be_half_understood_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        connect_engine(url)


# TLS.


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://db.example.com/d",
        "postgresql://10.0.0.7/d",
        "postgresql://localhost.example.com/d",
        "postgresql://db.example.com/d?sslmode=require",
        "postgresql://127.0.0.1/d?sslmode=require",
    ],
)
def test_a_host_beyond_this_machine_is_always_verified(url: str) -> None:
    context = tls_for(sa.make_url(url))
    assert isinstance(context, ssl.SSLContext)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://localhost/d",
        "postgresql://127.0.0.1/d",
        "postgresql://[::1]/d",
        "postgresql:///d?unix_sock=/run/x",
        "postgresql://db.example.com/d?sslmode=disable",
    ],
)
def test_tls_is_off_only_on_this_machine_or_when_the_url_says_so(url: str) -> None:
    assert tls_for(sa.make_url(url)) is False


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1, with its key, in one file; strict enough for Python 3.13."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "wire")])
    usage = dict.fromkeys(("content_commitment", "data_encipherment", "key_agreement", "encipher_only"), False)
    usage |= dict.fromkeys(("decipher_only", "key_encipherment", "crl_sign"), False)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2100, 1, 1, tzinfo=UTC))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(digital_signature=True, key_cert_sign=True, **usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = tmp_path_factory.mktemp("tls") / "wire.pem"
    path.write_bytes(made.public_bytes(pem) + private)
    return path


def _tls_server(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def test_a_trusted_server_is_spoken_to_through_tls_in_one_flight_without_delay(
    database_url: str, certificate: Path
) -> None:
    with wire(_port(database_url), tls=_tls_server(certificate)) as line:
        url = sa.make_url(database_url).set(port=line.port, query={"sslrootcert": str(certificate)})
        engine = connect_engine(url.render_as_string(hide_password=False), pool="none")
        with autocommit(engine).connect() as conn:
            sock = conn.connection.dbapi_connection._usock  # type: ignore[union-attr]
            before = flights(conn), line.turns
            assert conn.execute(sa.text("select length(:x)"), {"x": "x" * 30_000}).scalar() == 30_000
            assert (flights(conn) - before[0], line.turns - before[1]) == (1, 1)
            assert isinstance(sock, ssl.SSLSocket)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def test_a_server_nobody_vouches_for_is_refused(database_url: str, certificate: Path) -> None:
    with wire(_port(database_url), tls=_tls_server(certificate)) as line:
        url = sa.make_url(database_url).set(port=line.port, query={"sslmode": "verify-full"})
        with pytest.raises(ssl.SSLCertVerificationError):
            connect_engine(url.render_as_string(hide_password=False), pool="none").connect()
