"""Guards who may do what: every operation of the OpenAPI document, by everybody, on everybody's things.

The same cells hold with the application's own filters taken out: row level security alone keeps tenants and members apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from functions.catalogue import KINDS
from shared.kernel import direct
from shared.kernel.api import sql as statements
from shared.kernel.api.frame import API
from shared.kernel.auth import Role, new_token, token_hash
from shared.kernel.clock import new_id
from tests.kinds.page_ingest.cells import source_rows
from tests.kinds.query_run.cells import queried
from tests.kinds.row_job.cells import with_two_rows
from tests.support.cells import ADMINS, EVERYBODY, READERS, STARTERS, Cells, Named
from tests.support.door import ANONYMOUS, Answer, Door, TenantHouse, Who
from tests.support.subject import brought
from tests.support.vaults import mocked_vault

# What each operation works on, and with.


def paused(door: Door, tenant: TenantHouse, run_id: UUID) -> None:
    assert door.call(tenant.member, "POST", f"/runs/{run_id}/pause", {}).status == 200


def ended(door: Door, tenant: TenantHouse, run_id: UUID) -> None:
    assert door.call(tenant.member, "POST", f"/runs/{run_id}/cancel", {}).status == 200
    door.finish(run_id)


def an_account() -> dict[str, Any]:
    """Of a new name each time: a name is taken once."""
    settings, secret = {"username": "u"}, {"password": "p"}
    return {"provider": "nivoda", "name": f"c-{new_id()}", "settings": settings, "secret": secret}


ANOTHER = {"kind": "tally", "params": {"lanes": 1, "target": 7}}
BULK = {"action": "cancel", "mode": "preview", "reason": "x"}
CELLS: dict[str, Cells] = {
    "get_me": Cells(roles=EVERYBODY),
    "answer_invitation": Cells(roles=EVERYBODY, body=lambda: {"tenant_id": str(new_id()), "accept": True}, ok=404),
    "list_members": Cells(roles=ADMINS),
    "get_member": Cells(roles=ADMINS, target="member"),
    "put_member": Cells(roles=ADMINS, target="member", body={"role": "viewer"}, any_name=True),
    "remove_member": Cells(roles=ADMINS, target="member"),
    "list_tokens": Cells(roles=ADMINS),
    "make_token": Cells(roles=ADMINS, body={"name": "ci", "role": "viewer"}, ok=201),
    "revoke_token": Cells(roles=ADMINS, target="token"),
    "list_audit": Cells(roles=ADMINS),
    "get_now": Cells(roles=READERS),
    "get_system": Cells(roles=ADMINS),
    "list_failures": Cells(roles=READERS),
    "mute_failure": Cells(roles=ADMINS, body={"kind": "tally", "fingerprint": "f", "reason": "x"}),
    "unmute_failure": Cells(roles=ADMINS, body={"kind": "tally", "fingerprint": "f"}),
    "list_kinds": Cells(roles=READERS),
    "list_runs": Cells(roles=READERS),
    "start_run": Cells(roles=STARTERS, body={"kind": "tally", "params": {"lanes": 1, "target": 1}}, ok=201),
    "get_run": Cells(roles=READERS, target="run"),
    "list_lanes": Cells(roles=READERS, target="run", query={"ribbon": 5}),
    "list_steps": Cells(roles=READERS, target="lane"),
    "get_history": Cells(roles=READERS, target="run"),
    "get_why": Cells(roles=READERS, target="run"),
    "stream_events": Cells(roles=READERS, target="run"),
    "cancel": Cells(roles=STARTERS, target="run", body={}),
    "pause": Cells(roles=STARTERS, target="run", body={}),
    "resume": Cells(roles=STARTERS, target="run", body={}, prepare=paused),
    "retry": Cells(roles=STARTERS, target="run", body={}, prepare=ended),
    "wake": Cells(roles=STARTERS, target="lane", body={}),
    "wake_waiting": Cells(roles=STARTERS, target="run", body={}),
    "restart": Cells(roles=STARTERS, target="lane", body={}),
    "act_on_many": Cells(roles=STARTERS, body=BULK),
    "list_gates": Cells(roles=READERS),
    "open_gate": Cells(roles=ADMINS, target="gate", body={"reason": "x"}),
    "close_gate": Cells(roles=ADMINS, target="gate", body={"reason": "x", "for_s": 60}, any_name=True),
    "list_providers": Cells(roles=READERS),
    "list_connections": Cells(roles=READERS),
    "make_connection": Cells(roles=ADMINS, body=an_account, ok=201),
    "get_connection": Cells(roles=READERS, target="connection"),
    "put_connection": Cells(
        roles=ADMINS, target="connection", body=lambda: {"name": f"c-{new_id()}", "settings": {"username": "v"}}
    ),
    "check_connection": Cells(roles=ADMINS, target="connection"),
    "delete_connection": Cells(roles=ADMINS, target="connection"),
    **{name: cells for module in brought("cells") for name, cells in module.CELLS.items()},
}
ONLY_HERE = {name for module in brought("cells") if module.__name__.split(".")[2] not in KINDS for name in module.CELLS}


# The operations, as the document tells them.


@dataclass(frozen=True)
class Operation:
    id: str
    method: str
    path: str
    roles: frozenset[str]
    answers: frozenset[int]
    parameters: frozenset[str]

    def at(self, named: Named) -> str:
        return self.path.removeprefix(API).format(**named)


def read_operations(document: Mapping[str, Any]) -> dict[str, Operation]:
    found = [
        Operation(
            told["operationId"], method.upper(), path, frozenset(told.get("x-baton-roles", ())),
            frozenset(map(int, told["responses"])), frozenset(p["name"] for p in told.get("parameters", ())),
        )
        for path, methods in document["paths"].items()
        for method, told in methods.items()
    ]  # fmt: skip
    assert len({operation.id for operation in found}) == len(found)
    return {operation.id: operation for operation in found}


@pytest.fixture(autouse=True)
def _nobody_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is asked out there refuses at once: no test looks up a host of the real world, or waits for its name."""
    monkeypatch.setenv("BATON_SOURCES_STANDIN", "http://127.0.0.1:9")


