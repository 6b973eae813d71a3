"""Guards who is who: me, members, machine tokens, the audit, and that a tenant never loses its last admin."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest

from shared.kernel import db, direct
from shared.kernel.api import sql
from shared.kernel.auth import Role
from shared.kernel.clock import new_id
from tests.support.databases import as_user
from tests.support.door import ANONYMOUS, Door, TenantHouse, Who


def test_a_person_of_several_tenants_learns_which(door: Door, acme: TenantHouse, globex: TenantHouse) -> None:
    door.join(acme.admin, globex, Role.VIEWER)

    me = door.call(acme.admin, "GET", "/me").json()

    assert me["actor"] == acme.admin.actor
    assert {(UUID(t["id"]), t["role"]) for t in me["tenants"]} == {(acme.id, "admin"), (globex.id, "viewer")}


def test_a_person_of_several_tenants_must_say_which(door: Door, acme: TenantHouse, globex: TenantHouse) -> None:
    door.join(acme.admin, globex, Role.VIEWER)

    assert door.call(acme.admin, "GET", "/runs").code == "which_tenant"
    assert door.call(acme.admin.choosing(acme.id), "GET", "/members").status == 200
    assert door.call(acme.admin.choosing(globex.id), "GET", "/members").code == "not_allowed"


@pytest.mark.parametrize("tenant", ["another's", "nobody's", "no uuid"])
def test_a_tenant_that_is_not_ones_own_is_refused(
    door: Door, acme: TenantHouse, globex: TenantHouse, tenant: str
) -> None:
    wanted = {"another's": str(globex.id), "nobody's": str(UUID(int=1)), "no uuid": "x' or '1'='1"}[tenant]

    for who in (acme.admin, acme.machines[Role.ADMIN]):
        answer = door.call(who, "GET", "/runs", headers={"X-Tenant-Id": wanted})
        assert (answer.status, answer.code) == (403, "not_your_tenant")


def test_whoever_belongs_nowhere_is_told_so(door: Door) -> None:
    stranger = Who("stranger")

    assert door.call(stranger, "GET", "/me").json()["tenants"] == []
    assert door.call(stranger, "GET", "/runs").code == "no_tenant"


def test_a_super_admin_acts_in_every_tenant_that_he_names(door: Door, acme: TenantHouse) -> None:
    assert door.call(door.super_admin, "GET", "/me").json()["is_super_admin"]
    assert door.call(door.super_admin.choosing(acme.id), "GET", "/members").status == 200


def test_a_machine_knows_its_tenant(door: Door, acme: TenantHouse) -> None:
    me = door.call(acme.machines[Role.WORKER], "GET", "/me").json()

    assert [(UUID(t["id"]), t["role"]) for t in me["tenants"]] == [(acme.id, "worker")]


def test_a_token_at_the_peoples_door_is_nobody(door: Door, acme: TenantHouse) -> None:
    token = acme.machines[Role.ADMIN].token

    assert door.call(ANONYMOUS, "GET", "/runs", headers={"Authorization": f"Bearer {token}"}).status == 401


def test_claims_at_the_machines_door_are_nobody(door: Door, acme: TenantHouse) -> None:
    event = door.event(acme.admin, "GET", "/machine/api/v1/runs")

    assert door.ask(event).status == 401


def test_a_stage_in_the_path_changes_nothing(door: Door, acme: TenantHouse) -> None:
    event = door.event(acme.admin, "GET", "/prod/api/v1/runs")
    event["requestContext"]["stage"] = "prod"

    assert door.ask(event).status == 200


@pytest.mark.parametrize("door_of", ["people", "machines"])
def test_a_connection_that_died_meanwhile_is_replaced(door: Door, acme: TenantHouse, door_of: str) -> None:
    """A frozen function wakes up with a connection that the server has closed long ago."""
    who = acme.admin if door_of == "people" else acme.machines[Role.ADMIN]
    assert door.call(who, "GET", "/runs").status == 200
    died = door.sql("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'api'")

    assert len(died) == 1
    assert door.call(who, "GET", "/runs").status == 200


# Members.


def test_members_come_page_by_page(door: Door, acme: TenantHouse) -> None:
    first = door.call(acme.admin, "GET", "/members", limit=3).json()
    second = door.call(acme.admin, "GET", "/members", limit=3, cursor=first["next"]).json()

    subjects = [m["subject"] for m in (*first["members"], *second["members"])]
    assert subjects == sorted(subjects)
    assert len(subjects) == 5
    assert second["next"] is None


def test_somebody_is_let_in_moved_and_let_go(door: Door, acme: TenantHouse) -> None:
    new = Who(f"auth0|{acme.id}")
    path = f"/members/auth0%7C{acme.id}"

    assert door.call(acme.admin, "PUT", path, {"role": "viewer", "name": "Vi"}).status == 200
    assert door.call(new, "GET", "/runs").status == 200
    assert door.call(acme.admin, "PUT", path, {"role": "worker"}).status == 200
    assert door.call(new, "GET", "/runs").status == 403
    assert door.call(acme.admin, "DELETE", path).status == 200
    assert door.call(new, "GET", "/runs").code == "no_tenant"
    assert door.call(acme.admin, "DELETE", path).status == 404
    target = f"member:{new.subject}"
    assert door.audited(acme) == [
        (acme.admin.actor, "member.put", target),
        (acme.admin.actor, "member.put", target),
        (acme.admin.actor, "member.remove", target),
    ]
    changed = door.call(acme.admin, "GET", "/audit").json()["lines"][1]
    assert (changed["before"]["role"], changed["after"]["role"]) == ("viewer", "worker")


@pytest.mark.parametrize("subject", ["a%20b", "a%2Fb", "%00", "a'b", "%0d%0aSet-Cookie"])
def test_a_subject_that_no_issuer_gives_is_refused(door: Door, acme: TenantHouse, subject: str) -> None:
    assert door.call(acme.admin, "PUT", f"/members/{subject}", {"role": "viewer"}).status in {400, 422}


def test_the_document_says_what_a_subject_is_made_of(door: Door) -> None:
    document = door.ask(door.event(ANONYMOUS, "GET", "/openapi.json")).json()

    for act in document["paths"]["/api/v1/members/{subject}"].values():
        (said,) = (each["schema"] for each in act["parameters"] if each["name"] == "subject")
        assert re.search(said["pattern"], f"auth0|{new_id()}")
        assert not re.search(said["pattern"], "a b")


@pytest.mark.parametrize("by", ["himself", "a super admin"])
def test_the_last_admin_can_neither_go_nor_be_made_less(door: Door, acme: TenantHouse, by: str) -> None:
    who = acme.admin if by == "himself" else door.super_admin.choosing(acme.id)
    path = f"/members/{acme.admin.subject}"

    removed = door.call(who, "DELETE", path)
    lowered = door.call(who, "PUT", path, {"role": "viewer"})
    renamed = door.call(who, "PUT", path, {"role": "admin", "name": "Al"})

    assert [(a.status, a.code) for a in (removed, lowered)] == [(409, "last_admin")] * 2
    assert renamed.status == 200


def test_two_admins_who_remove_each_other_leave_one(door: Door, acme: TenantHouse) -> None:
    """The other's removal of the first is under way, and not committed, when the first removes the other."""
    second = Who(f"second-{acme.id}")
    door.join(second, acme, Role.ADMIN)
    theirs = db.connect_engine(as_user(door.url, "baton_api"))
    with ThreadPoolExecutor(1) as pool:
        with direct.together(theirs, acme.id) as line:
            line.scalars(sql.LOCK_ADMINS, {"tenant_id": acme.id})
            line.run(sql.REMOVE_MEMBER, {"tenant_id": acme.id, "subject": acme.admin.subject})
            ours = pool.submit(door.call, acme.admin, "DELETE", f"/members/{second.subject}")
            while not door.value(
                "select count(*) from pg_stat_activity where application_name = 'api' and wait_event_type = 'Lock'"
            ):
                assert not ours.done(), ours.result()
        answer = ours.result()
    theirs.dispose()

    assert (answer.status, answer.code) == (409, "last_admin")


