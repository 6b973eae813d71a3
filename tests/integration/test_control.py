"""The pace rows on a real Postgres: they answer what the model in memory answers, and hold when many ask at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from random import Random
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from pg8000.exceptions import DatabaseError

from shared.kernel import db
from shared.kernel.control import REPORT_ONLY, SHARED, Bounds, Law, Move, Paced, Paces, Plain, Seen, Want, trade
from shared.kernel.errors import Later
from tests.support.databases import as_user
from tests.support.pace import MemoryPace
from tests.support.rig import TENANT, Rig, RigDatabase

OTHER = UUID(int=0xB0)
BOUNDS = Bounds(first=4.0)


@pytest.fixture
def clean(rig: Rig) -> Rig:
    rig.rows("with a as (delete from pace), b as (delete from pace_share) delete from pace_decision returning 1")
    return rig


@pytest.mark.full
@pytest.mark.parametrize("seed", range(6))
def test_the_rows_answer_what_the_model_answers(clean: Rig, seed: int) -> None:
    """Hundreds of exchanges of four functions of two tenants, with limits, failures, waits and stale reports."""
    chance, rig = Random(seed), clean
    memory, paces = MemoryPace(lambda: rig.now), Paces(rig.engine)
    tokens = [UUID(int=n) for n in range(1, 5)]
    owner = SHARED if seed % 2 else None
    last = dict.fromkeys(tokens, 0)
    for _ in range(150):
        token = chance.choice(tokens)
        taker = TENANT if owner is None or token.int < 3 else OTHER
        paced = Paced("acc", "shop", taker, owner)
        sent = chance.randrange(12)
        bad = chance.randrange(sent + 1) if chance.random() < 0.4 else 0
        again_s = chance.choice([1.0, 3.0]) if bad and chance.random() < 0.3 else 0.0
        kind = chance.choice(["throttled", "failed"])
        ok = sent - bad
        told = Seen(sent=sent, ok=ok, ln1=-0.5 * ok, ln2=0.4 * ok, retry_after_s=again_s, late_ok=chance.randrange(3))
        told = Seen(**{**{n: getattr(told, n) for n in Seen.__dataclass_fields__}, kind: bad})
        report = (last[token] - chance.choice([0, 0, 0, 1]), told)
        want = Want(chance.choice([0, 1, 4, 16]), chance.choice([0.2, 1.0, 4.0, 60.0]))

        real = paces.exchange(paced, token, report, want, BOUNDS)
        said = memory.exchange(paced, token, report, want, BOUNDS)

        assert _rounded(real) == _rounded(said)
        if chance.random() < 0.3:
            move = Move(Law(rate=chance.choice([0.5, 4.0, 30.0])), "test", chance.choice([0.0, 0.0, 2.0]), trips=False)
            number = real.granted.window_no - chance.choice([0, 0, 1])
            seen = real.seen
            assert paces.close(paced, number, 4.0, move, seen) == memory.close(paced, number, 4.0, move, seen)
        last[token] = real.granted.window_no
        rig.now += chance.choice([0.0, 0.05, 0.3, 1.0, 4.0, 20.0])
    assert len(clean.rows("select 1 from pace_decision")) == len(memory.decisions) > 10


def _rounded(exchanged: object) -> str:
    return " ".join(
        f"{float(word):.4f}" if word.replace(".", "", 1).replace("-", "").replace("e", "").isdigit() else word
        for word in str(exchanged).replace("=", " ").replace(",", " ").replace(")", " ").split()
    )


@pytest.fixture
def engines(rig_database: RigDatabase) -> Iterator[list[sa.Engine]]:
    made = [db.connect_engine(as_user(rig_database.url, "baton_worker")) for _ in range(6)]
    for engine in made:
        sa.event.listen(engine, "checkout", _real_time)
    yield made
    for engine in made:
        engine.dispose()


def _real_time(connection: Any, *_: object) -> None:
    connection.before_next("select set_config('sim.now', clock_timestamp()::text, false)")


@pytest.mark.full
def test_of_many_who_ask_at_once_no_two_get_the_same_slot(clean: Rig, engines: list[sa.Engine]) -> None:
    slots: list[tuple[int, float]] = []
    begin = threading.Barrier(len(engines))
    lock = threading.Lock()
    paced = Paced("acc", "crowd", TENANT)
    Paces(engines[0]).exchange(paced, UUID(int=1), (0, Seen()), REPORT_ONLY, Bounds(first=1000.0))

    def ask(number: int) -> None:
        paces, token = Paces(engines[number]), UUID(int=100 + number)
        begin.wait(60)
        for _ in range(25):
            got = paces.exchange(paced, token, (1, Seen(sent=1, ok=1)), Want(4), Bounds(first=1000.0)).granted
            paces.close(paced, got.window_no, got.law.rate, Move(got.law, "test"), Seen())
            with lock:
                slots.append((got.slots, got.law.rate))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(engines))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    (row,) = clean.rows("select window_no, extract(epoch from next_slot_at - opened_at) as ahead from pace")
    decided = clean.rows("select window_no from pace_decision")
    assert len(decided) == row["window_no"] - 1, "one decision for each window"
    assert sum(n for n, _ in slots) > 0


@pytest.mark.full
def test_sums_of_concurrent_reports_are_exact(clean: Rig, engines: list[sa.Engine]) -> None:
    paced = Paced("acc", "sums", TENANT)
    Paces(engines[0]).exchange(paced, UUID(int=1), (0, Seen()), REPORT_ONLY, BOUNDS)

    def tell(number: int) -> None:
        for _ in range(40):
            Paces(engines[number]).exchange(paced, UUID(int=number), (1, Seen(sent=1, ok=1, ln1=0.5)), Want(1), BOUNDS)

    threads = [threading.Thread(target=tell, args=(number,)) for number in range(len(engines))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    (row,) = clean.rows("select sent, ok, ln1 from pace where domain = 'sums'")
    assert (row["sent"], row["ok"], row["ln1"]) == (240, 240, pytest.approx(120))


def test_a_due_window_is_closed_by_the_one_who_finds_it_so_and_its_reason_is_kept(clean: Rig) -> None:
    paces, paced = Paces(clean.engine), Paced("acc", "shop", TENANT)
    trade(paces, paced, UUID(int=1), (0, Seen()), Want(1), BOUNDS)
    clean.now += 3

    trade(paces, paced, UUID(int=1), (1, Seen(sent=12, ok=12, ln1=-12.0, ln2=12.0)), Want(1), BOUNDS)

    (decision,) = clean.rows("select reason, rate_before, rate_after, seen from pace_decision")
    assert (decision["reason"], decision["rate_before"], decision["rate_after"]) == ("grow", 4.0, 8.0)
    assert decision["seen"]["ok"] == 12
    fresh = Paces(clean.engine).exchange(paced, UUID(int=9), (0, Seen()), Want(1), BOUNDS)
    assert fresh.granted.law.rate == 8.0, "a function that starts cold knows it at once"
    assert fresh.granted.law.known == 12


@pytest.mark.full
def test_a_plain_limit_holds_across_functions_and_in_every_minute(clean: Rig) -> None:
    """60 a minute, asked by two functions that each want as much as they can get."""
    plain, paced = Plain(per_minute=60, burst=10), Paced("sheets", "read", TENANT)
    paces, used = [Paces(clean.engine), Paces(clean.engine)], list[float]()
    while clean.now < 300:
        for each in paces:
            try:
                used += [clean.now + after_s for after_s in each.take(paced, plain, want=5, patience_s=1.0)]
            except Later:
                continue
        clean.now += 0.5

    used.sort()
    most = max(sum(begin <= at < begin + 60 for at in used) for begin in used)
    assert most <= 60
    assert len(used) >= 0.8 * 60 * 5, "and it is used"
    assert used[:10] == [0.0] * 10, "the burst comes at once"


def test_who_must_wait_for_a_plain_slot_is_told_how_long(clean: Rig) -> None:
    plain, paced, paces = Plain(per_minute=31), Paced("sheets", "write", TENANT), Paces(clean.engine)
    assert paces.take(paced, plain) == [0.0]

    with pytest.raises(Later) as refused:
        paces.take(paced, plain)
    assert refused.value.after_s == pytest.approx(2.0)
    assert refused.value.waits_for == "its turn at write"
    assert paces.take(paced, plain, patience_s=3.0) == [pytest.approx(2.0)]
    clean.now += 65
    assert paces.take(paced, plain, want=3) == [0.0], "what passed by unused is not saved up"


def test_a_tenants_account_is_its_own_and_a_shared_one_is_everybodys(clean: Rig) -> None:
    paces = Paces(clean.engine)
    paces.exchange(Paced("acc", "shop", TENANT), UUID(int=1), (0, Seen()), Want(1), BOUNDS)
    paces.exchange(Paced("acc", "shop", TENANT, SHARED), UUID(int=1), (0, Seen()), Want(1), BOUNDS)
    paces.exchange(Paced("acc", "shop", OTHER, SHARED), UUID(int=2), (0, Seen()), Want(1), BOUNDS)

    with pytest.raises(DatabaseError, match="row-level security"):
        paces.exchange(Paced("acc", "shop", OTHER, TENANT), UUID(int=2), (0, Seen()), Want(1), BOUNDS)

    rows = clean.rows("select tenant_id, granted from pace order by tenant_id")
    assert [row["tenant_id"] for row in rows] == [SHARED, TENANT]
    assert len(clean.rows("select 1 from pace_share")) == 2
