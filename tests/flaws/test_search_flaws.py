"""One test per flaw of saved searches (4a-4n): each fails when the flaw's rule is put back. Then upstreams that lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from uuid import UUID

import pytest
import sqlalchemy as sa

from shared.kernel import db
from shared.kernel import run as runs
from shared.kernel.errors import Conflict
from shared.kernel.model import Ending, NewLane, Run
from shared.kernel.points import Point, watch_points
from shared.kernel.ports import Tx
from shared.kernel.store import PgStore
from shared.kernel.undeployed import cancel_undeployed
from shared.search.points import SearchPoint
from shared.search.ports import SearchMetric
from tests.support.databases import as_user
from tests.support.rig import TENANT, RigDatabase
from tests.support.searches import CONNECTIONS, DAY_S, OTHER_TENANT, SearchRig

HOUR = 3_600.0


class Killed(BaseException):
    """The process is gone: no code of ours runs after this."""


@contextmanager
def killed_at(wanted: str) -> Iterator[None]:
    def hook(point: str) -> None:
        if point is wanted:
            watch_points(None)
            raise Killed

    watch_points(hook)
    try:
        with pytest.raises(Killed):
            yield
    finally:
        watch_points(None)


def begin(rig: SearchRig, day: float = 40, per_day: int = 10, late: float = 0, days: float = 30) -> None:
    rig.now = day * DAY_S
    rig.infojobs.post_days((day - days) * DAY_S, days, per_day, late=late)


def stops(rig: SearchRig, key: str) -> list[str]:
    return [each["stop_reason"] for each in rig.executions(key)]


def missing(rig: SearchRig, key: str, client: str = "infojobs") -> set[str]:
    """Offers that are dated in what counts as covered and are not here."""
    board = rig.boards[client]
    found = rig.offers(client)
    return {
        each.id
        for lo, hi in rig.covered(key)
        for each in board.posted
        if lo <= each.at < hi and each.visible <= hi and each.id not in found
    }


# --- 4a: a cap or a rate limit is no success, and the watermark stays


def test_4a_a_cap_does_not_move_the_watermark(searches: SearchRig) -> None:
    begin(searches, per_day=200, days=2)
    key = searches.save(max_pages=2)
    searches.start()
    searches.go(60)
    state = searches.state(key)
    assert stops(searches, key) == ["cap"]
    assert (state["status"], state["high_watermark"], searches.covered(key)) == ("IDLE", None, [])
    assert state["resume"]["head"]["page"] == 3
    searches.go(6 * HOUR)
    assert stops(searches, key)[:4] == ["cap", "cap", "cap", "window_exhausted"]
    assert searches.state(key)["high_watermark"] is not None
    assert not missing(searches, key)
    assert len(searches.offers("infojobs")) == 400


def test_4a_a_rate_limit_does_not_move_the_watermark(searches: SearchRig) -> None:
    begin(searches, per_day=200, days=2)
    searches.infojobs.misbehave("throttle", after=3, budget=1)
    key = searches.save()
    searches.start()
    searches.go(HOUR)
    state = searches.state(key)
    assert stops(searches, key) == ["rate_limited"]
    assert (state["status"], state["high_watermark"], searches.covered(key)) == ("IDLE", None, [])
    searches.go(7 * HOUR)
    assert stops(searches, key)[:2] == ["rate_limited", "window_exhausted"]
    assert not missing(searches, key)


# --- 4b: a bad record is kept, and its window is not clean


def test_4b_a_bad_record_is_quarantined_and_can_be_replayed(searches: SearchRig) -> None:
    begin(searches, per_day=5, days=2)
    searches.infojobs.misbehave("bad_records", by=1, budget=1)
    key = searches.save()
    searches.start()
    searches.go(60)
    (kept,) = searches.rows("select * from search_quarantine")
    assert (kept["resolution"], kept["times"], kept["query_key"]) == (None, 1, key)
    assert "title" in kept["problem"]
    assert kept["key"] not in searches.offers("infojobs")
    assert kept["payload"]["id"] == kept["key"]
    (execution,) = searches.executions(key)
    assert (execution["errors_count"], execution["stop_reason"]) == (1, "window_exhausted")
    # We learn to read it (here: it is mended), and it is replayed with the next cycle.
    searches.write(
        """update search_quarantine set payload = payload || '{"title": "Engineer"}', replay_at = :now""",
        now=searches.at(searches.now),
    )
    searches.go(25 * HOUR)
    (kept,) = searches.rows("select * from search_quarantine")
    assert kept["resolution"] in ("replayed", "read")
    assert kept["key"] in searches.offers("infojobs")


def test_4b_a_record_that_is_still_bad_stays(searches: SearchRig) -> None:
    begin(searches, per_day=5, days=2)
    searches.infojobs.misbehave("bad_records", by=1)
    searches.save()
    searches.start()
    searches.go(60)
    searches.write("update search_quarantine set replay_at = :now", now=searches.at(searches.now))
    searches.go(2 * 86_400)
    (kept,) = searches.rows("select * from search_quarantine where key = (select min(key) from search_quarantine)")
    assert (kept["resolution"], kept["replay_at"]) == (None, None)


# --- 4c: the head and the history have places of their own


def test_4c_a_daily_head_leaves_the_place_of_seeding_alone(searches: SearchRig) -> None:
    begin(searches)
    searches.configure(seed_days=1)
    key = searches.save(days=25)
    searches.start()
    searches.go(HOUR)
    place = searches.state(key)["seed_cursor"]
    searches.infojobs.misbehave("throttle", budget=1)  # the history waits, and then a head comes first
    searches.go(30 * HOUR)
    heads = [each for each in searches.executions(key) if each["purpose"] == "head"]
    assert len(heads) >= 2
    state = searches.state(key)
    assert state["seed_floor"] <= state["seed_cursor"] <= place
    assert state["last_processed_date"] is not None
    searches.go(3 * 86_400)
    state = searches.state(key)
    assert state["seed_cursor"] == state["seed_floor"]
    assert len(searches.covered(key)) == 1
    seeds = [each for each in searches.executions(key) if each["purpose"] == "seed" and each["stop_reason"] == "window_exhausted"]  # fmt: skip
    assert all(later["window_to"] == sooner["window_from"] for sooner, later in pairwise(seeds))
    assert not missing(searches, key)


def test_4c_a_backfill_moves_neither(searches: SearchRig) -> None:
    begin(searches)
    key = searches.save(days=1)
    searches.start()
    searches.go(HOUR)
    before = searches.state(key)
    searches.write(
        """insert into search_backfill (id, tenant_id, search_id, query_key, lo, hi, created_at)
           select gen_random_uuid(), tenant_id, search_id, query_key, :lo, :hi, :now from query_state""",
        lo=searches.at(20 * DAY_S), hi=searches.at(24 * DAY_S), now=searches.at(searches.now),
    )  # fmt: skip
    searches.write("update query_state set history_due_at = :now", now=searches.at(searches.now))
    searches.go(25 * HOUR)
    after = searches.state(key)
    assert [each["purpose"] for each in searches.executions(key)].count("backfill") == 1
    assert after["seed_cursor"] == before["seed_cursor"]
    heads = [each for each in searches.executions(key) if each["purpose"] == "head"]
    assert after["high_watermark"] == max(each["window_to"] for each in heads)
    assert (20 * DAY_S, 24 * DAY_S) in searches.covered(key)
    assert not missing(searches, key)


# --- 4d: late data and coarse buckets


def test_4d_late_offers_are_found(searches: SearchRig) -> None:
    begin(searches, per_day=10, days=8, late=0.5)
    searches.infojobs.post_days(searches.now, 4, 10, late=0.5)
    key = searches.save(days=6)
    searches.start()
    searches.go(7 * 86_400)
    assert searches.infojobs.truth(36 * DAY_S, 44 * DAY_S) <= searches.offers("infojobs")
    assert searches.state(key)["status"] == "SUCCESS"


def test_4d_an_outage_is_read_in_full(searches: SearchRig) -> None:
    """Thirty hours do not fit in a bucket of one day."""
    begin(searches, per_day=20, days=4)
    searches.infojobs.post_days(searches.now, 5, 20, late=0)
    key = searches.save()
    run = searches.start()
    searches.go(HOUR)
    (open_run,) = searches.rows("select run_id from search_cycle where ended_at is null")
    runs.pause_run(searches.ports, TENANT, open_run["run_id"])
    searches.go(4 * 86_400)
    runs.resume_run(searches.ports, TENANT, open_run["run_id"])
    searches.go(HOUR)
    assert run != open_run["run_id"]
    ((lo, hi),) = searches.covered(key)
    assert hi - lo > 5 * DAY_S
    assert not missing(searches, key)


# --- 4e: nothing stays RUNNING


def test_4e_a_crash_leaves_nothing_running(searches: SearchRig) -> None:
    begin(searches, per_day=60, days=2)
    key = searches.save()
    searches.start()
    with killed_at(SearchPoint.FETCHED):
        searches.go(HOUR)
    assert searches.state(key)["status"] == "RUNNING"
    searches.go(HOUR)
    assert searches.state(key)["status"] == "SUCCESS"
    assert not missing(searches, key)


def test_4e_a_search_that_kills_every_process_ends_as_an_error_and_the_next_cycle_follows(searches: SearchRig) -> None:
    begin(searches, per_day=60, days=2)
    key = searches.save()

    def hook(point: str) -> None:
        if point == SearchPoint.FETCHED:
            raise Killed

    run = searches.start()
    watch_points(hook)
    try:
        for _ in range(60):
            try:
                searches.go(60)
            except Killed:
                continue
            if searches.run(run)["status"] == "failed":
                break
    finally:
        watch_points(None)
    assert searches.run(run)["status"] == "failed"
    state = searches.state(key)
    assert (state["status"], state["problem"]["code"]) == ("ERROR", "crashed")
    assert stops(searches, key)[0] == "error"
    searches.go(2 * HOUR)
    assert searches.state(key)["status"] == "SUCCESS"
    assert searches.rows("select count(*) as n from search_cycle where ended_at is null")[0]["n"] == 1


def test_4e_a_cycle_that_could_not_be_ended_is_ended_by_what_hears_of_it(searches: SearchRig) -> None:
    """`on_end` never succeeded, and no further cycle is wanted that would find it."""
    begin(searches, per_day=60, days=2)
    key = searches.save()
    searches.kind = replace(searches.kind, on_end=never_ends)
    run = searches.start()
    searches.work_off(2)
    assert searches.state(key)["status"] == "RUNNING"
    searches.write("update query_state set active = false")
    runs.cancel_run(searches.ports, searches.kind, TENANT, run)
    give_up(searches, run)

    assert searches.state(key)["status"] == "IDLE"
    assert stops(searches, key) == ["canceled"]
    assert searches.rows("select count(*) as n from search_cycle where ended_at is null")[0]["n"] == 0


def test_4e_a_cycle_that_was_left_open_is_ended_by_the_next_start(
    searches: SearchRig, rig_database: RigDatabase
) -> None:
    """Nobody heard of its end either: its kind was not deployed."""
    begin(searches, per_day=60, days=2)
    key = searches.save()
    run = searches.start()
    searches.work_off(2)
    cancel_unheard(searches, run)
    assert (searches.run(run)["status"], searches.state(key)["status"]) == ("canceled", "RUNNING")

    assert start_as_the_api(searches, rig_database.url) != run
    searches.go(2 * HOUR)

    assert searches.state(key)["status"] == "SUCCESS"
    assert stops(searches, key).count("canceled") == 1
    assert searches.rows("select count(*) as n from search_cycle where ended_at is null")[0]["n"] == 1


def test_4j_a_night_that_was_left_open_does_not_stand_before_the_next(
    searches: SearchRig, rig_database: RigDatabase
) -> None:
    searches.add_companies(1, 3)
    sheet = searches.add_sheet()
    (waiting,) = searches.nights(sheet)
    cancel_unheard(searches, waiting["run_id"])
    assert searches.nights(sheet)[0]["status"] == "waiting"

    assert start_as_the_api(searches, rig_database.url, sheet=str(sheet)) != waiting["run_id"]
    searches.go(2 * DAY_S)

    assert [night["status"] for night in searches.nights(sheet)] == ["canceled", "synced", "waiting"]


def cancel_unheard(rig: SearchRig, run: UUID) -> None:
    cancel_undeployed(replace(rig.ports, announce=lambda ports: None), rig.kind.name, TENANT, run)
    rig.write("delete from signal")


def start_as_the_api(rig: SearchRig, url: str, **params: str) -> UUID:
    api = db.connect_engine(as_user(url, "baton_api"))
    sa.event.listen(api, "checkout", rig.tell_the_time)
    try:
        return runs.start_run(replace(rig.ports, store=PgStore(api)), rig.kind, TENANT, params)
    finally:
        api.dispose()


def give_up(rig: SearchRig, run: UUID) -> None:
    """Let the relay try to end it until it does so without its kind."""
    for _ in range(60):
        rig.go(300)
        if rig.run(run)["finished_at"] is not None:
            break
    assert (rig.run(run)["status"], rig.run(run)["outcome"]) == ("canceled", "settle_failed")


def never_ends(tx: Tx, run: Run, ending: Ending) -> Sequence[NewLane]:
    raise RuntimeError("cannot be ended")


def test_4e_a_zombie_writes_nothing(searches: SearchRig) -> None:
    """It wakes after another process has read its page, and finds its turn gone."""
    begin(searches, per_day=60, days=2)
    key = searches.save()
    searches.start()
    seen: list[int] = []

    def hook(point: str) -> None:
        if point is Point.STEP_LOOKED and searches.state(key)["status"] == "RUNNING" and not seen:
            seen.append(1)
            searches.now += 200
            searches.go(HOUR)

    watch_points(hook)
    try:
        searches.go(2 * HOUR)
    finally:
        watch_points(None)
    (execution,) = searches.executions(key)
    assert seen
    assert execution["pages_fetched"] == 3
    assert searches.state(key)["status"] == "SUCCESS"


# --- 4f: the pause of a client outlives everything, and is asked for once


def test_4f_a_429_pauses_its_client_for_six_hours_and_no_other(searches: SearchRig) -> None:
    begin(searches, per_day=20, days=2)
    searches.adzuna.post_days(38 * DAY_S, 2, 20, late=0)
    searches.infojobs.misbehave("throttle", budget=1, retry_after="60")
    throttled, free = searches.save("infojobs"), searches.save("adzuna")
    searches.start()
    searches.go(5.9 * HOUR)
    assert searches.state(free)["status"] == "SUCCESS"
    assert len(searches.infojobs.log) == 1  # no attempt of any kind
    (gate,) = searches.rows("select reason from gate where state = 'closed'")
    assert gate["reason"] == "InfoJobs asked to wait; searches with this account go on after 6 hours."
    assert stops(searches, throttled) == ["rate_limited"]
    execution = searches.executions(throttled)[0]
    assert (execution["http_429_count"], execution["errors_count"]) == (1, 0)
    searches.go(0.5 * HOUR)
    assert searches.state(throttled)["status"] == "SUCCESS"
    assert searches.state(throttled)["consecutive_failures"] == 0


def test_4f_a_longer_retry_after_wins(searches: SearchRig) -> None:
    begin(searches, per_day=20, days=2)
    searches.infojobs.misbehave("throttle", budget=1, retry_after=str(9 * 3600))
    key = searches.save()
    searches.start()
    searches.go(8.9 * HOUR)
    assert len(searches.infojobs.log) == 1
    searches.go(0.5 * HOUR)
    assert searches.state(key)["status"] == "SUCCESS"


# --- 4g: the key (see also tests/unit/test_search_decide.py)


def test_4g_the_day_is_no_part_of_the_key(searches: SearchRig) -> None:
    begin(searches, per_day=5, days=2)
    key = searches.save(max_pages=3)
    searches.start()
    searches.go(3 * 86_400)
    assert len({each["query_key"] for each in searches.executions()}) == 1
    assert [each["purpose"] for each in searches.executions(key)] == ["head"] * 3


# --- 4h: one budget of retries


def test_4h_three_retries_in_all_and_then_the_next_search(searches: SearchRig) -> None:
    begin(searches, per_day=20, days=2)
    searches.adzuna.post_days(38 * DAY_S, 2, 20, late=0)
    searches.infojobs.misbehave("server_error")
    broken, fine = searches.save("infojobs"), searches.save("adzuna")
    searches.start()
    searches.go(0.2 * HOUR)
    assert len(searches.infojobs.log) == 4
    state = searches.state(broken)
    assert (state["status"], state["consecutive_failures"], state["problem"]["code"]) == ("ERROR", 1, "server_error")
    assert searches.state(fine)["status"] == "SUCCESS"
    (execution,) = searches.executions(broken)
    assert (execution["stop_reason"], execution["requests_count"], execution["pages_fetched"]) == ("error", 4, 0)


def test_4h_retries_of_all_pages_come_from_one_budget(searches: SearchRig) -> None:
    begin(searches, per_day=200, days=2)
    searches.infojobs.misbehave("server_error", every=2)  # every second request fails
    key = searches.save()
    searches.start()
    searches.go(0.2 * HOUR)
    (execution,) = searches.executions(key)
    assert (execution["stop_reason"], execution["pages_fetched"]) == ("error", 4)
    assert len(searches.infojobs.log) == 8


# --- 4i: no hot loop


def test_4i_with_nothing_new_nothing_is_asked(searches: SearchRig) -> None:
    begin(searches, per_day=5, days=2)
    searches.save()
    searches.start()
    searches.go(23 * HOUR)
    assert len(searches.infojobs.log) == 1
    cycles = searches.rows("select begins_at from search_cycle order by begins_at")
    assert len(cycles) <= 3


def test_4i_cycles_begin_a_quarter_of_an_hour_apart(searches: SearchRig) -> None:
    begin(searches, per_day=300, days=3)
    searches.save(max_pages=1, days=3)
    searches.start()
    searches.go(4 * HOUR)
    searches.start()  # asking again makes no other
    began = [row["begins_at"] for row in searches.rows("select begins_at from search_cycle order by begins_at")]
    assert len(began) > 10
    assert all((later - sooner).total_seconds() >= 900 for sooner, later in pairwise(began))


# --- 4j: rows are written by their key, once a night, and a night that was missed is heard of


def in_the_sheet(rig: SearchRig) -> list[str]:
    return [str(row[0]) for row in rig.google.tab().table()[1:]]


def test_4j_a_lost_answer_doubles_no_row(searches: SearchRig) -> None:
    searches.add_companies(1, 5)
    searches.google.misbehave("lost_answer", on=["sheet"], after=2, budget=3)
    sheet = searches.add_sheet()
    searches.go(5 * HOUR)
    assert searches.google.struck["lost_answer"] == 3
    assert searches.nights(sheet)[0]["status"] == "synced", searches.nights(sheet)
    assert in_the_sheet(searches) == [str(UUID(int=n)) for n in range(1, 6)]
    assert not searches.google.wrong


def test_4j_two_cycles_in_one_night_sync_once(searches: SearchRig) -> None:
    searches.add_companies(1, 2)
    sheet = searches.add_sheet()
    searches.go(3 * HOUR)
    asked = len(searches.google.times)
    for _ in range(3):
        searches.start(sheet=str(sheet))
        searches.go(HOUR / 2)
    assert len(searches.google.times) == asked
    assert [night["status"] for night in searches.nights(sheet)] == ["synced", "waiting"]


def test_4j_a_missed_window_raises_the_alarm(searches: SearchRig) -> None:
    """Google is away the whole night: the sync neither runs into the day nor passes in silence."""
    searches.add_companies(1, 2)
    sheet = searches.add_sheet()
    searches.google.misbehave("throttle", on=["sheet"], retry_after="3000", budget=8)
    searches.go(9 * HOUR)
    night, following = searches.nights(sheet)
    assert (night["status"], night["problem"]["code"]) == ("missed", "window_missed"), night
    assert searches.counted["SheetNotSynced"] == 1
    assert max(searches.google.times) < 5 * HOUR, "six o'clock in Madrid"
    assert following["status"] == "waiting"
    searches.google.behave()
    searches.go(20 * HOUR)
    assert [each["status"] for each in searches.nights(sheet)][:2] == ["missed", "synced"]
    assert searches.counted["SheetNotSynced"] == 1


def test_4j_three_retries_then_the_alarm(searches: SearchRig) -> None:
    sheet = searches.add_sheet()
    searches.google.misbehave("server_error", on=["sheet"])
    searches.go(4 * HOUR)
    assert searches.nights(sheet)[0]["status"] == "failed"
    assert (searches.google.calls["sheet"], searches.counted["SheetNotSynced"]) == (4, 1)


# --- 4n: whoever has the link may write into the sheet


def test_4n_a_sheet_is_read_as_anybodys_input(searches: SearchRig) -> None:
    """Words that are none of ours, formulas, numbers, and keys of nobody or of another tenant say nothing."""
    searches.add_companies(1, 6)
    searches.add_companies(50, 51, OTHER_TENANT)
    sheet = searches.add_sheet()
    searches.go(3 * HOUR)
    grid = searches.google.tab()
    said = ["blocked", " IRRELEVANT", '=HYPERLINK("http://x")', 7, True, "blocked'; drop table companies; --"]
    for row, word in enumerate(said, 2):
        grid.cells[row, 7] = word
    for row, key in enumerate((str(UUID(int=50)), "not an id", "=A1", 12, str(UUID(int=999))), 9):
        grid.cells[row, 1] = key
        grid.cells[row, 7] = "blocked"
    searches.go(DAY_S)
    assert searches.feedback() == {1: "blocked", 2: "irrelevant"}
    night = searches.nights(sheet)[1]
    assert (night["status"], night["feedback_read"], night["feedback_ignored"]) == ("synced", 2, 9), night
    assert grid.cells[10, 1] == "not an id", "rows that are not ours stay"


def test_4n_a_name_is_never_a_formula(searches: SearchRig) -> None:
    searches.add_companies(1, 1)
    searches.write("update companies set name = '=IMPORTXML(\"http://x\", A1)'")
    searches.add_sheet()
    searches.go(3 * HOUR)
    assert searches.google.tab().cells[2, 2] == '=IMPORTXML("http://x", A1)'
    assert not searches.google.wrong


# --- 4k: days have a zone; windows are instants


def test_4k_windows_are_instants_cut_where_the_client_is(searches: SearchRig) -> None:
    searches.now = (datetime(2026, 4, 10, 12, tzinfo=UTC) - datetime(2026, 1, 1, tzinfo=UTC)).total_seconds()
    day = searches.now / DAY_S
    searches.infojobs.post_days((day - 20) * DAY_S, 20, 20, late=0)
    searches.configure(seed_days=1)
    key = searches.save(days=18)
    searches.start()
    searches.go(86_400)
    seeds = [each for each in searches.executions(key) if each["purpose"] == "seed"]
    lengths = Counter((each["window_to"] - each["window_from"]).total_seconds() / 3600 for each in seeds)
    assert lengths[23.0] == 1  # the day on which the clocks went forward
    assert lengths[24.0] > 10
    assert not missing(searches, key)


# --- 4l: history has a floor


def test_4l_seeding_ends_at_its_floor(searches: SearchRig) -> None:
    begin(searches, per_day=4)
    key = searches.save(days=10)
    searches.start()
    searches.go(86_400)
    asked = len(searches.infojobs.log)
    state = searches.state(key)
    assert (state["seed_cursor"], state["history_due_at"]) == (state["seed_floor"], None)
    searches.go(0.9 * 86_400)
    assert len(searches.infojobs.log) <= asked + 2
    with pytest.raises(sa.exc.DBAPIError, match="seed_floor"):
        searches.write("update saved_search set seed_floor = null")


# --- 4m: the state machine


@pytest.mark.parametrize(
    ("before", "after"),
    [("IDLE", "SUCCESS"), ("IDLE", "ERROR"), ("SUCCESS", "ERROR"), ("SUCCESS", "IDLE"), ("ERROR", "SUCCESS"), ("ERROR", "IDLE")],
)  # fmt: skip
def test_4m_a_state_that_does_not_follow_is_refused(searches: SearchRig, before: str, after: str) -> None:
    searches.save()
    if before != "IDLE":
        searches.write("update query_state set status = 'RUNNING'")
        searches.write("update query_state set status = :s", s=before)
    with pytest.raises(sa.exc.DBAPIError, match="cannot become"):
        searches.write("update query_state set status = :s", s=after)


def test_4m_failures_are_counted_once_each(searches: SearchRig) -> None:
    begin(searches, per_day=5, days=2)
    searches.infojobs.misbehave("server_error")
    key = searches.save()
    searches.start()
    searches.go(3 * HOUR)
    failed = [each for each in searches.executions(key) if each["stop_reason"] == "error"]
    assert searches.state(key)["consecutive_failures"] == len(failed) > 1
    searches.infojobs.behave()
    searches.go(7 * HOUR)
    state = searches.state(key)
    assert (state["status"], state["consecutive_failures"], state["problem"]) == ("SUCCESS", 0, None)
    assert all(each["finished_at"] is not None for each in searches.executions())


def test_4m_a_canceled_cycle_leaves_its_search_idle(searches: SearchRig) -> None:
    begin(searches, per_day=200, days=2)
    key = searches.save()
    run = searches.start()
    searches.work_off(3)
    assert searches.state(key)["status"] == "RUNNING"
    runs.cancel_run(searches.ports, searches.kind, TENANT, run)
    searches.work_off()
    assert searches.run(run)["status"] == "canceled"
    state = searches.state(key)
    assert (state["status"], state["consecutive_failures"], stops(searches, key)) == ("IDLE", 0, ["canceled"])
    searches.go(HOUR)
    assert searches.state(key)["status"] == "SUCCESS"
    assert not missing(searches, key)


def test_4m_a_search_that_is_deleted_in_the_middle_of_its_window_does_not_stay_running(searches: SearchRig) -> None:
    begin(searches, per_day=100, days=2)
    key = searches.save()
    searches.start()
    searches.work_off(3)
    assert searches.state(key)["status"] == "RUNNING"
    searches.write("update query_state set active = false")
    searches.write("delete from saved_search")
    searches.go(HOUR)
    state = searches.state(key)
    assert (state["status"], stops(searches, key)) == ("SUCCESS", ["window_exhausted"])
    assert searches.covered(key), "saved again, it goes on from here"


# --- one cycle of a tenant at a time


def test_a_second_cycle_is_the_first(searches: SearchRig) -> None:
    begin(searches, per_day=5, days=2)
    searches.save()
    searches.save(tenant=OTHER_TENANT)
    run = searches.start()
    assert searches.start() == run
    assert searches.start(OTHER_TENANT) != run


def test_a_retried_cycle_gives_way(searches: SearchRig) -> None:
    begin(searches, per_day=200, days=2)
    key = searches.save()
    run = searches.start()
    searches.work_off(3)
    runs.cancel_run(searches.ports, searches.kind, TENANT, run)
    searches.go(60)
    runs.retry_run(searches.ports, searches.kind, TENANT, run)
    searches.go(60)
    assert searches.run(run)["status"] == "succeeded"
    assert stops(searches, key) == ["canceled"]
    searches.go(HOUR)
    assert searches.state(key)["status"] == "SUCCESS"
    with pytest.raises(Conflict):
        runs.cancel_run(searches.ports, searches.kind, TENANT, run)


# --- access


def test_refused_access_stops_that_client_and_says_so(searches: SearchRig) -> None:
    begin(searches, per_day=5, days=2)
    searches.adzuna.post_days(38 * DAY_S, 2, 20, late=0)
    searches.infojobs.misbehave("refused")
    first, second = searches.save("infojobs"), searches.save("infojobs", q="other")
    fine = searches.save("adzuna")
    searches.start()
    searches.go(20 * HOUR)
    assert len(searches.infojobs.log) == 1
    asked = [key for key in (first, second) if searches.executions(key)]
    (stopped,) = asked
    state = searches.state(stopped)
    assert state["status"] == "ERROR"
    assert "resume InfoJobs" in state["problem"]["message"]
    assert searches.state(fine)["status"] == "SUCCESS"
    (gate,) = searches.rows("select * from gate where state = 'closed'")
    assert gate["key"] == f"infojobs:{CONNECTIONS['infojobs']}"
    searches.infojobs.behave()
    searches.go(6 * HOUR)
    assert {searches.state(key)["status"] for key in (first, second)} == {"SUCCESS"}


@pytest.mark.parametrize(("fault", "said"), [(None, "search.completed"), ("html", "search.errored")])
def test_what_a_search_says_names_its_cycle(searches: SearchRig, fault: str | None, said: str) -> None:
    """By it a trigger knows whose doing it is: a job that starts a cycle is not started by that cycle again."""
    begin(searches, per_day=5, days=2)
    if fault is not None:
        searches.infojobs.misbehave(fault)
    key = searches.save()
    searches.start()
    searches.go(HOUR)
    told = [each["run_id"] for each in searches.signals(said)]
    assert told
    assert not searches.signals("search.failed"), "that is the end of a cycle, to whoever listens to the ends of a kind"
    assert sorted(told) == sorted(str(each["run_id"]) for each in searches.executions(key))


# --- companies


def test_a_company_that_cannot_be_aggregated_is_set_aside(searches: SearchRig) -> None:
    begin(searches, per_day=30, days=2)
    key = searches.save()
    searches.write(
        """create or replace function refuse_one() returns trigger language plpgsql as $$
           begin if new.name = 'Company 3' and not new.dirty and new.aggregation_failed_at is null then raise exception 'no'; end if; return new; end $$"""
    )
    searches.write("create trigger refuse_one before update on companies for each row execute function refuse_one()")
    try:
        searches.start()
        searches.go(HOUR)
    finally:
        searches.write("drop trigger refuse_one on companies")
    (execution,) = searches.executions(key)
    assert (execution["companies_aggregated"], execution["companies_failed"]) == (6, 1)
    (aside,) = searches.rows("select name from companies where aggregation_failed_at is not null")
    assert aside["name"] == "Company 3"


def test_reposts_are_recognised(searches: SearchRig) -> None:
    searches.now = 10 * DAY_S
    for at, title in ((8.6, "Cook"), (9.0, " COOK "), (9.5, "Waiter")):
        searches.infojobs.post(at * DAY_S, title=title, company=1)
    searches.save()
    searches.start()
    searches.go(HOUR)
    found = {row["external_id"]: row["repost_of"] for row in searches.rows("select external_id, repost_of from offers")}
    first, again, other = (each.id for each in searches.infojobs.posted)
    assert found == {first: None, again: first, other: None}
    (company,) = searches.rows("select open_offers from companies")
    assert company["open_offers"] == 2


def test_a_company_that_is_not_seen_any_more_has_no_open_offers(searches: SearchRig) -> None:
    begin(searches, per_day=5, days=2)
    searches.save()
    searches.start()
    searches.go(HOUR)
    seen = "select count(*) filter (where open_offers > 0) as open, count(*) as all_of_them from companies"
    (row,) = searches.rows(seen)
    assert row["open"] == row["all_of_them"] == 7
    searches.infojobs.posted[:] = [each for each in searches.infojobs.posted if each.company == 3]
    searches.write("update companies set last_seen_at = last_seen_at - interval '31 days'")
    searches.go(DAY_S)
    (row,) = searches.rows(seen)
    assert row["open"] == 1


def test_an_offer_that_moves_to_another_company_is_no_longer_open_at_the_first(searches: SearchRig) -> None:
    """A board merges two companies, or hides whose an offer is. The first company is not seen again, only its offers are."""
    searches.now = 10 * DAY_S
    for title in ("Cook", "Cook", "Waiter"):
        searches.infojobs.post(9 * DAY_S, title=title, company=1)
    searches.save()
    searches.start()
    searches.go(HOUR)
    of_companies = "select open_offers from companies order by external_id"
    assert [row["open_offers"] for row in searches.rows(of_companies)] == [2]
    later = 10.2 * DAY_S
    searches.infojobs.posted[:] = [
        replace(each, company=company, at=later, visible=later)
        for each, company in zip(searches.infojobs.posted, (2, None, 2), strict=True)
    ]
    searches.go(DAY_S)
    assert [row["open_offers"] for row in searches.rows(of_companies)] == [0, 2]
    assert [row["repost_of"] for row in searches.rows("select repost_of from offers")] == [None] * 3


# The second board answers by the same engine.
BOARDS = ["infojobs", pytest.param("adzuna", marks=pytest.mark.full)]


# --- upstreams that lie: never a success


@pytest.mark.parametrize("client", BOARDS)
@pytest.mark.parametrize("fault", ["html", "same_page", "endless", "empty", "shape", "truncated", "two_lists"])
def test_a_lying_upstream_is_never_a_success(searches: SearchRig, client: str, fault: str) -> None:
    if (client, fault) == ("adzuna", "two_lists"):
        pytest.skip("Adzuna has one list")
    searches.now = 40 * DAY_S
    searches.boards[client].post_days(38 * DAY_S, 2, 100, late=0)
    searches.boards[client].misbehave(fault)
    key = searches.save(client)
    searches.start()
    searches.go(HOUR)
    state = searches.state(key)
    assert state["status"] in ("ERROR", "IDLE")
    assert (state["high_watermark"], searches.covered(key)) == (None, [])
    assert "window_exhausted" not in stops(searches, key)
    for each in searches.executions(key):
        assert each["requests_count"] <= each["pages_fetched"] + 4
    searches.boards[client].behave()
    searches.go(7 * HOUR)
    assert searches.state(key)["status"] == "SUCCESS"
    assert not missing(searches, key, client)


@pytest.mark.parametrize("client", BOARDS)
def test_changing_totals_lose_nothing(searches: SearchRig, client: str) -> None:
    searches.now = 40 * DAY_S
    searches.boards[client].post_days(38 * DAY_S, 2, 100, late=0)
    searches.boards[client].misbehave("totals", budget=30)
    key = searches.save(client)
    searches.start()
    searches.go(12 * HOUR)
    assert searches.state(key)["status"] == "SUCCESS"
    assert not missing(searches, key, client)


@pytest.mark.parametrize("client", BOARDS)
@pytest.mark.parametrize("fault", ["few", "unsorted"])
def test_neither_a_wrong_total_nor_a_wrong_order_ends_a_window(searches: SearchRig, client: str, fault: str) -> None:
    """What a board says of its pages is not believed against what is on them: they are read until nothing follows."""
    searches.now = 40 * DAY_S
    for first, days, per_day in ((34, 3, 30), (38.5, 1.5, 80)):
        searches.boards[client].post_days(first * DAY_S, days, per_day, late=0)
    searches.boards[client].misbehave(fault)
    key = searches.save(client)
    searches.start()
    searches.go(HOUR)
    assert searches.state(key)["status"] == "SUCCESS"
    assert searches.covered(key)
    assert not missing(searches, key, client)


def test_an_offer_that_was_dated_in_the_future_is_written_again(searches: SearchRig) -> None:
    """A board's slip of the pen must not outlive its correction."""
    begin(searches, per_day=0)
    now = searches.now
    wrong = searches.infojobs.post(now + 900 * DAY_S, late_s=-900 * DAY_S - HOUR, title="Cook")
    searches.save()
    searches.start()
    searches.go(HOUR)
    searches.infojobs.posted[:] = [replace(wrong, at=now - HOUR, title="Chef")]
    searches.go(DAY_S)
    (offer,) = searches.rows("select title, updated_at from offers")
    assert (offer["title"], offer["updated_at"]) == ("Chef", searches.at(now - HOUR))


