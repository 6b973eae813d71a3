"""Whether a slice costs the same in a large job: the pages of taking and of completing a hundred rows, of ten thousand and of
five million."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from shared.kernel import db, sql
from shared.kernel.clock import new_id
from shared.row_job import store
from tests.bench.figures import Figure
from tests.bench.flatness import FILLING, MOVED, pages
from tests.bench.place import TENANT, Place, place

SLOTS, TAKEN, LOOKS = 4, 100, 5
RUN, LANE = new_id(), new_id()
# Of the rows before these, half have ended.
JOB = f"""
insert into files (id, tenant_id, name) values ('{RUN}', '{TENANT}', 'rows.csv');
insert into run (id, tenant_id, kind, status, check_at) values ('{RUN}', '{TENANT}', 'row_job', 'running', now() + interval '1 h');
insert into file_jobs (run_id, tenant_id, file_id, user_id, job_type, slots, read_at)
values ('{RUN}', '{TENANT}', '{RUN}', 'user:ann', 'csv', {SLOTS}, now());
insert into lane (id, run_id, tenant_id, kind, key, holds_run, status, cursor, next_due_at, check_at, max_steps)
values ('{LANE}', '{RUN}', '{TENANT}', 'row_job', 'work:0:0', true, 'active', '{{}}', now(), now() + interval '1 h', 1000000)
"""
FILL = f"""
set session_replication_role = replica;
insert into job_items (run_id, row_no, tenant_id, user_id, job_type, slot, status, input_json, normalized_json, due_at, updated_at)
select '{RUN}', n, '{TENANT}', 'user:ann', 'csv', n % {SLOTS}, case when n % 8 < 4 then 'DONE' else 'PENDING' end,
       jsonb_build_object('title', n), jsonb_build_object('title', n), timestamptz '2000-01-01', now()
from generate_series({{first}}, {{last}}) n;
reset session_replication_role
"""


def measure(*, few: int, many: int) -> list[Figure]:
    """On a server of its own, which goes with all its data."""
    with place(FILLING) as here:
        here.owner_runs(JOB)
        costs = {}
        for first, last in ((1, few), (few + 1, many)):
            here.owner_runs(FILL.format(first=first, last=last), "vacuum analyze job_items", "checkpoint")
            costs[last] = _look(here)
    return [
        Figure(
            name=f"{what} {TAKEN} rows of {many:,}, pages, against {few:,}",
            value=costs[many][what],
            unit="pages",
            against=costs[few][what],
            ratio=costs[many][what] / costs[few][what],
            goal="<= 1.3",
        )
        for what in ("take", "complete")
    ]


def _look(here: Place) -> dict[str, float]:
    found: dict[str, list[int]] = {"take": [], "complete": []}
    for _ in range(LOOKS):
        token = new_id()
        here.owner_runs(
            f"update lane set claim_token = '{token}', lease_until = now() + interval '1 h' where id = '{LANE}'"
        )
        with here.owner.connect() as connection:
            seq = connection.execute(sa.text("select seq from lane where id = :id"), {"id": LANE}).scalar_one()
        held = {"lane_id": LANE, "epoch": 1, "seq": seq, "token": token}
        taking = {
            "most": TAKEN,
            "alone": False,
            "tenant_most": 5_000,
            "slot": 0,
            "gen": 0,
            "holder": token,
            "lease_s": 60.0,
        }
        found["take"].append(_pages(here, sql.write_now(store.CLAIM), {**held, **taking}))
        with here.owner.connect() as connection:
            taken = connection.execute(
                sa.text("select row_no, attempts from job_items where run_id = :id and locked_by = :token"),
                {"id": RUN, "token": token},
            ).all()
        assert len(taken) == TAKEN
        done = [
            {"row_no": no, "claimed": attempts, "status": "DONE", "attempts": attempts, "result": {"offers": []}, "permanent": False}
            for no, attempts in taken
        ]  # fmt: skip
        finishing = {"items": db.jsonb(done), "holder": token}
        found["complete"].append(
            _pages(here, sql.commit_turn((store.FINISH_ROWS,)), {**held, **MOVED, **finishing, "rows": TAKEN})
        )
    return {what: statistics.median(each) for what, each in found.items()}


def _pages(here: Place, statement: sa.TextClause, params: Mapping[str, Any]) -> int:
    explained = sa.text(f"explain (analyze, buffers, format json) {statement.text}")
    with db.autocommit(here.engine).connect() as connection:
        db.set_tenant(connection, TENANT)
        (answer,) = connection.execute(explained, dict(params)).scalar_one()
    return pages(answer["Plan"])
