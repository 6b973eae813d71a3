"""Guards the one contract between old and new code: every released message stays readable, and nothing else is."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.kernel.baton import UnreadableBaton, read_baton
from shared.kernel.dead_letter import note_dead_letter
from shared.kernel.entry import forward_handler, step_handler
from shared.kernel.handle import handle_baton, handle_delayed
from shared.kernel.metrics import Metric
from shared.kernel.ports import Ports
from tests.support.lambda_calls import FakeContext, a_message, sqs_record
from tests.support.rig import DELAY, FIFO, Rig
from tests.support.tally import QuietWorld, tally_kind

MESSAGES = {path.stem: json.loads(path.read_text()) for path in (Path(__file__).parent / "messages").glob("v*.json")}
GOOD = {"v": 1, "kind": "tally", "lane_id": str(UUID(int=7)), "epoch": 1, "seq": 0, "resend_no": 0}


dumps = partial(json.dumps, separators=(",", ":"))  # as `to_json` writes it
GOOD_BODY = dumps(GOOD)


def but(**changed: Any) -> str:
    return dumps({**GOOD, **changed})


def without(name: str) -> str:
    return dumps({key: value for key, value in GOOD.items() if key != name})


def twice(name: str) -> str:
    return f'{GOOD_BODY[:-1]},"{name}":{dumps(GOOD[name])}}}'


BAD = {
    "an unknown version": but(v=2),
    "version zero": but(v=0),
    "a version as text": but(v="1"),
    "an extra field": but(cursor={}),
    **{f"no {name}": without(name) for name in GOOD if name != "v"},
    **{f"{name} null": but(**{name: None}) for name in GOOD},
    **{f"{name} as text": but(**{name: "1"}) for name in ("epoch", "seq", "resend_no")},
    **{f"{name} a fraction": but(**{name: 1.0}) for name in ("epoch", "seq", "resend_no")},
    **{f"{name} negative": but(**{name: -1}) for name in ("epoch", "seq", "resend_no")},
    **{f"{name} a bool": but(**{name: True}) for name in ("epoch", "seq", "resend_no")},
    "epoch beyond integer": but(epoch=2**31),
    "resend_no beyond integer": but(resend_no=2**31),
    "seq beyond bigint": but(seq=2**63),
    "seq of 400 digits": GOOD_BODY.replace('"seq":0', f'"seq":{"9" * 400}'),
    "seq of a million digits": GOOD_BODY.replace('"seq":0', f'"seq":{"9" * 2**20}'),
    "seq infinite": GOOD_BODY.replace('"seq":0', '"seq":Infinity'),
    "seq not a number": GOOD_BODY.replace('"seq":0', '"seq":NaN'),
    "a kind without name": but(kind=""),
    "a kind of 61 letters": but(kind="k" * 61),
    "a kind that is a list": but(kind=["tally"]),
    "a raw NUL": GOOD_BODY.replace("tally", "ta\x00lly"),
    "a lone surrogate": GOOD_BODY.replace("tally", "ta\ud800lly"),
    "an escaped lone surrogate": GOOD_BODY.replace("tally", r"ta\ud800lly"),
    "a lane that is no uuid": but(lane_id="7"),
    "a lane that is a number": but(lane_id=7),
    "a mebibyte of garbage": "\N{SNOWMAN}x" * 2**18,
    "5,000 lists": "[" * 5000 + "]" * 5000,
    "5,000 objects in a field": f'{GOOD_BODY[:-1]},"x":{"[" * 5000}{"]" * 5000}}}',
    "a list": f"[{GOOD_BODY}]",
    "two messages": GOOD_BODY * 2,
    "null": "null",
    "a number": "1",
    "no JSON": "hello",
    "half a message": GOOD_BODY[:40],
    "nothing": "",
    "a byte order mark": "\ufeff" + GOOD_BODY,
    "a version that is true": but(v=True),
    "a version that is a fraction": but(v=1.0),
    "no v": without("v"),
    "a NUL in the kind": but(kind="ta\x00lly"),
    "a field twice": twice("seq"),
}
CASES = [pytest.param(body, id=name) for name, body in BAD.items()]


class Untouched:
    """A port that a message which is no baton must never reach."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was called for a message that is no baton")


class Counts:
    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()

    def count(self, metric: str, value: float = 1, /, **dimensions: str) -> None:
        self.counted[metric] += int(value)


@pytest.fixture
def meter() -> Counts:
    return Counts()


@pytest.fixture
def ports(meter: Counts) -> Ports:
    untouched: Any = Untouched()
    return Ports(store=untouched, queue=untouched, meter=meter)


