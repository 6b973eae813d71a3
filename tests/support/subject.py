"""A kind of work as the subject of every proof: simulation, kill matrix and chaos. One file per kind, found by its place.

`tests/kinds/<kind>/` may hold
    subject.py    `SUBJECT`; what it leaves out is not tried (no `scenarios`: no kill matrix; no `order`: no chaos)
    cells.py      `CELLS`: who may do what with the kind's own operations (tests/support/cells.py)
    canaries.py   `pass_canaries(there)`: the ways by which a secret could come in (tests/api/test_canaries.py)
    bench.py      `parts(here, quick)`: its hot paths (tests/bench)
Whoever adds a kind writes these files and edits none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from shared.kernel.catalogue import Kind
from shared.kernel.settings import Relay

if TYPE_CHECKING:
    from tests.chaos.matrix import Play
    from tests.simulation.subjects import SubjectWorld

KINDS = Path(__file__).parents[1] / "kinds"
IN_THE_MATRIX = Relay(step_timeout_s=30, lease_s=40, asset_grace_s=0, tick_seconds=10)


def nothing_is_wrong(_: sa.Connection) -> list[str]:
    return []


@dataclass(frozen=True, slots=True)
class OpenOutside:
    """The outside of a kill matrix or a chaos run: it lives in a process that nobody kills.

    `address` is told to every worker (so it can be pickled); `violations` knows the truth and compares it with the rows.
    """

    address: Any = None
    violations: Callable[[sa.Connection], list[str]] = nothing_is_wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A kind in the simulation: its outside asks through `world.call`, where the adversary sits."""

    kind: Kind
    params: Callable[[Mapping[str, Any]], Mapping[str, Any]]  # of a run, from the scenario's own
    at_the_end: Callable[[], None] = lambda: None  # raises Violation
    waits_for_a_tick: Callable[[], bool] = lambda: False  # whether `each_tick` has something to do


@contextmanager
def _nothing_outside() -> Iterator[OpenOutside]:
    yield OpenOutside()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    name: str
    simulate: Callable[[SubjectWorld], Simulated]
    build: Callable[
        [sa.Engine, Any, str], Kind
    ]  # in a worker process: engine, the outside's address, its database's url
    schema: str = ""  # tables that are there for the tests alone
    tables: Sequence[str] = ()  # rows of its own, emptied before each case
    clocks: Sequence[str] = ()  # updates that move its stored times by {by}, when time passes for everybody
    outside: Callable[[], Any] = _nothing_outside  # a context manager that gives an OpenOutside
    rules: Mapping[str, str] = field(default_factory=dict)  # queries for rows that break a rule, once the work is done
    scenarios: Mapping[str, Callable[[Play], None]] = field(default_factory=dict)
    points: frozenset[str] = frozenset()  # its own, beside the relay's: each is killed at
    relay: Relay = IN_THE_MATRIX
    order: Callable[[Random], dict[str, Any]] | None = None  # the parameters of a run in the chaos
    schedules: int = 60  # on Postgres in `make check`; ten thousand in `make verify`, whatever this says


def brought(name: str) -> list[Any]:
    """The modules `tests/kinds/<kind>/<name>.py` that there are, in the order of the kinds."""
    return [import_module(f"tests.kinds.{path.parent.name}.{name}") for path in sorted(KINDS.glob(f"*/{name}.py"))]


@cache
def subjects() -> Mapping[str, Subject]:
    """Every kind that can be put to the proof, by name."""
    found: list[Subject] = [module.SUBJECT for module in brought("subject")]
    return {subject.name: subject for subject in found}
