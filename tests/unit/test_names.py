"""Guards the names that others see: ids, groups, deduplication ids, fingerprints, keys for the outside."""

from __future__ import annotations

import time
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.kernel.baton import Baton
from shared.kernel.clock import Chance, new_id, stopwatch
from shared.kernel.model import Problem, RemoteCall, fingerprint, idempotency_key
from shared.kernel.queue import Outgoing, check

batons = st.builds(
    Baton,
    kind=st.from_regex(r"[a-z][a-z_]{0,58}[a-z]", fullmatch=True),
    lane_id=st.uuids(),
    epoch=st.integers(0, 2**31 - 1),
    seq=st.integers(0, 2**63 - 1),
    resend_no=st.integers(0, 2**31 - 1),
)


@given(batons)
def test_every_baton_is_a_message_that_a_fifo_queue_takes(baton: Baton) -> None:
    check(Outgoing(body=baton.to_json(), group=baton.group(), dedup_id=baton.dedup_id()), fifo=True)

    assert max(len(baton.group()), len(baton.dedup_id())) <= 128
    assert len(baton.to_json()) < 1024


@given(batons, batons)
def test_only_equal_turns_share_a_deduplication_id(one: Baton, other: Baton) -> None:
    same = (one.lane_id, one.epoch, one.seq, one.resend_no) == (other.lane_id, other.epoch, other.seq, other.resend_no)

    assert (one.dedup_id() == other.dedup_id()) == same


@given(batons, st.integers(1, 1000))
def test_a_copy_travels_in_another_group_with_another_id(baton: Baton, copies: int) -> None:
    copy = baton.model_copy(update={"resend_no": baton.resend_no + copies})

    assert copy.group() != baton.group()
    assert copy.dedup_id() != baton.dedup_id()


@given(batons)
def test_the_next_turn_of_a_lane_stays_behind_this_one(baton: Baton) -> None:
    assert baton.model_copy(update={"seq": baton.seq + 1}).group() == baton.group()


def test_an_id_is_a_uuid_of_version_seven() -> None:
    made = new_id()

    assert (made.version, made.variant) == (7, uuid.RFC_4122)


def test_ids_are_unique() -> None:
    assert len({new_id() for _ in range(20_000)}) == 20_000


def test_ids_of_different_milliseconds_are_ordered(monkeypatch: pytest.MonkeyPatch) -> None:
    start = time.time_ns()
    now = iter(start + n * 1_000_000 for n in range(1000))
    monkeypatch.setattr("shared.kernel.clock.time.time_ns", lambda: next(now))

    made = [new_id() for _ in range(1000)]

    assert made == sorted(made)
    assert [each.int >> 80 for each in made] == [(start + n * 1_000_000) // 1_000_000 for n in range(1000)]


def test_a_fraction_is_below_one() -> None:
    chance = Chance()

    assert all(0 <= chance.fraction() < 1 for _ in range(1000))


def test_a_stopwatch_never_runs_backwards() -> None:
    elapsed = stopwatch()

    assert 0 <= elapsed() <= elapsed() < 60


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("row 17 of page 3 is broken", "row 18 of page 401 is broken"),
        (f"run {uuid.UUID(int=1)} was not found", f"run {uuid.UUID(int=2**100 + 5)} was not found"),
        ("timeout after 30.2 s", "timeout after 1.75 s"),
        ("the deadline 2026-01-02T03:04:05.678901+00:00 has passed", "the deadline 2026-11-12T13:14Z has passed"),
        ("there is no source 'nivoda'", "there is no source 'another one'"),
        ('field "price": not a number', 'field "carats": not a number'),
        ("job arn:0af5c9e17b2d4 is gone", "job arn:9bc1de0a77f21034 is gone"),
        ("read 1,000,000 rows, 12:30 left", "read 7 rows, 9:05 left"),
        ("2 of 9 partitions failed: part:0200-0300, part:0300-0400", "1 of 4 partitions failed: part:0700-0900"),
        ("7 of 9 failed: p:1, p:2, p:3, p:4, p:5, …", "1 of 9 failed: p:4"),
    ],
)
def test_equal_causes_share_a_fingerprint_whatever_they_mention(one: str, other: str) -> None:
    assert fingerprint("c", one) == fingerprint("c", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "x"), ("b", "x")),
        (("a", "x"), ("a", "y")),
        (("a", "b|x"), ("a|b", "y")),
        (("a", "the user's file isn't there"), ("a", "the user's row isn't there")),  # an apostrophe quotes nothing
        (("a", "page 1, row 2"), ("a", "page 1")),
    ],
)
def test_different_causes_have_different_fingerprints(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert fingerprint(*one) != fingerprint(*other)


@pytest.mark.parametrize("nasty", ["#" * 2_000, '"' * 2_001, "'a" * 1_000, "a, " * 700, "7" * 2_000, "`a'\"" * 500])
def test_no_message_takes_long_to_sum_up(nasty: str) -> None:
    """A pattern that tries every way would not come back; this one looks at each character a few times."""
    assert len(fingerprint("c", nasty)) == 12


@given(st.text(max_size=300), st.text(max_size=300))
def test_any_problem_can_be_stored(code: str, message: str) -> None:
    stored = Problem(code.replace("\x00", ""), message).to_json()

    assert set(stored) == {"code", "message", "fingerprint"}
    assert len(stored["fingerprint"]) == 12
    stored["message"].encode()


def test_a_stored_problem_holds_no_secret_and_groups_by_what_is_stored() -> None:
    stored = [Problem("c", f"refused: token={secret}").to_json() for secret in ("canary-a", "canary-b")]

    assert stored[0] == stored[1]
    assert "canary" not in str(stored)


@pytest.mark.full
@given(st.uuids(), st.integers(1, 100), st.text())
def test_a_call_has_the_same_key_at_every_try_and_another_in_every_epoch(
    run_id: uuid.UUID, epoch: int, key: str
) -> None:
    key = key.encode("utf-8", "ignore").decode()
    call = RemoteCall(
        run_id=run_id, tenant_id=run_id, run_kind="tally", epoch=epoch, key=key, kind="thing", remote_id=None
    )

    assert call.idempotency_key == idempotency_key(run_id, epoch, key)
    assert call.idempotency_key != idempotency_key(run_id, epoch + 1, key)
    assert len(call.idempotency_key) == 32
