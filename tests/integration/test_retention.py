"""Guards that what is old leaves: at any rate, whatever refuses to leave, and never more of it at once than a batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from infra.migrations.head import VERSIONS
from infra.migrations.run import migrate
from shared.kernel import db, sql
from shared.kernel import run as runs
from shared.kernel import sweep as sweeping
from shared.kernel.catalogue import Catalogue
from shared.kernel.clock import new_id
from shared.kernel.errors import Refused
from shared.kernel.metrics import Metric
from shared.kernel.model import RemoteCall
from shared.kernel.ports import Ports
from shared.kernel.settings import RETENTION_DAYS
from shared.kernel.sweep import sweep
from tests.support.databases import ServerAdmin, as_user
from tests.support.house import ALICE, House, tally_database
from tests.support.plans import explain

STEPS = """
insert into step (lane_id, epoch, seq, tenant_id, outcome, at)
select gen_random_uuid(), 1, n, '00000000-0000-0000-0000-0000000a11ce', 'moved', now() - {age}
from generate_series(1, {count}) n
"""
SIGNALS = """
insert into signal (tenant_id, name, payload, at)
select '00000000-0000-0000-0000-0000000a11ce', 'n' || n, '{{}}', now() - {age} from generate_series(1, {count}) n
"""
REPAIRS = """
insert into repair (lane_id, tenant_id, why, at)
select gen_random_uuid(), '00000000-0000-0000-0000-0000000a11ce', 'unsent', now() - {age} from generate_series(1, {count}) n
"""
PULSES = """
insert into pulse select '00000000-0000-0000-0000-0000000a11ce', now() - {age}, gen_random_uuid()::text, 1, 0, 1
from generate_series(1, {count}) n
"""
ANSWERS = """
insert into answered (tenant_id, actor, key, request_hash, at)
select '00000000-0000-0000-0000-0000000a11ce', 'user:ann', gen_random_uuid()::text, '', now() - {age}
from generate_series(1, {count}) n
"""
FILL = {"step": STEPS, "signal": SIGNALS, "repair": REPAIRS, "pulse": PULSES, "answered": ANSWERS}


def count(house: House, table: str) -> int:
    return int(house.value(f"select count(*) from {table}"))


class Counts:
    """A meter that remembers."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, float, dict[str, str]]] = []

    def count(self, metric: str, value: float = 1, /, **dimensions: str) -> None:
        self.seen.append((metric, value, dimensions))


# The ledger.


def test_whole_days_of_the_ledger_leave_at_once_and_the_last_two_weeks_stay(house: House) -> None:
    for days in (*range(14), 15, 16, 40):
        house.sql(STEPS.format(age=f"interval '{days} days'", count=5))
    stays = "select count(*) from step where at > now() - interval '14 days'"
    assert house.value(stays) == 14 * 5

    house.store.prune("step", 14, 1)
    while house.store.prune("step", 14, 1):
        pass

    assert (count(house, "step"), house.value(stays)) == (14 * 5, 14 * 5)


def test_a_day_of_the_ledger_that_is_not_all_old_stays(house: House) -> None:
    house.sql(STEPS.format(age="interval '14 days' - interval '1 minute'", count=1))
    house.sql(STEPS.format(age="interval '14 days' + interval '1 minute'", count=1))
    young = house.value("select lane_id from step where at > now() - interval '14 days'")

    house.store.prune("step", 14, 1000)

    assert young in {row.lane_id for row in house.sql("select lane_id from step")}


def test_steps_that_missed_their_day_leave_in_batches(house: House) -> None:
    """Nobody swept for days: the leaf that was to be emptied is being written again."""
    house.sql(STEPS.format(age="interval '16 days'", count=5))
    house.sql(STEPS.format(age="interval '0 days'", count=3))
    assert house.value("select count(distinct tableoid) from step") == 1, "one leaf for both"

    pruned = [house.store.prune("step", 14, 2) for _ in range(4)]

    assert (pruned, count(house, "step")) == ([2, 2, 1, 0], 3)