# Tokens.


def test_a_token_is_shown_once_works_and_is_revoked(door: Door, acme: TenantHouse) -> None:
    made = door.call(acme.admin, "POST", "/tokens", {"name": "ci", "role": "viewer", "expires_in_days": 1})
    machine = Who(token=made.json()["token"])

    assert made.status == 201
    assert door.call(machine, "GET", "/runs").status == 200
    assert door.call(machine, "POST", "/runs", {"kind": "tally"}).status == 403
    told = door.call(acme.admin, "GET", "/tokens").json()["tokens"][0]
    assert (told["id"], told["revoked_at"]) == (made.json()["id"], None)
    assert told["last_used_at"] is not None
    assert told["expires_at"] is not None
    assert door.call(acme.admin, "DELETE", f"/tokens/{told['id']}").status == 200
    assert door.call(acme.admin, "DELETE", f"/tokens/{told['id']}").status == 200
    assert door.call(machine, "GET", "/runs").status == 401
    assert door.call(acme.admin, "GET", "/tokens").json()["tokens"][0]["revoked_at"] is not None
    assert [action for _, action, _ in door.audited(acme)] == ["token.make", "token.revoke"]


def test_a_token_past_its_time_is_nobody(door: Door, acme: TenantHouse) -> None:
    machine = acme.machines[Role.ADMIN]
    door.sql("update machine_token set expires_at = now() where tenant_id = :t", t=acme.id)

    assert door.call(machine, "GET", "/me").status == 401


def test_a_repeated_request_gets_the_same_token_but_not_its_secret(door: Door, acme: TenantHouse) -> None:
    asked = {"name": "ci", "role": "viewer"}
    first, again = (door.call(acme.admin, "POST", "/tokens", asked, headers={"Idempotency-Key": "k"}) for _ in range(2))
    other = door.call(acme.admin, "POST", "/tokens", {**asked, "role": "admin"}, headers={"Idempotency-Key": "k"})

    assert (first.status, again.status) == (201, 201)
    assert first.json()["id"] == again.json()["id"]
    assert again.json()["token"] is None
    assert (other.status, other.code) == (422, "key_reused")


