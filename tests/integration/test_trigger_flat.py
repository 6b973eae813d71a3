"""Guards that triggers cost the same however many there are: buffers at a thousand and at a hundred thousand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import sqlalchemy as sa

from shared.job_queue.triggers import store
from shared.kernel.model import BEFORE_ALL, Statement
from tests.support.databases import ServerAdmin
from tests.support.house import ALICE
from tests.support.triggers import EVENT, TriggerOffice, trigger_office

MOST = 1.3
DUE = 100
FILL = """
insert into job_triggers (id, tenant_id, label, trigger_type, cron_expr, timezone, event_name, definition_id, next_fire_at)
select gen_random_uuid(), cast(lpad(to_hex(mod(n, 500)), 32, '0') as uuid), 't', kind, case kind when 'schedule' then '@daily' end,
       case kind when 'schedule' then 'UTC' end, case kind when 'event' then 'other.' || mod(n, 10) end, d.id,
       case kind when 'schedule' then now() + n * interval '1 s' end
from generate_series(1, :many) n, (values ('schedule'), ('event')) k (kind), job_definitions d
"""
HISTORY = """
insert into trigger_firings (trigger_id, id, tenant_id, cause, fire_at, through, status, run_id)
select t.id, gen_random_uuid(), t.tenant_id, 'schedule', now() - n * interval '1 day', now() - n * interval '1 day', 'started',
       gen_random_uuid()
from job_triggers t, generate_series(1, 2) n where t.trigger_type = 'schedule'
"""
MAKE_DUE = """
update job_triggers set next_fire_at = now() - interval '1 s'
where id in (select id from job_triggers where trigger_type = 'schedule' order by next_fire_at limit :due)
"""


def buffers(office: TriggerOffice, statement: Statement, params: Mapping[str, Any]) -> int:
    """What it touches once its plan and its pages are warm. Nothing is kept."""
    with office._own_engines[0].connect() as connection:
        for _ in range(2):
            answer = connection.execute(
                sa.text(f"explain (analyze, buffers, format json) {statement.sql}"), dict(params)
            ).scalar_one()
            connection.rollback()
    plan = answer[0]["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


def costs(office: TriggerOffice) -> dict[str, int]:
    office.sql("analyze job_triggers, trigger_firings, signal")
    (one,) = office.sql("select id, tenant_id from job_triggers where next_fire_at <= now() limit 1")
    mine = {"id": one.id, "tenant_id": one.tenant_id}
    signals = [str(row.id) for row in office.sql("select id from signal order by id limit 200")]
    last = {"id": one.id, "cause": "schedule", "definition_key": "test", "asked": '[{"n": 0, "key": ""}]'}
    return {
        "due": buffers(office, store.DUE, {"at": "-infinity", "after": BEFORE_ALL, "most": DUE}),
        "lock_due": buffers(office, store.LOCK_DUE, mine),
        "last_job": buffers(office, store.LAST_JOBS, last),
        "advance": buffers(office, store.ADVANCE, {"id": one.id, "next_at": None, "problem": None}),
        "releasable": buffers(
            office, store.RELEASABLE, {"after_trigger": BEFORE_ALL, "after": BEFORE_ALL, "most": DUE}
        ),
        "subscribed": buffers(office, store.SUBSCRIBED, {"signal_ids": signals}),
        "prune": buffers(office, store.PRUNE, {"days": 90, "most": 1_000}),
    }


@pytest.mark.long
def test_a_tick_costs_the_same_with_a_hundred_thousand_schedules(postgres_server: ServerAdmin, template: str) -> None:
    with trigger_office(postgres_server, template) as office:
        office.trigger(ALICE, event_name=EVENT)
        for n in range(200):
            office.happens({"n": n})
        seen = []
        for many in (1_000, 99_000):
            office.sql(FILL, many=many)
            office.sql("delete from trigger_firings")
            office.sql(HISTORY)
            office.sql("update job_triggers set next_fire_at = now() + interval '1 day' where next_fire_at <= now()")
            office.sql(MAKE_DUE, due=DUE)
            office.sql("vacuum analyze job_triggers, trigger_firings")
            seen.append(costs(office))
    small, large = seen
    # Rows that are read one by one: each lies in a page of its own, and is found in at most four.
    assert large.pop("due") <= DUE + 20
    assert large.pop("subscribed") <= 4 * 200
    assert {name: (small[name], n) for name, n in large.items() if n > MOST * small[name] + 4} == {}
    tick = [DUE * (each["lock_due"] + each["last_job"] + each["advance"]) for each in seen]
    assert tick[1] + DUE + 20 <= MOST * (tick[0] + small["due"]), seen
