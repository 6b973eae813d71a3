"""Guards that what is pulled is taken once and lost never: staged races on two connections, then everybody at once."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from uuid import UUID

import pytest
import sqlalchemy as sa

from shared.kernel import db, run, sql
from shared.kernel.clock import new_id
from shared.kernel.errors import NotFound, Refused, Transient
from shared.kernel.model import StepOutcome, Turn
from shared.kernel.offers import PgOffers
from shared.kernel.points import Point
from shared.kernel.ports import Ports
from shared.kernel.step import Lost, Outcome, do_turn
from shared.kernel.store import PgStore
from shared.kernel.tick import tick
from tests.kinds.parcel.kind import CARRIED, CARTS, QUEUE
from tests.races.stage import Actor, Stage, stage_in
from tests.races.test_unknown_commits import lines
from tests.support.databases import ServerAdmin
from tests.support.depot import Depot, parcel_depot
from tests.support.house import ALICE, BOB
from tests.support.together import do_together

TENANTS = [UUID(int=0xE000 + n) for n in range(6)]


@pytest.fixture(scope="session")
def shared_depot(postgres_server: ServerAdmin, template: str) -> Iterator[Depot]:
    with parcel_depot(postgres_server, template) as depot:
        yield depot


@pytest.fixture
def depot(shared_depot: Depot) -> Iterator[Depot]:
    shared_depot.empty()
    yield shared_depot
    shared_depot.check()
    shared_depot.send_guests_home()


@pytest.fixture
def pulls(depot: Depot) -> Iterator[Stage]:
    with stage_in(depot) as stage:
        yield stage
        assert stage.errors == [], "the database refused something on the way"


def takes(most: int = 1) -> Callable[[Actor], list[Turn]]:
    def take(actor: Actor) -> list[Turn]:
        assert actor.ports.offers is not None
        return actor.ports.offers.take(QUEUE, most, new_id(), 70, actor.name)

    return take


def cancels(depot: Depot, run_id: UUID) -> Callable[[Actor], None]:
    return lambda actor: run.cancel_run(actor.ports, depot.parcel, ALICE, run_id)


def does(depot: Depot, turn: Turn) -> Callable[[Actor], object]:
    return lambda actor: do_turn(turn, depot.parcel, actor.ports)


def test_a_take_passes_by_what_a_cancel_is_about_to_end(depot: Depot, pulls: Stage) -> None:
    doomed, other = depot.post(priority=1), depot.post()
    operator, worker = pulls.actor("operator"), pulls.actor("worker")

    canceling = operator.does(cancels(depot, doomed), until=Point.ACTION_WRITTEN)
    taken = worker.does(takes()).answer()
    operator.goes_on()
    canceling.answer()

    assert [turn.run_id for turn in taken] == [other]
    assert depot.endings(doomed) == ["canceled"]


def test_a_cancel_that_comes_after_the_take_asks_and_does_not_end(depot: Depot, pulls: Stage) -> None:
    run_id = depot.post()
    operator, worker = pulls.actor("operator"), pulls.actor("worker")
    (turn,) = worker.does(takes()).answer()

    ending = worker.does(does(depot, turn), until=sql.end_turn((CARRIED,)))
    canceling = operator.does(cancels(depot, run_id), until=Point.ACTION_WRITTEN)
    worker.goes_on()
    worker.blocks()
    operator.goes_on()
    canceling.answer()

    assert ending.answer() is StepOutcome.DONE
    assert (depot.run(run_id).status, depot.endings(run_id)) == ("succeeded", ["succeeded"])


def test_a_failure_that_waited_for_a_cancel_is_canceled(depot: Depot, pulls: Stage) -> None:
    run_id = depot.post()
    depot.carries = _falls
    operator, worker = pulls.actor("operator"), pulls.actor("worker")
    (turn,) = worker.does(takes()).answer()

    failing = worker.does(does(depot, turn), until=Point.STEP_LOOKED)
    canceling = operator.does(cancels(depot, run_id), until=Point.ACTION_WRITTEN)
    worker.goes_on()
    worker.blocks()
    operator.goes_on()
    canceling.answer()
    failing.answer()

    assert (depot.run(run_id).status, depot.offer(run_id), depot.endings(run_id)) == ("canceled", None, ["canceled"])


def _falls(turn: Turn) -> None:
    raise Transient("it fell down")


def test_two_ticks_that_find_the_same_lost_turn_commit_it_once(depot: Depot, pulls: Stage) -> None:
    run_id = depot.post()
    depot.lose(depot.take_one())
    one, two = pulls.actor("one"), pulls.actor("two")

    first = one.does(lambda actor: tick(actor.ports, depot.kinds), until=Point.TICK_TOOK_OVER)
    second = two.does(lambda actor: tick(actor.ports, depot.kinds)).answer()
    one.goes_on()

    assert (first.answer().lanes, second.lanes) == ({"lease_ran_out": 1}, {})
    assert depot.lane(run_id, "carry").attempts == 1


def test_a_worker_that_comes_back_while_the_tick_takes_over_writes_nothing(depot: Depot, pulls: Stage) -> None:
    run_id = depot.post()
    worker, clockwork = pulls.actor("worker"), pulls.actor("clockwork")
    (turn,) = worker.does(takes()).answer()
    late = worker.does(does(depot, turn), until=Point.STEP_LOOKED)
    depot.lose(turn)

    taking_over = clockwork.does(lambda actor: tick(actor.ports, depot.kinds), until=Point.TICK_TOOK_OVER)
    worker.goes_on()
    assert late.answer() is Lost.OVERTAKEN
    clockwork.goes_on()
    taking_over.answer()

    assert (depot.carried(run_id), depot.lane(run_id, "carry").status) == ([], "active")


def test_a_resume_that_meets_a_take_setting_it_aside_offers_it_again(depot: Depot, pulls: Stage) -> None:
    run_id = depot.post()
    run.pause_run(depot.ports, ALICE, run_id)
    operator = pulls.actor("operator")
    resuming = operator.does(lambda actor: run.resume_run(actor.ports, ALICE, run_id), until=Point.ACTION_RUN_LOCKED)

    assert depot.take() == []
    assert depot.offer(run_id).aside
    operator.goes_on()
    resuming.answer()

    assert depot.take_one().run_id == run_id


def test_an_offer_on_its_way_is_not_left_behind_when_its_line_is_parked(depot: Depot) -> None:
    """The line looks empty to the take; who is about to fill it holds the tenant's lock, so it is not parked."""
    depot.post()
    depot.take_one()
    depot.sql("update pull_line set active = true")
    with PgStore(depot.engine(name="sender")).begin(ALICE) as tx:
        sent = run.create_run(tx, depot.ports, depot.parcel, ALICE, {})
        assert tx.has_open_lanes(sent.run_id)
        assert depot.take() == []

    assert len(depot.take()) == 1


