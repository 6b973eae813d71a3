"""Random lives of the queue in memory beside a slow model: order, blocking, and that no message is ever lost."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from shared.kernel.queue import Outgoing, QueueRefused, Received
from shared.kernel.queue_memory import MemoryQueue, QueueSettings, Stored

Place = Literal["main", "dead", "deleted", "purged"]
LIMIT = 2
VISIBILITY_S = 30
SPANS_S = st.sampled_from([1, 29, 30, 100, 299, 300])


@dataclass(slots=True, kw_only=True)
class Entry:
    """One accepted message, for ever."""

    id: str
    group: str
    ready_at: float
    place: Place = "main"
    tries: int = 0
    count: int = 0
    receipt: str = ""
    batch: int = 0


class Model:
    """The slow truth about two queues, main and dead: one list, always searched as a whole."""

    def __init__(self, *, fifo: bool) -> None:
        self.fifo = fifo
        self.entries: list[Entry] = []
        self.ids: dict[tuple[str, str | None], tuple[float, str]] = {}

    def send(self, message: Outgoing, answer: str, now: float) -> None:
        key = (message.group, message.dedup_id)
        sent_at, original = self.ids.get(key, (now - 300, ""))
        if self.fifo and now - sent_at < 300:
            assert answer == original
            return
        assert answer not in {entry.id for entry in self.entries}
        self.ids[key] = (now, answer)
        self.entries.append(Entry(id=answer, group=message.group, ready_at=now + message.delay_s))

    def held(self, entry: Entry, now: float) -> bool:
        return entry.receipt != "" and entry.ready_at > now

    def deliverable(self, place: Place, now: float) -> list[Entry]:
        here = [entry for entry in self.entries if entry.place == place]
        blocked = {entry.group for entry in here if self.fifo and self.held(entry, now)}
        return [entry for entry in here if entry.ready_at <= now and entry.group not in blocked]

    def receive(self, place: Place, batch: list[Received], moved: set[str], most: int, now: float, number: int) -> None:
        candidates = self.deliverable(place, now)
        taken = [next(entry for entry in candidates if entry.id == received.message_id) for received in batch]
        worn = [entry for entry in candidates if place == "main" and entry.tries >= LIMIT]
        gone = [entry for entry in candidates if entry.id in moved]
        assert all(entry in worn for entry in gone)
        assert not any(entry in worn for entry in taken)
        left = [entry for entry in candidates if entry not in taken and entry not in gone]
        if self.fifo:
            assert_in_order(taken, [entry for entry in candidates if entry not in gone])
        assert len(taken) == most or not left
        for entry in gone:
            entry.place, entry.tries, entry.receipt = "dead", 0, ""
            self.entries.remove(entry)
            self.entries.append(entry)
        for entry, received in zip(taken, batch, strict=True):
            entry.tries, entry.count = entry.tries + 1, entry.count + 1
            entry.receipt, entry.ready_at, entry.batch = received.receipt, now + VISIBILITY_S, number
            assert received.receive_count == entry.count


def assert_in_order(taken: list[Entry], candidates: list[Entry]) -> None:
    """Of each group, the front was taken and nothing was passed over."""
    for group in {entry.group for entry in taken}:
        mine = [entry for entry in taken if entry.group == group]
        assert mine == [entry for entry in candidates if entry.group == group][: len(mine)]


class QueueLife(RuleBasedStateMachine):
    fifo = True

    @initialize(seed=st.integers(0, 1_000))
    def start(self, seed: int) -> None:
        suffix = ".fifo" if self.fifo else ""
        self.names: dict[Place, str] = {"main": f"main{suffix}", "dead": f"dead{suffix}"}
        dead = QueueSettings(fifo=self.fifo, visibility_s=VISIBILITY_S)
        main = QueueSettings(
            fifo=self.fifo,
            visibility_s=VISIBILITY_S,
            max_receive_count=LIMIT,
            dead_letter=self.names["dead"],
            dedup_scope="messageGroup",
        )
        self.now, self.number = 0.0, 0
        self.queue = MemoryQueue(
            {self.names["main"]: main, self.names["dead"]: dead}, lambda: self.now, random.Random(seed)
        )
        self.model = Model(fifo=self.fifo)
        self.given: list[tuple[Place, str, str]] = []

    @rule(group=st.sampled_from("xyz"), dedup_id=st.sampled_from("abcdef"), delay_s=st.sampled_from([0, 0, 5, 900]))
    def send(self, group: str, dedup_id: str, delay_s: int) -> None:
        message = (
            Outgoing(body="b", group=group, dedup_id=dedup_id)
            if self.fifo
            else Outgoing(body="b", group=group, delay_s=delay_s)
        )
        self.model.send(message, self.queue.send_one(self.names["main"], message), self.now)

    @rule(place=st.sampled_from(["main", "main", "main", "dead"]), most=st.integers(1, 4))
    def receive(self, place: Place, most: int) -> None:
        self.number += 1
        before = ids(self.stored("dead"))
        batch = self.queue.receive(self.names[place], most)
        moved = ids(self.stored("dead")) - before
        self.model.receive(place, batch, moved, most, self.now, self.number)
        self.given += [(place, received.message_id, received.receipt) for received in batch]

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        place, entry, receipt = self.some_receipt(data)
        if entry is None:
            return
        gone = entry.place != place
        mine = entry.receipt == receipt
        refused = self.fifo and not gone and not (mine and self.model.held(entry, self.now))
        assert self.refuses(lambda: self.queue.delete(self.names[place], receipt)) == refused
        if gone or refused:
            return
        still_there = entry.id in ids(self.stored(place))
        assert not (mine and still_there)
        if not still_there:
            entry.place = "deleted"

    @rule(data=st.data(), seconds=st.sampled_from([0, 1, 50]))
    def change_visibility(self, data: st.DataObject, seconds: int) -> None:
        place, entry, receipt = self.some_receipt(data)
        if entry is None:
            return
        gone = entry.place != place
        valid = entry.receipt == receipt and self.model.held(entry, self.now)
        refused = gone or (self.fifo and not valid)
        assert self.refuses(lambda: self.queue.change_visibility(self.names[place], receipt, seconds)) == refused
        if valid and not gone:
            entry.ready_at = self.now + seconds

    @rule(seconds=SPANS_S)
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def jump(self) -> None:
        self.now = self.queue.next_change(self.names["main"]) or self.now

    @rule(sure=st.integers(0, 9))
    def purge(self, sure: int) -> None:
        if sure:
            return
        self.queue.purge(self.names["main"])
        for entry in self.model.entries:
            entry.place = "purged" if entry.place == "main" else entry.place

    @invariant()
    def every_message_is_where_the_model_has_it(self) -> None:
        for place in ("main", "dead"):
            contents = self.queue.messages(self.names[place])
            here = [entry for entry in self.model.entries if entry.place == place]
            waiting = [entry for entry in here if entry.ready_at > self.now]
            assert ids(contents.in_flight) == {e.id for e in waiting if e.receipt}
            assert ids(contents.delayed) == {e.id for e in waiting if not e.receipt}
            assert ids(contents.visible) == {e.id for e in here if e.ready_at <= self.now}

    @invariant()
    def only_one_receive_at_a_time_holds_a_fifo_group(self) -> None:
        if self.fifo:
            held = [e for e in self.model.entries if e.place == "main" and self.model.held(e, self.now)]
            assert len({(e.group, e.batch) for e in held}) == len({e.group for e in held})

    @invariant()
    def the_next_change_is_the_next_in_the_model(self) -> None:
        due = [e.ready_at for e in self.model.entries if e.place == "main" and e.ready_at > self.now]
        assert self.queue.next_change(self.names["main"]) == min(due, default=None)

    def some_receipt(self, data: st.DataObject) -> tuple[Place, Entry | None, str]:
        if not self.given:
            return "main", None, ""
        # The newest receipts first: old ones are only sometimes interesting.
        place, message_id, receipt = data.draw(st.sampled_from(self.given[-6:]))
        return place, next(entry for entry in self.model.entries if entry.id == message_id), receipt

    def stored(self, place: Place) -> tuple[Stored, ...]:
        contents = self.queue.messages(self.names[place])
        return contents.visible + contents.in_flight + contents.delayed

    @staticmethod
    def refuses(call: Callable[[], None]) -> bool:
        try:
            call()
        except QueueRefused:
            return True
        return False


def ids(stored: tuple[Stored, ...]) -> set[str]:
    return {one.message_id for one in stored}


class StandardLife(QueueLife):
    fifo = False


LIVES = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestFifoLife = QueueLife.TestCase
TestFifoLife.settings = LIVES
TestStandardLife = StandardLife.TestCase
TestStandardLife.settings = LIVES
