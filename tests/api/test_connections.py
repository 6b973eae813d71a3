"""Guards that a tenant's accounts are its own, that no secret comes back, and that nothing half-done is ever in use."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from functions.catalogue import all_providers
from infra.local.standins.nivoda import NivodaStandIn
from shared.kernel.api.connections import MakeConnection, Office
from shared.kernel.auth import Principal, Role
from shared.kernel.catalogue import Kind
from shared.kernel.clock import new_id
from shared.kernel.connections import NoVault
from shared.kernel.step import take_turn
from shared.kernel.vault import SecretsManager, live_vault
from shared.page_ingest.build import build_ports
from shared.page_ingest.steps import page_ingest
from tests.support.door import Answer, Door, TenantHouse, Who
from tests.support.vaults import STAGE_PREFIX, mocked_vault


@pytest.fixture(scope="module")
def nivoda() -> Iterator[NivodaStandIn]:
    standin = NivodaStandIn(stones=40)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("BATON_NIVODA_BASE_URL", standin.start())
        yield standin
    standin.stop()


@pytest.fixture(autouse=True)
def vault() -> Iterator[Any]:
    with mocked_vault() as vault:
        yield vault


def kept_secrets(vault: Any) -> dict[str, str]:
    return {
        each["Name"]: vault.get_secret_value(SecretId=each["Name"])["SecretString"]
        for each in vault.list_secrets()["SecretList"]
    }


def asked(nivoda: NivodaStandIn, name: str = "main", **changes: Any) -> dict[str, Any]:
    settings, secret = {"username": nivoda.username}, {"password": nivoda.password}
    return {"provider": "nivoda", "name": name, "settings": settings, "secret": secret, **changes}


def make(door: Door, who: Who, body: dict[str, Any], key: str | None = None) -> Answer:
    return door.call(who, "POST", "/connections", body, headers={"Idempotency-Key": key} if key else {})


def made(door: Door, who: Who, body: dict[str, Any]) -> str:
    answer = make(door, who, body)
    assert answer.status == 201, answer.body
    return str(answer.json()["id"])


def test_a_provider_says_what_a_connection_to_it_must_look_like(door: Door, acme: TenantHouse) -> None:
    offered = {each["name"]: each for each in door.call(acme.viewer, "GET", "/providers").json()["providers"]}["nivoda"]

    assert (offered["name"], offered["settings"]["required"], offered["secret"]["required"]) == (
        "nivoda", ["username"], ["password"],
    )  # fmt: skip
    assert offered["secret"]["properties"]["password"]["writeOnly"] is True
    assert offered["settings"]["additionalProperties"] is False


def test_a_connection_is_made_seen_changed_checked_and_deleted(
    door: Door, acme: TenantHouse, nivoda: NivodaStandIn, vault: Any
) -> None:
    connection = made(door, acme.admin, asked(nivoda))

    shown = door.call(acme.viewer, "GET", f"/connections/{connection}")
    assert shown.json() | {"ready": True, "works": None, "settings": {"username": nivoda.username}} == shown.json()
    assert kept_secrets(vault) == {f"{STAGE_PREFIX}{acme.id}/{connection}": json.dumps({"password": nivoda.password})}
    checked = door.call(acme.admin, "POST", f"/connections/{connection}/check").json()
    assert (checked["works"], checked["says"]) == (True, "Connected.")

    wrong = {"name": "main", "settings": {"username": nivoda.username}, "secret": {"password": "canary-wrong"}}
    assert door.call(acme.admin, "PUT", f"/connections/{connection}", wrong).status == 200
    assert door.call(acme.viewer, "GET", f"/connections/{connection}").json()["works"] is None
    checked = door.call(acme.admin, "POST", f"/connections/{connection}/check").json()
    assert checked["works"] is False
    assert "canary" not in json.dumps(checked)
    (listed,) = door.call(acme.viewer, "GET", "/connections").json()["connections"]
    assert (listed["works"], listed["check_says"], listed["checked_at"]) == (
        False, checked["says"], checked["checked_at"],
    )  # fmt: skip

    assert door.call(acme.admin, "DELETE", f"/connections/{connection}").status == 200
    assert door.call(acme.viewer, "GET", f"/connections/{connection}").status == 404
    assert kept_secrets(vault) == {}
    told = [action for _, action, target in door.audited(acme) if target == f"connection:{connection}"]
    names = ["make", "check", "put", "check", "delete"]
    assert told == [f"connection.{name}" for name in names]


def test_a_change_without_a_secret_keeps_it(door: Door, acme: TenantHouse, nivoda: NivodaStandIn, vault: Any) -> None:
    connection = made(door, acme.admin, asked(nivoda))
    before = kept_secrets(vault)

    changed = {"name": "renamed", "settings": {"username": nivoda.username}}
    assert door.call(acme.admin, "PUT", f"/connections/{connection}", changed).status == 200

    assert kept_secrets(vault) == before
    assert door.call(acme.admin, "POST", f"/connections/{connection}/check").json()["works"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"provider": "elsewhere"}, "nivoda"),
        ({"settings": {}}, "settings.username"),
        ({"settings": {"username": "u", "base_url": "http://169.254.169.254"}}, "settings.base_url"),
        ({"secret": {"password": "canary", "other": "canary"}}, "secret.other"),
        ({"secret": {"password": ["canary"]}}, "secret"),
        ({"secret": {}}, "secret.password"),
        ({"secret": {"password": ""}}, "secret.password"),
        ({"secret": {"password": "canary" * 1000}}, "secret.password"),
        ({"name": "../x"}, "`name`: Use up to 100 letters from A to Z, "),
        ({"more": "canary"}, "more"),
    ],
)
def test_what_makes_no_sense_is_named_and_not_repeated(
    door: Door, acme: TenantHouse, nivoda: NivodaStandIn, vault: Any, changes: dict[str, Any], said: str
) -> None:
    answer = make(door, acme.admin, asked(nivoda, **changes))

    assert answer.status == 422
    assert said in answer.json()["detail"]
    assert "canary" not in answer.body
    assert door.call(acme.admin, "GET", "/connections").json()["connections"] == []
    assert kept_secrets(vault) == {}


def test_the_same_key_gets_the_same_answer_and_another_secret_is_another_request(
    door: Door, acme: TenantHouse, nivoda: NivodaStandIn
) -> None:
    first, again = (make(door, acme.admin, asked(nivoda), "key-1") for _ in range(2))
    assert (first.status, again.status) == (201, 201)
    assert first.body == again.body

    other = make(door, acme.admin, asked(nivoda, secret={"password": "another"}), "key-1")
    assert (other.status, other.code) == (422, "key_reused")
    assert make(door, acme.admin, asked(nivoda)).code == "name_taken"
    assert len(door.call(acme.admin, "GET", "/connections").json()["connections"]) == 1


def test_two_at_once_make_one_and_the_row_keeps_to_the_secret_of_who_was_first(
    door: Door, acme: TenantHouse, nivoda: NivodaStandIn, vault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, inner = SecretsManager.put, []

    def put(self: SecretsManager, *args: Any) -> str:
        version = real(self, *args)
        monkeypatch.setattr(SecretsManager, "put", real)
        # Between the outer one's secret and its row, somebody else comes and goes.
        desk = door.front.desk(Principal(acme.admin.actor, acme.id, "Acme", Role.ADMIN), "")
        body = MakeConnection.model_validate(asked(nivoda))
        inner.append(Office({each.name: each for each in all_providers()}, live_vault()).make(desk, body, None))
        return version

    monkeypatch.setattr(SecretsManager, "put", put)

    outer = make(door, acme.admin, asked(nivoda, secret={"password": "of the second"}))

    assert (inner[0].status_code, outer.status, outer.code) == (201, 409, "name_taken")
    assert len(kept_secrets(vault)) == 1
    connection = json.loads(inner[0].body or "")["id"]
    assert door.call(acme.admin, "POST", f"/connections/{connection}/check").json()["works"]


class Crash(BaseException):
    """The process is gone: nothing of ours catches this."""


@pytest.mark.parametrize("when", ["before the secret", "after the secret"])
def test_a_crash_while_it_is_made_leaves_nothing_usable_and_a_repeat_heals_it(
    door: Door, acme: TenantHouse, nivoda: NivodaStandIn, vault: Any, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    with monkeypatch.context() as crashing:
        crashes(crashing, "put", before=when.startswith("before"))
        with pytest.raises(Crash):
            make(door, acme.admin, asked(nivoda), "key-1")

    (left,) = door.call(acme.admin, "GET", "/connections").json()["connections"]
    assert left["ready"] is False
    assert door.call(acme.admin, "POST", f"/connections/{left['id']}/check").code == "no_secret"
    assert start(door, acme, connection="main").code == "unknown_connection"

    healed = make(door, acme.admin, asked(nivoda), "key-1")
    assert (healed.status, healed.json()["id"]) == (201, left["id"])
    assert door.call(acme.admin, "POST", f"/connections/{left['id']}/check").json()["works"]
    assert len(kept_secrets(vault)) == 1


def test_a_crash_while_it_is_changed_changes_nothing(
    door: Door, acme: TenantHouse, nivoda: NivodaStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = made(door, acme.admin, asked(nivoda))
    wrong = {"name": "main", "settings": {"username": "other"}, "secret": {"password": "other"}}
    with monkeypatch.context() as crashing:
        crashes(crashing, "put", before=False)
        with pytest.raises(Crash):
            door.call(acme.admin, "PUT", f"/connections/{connection}", wrong)

    # The vault holds a newer version, but the row still names the old one.
    assert door.call(acme.admin, "POST", f"/connections/{connection}/check").json()["works"]


@pytest.mark.parametrize("before", [True, False])
def test_a_crash_while_it_is_deleted_leaves_nothing_usable_and_a_repeat_heals_it(
    door: Door, acme: TenantHouse, nivoda: NivodaStandIn, vault: Any, monkeypatch: pytest.MonkeyPatch, *, before: bool
) -> None:
    connection = made(door, acme.admin, asked(nivoda))
    with monkeypatch.context() as crashing:
        crashes(crashing, "delete", before=before)
        with pytest.raises(Crash):
            door.call(acme.admin, "DELETE", f"/connections/{connection}")

    assert start(door, acme, connection=connection).code == "unknown_connection"
    assert door.call(acme.admin, "DELETE", f"/connections/{connection}").status == 200
    assert kept_secrets(vault) == {}
    assert door.call(acme.admin, "DELETE", f"/connections/{connection}").status == 404


def test_a_vault_that_is_away_is_a_503_and_tells_nothing(
    door: Door, acme: TenantHouse, nivoda: NivodaStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> str:
        raise NoVault

    monkeypatch.setattr(SecretsManager, "put", away)

    answer = make(door, acme.admin, asked(nivoda))

    assert (answer.status, answer.code) == (503, "no_vault")


@pytest.mark.parametrize("what", ["settings", "secret"])
def test_what_was_changed_while_it_was_checked_has_not_been_checked(
    door: Door, acme: TenantHouse, nivoda: NivodaStandIn, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    connection_id = made(door, acme.admin, asked(nivoda))
    change = {"settings": {"username": "nobody"}} | ({"secret": {"password": "other"}} if what == "secret" else {})
    get = SecretsManager.get

    def meanwhile(vault: SecretsManager, name: str, version: str) -> dict[str, str] | None:
        monkeypatch.setattr(SecretsManager, "get", get)
        path = f"/connections/{connection_id}"
        assert door.call(acme.admin, "PUT", path, {"name": "main", **change}).status == 200
        return get(vault, name, version)

    monkeypatch.setattr(SecretsManager, "get", meanwhile)
    checked = door.call(acme.admin, "POST", f"/connections/{connection_id}/check", {})

    assert (checked.status, checked.code) == (409, "changed_meanwhile")
    shown = door.call(acme.admin, "GET", f"/connections/{connection_id}").json()
    assert (shown["works"], shown["checked_at"]) == (None, None)


def test_only_admins_move_connections_and_another_tenants_is_unknown(
    door: Door, acme: TenantHouse, globex: TenantHouse, nivoda: NivodaStandIn
) -> None:
    connection = made(door, acme.admin, asked(nivoda))
    changed = {"name": "main", "settings": {"username": "u"}}
    moves: list[tuple[str, str, Any]] = [
        ("PUT", f"/connections/{connection}", changed),
        ("POST", f"/connections/{connection}/check", None),
        ("DELETE", f"/connections/{connection}", None),
    ]
    for method, path, body in moves:
        for who in (acme.viewer, acme.member, acme.worker, acme.machines[Role.MEMBER]):
            assert door.call(who, method, path, body).status == 403
        unknown = door.call(globex.admin, method, path.replace(connection, str(new_id())), body)
        foreign = door.call(globex.admin, method, path, body)
        assert (foreign.status, foreign.body) == (404, unknown.body)
    assert door.call(globex.admin, "GET", f"/connections/{connection}").status == 404
    assert door.call(globex.admin, "GET", "/connections").json()["connections"] == []


def test_lists_come_in_pages(door: Door, acme: TenantHouse, nivoda: NivodaStandIn) -> None:
    ids = [made(door, acme.admin, asked(nivoda, name=f"c{n}")) for n in range(5)]
    seen: list[str] = []
    cursor: dict[str, Any] = {}
    while True:
        page = door.call(acme.viewer, "GET", "/connections", limit=2, provider="nivoda", **cursor).json()
        seen += [each["id"] for each in page["connections"]]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert seen == sorted(ids, reverse=True)


# --- used by page ingestion -------------------------------------------------------------------------------------------


def start(door: Door, tenant: TenantHouse, **params: Any) -> Answer:
    wanted = {"source": "nivoda", "low": 200, "high": 20_000, **params}
    return door.call(tenant.member, "POST", "/runs", {"kind": "page_ingest", "params": wanted})


def ingest_of(door: Door) -> Kind:
    """The kind as it is deployed without an account of the deployment's own."""
    return page_ingest(build_ports(door._worker, os.environ))