@pytest.mark.full
def test_a_reader_of_the_ledger_does_not_hold_up_the_sweep(house: House) -> None:
    """Of the day before the last fortnight: old enough to be emptied, too young to be deleted row by row."""
    house.sql(STEPS.format(age="interval '0'", count=3))
    house.sql("update step set at = date_trunc('day', now(), 'UTC') - interval '14 days 1 s'")
    house.sql(SIGNALS.format(age="interval '15 days'", count=3))

    with house.locking("select count(*) from step"):
        done = sweep(house.ports, house.kinds)
    assert (done["signal"], count(house, "step")) == (3, 3)

    sweep(house.ports, house.kinds)
    assert count(house, "step") == 0


PERIOD, FEW_PAGES = 20_000, 130  # rows of some hours lie in one day of the ledger, or in two


@pytest.mark.full
@pytest.mark.parametrize("table", list(FILL))
def test_an_empty_prune_touches_few_pages_after_a_retention_period(
    postgres_server: ServerAdmin, template: str, table: str
) -> None:
    """Pages that held old rows hold young ones now: an index that remembers the old ones would send it to every page."""
    days = RETENTION_DAYS[table]
    with tally_database(postgres_server, template) as url:
        house = House(url)
        with house._owner.connect() as owner:
            owner.exec_driver_sql(FILL[table].format(age=f"interval '1 s' * (n + {(days + 1) * 86_400})", count=PERIOD))
            while house.store.prune(table, days, PERIOD):
                pass
            owner.exec_driver_sql(f"vacuum {table}")
            owner.exec_driver_sql(FILL[table].format(age="interval '1 s' * n", count=PERIOD))
            owner.exec_driver_sql(f"vacuum analyze {table}")
        assert count(house, table) == PERIOD
        with house._own_engines[1].connect() as worker:
            buffers = explain(worker, sql.PRUNE[table], {"days": days, "most": 1000}).buffers
            if table == "step":
                buffers += explain(worker, sql.FORGET_STEPS, {"days": days}).buffers
        assert count(house, table) == PERIOD
        house.close()

    assert buffers <= FEW_PAGES


# Signals.


def test_old_signals_leave_whether_anybody_dispatched_them_or_not(house: House) -> None:
    house.sql(SIGNALS.format(age="interval '15 days'", count=2))
    house.sql("update signal set dispatched_at = now() where name = 'n1'")
    house.sql(SIGNALS.format(age="interval '13 days'", count=3))

    assert sweep(house.ports, house.kinds)["signal"] == 2
    assert count(house, "signal") == 3


# Runs.


def old_run(house: House, lanes: int, steps: int) -> UUID:
    run_id = house.start(lanes=lanes, target=1)
    house.sql(
        """insert into step (lane_id, epoch, seq, tenant_id, outcome)
           select id, 1, n, tenant_id, 'moved' from lane cross join generate_series(1, :steps) n where run_id = :id""",
        id=run_id,
        steps=steps,
    )
    house.sql(
        """insert into remote_call (run_id, epoch, key, tenant_id, kind, leaves_asset)
           select :id, 1, n, :t, 'thing', false from generate_series(1, 25) n""",
        id=run_id,
        t=ALICE,
    )
    house.sql(
        """insert into history (run_id, n, tenant_id, epoch, type)
           select :id, n, :t, 1, 'lane_woken' from generate_series(100, 125) n""",
        id=run_id,
        t=ALICE,
    )
    house.sql("update lane set status = 'failed' where run_id = :id", id=run_id)
    house.sql(
        "update run set status = 'failed', finished_at = now() - interval '91 days' where id = :id",
        id=run_id,
    )
    return run_id


