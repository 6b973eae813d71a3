"""Guards the walls between tenants: the catalog says that they stand, and rows show that they hold."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from pg8000.exceptions import DatabaseError

from shared.kernel import db, sql
from shared.kernel import run as runs
from shared.kernel.clock import new_id
from shared.kernel.errors import NotFound
from shared.kernel.model import (
    LANE_TRANSITIONS,
    RUN_TRANSITIONS,
    Effect,
    Ending,
    LaneChange,
    LaneStatus,
    Problem,
    RunStatus,
    Statement,
    StepOutcome,
)
from shared.kernel.ports import Ports, Tx
from shared.kernel.store import PgStore
from tests.support.house import ALICE, BOB, House

# The same list as in the migrations: here the worker finds rows of all tenants, elsewhere only of its turn's.
KERNEL_TABLES = ["gate", "hearing", "history", "lane", "pulse", "remote_call", "repair", "run", "signal", "step"]
# A take chooses between tenants. tests/integration/test_pull.py fills them.
PULL_TABLES = ["offer", "pull_line", "pull_tenant"]
# The sweep prunes what was answered by its age, of all tenants: it may delete there, and nothing else.
PRUNED_TABLES = ["answered"]
# And these, which it also writes, as the tenant whose account it is or for all who share one.
PACED_TABLES = ["pace_decision"]
# The tick finds what is due, and the dispatcher who listens, of all tenants. tests/flaws/test_trigger_flaws.py fills them.
TRIGGER_TABLES = ["job_triggers", "trigger_firings"]
# Workers that have a database work for all tenants and are nobody's; tests/api/test_jobs.py has those of a tenant.
WORKER_TABLES = ["job_workers"]
# Here the API sees, beside the tenant, only the runs of one person if that person sees no others.
OWN_RUN_TABLES = {
    "run", "lane", "step", "history", "remote_call", "pulse", "raw_item", "diamond", "source_raw", "source_quarantine",
    "source_mark", "openalex_works",
}  # fmt: skip
ROLES = ("baton_owner", "baton_worker", "baton_api", "baton_people")

TENANT_TABLES = """
select c.relname as name, c.relrowsecurity as enabled, c.relforcerowsecurity as forced
from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant_id'
where c.relkind in ('r', 'p') and c.relnamespace = 'public'::regnamespace order by 1
"""
POLICIES = """
select tablename as table, policyname as name, roles::text[] as roles, cmd, qual, with_check, permissive
from pg_policies where schemaname = 'public'
"""


def policies(house: House, role: str) -> list[Any]:
    return [policy for policy in house.sql(POLICIES) if role in policy.roles or "public" in policy.roles]


@contextmanager
def entered(house: House, role: str, tenant: UUID | None) -> Iterator[sa.Connection]:
    """A transaction of a role, with a tenant or without."""
    with house.engine(role).begin() as connection:
        if tenant is not None:
            db.set_tenant(connection, tenant)
        yield connection


def count(house: House, role: str, tenant: UUID | None, table: str) -> int:
    with entered(house, role, tenant) as connection:
        return int(connection.execute(sa.text(f"select count(*) from {table}")).scalar_one())


# The catalog.


def test_every_table_with_a_tenant_has_forced_row_level_security(house: House) -> None:
    tables = house.sql(TENANT_TABLES)

    assert {table.name for table in tables} >= {*KERNEL_TABLES, "tally"}
    assert [table.name for table in tables if not (table.enabled and table.forced)] == []


@pytest.mark.parametrize("role", ["baton_api", "baton_worker"])
def test_every_table_with_a_tenant_has_a_policy_for_each_role(house: House, role: str) -> None:
    tables = {table.name for table in house.sql(TENANT_TABLES)}

    assert tables - {policy.table for policy in policies(house, role)} == set()


def test_the_worker_finds_rows_of_all_tenants_in_the_kernel_tables_and_nowhere_else(house: House) -> None:
    unrestricted = {p.table for p in policies(house, "baton_worker") if "true" in (p.qual, p.with_check)}

    assert sorted(unrestricted) == sorted(
        [*KERNEL_TABLES, *PULL_TABLES, *PRUNED_TABLES, *PACED_TABLES, *TRIGGER_TABLES, *WORKER_TABLES]
    )


def test_the_worker_only_prunes_what_was_answered(house: House) -> None:
    rights = house.sql("""
        select table_name as table, privilege_type as what from information_schema.role_table_grants
        where grantee = 'baton_worker' and table_name = any(:tables)""", tables=PRUNED_TABLES)  # fmt: skip

    assert {grant.what for grant in rights} == {"SELECT", "DELETE"}


def test_every_policy_of_the_api_names_the_tenant(house: House) -> None:
    for policy in policies(house, "baton_api"):
        if policy.permissive == "RESTRICTIVE":  # it only takes away
            continue
        for condition in filter(None, (policy.qual, policy.with_check)):
            # A tenant is its own row.
            assert ("id = " if policy.table == "tenant" else "tenant_id = ") in condition, policy
            assert "NULLIF(current_setting('app.tenant'::text, true), ''::text)" in condition, policy
            of_all = {("gate", "SELECT"), ("job_workers", "SELECT")}  # rows of no tenant are seen by each
            may_say_or = (policy.table, policy.cmd) in of_all or policy.table in OWN_RUN_TABLES
            assert (" OR " not in condition) or may_say_or, policy


def test_an_owner_narrows_what_the_tenant_sees_and_never_widens_it(house: House) -> None:
    """The condition is `tenant and (nobody in particular or his own)`: the tenant stands outside the `or`."""
    for policy in policies(house, "baton_api"):
        if policy.table in OWN_RUN_TABLES:
            for condition in (policy.qual, policy.with_check):
                tenant, _, rest = condition.partition(" AND ")
                assert "app.tenant" in tenant, policy
                assert " OR " not in tenant, policy
                assert "app.owner" in rest or "run_is_here" in rest, policy  # which asks for the owner itself


def test_no_role_of_the_product_may_look_over_the_walls(house: House) -> None:
    rows = house.sql("select * from pg_roles where rolname = any(:roles)", roles=list(ROLES))

    assert {row.rolname for row in rows} == set(ROLES)
    assert [row.rolname for row in rows if row.rolsuper or row.rolbypassrls or row.rolcreaterole] == []


def test_only_the_owner_owns_anything(house: House) -> None:
    owned = house.sql("""
        select relname as name, pg_get_userbyid(relowner) as owner from pg_class where relnamespace = 'public'::regnamespace
        union all
        select proname, pg_get_userbyid(proowner) from pg_proc where pronamespace = 'public'::regnamespace
    """)

    assert [row.name for row in owned if row.owner in {"baton_worker", "baton_api", "baton_people"}] == []
    assert {row.owner for row in owned if row.name in KERNEL_TABLES} == {"baton_owner"}


def test_no_role_is_a_member_of_another(house: House) -> None:
    rows = house.sql("""
        select pg_get_userbyid(member) as member from pg_auth_members
        where pg_get_userbyid(member) = any(:roles)""", roles=list(ROLES))  # fmt: skip

    assert rows == []


def test_the_api_may_write_only_what_its_actions_need(house: House) -> None:
    grants = house.sql("""
        select table_name as table, privilege_type as what from information_schema.role_table_grants
        where grantee = 'baton_api' and table_schema = 'public' and privilege_type <> 'SELECT'""")  # fmt: skip

    assert {(grant.table, grant.what) for grant in grants} == {
        ("run", "INSERT"), ("run", "UPDATE"), ("lane", "INSERT"), ("lane", "UPDATE"),
        ("history", "INSERT"), ("signal", "INSERT"),
        # An admin moves people (a right on role and name: nobody accepts for them), makes tokens (and revokes them: a right
        # on that one column), keeps connections. Tokens that ended long ago give way to new ones; a restrictive policy says
        # which.
        ("member", "INSERT"), ("member", "DELETE"), ("machine_token", "INSERT"), ("machine_token", "DELETE"),
        ("connection", "INSERT"), ("connection", "UPDATE"), ("connection", "DELETE"),
        # What was done is added and never changed; what was answered is kept for whoever asks again.
        ("audit", "INSERT"), ("answered", "INSERT"), ("answered", "UPDATE"),
        # A known cause of failures is muted for a while.
        ("failure_mute", "INSERT"), ("failure_mute", "UPDATE"), ("failure_mute", "DELETE"),
        # A gate of the tenant is opened or closed by hand.
        ("gate", "INSERT"), ("gate", "UPDATE"),
        # An upload is issued and pinned, its job is made with its run; rows are opened again, a job is promoted or deleted.
        ("files", "INSERT"), ("files", "UPDATE"), ("file_jobs", "INSERT"), ("file_jobs", "UPDATE"), ("job_items", "UPDATE"),
        # A query's own row is made with its run, and a run that is settled here gives its slot back.
        ("query_run", "INSERT"), ("query_run", "UPDATE"), ("query_slot", "DELETE"),
        # An admin makes triggers; one that is run by hand, or by an event that came in here, notes what it did.
        ("job_triggers", "INSERT"), ("job_triggers", "UPDATE"), ("trigger_firings", "INSERT"),
        # Searches are saved here; their state is made, switched off and on, and closed with a cycle that is settled here.
        ("saved_search", "INSERT"), ("saved_search", "UPDATE"), ("saved_search", "DELETE"), ("query_state", "INSERT"),
        ("query_state", "UPDATE"), ("search_backfill", "INSERT"), ("search_quarantine", "UPDATE"),
        ("search_cycle", "INSERT"), ("search_cycle", "UPDATE"), ("ingestion_runs", "UPDATE"),
        ("search_sheet", "INSERT"), ("search_sheet", "UPDATE"), ("sheet_night", "INSERT"), ("sheet_night", "UPDATE"),
        ("folder", "INSERT"), ("folder", "UPDATE"), ("row_exports", "INSERT"), ("row_fixes", "INSERT"),
        ("company_feedback", "INSERT"), ("company_feedback", "UPDATE"), ("company_feedback", "DELETE"),
        # A worker without a database commits its attempts through the API, as its tenant; and is listed.
        ("step", "INSERT"), ("job_attempts", "INSERT"), ("job_attempts", "UPDATE"),
        ("job_workers", "DELETE"), ("job_workers", "INSERT"), ("job_workers", "UPDATE"),
        # Without AWS, batons travel through a table.
        ("message", "INSERT"),
    }  # fmt: skip


def test_the_api_cannot_read_the_hash_of_a_token_nor_change_whose_it_is(house: House) -> None:
    def may(what: str) -> set[str]:
        rows = house.sql("""
            select a.attname as name from pg_attribute a
            where a.attrelid = 'machine_token'::regclass and a.attnum > 0
              and has_column_privilege('baton_api', a.attrelid, a.attnum, :what)""", what=what)  # fmt: skip
        return {row.name for row in rows}

    assert "hash" not in may("SELECT")
    assert may("UPDATE") == {"revoked_at"}


@pytest.mark.parametrize("role", ["baton_api", "baton_worker"])
@pytest.mark.parametrize("table", ["super_admin", "signing_key"])
def test_no_role_reads_what_only_functions_of_the_owner_need(house: House, role: str, table: str) -> None:
    assert not house.value("select has_any_column_privilege(:role, :table, 'SELECT')", role=role, table=table)


def test_functions_that_run_as_the_owner_are_these(house: House) -> None:
    """Each looks over the walls: the API alone may call it, and it tells one person's or one token's own things.

    `room_for_a_run` only counts, and only for the transaction's own tenant. `move_shared_gate` writes a row of all tenants, and
    `everywhere` counts of all tenants: they ask themselves whether a super admin asks. The sweep's `forget_steps` tells
    nobody anything, and the worker may delete steps anyway. `add_person` is not the API's at all: a function of its own adds
    the first person of a tenant. `put_job_definition`, `put_job_limit` and `jobs_everywhere` ask as `move_shared_gate` does;
    `pull_class_full` says yes or no. `take_own_offers` takes jobs of the transaction's own tenant alone. `offer_lane` and `offer_lanes` are
    triggers': they offer the lanes that were written, and nobody can call them. Nor `keep_for_exports`, a trigger that keeps rows as
    they were for their own tenant's exports. `pending_of_all_tenants` and `workers_everywhere` ask whether a super admin asks.
    `searches_without_next` and `searches_not_fresh` are the tick's: they tell whose turn it is, and how many.
    """
    rows = house.sql("""
        select proname as name, has_function_privilege('public', oid, 'execute') as everybody,
               has_function_privilege('baton_worker', oid, 'execute') as worker,
               has_function_privilege('baton_api', oid, 'execute') as api,
               has_function_privilege('baton_people', oid, 'execute') as people
        from pg_proc where prosecdef and pronamespace = 'public'::regnamespace""")  # fmt: skip

    assert {row.name for row in rows} == {
        "memberships", "membership", "use_token", "cursor_key", "room_for_a_run", "move_shared_gate", "everywhere",
        "forget_steps", "add_person", "offer_lane", "offer_lanes", "put_job_definition", "jobs_everywhere", "pull_class_full",
        "take_own_offers", "invitations", "answer_invitation", "keep_for_exports", "pending_of_all_tenants",
        "workers_everywhere", "searches_without_next", "searches_not_fresh", "put_job_limit",
    }  # fmt: skip
    assert [row.name for row in rows if row.everybody] == []
    assert sorted(row.name for row in rows if row.worker) == [
        "forget_steps",
        "room_for_a_run",
        "searches_not_fresh",
        "searches_without_next",
    ]
    assert [row.name for row in rows if row.people] == ["add_person"]
    assert sorted(row.name for row in rows if not row.api) == [
        "add_person",
        "forget_steps",
        "keep_for_exports",
        "offer_lane",
        "offer_lanes",
        "searches_not_fresh",
        "searches_without_next",
    ]


def test_functions_that_run_as_the_owner_look_at_temporary_tables_last(house: House) -> None:
    found = house.sql("""
        select p.oid::regprocedure::text as name from pg_proc p
        where p.prosecdef and p.pronamespace = 'public'::regnamespace
          and not exists (select from unnest(p.proconfig) c where c like 'search_path=%, pg_temp')""")

    assert [row.name for row in found] == []


def test_a_table_of_the_session_is_not_taken_for_one_of_ours(house: House) -> None:
    """Whoever gets the API to run his own SQL still is only its role: nothing of his is run by the owner."""
    with entered(house, "baton_api", ALICE) as connection:
        for statement in (
            "create temp table loot (who text)",
            "grant all on loot to public",
            """create function pg_temp.mine() returns uuid language plpgsql as
               $$ begin insert into pg_temp.loot values (current_user); return gen_random_uuid(); end $$""",
            "create temp view pull_queue as select 'q' as name, pg_temp.mine() as turn",
            "grant select on pg_temp.pull_queue to public",
            "select * from take_own_offers('q', 1, gen_random_uuid(), interval '60 s', 'w')",
        ):  # fmt: skip
            connection.exec_driver_sql(statement)
        assert connection.exec_driver_sql("select who from pg_temp.loot").all() == []


@pytest.mark.parametrize("role", ["baton_api", "baton_worker"])
def test_nobody_reaches_the_leaves_of_the_ledger_past_its_policies(house: House, role: str) -> None:
    (leaf,) = house.sql(
        "select inhrelid::regclass::text as name from pg_inherits where inhparent = 'step'::regclass limit 1"
    )
    with pytest.raises(sa.exc.DatabaseError) as caught, house.engine(role).connect() as connection:
        connection.exec_driver_sql(f"select from {leaf.name}")

    assert db.sqlstate(caught.value) == "42501"
    assert not house.value("""
        select bool_or(has_table_privilege(:role, inhrelid, 'select, insert, update, delete, truncate'))
        from pg_inherits where inhparent = 'step'::regclass""", role=role)  # fmt: skip


@pytest.mark.parametrize("role", ["baton_api", "baton_worker", "baton_people"])
def test_a_role_gives_up_instead_of_waiting_for_ever(house: House, role: str) -> None:
    settings = house.value("select rolconfig from pg_roles where rolname = :role", role=role)

    names = {setting.split("=")[0] for setting in settings}
    assert names >= {"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"}


# The rows.


@pytest.fixture
def hers(house: House) -> UUID:
    """A run of Alice with a row in every table of hers."""
    run_id = house.start(ALICE, target=3, assets=["l0"])
    house.take_turn(run_id)
    lane_id = house.lane(run_id).id
    house.sql("insert into gate (tenant_id, key, state, until) values (:t, 'api', 'closed', now())", t=ALICE)
    house.sql("insert into repair (lane_id, tenant_id, why) values (:id, :t, 'unsent')", id=lane_id, t=ALICE)
    house.sql("insert into signal (tenant_id, name, payload) values (:t, 'x', '{}')", t=ALICE)
    house.sql(
        "insert into hearing (signal_id, listener, tenant_id, at, due_at) values (1, 'x', :t, now(), now())", t=ALICE
    )
    house.store.roll_up(60)
    return run_id


@pytest.mark.parametrize("table", [*KERNEL_TABLES, "tally"])
def test_the_api_sees_its_tenants_rows_and_no_others(house: House, hers: UUID, table: str) -> None:
    seen = [count(house, "baton_api", tenant, table) for tenant in (ALICE, BOB, None)]

    assert seen[0] > 0
    assert seen[1:] == [0, 0]


def test_the_api_sees_a_shared_gate_and_cannot_write_it(house: House, hers: UUID) -> None:
    house.sql("insert into gate (tenant_id, key, state, until) values (null, 'shared', 'open', now())")

    assert [count(house, "baton_api", tenant, "gate") for tenant in (ALICE, BOB, None)] == [2, 1, 1]


@pytest.mark.parametrize("tenant", [None, BOB], ids=["no tenant", "another tenant"])
@pytest.mark.parametrize(
    "statement",
    [
        "insert into run (id, tenant_id, kind, status, check_at) values (:id, :hers, 'x', 'queued', now())",
        """insert into lane (id, run_id, tenant_id, kind, key, holds_run, cursor, next_due_at, check_at, max_steps)
           values (:id, :id, :hers, 'x', 'k', true, '{}', now(), now(), 1)""",
        "insert into history (run_id, n, tenant_id, epoch, type) values (:id, 1, :hers, 1, 'x')",
        "insert into signal (tenant_id, name, payload) select :hers, 'x', '{}' where cast(:id as uuid) is not null",
    ],
    ids=["run", "lane", "history", "signal"],
)
def test_the_api_inserts_nothing_for_a_tenant_that_is_not_set(
    house: House, tenant: UUID | None, statement: str
) -> None:
    with pytest.raises(sa.exc.DatabaseError) as refused, entered(house, "baton_api", tenant) as connection:
        connection.execute(sa.text(statement), {"id": new_id(), "hers": ALICE})

    assert db.sqlstate(refused.value) == "42501"


@pytest.mark.parametrize("tenant", [None, BOB], ids=["no tenant", "another tenant"])
@pytest.mark.parametrize("table", ["run", "lane"])
def test_the_api_updates_nothing_of_a_tenant_that_is_not_set(
    house: House, hers: UUID, tenant: UUID | None, table: str
) -> None:
    with entered(house, "baton_api", tenant) as connection:
        assert connection.execute(sa.text(f"update {table} set epoch = 99 where true")).rowcount == 0


def test_the_api_cannot_give_a_row_to_another_tenant(house: House, hers: UUID) -> None:
    with pytest.raises(sa.exc.DatabaseError) as refused, entered(house, "baton_api", ALICE) as connection:
        connection.execute(sa.text("update run set tenant_id = :his"), {"his": BOB})

    assert db.sqlstate(refused.value) == "42501"


def test_a_connection_that_served_a_tenant_has_none_afterwards(house: House, hers: UUID) -> None:
    engine = house.engine("baton_api")
    with engine.begin() as connection:
        db.set_tenant(connection, ALICE)
        assert connection.execute(sa.text("select count(*) from run")).scalar_one() == 1

    with engine.begin() as connection:
        assert connection.execute(sa.text("select current_setting('app.tenant', true)")).scalar_one() == ""
        assert connection.execute(sa.text("select count(*) from run")).scalar_one() == 0


# The worker.


def test_the_worker_bound_to_one_tenant_writes_no_row_of_another(house: House) -> None:
    run_id = house.start(ALICE)
    for_bob = Statement(
        "tally.steal",
        "insert into tally (tenant_id, run_id, lane, n) select cast(:his as uuid), run_id, key, 0 from turn",
    )
    change = LaneChange(
        status=LaneStatus.ACTIVE, outcome=StepOutcome.MOVED, attempts=0, effects=[Effect(for_bob, {"his": BOB})]
    )

    with pytest.raises(DatabaseError) as refused:
        house.store.commit_turn(house.claim(run_id), change, 0)

    assert db.sqlstate(refused.value) == "42501"
    assert house.lane(run_id).seq == 0


@pytest.mark.parametrize(("tenant", "seen"), [(ALICE, 1), (BOB, 0), (None, 0)])
def test_the_worker_sees_a_kinds_rows_of_its_turns_tenant_only(
    house: House, hers: UUID, tenant: UUID | None, seen: int
) -> None:
    assert count(house, "baton_worker", tenant, "tally") == seen


# Operators.

Act = Callable[[House, Ports, UUID, UUID, UUID], None]
ACTIONS: dict[str, Act] = {
    "cancel": lambda house, ports, tenant, run, _: runs.cancel_run(ports, house.kind, tenant, run),
    "pause": lambda _, ports, tenant, run, __: runs.pause_run(ports, tenant, run),
    "resume": lambda _, ports, tenant, run, __: runs.resume_run(ports, tenant, run),
    "retry": lambda house, ports, tenant, run, _: runs.retry_run(ports, house.kind, tenant, run),
    "wake": lambda _, ports, tenant, __, lane: runs.wake_lane(ports, tenant, lane),
    "restart": lambda _, ports, tenant, __, lane: runs.restart_lane(ports, tenant, lane),
}


def in_the_state_for(house: House, action: str) -> UUID:
    run_id = house.start(ALICE, target=3)
    if action == "resume":
        runs.pause_run(house.ports, ALICE, run_id)
    if action == "retry":
        runs.cancel_run(house.ports, house.kind, ALICE, run_id)
        house.take_turn(run_id)
    return run_id


def test_the_api_starts_a_run_for_its_tenant_that_a_worker_brings_to_its_end(house: House) -> None:
    run_id = runs.start_run(house.api_ports(), house.kind, ALICE, {"lanes": 1, "target": 1})

    assert house.baton(run_id).to_json() in house.waiting()
    assert house.take_turn(run_id) is StepOutcome.DONE
    assert (house.run(run_id).tenant_id, house.endings(run_id)) == (ALICE, ["succeeded"])


def test_the_api_ends_a_run_whose_lanes_have_all_ended_when_it_is_canceled(house: House) -> None:
    """The whole ending as the api: the line, the signal and the lane that cleans up."""
    run_id = house.start(ALICE, assets=["l0"])
    house.set_lane(run_id, "l0", "status = 'failed'")

    runs.cancel_run(house.api_ports(), house.kind, ALICE, run_id)

    assert house.endings(run_id) == ["canceled"]
    assert house.keys(run_id) == ["cleanup/1", "l0"]


@pytest.mark.parametrize("action", ACTIONS)
def test_an_operator_acts_on_a_run_of_the_tenant(house: House, action: str) -> None:
    run_id = in_the_state_for(house, action)
    before = house.history(run_id)

    ACTIONS[action](house, house.api_ports(), ALICE, run_id, house.lane(run_id).id)

    assert len(house.history(run_id)) == len(before) + 1


@pytest.mark.parametrize("action", ACTIONS)
def test_another_tenants_run_answers_exactly_like_an_unknown_one(house: House, action: str) -> None:
    run_id = in_the_state_for(house, action)
    before = (house.run(run_id), house.lane(run_id), house.history(run_id))

    def answer(run: UUID, lane: UUID) -> tuple[type[Exception], str]:
        with pytest.raises(NotFound) as refused:
            ACTIONS[action](house, house.api_ports(), BOB, run, lane)
        return refused.type, str(refused.value)

    assert answer(run_id, house.lane(run_id).id) == answer(new_id(), new_id())
    assert (house.run(run_id), house.lane(run_id), house.history(run_id)) == before


@pytest.mark.parametrize("action", ACTIONS)
def test_the_wall_holds_though_the_code_would_name_the_wrong_tenant(house: House, action: str) -> None:
    """The caller's filter says Alice while the connection is bound to Bob: the policies alone must hold."""
    run_id = in_the_state_for(house, action)

    class BoundToBob(PgStore):
        @contextmanager
        def begin(self, tenant_id: UUID | None) -> Iterator[Any]:
            with super().begin(BOB) as tx:
                yield tx

    bound = house.ports_of(BoundToBob(house.engine("baton_api")))
    with pytest.raises(NotFound):
        ACTIONS[action](house, bound, ALICE, run_id, house.lane(run_id).id)


