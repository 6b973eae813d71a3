"""Guards the number of network flights: one per statement, with BEGIN and the tenant on board.

pg8000 sends Parse, Describe and Bind apart and waits after each. This connection sends them together and leaves every
answer to pg8000's own handlers, so that values decode exactly as they always did. Statements are unnamed, but for the
two of every step: the server would spend more on planning those than on doing them.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from pg8000 import dbapi
from pg8000.converters import make_params
from pg8000.core import (
    BIND,
    CLOSE,
    COMMAND_COMPLETE,
    DESCRIBE,
    EMPTY_QUERY_RESPONSE,
    EXECUTE_MSG,
    NULL_BYTE,
    PARSE,
    PORTAL,
    QUERY,
    READY_FOR_QUERY,
    ROW_DESCRIPTION,
    STATEMENT,
    SYNC_MSG,
    Context,
    H_pack,
    ci_unpack,
    i_pack,
)
from pg8000.exceptions import DatabaseError, InterfaceError


def _message(code: bytes, body: bytes) -> bytes:
    return bytes(code + i_pack(len(body) + 4) + body)


DESCRIBE_MSG = _message(DESCRIBE, PORTAL + NULL_BYTE)
TIMESTAMPTZ = 1184
MOST_DESCRIPTIONS = 500
STATEMENT_ENDS = frozenset({COMMAND_COMPLETE, EMPTY_QUERY_RESPONSE})
UNNAMED = NULL_BYTE
HEADER = struct.Struct("!ci")
READ_AT_ONCE = 64 * 1024
# A plan made while a table was small must not outlive its youth by much.
PLAN_USES = 500
MOST_PLANS = 100
# Ask after 10 s of silence, then every 5 s; give up after four questions, or 30 s (in ms) in which nothing sent arrived.
SILENCE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 30_000))
# DETAIL, CONTEXT and the query of a function: what of somebody's data the server could not take.
QUOTES = ("D", "W", "q")
# A pooler in between lost or shares our names, or a migration changed what a kept statement answers.
PLAN_LOST = frozenset({"26000", "42P05", "0A000"})


@dataclass(slots=True)
class _Plan:
    name: bytes
    uses: int = 0


def _instant(text: str) -> datetime | str:
    """A timestamptz, three times faster than pg8000 reads it; what is no date to Python (`infinity`) stays text."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text


def _notice_silence(line: socket.socket) -> None:
    """A server that is gone without a word, as after a failover, is given up after half a minute; a busy one is not."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in SILENCE:
        if hasattr(socket, option):  # what this system does not know, it does its own way
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def sqlstate(error: BaseException | None) -> str | None:
    """The server's five-letter reason, if this is an error of the server."""
    told = error.args[0] if isinstance(error, DatabaseError) and error.args else None
    return told.get("C") if isinstance(told, dict) else None


@lru_cache(maxsize=256)
def _numbered(sql: str) -> str:
    """Turn `%s` into `$1`; kept, because pg8000 scans the text character by character."""
    return str(dbapi.convert_paramstyle("format", sql, ())[0])


class Cursor(dbapi.Cursor):  # type: ignore[misc]
    _input_oids: Sequence[int]

    def execute(self, operation: str, args: Sequence[Any] = (), stream: Any = None) -> None:
        if self._c is None:
            raise InterfaceError("Cursor closed")
        if args or stream is not None:
            self._context = self._c.execute_unnamed(_numbered(operation), args, self._input_oids, stream)
        else:
            self._context = self._c.execute_bare(operation)
        rows = self._context.rows
        self._row_iter = None if rows is None else iter(rows)
        self._input_oids = ()


