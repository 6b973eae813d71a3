"""Guards `baton user add`: whoever adds a person to one more tenant does not change how they log in."""

from __future__ import annotations

import io
import sys
from argparse import Namespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.local import people

EMAIL = "ann@example.com"


class Pool:
    """A user pool as far as this needs one."""

    meta = Namespace(region_name="eu-central-1")

    def __init__(self) -> None:
        self.passwords: dict[str, str] = {}

    def admin_create_user(self, *, Username: str, **_: Any) -> None:  # noqa: N803 - Cognito's names
        self.passwords.setdefault(Username, "")

    def admin_set_user_password(self, *, Username: str, Password: str, **_: Any) -> None:  # noqa: N803 - as above
        self.passwords[Username] = Password

    def admin_get_user(self, *, Username: str, **_: Any) -> Any:  # noqa: N803 - as above
        if Username not in self.passwords:
            raise ClientError(
                {"Error": {"Code": "UserNotFoundException", "Message": "User does not exist."}}, "AdminGetUser"
            )
        return {"UserAttributes": [{"Name": "sub", "Value": "2f1d"}]}


def test_somebody_who_is_added_to_another_tenant_keeps_their_password(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool()
    added: list[dict[str, Any]] = []
    outputs = {"UserPoolId": "p", "UserPoolClientId": "c", "ConsoleUrl": "https://c", "ApiUrl": "https://a"}
    monkeypatch.setattr(people.Stack, "named", lambda _: people.Stack(lambda _: pool, outputs))

    def invoke(_: people.Stack, person: dict[str, Any]) -> dict[str, str]:
        added.append(person)
        return {"tenant_id": "t"}

    monkeypatch.setattr(people, "_invoke", invoke)

    def add(tenant: str, password: str = "") -> str:
        monkeypatch.setattr(sys, "stdin", io.StringIO(password))
        said: list[str] = []
        options = Namespace(email=EMAIL, tenant=tenant, role="member", subject=None, stack="baton-dev", json=False,
                            super_admin=False, password_stdin=bool(password))  # fmt: skip
        people.add_user(options, pytest.fail, said.append)
        return "\n".join(said)

    first = add("acme")
    known = pool.passwords[EMAIL]
    assert f"password: {known}" in first

    second = add("globex")

    assert "keep its password" in second
    assert "password:" not in second
    assert pool.passwords[EMAIL] == known
    assert [(each["tenant"], each["subject"]) for each in added] == [("acme", "2f1d"), ("globex", "2f1d")]
    add("globex", "another one")
    assert pool.passwords[EMAIL] == "another one", "whoever asks for it gets it"