def error_of(door: Door, run_id: UUID) -> Any:
    return door.lane(run_id)["last_error"]


def test_a_run_uses_the_connection_that_it_names_by_id_or_name(
    door: Door, acme: TenantHouse, nivoda: NivodaStandIn
) -> None:
    connection = made(door, acme.admin, asked(nivoda))
    kind = ingest_of(door)
    for wanted in (connection, "main"):
        run_id = UUID(start(door, acme, connection=wanted).json()["id"])
        assert door.call(acme.member, "GET", f"/runs/{run_id}").json()["params"]["connection"] == connection

        take_turn(door.baton(run_id), kind, door.worker_ports)

        assert error_of(door, run_id) is None
        assert door.lane(run_id)["key"].startswith("part:")  # the plan is made
    accounts = door.sql("select account from account_token where tenant_id = :t", t=acme.id)
    assert [row["account"] for row in accounts] == [f"nivoda:{connection}"]


def test_without_a_connection_the_deployments_own_account_is_asked_for(
    door: Door, acme: TenantHouse, nivoda: NivodaStandIn
) -> None:
    made(door, acme.admin, asked(nivoda))
    run_id = UUID(start(door, acme).json()["id"])

    take_turn(door.baton(run_id), ingest_of(door), door.worker_ports)

    assert error_of(door, run_id)["code"] == "bad_settings"


