"""A small kind of work that uses every seam of the kernel once: somebody is sent to a shop.

It starts with a row under its run's id and finds that row the second time; waits while the shop is closed; notes what it is
about before it does it; orders, and looks twice for an order whose answer was lost; says that it is done; and leaves an
order that a lane which does not hold the run takes back. It hears of orders from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from shared.kernel.catalogue import Kind, Outside
from shared.kernel.decide import Limits
from shared.kernel.errors import Later, Refused
from shared.kernel.model import (
    Already,
    Continue,
    Decision,
    Effect,
    Ending,
    Finish,
    Json,
    Looks,
    NewLane,
    NewRun,
    RemoteCall,
    Run,
    Say,
    Signal,
    Start,
    Starting,
    Statement,
    Turn,
    Wait,
)
from shared.kernel.points import point
from shared.kernel.ports import Tx

NAME = "errand"
LOOKS = Looks(first_s=20, times=2, apart_s=15)
CLOSED_S = 30.0
TIDY_LATER_S = 3_600.0

# `errand_done` has no unique key on purpose: a step that commits twice must show.
SCHEMA = """
create table errand (
    run_id uuid primary key,
    tenant_id uuid not null,
    ticket text not null,
    source text,
    busy_in_epoch integer,
    unique (tenant_id, ticket)
);
create table errand_done (tenant_id uuid not null, run_id uuid not null, epoch integer not null, got text not null);
""" + "".join(
    f"""
alter table {table} enable row level security;
alter table {table} force row level security;
create policy tenant_only on {table} to baton_worker, baton_api
    using (tenant_id = (select nullif(current_setting('app.tenant', true), '')::uuid))
    with check (tenant_id = (select nullif(current_setting('app.tenant', true), '')::uuid));
create policy owner_all on {table} to baton_owner using (true);
grant select, insert, update on {table} to baton_worker, baton_api;
"""
    for table in ("errand", "errand_done")
)

KEEP = Statement(
    "errand.keep",
    """insert into errand (run_id, tenant_id, ticket, source) values (:run_id, :tenant_id, :ticket, :source)
       on conflict (tenant_id, ticket) do nothing""",
)
FIND = Statement("errand.find", "select run_id from errand where tenant_id = :tenant_id and ticket = :ticket")
BUSY = Statement(
    "errand.busy",
    """update errand e set busy_in_epoch = t.epoch from turn t where e.run_id = t.run_id
       returning e.ticket""",
    returns=True,
)
DONE = Statement(
    "errand.done",
    """insert into errand_done (tenant_id, run_id, epoch, got)
       select tenant_id, run_id, epoch, cast(:got as text) from turn""",
)


class ErrandPoint(StrEnum):
    ORDERED = "errand.ordered"
    TIDIED = "errand.tidied"


class Shop(Protocol):
    def is_open(self, turn: Turn) -> bool: ...
    def order(self, key: str, ticket: str) -> str: ...
    def find(self, key: str) -> str | None: ...
    def take_back(self, key: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Errand:
    shop: Shop

    def start(self, tx: Tx, starting: Starting) -> NewRun | Already:
        ticket = starting.params.get("ticket")
        if not isinstance(ticket, str) or not ticket:
            raise Refused("bad_params", "ticket: name what to fetch.")
        row = {
            "run_id": starting.run_id,
            "tenant_id": starting.tenant_id,
            "ticket": ticket,
            "source": starting.by.source,
        }
        if not tx.apply(Effect(KEEP, row)):
            (found,) = tx.read(FIND, {"tenant_id": starting.tenant_id, "ticket": ticket})
            return Already(found["run_id"])
        return NewRun(
            params=starting.params, lanes=[NewLane(key="go")], time_limit_s=starting.params.get("time_limit_s")
        )

    def take_step(self, turn: Turn, outside: Outside) -> Decision:
        if turn.key.startswith("tidy"):
            return self._tidy(turn, outside)
        if "got" in turn.cursor:
            got = str(turn.cursor["got"])
            said = Say("errand.done", {"run_id": str(turn.run_id), "epoch": turn.epoch})
            return Finish(effects=[Effect(DONE, {"got": got})], rows=1, says=[said], cursor={})
        if not self.shop.is_open(turn):
            raise Later(CLOSED_S, "the shop to open")
        (noted,) = outside.write(Effect(BUSY))
        got = outside.once(
            "order", kind="order", call=lambda key: self.shop.order(key, noted["ticket"]), look=self.shop.find,
            leaves_asset=True, looks=LOOKS,
        )  # fmt: skip
        point(ErrandPoint.ORDERED)
        return Continue(cursor={"got": got}, after_s=5, renews=True)

    def _tidy(self, turn: Turn, outside: Outside) -> Decision:
        """An hour later at first, unless somebody wakes it."""
        if not turn.cursor:
            return Wait(after_s=TIDY_LATER_S, cursor={"waited": True}, waits_for="the end of the hour")
        for asset in outside.assets():
            self.clean(asset, turn.params, outside.time_left_s)
            point(ErrandPoint.TIDIED)
            outside.note_cleaned(asset)
        return Finish()

    def clean(self, asset: RemoteCall, params: Json, time_left_s: Callable[[], float]) -> None:
        assert "ticket" in params
        assert time_left_s() > 0
        self.shop.take_back(asset.idempotency_key)

    def on_end(self, tx: Tx, run: Run, ending: Ending) -> Sequence[NewLane]:
        return [NewLane(key=f"tidy/{run.epoch}", holds_run=False)]


def hear(tx: Tx, signal: Signal) -> Sequence[Start]:
    return [Start(NAME, {"ticket": str(signal.payload["ticket"])})]


def errand_kind(shop: Shop, limits: Limits | None = None) -> Kind:
    errand = Errand(shop)
    return Kind(
        name=NAME,
        take_step=errand.take_step,
        start=errand.start,
        on_end=errand.on_end,
        clean=errand.clean,
        listens={"order.placed": hear},
        limits=limits or Limits(),
    )


class QuietShop:
    """A shop where everything works."""

    def __init__(self) -> None:
        self.orders: dict[str, str] = {}

    def is_open(self, turn: Turn) -> bool:
        return True

    def order(self, key: str, ticket: str) -> str:
        return self.orders.setdefault(key, ticket)

    def find(self, key: str) -> str | None:
        return self.orders.get(key)

    def take_back(self, key: str) -> None:
        self.orders.pop(key, None)


def params_of(scenario: Mapping[str, Any], number: int) -> dict[str, Any]:
    limit = scenario.get("time_limit_s")
    return {"ticket": f"t{number}", **({} if limit is None else {"time_limit_s": limit})}
