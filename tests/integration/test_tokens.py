"""Tokens on a real Postgres: fetched by one step for all, kept for a short time, forgotten when refused."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from shared.kernel.errors import Later, Transient
from shared.kernel.model import Turn
from shared.kernel.tokens import IN_MEMORY_S, Token, Tokens
from tests.support.ingest import OTHER_TENANT, IngestRig, a_turn, at_once
from tests.support.rig import BEGINNING, TENANT

ACCOUNT = "nivoda"


def turn(rig: IngestRig, holder: int, tenant: UUID = TENANT) -> Turn:
    return replace(a_turn(holder, tenant), now=BEGINNING + timedelta(seconds=rig.now))


def nobody() -> Token:
    raise AssertionError("a token is there or somebody else fetches it")


def fresh(rig: IngestRig) -> Tokens:
    """The tokens as a process that remembers nothing sees them."""
    return Tokens(rig.engine)


def test_of_steps_that_need_a_token_at_once_one_fetches_it(ingest: IngestRig) -> None:
    begin, fetched, got = threading.Barrier(4), list[int](), list[Token]()

    def look(holder: int) -> None:
        with ingest.another_process() as process:
            begin.wait(60)

            def log_in() -> Token:
                fetched.append(holder)
                return Token("one", 600)

            with suppress(Later):  # another one is at it
                got.append(process.tokens.of(turn(ingest, holder), ACCOUNT, log_in))

    at_once(look, range(1, 5))

    assert len(fetched) == 1
    assert {each.value for each in got} == {"one"}


def test_a_token_is_shared_until_its_end_and_a_dead_fetcher_blocks_nobody_for_long(ingest: IngestRig) -> None:
    def dies() -> Token:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fresh(ingest).of(turn(ingest, 1), ACCOUNT, dies)
    ingest.now = 29
    with pytest.raises(Later):
        fresh(ingest).of(turn(ingest, 2), ACCOUNT, nobody)
    ingest.now = 31

    def slow() -> Token:
        ingest.now += 31
        assert fresh(ingest).of(turn(ingest, 3), ACCOUNT, lambda: Token("good", 600)) == Token("good", 600)
        return Token("late", 600)

    fresh(ingest).of(turn(ingest, 2), ACCOUNT, slow)
    kept = fresh(ingest).of(turn(ingest, 4), ACCOUNT, nobody)
    assert kept is not None
    assert kept.value == "good", "what the one who was given up brings later does not count"
    assert fresh(ingest).of(turn(ingest, 4, OTHER_TENANT), ACCOUNT, lambda: Token("theirs", 600)) == Token(
        "theirs", 600
    )
    assert fresh(ingest).of(turn(ingest, 4), "nivoda:other", lambda: Token("other", 600)) == Token("other", 600)
    ingest.now += 541
    assert fresh(ingest).of(turn(ingest, 5), ACCOUNT, lambda: Token("next", 600)) == Token("next", 600), (
        "a little early"
    )


def test_what_comes_with_a_token_is_kept_with_it(ingest: IngestRig) -> None:
    given = Token("one", 600, {"rest_url": "https://rest.example"})
    fresh(ingest).of(turn(ingest, 1), ACCOUNT, lambda: given)

    kept = fresh(ingest).of(turn(ingest, 2), ACCOUNT, nobody)

    assert kept is not None
    assert (kept.value, kept.extra) == (given.value, given.extra)
    assert "one" not in repr(kept)


def test_a_log_in_that_fails_is_the_next_ones_turn_at_once(ingest: IngestRig) -> None:
    def fails() -> Token:
        raise Transient("no answer")

    with pytest.raises(Transient):
        fresh(ingest).of(turn(ingest, 1), ACCOUNT, fails)

    assert fresh(ingest).of(turn(ingest, 2), ACCOUNT, lambda: Token("one", 600)) is not None


def test_a_refused_token_is_forgotten_but_not_the_one_that_replaced_it(ingest: IngestRig) -> None:
    tokens = fresh(ingest)
    tokens.of(turn(ingest, 1), ACCOUNT, lambda: Token("old", 600))
    old = tokens.of(turn(ingest, 2), ACCOUNT, nobody)
    assert old is not None
    fresh(ingest).forget(turn(ingest, 3), ACCOUNT, old)
    fresh(ingest).of(turn(ingest, 3), ACCOUNT, lambda: Token("new", 600))

    tokens.forget(turn(ingest, 2), ACCOUNT, old)

    found = tokens.of(turn(ingest, 2), ACCOUNT, nobody)
    assert found is not None
    assert found.value == "new"


def test_most_steps_do_not_ask_the_database_and_none_uses_what_it_remembers_for_long(ingest: IngestRig) -> None:
    tokens = fresh(ingest)
    tokens.of(turn(ingest, 1), ACCOUNT, lambda: Token("old", 600))
    tokens.of(turn(ingest, 1), ACCOUNT, nobody)
    ingest.rows("update account_token set token = 'new' returning 1")

    soon = tokens.of(turn(ingest, 2), ACCOUNT, nobody)
    ingest.now += IN_MEMORY_S
    later = tokens.of(turn(ingest, 3), ACCOUNT, nobody)

    assert soon is not None
    assert later is not None
    assert (soon.value, later.value) == ("old", "new")


def test_a_token_is_kept_for_an_hour_at_most_and_dead_ones_are_cleared(ingest: IngestRig) -> None:
    fresh(ingest).of(turn(ingest, 1), "one", lambda: Token("day", 86_400))
    ingest.now += 3_600

    fresh(ingest).of(turn(ingest, 2), "two", lambda: Token("other", 600))

    assert {row["account"]: row["token"] for row in ingest.rows("select account, token from account_token")} == {
        "one": None, "two": "other",
    }  # fmt: skip
    assert fresh(ingest).of(turn(ingest, 3), "one", lambda: Token("next", 600)) == Token("next", 600)


def test_no_process_remembers_a_token_beyond_its_end(ingest: IngestRig) -> None:
    tokens = fresh(ingest)
    tokens.of(turn(ingest, 1), ACCOUNT, lambda: Token("short", 120))
    assert tokens.of(turn(ingest, 2), ACCOUNT, nobody).value == "short"
    ingest.now += 61  # a minute before it ends it is given up, long before a process forgets what it has read

    assert tokens.of(turn(ingest, 3), ACCOUNT, lambda: Token("next", 600)).value == "next"