class Connection(dbapi.Connection):  # type: ignore[misc]
    """A pg8000 connection that counts its round trips in `flights` (the handshake is not one of them).

    `timeout` bounds the handshake only: how long a statement may take is for the server's `statement_timeout` to say.
    """

    _sock: Any
    _usock: Any

    def __init__(self, *args: Any, keeps_plans: bool = False, **kwargs: Any) -> None:
        self.flights = 0
        self._keeps_plans = keeps_plans
        self._plans: dict[str, _Plan] = {}
        self._plans_made = 0
        self._ahead: list[tuple[bytes, Context]] = []
        self._half_heard = b""
        super().__init__(*args, **kwargs)
        self.register_in_adapter(TIMESTAMPTZ, _instant)
        self._descriptions: dict[bytes, tuple[Any, Any]] = {}
        self.message_types[ROW_DESCRIPTION] = self._describe
        self._usock.settimeout(None)
        if self._usock.family in (socket.AF_INET, socket.AF_INET6):
            # Else the tail of a parameter of some kB waits 40 ms for the acknowledgement of its head.
            self._usock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _notice_silence(self._usock)

    def handle_ERROR_RESPONSE(self, data: bytes, context: Context) -> None:  # noqa: N802 - pg8000's name
        """Without the fields that quote rows and parameters: an error's text is logged."""
        super().handle_ERROR_RESPONSE(data, context)
        told = context.error.args[0]
        for field in QUOTES:
            told.pop(field, None)

    @property
    def closed(self) -> bool:
        return self._usock is None

    def cursor(self) -> Cursor:
        return Cursor(self)

    def before_next(self, sql: str, *args: Any) -> None:
        """Send `sql` (its parameters are `$1`, `$2`, …) just ahead of the next statement; nobody reads its result."""
        self._ahead.append((self._bound(sql, args) + EXECUTE_MSG, Context(sql, columns=[])))

    def execute_unnamed(
        self, statement: str, vals: Sequence[Any] = (), oids: Sequence[int] = (), stream: Any = None
    ) -> Context:
        ahead, self._ahead = self._ahead, []
        return self._send(ahead, self._bound(statement, vals, oids), Context(statement, stream=stream))

    def execute_often(self, statement: str, vals: Sequence[Any]) -> Context:
        """`execute_unnamed` for the few statements that come again and again: the server keeps their plans.

        Only while each statement is its own transaction, where one that lost its plan can be sent again.
        """
        plan = self._plans.get(statement)
        full = plan is None and len(self._plans) >= MOST_PLANS
        if full or not self._keeps_plans or not self.autocommit:
            return self.execute_unnamed(statement, vals)
        ahead, self._ahead = self._ahead, []
        prepare = b""
        if plan is None or plan.uses >= PLAN_USES:
            plan, prepare = self._new_plan(statement)
        try:
            context = self._send(ahead, prepare + self._bind(vals, plan.name), Context(statement))
        except DatabaseError as error:
            if self.closed or sqlstate(error) not in PLAN_LOST:
                raise
            self._keeps_plans, self._ahead = False, ahead
            return self.execute_unnamed(statement, vals)
        plan.uses += 1
        self._plans[statement] = plan
        return context

    def _new_plan(self, statement: str) -> tuple[_Plan, bytes]:
        """A name that was never used, so that it does not matter whether an earlier flight got through."""
        old = self._plans.pop(statement, None)
        self._plans_made += 1
        plan = _Plan(b"often_%d" % self._plans_made + NULL_BYTE)
        forget = b"" if old is None else _message(CLOSE, STATEMENT + old.name)
        return plan, forget + self._parse(statement, plan.name)

    def _send(self, ahead: Sequence[tuple[bytes, Context]], bound: bytes, context: Context) -> Context:
        """What rides ahead, then the bound statement: one flight."""
        if self._must_begin:
            ahead = [(self._bound("begin") + EXECUTE_MSG, Context("begin")), *ahead]
        messages = [*(sent for sent, _ in ahead), bound, DESCRIBE_MSG, EXECUTE_MSG, SYNC_MSG]
        self._fly(b"".join(messages), [*(unread for _, unread in ahead), context])
        return context

    def execute_apart(self, parts: Sequence[Sequence[tuple[str, Sequence[Any]]]]) -> list[Context]:
        """Several transactions in one flight, each of one or more statements; what the last statement of each answered.

        The server keeps their plans. An error is left in its context: the transactions behind it were done nevertheless.
        """
        answers = self._fly_apart(parts)
        for n, context in enumerate(answers):
            if context.error is not None and sqlstate(context.error) in PLAN_LOST:
                self._keeps_plans = False
                (answers[n],) = self._fly_apart([parts[n]])
        return answers

    def _fly_apart(self, parts: Sequence[Sequence[tuple[str, Sequence[Any]]]]) -> list[Context]:
        sent: list[bytes] = []
        contexts: list[list[Context]] = []
        for statements in parts:
            *before, (last, _) = statements
            for statement, vals in before:  # nobody reads what they answer
                sent += [self._planned(statement, vals), EXECUTE_MSG]
            sent += [self._planned(*statements[-1]), DESCRIBE_MSG, EXECUTE_MSG, SYNC_MSG]
            contexts.append([*(Context(statement, columns=[]) for statement, _ in before), Context(last)])
        self._fly(b"".join(sent), contexts[0], contexts[1:])
        return [next((each for each in part if each.error), part[-1]) for part in contexts]

    def _planned(self, statement: str, vals: Sequence[Any]) -> bytes:
        """A bound statement whose plan is kept, if it can be."""
        plan = self._plans.get(statement)
        if not self._keeps_plans or (plan is None and len(self._plans) >= MOST_PLANS):
            return self._bound(statement, vals)
        prepare = b""
        if plan is None or plan.uses >= PLAN_USES:
            plan, prepare = self._new_plan(statement)
        plan.uses += 1
        self._plans[statement] = plan
        return prepare + self._bind(vals, plan.name)

    def execute_bare(self, sql: str) -> Context:
        """Without parameters the text may hold several commands, which only a simple query takes."""
        if self._ahead or (self._must_begin and ";" not in sql.rstrip("; \t\n")):
            return self.execute_unnamed(sql)
        if self._must_begin:
            self.execute_simple("begin")
        return self.execute_simple(sql)

    def execute_simple(self, statement: str) -> Context:
        context = Context(statement)
        self._fly(_message(QUERY, statement.encode(self._client_encoding) + NULL_BYTE), [context])
        return context

    def heard(self, within_s: float) -> set[str]:
        """What the notifications say that came meanwhile, after waiting for one. For a connection that does nothing else: they
        are read as they come, without a question to the server."""
        if self.closed:
            raise InterfaceError("connection is closed")
        if not select.select([self._usock], [], [], within_s)[0]:
            return set()
        came = self._usock.recv(READ_AT_ONCE)
        while getattr(self._usock, "pending", int)():  # what TLS has read already, `select` does not see
            came += self._usock.recv(READ_AT_ONCE)
        if not came:
            self._abandon()
            raise InterfaceError("network error")
        self._half_heard += came
        while len(self._half_heard) >= HEADER.size:
            code, length = HEADER.unpack_from(self._half_heard)
            if len(self._half_heard) <= length:
                break
            self.message_types[code](self._half_heard[HEADER.size : length + 1], Context(""))
            self._half_heard = self._half_heard[length + 1 :]
        told = {str(payload) for _, _, payload in self.notifications}
        self.notifications.clear()
        return told

    def commit(self) -> None:
        self._end("commit")

    def rollback(self) -> None:
        self._end("rollback")

    def close(self) -> None:
        """Close quietly, also what is already lost."""
        self._ahead.clear()
        if not self.closed:
            with suppress(InterfaceError):
                super().close()

    @property
    def in_transaction(self) -> bool:
        return bool(self._in_transaction)

    @property
    def _must_begin(self) -> bool:
        return not self.autocommit and not self._in_transaction

    def _end(self, verb: str) -> None:
        self._ahead.clear()  # a tenant that was never sent must not meet the next user of this connection
        if self.closed:
            raise InterfaceError("connection is closed")
        if self._in_transaction:
            self.execute_simple(verb)

    def _bound(self, sql: str, vals: Sequence[Any] = (), oids: Sequence[int] = ()) -> bytes:
        return self._parse(sql, UNNAMED, oids) + self._bind(vals, UNNAMED)

    def _parse(self, sql: str, name: bytes, oids: Sequence[int] = ()) -> bytes:
        types = b"".join(i_pack(0 if oid == -1 else oid) for oid in oids)
        return _message(PARSE, name + sql.encode(self._client_encoding) + NULL_BYTE + H_pack(len(oids)) + types)

    def _bind(self, vals: Sequence[Any], name: bytes) -> bytes:
        """A parameter travels as text, NULL as the length -1."""
        texts = [None if v is None else v.encode(self._client_encoding) for v in make_params(self.py_types, vals)]
        values = b"".join(i_pack(-1) if text is None else i_pack(len(text)) + text for text in texts)
        return _message(BIND, NULL_BYTE + name + H_pack(0) + H_pack(len(texts)) + values + H_pack(0))

    def _fly(
        self, messages: bytes, contexts: Sequence[Context], more: Sequence[Sequence[Context]] | None = None
    ) -> None:
        """`more`: transactions behind the first; their errors are left to the caller."""
        if self.closed:
            raise InterfaceError("connection is closed")
        self.flights += 1
        try:
            self._usock.sendall(messages)
            self._read_answers(contexts)
            for behind in more or ():
                self._read_answers(behind)
        except BaseException as cut:
            self._abandon()
            told = next((c.error for c in contexts if c.error), None)  # a server that hangs up says why
            if isinstance(cut, OSError):
                raise InterfaceError("network error") from told or cut
            raise cut from told or cut.__cause__
        for context in contexts if more is None else ():
            if context.error is not None:
                raise context.error

    def _read_answers(self, contexts: Sequence[Context]) -> None:
        """Hand each answer to its statement; after an error the server skips the others up to ReadyForQuery."""
        waiting = iter(contexts)
        context, code = next(waiting), None
        while code != READY_FOR_QUERY:
            code, length = ci_unpack(self._read(5))
            self.message_types[code](self._read(length - 4), context)
            if code in STATEMENT_ENDS:
                context = next(waiting, context)

    def _describe(self, data: bytes, context: Context) -> None:
        """The shape of an answer, worked out once: the same statement always has the same one."""
        known = self._descriptions.get(data)
        if known is None:
            self.handle_ROW_DESCRIPTION(data, context)
            if len(self._descriptions) < MOST_DESCRIPTIONS:
                self._descriptions[data] = (context.columns, context.input_funcs)
        else:
            context.columns, context.input_funcs = known
            context.rows = []

    def _read(self, size: int) -> bytes:
        data: bytes = self._sock.read(size)
        if len(data) < size:
            raise InterfaceError("network error")
        return data

    def _abandon(self) -> None:
        """Give the socket up: after half an answer, the rest would be read as the answer to someone else's question."""
        for end in (self._sock, self._usock):
            with suppress(OSError):
                end.close()
        self._sock = self._usock = None
