"""Guards that tests of pull delivery stand on the product's own statements: a migrated Postgres with parcels in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from shared.kernel import db, run
from shared.kernel.catalogue import Catalogue
from shared.kernel.clock import new_id
from shared.kernel.model import Turn
from shared.kernel.offers import PgOffers
from shared.kernel.ports import Ports, Store
from shared.kernel.step import Outcome, do_turn
from shared.kernel.store import PgStore
from shared.kernel.tick import TickReport, tick
from tests.kinds.parcel.kind import CLASSES, QUEUE, SCHEMA, parcel_kind
from tests.support.databases import ServerAdmin
from tests.support.house import ALICE, House, tally_database

# In which order offers were taken: written inside the take, while it holds its queue.
TAKE_LOG = """
create table take_log (n bigint generated always as identity, tenant_id uuid not null);
create function log_take() returns trigger language plpgsql security definer as
    'begin insert into take_log (tenant_id) values (new.tenant_id); return null; end';
create trigger take_logged after update on offer for each row
    when (old.taken_at is null and new.taken_at is not null) execute function log_take()
"""
# What an offer says, and what its lane would have it say: there must be no difference, whenever one looks.
STRAYED = """
select l.id, l.status, l.claim_token is not null as held, o.lane_id is not null as offered, o.taken_at is not null as taken,
       o.due
from (select * from lane where class_id is not null) l full join offer o on o.lane_id = l.id
where l.id is null
   or (l.status = 'active') <> (o.lane_id is not null)
   or (o.lane_id is not null and (o.taken_at is not null) <> (l.claim_token is not null))
   or (o.lane_id is not null and o.taken_at is null and not o.due and o.scheduled_for <> l.next_due_at
       and not (o.scheduled_for = 'infinity' and exists (select from run r where r.id = l.run_id and r.paused_at is not null)))
   or (o.lane_id is not null and (o.run_id, o.tenant_id, o.class_id, o.priority) <> (l.run_id, l.tenant_id, l.class_id, l.priority))
"""
# A due offer that no take would find: outside of every active line.
STRANDED = """
select o.lane_id from offer o
where o.due and o.taken_at is null and not exists (
    select from pull_line l where l.class_id = o.class_id and l.tenant_id = o.tenant_id and l.priority = o.priority
      and l.active and l.head <= o.queued_at)
"""


class Depot(House):
    """A house with a pull kind beside the tally."""

    def _furnish(self) -> None:
        super()._furnish()
        self.carries: Callable[[Turn], Any] = lambda _: None
        self.parcel = parcel_kind(self._carry)
        self.kinds = Catalogue(self.kind, self.parcel)
        self.ports = self.ports_of(self.store)

    def _carry(self, turn: Turn) -> None:
        self.carries(turn)

    def ports_of(self, store: Store) -> Ports:
        assert isinstance(store, PgStore)
        return Ports(store=store, queue=self.queue, relay=self.relay, offers=PgOffers(store._engine))

    def empty(self) -> None:
        super().empty()
        self.sql("delete from carried; delete from offer; delete from pull_line; delete from pull_tenant")
        self.sql(CLASSES)
        self.sql("update pull_queue set turn = default")

    @property
    def offers(self) -> PgOffers:
        assert isinstance(self.ports.offers, PgOffers)
        return self.ports.offers

    def post(self, tenant: UUID = ALICE, **params: Any) -> UUID:
        """A parcel to be carried."""
        return run.start_run(self.ports, self.parcel, tenant, params)

    def take(self, most: int = 1, ports: Ports | None = None) -> list[Turn]:
        offers = (ports or self.ports).offers
        assert offers is not None
        return offers.take(QUEUE, most, new_id(), 70, "a worker")

    def take_one(self) -> Turn:
        (turn,) = self.take()
        return turn

    def do(self, turn: Turn, ports: Ports | None = None) -> Outcome:
        return do_turn(turn, self.parcel, ports or self.ports)

    def work(self, most: int = 1) -> list[Outcome]:
        """Take and do until there is nothing to take."""
        done: list[Outcome] = []
        while turns := self.take(most):
            done += [self.do(turn) for turn in turns]
        return done

    def lose(self, turn: Turn) -> None:
        self.sql("update lane set lease_until = now() - interval '1 s' where id = :id", id=turn.lane_id)

    def ticks(self) -> TickReport:
        return tick(self.ports, self.kinds)

    def pass_time(self, seconds: float) -> None:
        self.sql(
            """update lane set next_due_at = next_due_at - make_interval(secs => :s)
               where class_id is not null and status = 'active' and claim_token is null and next_due_at < 'infinity'""",
            s=seconds,
        )

    def offer(self, run_id: UUID) -> Any:
        rows = self.sql(
            "select *, nullif(scheduled_for, 'infinity') is null as aside from offer where run_id = :id", id=run_id
        )
        return rows[0] if rows else None

    def carried(self, run_id: UUID) -> list[int]:
        return [row.stage for row in self.sql("select stage from carried where run_id = :id order by stage", id=run_id)]

    def check(self) -> None:
        """What must hold at every moment."""
        assert self.sql(STRAYED) == []
        assert self.sql(STRANDED) == []

    def lanes_of(self, run_ids: Sequence[UUID]) -> list[UUID]:
        return [self.lane(run_id, "carry").id for run_id in run_ids]


@contextmanager
def parcel_depot(server: ServerAdmin, template: str) -> Iterator[Depot]:
    with tally_database(server, template) as url:
        engine = db.connect_engine(url)
        with db.autocommit(engine).connect() as connection:
            connection.exec_driver_sql(SCHEMA)
            connection.exec_driver_sql(TAKE_LOG)
            connection.exec_driver_sql(CLASSES)
        engine.dispose()
        depot = Depot(url)
        try:
            yield depot
        finally:
            depot.close()
