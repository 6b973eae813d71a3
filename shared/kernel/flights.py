"""Guards the number of network flights: one per statement, with BEGIN and the tenant on board.

pg8000 sends Parse, Describe and Bind apart and waits after each. This connection sends them together and leaves every
answer to pg8000's own handlers, so that values decode exactly as they always did. Statements are unnamed, but for those
of every step and what rides ahead of them: the server would spend more on planning them than on doing them.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import chain
from time import monotonic
from typing import Any, NoReturn
from uuid import UUID, SafeUUID

from pg8000 import dbapi
from pg8000.converters import make_param
from pg8000.core import (
    BIND,
    BIND_COMPLETE,
    CLOSE,
    CLOSE_COMPLETE,
    COMMAND_COMPLETE,
    COPY_DATA,
    COPY_DONE,
    COPY_OUT_RESPONSE,
    DATA_ROW,
    DESCRIBE,
    EMPTY_QUERY_RESPONSE,
    EXECUTE_MSG,
    NULL_BYTE,
    PARSE,
    PARSE_COMPLETE,
    PORTAL,
    QUERY,
    READY_FOR_QUERY,
    ROW_DESCRIPTION,
    STATEMENT,
    SYNC_MSG,
    Context,
    H_pack,
    i_pack,
)
from pg8000.exceptions import DatabaseError, InterfaceError


def _message(code: bytes, body: bytes) -> bytes:
    return bytes(code + i_pack(len(body) + 4) + body)


DESCRIBE_MSG = _message(DESCRIBE, PORTAL + NULL_BYTE)
TIMESTAMPTZ, UUID_TYPE = 1184, 2950
_blank, _set = object.__new__, object.__setattr__
MOST_DESCRIPTIONS = 500
STATEMENT_ENDS = frozenset({COMMAND_COMPLETE, EMPTY_QUERY_RESPONSE})
NO_NEWS = frozenset({PARSE_COMPLETE, BIND_COMPLETE, CLOSE_COMPLETE})
UNNAMED = NULL_BYTE
NO_FORMATS, NULL_VALUE = H_pack(0), i_pack(-1)
HEADER, LENGTH = struct.Struct("!ci"), struct.Struct("!i")
READ_AT_ONCE = 64 * 1024
COPIED_AT_ONCE = 256 * 1024
# A plan made while a table was small must not outlive its youth by much: it serves for some seconds, and at most twice as often as the
# one before it.
FIRST_USES, PLAN_USES, PLAN_S = 8, 500, 10.0
MOST_PLANS = 100
# Ask after 10 s of silence, then every 5 s; give up after four questions, or 30 s (in ms) in which nothing sent arrived.
SILENCE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 30_000))
# DETAIL, CONTEXT and the query of a function: what of somebody's data the server could not take.
QUOTES = ("D", "W", "q")
# A pooler in between lost or shares our names, or a migration changed what a kept statement answers.
PLAN_LOST = frozenset({"26000", "42P05", "0A000"})


# A statement with its parameters, or with these as they travel.
Asked = tuple[str, Sequence[Any] | bytes]
# A transaction: what nobody reads the answers of, and then what is read.
Part = tuple[Sequence[Asked], Sequence[Asked]]


@dataclass(slots=True)
class _Plan:
    """`shape`: what the answer looks like, once it is known. A plan never answers otherwise: the server would refuse it."""

    name: bytes
    lasts: int
    until: float
    uses: int = 0
    shape: tuple[Any, Any] | None = None


def _instant(text: str) -> datetime | str:
    """A timestamptz, three times faster than pg8000 reads it; what is no date to Python (`infinity`) stays text."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text