@pytest.mark.parametrize("action", ["cancel", "resume", "retry", "wake", "restart"])
def test_a_baton_that_an_operator_sent_is_noted_as_sent(house: House, action: str) -> None:
    """Else the tick finds it unsent a minute later and counts a repair where nothing was broken."""
    run_id = in_the_state_for(house, action)

    ACTIONS[action](house, house.api_ports(), ALICE, run_id, house.lane(run_id).id)

    assert house.baton(run_id).to_json() in house.waiting()
    assert house.lane(run_id).sent_at is not None


# Enums, CHECKs and transitions.


def allowed_by_check(house: House, table: str, column: str) -> set[str]:
    (row,) = house.sql(
        "select pg_get_constraintdef(oid) as text from pg_constraint where conname = :name",
        name=f"{table}_{column}_check",
    )
    return set(re.findall(r"'([a-z_]+)'", row.text))


def test_the_states_of_runs_and_lanes_are_the_same_in_code_and_in_the_database(house: House) -> None:
    assert allowed_by_check(house, "run", "status") == {str(status) for status in RunStatus}
    assert allowed_by_check(house, "lane", "status") == {str(status) for status in LaneStatus}


def test_the_states_of_a_gate_are_those_that_the_statements_write(house: House) -> None:
    statements = " ".join(str(s) for s in (sql.PASS_GATES, sql.CLOSE_GATE, sql.OPEN_GATES, sql.RECLOSE_GATES))
    written = set(re.findall(r"state (?:=|<>) '([a-z]+)'", statements)) | {"closed"}

    assert allowed_by_check(house, "gate", "state") == written


