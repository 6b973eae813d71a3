"""The statements of every step keep their plans on the server: whom they serve, when they are renewed, what loses them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from uuid import UUID

import pytest
import sqlalchemy as sa
from pg8000.core import ROW_DESCRIPTION, Context
from pg8000.exceptions import DatabaseError, InterfaceError

from shared.kernel import db, direct, flights
from shared.kernel.flights import Connection

pytestmark = pytest.mark.full

ALICE, BOB = UUID("a11ce000-0000-4000-8000-000000000001"), UUID("b0b00000-0000-4000-8000-000000000002")
ECHO = "select $1::int as x"
KEPT = "select count(*) from pg_prepared_statements where name like 'often%'"


@pytest.fixture
def line(database_url: str) -> Iterator[Connection]:
    where = sa.make_url(database_url)
    address = {
        "user": where.username,
        "password": where.password,
        "host": where.host,
        "port": where.port,
        "database": where.database,
    }
    with closing(Connection(**address, ssl_context=False, keeps_plans=True)) as connection:
        connection.autocommit = True
        yield connection


def _kept(line: Connection) -> int:
    return int(line.execute_simple(KEPT).rows[0][0])


def test_a_statement_that_comes_often_is_parsed_once_and_is_one_flight(line: Connection) -> None:
    before = line.flights
    assert [line.execute_often(ECHO, [n]).rows for n in range(8)] == [[[n]] for n in range(8)]
    assert line.flights - before == 8
    assert _kept(line) == 1
    (calls,) = line.execute_simple("select generic_plans + custom_plans from pg_prepared_statements").rows[0]
    assert calls == 8


def test_a_plan_serves_twice_as_often_as_the_one_before_it(line: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "FIRST_USES", 1)
    monkeypatch.setattr(flights, "PLAN_USES", 4)
    monkeypatch.setattr(flights, "PLAN_S", 1_000.0)
    names = []
    for n in range(12):
        assert line.execute_often(ECHO, [n]).rows == [[n]]
        ((name,),) = line.execute_simple("select name from pg_prepared_statements").rows
        names.append(int(name.removeprefix("often_")))
    assert names == [1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5]


def test_a_plan_serves_for_some_seconds(line: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "PLAN_S", -1.0)
    for n in range(3):
        assert line.execute_often(ECHO, [n]).rows == [[n]]
    assert line.execute_simple("select name from pg_prepared_statements").rows == [["often_3"]]


def test_a_plan_serves_each_tenant_its_own_rows(line: Connection) -> None:
    line.execute_simple(
        "create table secret (tenant_id uuid, word text); alter table secret enable row level security;"
        "create policy mine on secret to public using"
        " (tenant_id = (select nullif(current_setting('app.tenant', true), '')::uuid));"
        f"insert into secret values ('{ALICE}', 'ours'), ('{BOB}', 'theirs');"
        "grant select on secret to baton_worker; set role baton_worker"
    )
    ask = "select word from secret where $1 = 1"
    for _ in range(12):
        for tenant, word in ((ALICE, "ours"), (BOB, "theirs")):
            line.before_next(db.SET_TENANT, str(tenant))
            assert line.execute_often(ask, [1]).rows == [[word]]
        assert line.execute_often(ask, [1]).rows == []
    assert _kept(line) == 2, "its own, and that of the tenant ahead of it"


def test_plans_that_a_pooler_lost_are_done_without_and_the_tenant_still_rides(line: Connection) -> None:
    ask = "select current_setting('app.tenant', true), $1::int"
    line.execute_often(ask, [1])
    line.execute_simple("deallocate all")
    line.before_next(db.SET_TENANT, str(ALICE))
    assert line.execute_often(ask, [2]).rows == [[str(ALICE), 2]]
    left = _kept(line)
    assert line.execute_often(ECHO, [3]).rows == [[3]]
    assert _kept(line) == left <= 1, "that of the tenant, ahead of the one that was lost"


def test_a_migration_that_changes_an_answer_does_not_fail_the_statement(line: Connection) -> None:
    line.execute_simple("create table changing (x int); insert into changing values (1)")
    ask = "select * from changing where x = $1"
    assert line.execute_often(ask, [1]).rows == [[1]]
    line.execute_simple("alter table changing add y text default 'new'")
    assert line.execute_often(ask, [1]).rows == [[1, "new"]]


def test_a_statement_that_fails_can_be_asked_again(line: Connection) -> None:
    ask = "select 1 / $1::int"
    for divisor in (0, 1, 0, 1, 1):
        if divisor:
            assert line.execute_often(ask, [divisor]).rows == [[1]]
        else:
            with pytest.raises(DatabaseError):
                line.execute_often(ask, [divisor])
    assert _kept(line) <= 2


def test_what_an_answer_looks_like_is_told_once_for_each_plan(
    line: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bytes] = []
    describe = line.message_types[ROW_DESCRIPTION]

    def listen(data: bytes, context: Context) -> None:
        told.append(data)
        describe(data, context)

    line.message_types[ROW_DESCRIPTION] = listen
    monkeypatch.setattr(flights, "FIRST_USES", 4)
    for n in range(6):
        context = line.execute_often("select $1::int as x, null::text as y where $1 > 0", [n])
        assert [column["name"] for column in context.columns] == ["x", "y"]
        assert context.rows == ([[n, None]] if n else [])
    assert len(told) == 2


def test_a_statement_that_answers_nothing_has_no_rows(line: Connection) -> None:
    line.execute_simple("create table noted (x int)")
    for n in range(3):
        context = line.execute_often("insert into noted select $1::int from generate_series(1, 2)", [n])
        assert (context.rows, context.row_count) == (None, 2)


def test_who_rides_ahead_is_not_heard_and_can_be_asked_all_the_same(line: Connection) -> None:
    for n in range(3):
        line.before_next(ECHO, n)
        assert line.execute_often("select $1::int", [7]).rows == [[7]]
        assert line.execute_often(ECHO, [n]).rows == [[n]]


def test_a_flight_that_failed_leaves_no_name_that_the_server_may_not_know(line: Connection) -> None:
    """Its plans would be looked for in vain, and none be kept any more."""
    for _ in range(2):
        line.before_next("select 1 / $1::int", 0)
        with pytest.raises(DatabaseError, match="division by zero"):
            line.execute_often(ECHO, [1])
        line.before_next("select $1::int + 1", 1)
        with pytest.raises(UnicodeEncodeError):
            line.execute_often("select $1::text", ["\ud800"])
    (failed,), (fine,) = line.execute_apart(
        [([("select 1 / $1::int", [0])], [(ECHO, [1]), (ECHO, [1])]), ([], [(ECHO, [2])])]
    )
    assert (failed.error is not None, fine.rows) == (True, [[2]])
    line.before_next("select $1::int + 1", 1)
    assert line.execute_often(ECHO, [3]).rows == [[3]]
    ((one, two),) = line.execute_apart([([], [("select $1::int + 1", [1]), (ECHO, [4])])])
    assert (one.rows, two.rows) == ([[2]], [[4]])
    assert line._keeps_plans


def test_only_so_many_plans_are_kept(line: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "MOST_PLANS", 2)
    for n in range(5):
        assert line.execute_often(f"select $1::int + {n}", [1]).rows == [[1 + n]]
    assert _kept(line) == 2


@pytest.mark.parametrize("pool", ["one", "none"])
def test_nothing_is_named_in_a_transaction_or_behind_a_pooler(database_url: str, pool: str) -> None:
    engine = db.connect_engine(database_url, pool=pool)  # type: ignore[arg-type]
    echo, kept = sa.text("select cast(:x as int) as x"), sa.text(KEPT)
    with direct.together(engine, None) as line:
        assert line.often(echo, {"x": 1}) == {"x": 1}
        assert line.scalars(kept, {}) == [0]
    with direct.alone(engine) as line:
        assert line.often(echo, {"x": 2}) == {"x": 2}
        assert line.scalars(kept, {}) == [1 if pool == "one" else 0]
    engine.dispose()


def test_what_a_loan_left_open_is_undone_before_the_next_one(database_url: str) -> None:
    engine = db.connect_engine(database_url)
    note, count = sa.text("insert into noted values (1)"), sa.text("select count(*) from noted")
    with direct.alone(engine) as line:
        line.run(sa.text("create table noted (x int)"), {})
    with pytest.raises(DatabaseError), direct.together(engine, ALICE) as line:
        line.run(sa.text("insert into noted select 1 / x from (values (1), (0)) v (x)"), {})
    with pytest.raises(ZeroDivisionError), direct.together(engine, BOB) as line:
        raise ZeroDivisionError  # the tenant was never sent
    tenant = sa.text("select nullif(current_setting('app.tenant', true), '') as t")
    with direct.alone(engine) as line:
        assert (line.scalars(count, {}), line.scalars(tenant, {})) == ([0], [None])
    with engine.connect() as connection:
        connection.execute(note)
    with engine.connect() as connection:
        assert connection.scalar(count) == 0, "after autocommit a transaction begins as ever"
    engine.dispose()


def test_a_loan_whose_server_is_gone_is_another_connection_the_next_time(database_url: str) -> None:
    engine = db.connect_engine(database_url)
    pid = sa.text("select pg_backend_pid() as pid")
    with direct.alone(engine) as line:
        (first,) = line.scalars(pid, {})
    with db.connect_engine(database_url, pool="none").connect() as other:
        other.execute(sa.text("select pg_terminate_backend(cast(:pid as int), 5000)"), {"pid": first})
    with pytest.raises(InterfaceError), direct.alone(engine) as line:
        line.scalars(pid, {})
    with direct.alone(engine) as line:
        assert line.scalars(pid, {}) != [first]
    assert isinstance(engine.pool, sa.QueuePool)
    assert engine.pool.checkedout() == 0
    engine.dispose()


def test_a_loan_that_cannot_be_entered_is_given_back(database_url: str) -> None:
    engine = db.connect_engine(database_url)
    with pytest.raises(UnicodeEncodeError) as held, direct.alone(engine, ALICE, "user:\ud800") as line:
        raise AssertionError(line)

    assert held.tb is not None, "a log may keep the traceback, and with it the loan"
    assert isinstance(engine.pool, sa.QueuePool)
    assert engine.pool.checkedout() == 0
    with direct.alone(engine, ALICE) as line:
        tenant = sa.text("select current_setting('app.tenant', true) as t, current_setting('app.owner', true) as o")
        assert line.one(tenant, {}) == {"t": str(ALICE), "o": None}
    engine.dispose()


def test_a_copy_that_the_server_ends_says_why(line: Connection, database_url: str) -> None:
    (pid,) = line.execute_simple("select pg_backend_pid()").rows[0]
    with db.connect_engine(database_url, pool="none").connect() as other:
        other.execute(sa.text("select pg_terminate_backend(cast(:pid as int), 5000)"), {"pid": pid})
    with pytest.raises(InterfaceError) as caught:
        list(line.copy_out("copy (select 1) to stdout"))
    assert (db.sqlstate(caught.value), line.closed) == ("57P01", True)


def test_a_copy_that_fails_on_its_way_is_an_error_and_the_line_is_good(line: Connection) -> None:
    with pytest.raises(DatabaseError, match="division by zero"):
        list(line.copy_out("copy (select 1 / (5000 - n), repeat('x', 500) from generate_series(1, 9000) n) to stdout"))
    assert line.execute_unnamed("select 1").rows == [[1]]