def test_a_tokens_secret_is_nowhere_in_the_database(door: Door, acme: TenantHouse) -> None:
    made = door.call(
        acme.admin, "POST", "/tokens", {"name": "ci", "role": "viewer"}, headers={"Idempotency-Key": "canary"}
    ).json()
    door.call(Who(token=made["token"]), "GET", "/runs")

    for table in ("machine_token", "answered", "audit", "history"):
        rows = door.sql(f"select t::text as row from {table} t where tenant_id = :t", t=acme.id)
        assert made["token"] not in json.dumps([row["row"] for row in rows])


def test_a_tenant_has_so_many_tokens_in_use(door: Door, acme: TenantHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.kernel.api.sql.MOST_TOKENS", 4)

    answer = door.call(acme.admin, "POST", "/tokens", {"name": "one more", "role": "viewer"})

    assert (answer.status, answer.code) == (429, "too_many_tokens")


@pytest.mark.parametrize("token", ["", "baton_", "baton_wrong", "eyJhbGciOiJub25lIn0.e30.", "baton_\ud800"])
def test_a_forged_token_is_nobody(door: Door, token: str) -> None:
    assert door.call(Who(token=token), "GET", "/runs").status in {400, 401}


def second_admin(door: Door, acme: TenantHouse) -> Who:
    second = Who(f"second-{acme.id}")
    door.join(second, acme, Role.ADMIN)
    return second


def token_by(door: Door, who: Who, role: str = "admin") -> tuple[str, Who]:
    made = door.call(who, "POST", "/tokens", {"name": "ci", "role": role}).json()
    return made["id"], Who(token=made["token"])


@pytest.mark.parametrize("goes", ["removed", "made less"])
def test_a_removed_admin_does_not_come_back_by_a_token(door: Door, acme: TenantHouse, goes: str) -> None:
    second = second_admin(door, acme)
    child, machine = token_by(door, second)
    grandchild, theirs = token_by(door, machine)
    _, ours = token_by(door, acme.admin)
    path = f"/members/{second.subject}"
    shown = door.call(acme.admin, "GET", path).json()

    answer = door.call(acme.admin, *(("DELETE", path) if goes == "removed" else ("PUT", path, {"role": "member"})))

    assert {each["id"] for each in shown["tokens"]} == {child, grandchild} == set(answer.json()["revoked_tokens"])
    assert [door.call(who, "GET", "/runs").status for who in (machine, theirs, ours)] == [401, 401, 200]
    (line,) = door.call(acme.admin, "GET", "/audit", limit=1).json()["lines"]
    assert set(line["after"]["revoked_tokens"]) == {child, grandchild}
    if goes == "made less":
        assert door.call(acme.admin, "GET", path).json()["tokens"] == []


def test_what_a_revoked_token_made_is_revoked_with_it(door: Door, acme: TenantHouse) -> None:
    parent, machine = token_by(door, acme.admin)
    child, theirs = token_by(door, machine)
    door.sql("update machine_token set revoked_at = now() where id = :id", id=UUID(parent))  # as it was before

    answer = door.call(acme.admin, "DELETE", f"/tokens/{parent}")

    assert answer.json()["revoked_tokens"] == [child]
    assert door.call(theirs, "GET", "/runs").status == 401


def test_a_token_made_while_its_maker_is_removed_is_revoked_or_never_made(door: Door, acme: TenantHouse) -> None:
    for n in range(10):
        second = Who(f"second-{n}-{acme.id}")
        door.join(second, acme, Role.ADMIN)
        with ThreadPoolExecutor(2) as pool:
            made = pool.submit(door.call, second, "POST", "/tokens", {"name": "late", "role": "admin"})
            pool.submit(door.call, acme.admin, "DELETE", f"/members/{second.subject}").result()
        if made.result().status == 201:
            assert door.call(Who(token=made.result().json()["token"]), "GET", "/me").status == 401
        else:
            assert made.result().status == 403


def test_a_member_who_is_not_there_is_not_found(door: Door, acme: TenantHouse, globex: TenantHouse) -> None:
    assert door.call(acme.admin, "GET", f"/members/{globex.member.subject}").status == 404


# The audit.


def test_the_audit_comes_newest_first_and_page_by_page(door: Door, acme: TenantHouse) -> None:
    for n in range(5):
        door.call(acme.admin, "PUT", f"/members/m{n}", {"role": "viewer"})

    first = door.call(acme.admin, "GET", "/audit", limit=3).json()
    second = door.call(acme.admin, "GET", "/audit", limit=3, cursor=first["next"]).json()

    targets = [line["target"] for line in (*first["lines"], *second["lines"])]
    assert targets == [f"member:m{n}" for n in reversed(range(5))]


def test_nobody_rewrites_the_audit(door: Door) -> None:
    rights = "select has_table_privilege('baton_api', 'audit', :what)"

    assert [door.value(rights, what=what) for what in ("update", "delete", "truncate")] == [False] * 3