@pytest.fixture(scope="module", autouse=True)
def vault() -> Iterator[Any]:
    with mocked_vault() as vault, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENDING_DASHBOARD_ENABLED", "true")
        yield vault


@pytest.fixture(scope="module")
def document(door: Door) -> dict[str, Any]:
    answer: dict[str, Any] = door.ask(door.event(ANONYMOUS, "GET", "/openapi.json")).json()
    return answer


@pytest.fixture(scope="module")
def operations(document: dict[str, Any]) -> dict[str, Operation]:
    return read_operations(document)


def test_every_operation_declares_its_roles_and_has_its_cells(operations: dict[str, Operation]) -> None:
    assert set(operations) == set(CELLS)
    assert {o.id: o.roles for o in operations.values()} == {name: cells.roles for name, cells in CELLS.items()}
    wrong = [o.id for o in operations.values() if ("{" in o.path) != (CELLS[o.id].target is not None)]
    assert wrong == []


def test_the_guide_names_every_path_and_no_other(operations: dict[str, Operation]) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    table = guide.partition("## Operations")[2].partition("\n## ")[0]

    named = set(re.findall(r"`(/[\w/{}-]+)`", table))

    assert named == {each.path.removeprefix(API) for each in operations.values() if each.id not in ONLY_HERE}


def test_every_operation_is_named_summed_up_and_tells_how_it_refuses(document: dict[str, Any]) -> None:
    for path, methods in document["paths"].items():
        for told in methods.values():
            assert not told["summary"].startswith(("GET", "POST", "PUT", "DELETE")), path
            assert told["summary"].endswith("."), path
            assert {"400", "401", "403", "404", "422"} <= set(told["responses"]), path
            assert told["security"] == [{"jwt": []}, {"machine": []}], path


# Everybody.

PEOPLE = ("viewer", "member", "other", "admin", "worker", "super")
MACHINES = tuple(f"machine:{role}" for role in Role)
NOBODIES = ("anonymous", "empty claims", "forged", "expired", "revoked")
STRANGERS = ("stranger", "other tenant's admin")


