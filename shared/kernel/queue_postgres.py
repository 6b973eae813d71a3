"""Queues as a table: the same port as SQS, for deployments that have Postgres and nothing else.

It keeps what the relay counts on, and no more: a message comes at least once, is hidden while somebody has it, and comes
again if nobody acknowledges it. Order and groups are not needed: a lane's row knows whose turn it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import UUID

import sqlalchemy as sa

from shared.kernel import db, direct
from shared.kernel.clock import new_id
from shared.kernel.queue import Outgoing, QueueUnavailable, Received, check_all

CHANNEL = "baton_messages"
T = TypeVar("T")

SEND = sa.text("""
with new as (select * from jsonb_to_recordset(cast(:messages as jsonb)) as m (body text, dedup_id text, delay_s integer)),
told as (select pg_notify(:channel, :queue) from new where delay_s = 0 limit 1)
insert into message (queue, body, dedup_id, visible_at)
select :queue, body, dedup_id, now() + make_interval(secs => delay_s) from new
where (select count(*) from told) >= 0
on conflict (queue, dedup_id) where dedup_id is not null do nothing
""")
RECEIVE = sa.text("""
update message set receipt = cast(:receipt as uuid), receive_count = receive_count + 1,
                   visible_at = now() + make_interval(secs => :hidden_s)
where id = any(array(
    select id from message where queue = :queue and visible_at <= now() order by visible_at limit :most for update skip locked))
returning id, body, dedup_id, receive_count
""")
DELETE = sa.text("delete from message where id = :id and receipt = cast(:receipt as uuid)")
HIDE = sa.text("""
update message set visible_at = now() + make_interval(secs => :seconds) where id = :id and receipt = cast(:receipt as uuid)
""")
ANY = sa.text("select exists (select from message where queue = :queue) as any")
PURGE = sa.text("delete from message where queue = :queue")


class PgQueue:
    def __init__(self, engine: sa.Engine, visibility_s: int = 360) -> None:
        self._engine = engine
        self._visibility_s = visibility_s

    def send(self, queue: str, messages: Sequence[Outgoing]) -> list[int]:
        check_all(queue, messages)
        rows = [{"body": each.body, "dedup_id": each.dedup_id, "delay_s": each.delay_s} for each in messages]
        self._once(lambda line: line.run(SEND, {"messages": db.jsonb(rows), "queue": queue, "channel": CHANNEL}))
        return []

    def is_empty(self, queue: str) -> bool:
        return not self._once(lambda line: line.scalars(ANY, {"queue": queue}))[0]

    def change_visibility(self, queue: str, receipt: str, seconds: int) -> None:  # noqa: ARG002 - the port's shape
        self._once(lambda line: line.run(HIDE, {**_named(receipt), "seconds": seconds}))

    def receive(self, queue: str, max_messages: int = 1) -> list[Received]:
        receipt = new_id()
        params = {"queue": queue, "most": max_messages, "receipt": receipt, "hidden_s": self._visibility_s}
        rows = self._once(lambda line: line.all(RECEIVE, params))
        return [
            Received(
                message_id=str(row["id"]),
                body=row["body"],
                receipt=f"{row['id']}:{receipt}",
                receive_count=row["receive_count"],
                group="",
                dedup_id=row["dedup_id"],
            )
            for row in rows
        ]

    def delete(self, queue: str, receipt: str) -> None:  # noqa: ARG002 - the port's shape
        self._once(lambda line: line.run(DELETE, _named(receipt)))

    def purge(self, queue: str) -> None:
        self._once(lambda line: line.run(PURGE, {"queue": queue}))

    def _once(self, do: Callable[[direct.Line], T]) -> T:
        try:
            with direct.alone(self._engine) as line:
                return do(line)
        except Exception as error:
            if db.is_disconnect(error):
                raise QueueUnavailable(str(type(error).__name__)) from error
            raise


def _named(receipt: str) -> dict[str, object]:
    message_id, _, by = receipt.partition(":")
    return {"id": int(message_id), "receipt": UUID(by)}
