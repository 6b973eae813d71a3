"""The pace rows in memory, beside the real ones (tests/integration/test_control.py compares them), and a world of slices,
lanes and a provider on a virtual clock: the rules that ship are driven by it, hours in seconds."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from uuid import UUID

from shared.kernel.control import (
    AHEAD_S,
    GRANT_S,
    PATIENCE_S,
    PROBE_S,
    REPORT_ONLY,
    SHARED,
    Bounds,
    Exchanged,
    Granted,
    Law,
    Move,
    Paced,
    Seen,
    Want,
    shut_for_s,
    trade,
)
from shared.kernel.slices import Slice


@dataclass(slots=True)
class PaceRow:
    law: Law
    window_no: int = 1
    opened_at: float = 0.0
    seen: Seen = field(default_factory=Seen)
    next_slot_at: float = 0.0
    closed: bool = False
    closed_until: float = 0.0
    prober: UUID | None = None
    trips: int = 0
    used: dict[UUID, tuple[float, float]] = field(default_factory=dict)


@dataclass(slots=True)
class MemoryPace:
    """What EXCHANGE and CLOSE do, said again in Python."""

    clock: Callable[[], float]
    rows: dict[tuple[UUID, str, str], PaceRow] = field(default_factory=dict)
    decisions: list[tuple[float, float, float, str, Seen]] = field(default_factory=list)
    exchanges: int = 0

    def exchange(self, paced: Paced, token: UUID, report: tuple[int, Seen], want: Want, bounds: Bounds) -> Exchanged:
        now = self.clock()
        self.exchanges += 1
        key = (paced.whose, paced.account, paced.domain)
        row = self.rows.setdefault(
            key, PaceRow(Law(rate=bounds.first), opened_at=now, next_slot_at=now, closed_until=now)
        )
        window_no, told = report
        same = window_no == row.window_no
        probing = row.closed and row.prober == token and same
        opens = probing and told.ok > 0
        shuts = (probing and not told.ok and told.throttled + told.failed > 0) or (same and told.retry_after_s > 0)
        if shuts:
            shut_s = max(told.retry_after_s, shut_for_s(row.trips) if probing else 0.0)
            row.closed, row.closed_until = True, max(now if probing else row.closed_until, now + shut_s)
            row.trips = min(row.trips + 1, 20) if probing else row.trips
        if opens:
            row.closed, row.closed_until, row.trips = False, now, 0
        if opens or shuts:
            row.prober = None
        probes = row.closed and row.closed_until <= now and want.slots > 0
        if probes:
            row.prober, row.closed_until = token, now + PROBE_S
        if opens or probes:
            row.window_no, row.opened_at, row.seen = row.window_no + 1, now, Seen()
        else:
            row.seen = _sum(row.seen, told if same else Seen(late_ok=told.ok + told.late_ok))
        granted = self._grant(row, paced, now, want, probes=probes)
        rate = row.law.rate
        if granted:
            in_s = row.next_slot_at - granted / rate - now
        elif row.closed:
            until = row.closed_until - now
            in_s = min(until, 0.5) if row.prober is not None else until + 0.01
        else:
            in_s = row.next_slot_at - now
        return Exchanged(
            granted=Granted(
                slots=granted, in_s=max(0.0, in_s), window_no=row.window_no, law=row.law, closed=row.closed
            ),
            seen=replace(row.seen, seconds=now - row.opened_at),
            trips=row.trips,
            probing=row.closed and row.prober is not None,
        )

    def _grant(self, row: PaceRow, paced: Paced, now: float, want: Want, *, probes: bool) -> int:
        rate = row.law.rate
        others = [used for taker, (used, until) in row.used.items() if taker != paced.taker and until > now]
        held = row.used.get(paced.taker)
        mine = held[0] if held is not None and held[1] > now else None
        low, high = min(others, default=None), max(others, default=None)
        ahead = False
        if low is not None and high is not None:
            ahead = max(low if mine is None else mine, high - 15 * rate) - low > rate
        in_s = row.next_slot_at - now
        if not want.slots:
            granted = 0
        elif row.closed:
            granted = int(probes)
        elif in_s > max(1.5 / rate, AHEAD_S if ahead else PATIENCE_S) or in_s > want.within_s:
            granted = 0
        else:
            fit = math.floor((want.within_s - max(in_s, 0.0)) * rate) + 1
            granted = min(want.slots, math.ceil(rate * GRANT_S), fit)
        if granted:
            row.next_slot_at = (now if probes else max(row.next_slot_at, now)) + granted / rate
        if paced.whose == SHARED:
            floors = [0.0]
            if low is not None and high is not None:
                floors += [high - 15 * rate] + ([low] if mine is None else [])
            used = max([*floors, *([mine] if mine is not None else [])]) + granted
            until = now + (2.0 if granted else 17.0)
            row.used[paced.taker] = (used, max(until, held[1] if held is not None else until))
        return granted

    def close(self, paced: Paced, seen_no: int, before: float, move: Move, seen: Seen) -> bool:
        row, now = self.rows[paced.whose, paced.account, paced.domain], self.clock()
        if row.window_no != seen_no:
            return False
        row.law, row.window_no, row.opened_at, row.seen = move.law, row.window_no + 1, now, Seen()
        if move.shut_s > 0:
            row.closed, row.closed_until, row.prober = True, max(row.closed_until, now + move.shut_s), None
        row.trips = min(row.trips + int(move.trips), 20)
        self.decisions.append((now, before, move.law.rate, move.reason, seen))
        return True


def _sum(seen: Seen, told: Seen) -> Seen:
    added: dict[str, Any] = {
        name: getattr(seen, name) + getattr(told, name)
        for name in ("sent", "ok", "throttled", "failed", "slow", "late_ok", "ln1", "ln2")
    }
    return replace(seen, **added, retry_after_s=max(seen.retry_after_s, told.retry_after_s))


# The world.

LEASE_S, TICK_S, HOP_S, EXCHANGE_S = 70.0, 60.0, 0.12, 0.006
TARGET_S, THREADS, LONGEST_CALL_S = 5.0, 16, 25.0


@dataclass(frozen=True, slots=True)
class Phase:
    """From when on the provider allows how many calls a second, and how it says no: plain, retry_after, slow, failing, down."""

    at: float
    rate: float
    mode: str = "plain"


@dataclass(slots=True)
class Provider:
    world: PaceWorld
    phases: list[Phase]
    tokens: float = 0.0
    at: float = 0.0
    free_at: float = 0.0
    calls: list[tuple[float, int]] = field(default_factory=list)

    def call(self) -> tuple[int, float, float]:
        """Status, latency and Retry-After of a call that begins now."""
        now = self.world.now
        phase = [each for each in self.phases if each.at <= now][-1]
        answer = self._answer(now, phase)
        self.calls.append((now, answer[0]))
        return answer

    def _answer(self, now: float, phase: Phase) -> tuple[int, float, float]:
        chance = self.world.chance
        if phase.mode == "slow":
            start = max(now, self.free_at)
            self.free_at = start + 1 / phase.rate
            return 200, start - now + self._latency(), 0.0
        self.free_at = now
        self.tokens = min(max(1.0, phase.rate), self.tokens + (now - self.at) * phase.rate)
        self.at = now
        if self.tokens < 1:
            again_s = max(1.0, math.ceil((1 - self.tokens) / phase.rate)) if phase.mode == "retry_after" else 0.0
            return 429, chance.uniform(0.03, 0.09), again_s
        self.tokens -= 1
        if phase.mode == "down" or (phase.mode == "failing" and chance.random() < 0.6):
            return 503, chance.uniform(0.05, 1.0), 0.0
        return 200, self._latency(), 0.0

    def _latency(self) -> float:
        chance = self.world.chance
        latency = chance.lognormvariate(math.log(0.3), 0.5)
        return latency * min(chance.paretovariate(1.2) * 3, 40) if chance.random() < 0.01 else latency


@dataclass(slots=True)
class PaceWorld:
    """Lanes of some tenants that share an account; `0.4 %` of their slices die, `8 %` start cold."""

    seed: int
    phases: list[Phase]
    lanes: dict[int, int]  # tenant number -> how many lanes
    bounds: Bounds = field(default_factory=Bounds)
    now: float = 0.0
    chance: Random = field(init=False)
    pace: MemoryPace = field(init=False)
    provider: Provider = field(init=False)
    done: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    lengths: list[float] = field(default_factory=list)
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _n: int = 0

    def __post_init__(self) -> None:
        self.chance = Random(self.seed)
        self.pace = MemoryPace(lambda: self.now)
        self.provider = Provider(self, self.phases, tokens=self.phases[0].rate)
        for tenant, lanes in self.lanes.items():
            for _ in range(lanes):
                VirtualLane(self, tenant)

    def at(self, when: float, do: Callable[[], None]) -> None:
        self._n += 1
        heapq.heappush(self._events, (when, self._n, do))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, do = heapq.heappop(self._events)
            do()
        self.now = until

    def ok_between(self, begin: float, end: float) -> int:
        return sum(begin <= at < end for each in self.done.values() for at in each)

    def rejected_share(self) -> float:
        return sum(status == 429 for _, status in self.provider.calls) / max(1, len(self.provider.calls))


class VirtualLane:
    """Slice after slice, as the relay runs them: the driver is the real one's loop, turned into events."""

    def __init__(self, world: PaceWorld, tenant: int) -> None:
        self.world, self.tenant, self.refusals = world, tenant, 0
        self.paced = Paced("account", "shop", UUID(int=tenant), SHARED)
        self.token = UUID(int=0)
        self.asking, self.looks_at = False, math.inf
        world.at(world.chance.uniform(0, 1), self.begin)

    def begin(self) -> None:
        world = self.world
        cold_s = world.chance.uniform(0.8, 2.5) if world.chance.random() < 0.08 else 0.0
        world.at(world.now + HOP_S + cold_s, self.start)

    def start(self) -> None:
        world = self.world
        self.token = UUID(int=world.chance.getrandbits(128))
        self.slice = Slice(world.now, TARGET_S, THREADS, self.refusals)
        self.asking, self.looks_at = False, math.inf
        if world.chance.random() < 0.004:
            world.at(world.now + world.chance.uniform(0, TARGET_S), self.die_of(self.token))
        self.look(self.token)

    def die_of(self, token: UUID) -> Callable[[], None]:
        def die() -> None:
            if self.token == token:
                self.token = UUID(int=0)
                world = self.world
                world.at(world.now + LEASE_S + world.chance.uniform(0, TICK_S), self.begin)

        return die

    def look(self, token: UUID) -> None:
        """One turn of the driver's loop; while it asks, it does nothing else."""
        if self.token != token or self.asking:
            return
        world, piece = self.world, self.slice
        for window_no in piece.due(world.now):
            status, latency_s, again_s = world.provider.call()
            what = {200: "ok", 429: "throttled", 503: "failed"}[status]
            if latency_s > LONGEST_CALL_S:
                what, latency_s = "slow", LONGEST_CALL_S
            world.at(world.now + latency_s, self.answer(token, window_no, what, latency_s, again_s))
        want = piece.wants(world.now, 10**6)
        if want is not None:
            self.asking = True
            world.at(world.now + EXCHANGE_S, lambda: self.ask(token, want))
        elif piece.over(world.now):
            self.end()
        else:
            at = max(piece.next_at(world.now), world.now + 1e-6)
            if at < self.looks_at or self.looks_at <= world.now:
                self.looks_at = at
                world.at(at, lambda: self.look(token))

    def ask(self, token: UUID, want: int) -> None:
        if self.token != token:
            return
        world, piece = self.world, self.slice
        self.asking = False
        asked = Want(want, piece.sends_for_s(world.now))
        granted = trade(world.pace, self.paced, token, piece.report.hand_over(), asked, world.bounds)
        piece.told(world.now, want, granted, world.chance.random())
        self.look(token)

    def answer(self, token: UUID, window_no: int, what: str, latency_s: float, again_s: float) -> Callable[[], None]:
        def came() -> None:
            if self.token != token:
                return
            if what == "ok":
                self.world.done[self.tenant].append(self.world.now)
            self.slice.answered(self.world.now, window_no, what, latency_s, again_s)
            self.look(token)

        return came

    def end(self) -> None:
        world, piece = self.world, self.slice
        if piece.report:
            trade(world.pace, self.paced, self.token, piece.report.hand_over(), REPORT_ONLY, world.bounds)
        world.lengths.append(world.now - piece.began)
        self.refusals = piece.refusals
        self.token = UUID(int=0)
        world.at(world.now + math.ceil(piece.wait_s), self.begin)


# A limit that moves.

STEPS = ((0, 20), (150, 5), (330, 60), (510, 20), (660, 0))
# When a plateau must have been reached. Windows last 3 s and more: 12 to learn from nothing, 30 at most to rise twelvefold, and
# after a fall until what was rejected is paid for; measured is the second half of each plateau.
REACHED_S = (75, 90, 90, 75)
LANES = {1: 8, 2: 2, 3: 1}


def plateaus(world: PaceWorld) -> list[float]:
    """What came through of what the provider allowed, on each plateau."""
    world.run(STEPS[-1][0])
    spans = [(begin + after, end) for (begin, _), (end, _), after in zip(STEPS, STEPS[1:], REACHED_S, strict=False)]
    return [
        world.ok_between(begin, end) / ((end - begin) * rate)
        for (begin, end), (_, rate) in zip(spans, STEPS, strict=False)
    ]


def stepping(seed: int, mode: str) -> PaceWorld:
    return PaceWorld(seed, [Phase(at, rate, mode) for at, rate in STEPS[:-1]], LANES)