def test_every_version_that_the_code_knows_has_its_message_on_file() -> None:
    assert sorted(MESSAGES) == sorted(f"v{version}" for version in range(20) if _is_known(version))


def _is_known(version: int) -> bool:
    try:
        read_baton(but(v=version))
    except UnreadableBaton:
        return False
    return True


@pytest.mark.parametrize("version", MESSAGES)
def test_a_released_message_still_means_what_it_meant(version: str) -> None:
    baton = read_baton(MESSAGES[version]["body"])

    assert json.loads(baton.to_json()) == MESSAGES[version]["means"]


def test_what_is_sent_today_is_the_newest_version_on_file() -> None:
    newest = MESSAGES[max(MESSAGES, key=lambda name: int(name[1:]))]

    assert read_baton(newest["body"]).to_json() == newest["body"]


@pytest.mark.parametrize("body", CASES)
def test_what_is_no_baton_is_unreadable_and_nothing_else(body: str) -> None:
    with pytest.raises(UnreadableBaton):
        read_baton(body)


@pytest.mark.full
@given(
    st.text() | st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists).map(dumps)
)
def test_no_text_at_all_raises_anything_else(body: str) -> None:
    with pytest.raises(UnreadableBaton):
        read_baton(body)


@given(st.fixed_dictionaries({}, optional={name: st.just(value) | st.none() | st.integers() | st.floats() | st.text() | st.booleans() for name, value in GOOD.items()}))  # fmt: skip
def test_whatever_its_fields_hold_a_message_is_a_baton_or_unreadable(fields: dict[str, Any]) -> None:
    try:
        baton = read_baton(dumps(fields))
    except UnreadableBaton:
        return
    assert read_baton(baton.to_json()) == baton


@pytest.mark.parametrize("body", CASES)
def test_an_unreadable_message_is_counted_and_given_back(ports: Ports, meter: Counts, body: str) -> None:
    kind = tally_kind(QuietWorld())

    assert handle_baton(ports, kind, a_message(body)) is False
    assert handle_delayed(ports, a_message(body)) is False

    assert meter.counted == {Metric.UNREADABLE: 2}


@pytest.mark.parametrize("body", CASES)
def test_an_unreadable_dead_letter_is_counted_and_touches_no_lane(ports: Ports, meter: Counts, body: str) -> None:
    assert note_dead_letter(ports, body, 11) is False

    assert meter.counted == {Metric.DEAD_LETTER: 1}


def test_a_baton_of_another_kind_is_given_back(ports: Ports, meter: Counts) -> None:
    assert handle_baton(ports, tally_kind(QuietWorld()), a_message(but(kind="searches"))) is False

    assert meter.counted == {Metric.UNREADABLE: 1}


def test_unreadable_messages_do_not_disturb_their_neighbours(rig: Rig) -> None:
    run_id = rig.start(lanes=2, target=1)
    good = [rig.expect(), rig.expect()]
    bad = [a_message(body, number=n, group=f"g{n}") for n, body in enumerate(BAD.values())]
    batch = [good[0], *bad, good[1]]

    answer = step_handler(rig.kind, rig.ports)({"Records": [sqs_record(m, FIFO) for m in batch]}, FakeContext())

    assert [each["itemIdentifier"] for each in answer["batchItemFailures"]] == [m.message_id for m in bad]
    assert rig.counted[Metric.UNREADABLE] == len(bad)
    assert rig.run(run_id)["status"] == "succeeded"


def test_unreadable_messages_do_not_stop_the_forwarder(rig: Rig) -> None:
    run_id = rig.start(target=2, delays=(30,))
    rig.work_off()
    rig.now = 31
    good = rig.expect(DELAY)
    bad = [a_message(body, number=n, group=good.group) for n, body in enumerate(BAD.values())]

    answer = forward_handler(rig.ports)({"Records": [sqs_record(m, DELAY) for m in [*bad, good]]}, FakeContext())

    assert [each["itemIdentifier"] for each in answer["batchItemFailures"]] == [m.message_id for m in bad]
    rig.work_off()
    assert rig.run(run_id)["status"] == "succeeded"


def test_a_group_in_a_standard_queue_is_a_tenant_and_stops_nobody(rig: Rig) -> None:
    rig.start(target=2, delays=(30,))
    rig.work_off()
    rig.now = 31
    good = rig.expect(DELAY)
    bad = replace(a_message("no baton"), group=good.group)

    forward_handler(rig.ports)({"Records": [sqs_record(m, DELAY) for m in (bad, good)]}, FakeContext())

    assert len(rig.queue.messages(FIFO).visible) == 1
