"""Guards who is who: me, members, machine tokens, the audit, and that a tenant never loses its last admin."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest
import sqlalchemy as sa

from shared.kernel import db, direct
from shared.kernel.api import sql
from shared.kernel.auth import Role, new_token, token_hash
from shared.kernel.clock import new_id
from shared.kernel.people import Person, add_person
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
    died = door.sql(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = 'api'"
    )

    assert died  # perhaps with one of an earlier test that is on its way out
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
    assert answer(door, new, acme, accept=True) == 200
    assert door.call(new, "GET", "/runs").status == 200
    assert door.call(acme.admin, "PUT", path, {"role": "worker"}).status == 200
    assert door.call(new, "GET", "/runs").status == 403
    assert door.call(acme.admin, "DELETE", path).status == 200
    assert door.call(new, "GET", "/runs").code == "no_tenant"
    assert door.call(acme.admin, "DELETE", path).status == 404
    target = f"member:{new.subject}"
    assert door.audited(acme) == [
        (acme.admin.actor, "member.put", target),
        (new.actor, "member.accept", target),
        (acme.admin.actor, "member.put", target),
        (acme.admin.actor, "member.remove", target),
    ]
    changed = door.call(acme.admin, "GET", "/audit").json()["lines"][1]
    assert (changed["before"]["role"], changed["after"]["role"]) == ("viewer", "worker")


@pytest.mark.parametrize("subject", ["a%20b", "a%2Fb", "%00", "a'b", "%0d%0aSet-Cookie"])
def test_a_subject_that_no_issuer_gives_is_refused(door: Door, acme: TenantHouse, subject: str) -> None:
    assert door.call(acme.admin, "PUT", f"/members/{subject}", {"role": "viewer"}).status in {400, 422}


@pytest.mark.full
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
                "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'api' and wait_event_type = 'Lock'"
            ):
                assert not ours.done(), ours.result()
        answer = ours.result()
    theirs.dispose()

    assert (answer.status, answer.code) == (403, "not_allowed"), "who comes second is no admin any more"
    assert door.call(second, "GET", f"/members/{second.subject}").json()["role"] == "admin"


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


@pytest.mark.parametrize("first", ["removal", "token"])
def test_a_token_made_while_its_maker_is_removed_is_revoked_or_never_made(
    door: Door, acme: TenantHouse, first: str
) -> None:
    """The one is under way, and not committed, when the other comes."""
    second, token, mine = second_admin(door, acme), new_token(), {"tenant_id": acme.id}
    values = {"name": "late", "role": "admin", "created_by": second.actor, "days": 1, "most": 200, "most_kept": 2_000}
    theirs = db.connect_engine(as_user(door.url, "baton_api"))
    with ThreadPoolExecutor(1) as pool:
        with direct.together(theirs, acme.id) as line:
            if first == "removal":
                line.scalars(sql.LOCK_ADMINS, mine)
                line.run(sql.REMOVE_MEMBER, {**mine, "subject": second.subject})
                ours = pool.submit(door.call, second, "POST", "/tokens", {"name": "late", "role": "admin"})
            else:
                assert line.one(sql.HOLD_MEMBER, {**mine, "id": second.subject})
                assert line.run(sql.MAKE_TOKEN, {**mine, **values, "id": new_id(), "hash": token_hash(token)})
                ours = pool.submit(door.call, acme.admin, "DELETE", f"/members/{second.subject}")
            while not door.value(
                "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'api' and wait_event_type = 'Lock'"
            ):
                assert not ours.done(), ours.result()
        answer = ours.result()
    theirs.dispose()

    if first == "removal":
        assert (answer.status, answer.code) == (403, "not_allowed")
    else:
        assert len(answer.json()["revoked_tokens"]) == 1
        assert door.call(Who(token=token), "GET", "/me").status == 401


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


# --- invitations ------------------------------------------------------------------------------------------------------


def invite(door: Door, tenant: TenantHouse, who: Who, role: str = "viewer") -> None:
    assert door.call(tenant.admin, "PUT", f"/members/{who.subject}", {"role": role}).status == 200


def answer(door: Door, who: Who, tenant: TenantHouse, *, accept: bool) -> int:
    return door.call(who, "POST", "/me/invitations", {"tenant_id": str(tenant.id), "accept": accept}).status


def test_an_admin_who_adds_a_stranger_does_not_break_the_strangers_calls(
    door: Door, acme: TenantHouse, globex: TenantHouse
) -> None:
    invite(door, globex, acme.member, "admin")

    assert door.call(acme.member, "GET", "/runs").status == 200, "still of one tenant alone"
    me = door.call(acme.member, "GET", "/me").json()
    assert [UUID(each["id"]) for each in me["tenants"]] == [acme.id]
    assert [(UUID(each["id"]), each["role"], each["invited_by"]) for each in me["invitations"]] == [
        (globex.id, "admin", globex.admin.actor)
    ]
    assert door.call(acme.member.choosing(globex.id), "GET", "/members").code == "not_your_tenant"


def test_an_invitation_counts_once_it_is_accepted_and_is_audited(door: Door, acme: TenantHouse) -> None:
    guest = Who(f"guest-{new_id()}")
    invite(door, acme, guest, "member")
    assert door.call(guest, "GET", "/runs").code == "no_tenant"
    assert door.call(acme.admin, "GET", f"/members/{guest.subject}").json()["accepted_at"] is None

    assert answer(door, guest, acme, accept=True) == 200

    assert door.call(guest, "GET", "/runs").status == 200
    assert door.call(guest, "GET", "/me").json()["invitations"] == []
    assert door.call(acme.admin, "GET", f"/members/{guest.subject}").json()["accepted_at"] is not None
    lines = door.call(acme.admin, "GET", "/audit").json()["lines"]
    assert (lines[0]["actor"], lines[0]["action"]) == (guest.actor, "member.accept")
    # Another role is no new invitation.
    invite(door, acme, guest, "viewer")
    assert door.call(guest, "GET", "/runs").status == 200
    assert answer(door, guest, acme, accept=False) == 404, "a member does not leave by declining"


def test_a_declined_invitation_leaves_nothing_behind(door: Door, acme: TenantHouse) -> None:
    guest = Who(f"guest-{new_id()}")
    invite(door, acme, guest)

    assert answer(door, guest, acme, accept=False) == 200

    assert door.call(acme.admin, "GET", f"/members/{guest.subject}").status == 404
    assert answer(door, guest, acme, accept=True) == 404


def test_nobody_accepts_for_somebody_else(door: Door, acme: TenantHouse, globex: TenantHouse) -> None:
    guest = Who(f"guest-{new_id()}")
    invite(door, acme, guest)

    for who in (acme.admin, globex.admin, door.super_admin, acme.machines[Role.ADMIN], Who("stranger")):
        assert answer(door, who, acme, accept=True) == 404
    assert answer(door, ANONYMOUS, acme, accept=True) == 401
    assert door.call(guest, "GET", "/runs").code == "no_tenant"
    with pytest.raises(Exception, match="permission denied"), direct.alone(door.engine, acme.id) as line:
        line.run(sa.text("update member set accepted_at = now() where tenant_id = :t"), {"t": acme.id})


def test_an_admin_who_never_accepted_is_not_the_admin_that_a_tenant_needs(door: Door, acme: TenantHouse) -> None:
    guest = Who(f"guest-{new_id()}")
    invite(door, acme, guest, "admin")

    assert door.call(acme.admin, "DELETE", f"/members/{acme.admin.subject}").code == "last_admin"
    assert answer(door, guest, acme, accept=True) == 200
    assert door.call(acme.admin, "DELETE", f"/members/{acme.admin.subject}").status == 200


@pytest.mark.parametrize("by", ["themselves", "token", "token alone"])
def test_a_removed_admin_does_not_come_back_by_an_invitation(door: Door, acme: TenantHouse, by: str) -> None:
    second, alias, friend = second_admin(door, acme), Who(f"alias-{new_id()}"), Who(f"friend-{new_id()}")
    token_id, machine = token_by(door, second)
    inviting = second if by == "themselves" else machine
    for guest in (alias, friend):
        assert door.call(inviting, "PUT", f"/members/{guest.subject}", {"role": "admin"}).status == 200
    assert answer(door, friend, acme, accept=True) == 200
    shown = door.call(acme.admin, "GET", f"/members/{second.subject}").json()

    path = f"/tokens/{token_id}" if by == "token alone" else f"/members/{second.subject}"
    gone = door.call(acme.admin, "DELETE", path).json()

    assert shown["invited"] == gone["withdrawn_invitations"] == [alias.subject]
    assert answer(door, alias, acme, accept=True) == 404
    assert door.call(alias, "GET", "/runs").code == "no_tenant"
    assert door.call(friend, "GET", "/runs").status == 200, "who has accepted is nobody's to withdraw"
    (line,) = door.call(acme.admin, "GET", "/audit", limit=1).json()["lines"]
    assert line["after"]["withdrawn_invitations"] == [alias.subject]


@pytest.mark.parametrize("by", ["themselves", "token"])
@pytest.mark.parametrize("what", ["invites", "promotes", "removes"])
def test_an_admin_who_is_being_removed_changes_nobody_any_more(
    door: Door, acme: TenantHouse, what: str, by: str
) -> None:
    """Their removal is under way, and not committed, when they come."""
    second, alias = second_admin(door, acme), Who(f"alias-{new_id()}")
    _, machine = token_by(door, second)
    whom = {"invites": alias, "promotes": acme.viewer, "removes": acme.member}[what]
    asked = ("DELETE", None) if what == "removes" else ("PUT", {"role": "admin"})
    theirs = db.connect_engine(as_user(door.url, "baton_api"))
    with ThreadPoolExecutor(1) as pool:
        with direct.together(theirs, acme.id) as line:
            line.scalars(sql.LOCK_ADMINS, {"tenant_id": acme.id})
            line.run(sql.REMOVE_MEMBER, {"tenant_id": acme.id, "subject": second.subject})
            line.scalars(sql.REVOKE_MADE_BY, {"tenant_id": acme.id, "actor": second.actor})
            who = second if by == "themselves" else machine
            ours = pool.submit(door.call, who, asked[0], f"/members/{whom.subject}", asked[1])
            while not door.value(
                "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'api' and wait_event_type = 'Lock'"
            ):
                assert not ours.done(), ours.result()
        answer = ours.result()
    theirs.dispose()

    assert (answer.status, answer.code) == (403, "not_allowed")
    roles = {each["subject"]: each["role"] for each in door.call(acme.admin, "GET", "/members").json()["members"]}
    assert (alias.subject in roles, roles[acme.viewer.subject], roles[acme.member.subject]) == (
        False,
        "viewer",
        "member",
    )


def test_whom_the_deployment_adds_need_not_accept(door: Door, acme: TenantHouse) -> None:
    guest, name = Who(f"guest-{new_id()}"), f"tenant-{new_id()}"
    door.sql("update tenant set name = :name where id = :id", name=name, id=acme.id)
    invite(door, acme, guest)

    add_person(door.owner, Person(tenant=name, subject=str(guest.subject), role=Role.MEMBER))

    assert door.call(guest, "GET", "/runs").status == 200