def put_run(house: House, run_id: UUID, status: RunStatus) -> None:
    house.sql(
        "update run set status = :status, finished_at = case when :ended then now() end where id = :id",
        status=status, ended=status.ended, id=run_id,
    )  # fmt: skip


def moves_of_run(house: House, tx: Tx, run_id: UUID) -> Iterator[Callable[[], object]]:
    run = tx.lock_run(run_id, ALICE)
    assert run is not None
    yield lambda: tx.mark_running(run)
    for status in (RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELED):
        ending = Ending(status)
        yield lambda ending=ending: tx.end_run(run, ending)  # type: ignore[misc]
    yield lambda: tx.request_cancel(run)
    yield lambda: tx.pause_run(run)
    yield lambda: tx.look_at_run_later(run)


@pytest.mark.parametrize("status", RunStatus)
def test_no_statement_moves_a_run_but_along_its_transitions(house: House, status: RunStatus) -> None:
    run_id = house.start()
    reached = set()
    for number in itertools.count():
        put_run(house, run_id, status)
        house.sql("update run set paused_at = null, cancel_requested_at = null")
        with house.store.begin(ALICE) as tx:
            move = next(itertools.islice(moves_of_run(house, tx, run_id), number, None), None)
            if move is None:
                break
            move()
        reached.add(RunStatus(house.run(run_id).status))

    assert reached - {status} == RUN_TRANSITIONS[status]


