"""Tokens of upstreams: one per account, shared by every step of a tenant, fetched by one step while the others wait.

A step asks `Tokens.of(turn, account, log_in)`. It gets the token that holds, or logs in because it is the one that may.
If another step is logging in right now, `of` raises `Later`: the lane waits a moment, which spends nothing. A token that
the upstream refuses is handed to `forget`; whoever comes next logs in.

`account` names whose token it is within the tenant: the upstream's name, or that and the id of a connection
(`account_name` in model.py). It is also the right name for the account's rate limit gate.

At rest a token is short-lived: its row keeps it for an hour at most, whatever the upstream allows, and it never leaves
through the API (the role of the API cannot read the table). In a process it is kept for `IN_MEMORY_S`, so that most steps
do not ask the database for it. Only the database's clock counts, here as the turn saw it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

import sqlalchemy as sa

from shared.kernel import db, direct
from shared.kernel.errors import Later, Transient
from shared.kernel.model import Turn

BEING_FETCHED_S = 2.0
LONGEST_AT_REST_S = 3_600
IN_MEMORY_S = 300
MOST_IN_MEMORY = 1_000


@dataclass(frozen=True, slots=True)
class Token:
    """What an upstream gave us. `extra` is what came with it and is needed as long, such as the address to use it at."""

    value: str = field(repr=False)
    expires_in_s: int
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(eq=False)
class TokenRefused(Transient):
    """The upstream does not accept the token (any more): forget it and log in again."""

    code: str = "token_refused"


class TokenSource(Protocol):
    """What a kind needs of this module; `Tokens` is the real one."""

    def of(self, turn: Turn, account: str, log_in: Callable[[], Token]) -> Token: ...
    def forget(self, turn: Turn, account: str, token: Token) -> None: ...


# A token that holds; or the right to fetch a new one; or neither, while somebody else fetches it.
LOOK_UP = sa.text("""
with known as (
    select token, extra, token_until from account_token
    where tenant_id = :tenant_id and account = :account and token_until > now()),
taken as (
    insert into account_token as a (tenant_id, account, refresher, refresh_until)
    select :tenant_id, :account, :refresher, now() + interval '30 s'
    where not exists (select from known)
    on conflict (tenant_id, account) do update
    set refresher = excluded.refresher, refresh_until = excluded.refresh_until, token = null, token_until = null
    where (a.refresh_until is null or a.refresh_until < now()) and (a.token_until is null or a.token_until <= now())
    returning refresher)
select (select token from known) as token, (select extra from known) as extra, (select token_until from known) as until,
       exists (select from taken) as ours
""")
# A token is given up a little before its end: a step that begins with it must be able to end with it. Whoever saves one
# clears the tenant's dead ones.
SAVE = sa.text("""
with dead as (
    update account_token set token = null, token_until = null
    where tenant_id = :tenant_id and account <> :account and token_until <= now())
update account_token
set token = :token, extra = cast(:extra as jsonb), refresher = null, refresh_until = null,
    token_until = now() + make_interval(secs => cast(:lives_s as double precision) - least(60, cast(:lives_s as double precision) / 2))
where tenant_id = :tenant_id and account = :account and refresher = :refresher
""")
GIVE_UP = sa.text("""
update account_token set refresher = null, refresh_until = null
where tenant_id = :tenant_id and account = :account and refresher = :refresher
""")
FORGET = sa.text("""
update account_token set token = null, token_until = null
where tenant_id = :tenant_id and account = :account and token = :token
""")


class Tokens:
    """The tokens in Postgres, with a short memory in the process. Every statement is bound to the tenant of the turn."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._kept: dict[tuple[UUID, str], tuple[Token, datetime]] = {}

    def of(self, turn: Turn, account: str, log_in: Callable[[], Token]) -> Token:
        """The account's token, fetched with `log_in` if this step is the one to do so; `Later` if another step is at it."""
        kept = self._kept.get((turn.tenant_id, account))
        if kept is not None and turn.now < kept[1]:
            return kept[0]
        with direct.alone(self._engine, turn.tenant_id) as line:
            row = line.one(LOOK_UP, _asking(turn, account))
        assert row is not None
        if row["token"] is not None:
            token = Token(row["token"], 0, row["extra"] or {})
            self._keep(turn, account, token, row["until"])
            return token
        if not row["ours"]:
            raise Later(BEING_FETCHED_S, "a token that another step is fetching")
        return self._log_in(turn, account, log_in)

    def forget(self, turn: Turn, account: str, token: Token) -> None:
        """The upstream refused this token. A newer one, which another step may have saved meanwhile, stays."""
        self._kept.pop((turn.tenant_id, account), None)
        self._run(turn, FORGET, {"tenant_id": turn.tenant_id, "account": account, "token": token.value})

    def _log_in(self, turn: Turn, account: str, log_in: Callable[[], Token]) -> Token:
        try:
            token = log_in()
        except Exception:
            self._run(turn, GIVE_UP, _asking(turn, account))
            raise
        lives_s = min(token.expires_in_s, LONGEST_AT_REST_S)
        saved = {"token": token.value, "extra": db.jsonb(dict(token.extra)), "lives_s": lives_s}
        self._run(turn, SAVE, {**_asking(turn, account), **saved})
        return token

    def _keep(self, turn: Turn, account: str, token: Token, until: datetime) -> None:
        if len(self._kept) >= MOST_IN_MEMORY:
            self._kept.clear()
        self._kept[turn.tenant_id, account] = (token, min(until, turn.now + timedelta(seconds=IN_MEMORY_S)))

    def _run(self, turn: Turn, statement: sa.TextClause, params: Mapping[str, Any]) -> None:
        with direct.alone(self._engine, turn.tenant_id) as line:
            line.run(statement, params)


def _asking(turn: Turn, account: str) -> dict[str, Any]:
    return {"tenant_id": turn.tenant_id, "account": account, "refresher": turn.token}
