"""Guards that a page of any list touches as few pages of the database among very many runs as among fewer."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from shared.kernel import db
from shared.kernel.api import sql
from shared.kernel.clock import new_id
from shared.page_ingest import store as page_ingest
from tests.support.databases import ServerAdmin, as_user
from tests.support.house import tally_database
from tests.support.plans import explain

FEW, MANY, A_MILLION = 80_000, 140_000, 1_000_000  # indexes as deep as those of millions, so only what is read can grow
MOST_GROWTH = 1.3
PAGE = 51
TENANT, QUIET_TENANT = UUID(int=0xACE), UUID(int=0xBEE)
# Most of these is the same for any number of runs, and a growth beside it would not show: it is counted in pages.
MOST_MORE = {"now": 150, "system": 150}
EVERY = 800  # one run in so many is what a narrow filter looks for

_ID = "(lpad(to_hex(n), 12, '0') || '{0}' || substr(md5(n::text), 1, 16))::uuid"
FILL = f"""
insert into run (id, tenant_id, kind, label, source, status, check_at, created_by, created_at, started_at, finished_at, error)
select {_ID.format("7001")}, :t, case when mod(n, {EVERY}) = 0 then 'rare' else 'tally' end,
       case when mod(n, {EVERY}) = 1 then 'rare' end, case when mod(n, {EVERY}) = 2 then 'rare' end,
       case when mod(n, {EVERY}) between 3 and 40 then 'failed' else 'succeeded' end, now(),
       case when mod(n, {EVERY}) = 3 then 'user:rare' else 'user:often' end, t.at, t.at,
       case when mod(n, {EVERY}) between 3 and 28 or mod(n, 20) = 9 then now() - interval '12 hours' + n * interval '1 ms'
            else t.at + interval '1 minute' end,
       case when mod(n, {EVERY}) between 3 and 40 then jsonb_build_object('code', 'x', 'message', 'y', 'fingerprint', mod(n, 7)::text) end
from generate_series(cast(:first as bigint), cast(:last as bigint)) n
cross join lateral (select timestamptz '2026-01-01' + n * interval '1 second' as at) t
order by n
"""
FILL_LANES = f"""
insert into lane (id, run_id, tenant_id, kind, key, holds_run, status, cursor, next_due_at, check_at, max_steps)
select {_ID.format("7002")}, {_ID.format("7001")}, :t, 'tally', 'l0', true, 'done', '{{}}', now(), now(), 9
from generate_series(cast(:first as bigint), cast(:last as bigint)) n order by n
"""
FILL_REST = f"""
insert into history (run_id, n, tenant_id, epoch, type)
select {_ID.format("7001")}, 1, :t, 1, 'accepted' from generate_series(cast(:first as bigint), cast(:last as bigint)) n;
insert into step (lane_id, epoch, seq, tenant_id, outcome)
select {_ID.format("7002")}, 1, 0, :t, 'moved' from generate_series(cast(:first as bigint), cast(:last as bigint)) n;
insert into audit (tenant_id, actor, action, target)
select :t, 'a', 'b', 'c' from generate_series(cast(:first as bigint), cast(:last as bigint)) n;
insert into repair (lane_id, tenant_id, why, at)
select {_ID.format("7002")}, :t, case when mod(n, {EVERY}) = 0 then 'dead_letter' else 'unsent' end, now() - interval '12 hours' + n * interval '1 ms'
from generate_series(cast(:first as bigint), cast(:last as bigint)) n where mod(n, 2) = 0;
insert into pulse (tenant_id, minute, created_by, steps, failed, rows)
select :t, date_trunc('minute', now()) - n * interval '1 minute', 'user:often', 1, 0, 1
from generate_series(cast(:first as bigint), cast(:last as bigint), 5) n
"""
# What does not grow: open runs are few by the tenant's limit, and so are people, tokens, connections and gates.
FIXED = """
update run set status = 'running', finished_at = null, error = null, paused_at = case when mod(r.n, 10) = 0 then now() end
from (select id, row_number() over (order by id) as n from run order by id limit 400) r where run.id = r.id;
insert into member (tenant_id, subject, role, added_by) select :t, 's' || n, 'viewer', 'x' from generate_series(1, 300) n;
insert into machine_token (id, tenant_id, name, role, hash, created_by)
select gen_random_uuid(), :t, 'x', 'viewer', sha256(n::text::bytea), 'x' from generate_series(1, 200) n;
insert into connection (id, tenant_id, provider, name, created_by)
select gen_random_uuid(), :t, 'nivoda', 'c' || n, 'x' from generate_series(1, 100) n;
insert into gate (tenant_id, key, state, until) select :t, 'g' || n, 'closed', now() from generate_series(1, 100) n;
insert into lane (id, run_id, tenant_id, kind, key, holds_run, status, cursor, next_due_at, check_at, max_steps)
select gen_random_uuid(), '00000000-0000-0000-0000-00000000abcd', :t, 'page_ingest', 'part:' || lpad(n::text, 6, '0'), true, 'active',
       '{"low": 0, "high": 9, "offset": 0}', now(), now(), 9 from generate_series(1, 2000) n;
