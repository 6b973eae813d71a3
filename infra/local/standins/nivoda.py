"""A stand-in for the Nivoda API on this machine: it speaks the real shapes, knows the truth and misbehaves on demand.

By hand: python -m infra.local.standins.nivoda --port 0 --stones 5000
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import hmac
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from infra.local.standins.nivoda_faults import Fault, Misbehaviour, Operation, with_a_wrong_type, with_twins
from infra.local.standins.nivoda_query import Field, QueryError, parse, pick
from infra.local.standins.nivoda_stones import Stock, Stone
from infra.local.standins.server import Reply, Request, StandIn, run_by_hand

PATH = "/api/diamonds"
USERNAME, PASSWORD = "buyer@example.com", "stand-in-password"  # they open nothing
LARGEST_LIMIT = 50
DAY_S = 86_400
POISON = {"nul": "a\x00b", "lone": "a\ud800b"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call as it was answered; `faults` are the misbehaviours that struck it."""

    at: float
    operation: Operation
    offset: int
    limit: int
    returned: int
    faults: frozenset[Fault]


@dataclass(slots=True)
class _Session:
    expires_at: float
    calls_left: float


class NivodaStandIn(StandIn):
    """Its truth is `stock`; it speaks as much GraphQL as is asked of it."""

    name = "nivoda"
    misbehaviours = Misbehaviour

    def __init__(
        self,
        seed: int = 0,
        *,
        stones: int = 500,
        low: int = 200,
        high: int = 20_000,
        budget: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(seed, budget=budget, clock=clock)
        self.username, self.password = USERNAME, PASSWORD
        self.token_lives_s: float = DAY_S
        self.token_lives_calls: float = math.inf
        self.stock = Stock(seed, stones, low, high, clock)
        self.log: list[Call] = []
        self._seed = seed
        self._sessions: dict[str, _Session] = {}

    # --- the truth

    @property
    def stones(self) -> tuple[Stone, ...]:
        return self.stock.stones

    def held_throughout(self, since: float, until: float = math.inf) -> frozenset[str]:
        return self.stock.held_throughout(since, until)

    def expire_tokens(self) -> None:
        with self.lock:
            self._sessions.clear()

    # --- answering

    def serve(self, request: Request) -> Reply:
        if request.path != PATH:
            return Reply.json({"error": "no such thing"}, 404)
        try:
            asked = _asked(request.body, request.headers.get("Authorization", ""))
        except QueryError as error:
            return _refusal(error.message, error.code)
        faults = self.struck_by(asked.operation, **{**asked.public, "limit": asked.limit})
        if how := faults.get(Fault.SHIFT):
            self.stock.shift(deletes=how.deletes, inserts=how.inserts, reprices=how.reprices)
        if how := faults.get(Fault.HANG_ABOVE):
            self.wait(how.seconds)
        reply, returned = self._reply(asked, faults)
        call = Call(
            at=self.now(),
            operation=asked.operation,
            offset=asked.offset,
            limit=asked.limit,
            returned=returned,
            faults=frozenset(Fault(each) for each in faults),
        )
        with self.lock:
            self.log.append(call)
        return reply

    def _reply(self, asked: _Asked, faults: Mapping[str, Any]) -> tuple[Reply, int]:
        if (instead := self.instead(faults)) is not None:
            return instead, 0
        if Fault.TOO_BIG_ABOVE in faults:
            return Reply(status=413, body=b"Payload Too Large", headers={"Content-Type": "text/plain"}), 0
        try:
            data, returned = self._data(asked, faults)
        except QueryError as error:
            return _refusal(error.message, error.code), 0
        return self._spoilt(data, faults), returned

    def _data(self, asked: _Asked, faults: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        if asked.operation is Operation.AUTHENTICATE:
            return {"authenticate": {"username_and_password": pick(self._log_in(asked), asked.fields, "token")}}, 0
        self._check(asked.token, forget=Fault.EXPIRED in faults)
        value: Any
        returned = 0
        if asked.operation is Operation.COUNT:
            lie = faults.get(Fault.LYING_COUNT)
            value = max(0, len(self._rows(asked, faults)) + (lie.by if lie else 0))
        else:
            page = self._page(asked, faults)
            returned = len(page["items"])
            value = pick(page, asked.fields, "diamonds_by_query")
        inner = {asked.field: value}
        return ({"as": inner} if asked.wrapped else inner), returned

    def _log_in(self, asked: _Asked) -> dict[str, str]:
        given = (asked.variables.get("username"), asked.variables.get("password"))
        if given != (self.username, self.password):
            raise QueryError("Invalid username or password", "BAD_CREDENTIALS")
        with self.lock:
            token = self._token(len(self._sessions))
            self._sessions[token] = _Session(self.now() + self.token_lives_s, self.token_lives_calls)
        return {"token": token}

    def _token(self, number: int) -> str:
        issued = time.time_ns() // 10**9
        claims = {"id": f"{self._seed}-{number}", "iat": issued, "exp": issued + math.ceil(self.token_lives_s)}
        head = f"{_base64({'alg': 'HS256', 'typ': 'JWT'})}.{_base64(claims)}"
        signature = hmac.new(b"stand-in", f"{head}{self.calls.total()}".encode(), hashlib.sha256).digest()
        return f"{head}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"

    def _check(self, token: Any, *, forget: bool) -> None:
        with self.lock:
            if forget:
                self._sessions.pop(token, None)
            session = self._sessions.get(token)
            if session is None or session.expires_at <= self.now() or session.calls_left < 1:
                raise QueryError("Unauthorized: the token is not valid", "UNAUTHENTICATED")
            session.calls_left -= 1

    def _rows(self, asked: _Asked, faults: Mapping[str, Any]) -> list[Stone]:
        rows = asked.chosen(self.stock)
        if how := faults.get(Fault.TWINS):
            return with_twins(rows, [stone.id for stone in rows], how.share, how.distance)
        return rows

    def _page(self, asked: _Asked, faults: Mapping[str, Any]) -> dict[str, Any]:
        rows = self._rows(asked, faults)
        size, offset = asked.limit, asked.offset
        if Fault.ENDLESS in faults and rows:
            offset %= len(rows)
        if Fault.OVERFULL in faults:
            size += 1
        if how := faults.get(Fault.SHORT_PAGE):
            size = max(1, min(size, len(rows) - offset) - how.by)
        if Fault.EMPTY_PAGE in faults:
            size = 0
        page = rows[offset : offset + size]
        if Fault.DISPLACED in faults and len(page) > 1:
            page = [*page[:-1], page[0]]
        lie = faults.get(Fault.LYING_TOTAL)
        # As the real one: what is left, not the total.
        return {
            "total_count": max(0, len(rows) - asked.offset + (lie.by if lie else 0)),
            "items": [stone.to_item() for stone in page],
        }

    def _spoilt(self, data: dict[str, Any], faults: Mapping[str, Any]) -> Reply:
        answer: dict[str, Any] = {"data": data}
        if Fault.POISON in faults:
            _poison(answer)
        if Fault.WRONG_TYPES in faults:
            with self.lock:
                answer = {"data": with_a_wrong_type(data, self.schedule.random)}
        if how := faults.get(Fault.ERRORS):
            answer = _errors(how.message, how.code)
        if Fault.NULL_DATA in faults:
            answer = {"data": None}
        if Fault.EMPTY_OBJECT in faults:
            answer = {}
        quiet = {name: how for name, how in faults.items() if name != Fault.SLOW}  # it has waited already
        return self.spoil(Reply.json(answer), quiet)

    # --- the control endpoint

    def obey(self, orders: Mapping[str, Any]) -> None:
        """{"shift": {…}}, {"expire_tokens": true}, {"token_lives_s": 60}, {"token_lives_calls": 3}"""
        if "shift" in orders:
            self.stock.shift(**orders["shift"])
        if "token_lives_s" in orders:
            self.token_lives_s = float(orders["token_lives_s"])
        if "token_lives_calls" in orders:
            self.token_lives_calls = float(orders["token_lives_calls"])
        if orders.get("expire_tokens"):
            self.expire_tokens()

    def figures(self) -> Mapping[str, Any]:
        return {"stones": len(self.stones)}


# --- what was asked ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A call that the stand-in understands."""

    operation: Operation
    field: str
    fields: tuple[Field, ...]
    variables: Mapping[str, Any]  # by the name of the argument
    token: str | None
    wrapped: bool

    @property
    def offset(self) -> int:
        return int(self.variables.get("offset") or 0)

    @property
    def limit(self) -> int:
        given = self.variables.get("limit")
        return LARGEST_LIMIT if given is None else int(given)

    @property
    def public(self) -> Mapping[str, Any]:
        return {key: value for key, value in self.variables.items() if key not in ("username", "password")}

    def chosen(self, stock: Stock) -> list[Stone]:
        """The stones that the query names, in its order."""
        query = self.variables["query"]
        value = query.get("dollar_value", {})
        stones = stock.between(value.get("from", 0) * 100, value.get("to", math.inf) * 100)
        for name, read in _FILTERS.items():
            if (wanted := query.get(name)) is not None:
                stones = [
                    stone for stone in stones if read(stone) in (wanted if isinstance(wanted, list) else [wanted])
                ]
        order = self.variables.get("order") or {"type": "createdAt", "direction": "ASC"}
        if order["type"] == "price":
            stones = sorted(stones, key=lambda stone: (stone.price_cents, stone.created))
        return stones if order["direction"] == "ASC" else stones[::-1]


_FILTERS: Mapping[str, Callable[[Stone], Any]] = {
    "labgrown": lambda stone: stone.labgrown,
    "shapes": lambda stone: stone.shape,
    "availability": lambda stone: stone.availability,
}
_ARGUMENTS = {
    "diamonds_by_query": (Operation.PAGE, {"query", "offset", "limit", "order"}),
    "diamonds_by_query_count": (Operation.COUNT, {"query"}),
    "username_and_password": (Operation.AUTHENTICATE, {"username", "password"}),
}


def _asked(body: bytes, authorization: str) -> _Asked:
    text, variables = _request(body)
    root = parse(text, variables)
    token = authorization.removeprefix("Bearer ") or None
    field = root
    if root.name in ("as", "authenticate"):
        token = variables.get(root.arguments.get("token", ""), token)
        field = _only(root)
    if field.name not in _ARGUMENTS or (field.name == "username_and_password") != (root.name == "authenticate"):
        raise QueryError(f'Cannot query field "{field.name}" on "Query"')
    operation, known = _ARGUMENTS[field.name]
    if unknown := set(field.arguments) - known:
        raise QueryError(f"Unknown arguments {sorted(unknown)}")
    values = {name: variables.get(variable) for name, variable in field.arguments.items()}
    if operation is not Operation.AUTHENTICATE:
        _check_query(values)
    return _Asked(
        operation=operation,
        field=field.name,
        fields=field.fields,
        variables=values,
        token=token,
        wrapped=root.name == "as",
    )


def _request(body: bytes) -> tuple[str, dict[str, Any]]:
    try:
        request = json.loads(body)
        text, variables = request["query"], request.get("variables") or {}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise QueryError("Must provide query string", "BAD_REQUEST") from None
    if not isinstance(text, str) or not isinstance(variables, dict):
        raise QueryError("Must provide query string", "BAD_REQUEST")
    return text, variables


def _only(root: Field) -> Field:
    if len(root.fields) != 1:
        raise QueryError(f'The stand-in answers one field of "{root.name}" at a time')
    return root.fields[0]


def _check_query(values: Mapping[str, Any]) -> None:
    query = values.get("query")
    if not isinstance(query, dict) or set(query) - {"dollar_value", *_FILTERS}:
        raise QueryError("Variable $query is not a known DiamondQuery", "BAD_USER_INPUT")
    value = query.get("dollar_value", {})
    if set(value) - {"from", "to"} or not all(type(each) is int for each in value.values()):
        raise QueryError("dollar_value takes whole dollars", "BAD_USER_INPUT")
    for name in ("offset", "limit"):
        given = values.get(name)
        if given is not None and (type(given) is not int or given < 0):
            raise QueryError(f"{name} must be an Int", "BAD_USER_INPUT")
    if (values.get("limit") or 0) > LARGEST_LIMIT:
        raise QueryError(f"Limit can be {LARGEST_LIMIT} maximum", "BAD_USER_INPUT")
    order = values.get("order")
    if order is not None and (order.get("type"), order.get("direction")) not in _ORDERS:
        raise QueryError("Unknown DiamondOrder", "BAD_USER_INPUT")


_ORDERS = {(by, direction) for by in ("price", "createdAt") for direction in ("ASC", "DESC")}


# --- what is answered -------------------------------------------------------------------------------------------------


def _errors(message: str, code: str | None) -> dict[str, Any]:
    error: dict[str, Any] = {"message": message, "path": ["as"]}
    if code is not None:
        error["extensions"] = {"code": code}
    return {"data": None, "errors": [error]}


def _refusal(message: str, code: str) -> Reply:
    return Reply(body=json.dumps(_errors(message, code)).encode())


def _poison(answer: Any) -> None:
    for item in answer["data"].get("as", answer["data"])["diamonds_by_query"]["items"]:
        item["diamond"]["poison"] = {**POISON, POISON["nul"]: [POISON["lone"]]}


def _base64(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def main() -> None:
    parser = argparse.ArgumentParser(description="A stand-in for the Nivoda API.")
    parser.add_argument("--stones", type=int, default=5_000)
    parser.add_argument("--low", type=int, default=200, help="lowest price in dollars")
    parser.add_argument("--high", type=int, default=20_000, help="highest price in dollars")
    run_by_hand(
        parser,
        lambda asked: NivodaStandIn(asked.seed, stones=asked.stones, low=asked.low, high=asked.high),
        f"username {USERNAME}, password {PASSWORD}",
    )


if __name__ == "__main__":
    main()