def test_requests_are_the_pages_and_no_more(searches: SearchRig) -> None:
    """Counted by the stand-in. Offers that come twice, and page 0 that is page 1, cost nothing."""
    begin(searches, per_day=100, days=2)
    key = searches.save()
    searches.start()
    searches.go(HOUR)
    assert [page for _, page, _ in searches.infojobs.log] == [1, 2, 3, 4]
    (execution,) = searches.executions(key)
    assert (execution["pages_fetched"], execution["requests_count"], execution["offers_fetched"]) == (4, 4, 200)


def test_nobody_sees_another_tenants_searches(searches: SearchRig) -> None:
    begin(searches, per_day=5, days=2)
    searches.save()
    searches.save(tenant=OTHER_TENANT, name="theirs")
    searches.start(OTHER_TENANT)
    searches.go(HOUR)
    owners: set[UUID] = {row["tenant_id"] for row in searches.rows("select tenant_id from offers")}
    assert owners == {OTHER_TENANT}
    assert not searches.rows("select 1 from query_state where tenant_id = :t and status <> 'IDLE'", t=TENANT)


def test_an_offer_that_a_board_dates_back_is_still_there_and_found_by_whoever_finds_it(searches: SearchRig) -> None:
    """What a newer word said of it stays. That it is there, and that another search finds it, is news all the same."""
    begin(searches, per_day=0)
    posted = searches.infojobs.post(searches.now - HOUR, title="Cook")
    first = searches.save(q="cook")
    searches.start()
    searches.go(HOUR)
    searches.infojobs.posted[:] = [replace(posted, at=posted.at - 10 * HOUR, title="Kitchen hand")]
    second = searches.save(q="kitchen")
    searches.go(DAY_S)
    (offer,) = searches.rows("select title, found_by, updated_at, seen_at from offers")
    assert sorted(offer["found_by"]) == sorted([first, second])
    assert (offer["title"], offer["updated_at"]) == ("Cook", searches.at(posted.at))
    assert offer["seen_at"] > searches.at(posted.at + 12 * HOUR)