@dataclass
class Town:
    """Two tenants with the same kinds of things in them."""

    door: Door
    acme: TenantHouse
    globex: TenantHouse

    def actor(self, name: str) -> Who:
        match name.split(":"):
            case ["super"]:
                return self.door.super_admin.choosing(self.acme.id)
            case ["machine", role]:
                return self.acme.machines[Role(role)]
            case ["anonymous"]:
                return ANONYMOUS
            case ["empty claims"]:
                return Who("")
            case ["forged"]:
                return Who(token=new_token())
            case ["expired" | "revoked" as over]:
                return self.over(f"{over}_at" if over == "revoked" else "expires_at")
            case ["stranger"]:
                return Who("stranger")
            case ["other tenant's admin"]:
                return self.globex.admin.choosing(self.acme.id)
            case [person]:
                who: Who = getattr(self.acme, person)
                return who
        raise AssertionError(name)

    def over(self, column: str) -> Who:
        token = new_token()
        self.door.sql(
            f"""insert into machine_token (id, tenant_id, name, role, hash, created_by, {column})
                values (:id, :t, 'over', 'admin', :h, 'test', now() - interval '1 s')""",
            id=new_id(), t=self.acme.id, h=token_hash(token),
        )  # fmt: skip
        return Who(token=token)

    def target(self, cells: Cells, tenant: TenantHouse) -> Named:
        """Something new of a tenant, a run being its member's own, by the names of a path."""
        if cells.make is not None:
            return cells.make(self.door, tenant)
        match cells.target:
            case "run" | "lane":
                run_id = self.door.start(tenant, lanes=2)
                cells.prepare(self.door, tenant, run_id)
                return {"run_id": str(run_id), "lane_id": str(self.door.lane(run_id)["id"]), "row_no": "1"}
            case "token":
                made = self.door.call(tenant.admin, "POST", "/tokens", {"name": "x", "role": "viewer"}).json()
                return {"token_id": made["id"]}
            case "member":
                subject = f"m-{new_id()}"
                assert self.door.call(tenant.admin, "PUT", f"/members/{subject}", {"role": "viewer"}).status == 200
                return {"subject": subject}
            case "gate":
                key = f"g-{new_id()}"
                body = {"reason": "x", "for_s": 60}
                assert self.door.call(tenant.admin, "POST", f"/gates/{key}/close", body).status == 200
                return {"key": key}
            case "connection":
                made = self.door.call(tenant.admin, "POST", "/connections", an_account()).json()
                return {"connection_id": made["id"]}
            case _:
                return {}

    def nothing(self) -> Named:
        """Ids that are nobody's."""
        named = {name: str(new_id()) for name in ("run_id", "lane_id", "token_id", "connection_id")}
        named |= {name: str(new_id()) for cells in CELLS.values() for name in cells.names}
        return {**named, "subject": f"m-{new_id()}", "key": f"g-{new_id()}", "attempt_no": "1", "row_no": "1"}

    def ask(self, operation: Operation, who: Who, named: Named) -> Answer:
        cells = CELLS[operation.id]
        body = cells.body() if callable(cells.body) else cells.body
        answer = self.door.call(who, operation.method, operation.at(named), body, **cells.query)
        assert answer.status in operation.answers, (answer, "is not in the document")
        return answer


@pytest.fixture(scope="module")
def acme_and_globex(door: Door) -> Town:
    return Town(door, door.new_tenant(), door.new_tenant("Globex"))


FILTER = re.compile(r"\b(?:\w+\.)?(?:tenant_id|t\.id) = :tenant_id\b")


@pytest.fixture(params=["with filters", "row level security alone"])
def town(request: pytest.FixtureRequest, acme_and_globex: Town, monkeypatch: pytest.MonkeyPatch) -> Town:
    """With the application's filters, and with each of them replaced by `true` on its way to the driver."""
    real = direct._positional

    @cache
    def without_filters(statement: sa.TextClause) -> tuple[str, tuple[str, ...]]:
        text, found = FILTER.subn("true", statement.text)
        return real(sa.text(text)) if found else real(statement)

    if request.param != "with filters":
        monkeypatch.setattr(direct, "_positional", without_filters)
    return acme_and_globex