@pytest.mark.parametrize("status", LaneStatus)
def test_no_statement_moves_a_lane_but_along_its_transitions(house: House, status: LaneStatus) -> None:
    run_id = house.start()
    reached = set()
    for outcome in LaneStatus:
        turn = claimed(house, run_id)
        put_lane(house, run_id, status)
        house.store.commit_turn(turn, LaneChange(status=outcome, outcome=StepOutcome.MOVED, attempts=0), 0)
        reached.add(LaneStatus(house.lane(run_id).status))
    for move in ("fail_open_lanes", "cancel_lanes", "resume_lanes", "wake_lane"):
        claimed(house, run_id)
        put_lane(house, run_id, status)
        with house.store.begin(ALICE) as tx:
            arguments: dict[str, tuple[Any, ...]] = {
                "fail_open_lanes": (run_id, Problem("x", "y")), "cancel_lanes": (run_id,),
                "resume_lanes": (run_id, 1.0), "wake_lane": (house.lane(run_id).id,),
            }  # fmt: skip
            getattr(tx, move)(*arguments[move])
        reached.add(LaneStatus(house.lane(run_id).status))

    assert reached - {status} == LANE_TRANSITIONS[status]


def claimed(house: House, run_id: UUID) -> Any:
    house.set_lane(run_id, "l0", "status = 'active', claim_token = null, lease_until = null, next_due_at = now()")
    return house.claim(run_id)