def test_what_one_search_reads_leaves_the_quarantine_of_another_as_it_is(searches: SearchRig) -> None:
    """The offer isn't among those of the search that could not read it: its window is not clean."""
    begin(searches, per_day=5, days=2)
    searches.infojobs.misbehave("bad_records", by=1, budget=1)
    keys = {searches.save(q="a"), searches.save(q="b")}
    searches.start()
    searches.go(60)
    (kept,) = searches.rows("select * from search_quarantine")
    (offer,) = searches.rows("select found_by from offers where external_id = :id", id=kept["key"])
    assert {kept["query_key"], *offer["found_by"]} == keys
    assert kept["resolution"] is None


# A chain that hangs on one delivery.

REFUSES = """
create function refuses() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$;
create trigger refuses before insert on {table} for each row execute function refuses();
"""


@contextmanager
def refusing(rig: SearchRig, table: str) -> Iterator[None]:
    """The database takes no rows in: whoever hears that a run has ended fails, each time. Ticks are rare, for days are long."""
    rig.tick_every_s = 900.0
    rig.write("insert into tenant (id, name) values (:id, 'Acme') on conflict do nothing", id=TENANT)
    rig.write(REFUSES.format(table=table))
    try:
        yield
    finally:
        rig.write(f"drop trigger refuses on {table}; drop function refuses()")


