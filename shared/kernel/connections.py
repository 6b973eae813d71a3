"""Connections: by which account a tenant is known to an upstream.

The row may be shown; the secret lives in a vault, and the row names the very version of it that counts. So a change that
stopped half way is never in use: without its row, a version of a secret means nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, ValidationError

from shared.kernel import direct, sql
from shared.kernel.clock import read_id, stopwatch
from shared.kernel.errors import Permanent, StepError, Transient
from shared.kernel.wrong import in_words

SECRET_KEPT_S = 300.0
MOST_KEPT = 200


class Strict(BaseModel):
    """What a provider asks for; its errors never repeat what was sent."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, hide_input_in_errors=True, str_min_length=1, str_max_length=4096
    )


@dataclass(frozen=True, slots=True)
class Account:
    """Settings and secret in the provider's own shapes."""

    settings: Any
    secret: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """An upstream that tenants connect to. `check` asks it once: what it says if all is well, else a StepError."""

    name: str
    settings: type[Strict]
    secret: type[Strict]
    check: Callable[[Account, Callable[[], float]], str]

    def account(self, settings: Mapping[str, Any], secret: Mapping[str, Any]) -> Account:
        """`BadAccount` says what is wrong, without a word of what was sent."""
        return Account(read_part("settings", self.settings, settings), read_part("secret", self.secret, secret))


class BadAccount(ValueError):
    """Settings or a secret that the provider doesn't know; the message is in sentences."""


def read_part(what: str, model: type[Strict], given: Mapping[str, Any]) -> Strict:
    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        raise BadAccount(in_words(error, model, under=what)) from None


@dataclass(eq=False)
class NoVault(Transient):
    """The vault does not answer, or not us."""

    message: str = "the secrets cannot be reached now"
    code: str = "no_vault"


class Vault(Protocol):
    """Where secrets are. Every version that was put can be got until the whole secret is deleted."""

    def put(self, name: str, secret: Mapping[str, str]) -> str:
        """Make a new version; answers its name."""

    def renew(self, name: str, secret: Mapping[str, str]) -> str:
        """Make a new version of a secret that is there; for those who may make none."""

    def get(self, name: str, version: str) -> dict[str, str] | None: ...
    def delete(self, name: str) -> None: ...


def secret_name(tenant_id: UUID, connection_id: UUID) -> str:
    return f"{tenant_id}/{connection_id}"


@dataclass(slots=True)
class Accounts:
    """What a step asks for: the account behind a connection of its tenant, as its row says at this moment."""

    engine: sa.Engine
    vault: Vault
    _kept: dict[tuple[UUID, str], tuple[Callable[[], float], dict[str, str]]] = field(default_factory=dict)

    def of(self, tenant_id: UUID, provider: Provider, connection: str) -> Account:
        """Whoever wrote the id, only a row of this tenant and provider answers to it."""
        params = {"tenant_id": tenant_id, "provider": provider.name, "id": read_id(connection)}
        with direct.alone(self.engine, tenant_id) as line:
            row = line.one(sql.CONNECTION, params)
        secret = None if row is None else self._secret(tenant_id, row["id"], row["secret_ref"])
        if row is None or secret is None:
            raise Permanent(
                f"the connection {connection[:100]} to {provider.name} was not found. "
                "Add one, and start a new run with it",
                "connection_gone",
            )
        try:
            return provider.account(row["settings"], secret)
        except BadAccount as error:
            raise Permanent(f"the connection {connection} must be changed. {error}", "connection_outdated") from None

    def _secret(self, tenant_id: UUID, connection_id: UUID, version: str) -> dict[str, str] | None:
        """A version never changes, so it is kept for a while: not asked for at every step, and not held for ever."""
        key = (connection_id, version)
        age_s, secret = self._kept.get(key, (None, None))
        if age_s is not None and age_s() < SECRET_KEPT_S:
            return secret
        self._kept.pop(key, None)
        secret = self.vault.get(secret_name(tenant_id, connection_id), version)
        if secret is not None:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[key] = (stopwatch(), secret)
        return secret


def checked(provider: Provider, account: Account, time_left_s: Callable[[], float]) -> tuple[bool, str]:
    """Whether the upstream lets the account in, and what is to be said about it."""
    try:
        return True, provider.check(account, time_left_s)
    except StepError as error:
        return False, str(error)