def role_of(actor: str) -> str:
    return {"other": "member", "super": "admin"}.get(actor, actor.removeprefix("machine:"))


def sees_what_the_member_made(actor: str) -> bool:
    """A member sees what is his own; whoever is no member sees all of the tenant."""
    return role_of(actor) != "member" or actor == "member"


@pytest.mark.parametrize("operation_id", CELLS)
def test_everybody_of_the_tenant(town: Town, operations: dict[str, Operation], operation_id: str) -> None:
    operation, cells = operations[operation_id], CELLS[operation_id]
    others, unknown = town.target(cells, town.globex), town.nothing()
    own: Named | None = None
    told: list[str] = []
    for actor in (*PEOPLE, *MACHINES):
        own = own or town.target(cells, town.acme)
        hers, theirs, nobodys = (town.ask(operation, town.actor(actor), named) for named in (own, others, unknown))
        if role_of(actor) not in cells.roles and (cells.roles or actor != "super"):
            assert {(a.status, a.code) for a in (hers, theirs, nobodys)} == {(403, "not_allowed")}, actor
            continue
        if cells.target is None or cells.any_name:
            assert {hers.status, theirs.status, nobodys.status} == {cells.ok}, actor
        elif cells.of_all:
            assert (hers.status, theirs.status, nobodys.status) == (cells.ok, cells.ok, 404), actor
        else:
            assert (theirs.status, theirs.body) == (404, nobodys.body), actor
            sees = sees_what_the_member_made(actor) or cells.target not in {"run", "lane", "job"}
            assert (hers.status, hers.body) == ((cells.ok, hers.body) if sees else (404, nobodys.body)), actor
        told.append(hers.body)
        own = own if operation.method == "GET" or hers.status == 404 else None  # what was acted on is used up
    assert_nothing_of(town.globex, town.acme, town.door, "\n".join(told))


def assert_nothing_of(tenant: TenantHouse, asking: TenantHouse, door: Door, told: str) -> None:
    """No id of the tenant is in what was told, nor a name that the asking tenant has not used itself."""
    names = door.sql(
        """select id::text as name from run where tenant_id = :t union all select id::text from lane where tenant_id = :t
           union all select id::text from machine_token where tenant_id = :t
           union all select id::text from connection where tenant_id = :t
           union all (select subject from member where tenant_id = :t union all select key from gate where tenant_id = :t
                      except select split_part(target, ':', 2) from audit where tenant_id = :a)""",
        t=tenant.id, a=asking.id,
    )  # fmt: skip
    assert len(names) > 5
    assert [row["name"] for row in names if row["name"] in told] == []


@pytest.mark.parametrize("operation_id", CELLS)
def test_nobody_of_the_tenant(acme_and_globex: Town, operations: dict[str, Operation], operation_id: str) -> None:
    town, operation, cells = acme_and_globex, operations[operation_id], CELLS[operation_id]
    own, unknown = town.target(cells, town.acme), town.nothing()
    lines = "select count(*) from audit where tenant_id = :t"
    before = town.door.value(lines, t=town.acme.id)
    for actor in (*NOBODIES, *STRANGERS):
        who = town.actor(actor)
        hers, nobodys = (town.ask(operation, who, named) for named in (own, unknown))
        assert (hers.status, hers.body) == (nobodys.status, nobodys.body), actor
        if actor in STRANGERS and operation_id in ("get_me", "answer_invitation"):
            assert str(town.acme.id) not in hers.body, actor
            continue
        expected = {"stranger": (403, "no_tenant"), "other tenant's admin": (403, "not_your_tenant")}
        assert (hers.status, hers.code) == expected.get(actor, (401, "unauthenticated")), actor
    assert town.door.value(lines, t=town.acme.id) == before


@pytest.mark.parametrize("operation_id", [name for name, cells in CELLS.items() if cells.target == "lane"])
def test_another_tenants_lane_in_a_run_of_ones_own(
    town: Town, operations: dict[str, Operation], operation_id: str
) -> None:
    operation, cells = operations[operation_id], CELLS[operation_id]
    own, others = town.target(cells, town.acme), town.target(cells, town.globex)

    theirs = town.ask(operation, town.acme.admin, {**own, "lane_id": others["lane_id"]})
    unknown = town.ask(operation, town.acme.admin, {**own, "lane_id": str(new_id())})
    misplaced = town.ask(operation, town.acme.admin, {**town.target(cells, town.acme), "lane_id": own["lane_id"]})

    assert theirs.status == 404
    assert theirs.body == unknown.body == misplaced.body