def _uuid(text: str) -> UUID:
    """As the server writes it, which is not checked once more: twice as fast."""
    read = _blank(UUID)
    _set(read, "int", int(text.replace("-", ""), 16))
    _set(read, "is_safe", SafeUUID.unknown)
    return read


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
        self._ahead: list[tuple[str, bytes]] = []
        self._half_heard = b""  # what came behind the last answer
        super().__init__(*args, **kwargs)
        self.register_in_adapter(TIMESTAMPTZ, _instant)
        self.register_in_adapter(UUID_TYPE, _uuid)
        self._descriptions: dict[bytes, tuple[Any, Any]] = {}
        self.message_types[ROW_DESCRIPTION] = self._describe
        self.message_types[DATA_ROW] = self._read_row
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
        self._ahead.append((sql, self._spelled(args)))

    def execute_unnamed(
        self, statement: str, vals: Sequence[Any] = (), oids: Sequence[int] = (), stream: Any = None
    ) -> Context:
        ahead, context = self._sent_ahead(), Context(statement, stream=stream)
        messages = [
            *(sent for sent, _ in ahead),
            self._bound(statement, vals, oids),
            DESCRIBE_MSG,
            EXECUTE_MSG,
            SYNC_MSG,
        ]
        self._fly(b"".join(messages), [*(unread for _, unread in ahead), context])
        return context

    def execute_often(self, statement: str, vals: Sequence[Any]) -> Context:
        """`execute_unnamed` for the few statements that come again and again: the server keeps their plans, and those of what
        rides ahead of them.

        Only while each statement is its own transaction, where one that lost its plan can be sent again.
        """
        if not self._keeps_plans or not self.autocommit:
            return self.execute_unnamed(statement, vals)
        ahead, self._ahead = self._ahead, []
        ((context,),) = self._fly_planned([(ahead, [(statement, vals)])])
        if context.error is None:
            return context
        if self.closed or sqlstate(context.error) not in PLAN_LOST:
            raise context.error
        self._keeps_plans, self._ahead = False, ahead
        return self.execute_unnamed(statement, vals)

    def execute_apart(self, parts: Sequence[Part]) -> list[list[Context]]:
        """Several transactions in one flight, each of statements that nobody reads and of some that are read: these answer.

        The server keeps their plans. What failed answers its error alone: the transactions behind it were done nevertheless.
        """
        answers = self._fly_planned(parts)
        for n, (context, *_) in enumerate(answers):
            if context.error is not None and sqlstate(context.error) in PLAN_LOST:
                self._keeps_plans = False
                (answers[n],) = self._fly_planned([parts[n]])
        return answers

    def _fly_planned(self, parts: Sequence[Part]) -> list[list[Context]]:
        sent: list[bytes] = []
        contexts: list[list[Context]] = []
        read: list[list[Context]] = []
        new: list[str] = []
        arrived = False
        try:
            for unheard, heard in parts:
                ahead = [self._planned(*each, sent, new, is_read=False) for each in unheard]
                read.append([self._planned(*each, sent, new) for each in heard])
                contexts.append(ahead + read[-1])
                sent.append(SYNC_MSG)
            self._fly(b"".join(sent), contexts[0], contexts[1:])
            failed = [[each for each in part if each.error is not None][:1] for part in contexts]
            arrived = not any(failed)
        finally:
            for statement in () if arrived else new:  # whether the server has it is not known
                self._plans.pop(statement, None)
        if not arrived:
            return [error or answers for error, answers in zip(failed, read, strict=True)]
        for answers in read:
            for answer in answers:
                plan = self._plans.get(answer.statement)
                if plan is not None and plan.shape is None:
                    plan.shape = (answer.columns, answer.input_funcs)
        return read

    def _planned(
        self,
        statement: str,
        vals: Sequence[Any] | bytes,
        sent: list[bytes],
        new: list[str],
        *,
        is_read: bool = True,
    ) -> Context:
        """Send a bound statement whose plan is kept, if it can be. The server is asked for its shape once."""
        plan = self._plans.get(statement)
        full = plan is None and len(self._plans) >= MOST_PLANS
        # A plan that is made in this flight may be missing in a part behind it, if the part that makes it fails.
        if full or not self._keeps_plans or statement in new:
            plan = None
            sent.append(self._bound(statement, vals))
        else:
            if plan is None or plan.uses >= plan.lasts or monotonic() > plan.until:
                plan = self._new_plan(statement, plan, sent)
                new.append(statement)
            plan.uses += 1
            sent.append(self._bind(vals, plan.name))
        if not is_read:
            sent.append(EXECUTE_MSG)
            return Context(statement, columns=[])
        if plan is not None and plan.shape is not None:
            sent.append(EXECUTE_MSG)
            columns, input_funcs = plan.shape
            return Context(statement, columns=columns, input_funcs=input_funcs)
        sent.append(DESCRIBE_MSG + EXECUTE_MSG)
        return Context(statement)

    def _new_plan(self, statement: str, old: _Plan | None, sent: list[bytes]) -> _Plan:
        """A name that was never used, so that it does not matter whether an earlier flight got through."""
        if old is not None:
            sent.append(_message(CLOSE, STATEMENT + old.name))
        self._plans_made += 1
        lasts = FIRST_USES if old is None else min(PLAN_USES, 2 * old.lasts)
        plan = self._plans[statement] = _Plan(b"often_%d" % self._plans_made + NULL_BYTE, lasts, monotonic() + PLAN_S)
        sent.append(self._parse(statement, plan.name))
        return plan

    def _sent_ahead(self) -> list[tuple[bytes, Context]]:
        """What rides ahead, with BEGIN at its head if there must be one."""
        ahead, self._ahead = self._ahead, []
        unread = [(self._bound(sql, vals) + EXECUTE_MSG, Context(sql, columns=[])) for sql, vals in ahead]
        return [(self._bound("begin") + EXECUTE_MSG, Context("begin")), *unread] if self._must_begin else unread

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

    def copy_out(self, statement: str) -> Iterator[list[bytes]]:
        """The rows of a `COPY … TO STDOUT`, some hundred kB of them at a time; one flight, however many there are.

        Whoever stops before the end gives the connection up: the rest of the answer is nobody's.
        """
        ahead = self._sent_ahead()
        if self.closed:
            raise InterfaceError("connection is closed")
        self.flights += 1
        contexts = [*(unread for _, unread in ahead), Context(statement)]
        try:
            self._usock.sendall(b"".join([*(sent for sent, _ in ahead), self._bound(statement), EXECUTE_MSG, SYNC_MSG]))
            yield from self._read_copied(contexts)
        except GeneratorExit:
            self._abandon()
            raise
        except BaseException as cut:
            self._cut(cut, contexts)
        for context in contexts:
            if context.error is not None:
                raise context.error

    def _read_copied(self, contexts: Sequence[Context]) -> Iterator[list[bytes]]:
        waiting = iter(contexts)
        context, rows, size = next(waiting), [], 0
        for code, data in self._answers():
            if code == COPY_DATA:
                rows.append(data)
                size += len(data)
                if size >= COPIED_AT_ONCE:
                    yield rows
                    rows, size = [], 0
            elif code not in (COPY_OUT_RESPONSE, COPY_DONE):
                self.message_types[code](data, context)
                if code in STATEMENT_ENDS:
                    context = next(waiting, context)
        if rows:
            yield rows

    def heard(self, within_s: float) -> set[str]:
        """What the notifications say that came meanwhile, after waiting for one. For a connection that does nothing else: they
        are read as they come, without a question to the server."""
        if self.closed:
            raise InterfaceError("connection is closed")
        if not self._has_heard_a_word():
            if not select.select([self._usock], [], [], within_s)[0]:
                return set()
            came = self._usock.recv(READ_AT_ONCE)
            while getattr(self._usock, "pending", int)():  # what TLS has read already, `select` does not see
                came += self._usock.recv(READ_AT_ONCE)
            if not came:
                self._abandon()
                raise InterfaceError("network error")
            self._half_heard += came
        while self._has_heard_a_word():
            code, length = HEADER.unpack_from(self._half_heard)
            self.message_types[code](self._half_heard[HEADER.size : length + 1], Context(""))
            self._half_heard = self._half_heard[length + 1 :]
        told = {str(payload) for _, _, payload in self.notifications}
        self.notifications.clear()
        return told

    def _has_heard_a_word(self) -> bool:
        return len(self._half_heard) >= HEADER.size and len(self._half_heard) > HEADER.unpack_from(self._half_heard)[1]

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

    def _bound(self, sql: str, vals: Sequence[Any] | bytes = (), oids: Sequence[int] = ()) -> bytes:
        return self._parse(sql, UNNAMED, oids) + self._bind(vals, UNNAMED)

    def _parse(self, sql: str, name: bytes, oids: Sequence[int] = ()) -> bytes:
        types = b"".join(i_pack(0 if oid == -1 else oid) for oid in oids)
        return _message(PARSE, name + sql.encode(self._client_encoding) + NULL_BYTE + H_pack(len(oids)) + types)

    def _bind(self, vals: Sequence[Any] | bytes, name: bytes) -> bytes:
        return _message(BIND, NULL_BYTE + name + (vals if isinstance(vals, bytes) else self._spelled(vals)))

    def _spelled(self, vals: Sequence[Any]) -> bytes:
        """A parameter travels as text, NULL as the length -1. What every step sends is spelled here, the rest by pg8000."""
        parts = [NO_FORMATS, H_pack(len(vals))]
        for value in vals:
            if isinstance(value, str):
                text = value.encode()
            elif value is None:
                parts.append(NULL_VALUE)
                continue
            elif type(value) is UUID:
                text = str(value).encode()
            elif type(value) is int:
                text = b"%d" % value
            else:
                spelled = make_param(self.py_types, value)
                if spelled is None:
                    parts.append(NULL_VALUE)
                    continue
                text = spelled.encode()
            parts += (i_pack(len(text)), text)
        parts.append(NO_FORMATS)
        return b"".join(parts)

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
            self._cut(cut, [*contexts, *chain.from_iterable(more or ())])
        for context in contexts if more is None else ():
            if context.error is not None:
                raise context.error

    def _read_answers(self, contexts: Sequence[Context]) -> None:
        """Hand each answer to its statement; after an error the server skips the others up to ReadyForQuery."""
        waiting = iter(contexts)
        context, handlers = next(waiting), self.message_types
        for code, data in self._answers():
            handlers[code](data, context)
            if code in STATEMENT_ENDS:
                context = next(waiting, context)

    def _answers(self) -> Iterator[tuple[bytes, bytes]]:
        """Each with its code, up to ReadyForQuery. As much is read at once as is there; what comes behind is for the next who
        asks."""
        came, place, code = self._half_heard, 0, b""
        while code != READY_FOR_QUERY:
            if len(came) < place + HEADER.size:
                came, place = came[place:] + self._more(), 0
                continue
            code, length = HEADER.unpack_from(came, place)
            end = place + 1 + length
            if len(came) < end:
                came, place, end = self._at_least(came[place:], 1 + length), 0, 1 + length
            if code == READY_FOR_QUERY:
                self._half_heard = came[end:]
            if code not in NO_NEWS:
                yield code, came[place + HEADER.size : end]
            place = end

    def _at_least(self, came: bytes, size: int) -> bytes:
        parts, got = [came], len(came)
        while got < size:
            parts.append(self._more())
            got += len(parts[-1])
        return b"".join(parts)

    def _more(self) -> bytes:
        data: bytes = self._sock.read1(READ_AT_ONCE)
        if not data:
            raise InterfaceError("network error")
        return data

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

    def _read_row(self, data: bytes, context: Context) -> None:
        """As pg8000 does it, in two thirds of the time: what was taken together are some thousand values."""
        row: list[Any] = []
        at = 2
        for read in context.input_funcs:
            (size,) = LENGTH.unpack_from(data, at)
            at += 4
            if size < 0:
                row.append(None)
            else:
                row.append(read(data[at : at + size].decode()))
                at += size
        context.rows.append(row)

    def _cut(self, cut: BaseException, contexts: Iterable[Context]) -> NoReturn:
        self._abandon()
        told = next((c.error for c in contexts if c.error), None)  # a server that hangs up says why
        if isinstance(cut, OSError):
            raise InterfaceError("network error") from told or cut
        raise cut from told or cut.__cause__

    def _abandon(self) -> None:
        """Give the socket up: after half an answer, the rest would be read as the answer to someone else's question."""
        for end in (self._sock, self._usock):
            with suppress(OSError):
                end.close()
        self._sock = self._usock = None