@pytest.mark.parametrize("steps", [0, 3])
def test_a_run_of_many_rows_leaves_in_batches_and_cannot_be_retried_from_the_first_on(house: House, steps: int) -> None:
    run_id = old_run(house, lanes=30, steps=steps)
    tables = ("lane", "step", "remote_call", "history", "run")
    before, batches = {table: count(house, table) for table in tables}, 0
    assert before["step"] == 30 * steps

    while (batch := house.store.prune_runs([], 90, 10)).rows or batch.runs:
        now = {table: count(house, table) for table in tables}
        assert all(before[table] - now[table] <= 10 for table in tables), "no table gives more than a batch"
        if now["run"]:
            with pytest.raises(Refused, match="past its retention"):
                runs.retry_run(house.ports, house.kind, ALICE, run_id)
        before, batches = now, batches + 1
        assert batches < 50

    assert set(before.values()) == {0}
    assert batches > 3 * steps


def test_a_run_leaves_after_the_last_line_of_its_history(house: House) -> None:
    run_id = old_run(house, lanes=1, steps=0)
    house.sql(
        """insert into history (run_id, n, tenant_id, epoch, type)
           select :id, n, :t, 1, 'lane_woken' from generate_series(200, 250) n""",
        id=run_id, t=ALICE,
    )  # fmt: skip

    while count(house, "run"):
        batch = house.store.prune_runs([], 90, 10)
        assert batch.rows or batch.runs, "it comes to an end"

    assert count(house, "history") == 0


def test_a_sweep_takes_a_run_with_more_rows_than_a_batch(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "BATCH", 10)
    old_run(house, lanes=30, steps=2)
    stays = house.start()

    assert sweep(house.ports, house.kinds)["run"] == 1

    assert [row.id for row in house.sql("select id from run")] == [stays]
    assert count(house, "step") == 0


def test_a_run_that_was_reopened_while_the_sweep_looked_does_not_leave(house: House) -> None:
    run_id = old_run(house, lanes=1, steps=1)
    runs.retry_run(house.ports, house.kind, ALICE, run_id)

    assert sweep(house.ports, house.kinds)["run"] == 0
    assert house.lane(run_id).status == "active"


@pytest.mark.full
def test_runs_whose_rows_cannot_be_pruned_do_not_keep_the_others(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "BATCH", 2)
    stuck = [old_run(house, lanes=1, steps=0) for _ in range(2)]
    free = [old_run(house, lanes=1, steps=0) for _ in range(2)]
    for age, run_id in enumerate([*free, *stuck]):
        house.sql(f"update run set finished_at = now() - interval '{100 + age} days' where id = :id", id=run_id)

    def prune(tx: Any, run: Any, most: int) -> int:
        if run.id in stuck:
            raise ValueError("this one refuses")
        return 0

    assert sweep(house.ports, Catalogue(replace(house.kind, prune=prune)))["run"] == 2
    assert {row.id for row in house.sql("select id from run")} == set(stuck)


def test_a_run_leaves_with_the_last_of_its_kinds_rows_however_many_there_are(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "BATCH", 2)
    run_id = old_run(house, lanes=1, steps=0)
    rows, left = list(range(5)), []

    def prune(tx: Any, run: Any, most: int) -> int:
        assert run.id == run_id
        gone = rows[:most]
        del rows[:most]
        left.append(len(rows))
        return len(gone)

    assert sweep(house.ports, Catalogue(replace(house.kind, prune=prune)))["run"] == 1
    assert (left, count(house, "run")) == ([3, 1, 0], 0)


# A table that refuses, and one that takes all the time.


@contextmanager
def refusing(house: House, table: str) -> Iterator[None]:
    house.sql(f"revoke delete on {table} from baton_worker")
    try:
        yield
    finally:
        house.sql(f"grant delete on {table} to baton_worker")