# Cursors.

LISTS = (
    "list_members", "list_tokens", "list_audit", "list_runs", "list_lanes", "list_steps", "list_gates", "list_partitions",
    "list_connections", "list_jobs", "list_attempts", "list_query_runs", "list_triggers", "list_firings", "list_events",
    "list_searches", "list_search_runs", "list_quarantine", "list_search_offers", "list_companies", "list_row_items", "list_pending",
    "list_source_partitions", "list_source_rows", "list_source_quarantine",
)  # fmt: skip


def test_every_list_with_a_cursor_is_in_the_matrix(operations: dict[str, Operation]) -> None:
    assert {o.id for o in operations.values() if "cursor" in o.parameters} == set(LISTS)


@pytest.mark.parametrize("operation_id", LISTS)
def test_a_cursor_of_another_tenant_is_like_a_broken_one(
    town: Town, operations: dict[str, Operation], operation_id: str
) -> None:
    operation, cells = operations[operation_id], CELLS[operation_id]

    def first_page(tenant: TenantHouse) -> tuple[Named, str]:
        # Only where they are listed: a tenant may have only so many connections.
        for _ in range(2 if operation_id in ("list_members", "list_gates", "list_connections", "list_audit") else 0):
            town.target(Cells(roles=ADMINS, target="member"), tenant)
            town.target(Cells(roles=ADMINS, target="gate"), tenant)
            town.target(Cells(roles=ADMINS, target="connection"), tenant)
        named = town.target(cells, tenant) or town.target(Cells(roles=READERS, target="run"), tenant)
        town.door.start(tenant)
        for _ in range(2 if operation_id == "list_query_runs" else 0):
            queried(town.door, tenant, town.door.start(tenant))
        if operation_id in ("list_source_rows", "list_source_quarantine"):
            source_rows(town.door, tenant)
        if operation_id == "list_pending":
            with_two_rows(town.door, tenant, town.door.start(tenant))
            mine = f"user:{tenant.admin.subject}"
            town.door.sql(
                "update job_items set user_id = :mine, status = 'PENDING' where tenant_id = :t", mine=mine, t=tenant.id
            )
        if operation_id == "list_steps":
            for seq in range(2):
                town.door.sql(
                    "insert into step (lane_id, epoch, seq, tenant_id, outcome) values (:l, 1, :n, :t, 'moved')",
                    l=UUID(named["lane_id"]), n=seq, t=tenant.id,
                )  # fmt: skip
        page = town.door.call(tenant.admin, operation.method, operation.at(named), **{"limit": 1, **cells.query})
        return named, str(page.json()["next"])

    (own, our_cursor), (_, their_cursor) = first_page(town.acme), first_page(town.globex)

    def second_page(cursor: str, who: Who = town.acme.admin) -> Answer:
        return town.door.call(who, operation.method, operation.at(own), **{"limit": 1, "cursor": cursor, **cells.query})

    assert second_page(our_cursor).status == 200
    body, _, signature = our_cursor.partition(".")
    broken = [f"{body}.{signature[::-1]}", f"{'A' if body[0] != 'A' else 'B'}{body[1:]}.{signature}", body, "..", "é"]
    answers = {(a.status, a.body) for a in map(second_page, [their_cursor, *broken])}
    assert len(answers) == 1
    assert {status for status, _ in answers} == {400}


def test_a_members_cursor_is_his_own(town: Town) -> None:
    for _ in range(2):
        town.door.start(town.acme)
    cursor = town.door.call(town.acme.member, "GET", "/runs", limit=1).json()["next"]

    assert town.door.call(town.acme.member, "GET", "/runs", cursor=cursor).status == 200
    assert town.door.call(town.acme.other, "GET", "/runs", cursor=cursor).code == "bad_cursor"
    assert town.door.call(town.acme.member, "GET", "/runs", cursor=cursor, kind="tally").code == "bad_cursor"