def put_lane(house: House, run_id: UUID, status: LaneStatus) -> None:
    token = "" if status is LaneStatus.ACTIVE else ", claim_token = null, lease_until = null"
    house.set_lane(run_id, "l0", f"status = '{status}'{token}")


@pytest.mark.parametrize("ended", [status for status in RunStatus if status.ended])
def test_only_a_retry_leads_out_of_an_ended_run_and_into_the_next_epoch(house: House, ended: RunStatus) -> None:
    run_id = house.start(lanes=2)
    put_run(house, run_id, ended)
    house.set_lane(run_id, "l0", "status = 'failed'")

    runs.retry_run(house.ports, house.kind, ALICE, run_id)

    run, lane = house.run(run_id), house.lane(run_id)
    assert (run.status, run.epoch, lane.status, lane.epoch) == ("running", 2, "active", 2)


@pytest.mark.parametrize(
    "broken",
    [
        "update run set finished_at = now()",
        "update run set status = 'failed'",
        "update run set paused_at = now(), cancel_requested_at = now()",
        "update lane set claim_token = gen_random_uuid()",
        "update lane set lease_until = now()",
        "update lane set status = 'done', claim_token = gen_random_uuid(), lease_until = now()",
    ],
)
def test_the_database_refuses_rows_that_contradict_themselves(house: House, broken: str) -> None:
    house.start()

    with pytest.raises(sa.exc.DatabaseError) as refused:
        house.sql(broken)
    assert db.sqlstate(refused.value) == "23514"


