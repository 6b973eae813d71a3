"""Saved searches from their first cycle on: windows, history, gates, companies."""

from __future__ import annotations

from datetime import datetime, timedelta
from random import Random
from uuid import UUID

import pytest
import sqlalchemy as sa

from shared.search.store import NEXT_JOB, ONE
from tests.support.rig import BEGINNING, TENANT
from tests.support.searches import DAY_S, SearchRig

pytestmark = pytest.mark.full


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


READ = "update query_state set covered = cast(:covered as tstzmultirange), seed_floor = :floor, high_watermark = :mark"


def test_what_is_covered_and_what_is_missing_are_all_there_is(searches: SearchRig) -> None:
    """covered and gaps together are the seeded range, and never overlap, whatever was read in whichever order."""
    searches.save(days=30)
    (row,) = searches.rows("select id from saved_search")
    rng = Random(4)
    for _ in range(150):
        floor, hours = rng.randrange(0, 100), rng.randrange(0, 400)
        read = [
            (lo, lo + rng.randrange(1, 90))
            for lo in (rng.randrange(floor, floor + 300) for _ in range(rng.randrange(7)))
        ]
        mark = max([floor, *(hi for _, hi in read)]) if hours % 3 else floor + hours
        told = {
            "floor": BEGINNING + timedelta(hours=floor), "mark": BEGINNING + timedelta(hours=mark),
            "covered": "{" + ",".join(f"[{BEGINNING + timedelta(hours=a)},{BEGINNING + timedelta(hours=b)})" for a, b in read) + "}",
        }  # fmt: skip
        searches.write("update query_state set high_watermark = null")
        with searches.owner.connect() as connection:
            connection.exec_driver_sql("alter table query_state disable trigger user")
            connection.execute(sa.text("select set_config('sim.now', :now, false)"), {"now": BEGINNING.isoformat()})
            connection.execute(sa.text(READ), told)
            connection.exec_driver_sql("alter table query_state enable trigger user")
            shown = connection.execute(ONE, {"tenant_id": TENANT, "id": row["id"]}).mappings().one()
        covered = hours_of(shown["covered"])
        gaps = hours_of(shown["gaps"])
        seeded = set(range(floor, mark))
        assert covered & gaps == set()
        assert (covered | gaps) & seeded == seeded
        assert gaps <= seeded, "nothing is missing before the floor or after the watermark"


def hours_of(ranges: list[dict[str, str]]) -> set[int]:
    found: set[int] = set()
    for each in ranges:
        first, last = ((datetime.fromisoformat(each[end]) - BEGINNING) / timedelta(hours=1) for end in ("start", "end"))
        assert first.is_integer()
        assert last.is_integer()
        found |= set(range(int(first), int(last)))
    return found


FILL = """
with made as (
    insert into saved_search (id, tenant_id, name, client, connection, params, query_key, max_pages, max_offers, every_s,
                              fresh_within_s, seed_floor, created_at, updated_at)
    select gen_random_uuid(), :t, 's' || n, 'infojobs', gen_random_uuid(), '{}', md5(n::text), 20, 1000, 86400, 129600, :now, :now, :now
    from generate_series(cast(:first as integer), cast(:last as integer)) n returning *)
insert into query_state (tenant_id, query_key, search_id, client, account, zone, seed_floor, next_due_at, fresh_at, last_success_at)
select tenant_id, query_key, id, client, 'infojobs:x', 'UTC', seed_floor,
       cast(:now as timestamptz) + (mod(hashtext(query_key), 1000)) * interval '1 minute', :now,
       cast(:now as timestamptz) + (mod(hashtext(query_key), 1000) - 1440) * interval '1 minute'
from made"""


def cost_of_the_next(rig: SearchRig) -> int:
    told = {"tenant_id": TENANT, "run_id": UUID(int=1)}
    with rig.owner.connect() as connection:
        connection.execute(sa.text("analyze query_state"))
        connection.execute(sa.text("analyze saved_search"))
        connection.execute(sa.text("select set_config('sim.now', :now, false)"), {"now": rig.at(rig.now).isoformat()})
        explained = sa.text(f"explain (analyze, buffers, timing off, format json) {NEXT_JOB.text}")
        (answer,) = connection.execute(explained, told).scalar_one()
        assert connection.execute(NEXT_JOB, told).mappings().one()["purpose"] == "head"
    return int(answer["Plan"]["Shared Hit Blocks"] + answer["Plan"]["Shared Read Blocks"])


GATES = """
insert into gate (tenant_id, key, state, until, updated_at)
select gen_random_uuid(), 'infojobs:' || n, 'closed', cast(:now as timestamptz) + interval '1 hour', :now from generate_series(1, 2000) n"""


def test_what_is_next_costs_the_same_among_ten_thousand(searches: SearchRig) -> None:
    """With gates of others besides: it looks at one search after the other, not at all of them and all gates first."""
    searches.write(GATES, now=searches.at(0))
    with searches.owner.connect() as connection:
        connection.exec_driver_sql("analyze gate")
    searches.write(FILL, t=TENANT, first=1, last=10, now=searches.at(0))
    few = cost_of_the_next(searches)
    searches.write(FILL, t=TENANT, first=11, last=10_000, now=searches.at(0))
    many = cost_of_the_next(searches)
    assert many <= 1.3 * max(few, 12), (few, many)