@pytest.mark.parametrize("table", ["step", "pulse", "repair", "signal", "answered", "run"])
def test_a_table_that_cannot_be_pruned_does_not_keep_the_next(house: House, table: str) -> None:
    meter, others = Counts(), [name for name in FILL if name != table]
    for name in others:
        house.sql(FILL[name].format(age=f"interval '{RETENTION_DAYS[name] + 1} days'", count=3))
    if table == "run":
        old_run(house, lanes=1, steps=0)
    else:
        house.sql(FILL[table].format(age="interval '47 days'", count=3))
        if table == "step":  # or its leaf is emptied by the owner's function
            house.sql(FILL[table].format(age="interval '31 days'", count=3))

    with refusing(house, table):
        sweep(replace(house.ports, meter=meter), house.kinds)

    assert {name: count(house, name) for name in others} == dict.fromkeys(others, 0)
    assert {"table": table} in [dimensions for metric, _, dimensions in meter.seen if metric is Metric.PRUNE_FAILED]


class Hourglass:
    """What is left of a function's time, as the test lets it run."""

    def __init__(self, seconds: float) -> None:
        self.left_s = seconds

    def ports(self, house: House) -> Ports:
        return replace(house.ports, time_left_s=lambda: self.left_s)


def test_a_table_with_many_old_rows_does_not_starve_the_others(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "BATCH", 10)
    house.sql(REPAIRS.format(age="interval '31 days'", count=1000))
    house.sql(SIGNALS.format(age="interval '15 days'", count=5))
    hourglass, plain = Hourglass(60), house.store.prune

    def slow(table: str, days: int, most: int) -> int:
        hourglass.left_s -= 3
        return plain(table, days, most)

    monkeypatch.setattr(house.store, "prune", slow)
    sweep(hourglass.ports(house), house.kinds)

    assert count(house, "signal") == 0
    assert 0 < count(house, "repair") < 1000
    assert hourglass.left_s > 0


# Assets.


def leak(house: House, age: str) -> UUID:
    """An ended run that left an asset outside."""
    run_id = house.start(target=1, assets=["l0"], leaks=True)
    house.take_turn(run_id)
    house.sql("update run set finished_at = now() - interval '2 hours' where id = :id", id=run_id)
    house.sql(f"update remote_call set intended_at = now() - interval '{age}' where run_id = :id", id=run_id)
    return run_id


def left_outside(house: House) -> set[UUID]:
    return {row.run_id for row in house.sql("select run_id from remote_call where cleaned_at is null")}


def with_clean(house: House, clean: Any) -> Catalogue:
    return Catalogue(replace(house.kind, clean=lambda asset, *_: clean(asset)))


@pytest.mark.full
def test_cleaning_that_takes_long_leaves_time_for_pruning(house: House) -> None:
    """Forty assets of ten seconds each in a function of two minutes."""
    for _ in range(40):
        leak(house, "1 day")
    house.sql(SIGNALS.format(age="interval '15 days'", count=5))
    hourglass = Hourglass(120)

    def slow(asset: RemoteCall) -> None:
        hourglass.left_s -= 10

    done = sweep(hourglass.ports(house), with_clean(house, slow))

    assert done["signal"] == 5
    assert 0 < done["assets"] < 12
    assert hourglass.left_s > 60


def test_assets_that_cannot_be_removed_do_not_stand_before_the_others(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "BATCH", 3)
    stuck = {leak(house, "3 days") for _ in range(3)}
    for _ in range(4):
        leak(house, "2 days")

    def clean(asset: RemoteCall) -> None:
        if asset.run_id in stuck:
            raise ValueError("this one refuses")

    cleaned = [sweep(house.ports, with_clean(house, clean), {})["assets"] for _ in range(3)]

    assert (cleaned, left_outside(house)) == ([0, 3, 1], stuck)


def test_assets_of_a_kind_that_is_not_deployed_do_not_stand_before_the_others(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "BATCH", 1)
    unknown, known = leak(house, "3 days"), leak(house, "2 days")
    house.sql("update run set kind = 'gone' where id = :id", id=unknown)

    assert [sweep(house.ports, house.kinds, {})["assets"] for _ in range(2)] == [0, 1]
    assert left_outside(house) == {unknown}
    assert known not in left_outside(house)