def test_a_change_counts_from_the_next_step_and_a_deletion_fails_the_lane(
    door: Door, acme: TenantHouse, nivoda: NivodaStandIn
) -> None:
    connection = made(door, acme.admin, asked(nivoda, secret={"password": "canary-old"}))
    kind = ingest_of(door)
    refused = UUID(start(door, acme, connection=connection).json()["id"])
    take_turn(door.baton(refused), kind, door.worker_ports)
    assert error_of(door, refused)["code"] == "bad_credentials"

    right = {"name": "main", "settings": {"username": nivoda.username}, "secret": {"password": nivoda.password}}
    assert door.call(acme.admin, "PUT", f"/connections/{connection}", right).status == 200
    run_id = UUID(start(door, acme, connection=connection).json()["id"])
    take_turn(door.baton(run_id), kind, door.worker_ports)
    assert error_of(door, run_id) is None

    assert door.call(acme.admin, "DELETE", f"/connections/{connection}").status == 200
    take_turn(door.baton(run_id), kind, door.worker_ports)
    failed = door.lane(run_id)
    assert (failed["status"], failed["last_error"]["code"]) == ("failed", "connection_gone")
    assert "Add one, and start a new run with it" in failed["last_error"]["message"]


def test_another_tenants_connection_is_unknown_also_when_it_is_written_into_the_row(
    door: Door, acme: TenantHouse, globex: TenantHouse, nivoda: NivodaStandIn
) -> None:
    connection = made(door, acme.admin, asked(nivoda))
    assert made(door, globex.admin, asked(nivoda, name="theirs"))
    foreign, unknown = (start(door, globex, connection=wanted) for wanted in (connection, str(new_id())))
    assert (foreign.status, foreign.code) == (422, "unknown_connection")
    assert foreign.body == unknown.body

    kind = ingest_of(door)
    acmes = UUID(start(door, acme, connection=connection).json()["id"])
    take_turn(door.baton(acmes), kind, door.worker_ports)  # its secret is in the process's memory now
    run_id = UUID(start(door, globex, connection="theirs").json()["id"])
    door.sql(
        "update run set params = jsonb_set(params, '{connection}', to_jsonb(cast(:c as text))) where id = :id",
        c=connection, id=run_id,
    )  # fmt: skip
    calls = sum(nivoda.calls.values())

    take_turn(door.baton(run_id), kind, door.worker_ports)

    assert error_of(door, run_id)["code"] == "connection_gone"
    assert sum(nivoda.calls.values()) == calls


def test_a_secret_is_not_asked_for_at_every_step(
    door: Door, acme: TenantHouse, nivoda: NivodaStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = made(door, acme.admin, asked(nivoda))
    kind, real = ingest_of(door), SecretsManager.get
    gets = []

    def get(self: SecretsManager, name: str, version: str) -> dict[str, str] | None:
        gets.append(name)
        return real(self, name, version)

    monkeypatch.setattr(SecretsManager, "get", get)

    for _ in range(3):
        run_id = UUID(start(door, acme, connection=connection).json()["id"])
        take_turn(door.baton(run_id), kind, door.worker_ports)

    assert len(gets) == 1


def crashes(monkeypatch: pytest.MonkeyPatch, name: str, *, before: bool) -> None:
    real: Callable[..., Any] = getattr(SecretsManager, name)

    def crash(self: SecretsManager, *args: Any) -> None:
        if not before:
            real(self, *args)
        raise Crash

    monkeypatch.setattr(SecretsManager, name, crash)