insert into step (lane_id, epoch, seq, tenant_id, outcome)
select id, 1, n, tenant_id, 'moved' from lane cross join generate_series(1, 100) n
where run_id = '00000000-0000-0000-0000-00000000abcd' and key < 'part:000100';
update lane set status = 'active', next_due_at = now() + interval '1 hour', sent_at = now()
where run_id in (select id from run where status = 'running' and kind <> 'page_ingest');
insert into beat values ('tick', now());
insert into run (id, tenant_id, kind, status, check_at, created_by, created_at)
values ('00000000-0000-0000-0000-00000000abcd', :t, 'page_ingest', 'running', now(), 'user:wide', timestamptz '2025-01-01')
"""
WIDE = UUID("00000000-0000-0000-0000-00000000abcd")

RUNS: dict[str, dict[str, Any]] = {
    "all": {},
    "kind": {"kind": "tally"},
    "rare kind": {"kind": "rare"},
    "status": {"status": "succeeded"},
    "open": {"status": "running"},
    "paused": {"paused": True},
    "kind and status": {"kind": "rare", "status": "succeeded"},
    "label": {"label": "rare"},
    "source": {"source": "rare"},
    "created by": {"created_by": "user:rare"},
    "a member's own": {"owner": "user:rare"},
    "created between": {"created_from": "2026-01-01T01:00:00Z", "created_before": "2026-01-01T01:01:00Z"},
    "finished between": {"finished_from": "2026-01-01T01:00:00Z", "finished_before": "2026-01-01T01:01:00Z"},
    "nothing": {"label": "there is no such label"},
    "open, of any status": {"open": True},
    "cause": {"fingerprint": "3"},
    "part of a label": {"q": "%are%"},
    "part of no label": {"q": "%there is none%", "owner": "user:often"},
    "id": {"id": str(UUID(int=5))},
}
MIDDLE = {"after_at": "2026-01-01T05:00:00Z", "after_id": str(UUID(int=2**127))}

Costs = dict[str, list[int]]


def questions(run_id: UUID, lane_id: UUID) -> Iterator[tuple[str, sa.TextClause, dict[str, Any]]]:
    for name, wanted in RUNS.items():
        for after in (False, True):
            more = MIDDLE if after else {}
            yield (
                f"runs: {name}{', later' if after else ''}",
                sql.list_runs(frozenset(wanted), after=after),
                {**wanted, **more},
            )
    run, lane = {"run_id": run_id}, {"lane_id": lane_id}
    yield "one run", sql.ONE_RUN, run
    yield "lanes", sql.list_lanes(with_status=False, after=False), {"run_id": WIDE}
    yield (
        "lanes, later",
        sql.list_lanes(with_status=True, after=True),
        {"run_id": WIDE, "status": "active", "after_key": "part:001000"},
    )
    ribbon = sql.list_lanes(with_status=False, after=False, with_ribbon=True)
    yield "lanes with ribbons", ribbon, {"run_id": WIDE, "ribbon": 50}
    yield "why", sql.WHY_RUN, {"run_id": WIDE}
    for name in ("user:rare", "user:often", "user:nobody"):
        yield f"now: {name}", sql.now(own=True), {"owner": name}
    yield "now", sql.now(own=False), {}
    yield "now: a tenant without runs", sql.now(own=False), {"tenant_id": QUIET_TENANT}
    yield "failures", sql.failures(own=False), {}
    yield "failures: user:often", sql.failures(own=True), {"owner": "user:often"}
    yield "kinds", sql.USED_KINDS, {}
    yield "own kinds", sql.OWN_KINDS, {"owner": "user:often"}
    yield "system", sql.SYSTEM, {"subject": None}
    yield "system: a tenant without runs", sql.SYSTEM, {"subject": None, "tenant_id": QUIET_TENANT}
    yield "steps", sql.list_steps(after=False), lane
    yield "steps, later", sql.list_steps(after=True), {**lane, "after_epoch": 1, "after_seq": 5}
    yield "history", sql.HISTORY, {**run, "after": 0}
    yield "remote calls", sql.REMOTE_CALLS, run
    yield "audit", sql.list_audit(after=False), {}
    yield "audit, later", sql.list_audit(after=True), {"after_id": 20_000}
    yield "members", sql.list_members(after=False), {}
    yield "members, later", sql.list_members(after=True), {"after_subject": "s150"}
    yield "tokens", sql.list_tokens(after=False), {}
    yield "tokens, later", sql.list_tokens(after=True), {"after_id": str(UUID(int=2**127))}
    yield "gates", sql.list_gates(after=False), {}
    yield "gates, later", sql.list_gates(after=True), {"after_key": "g50", "after_shared": False}
    yield "connections", sql.list_connections(of_provider=False, after=False), {}
    connections = {"provider": "nivoda", "after_id": str(UUID(int=2**127))}
    yield "connections, later", sql.list_connections(of_provider=True, after=True), connections
    yield "partitions", page_ingest.list_partitions(after=False), {"run_id": WIDE}
    yield "partitions, later", page_ingest.list_partitions(after=True), {"run_id": WIDE, "after_key": "part:001000"}
    yield "partitions with heat", page_ingest.list_partitions(after=False, with_heat=True), {"run_id": WIDE, "heat": 40}
    yield "an ingestion", page_ingest.SUMMARY, {"run_id": WIDE}
    yield "coverage", page_ingest.coverage(own=False), {"days": 28}
    yield "own coverage", page_ingest.coverage(own=True), {"days": 28, "owner": "user:often"}


def measured(url: str) -> dict[str, int]:
    engine = db.connect_engine(as_user(url, "baton_api"))
    costs = {}
    with engine.connect() as connection, connection.begin():
        db.set_tenant(connection, TENANT)
        run_id, lane_id = connection.execute(
            sa.text("select run_id, id from lane where key = 'l0' order by id limit 1")
        ).one()
        for name, statement, params in questions(run_id, lane_id):
            asked = {"tenant_id": TENANT, "most": PAGE, **params}
            bound = {"owner": params.get("owner", ""), "tenant": str(asked["tenant_id"])}
            setting = "select set_config('app.owner', :owner, true), set_config('app.tenant', :tenant, true)"
            connection.execute(sa.text(setting), bound)
            costs[name] = explain(connection, statement, asked).buffers
    engine.dispose()
    return costs


def grow(url: str, first: int, last: int) -> None:
    engine = db.connect_engine(url)
    params = {"t": TENANT, "first": first, "last": last}
    with engine.begin() as connection:
        for statement in (FILL, FILL_LANES, *FILL_REST.split(";")):
            connection.execute(sa.text(statement), params)
        if first == 0:
            for statement in FIXED.split(";\n"):
                connection.execute(sa.text(statement), {"t": TENANT})
    with db.autocommit(engine).connect() as connection:
        connection.exec_driver_sql("vacuum analyze")
    engine.dispose()


def compared(server: ServerAdmin, template: str, many: int) -> Costs:
    with tally_database(server, template) as url:
        grow(url, 0, FEW - 1)
        few = measured(url)
        grow(url, FEW, many - 1)
        return {name: [few[name], cost] for name, cost in measured(url).items()}


@pytest.mark.full
@pytest.mark.parametrize("many", [MANY, pytest.param(A_MILLION, marks=pytest.mark.long)])
def test_a_page_of_any_list_touches_as_few_buffers_among_many_runs(
    postgres_server: ServerAdmin, template: str, many: int
) -> None:
    costs = compared(postgres_server, template, many)

    worse = {name: cost for name, cost in costs.items() if cost[1] > max(cost[0] * MOST_GROWTH, cost[0] + 2)}
    more = {name: costs[name] for name, most in MOST_MORE.items() if costs[name][1] - costs[name][0] > most}
    assert (worse, more) == ({}, {})


def test_every_list_of_the_api_is_measured() -> None:
    asked = {statement.text for _, statement, _ in questions(new_id(), new_id())}
    lists = [name for name in dir(sql) if name.startswith("list_")]

    assert [name for name in lists if not any(_made_by(getattr(sql, name), text) for text in asked)] == []


def _made_by(make: Any, text: str) -> bool:
    names = list(inspect.signature(make.__wrapped__).parameters)
    choices = itertools.product(*([frozenset()] if name == "filters" else [False, True] for name in names))
    return any(
        make(*([c["filters"]] if "filters" in c else []), **{k: v for k, v in c.items() if k != "filters"}).text == text
        for c in (dict(zip(names, choice, strict=True)) for choice in choices)
    )
