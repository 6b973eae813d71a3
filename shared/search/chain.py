"""What must never break off: a cycle after each cycle, a night after each night. It hangs on one signal each time, and whoever
should hear it may fail until it is given up. So the tick looks for whoever has no next one, and starts it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from shared.kernel import db
from shared.kernel.catalogue import Kind
from shared.kernel.deliver import deliver
from shared.kernel.log import logger
from shared.kernel.model import BEFORE_ALL, By
from shared.kernel.ports import Ports
from shared.kernel.run import create_run
from shared.search import store
from shared.search.ports import SearchMetric

BATCH = 200
BY = By(source="schedule", source_ref="tick")


@dataclass(slots=True)
class Chain:
    """The tenants whose searches or sheets had no next run when the tick began. What isn't fresh is counted here too: a search
    that nobody looks at counts nothing."""

    ports: Ports
    kind: Kind
    after: UUID = BEFORE_ALL

    def take_a_batch(self, in_time: Callable[[], bool]) -> bool:
        """False: there are no more."""
        with self.ports.store.begin(None) as tx:
            if self.after == BEFORE_ALL:
                (counted,) = tx.read(store.NOT_FRESH, {})
                self.ports.meter.count(SearchMetric.STALE, counted["searches"])
            rows = tx.read(store.WITHOUT_NEXT, {"after": self.after, "most": BATCH})
        for row in rows:
            if not in_time():
                return True
            self.after = row["tenant_id"]
            sheets = [{"sheet": str(sheet)} for sheet in row["sheets"]]
            self._start(row["tenant_id"], [*sheets, {}] if row["cycle"] else sheets)
        return len(rows) == BATCH

    def _start(self, tenant_id: UUID, wanted: list[dict[str, Any]]) -> None:
        """Each by itself: one that cannot be started must not stand in the way of the others. The next tick tries again."""
        for params in wanted:
            try:
                with self.ports.store.begin(tenant_id) as tx:
                    dues = create_run(tx, self.ports, self.kind, tenant_id, params, BY).dues
            except Exception as error:
                if db.is_disconnect(error):
                    raise
                logger.exception("searches could not be continued", extra={"tenant": str(tenant_id), **params})
            else:
                deliver(self.ports, dues)