def given_up(rig: SearchRig) -> int:
    return len(rig.rows("select 1 from hearing where listener = 'search' and given_up_at is not null"))


def test_a_search_goes_on_after_whoever_should_have_heard_of_its_end_has_given_up(searches: SearchRig) -> None:
    begin(searches)
    key = searches.save()
    searches.start()
    with refusing(searches, "search_cycle"):
        searches.pass_time(2 * DAY_S, until=lambda: given_up(searches) > 0)
        assert given_up(searches) == 1
        before = len(searches.executions(key))
        searches.now += DAY_S
        searches.pass_time(3_600)
        assert len(searches.executions(key)) == before, "nobody could go on meanwhile"
        assert searches.counted[SearchMetric.STALE] > 0, "the tick counts it, though no cycle does"
    searches.pass_time(3_600)

    assert len(searches.executions(key)) > before
    assert missing(searches, key) == set()
    assert len(searches.rows("select 1 from search_cycle where ended_at is null")) == 1


def test_a_sheet_is_written_after_whoever_should_have_heard_of_its_night_has_given_up(searches: SearchRig) -> None:
    begin(searches)
    sheet = searches.add_sheet()
    with refusing(searches, "sheet_night"):
        searches.pass_time(2 * DAY_S, until=lambda: given_up(searches) > 0)
        assert given_up(searches) == 1
    assert [night["status"] for night in searches.nights(sheet)] == ["synced"]
    searches.pass_time(2 * DAY_S)

    assert [night["status"] for night in searches.nights(sheet)][:2] == ["synced", "synced"]