# What the API may write, and into whose runs.


@contextmanager
def member_of(house: House, tenant: UUID, owner: str | None = None) -> Iterator[sa.Connection]:
    with house.engine("baton_api").begin() as connection:
        connection.execute(sa.text("select set_config('app.tenant', :t, true)"), {"t": str(tenant)})
        if owner is not None:
            connection.execute(sa.text("select set_config('app.owner', :o, true)"), {"o": owner})
        yield connection


LANE_INTO = sa.text("""
insert into lane (id, run_id, tenant_id, kind, key, holds_run, cursor, next_due_at, check_at, max_steps)
values (:id, :run_id, :tenant, 'tally', 'forged', true, '{}', now(), now(), 10)""")
LINE_INTO = sa.text("""
insert into history (run_id, n, tenant_id, epoch, type, data) values (:run_id, 999, :tenant, 1, 'note', '{}')""")


@pytest.mark.parametrize("statement", [LANE_INTO, LINE_INTO], ids=["lane", "history line"])
def test_nothing_is_inserted_into_the_run_of_another_tenant(house: House, hers: UUID, statement: sa.TextClause) -> None:
    """The row says Bob's own tenant, as the wall asks; the run that it names is Alice's."""
    with pytest.raises(sa.exc.DatabaseError) as refused, member_of(house, BOB) as connection:
        connection.execute(statement, {"id": new_id(), "run_id": hers, "tenant": BOB})

    assert db.sqlstate(refused.value) == "42501"


