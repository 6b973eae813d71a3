"""A source read in memory: the real steps and the real settling, with an upstream that changes between any two questions.

No database and no clock: a run takes a millisecond or two, so thousands of worlds can be tried.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.message import Message
from random import Random
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

from infra.local.standins.server import Reply, Request
from shared.kernel.errors import Permanent, StepError, Throttled, Transient
from shared.kernel.http import Answer, Http
from shared.kernel.model import Continue, Ending, Finish, Lane, LaneStatus, NewLane, NextPhase, Run, RunStatus
from shared.page_ingest.reader import steps as reader
from shared.page_ingest.reader.client import Client
from shared.page_ingest.reader.files import Files
from shared.page_ingest.reader.model import PlanCursor, SourceParams
from shared.page_ingest.reader.settle import settle
from shared.page_ingest.reader.store import base_of
from shared.page_ingest.source.compile import Compiled, compile_source
from tests.support.ingest import a_turn
from tests.support.rig import BEGINNING

Respond = Callable[[Request, str], Reply]
MOST_STEPS = 3_000


class DirectWire:
    """A `Wire` without a wire: what is sent reaches the upstream as a server would see it."""

    def __init__(self, respond: Respond, before: Callable[[], None] = lambda: None) -> None:
        self._respond, self._before = respond, before
        self._http = Http("https://api.example.com", name="any", gate="any", time_left_s=lambda: 30.0)
        self.sent: list[tuple[str, str]] = []

    def send(
        self, host: str, method: str, target: str, *, query: Mapping[str, str], body: bytes | None, headers: Mapping[str, str]
    ) -> Answer:  # fmt: skip
        self._before()
        asked = urlsplit(target)
        message: Message[str, str] = Message()
        for name, value in headers.items():
            message[name] = value
        found = parse_qs(asked.query, keep_blank_values=True) | {name: [str(value)] for name, value in query.items()}
        self.sent.append((host, target))
        request = Request(method=method, path=asked.path, query=found, headers=message, body=body or b"")
        reply = self._respond(request, asked.path)
        told = {name.lower(): value for name, value in reply.headers.items()}
        return Answer(reply.status, told, reply.body)

    def refusal(self, answer: Answer, said: str) -> StepError:
        return self._http.refusal(answer, said)

    def throttled(self, headers: Mapping[str, str], said: str) -> Throttled:
        return self._http.throttled(headers, said)

    def quote(self, text: str, *secrets: str) -> str:
        return self._http.quote(text, *secrets)


class OneFile(Files):
    def __init__(self, compiled: Compiled) -> None:
        super().__init__()
        self._known = {compiled.source.name: compiled}


class MemoryStore:
    """What `SourceStore` answers, of the rows of one run."""

    def __init__(self) -> None:
        self.raw: dict[tuple[str, str], list[Any]] = {}
        self.known: dict[str, str] = {}
        self.places: dict[str, tuple[str, Mapping[str, Any]]] = {}

    def place(self, turn: Any) -> Mapping[str, Any] | None:
        base, stands = self.places.get(turn.key, ("", {}))
        return stands if base == base_of(turn) else None

    def walked(self, turn: Any, resource: str, began: int, keys: Sequence[str]) -> int:
        seen = {
            key for (name, key), row in self.raw.items() if name == resource and row[0] == turn.key and row[1] >= began
        }
        return len(seen | set(keys))

    def slices(self, turn: Any, parent: str, share: int) -> list[str]:
        keys = sorted(key for name, key in self.raw if name == parent)
        return [key for n, key in enumerate(keys, 1) if n % share == 0 or n == len(keys)]

    def next_parent(self, turn: Any, **params: Any) -> Mapping[str, Any] | None:
        keys = sorted(
            key for name, key in self.raw if name == params["parent"] and params["after"] < key <= params["upto"]
        )
        return {"key": keys[0], "value": keys[0], "through": None} if keys else None

    def marks(self, *_: Any) -> dict[str, str]:
        return self.known

    def apply(self, turn: Any, effects: Sequence[Any]) -> None:
        for effect in effects:
            if effect.statement.name in ("source.upsert", "source.save", "source.save_bad"):
                for key, state, hash_, *_ in json.loads(effect.params["items"]):
                    row = self.raw.get((effect.params["resource"], key))
                    if (
                        row is None
                        or row[2:] != [state, hash_]
                        or row[0] != turn.key
                        or row[1] < effect.params["began"]
                    ):
                        self.raw[effect.params["resource"], key] = [turn.key, turn.seq, state, hash_]


class Outside:
    """A step in the middle: what it writes is there, whatever becomes of it."""

    def __init__(self, store: MemoryStore, turn: Any) -> None:
        self.store, self.turn = store, turn

    def time_left_s(self) -> float:
        return 30.0

    def write(self, effect: Any) -> None:
        self.store.apply(self.turn, [effect])
        self.store.places[self.turn.key] = effect.params["base"], json.loads(effect.params["stands"])


class World:
    """One run of a source in memory, to its end or to where it fails."""

    def __init__(self, compiled: Compiled, wire: DirectWire, rng: Random, **params: Any) -> None:
        self.compiled, self.wire, self.rng = compiled, wire, rng
        self.store = MemoryStore()
        wanted = SourceParams.model_validate({"source": compiled.source.name, "digest": compiled.digest, **params})
        self.params = wanted.model_dump(mode="json", by_alias=True, exclude_none=True)
        self.lanes: dict[str, list[Any]] = {}  # cursor, status, seq, attempts, problem
        outside: Any = self.store
        self.ports: Any = reader.Ports(files=OneFile(compiled), client=self.client, tokens=outside, store=outside)
        shape = reader.shape_of(compiled, wanted)
        self._add([NewLane(key="plan/0", cursor=PlanCursor(shape=shape).to_json())])
        self.steps = 0

    def client(self, compiled: Compiled, *_: Any) -> Client:
        return Client(source=compiled.source, settings={}, secret={}, wire=self.wire)

    def run(self) -> Ending | dict[str, tuple[str, str]]:
        """How it failed; or each resource with its claim and the reason."""
        while True:
            self._work_off()
            found = settle(self._run(), [self._lane(key) for key in self.lanes])
            if isinstance(found, Ending):
                return found
            if found.lanes[0].key.startswith("consolidate/"):
                return {lane.cursor["resource"]: (lane.cursor["claim"], lane.cursor["reason"]) for lane in found.lanes}
            self._add(found.lanes)

    def seen(self, resource: str) -> set[str]:
        """The rows that a complete run would move into their table: those of the last walk of each partition."""
        last: dict[str, tuple[int, str, int]] = {}
        for key, (cursor, *_) in self.lanes.items():
            if key.startswith(f"part/{resource}/"):
                name = key.partition("#")[0]
                last[name] = max(last.get(name, (0, "", 0)), (cursor["crawl"], key, cursor["began"]))
        walks = {key: began for _, key, began in last.values()}
        return {
            key for (name, key), row in self.store.raw.items()
            if name == resource and row[0] in walks and row[1] >= walks[row[0]]
        }  # fmt: skip

    def _work_off(self) -> None:
        while active := [key for key, lane in self.lanes.items() if lane[1] is LaneStatus.ACTIVE]:
            self._step(self.rng.choice(active))

    def _step(self, key: str) -> None:
        self.steps += 1
        assert self.steps < MOST_STEPS, "a run ends"
        lane = self.lanes[key]
        turn = replace(
            a_turn(1), key=key, seq=lane[2], cursor=json.loads(json.dumps(lane[0])), params=self.params, now=BEGINNING,
            attempts=lane[3], claims=2,
        )  # fmt: skip
        lane[2] += 1
        try:
            decision = reader.Reader(self.ports).take_step(turn, Outside(self.store, turn))  # type: ignore[arg-type]
        except Permanent as error:
            lane[1], lane[4] = LaneStatus.FAILED, {"message": error.message, "code": error.code}
            return
        except (Transient, Throttled) as error:
            lane[3] += 1
            if lane[3] > 12:
                lane[1], lane[4] = (
                    LaneStatus.FAILED,
                    {"message": str(error), "code": getattr(error, "code", "throttled")},
                )
            return
        assert isinstance(decision, Continue | Finish)
        lane[3] = 0
        lane[0] = lane[0] if decision.cursor is None else decision.cursor
        assert len(json.dumps(lane[0])) <= 8_192 or not key.startswith("part/"), "a cursor has 8 KiB at most"
        self.store.apply(turn, decision.effects)
        self._add(decision.lanes)
        if isinstance(decision, Finish):
            lane[1] = LaneStatus.DONE

    def _add(self, lanes: Sequence[NewLane]) -> None:
        for lane in lanes:
            assert lane.key not in self.lanes, f"lane {lane.key} is there already"
            self.lanes[lane.key] = [lane.cursor, LaneStatus.ACTIVE, 0, 0, None]

    def _lane(self, key: str) -> Lane:
        cursor, status, _, _, problem = self.lanes[key]
        return Lane(
            id=UUID(int=1), key=key, status=status, holds_run=True, epoch=1, cursor=json.loads(json.dumps(cursor)), last_error=problem
        )  # fmt: skip

    def _run(self) -> Run:
        return Run(
            id=UUID(int=2), tenant_id=UUID(int=3), kind="page_ingest", status=RunStatus.RUNNING, outcome=None, epoch=1,
            params=self.params, correlation_id=None, cancel_requested_at=None, paused_at=None, time_limit_s=None,
            deadline_at=None, now=BEGINNING,
        )  # fmt: skip


def world(
    text: str, respond: Callable[[Request, str], Any], secret: dict[str, str] | None = None, **params: Any
) -> World:
    """A run of this file at this upstream; `respond` may answer plain JSON."""

    def reply(request: Request, path: str) -> Reply:
        found = respond(request, path)
        return found if isinstance(found, Reply) else Reply.json(found)

    wire = DirectWire(reply)
    made = World(compile_source("any.toml", text.encode()), wire, Random(0), **params)
    made.ports = type(made.ports)(
        files=made.ports.files, tokens=None, store=made.store,
        client=lambda compiled, *_: Client(source=compiled.source, settings={}, secret=secret or {}, wire=wire),
    )  # fmt: skip
    return made


def outcome(found: Any) -> tuple[str, str]:
    """The claim of the list; or why the run failed."""
    if isinstance(found, Ending):
        return "failed", found.problem.message if found.problem else ""
    claim: tuple[str, str] = found["items"]
    return claim


def asked(request: Request, name: str, default: str = "") -> str:
    return request.query.get(name, [default])[0]


def rows(*ids: Any) -> list[dict[str, Any]]:
    return [{"id": each} for each in ids]


class List:
    """A list that changes: rows with an immutable place, a number that a filter goes by, and when they changed."""

    FIRST = datetime(2025, 1, 1, tzinfo=UTC)

    def __init__(self, rng: Random, rows: int, changes: int, rate: float, *, swaps: bool) -> None:
        self.rng, self.changes, self.rate, self.swaps = rng, changes, rate, swaps
        self.rows: list[dict[str, Any]] = [
            {"id": n, "at": rng.randrange(100), "t": self._said(rng.randrange(86_400))} for n in range(1, rows + 1)
        ]
        self.rows.sort(key=lambda row: (row["at"], row["id"]))
        self.untouched: set[Any] = {row["id"] for row in self.rows}
        self.ever = set(self.untouched)
        self.lies: list[int] = []

    @classmethod
    def _said(cls, second: int) -> str:
        return (cls.FIRST + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def change(self) -> None:
        """Before any question: what a list does while it is read."""
        while self.changes and self.rows and self.rng.random() < self.rate:
            self.changes -= 1
            at = self.rng.randrange(len(self.rows))
            row = self.rows[at]
            match self.rng.choice(("delete", "insert", "move", "swap", "insert", "delete")):
                case "delete":
                    del self.rows[at]
                    self.untouched.discard(row["id"])
                case "swap" if self.swaps:  # an order that nobody promised
                    other = self.rng.randrange(len(self.rows))
                    self.rows[at], self.rows[other] = self.rows[other], self.rows[at]
                case "move":  # into another partition, and another place
                    self.untouched.discard(row["id"])
                    row["at"] = self.rng.randrange(100)
                    row["t"] = "2026-01-01T00:00:01Z"
                case _:
                    new = max(self.ever) + 1
                    self.ever.add(new)
                    row = {"id": new, "at": self.rng.randrange(100), "t": "2026-01-01T00:00:01Z"}
                    self.rows.insert(self.rng.choice((at, len(self.rows), 0)), row)


def trouble(rng: Random, share: float) -> None:
    if rng.random() < share:
        raise Transient("no answer")


def tallied(found: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(found.items()))


Tally = defaultdict[str, int]
__all__ = [
    "DirectWire",
    "List",
    "NextPhase",
    "Tally",
    "World",
    "asked",
    "outcome",
    "rows",
    "tallied",
    "trouble",
    "world",
]