def test_a_search_that_has_a_next_cycle_gets_no_other_by_the_tick(searches: SearchRig) -> None:
    begin(searches)
    searches.tick_every_s = 900.0
    searches.write("insert into tenant (id, name) values (:id, 'Acme') on conflict do nothing", id=TENANT)
    sheet = searches.add_sheet()
    searches.save()
    searches.start()
    searches.pass_time(DAY_S)

    cycles = searches.rows("select run_id from search_cycle order by started_at")
    caused = searches.rows("select source from run where params = '{}' order by created_at")
    assert len(cycles) == len(caused)
    assert {row["source"] for row in caused[1:]} == {"event"}
    assert len(searches.nights(sheet)) == 2


# A sheet whose columns belong to its readers too.


def test_columns_are_found_by_their_titles(searches: SearchRig) -> None:
    """A reader adds a column in front and one between: theirs stay as they are, and feedback is still heard."""
    searches.add_companies(1, 3)
    sheet = searches.add_sheet()
    searches.go(3 * HOUR)
    grid = searches.google.tab()
    grid.insert_column(1, "Owner")
    grid.insert_column(4, "Notes")
    for row in (2, 3, 4):
        grid.cells[row, 1], grid.cells[row, 4] = f"owner {row}", f"note {row}"
    grid.cells[3, grid.column("Feedback")] = "relevant"
    searches.write("update companies set open_offers = 70 where external_id = '1'")
    searches.add_companies(4, 4)

    searches.go(DAY_S)

    assert searches.nights(sheet)[1]["status"] == "synced"
    assert grid.table()[0] == [
        "Owner",
        "Id",
        "Name",
        "Notes",
        "Open offers",
        "First seen",
        "Last seen",
        "Link",
        "Feedback",
    ]
    assert [(row[0], row[3], row[4]) for row in grid.table()[1:]] == [
        ("owner 2", "note 2", 70), ("owner 3", "note 3", 2), ("owner 4", "note 4", 3), ("", "", 4),
    ]  # fmt: skip
    assert searches.feedback() == {2: "relevant"}
    assert not searches.google.wrong