def test_a_lane_is_not_moved_into_the_run_of_another_tenant(house: House, hers: UUID) -> None:
    his = house.start(BOB, target=3)

    with pytest.raises(sa.exc.DatabaseError) as refused, member_of(house, BOB) as connection:
        connection.execute(
            sa.text("update lane set run_id = :hers, key = 'forged' where run_id = :his"), {"hers": hers, "his": his}
        )

    assert db.sqlstate(refused.value) == "42501"


ROW_OF = {
    "raw_item": """insert into raw_item (run_id, external_id, tenant_id, source, offer_id, price_cents, partition, page, hash, payload, seen_at)
                   values (:run_id, 'stone', :tenant, 'nivoda', 'o', 1, 'p', 1, 'h', '{}', now())""",
    "diamond": """insert into diamond (tenant_id, source, external_id, offer_id, price_cents, rest, source_run, said_by, said_at)
                  values (:tenant, 'nivoda', 'stone', 'o', 1, '{}', :run_id, :run_id, now())""",
    "source_quarantine": """insert into source_quarantine (tenant_id, source, connection, resource, key, run_id, partition, page, why, payload, at)
                            values (:tenant, 'openalex', '', 'works', 'k', :run_id, 'p', 1, 'w', '{}', now())""",
    "openalex_works": """insert into openalex_works (tenant_id, connection, source_key, rest, hash, run_id, partition, page, said_by, said_at)
                         values (:tenant, '', 'k', '{}', 'h', :run_id, 'p', 1, :run_id, now())""",
}


