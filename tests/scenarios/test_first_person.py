"""Guards the way in on the documented path: the first person is added by a function that can do nothing else, and logs in."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sqlalchemy as sa

from infra.cli import main
from infra.local.deploy import STACK
from infra.local.ministack import credentials
from shared.kernel import db
from shared.kernel.aws import DEFAULT_REGION
from shared.kernel.clock import new_id
from tests.support.scene import Scene

pytestmark = pytest.mark.full

FUNCTION = f"{STACK}-people"


@pytest.fixture
def shell(scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """What `eval "$(baton env)"` sets, and a home where nobody is logged in."""
    told = {"AWS_ENDPOINT_URL": scene.address.endpoint, "AWS_DEFAULT_REGION": DEFAULT_REGION}
    for name, value in {**told, **credentials(scene.address.access_key), "XDG_CONFIG_HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)


def call(scene: Scene, event: object) -> tuple[bool, Any]:
    answer = scene.address.client("lambda").invoke(FunctionName=FUNCTION, Payload=json.dumps(event).encode())
    return "FunctionError" not in answer, json.load(answer["Payload"])


@pytest.mark.usefixtures("shell")
def test_the_first_person_needs_no_password_of_the_database_to_log_in(
    scene: Scene, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    email, home = f"{new_id()}@example.com", ["--home", str(tmp_path / "nothing")]
    assert main([*home, "user", "add", email, "--role", "admin", "--tenant", email, "--stack", STACK]) == 0
    told = capsys.readouterr().out
    password = next(line.split()[1] for line in told.splitlines() if line.startswith("password:"))
    login = next(line.split()[2:] for line in told.splitlines() if line.startswith("next:"))

    monkeypatch.setattr("getpass.getpass", lambda _: password)
    assert main([*home, *login]) == 0
    capsys.readouterr()
    assert main([*home, "me", "--json"]) == 0

    me = json.loads(capsys.readouterr().out)
    assert [(tenant["name"], tenant["role"]) for tenant in me["tenants"]] == [(email, "admin")]
    # And the deployment is well: a job comes to its end.
    assert main([*home, "smoke"]) == 0, capsys.readouterr().out


def test_whoever_adds_people_can_do_nothing_else_to_the_database(scene: Scene) -> None:
    engine = db.connect_engine(scene.address.url_as("baton_people"), pool="none")
    tables = scene.runs.sql("select tablename from pg_tables where schemaname = 'public'")

    for table in tables:
        with engine.connect() as connection, pytest.raises(sa.exc.DatabaseError) as refused:
            connection.execute(sa.text(f"select * from {table['tablename']}"))
        assert db.sqlstate(refused.value) == "42501", table
    callable_ones = scene.runs.sql(
        """select p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace
           where n.nspname = 'public' and p.prosecdef and has_function_privilege('baton_people', p.oid, 'execute')"""
    )
    assert [row["proname"] for row in callable_ones] == ["add_person"]


def test_adding_somebody_twice_changes_the_role_and_makes_no_second_tenant(scene: Scene) -> None:
    tenant = str(new_id())
    person = {"tenant": tenant, "subject": f"s-{tenant}", "name": "Ada"}

    first, again = call(scene, {**person, "role": "viewer"}), call(scene, {**person, "role": "admin"})

    assert first[0]
    assert again[0]
    assert first[1]["tenant_id"] == again[1]["tenant_id"]
    rows = scene.runs.sql("select role, name from member where subject = :s", s=person["subject"])
    assert [dict(row) for row in rows] == [{"role": "admin", "name": "Ada"}]
    lines = scene.runs.sql("select actor, action from audit where target = :t", t=f"member:{person['subject']}")
    assert [dict(line) for line in lines] == [{"actor": "owner", "action": "member.put"}] * 2


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        ({}, "`tenant` is required."),
        ({"tenant": "acme", "subject": "x", "role": "owner"}, "`role` must be one of: "),
        ({"tenant": "acme", "subject": "x y"}, "`subject` must have the form"),
        (
            {"tenant": "acme", "subject": "x", "password": "canary-7f3a"},
            "Unknown field `password`. Available: tenant, ",
        ),
        ({"tenant": "a\x00b", "subject": "x"}, "`tenant` must have the form"),
        ({"tenant": "acme", "subject": "x", "super_admin": "yes"}, "`super_admin` must be true or false"),
    ],
)
def test_an_event_that_is_no_person_adds_nobody(scene: Scene, event: object, problem: str) -> None:
    done, told = call(scene, event)

    assert not done
    assert problem in told["errorMessage"]
    assert "canary" not in json.dumps(told)