def test_an_asset_that_kills_its_sweep_does_not_kill_the_next(house: House) -> None:
    deadly, free = leak(house, "3 days"), leak(house, "2 days")

    def clean(asset: RemoteCall) -> None:
        if asset.run_id == deadly:
            raise SystemExit

    with pytest.raises(SystemExit):
        sweep(house.ports, with_clean(house, clean), {})
    assert left_outside(house) == {deadly, free}

    assert sweep(house.ports, with_clean(house, clean), {})["assets"] == 1
    assert left_outside(house) == {deadly}


def test_an_asset_that_cannot_be_removed_is_tried_less_and_less_often(house: House) -> None:
    run_id, tried = leak(house, "3 days"), []

    def clean(asset: RemoteCall) -> None:
        tried.append(asset.run_id)
        raise ValueError("not yet")

    def wait_s() -> int:
        return round(float(house.value("select extract(epoch from clean_at - now()) from remote_call")))

    waits = []
    for _ in range(14):
        sweep(house.ports, with_clean(house, clean), {})
        sweep(house.ports, with_clean(house, clean), {})  # not before its time
        waits.append(wait_s())
        house.sql("update remote_call set clean_at = now()")

    assert tried == [run_id] * 14
    assert waits[:4] == [60, 120, 240, 480]
    assert waits[-1] == 86_400
    assert sweep(house.ports, house.kinds, {})["assets"] == 1


def test_of_two_sweeps_at_once_one_removes_an_asset(house: House) -> None:
    leak(house, "3 days")
    ((asset, _),) = house.store.leaked_assets(10, 0)

    assert [house.store.put_off_cleaning(asset) for _ in range(2)] == [True, False]


# Production has rows.


@pytest.mark.full
def test_a_database_with_a_ledger_keeps_it_and_its_old_days_leave(
    postgres_server: ServerAdmin, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = tmp_path_factory.mktemp("versions")
    for path in VERSIONS.glob("000[1-6]_*.py"):
        before.joinpath(path.name).write_text(path.read_text())
    name = postgres_server.create_from_template(postgres_server.create_template(before))
    url = postgres_server.url(name)
    owner, worker = db.connect_engine(url), db.connect_engine(as_user(url, "baton_worker"))
    lane_id = new_id()
    sleeping = """
        insert into run (id, tenant_id, kind, status, check_at) values (:id, :id, 'tally', 'running', now());
        insert into lane (id, run_id, tenant_id, kind, key, holds_run, cursor, next_due_at, check_at, max_steps)
        values (:id, :id, :id, 'tally', 'side', false, '{}', now(), 'infinity', 9)"""
    with db.autocommit(owner).connect() as connection:
        connection.exec_driver_sql(STEPS.format(age="interval '13 days'", count=100))
        for statement in sleeping.split(";"):
            connection.execute(sa.text(statement), {"id": lane_id})
    owner.dispose()

    migrate(url)

    with db.autocommit(worker).connect() as connection:
        connection.exec_driver_sql(STEPS.format(age="interval '0 days'", count=5))
        assert connection.exec_driver_sql("select count(*) from step").scalar_one() == 105
        connection.exec_driver_sql("select forget_steps(now() - interval '14 days')")
        assert connection.exec_driver_sql("select count(*) from step").scalar_one() == 105
        # In a fortnight all of the old ledger is old, and what was written since then lies elsewhere.
        connection.exec_driver_sql(STEPS.format(age="interval '-10 days'", count=3))
        connection.exec_driver_sql("select forget_steps(now() + interval '3 days')")
        assert connection.exec_driver_sql("select count(*) from step").scalar_one() == 3
        assert connection.exec_driver_sql("select count(*) from lane where check_at <= now()").scalar_one() == 1
    worker.dispose()
