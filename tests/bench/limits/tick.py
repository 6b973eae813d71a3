"""The bare limit of the tick: overdue lanes updated in batches. Never changed together with product code."""

from __future__ import annotations

from shared.kernel.flights import Connection
from tests.bench.limits.bare import rows as ask

_OVERDUE = """
update lane
set resend_no = resend_no + 1, resends = resends + 1, sent_at = now(), claim_token = null, lease_until = null,
    check_at = now() + interval '3 min'
where id = any(array(
    select id from lane where status = 'active' and check_at <= now() order by check_at, id limit $1
    for update skip locked))
"""
UPDATE = f"{_OVERDUE} returning id, tenant_id, kind, epoch, seq, resend_no"
UPDATE_AND_NOTE = f"""
with mended as ({_OVERDUE} returning id, tenant_id, kind, epoch, seq, resend_no),
noted as (insert into repair (lane_id, tenant_id, why) select id, tenant_id, 'unclaimed' from mended)
select * from mended
"""


def drain(connection: Connection, batch: int, *, note: bool) -> int:
    """How many lanes were overdue; with `note`, each repair is written down as the relay does."""
    done = 0
    while found := len(ask(connection, UPDATE_AND_NOTE if note else UPDATE, batch)):
        done += found
    return done
