"""What only the queue in memory promises: the same seed, the same day; a clock that can jump; ids that can be seen."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from shared.kernel.queue import Outgoing, QueueRefused
from shared.kernel.queue_memory import MemoryQueue, QueueSettings

STEPS, DEAD, LATER = "steps.fifo", "dead.fifo", "later"
SETTINGS = {
    STEPS: QueueSettings(fifo=True, visibility_s=180, max_receive_count=1, dead_letter=DEAD),
    DEAD: QueueSettings(fifo=True, visibility_s=60, max_receive_count=1, dead_letter="grave.fifo"),
    "grave.fifo": QueueSettings(fifo=True),
    LATER: QueueSettings(fifo=False, visibility_s=30),
}


class World:
    """A queue and the clock it looks at."""

    def __init__(self, seed: int = 1) -> None:
        self.now = 0.0
        self.queue = MemoryQueue(SETTINGS, lambda: self.now, random.Random(seed))


def step(body: str, group: str | None = None) -> Outgoing:
    return Outgoing(body=body, group=group or body, dedup_id=body)


def note(body: str, delay_s: int = 0) -> Outgoing:
    return Outgoing(body=body, group="tenant", delay_s=delay_s)


def order_of_delivery(queue: str, make: Callable[[str], Outgoing], seed: int) -> list[str]:
    world = World(seed)
    world.queue.send(queue, [make(str(n)) for n in range(12)])
    return [world.queue.receive(queue)[0].body for _ in range(12)]


@pytest.mark.parametrize(("queue", "make"), [(STEPS, step), (LATER, note)])
def test_a_seed_decides_the_order_and_another_seed_another(queue: str, make: Callable[[str], Outgoing]) -> None:
    orders = [tuple(order_of_delivery(queue, make, seed)) for seed in (1, 1, 2, 3)]

    assert orders[0] == orders[1]
    assert len(set(orders)) == 3


def test_the_same_calls_give_the_same_ids_and_receipts() -> None:
    worlds = [World(), World()]
    for world in worlds:
        world.queue.send(STEPS, [step("a"), step("b")])

    assert worlds[0].queue.receive(STEPS, 10) == worlds[1].queue.receive(STEPS, 10)


def test_a_duplicate_is_answered_with_the_id_of_its_original_even_after_its_deletion() -> None:
    world = World()
    original = world.queue.send_one(STEPS, step("a"))
    world.queue.delete(STEPS, world.queue.receive(STEPS)[0].receipt)

    assert world.queue.send_one(STEPS, step("a")) == original
    world.now = 300
    assert world.queue.send_one(STEPS, step("a")) != original


def test_the_next_change_is_the_earliest_end_of_a_delay_or_of_a_visibility() -> None:
    world = World()
    assert world.queue.next_change(LATER) is None
    world.queue.send(LATER, [note("in flight")])
    world.queue.receive(LATER)
    world.queue.send(LATER, [note("soon", 10), note("late", 40)])

    seen: list[float] = []
    while (due := world.queue.next_change(LATER)) is not None:
        seen.append(due)
        world.now = due

    assert seen == [10, 30, 40]


def test_the_next_change_forgets_what_was_deleted_or_moved() -> None:
    world = World()
    world.queue.send(LATER, [note("a"), note("b")])
    one, two = world.queue.receive(LATER, 2)
    world.queue.delete(LATER, one.receipt)
    world.queue.change_visibility(LATER, two.receipt, 500)

    assert world.queue.next_change(LATER) == 500


def test_contents_tell_where_every_message_is() -> None:
    world = World()
    world.queue.send(LATER, [note("in flight")])
    world.queue.receive(LATER)
    world.queue.send(LATER, [note("visible"), note("delayed", 5)])

    contents = world.queue.messages(LATER)

    assert [m.body for m in contents.visible] == ["visible"]
    assert [(m.body, m.receive_count) for m in contents.in_flight] == [("in flight", 1)]
    assert [m.body for m in contents.delayed] == ["delayed"]


def test_a_message_that_waits_behind_its_group_counts_as_visible() -> None:
    world = World()
    world.queue.send(STEPS, [step("1", "lane"), step("2", "lane")])
    world.queue.receive(STEPS)

    assert [m.body for m in world.queue.messages(STEPS).visible] == ["2"]
    assert world.queue.receive(STEPS) == []


def test_an_older_receipt_deletes_from_a_standard_queue_only_sometimes() -> None:
    left = {len(after_delete_with_older_receipt(World(seed))) for seed in range(20)}

    assert left == {0, 1}


def after_delete_with_older_receipt(world: World) -> tuple[object, ...]:
    world.queue.send(LATER, [note("a")])
    older = world.queue.receive(LATER)[0]
    world.now = 30
    world.queue.receive(LATER)
    world.queue.delete(LATER, older.receipt)
    return world.queue.messages(LATER).in_flight


def test_the_limit_of_a_dead_letter_queue_counts_from_zero() -> None:
    world = World()
    world.queue.send(STEPS, [step("poison")])
    world.queue.receive(STEPS)
    world.now = 180
    assert world.queue.receive(STEPS) == []

    [letter] = world.queue.receive(DEAD)

    assert letter.receive_count == 2
    world.now = 240
    assert world.queue.receive(DEAD) == []
    assert [m.body for m in world.queue.messages("grave.fifo").visible] == ["poison"]


def test_a_dead_letter_queues_up_behind_what_was_there_before_it_moved() -> None:
    world = World()
    world.queue.send(STEPS, [step("poison", "lane")])
    world.queue.receive(STEPS)
    world.queue.send(DEAD, [step("earlier", "lane")])
    world.now = 180
    world.queue.receive(STEPS)

    assert [received.body for received in world.queue.receive(DEAD, 2)] == ["earlier", "poison"]


def test_a_timer_of_the_old_queue_does_not_touch_a_message_that_moved() -> None:
    world = World()
    world.queue.send(STEPS, [step("poison")])
    [held] = world.queue.receive(STEPS)
    world.queue.change_visibility(STEPS, held.receipt, 1)
    world.now = 1
    world.queue.receive(STEPS)
    world.queue.receive(DEAD)
    world.now = 181
    world.queue.receive(STEPS)

    assert world.queue.messages(STEPS).visible == ()
    assert len(world.queue.messages(DEAD).visible) == 1


def test_a_receipt_of_another_queue_is_refused() -> None:
    world = World()
    world.queue.send(STEPS, [step("a")])
    [held] = world.queue.receive(STEPS)

    with pytest.raises(QueueRefused, match="ReceiptHandleIsInvalid"):
        world.queue.delete(DEAD, held.receipt)


def test_timers_of_deleted_messages_do_not_pile_up_while_the_clock_stands_still() -> None:
    world = World()
    for n in range(1_000):
        world.queue.send(STEPS, [step(str(n))])
        world.queue.delete(STEPS, world.queue.receive(STEPS)[0].receipt)

    assert len(world.queue._boxes[STEPS]._timers) < 100


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        pytest.param({"a": QueueSettings(fifo=True)}, "fifo", id="a FIFO queue without the suffix"),
        pytest.param({"a.fifo": QueueSettings(fifo=False)}, "fifo", id="a standard queue with the suffix"),
        pytest.param({"a": QueueSettings(fifo=False, max_receive_count=1)}, "together", id="a limit and no target"),
        pytest.param(
            {"a": QueueSettings(fifo=False, max_receive_count=0, dead_letter="b"), "b": QueueSettings(fifo=False)},
            "at least 1",
            id="a limit of zero",
        ),
        pytest.param(
            {"a": QueueSettings(fifo=False, max_receive_count=1, dead_letter="b")}, "exist", id="a target that is not"
        ),
        pytest.param(
            {"a.fifo": QueueSettings(fifo=True, max_receive_count=1, dead_letter="b"), "b": QueueSettings(fifo=False)},
            "same kind",
            id="a target of the other kind",
        ),
    ],
)
def test_queues_that_aws_would_not_create_cannot_be_declared(settings: dict[str, QueueSettings], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        MemoryQueue(settings, lambda: 0.0, random.Random(1))