@pytest.mark.parametrize("table", ROW_OF)
def test_what_a_run_fetched_is_not_shown_to_a_member_whose_run_it_is_not(house: House, table: str) -> None:
    run_id = house.start(ALICE, target=3)
    house.sql("update run set created_by = 'user:ann' where id = :id", id=run_id)
    house.sql(ROW_OF[table], run_id=run_id, tenant=ALICE)
    of_run = "source_run" if table == "diamond" else "run_id"
    counted = sa.text(f"select count(*) from {table} where {of_run} = :run_id")

    seen = {}
    for owner in (None, "user:ann", "user:max"):
        with member_of(house, ALICE, owner) as connection:
            seen[owner] = connection.scalar(counted, {"run_id": run_id})

    assert seen == {None: 1, "user:ann": 1, "user:max": 0}


@pytest.mark.parametrize("table", ["source_raw", "source_mark"])
def test_the_api_cannot_read_what_only_steps_need(house: House, table: str) -> None:
    with pytest.raises(sa.exc.DatabaseError) as refused:
        count(house, "baton_api", ALICE, table)

    assert db.sqlstate(refused.value) == "42501"


def test_an_event_of_one_tenant_does_not_swallow_that_of_another(house: House) -> None:
    event_id = new_id()

    fresh = [house.ports.store.add_signal_once(event_id, tenant, "hello.world", {}) for tenant in (ALICE, BOB, ALICE)]

    assert fresh == [True, True, False]


def test_only_tokens_that_ended_long_ago_can_be_deleted(house: House) -> None:
    for name, ended in (("old", "now() - interval '91 days'"), ("young", "now() - interval '1 day'"), ("used", "null")):
        house.sql(f"""insert into machine_token (id, tenant_id, name, role, hash, created_by, revoked_at)
                      values (gen_random_uuid(), :t, '{name}', 'viewer', decode(md5('{name}'), 'hex'), 'test', {ended})""", t=ALICE)  # fmt: skip

    with member_of(house, ALICE) as connection:
        connection.execute(sa.text("delete from machine_token"))

    assert {row.name for row in house.sql("select name from machine_token")} == {"young", "used"}
