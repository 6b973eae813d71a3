"""Guards that tests of triggers stand on the product: its dispatcher, its tick, and jobs that a worker takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from shared.job_queue.triggers import store
from shared.kernel.catalogue import Catalogue
from shared.kernel.clock import new_id
from shared.kernel.db import jsonb
from shared.kernel.intake import take_in
from shared.kernel.ports import Ports
from shared.kernel.signals import dispatch
from shared.kernel.store import PgStore
from shared.kernel.tick import TickReport, tick
from tests.support.databases import ServerAdmin
from tests.support.house import ALICE, tally_database
from tests.support.jobs import Office

EVENT = "provider.folder.updated"
ANYTHING: dict[str, Any] = {
    "type": "object", "additionalProperties": False,
    "properties": {"what": {"type": "string"}, "n": {"type": "integer"}, "at": {"type": "string"}},
}  # fmt: skip


class TriggerOffice(Office):
    """An office whose jobs are started by events and schedules."""

    def empty(self) -> None:
        self.sql("delete from trigger_firings")
        self.sql("delete from job_triggers")
        super().empty()

    def trigger(self, tenant: UUID = ALICE, **said: Any) -> UUID:
        """A row as the API writes it."""
        if not self.sql("select id from job_definitions where key = 'test'"):
            self.define(arg_schema=ANYTHING)
        cron = said.get("cron_expr")
        row = {
            "id": new_id(), "tenant_id": tenant, "label": "t", "is_enabled": True,
            "trigger_type": "schedule" if cron else "event", "event_name": None if cron else EVENT, "event_filter": {},
            "cron_expr": None, "timezone": "UTC" if cron else None,
            "definition_id": self.value("select id from job_definitions where key = 'test'"), "payload_template": {},
            "dedupe_window_seconds": 300, "catch_up": "once", "catch_up_most": 10, "max_lateness_seconds": 86_400,
            "overlap": "queue", "next_fire_at": None, "created_by": None, **said,
        }  # fmt: skip
        row |= {name: jsonb(row[name]) for name in ("event_filter", "payload_template")}
        with self._own_engines[0].begin() as connection:
            connection.execute(store.ADD, row)
        return UUID(str(row["id"]))

    def due_since(self, trigger: UUID, at: datetime | str) -> None:
        self.sql(
            "update job_triggers set next_fire_at = cast(:at as timestamptz) where id = :id", at=str(at), id=trigger
        )

    def happens(self, payload: Any = None, name: str = EVENT, tenant: UUID = ALICE, event_id: str | None = None) -> Any:
        """An event comes over the bus; nobody is told yet."""
        event = {
            "id": event_id or str(new_id()), "source": "test", "detail-type": "Baton Signal",
            "detail": {"tenant_id": str(tenant), "name": name, "payload": payload or {}},
        }  # fmt: skip
        return take_in(self.ports, event, None)

    def told(self, ports: Ports | None = None) -> int:
        return dispatch(ports or self.ports, self.catalogue)

    @property
    def catalogue(self) -> Catalogue:
        return Catalogue(self.job)

    def another(self) -> Ports:
        """The ports of a process of its own."""
        return self.ports_of(PgStore(self.engine()))

    def ticks(self, ports: Ports | None = None) -> TickReport:
        return tick(ports or self.ports, self.catalogue)

    def firings(self, trigger: UUID | None = None) -> list[Any]:
        return self.sql(
            """select * from trigger_firings where trigger_id = coalesce(cast(:id as uuid), trigger_id)
               order by fire_at, id""",
            id=trigger,
        )

    def statuses(self, trigger: UUID | None = None) -> list[str]:
        return [each.status if each.reason is None else each.reason for each in self.firings(trigger)]

    def jobs(self) -> list[Any]:
        return self.sql("select * from jobs order by queued_at, id")

    def now(self) -> datetime:
        at: datetime = self.value("select now()")
        return at.astimezone(UTC)


@contextmanager
def trigger_office(
    server: ServerAdmin, template: str, make: type[TriggerOffice] = TriggerOffice
) -> Iterator[TriggerOffice]:
    with tally_database(server, template) as url:
        office = make(url)
        try:
            yield office
        finally:
            office.close()