@pytest.mark.parametrize(
    ("title", "to", "said"),
    [("Feedback", "Our view", "no column called Feedback"), ("Link", "Id", "2 columns called Id (A, F)")],
    ids=["missing", "twice"],
)
def test_a_title_that_is_missing_or_twice_fails_the_night_and_writes_nothing(
    searches: SearchRig, title: str, to: str, said: str
) -> None:
    searches.add_companies(1, 3)
    sheet = searches.add_sheet()
    searches.go(3 * HOUR)
    grid = searches.google.tab()
    grid.cells[1, grid.column(title)] = to
    before = dict(grid.cells)
    searches.add_companies(4, 5)

    searches.go(DAY_S)

    night = searches.nights(sheet)[1]
    assert (night["status"], night["problem"]["code"]) == ("failed", "sheet_columns")
    assert said in night["problem"]["message"]
    assert grid.cells == before
    grid.cells[1, {"Feedback": 7, "Link": 6}[title]] = title
    searches.go(DAY_S)
    assert searches.nights(sheet)[2]["status"] == "synced", "once it is put right, the next night is as any other"


@pytest.mark.parametrize("requests", [2, 3], ids=["before it is read", "before it is written"])
def test_a_column_that_is_added_during_a_sync_is_not_written_over(searches: SearchRig, requests: int) -> None:
    searches.add_companies(1, 3)
    sheet = searches.add_sheet()
    searches.go(3 * HOUR)
    grid = searches.google.tab()
    grid.cells[2, 7] = "irrelevant"
    searches.write("update companies set open_offers = 70")
    searches.google.misbehave(
        "widened", on=["sheet"], after=requests, budget=1
    )  # look, titles, read, look again, write

    searches.go(DAY_S)

    assert searches.google.struck["widened"] == 1
    assert searches.nights(sheet)[1]["status"] == "synced"
    assert {cell for (row, column), cell in grid.cells.items() if column == 1} == {"Notes"}
    assert [row[3] for row in grid.table()[1:]] == [70, 70, 70]
    assert searches.feedback() == {1: "irrelevant"}
    assert not searches.google.wrong


def test_a_sheet_of_somebody_elses_is_left_alone(searches: SearchRig) -> None:
    """Its first row has titles, and none of them is ours."""
    searches.add_companies(1, 3)
    grid = searches.google.tab()
    grid.cells[1, 1], grid.cells[1, 2] = "Budget", "Amount"
    sheet = searches.add_sheet()
    before = dict(grid.cells)

    searches.go(3 * HOUR)

    assert searches.nights(sheet)[0]["problem"]["code"] == "sheet_columns"
    assert grid.cells == before
