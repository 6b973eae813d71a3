"""The errand's one route of its own."""

from __future__ import annotations

import sqlalchemy as sa
from aws_lambda_powertools.event_handler.api_gateway import Router

from shared.kernel.api.frame import desk, operation
from shared.kernel.api.shapes import RunId, Told
from shared.kernel.auth import READS
from shared.kernel.errors import NotFound

router = Router()  # type: ignore[no-untyped-call]

TICKET = sa.text("""
select e.ticket from errand e join run r on r.id = e.run_id where e.run_id = :run_id and r.tenant_id = :tenant_id
""")


class Ticket(Told):
    ticket: str


@operation(router, "GET", "/errands/<run_id>", READS, tag="errands")
def get_errand(run_id: RunId) -> Ticket:
    """What somebody was sent for."""
    row = desk(router).one(TICKET, run_id=run_id)
    if row is None:
        raise NotFound
    return Ticket(ticket=row["ticket"])
