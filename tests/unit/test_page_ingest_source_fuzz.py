"""Hostile source files: whatever is done to the ten examples, the compiler answers, and each fault has its place."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from shared.page_ingest.source.compile import MOST_FAULTS, compile_source
from shared.page_ingest.source.lines import key_lines
from shared.page_ingest.source.model import Fault, Refused

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "docs" / "example-sources").glob("*.toml"))
ODD_VALUES = [
    "1", "0", "-1", "99999999999999999999999", "1" * 5_000, "1.5", "nan", "-inf", "1e400", "true", '""', "''", '"\\u0000"',
    '"\\u202E\\u0007"', '"{"', '"{from}{to}{size}"', '"/a/b"', '"/~"', '"https://127.0.0.1/"', '"P1D"', '"\N{GRINNING FACE}"',
    "[]", "{}", "[[]]", '[1, "a", true]', "{ a = 1 }", '{ "" = { "" = 1 } }', "2026-01-01", "2026-01-01T00:00:00Z", "07:30:00",
    '"""\n\n"""', "[" * 50 + "]" * 50, "{ a = " * 40 + "1" + " }" * 40, '"' + "x" * 9_000 + '"', "{ number = 1, size = 1 }",
    '"hash"', '"unseen"', '"none"', '["/id", "/id"]',
]  # fmt: skip
ODD_TEXT = ["\x00", "\ufeff", "\u2028", "\r", "\r\n", '"', "'''", "[", "]", "{", "}", "=", "#", "\\", "\N{GREEK SMALL LETTER ALPHA}",
            "\n[resources.issues]\n", "\n[[errors]]\n", "[" * 3_000, "a.b.c.d = 1\n", "{" * 400, " = "]  # fmt: skip


def mutated(seed: int) -> bytes:
    """An example with one to four things done to it."""
    dice = random.Random(seed)
    text = dice.choice(EXAMPLES).read_text()
    for _ in range(dice.randint(1, 4)):
        text = dice.choice(MUTATIONS)(dice, text)
    data = text.encode()
    if dice.random() < 0.03:
        at = dice.randrange(len(data) + 1)
        data = data[:at] + bytes(dice.randrange(256) for _ in range(3)) + data[at:]
    return data


def _line(dice: random.Random, text: str) -> tuple[list[str], int]:
    lines = text.split("\n")
    return lines, dice.randrange(len(lines))


def _drop(dice: random.Random, text: str) -> str:
    lines, at = _line(dice, text)
    return "\n".join(lines[:at] + lines[at + 1 :])


def _double(dice: random.Random, text: str) -> str:
    lines, at = _line(dice, text)
    return "\n".join(lines[: at + 1] + lines[at:])


def _swap(dice: random.Random, text: str) -> str:
    lines, at = _line(dice, text)
    other = dice.randrange(len(lines))
    lines[at], lines[other] = lines[other], lines[at]
    return "\n".join(lines)


def _words(text: str) -> list[str]:
    return [
        each for each in dict.fromkeys("".join(c if c.isalnum() or c == "_" else " " for c in text).split()) if each
    ]


def _rename(dice: random.Random, text: str) -> str:
    words = _words(text)
    word = dice.choice(words or ["x"])
    other = dice.choice(
        [*words, word[:-1], word + "s", word[::-1], word.upper(), "\N{LATIN SMALL LETTER E WITH ACUTE}", ""]
    )
    return text.replace(word, other, dice.choice([1, -1]))


def _revalue(dice: random.Random, text: str) -> str:
    lines, at = _line(dice, text)
    key, equals, _ = lines[at].partition("=")
    lines[at] = f"{key}= {dice.choice(ODD_VALUES)}" if equals else lines[at]
    return "\n".join(lines)


def _revalue_inside(dice: random.Random, text: str) -> str:
    places = [at for at, each in enumerate(text) if each == "="]
    if not places:
        return text
    at = dice.choice(places)
    ends = [end for end in (text.find(",", at), text.find(" }", at), text.find("\n", at)) if end > 0]
    return f"{text[: at + 1]} {dice.choice(ODD_VALUES)}{text[min(ends, default=len(text)) :]}"


def _insert(dice: random.Random, text: str) -> str:
    at = dice.randrange(len(text) + 1)
    return text[:at] + dice.choice(ODD_TEXT) + text[at:]


def _cut(dice: random.Random, text: str) -> str:
    return text[: dice.randrange(len(text) + 1)]


def _move(dice: random.Random, text: str) -> str:
    lines, at = _line(dice, text)
    other, there = _line(dice, dice.choice(EXAMPLES).read_text())
    return "\n".join([*lines[:at], other[there], *lines[at:]])


MUTATIONS = [_drop, _double, _swap, _rename, _rename, _revalue, _revalue_inside, _revalue_inside, _insert, _cut, _move]


def judged(seed: int) -> bool:
    """Whether the file passed. Anything but `Refused` is a traceback, and fails the test."""
    data = mutated(seed)
    faults = faults_of(data)
    if faults is None:
        return True
    assert 1 <= len(faults) <= MOST_FAULTS
    for fault in faults:
        assert fault.file == "fuzzed.toml"
        assert 1 <= fault.line <= data.count(b"\n") + 1, (seed, fault)
        assert fault.key, (seed, fault)
        assert fault.message.endswith((".", "?", "]")), (seed, fault)
        assert str(fault).isprintable(), (seed, fault)
    return False


def faults_of(data: bytes) -> Sequence[Fault] | None:
    try:
        compile_source("fuzzed.toml", data)
    except Refused as refused:
        return refused.faults
    return None


@pytest.mark.full
def test_five_hundred_fuzzed_files_are_judged_without_a_traceback() -> None:
    passed = sum(map(judged, range(500)))

    assert 10 < passed < 250  # the mutations are neither all fatal nor all harmless


@pytest.mark.long
def test_five_thousand_fuzzed_files_are_judged_without_a_traceback() -> None:
    passed = sum(map(judged, range(5_000)))

    assert 100 < passed < 2_500


def paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inner:
        yield (*path, name)
        yield from paths(each, (*path, name))


@pytest.mark.full
def test_every_key_that_tomllib_reads_is_found_on_a_line() -> None:
    """The scanner is a second reader of the same text: both must see the same keys, whatever was done to the text."""
    read = 0
    for seed in range(1_500):
        try:
            text = mutated(seed).decode()
            tables = tomllib.loads(text)
        except (ValueError, RecursionError):
            continue
        read += 1
        assert set(key_lines(text)) == set(paths(tables)), seed

    assert read > 200