# Ids in bodies.


def test_an_act_on_many_cannot_name_another_tenants_runs(town: Town) -> None:
    run_id = town.door.start(town.globex)
    town.door.sql("update run set label = :l where id = :id", l=str(run_id), id=run_id)
    mine = {**BULK, "filter": {"label": str(run_id)}}
    theirs = town.door.call(town.globex.admin, "POST", "/runs/bulk", mine).json()

    preview = town.door.call(town.acme.admin, "POST", "/runs/bulk", mine).json()
    applied = town.door.call(town.acme.admin, "POST", "/runs/bulk", {**mine, "mode": "apply", "token": theirs["next"]})

    assert (theirs["count"], preview["count"], preview["next"]) == (1, 0, None)
    assert (applied.status, applied.code) == (400, "bad_cursor")
    assert town.door.value("select cancel_requested_at is null from run where id = :id", id=run_id)


def test_the_same_idempotency_key_of_another_tenant_is_another_key(town: Town) -> None:
    key = {"Idempotency-Key": str(new_id())}
    asked = {"kind": "tally", "params": {"lanes": 1, "target": 1}}

    first = town.door.call(town.globex.admin, "POST", "/runs", asked, headers=key)
    second = town.door.call(town.acme.admin, "POST", "/runs", asked, headers=key)

    assert (first.status, second.status) == (201, 201)
    assert first.body != second.body


# A place to upload to lasts for minutes, and one that nobody uses costs nothing.
CREATES = [name for name, cells in CELLS.items() if cells.ok == 201 and name != "create_row_upload"]


def test_every_operation_that_creates_takes_an_idempotency_key(operations: dict[str, Operation]) -> None:
    making = [each for each in operations.values() if each.method == "POST" and 201 in each.answers]

    lacking = {each.id for each in making if "idempotency-key" not in {name.lower() for name in each.parameters}}

    assert lacking == {"create_row_upload"}


@pytest.mark.parametrize("operation_id", [*CREATES, "run_trigger"])
def test_the_same_key_makes_it_once(acme_and_globex: Town, operations: dict[str, Operation], operation_id: str) -> None:
    town, operation, cells = acme_and_globex, operations[operation_id], CELLS[operation_id]
    body = cells.body() if callable(cells.body) else cells.body
    path, who = operation.at(town.target(cells, town.acme)), town.door.super_admin.choosing(town.acme.id)

    def ask(key: str, body: Any = body) -> Answer:
        return town.door.call(who, "POST", path, body, headers={"Idempotency-Key": key}, **cells.query)

    key = str(new_id())
    first, again, reused = (
        ask(key),
        ask(key),
        town.door.call(who, "POST", "/runs", ANOTHER, headers={"Idempotency-Key": key}),
    )

    assert (first.status, again.status) == (cells.ok, cells.ok), (first, again)
    assert {**again.json(), "token": None} == {**first.json(), "token": None}  # a token is told once
    assert reused.code == "key_reused"


def test_lists_show_a_member_his_own_runs_and_the_others_all(town: Town) -> None:
    tenant = town.door.new_tenant()
    mine, others = town.door.start(tenant), town.door.start(tenant, tenant.other)

    def seen(who: Who) -> set[str]:
        return {run["id"] for run in town.door.call(who, "GET", "/runs").json()["runs"]}

    assert seen(tenant.member) == {str(mine)}
    assert seen(tenant.other) == {str(others)}
    assert seen(tenant.machines[Role.MEMBER]) == set()
    everything = {str(mine), str(others)}
    for who in (tenant.viewer, tenant.admin, tenant.machines[Role.ADMIN], town.door.super_admin.choosing(tenant.id)):
        assert seen(who) == everything


def test_the_filters_are_really_taken_out(town: Town, request: pytest.FixtureRequest) -> None:
    """As a role that row level security does not bind, the same question then finds another tenant's run."""
    run_id = town.door.start(town.globex)
    with direct.alone(town.door._owner_engine) as line:
        found = line.all(statements.RUN_KIND, {"run_id": run_id, "tenant_id": town.acme.id})

    assert bool(found) == ("row level security alone" in request.node.name)
