"""Keys, windows and walks of saved searches: golden values, and properties over everything that can happen."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.kernel.errors import Refused, Transient
from shared.kernel.params import parse
from shared.search import decide
from shared.search.model import (
    CLIENTS,
    AdzunaQuery,
    Bad,
    InfoJobsQuery,
    Job,
    Offer,
    Page,
    SearchConfig,
    Stop,
    Walk,
    Window,
    changes,
    query_key,
)
from shared.search.parse import sorted_out
from shared.search.sheets.model import next_night

NOW = datetime(2026, 3, 10, 12, tzinfo=UTC)
CONFIG = SearchConfig()
times = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)).map(lambda at: at.replace(tzinfo=UTC))  # noqa: DTZ001


# --- keys


@pytest.mark.parametrize(
    ("client", "params", "key"),
    [
        ("infojobs", {}, "335b6d765da0d31457b92b7d75f57f389659c9d94aaae0b39a2604dc688e8fdd"),
        (
            "infojobs",
            {"q": "python", "province": ["barcelona", "madrid"]},
            "459382ef8badf884ba503b061485b120a96e3f444d44c7059db2a9109602add5",
        ),
        (
            "adzuna",
            {"what": "camarero", "where": "sevilla", "salary_min": 20000},
            "22a46cb450298437814774e50e6d16edde36bbedc02cf823fc46507c12b05063",
        ),
    ],
)
def test_a_key_is_the_same_for_ever(client: str, params: dict[str, object], key: str) -> None:
    """Stored keys depend on these: a change here is a new normalisation version, and a migration."""
    assert query_key(client, params) == key


@pytest.mark.parametrize(
    "same",
    [
        {"province": ["madrid", "barcelona"], "q": "python"},
        {"q": "  Python ", "province": ["MADRID", "Barcelona", "madrid"]},
        {"q": "\uff30ython", "province": ["barcelona", "madrid"]},  # a full-width P
        {"q": "python", "province": ["barcelona", "madrid"], "country": "espana", "city": None, "category": []},
    ],
)
def test_order_case_unicode_and_defaults_are_no_identity(same: dict[str, object]) -> None:
    assert query_key("infojobs", same) == query_key("infojobs", {"q": "python", "province": ["barcelona", "madrid"]})


def test_composed_and_decomposed_letters_are_the_same() -> None:
    assert query_key("infojobs", {"q": "cami\u00f3n"}) == query_key("infojobs", {"q": "camio\u0301n"})


def test_what_differs_has_another_key() -> None:
    keys = [
        query_key("infojobs", {"q": "python"}),
        query_key("infojobs", {"q": "python", "city": "python"}),
        query_key("infojobs", {"city": "python"}),
        query_key("infojobs", {"province": ["a b"]}),
        query_key("infojobs", {"province": ["a", "b"]}),
        query_key("adzuna", {"what": "python"}),
        query_key("infojobs", {"q": "python"}, version=2),
    ]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("name", ["updatedSince", "sinceDate", "max_pages", "maxPages", "page", "connection"])
def test_dates_caps_and_accounts_are_no_parameters(name: str) -> None:
    with pytest.raises(Refused, match=name):
        parse(InfoJobsQuery, {name: "x"})
    with pytest.raises(Refused, match=name):
        parse(AdzunaQuery, {name: "x"})


def test_a_person_sees_what_changed() -> None:
    assert changes("infojobs", {"q": "Python", "city": "Madrid"}, {"q": "python", "province": ["x"]}) == [
        {"parameter": "city", "before": "madrid", "after": None},
        {"parameter": "province", "before": None, "after": ["x"]},
    ]


# --- windows


@given(times, st.none() | times)
def test_a_head_overlaps_two_days_and_leaves_no_gap(now: datetime, watermark: datetime | None) -> None:
    window = decide.head_window(now, watermark, CONFIG)
    assert window.hi == now
    assert window.lo <= (watermark or now) - timedelta(hours=48)


@given(
    times, st.integers(0, 400), st.sampled_from(["Europe/Madrid", "UTC", "America/Sao_Paulo", "Australia/Lord_Howe"])
)
def test_history_is_walked_back_to_its_floor_without_gap_or_overlap(cursor: datetime, days: int, zone: str) -> None:
    floor, found = cursor - timedelta(days=days, hours=5), []
    while (window := decide.seed_window(cursor, floor, zone, CONFIG)) is not None:
        assert window.hi == cursor
        assert floor <= window.lo < window.hi
        local = window.lo.astimezone(ZoneInfo(zone))
        assert window.lo == floor or decide.local_midnight(local.date(), zone) == window.lo
        found.append(window)
        cursor = window.lo
    assert cursor == floor
    assert len(found) <= days / 6 + 3


@given(times, st.floats(0, 500))
def test_a_bucket_always_reaches_back_far_enough(now: datetime, days: float) -> None:
    for client in CLIENTS.values():
        lo = now - timedelta(days=days)
        bucket = decide.bucket_for(client.name, lo, now)
        assert bucket == decide.EVERYTHING or now - timedelta(days=bucket) <= lo
        smaller = [each for each in client.buckets if bucket == decide.EVERYTHING or each < bucket]
        assert all(now - timedelta(days=each) > lo for each in smaller)


def test_thirty_hours_are_more_than_a_day() -> None:
    assert decide.bucket_for("infojobs", NOW - timedelta(hours=30), NOW) == 7
    assert decide.bucket_for("infojobs", NOW - timedelta(hours=24), NOW) == 1
    assert decide.bucket_for("infojobs", NOW - timedelta(days=16), NOW) == decide.EVERYTHING


def test_days_begin_where_the_client_is() -> None:
    assert decide.local_midnight(date(2026, 3, 29), "Europe/Madrid") == datetime(2026, 3, 28, 23, tzinfo=UTC)
    assert decide.local_midnight(date(2026, 3, 30), "Europe/Madrid") == datetime(2026, 3, 29, 22, tzinfo=UTC)
    window = decide.seed_window(
        datetime(2026, 3, 29, 22, tzinfo=UTC),
        datetime(2026, 1, 1, tzinfo=UTC),
        "Europe/Madrid",
        SearchConfig(seed_days=1),
    )
    assert window is not None
    assert window.hi - window.lo == timedelta(hours=23)


@given(times)
def test_a_night_is_three_hours_whatever_the_clocks_do(now: datetime) -> None:
    day, opens, closes = decide.night_of(now, time(3), time(6), "Europe/Madrid")
    assert now < closes
    assert closes - opens == timedelta(hours=3)
    assert opens.astimezone(ZoneInfo("Europe/Madrid")).replace(tzinfo=None) == datetime.combine(day, time(3))
    assert opens - now < timedelta(hours=25)


# --- walks

SIZE = 3


def job(walk: Walk, **told: object) -> Job:
    usual = {
        "ingestion": "i", "search": "s", "name": "n", "query_key": "k", "client": "infojobs", "connection": "c",
        "params": {}, "max_pages": 10_000, "max_offers": 10**9, "every_s": 86_400, "walk": walk,
    }  # fmt: skip
    return Job(**{**usual, **told})  # type: ignore[arg-type]


def page_of(listing: list[int], number: int) -> Page:
    """Offers by their minutes before NOW, newest first."""
    shown = sorted(listing)[(number - 1) * SIZE : number * SIZE]
    offers = [Offer(external_id=str(each), title="t", at=NOW - timedelta(minutes=each)) for each in shown]
    return Page(offers=offers, bad=[], total=len(listing), size=SIZE, is_last=number * SIZE >= len(listing))


@pytest.mark.full
@given(st.data())
def test_whatever_comes_and_goes_meanwhile_what_stays_is_read(data: st.DataObject) -> None:
    """New offers push the others down, deleted ones pull them up, and the walk may be put down for any time."""
    listing = data.draw(st.sets(st.integers(0, 60), max_size=40).map(sorted))
    lo, hi = data.draw(st.tuples(st.integers(0, 61), st.integers(0, 61)).map(sorted))
    window = Window(NOW - timedelta(minutes=hi), NOW - timedelta(minutes=lo))
    stays, read = set(listing), set()
    walk = Walk(purpose="seed", lo=window.lo, hi=window.hi, page=data.draw(st.integers(1, 5)))
    fresh = 0
    for _ in range(500):
        page = page_of(listing, walk.page)
        read |= {int(each.external_id) for each in page.offers}
        step = decide.after_page(job(walk), page)
        walk = step.walk
        if step.stop is not None:
            break
        if data.draw(st.integers(0, 4)) == 0 and fresh < 30:
            fresh += 1
            listing = sorted({*listing, -fresh})
        if listing and data.draw(st.integers(0, 4)) == 0:
            gone = data.draw(st.sampled_from(listing))
            listing, stays = [each for each in listing if each != gone], stays - {gone}
        if data.draw(st.integers(0, 6)) == 0:
            walk = decide.again(Walk.read(walk.to_json()))
    else:
        pytest.fail("the walk has no end")
    wanted = {each for each in stays if window.lo <= NOW - timedelta(minutes=each) < window.hi}
    assert wanted <= read


def test_a_cap_is_no_end() -> None:
    walk = Walk(purpose="head", lo=NOW - timedelta(days=2), hi=NOW)
    step = decide.after_page(job(walk, pages=1, max_pages=1), page_of(list(range(10)), 1))
    assert (step.stop, step.walk.page) == (Stop.CAP, 2)
    step = decide.after_page(job(walk, pages=1, offers=3, max_offers=3), page_of(list(range(10)), 1))
    assert step.stop is Stop.CAP
    assert decide.after_page(job(walk, pages=1, max_pages=1), page_of([1, 2], 1)).stop is Stop.EXHAUSTED


@pytest.mark.parametrize(("page", "place"), [(0, 0), (0, 2), (1, 1), (1, 2), (2, 0), (2, 1)])
def test_a_date_that_lies_is_no_place_to_go_on_from(page: int, place: int) -> None:
    """One old offer among new ones, and most of what was read is gone after a pause: between the page that comes now and what
    was read may be others, so it is not the next one."""

    def shown(minutes: list[int]) -> Page:
        offers = [Offer(external_id=str(each), title="t", at=NOW - timedelta(minutes=each)) for each in minutes]
        return Page(offers=offers, bad=[], total=30, size=SIZE, is_last=False)

    pages = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    pages[page][place] = 30 * 365 * 24 * 60
    walk = Walk(purpose="head", lo=NOW - timedelta(days=2), hi=NOW)
    for minutes in pages:
        walk = decide.after_page(job(walk), shown(minutes)).walk

    resumed = decide.again(Walk.read(walk.to_json()))

    assert resumed.page == 3
    assert decide.after_page(job(resumed), shown(pages[2])).walk.page == 4
    assert decide.after_page(job(resumed), shown([20, 21, 22])).walk.page < 3


def test_the_same_page_again_is_not_believed() -> None:
    walk = Walk(purpose="head", lo=NOW - timedelta(days=2), hi=NOW)
    first = decide.after_page(job(walk), page_of(list(range(10)), 1)).walk
    with pytest.raises(Transient, match="again"):
        decide.after_page(job(first), page_of(list(range(10)), 1))


def test_an_empty_page_where_offers_are_announced_is_not_believed() -> None:
    with pytest.raises(Transient, match="empty"):
        decide.check_page(Page(offers=[], bad=[], total=4, size=3, is_last=True), 2)
    decide.check_page(Page(offers=[], bad=[], total=3, size=3, is_last=True), 2)
    decide.check_page(Page(offers=[], bad=[], total=0, size=3, is_last=True), 1)


def test_a_page_of_nothing_but_bad_records_is_no_small_error() -> None:
    bad = [Bad(key=str(n), problem="title is missing.", payload={}) for n in range(3)]
    with pytest.raises(Transient, match="None of the 3 records"):
        decide.check_page(Page(offers=[], bad=bad, total=3, size=3, is_last=True), 1)


def test_failures_slow_a_search_down_and_never_end_it() -> None:
    waits = [decide.wait_after_failures(n) for n in range(1, 40)]
    assert waits[0] == timedelta(minutes=15)
    assert waits == sorted(waits)
    assert waits[-1] == timedelta(hours=6)


def test_the_longer_wait_wins() -> None:
    assert decide.pause_s(None, CONFIG) == 6 * 3_600
    assert decide.pause_s(30, CONFIG) == 6 * 3_600
    assert decide.pause_s(8 * 3_600, CONFIG) == 8 * 3_600


@pytest.mark.parametrize(
    ("zone", "now", "opens", "closes", "expected"),
    [
        # The hour from two to three is not there, or there twice: the window is at its local times, two or four hours long.
        ("Europe/Madrid", "2026-03-28T20:00Z", "01:00", "04:00", ("2026-03-29", "2026-03-29T00:00Z", "2026-03-29T02:00Z")),
        ("Europe/Madrid", "2026-10-24T20:00Z", "01:00", "04:00", ("2026-10-25", "2026-10-24T23:00Z", "2026-10-25T03:00Z")),
        ("Europe/Madrid", "2026-03-28T20:00Z", "03:00", "06:00", ("2026-03-29", "2026-03-29T01:00Z", "2026-03-29T04:00Z")),
        ("Europe/Madrid", "2026-10-24T20:00Z", "03:00", "06:00", ("2026-10-25", "2026-10-25T02:00Z", "2026-10-25T05:00Z")),
        ("Europe/Madrid", "2026-03-28T20:00Z", "02:30", "06:00", ("2026-03-29", "2026-03-29T01:30Z", "2026-03-29T04:00Z")),
        # All of it is skipped: it comes an hour later, and is as long as ever.
        ("Europe/Madrid", "2026-03-28T20:00Z", "02:30", "03:00", ("2026-03-29", "2026-03-29T01:30Z", "2026-03-29T02:00Z")),
        ("Europe/Madrid", "2026-03-29T01:45Z", "02:30", "03:00", ("2026-03-29", "2026-03-29T01:30Z", "2026-03-29T02:00Z")),
        ("America/Santiago", "2026-09-05T20:00Z", "00:00", "01:00", ("2026-09-06", "2026-09-06T04:00Z", "2026-09-06T05:00Z")),
        ("America/New_York", "2026-11-01T04:00Z", "01:30", "02:30", ("2026-11-01", "2026-11-01T05:30Z", "2026-11-01T07:30Z")),
        ("Europe/Madrid", "2026-06-01T20:30Z", "22:00", "04:00", ("2026-06-01", "2026-06-01T20:00Z", "2026-06-02T02:00Z")),
        ("Europe/Madrid", "2026-06-02T01:30Z", "22:00", "04:00", ("2026-06-01", "2026-06-01T20:00Z", "2026-06-02T02:00Z")),
        ("UTC", "2026-06-02T01:30Z", "00:00", "00:00", ("2026-06-02", "2026-06-02T00:00Z", "2026-06-03T00:00Z")),
    ],
)  # fmt: skip
def test_a_night_is_at_its_local_times(
    zone: str, now: str, opens: str, closes: str, expected: tuple[str, str, str]
) -> None:
    found = decide.night_of(datetime.fromisoformat(now), time.fromisoformat(opens), time.fromisoformat(closes), zone)
    assert found == (date.fromisoformat(expected[0]), *(datetime.fromisoformat(each) for each in expected[1:]))


def test_every_night_of_a_year_comes_once() -> None:
    """Whichever night was last, the next one follows it; none is left out, also where the clocks change."""
    for opens, closes in ((time(2, 30), time(3)), (time(0), time(0)), (time(22), time(4))):
        now, last = datetime(2026, 1, 1, 12, tzinfo=UTC), None
        nights = []
        for _ in range(366):
            last, begins, ends = next_night(now, last, opens, closes, "Europe/Madrid")
            assert begins < ends
            nights.append(last)
            now = ends
        assert nights == [nights[0] + timedelta(days=n) for n in range(366)]


# --- records


@pytest.mark.parametrize(
    "odd",
    [
        {"updated": "9999-12-31T23:59:59-05:00"},
        {"updated": "0001-01-01T00:00:00+14:00"},
        {"updated": 20260310},
        {"id": "a\x00b"},
        {"title": None},
    ],
)
def test_a_record_that_is_no_offer_never_costs_the_others_their_page(odd: dict[str, object]) -> None:
    record = {"id": "1", "title": "Engineer", "updated": "2026-03-10T12:00:00+00:00"}

    offers, bad = sorted_out("infojobs", [record, {**record, "id": "2", **odd}])

    assert ([each.external_id for each in offers], len(bad)) == (["1"], 1)


# --- what only shows in a walk that was put down, or a page that fails


def test_of_offers_of_one_moment_any_may_lie_between_two_pages() -> None:
    reached = NOW - timedelta(minutes=6)
    walk = Walk(purpose="head", lo=NOW - timedelta(days=2), hi=NOW, page=3, aligned=False, reached=reached)

    def page_after(newest: int) -> int:
        offers = [Offer(external_id=str(n), title="t", at=NOW - timedelta(minutes=newest + n)) for n in range(3)]
        return decide.after_page(job(walk), Page(offers=offers, bad=[], total=40, size=3, is_last=False)).walk.page

    assert (page_after(5), page_after(6)) == (4, 2)


def test_all_pages_of_an_execution_share_its_retries() -> None:
    walk = Walk(purpose="head", lo=NOW - timedelta(days=2), hi=NOW)
    spent = [
        decide.may_retry(job(walk, retries=before), attempts, CONFIG)
        for before, attempts in ((0, 2), (2, 0), (2, 1), (3, 0))
    ]

    assert spent == [True, True, False, False]