def test_two_enqueues_under_one_key_make_one(depot: Depot) -> None:
    failures: list[str | None] = []

    def second() -> None:
        try:
            depot.post(key="k")
        except Exception as error:
            failures.append(db.sqlstate(error))

    other = threading.Thread(target=second)
    with PgStore(depot.engine(name="first")).begin(ALICE) as tx:
        first = run.create_run(tx, depot.ports, depot.parcel, ALICE, {"key": "k"})
        assert tx.has_open_lanes(first.run_id)
        other.start()
        time.sleep(0.2)
    other.join(60)

    assert failures == ["23505"]
    assert depot.value("select count(*) from run") == 1


# Everybody at once.


class Storm:
    """Takers, a twin that finishes what another took, operators and ticks, each on a connection of its own."""

    def __init__(self, depot: Depot, seconds: float) -> None:
        self.depot, self.until = depot, time.monotonic() + seconds
        self.errors: list[str] = []
        self.taken: list[Turn] = []
        self.finished: list[Turn] = []
        self.twins: list[Turn] = []

    def ports(self, name: str) -> Ports:
        engine = self.depot.engine("baton_worker", name)
        return Ports(store=PgStore(engine), queue=self.depot.queue, relay=self.depot.relay, offers=PgOffers(engine))

    def play(self, *bodies: Callable[[Ports, random.Random], None]) -> None:
        def loop(body: Callable[[Ports, random.Random], None], number: int) -> None:
            ports, rng = self.ports(f"actor {number}"), random.Random(number)
            while time.monotonic() < self.until:
                try:
                    body(ports, rng)
                except (Refused, NotFound):
                    pass
                except Exception as error:
                    if not isinstance(error, IndexError):
                        self.errors.append(f"{db.sqlstate(error)} {error!r}")

        threads = [
            threading.Thread(target=loop, args=(body, number), daemon=True) for number, body in enumerate(bodies)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

    def posts(self, ports: Ports, rng: random.Random) -> None:
        tenant = rng.choice(TENANTS)
        params = {
            "priority": rng.choice((1, 5, 100)),
            "delay_s": rng.choice((0, 0, 0, 0.05)),
            "stages": rng.choice((1, 1, 2)),
        }
        run.start_run(ports, self.depot.parcel, tenant, params)

    def takes(self, ports: Ports, rng: random.Random) -> None:
        assert ports.offers is not None
        turns = ports.offers.take(QUEUE, rng.choice((1, 1, 3, 10)), new_id(), 0.15, "storm")
        self.taken += turns
        alive = [turn for turn in turns if rng.random() > 0.1]
        self.twins += [turn for turn in alive if rng.random() < 0.1]
        if rng.random() < 0.5:
            time.sleep(rng.choice((0, 0, 0.2)))  # too late
            rng.shuffle(alive)
            self._note(alive, do_together(alive, self.depot.parcel, ports))
            return
        for turn in alive:
            if rng.random() < 0.1:
                time.sleep(0.2)
            self._note([turn], [do_turn(turn, self.depot.parcel, ports)])

    def _note(self, turns: list[Turn], outcomes: list[Outcome]) -> None:
        self.finished += [turn for turn, came in zip(turns, outcomes, strict=True) if came in set(StepOutcome)]

    def finishes_again(self, ports: Ports, rng: random.Random) -> None:
        time.sleep(0.005)
        turn = self.twins.pop()
        if do_turn(turn, self.depot.parcel, ports) in set(StepOutcome):
            self.finished.append(turn)

    def meddles(self, ports: Ports, rng: random.Random) -> None:
        time.sleep(0.004)
        rows = self.depot.sql("select id, tenant_id from run order by random() limit 1")
        if not rows:
            return
        row = rows[0]
        match rng.choice(("cancel", "pause", "resume", "retry", "resume")):
            case "cancel":
                run.cancel_run(ports, self.depot.parcel, row.tenant_id, row.id)
            case "pause":
                run.pause_run(ports, row.tenant_id, row.id)
            case "resume":
                run.resume_run(ports, row.tenant_id, row.id)
            case _:
                run.retry_run(ports, self.depot.parcel, row.tenant_id, row.id)

    def ticks(self, ports: Ports, rng: random.Random) -> None:
        time.sleep(0.03)
        tick(ports, self.depot.kinds)


@pytest.mark.full
def test_nothing_is_taken_twice_or_lost_when_everybody_acts_at_once(depot: Depot) -> None:
    storm = Storm(depot, 8)
    storm.play(
        storm.posts, storm.takes, storm.takes, storm.takes, storm.finishes_again, storm.meddles, storm.meddles, storm.ticks,
        storm.ticks,
    )  # fmt: skip
    assert storm.errors == []
    depot.check()
    for row in depot.sql("select id, tenant_id from run where paused_at is not null"):
        run.resume_run(depot.ports, row.tenant_id, row.id)
    for _ in range(12):
        depot.work(10)
        depot.sql("update lane set lease_until = now() - interval '1 s' where claim_token is not null")
        depot.ticks()
        depot.pass_time(10_000)

    assert len(storm.taken) > 100
    taken = Counter((turn.lane_id, turn.epoch, turn.seq) for turn in storm.taken)
    assert [each for each, times in taken.items() if times > 1] == []
    finished = Counter((turn.lane_id, turn.epoch, turn.seq) for turn in storm.finished)
    assert [each for each, times in finished.items() if times > 1] == []
    assert depot.sql("select id from run where finished_at is null") == []
    assert depot.sql("select lane_id from offer") == []
    # One that has succeeded may be asked for again as a whole: that is another epoch.
    assert depot.sql("select run_id, epoch, stage from carried group by 1, 2, 3 having count(*) > 1") == []
    ended = """select run_id, epoch from history where type in ('succeeded', 'failed', 'canceled') group by 1, 2
               having count(*) <> 1"""
    assert depot.sql(ended) == []
    assert depot.sql("select run_id from history group by 1 having max(n) <> count(*)") == []
    assert depot.sql("""select l.id from lane l join run r on r.id = l.run_id
        where (l.status = 'done') <> (r.status = 'succeeded') or (l.status = 'canceled') <> (r.status = 'canceled')""") == []  # fmt: skip
    steps = "select lane_id from step group by 1 having max(seq) + 1 <> count(*)"
    assert depot.sql(steps) == []


@pytest.mark.full
def test_turns_are_fair_and_caps_hold_under_many_takers(depot: Depot) -> None:
    """From the log of takes, which is written inside them: between two takes of a tenant with due work each other tenant has
    at most one."""
    noisy, quiet = TENANTS[0], TENANTS[1:]
    depot.sql("delete from take_log")
    for _ in range(150):
        depot.post(noisy)
    for tenant in quiet:
        for _ in range(25):
            depot.post(tenant)

    def worker(ports: Ports, rng: random.Random) -> None:
        assert ports.offers is not None
        for turn in ports.offers.take(QUEUE, 1, new_id(), 70, "w"):
            do_turn(turn, depot.parcel, ports)

    storm = Storm(depot, 6)
    storm.play(*[worker] * 6)
    assert storm.errors == []
    order = [row.tenant_id for row in depot.sql("select tenant_id from take_log order by n")]
    assert len(order) == 150 + 5 * 25
    for tenant in TENANTS:
        places = [n for n, each in enumerate(order) if each == tenant][:25]
        assert max(b - a for a, b in pairwise(places)) <= len(TENANTS)


FILL = """
with made as (
    insert into run (id, tenant_id, kind, status, params, check_at, created_at)
    select gen_random_uuid(), :tenant, 'parcel', 'queued', '{}', 'infinity', now() from generate_series(1, :count)
    returning id, tenant_id)
insert into lane (id, run_id, tenant_id, kind, key, holds_run, status, cursor, next_due_at, check_at, max_steps, class_id,
                  priority)
select gen_random_uuid(), id, tenant_id, 'parcel', 'carry', true, 'active', '{"stage": 0}', now(), 'infinity', 1000, :carts, 100
from made
"""


@pytest.mark.long
def test_ten_thousand_takes_are_fair_between_a_hundred_tenants(depot: Depot) -> None:
    """One tenant has a hundred thousand waiting, 99 have a few: between two takes of any with due work at most 99 others."""
    tenants = [UUID(int=0xFA00 + n) for n in range(100)]
    depot.sql("delete from take_log")
    for tenant, count in [(tenants[0], 100_000), *((tenant, 100) for tenant in tenants[1:])]:
        depot.sql(FILL, tenant=tenant, count=count, carts=CARTS)
    depot.sql("""
        do $$ declare taken uuid; begin
            for n in 1 .. 10000 loop
                select lane_id into taken from take_offers('parcels', 1, gen_random_uuid(), '60 s', 'w');
                update lane set status = 'done', claim_token = null, lease_until = null, seq = seq + 1 where id = taken;
                commit;
            end loop;
        end $$""")
    order = [row.tenant_id for row in depot.sql("select tenant_id from take_log order by n")]
    assert len(order) == 10_000
    places: dict[UUID, list[int]] = defaultdict(list)
    for n, tenant in enumerate(order):
        places[tenant].append(n)
    assert set(places) == set(tenants)
    assert max(b - a for each in places.values() for a, b in pairwise(each)) - 1 <= len(tenants) - 1


@pytest.mark.full
def test_caps_hold_under_many_takers_by_the_log_of_takes(depot: Depot) -> None:
    """A turn is surely in hand from the answer of its take until its end is begun: never more of those than the caps say."""
    depot.sql("insert into pull_tenant (tenant_id, most_running) values (:t, 2)", t=ALICE)
    depot.sql("update pull_class set most_running = 4 where id = :id", id=CARTS)
    for tenant in (ALICE, BOB, TENANTS[0]):
        for _ in range(60):
            depot.post(tenant)
    log: list[tuple[float, int, UUID]] = []

    def worker(ports: Ports, rng: random.Random) -> None:
        assert ports.offers is not None
        turns = ports.offers.take(QUEUE, rng.choice((1, 2, 5)), new_id(), 70, "w")
        log.extend((time.monotonic(), 1, turn.tenant_id) for turn in turns)
        for turn in turns:
            time.sleep(rng.random() / 100)
            log.append((time.monotonic(), -1, turn.tenant_id))
            do_turn(turn, depot.parcel, ports)

    storm = Storm(depot, 8)
    storm.play(*[worker] * 8)

    assert storm.errors == []
    assert depot.value("select count(*) from run where status = 'succeeded'") == 180
    assert sum(change for _, change, _ in log if change > 0) == 180
    in_hand = list(accumulate(change for _, change, _ in sorted(log)))
    of_alice = list(accumulate(change for _, change, tenant in sorted(log) if tenant == ALICE))
    assert (max(of_alice), max(in_hand)) == (2, 4)


@pytest.mark.parametrize("happened", [True, False])
def test_a_take_whose_answer_is_lost_is_asked_for_again_and_counted_once(depot: Depot, happened: bool) -> None:
    """The work was not begun: it must cost no attempt, which may have been the only one."""
    url = sa.make_url(depot.url)
    assert url.port is not None
    with lines(url.port) as relay:
        through = url.set(port=relay.port).render_as_string(hide_password=False)
        offers = PgOffers(depot.engine(url=through, name="cut"))
        assert offers.take(QUEUE, 2, new_id(), 70, "a worker") == []
        posted = {depot.post(), depot.post()}
        if happened:
            relay.lose_next_answer()
        else:
            depot.sql(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = 'cut'"
            )

        turns = offers.take(QUEUE, 2, new_id(), 70, "a worker")

    assert {turn.run_id for turn in turns} == posted
    assert [(turn.claims, turn.pulled) for turn in turns] == [(1, True)] * 2
    assert [depot.do(turn) for turn in turns] == [StepOutcome.DONE] * 2


def test_a_take_waits_for_no_lane_that_somebody_is_writing(depot: Depot, pulls: Stage) -> None:
    """Who writes a lane comes to its offer after that: if the take waited, each would wait for the other."""
    busy, other = depot.post(priority=1), depot.post()
    worker = pulls.actor("worker")
    with depot.locking("select from lane where run_id = :id for update", id=busy):
        taken = worker.does(takes(2)).answer(10)
    assert [turn.run_id for turn in taken] == [other]
    assert depot.take_one().run_id == busy
