"""How fast an upstream may be asked, by all functions together.

Every (account, domain) has one row. A function reports what its calls met and asks for more slots in one statement
(`Paces.exchange`). A slot is a moment, not a lock: slots of a function that died pass by, and nothing leaks. What was seen
is gathered in windows; whoever finds a window full closes it, by compare-and-set on its number, and writes down what was
decided and why (`decide`). So there is one steered quantity, the rate. How many calls are in flight follows from it.

`Paces.take` is the plain form, for an upstream whose limit is known: so many a minute, and nothing is learned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Protocol
from uuid import UUID

import sqlalchemy as sa

from shared.kernel import db, direct
from shared.kernel.errors import Later

# Whose account it is that all tenants use.
SHARED = UUID(int=0)

WINDOW_S = 3.0
LONGEST_WINDOW_S = 30.0
ENOUGH_ANSWERS = 6
# A window that goes badly is closed before its time.
EARLY_S, EARLY_BAD, EARLY_THROTTLED, FAILING = 1.0, 3, 0.2, 0.3
FEW = 10  # calls below which a share proves little
TOLERATED = 0.03  # of the calls may be rejected; the rest is debt, to be paid for by accepted ones
CUT, NEXT_CUT, DEEPEST_CUT, SLOW_CUT = 0.9, 0.7, 0.3, 0.65
NEARLY_CLEAN = 0.95  # of the last rate that passed untouched
FIRST_GAIN, GAIN_GROWS, MOST_GAIN = 0.02, 1.6, 0.5
USED = 0.8  # of its rate must be used before it grows
TEACHING_ANSWERS = 60  # teach the usual latency and are judged by nothing
GRANT_S = 0.5  # worth of slots at a time
PATIENCE_S, AHEAD_S = 1.0, 0.15  # how far ahead slots are given out, and to a tenant that is ahead of others
PROBE_S = 10.0
LONGEST_SHUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Paced:
    """Whose account at which domain; `taker` is the tenant that asks."""

    account: str
    domain: str
    taker: UUID
    owner: UUID | None = None  # None: the taker's own account

    @property
    def whose(self) -> UUID:
        return self.taker if self.owner is None else self.owner


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Between what the rate moves, in calls a second."""

    first: float = 1.0
    least: float = 0.1
    most: float = 500.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """What the controller knows. All of it is in the row: a function that starts cold knows as much as any other."""

    rate: float
    ceiling: float = 0.0  # where the limit was met; 0: never
    gain: float = 1.0  # of the next clean window
    base_s: float = 0.0  # the usual latency, a geometric mean
    known: int = 0  # answers behind it
    sigma: float = 0.6
    slow_at_s: float = 0.0  # the latency at the last cut for latency; 0: none is pending
    waited: int = 0  # windows since that cut
    debt: float = 0.0  # rejected calls that accepted ones have not paid for yet
    clean: float = 0.0  # the last rate that passed a whole window untouched
    streak: int = 0  # cuts in a row

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "rate"}

    @classmethod
    def of(cls, rate: float, law: Mapping[str, Any] | None) -> Law:
        known = {each.name for each in fields(cls)}
        return cls(rate=rate, **{name: value for name, value in (law or {}).items() if name in known})


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the calls of one window met. `late_ok`: answers to slots of earlier windows, which count as throughput only."""

    seconds: float = 0.0
    sent: int = 0
    ok: int = 0
    throttled: int = 0
    failed: int = 0
    slow: int = 0  # cut off, and too slow to wait for
    late_ok: int = 0
    ln1: float = 0.0  # sums of the logarithms of latencies and of their squares, of `ok` and `slow`
    ln2: float = 0.0
    retry_after_s: float = 0.0

    @property
    def answered(self) -> int:
        return self.ok + self.throttled + self.failed + self.slow

    @property
    def done_per_s(self) -> float:
        return (self.ok + self.late_ok) / self.seconds if self.seconds > 0 else 0.0

    @property
    def latency_s(self) -> float:
        heard = self.ok + self.slow
        return math.exp(self.ln1 / heard) if heard else 0.0

    @property
    def sigma(self) -> float:
        heard = self.ok + self.slow
        if heard < 2:
            return 0.6
        return min(1.2, math.sqrt(max(0.05, self.ln2 / heard - (self.ln1 / heard) ** 2)))

    @property
    def throttled_share(self) -> float:
        return self.throttled / max(self.sent, self.answered, FEW)

    @property
    def failed_share(self) -> float:
        return self.failed / max(self.answered, 1)


@dataclass(frozen=True, slots=True)
class Move:
    """What a window led to. `shut_s`: the gate closes for as long."""

    law: Law
    reason: str
    shut_s: float = 0.0
    trips: bool = False  # nothing passed at all


def is_due(seen: Seen) -> bool:
    """Whether a window has seen enough to be closed."""
    if seen.retry_after_s > 0:
        return True
    bad = seen.throttled + seen.failed
    if (
        seen.seconds >= EARLY_S
        and bad >= EARLY_BAD
        and (seen.throttled > EARLY_THROTTLED * max(seen.sent, 1) or seen.failed > FAILING * max(seen.answered, 1))
    ):
        return True
    return seen.seconds >= WINDOW_S and (seen.answered >= ENOUGH_ANSWERS or seen.seconds >= LONGEST_WINDOW_S)


def decide(law: Law, seen: Seen, trips: int, bounds: Bounds) -> Move:
    """The next rate, and why. The first rule that fits decides; a window moves the rate once."""
    bad = seen.throttled + seen.failed
    full = seen.seconds >= WINDOW_S
    law = replace(law, debt=max(0.0, law.debt - TOLERATED * seen.done_per_s * seen.seconds))
    top = max(law.ceiling, law.rate)
    if bad >= 5 and bad > 0.9 * seen.answered:
        shut_s = max(seen.retry_after_s, shut_for_s(trips))
        rate = max(bounds.least, min(law.rate, max(0.5 * law.rate, 0.1 * top)))
        return Move(replace(law, rate=rate, ceiling=top, gain=FIRST_GAIN), "shut", shut_s, trips=True)
    if seen.retry_after_s > 0 or (seen.throttled >= 2 and seen.throttled_share > TOLERATED):
        return Move(_throttled(law, seen, bounds, full=full), "throttled", seen.retry_after_s)
    if seen.failed >= 3 and seen.failed_share > FAILING:
        rate = max(bounds.least, min(law.rate, max(0.5 * law.rate, 0.1 * top)))
        return Move(replace(law, rate=rate, ceiling=top, gain=FIRST_GAIN), "failing")
    if not full:
        return Move(law, "hold")
    if seen.ok + seen.slow >= 5:
        slow = _slow(law, seen, top, bounds)
        if slow is not None:
            return slow
        law = _learn(law, seen)
    law = replace(law, streak=0)
    if seen.done_per_s < USED * law.rate:
        return Move(law, "unused")
    if not seen.throttled:
        law = replace(law, clean=law.rate)
    if law.rate < 0.85 * law.ceiling:
        return Move(replace(law, rate=min(bounds.most, 2 * law.rate, 0.9 * law.ceiling)), "recover")
    if law.debt > 0:
        return Move(law, "paying")
    rate = min(bounds.most, law.rate * (1 + law.gain))
    return Move(replace(law, rate=rate, gain=min(MOST_GAIN, GAIN_GROWS * law.gain)), "grow")


def shut_for_s(trips: int) -> float:
    """How long nobody asks after `trips` closings without a success between."""
    return min(LONGEST_SHUT_S, 2.0 * 2.0 ** min(trips, 10))


def _throttled(law: Law, seen: Seen, bounds: Bounds, *, full: bool) -> Law:
    good = max(law.rate * (1 - seen.throttled_share), min(seen.done_per_s, law.rate) if full else 0.0)
    if not law.streak and seen.throttled_share <= 0.6:
        good = max(good, NEARLY_CLEAN * law.clean)
    cut = NEXT_CUT if seen.retry_after_s > 0 and law.streak else CUT
    rate = max(bounds.least, min(max(cut * good, DEEPEST_CUT * law.rate), cut * law.rate))
    debt = min(law.debt + seen.throttled + 0.3 * rate * seen.retry_after_s, 1.8 * rate)
    # The second cut in a row is deep, to get out of the provider's way; what lies above it is tried again after a clean window.
    return replace(
        law, rate=rate, ceiling=rate / cut, clean=min(law.clean, rate), gain=FIRST_GAIN, debt=debt, slow_at_s=0.0,
        streak=law.streak + 1,
    )  # fmt: skip


def _slow(law: Law, seen: Seen, top: float, bounds: Bounds) -> Move | None:
    """A provider that queues instead of saying no shows it by its latency."""
    if law.known < TEACHING_ANSWERS:
        return None
    slower = math.log(seen.latency_s / law.base_s)
    if slower <= max(math.log(2.0), 3 * seen.sigma / math.sqrt(seen.ok + seen.slow)):
        return None
    if law.slow_at_s:
        if law.waited >= 2 and 0.9 < seen.done_per_s / law.rate < 1.1:
            base = min(seen.latency_s, 2 * law.base_s)
            return Move(replace(law, base_s=base, sigma=seen.sigma, slow_at_s=0.0, ceiling=top), "rebased")
        still = law.waited < 6 and seen.latency_s < 1.2 * law.slow_at_s
        if law.waited == 0 or seen.done_per_s >= 1.1 * law.rate or still:
            return Move(replace(law, waited=law.waited + 1), "draining")
    good = max(min(law.rate, seen.done_per_s), DEEPEST_CUT * law.rate)
    rate = max(bounds.least, SLOW_CUT * good)
    return Move(replace(law, rate=rate, ceiling=good, gain=FIRST_GAIN, slow_at_s=seen.latency_s, waited=0), "slow")


def _learn(law: Law, seen: Seen) -> Law:
    """The usual latency: taught by the first answers, then quick to fall and slow to rise."""
    heard, latency_s = seen.ok + seen.slow, seen.latency_s
    if law.known < TEACHING_ANSWERS:
        whole = law.known * math.log(law.base_s or 1.0) + heard * math.log(latency_s)
        known = law.known + heard
        return replace(law, base_s=math.exp(whole / known), known=known, sigma=seen.sigma)
    down = law.base_s + 0.2 * (latency_s - law.base_s)
    base_s = down if latency_s < law.base_s else min(latency_s, 1.02 * law.base_s)
    return replace(law, base_s=base_s, sigma=seen.sigma, slow_at_s=0.0)


@dataclass(slots=True)
class Report:
    """What a function has to tell of its calls, by the window that gave each its slot."""

    by_window: dict[int, dict[str, float]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.by_window)

    def add(self, window_no: int, **counts: float) -> None:
        seen = self.by_window.setdefault(window_no, {})
        for name, value in counts.items():
            seen[name] = seen.get(name, 0) + value

    def sent(self, window_no: int) -> None:
        self.add(window_no, sent=1)

    def answered(self, window_no: int, what: str, latency_s: float, retry_after_s: float = 0.0) -> None:
        """`what`: ok, throttled, failed or slow."""
        self.add(window_no, **{what: 1})
        if what in ("ok", "slow"):
            ln = math.log(max(latency_s, 1e-4))
            self.add(window_no, ln1=ln, ln2=ln * ln)
        if retry_after_s > 0:
            seen = self.by_window[window_no]
            seen["retry_after_s"] = max(seen.get("retry_after_s", 0.0), retry_after_s)

    def hand_over(self) -> tuple[int, Seen]:
        """The newest window's counts; of older ones only what came through."""
        newest = max(self.by_window, default=0)
        counts: dict[str, Any] = {**self.by_window.pop(newest, {})}
        counts["late_ok"] = sum(int(seen.get("ok", 0)) for seen in self.by_window.values())
        self.by_window.clear()
        return newest, Seen(**counts)


@dataclass(frozen=True, slots=True)
class Want:
    """So many slots, and none that falls due later than in so many seconds: it would pass by unused."""

    slots: int
    within_s: float = 60.0


REPORT_ONLY = Want(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """`slots` moments from `in_s` seconds on, `1 / rate` apart; or none, and whether it is worth asking again `in_s` later."""

    slots: int
    in_s: float
    window_no: int
    law: Law
    closed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """A grant, and the window as this exchange left it."""

    granted: Granted
    seen: Seen
    trips: int
    probing: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """A known limit: no minute sees more than `per_minute` calls, of which `burst` may come at once."""

    per_minute: float
    burst: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.burst < self.per_minute:
            raise ValueError(f"a burst of {self.burst} doesn't fit into {self.per_minute} calls a minute")

    @property
    def rate(self) -> float:
        """So that a burst and the minute after it stay within the limit."""
        return (self.per_minute - self.burst) / 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Even(Plain):
    """A known limit whose calls are spread evenly: for limits of less than one a minute too."""

    def __post_init__(self) -> None:
        if self.per_minute <= 0:
            raise ValueError("a pace needs calls")

    @property
    def rate(self) -> float:
        return self.per_minute / 60


class Pace(Protocol):
    """What slices need of this module; `Paces` is the real one."""

    def exchange(
        self, paced: Paced, token: UUID, report: tuple[int, Seen], want: Want, bounds: Bounds
    ) -> Exchanged: ...
    def close(self, paced: Paced, seen_no: int, before: float, move: Move, seen: Seen) -> bool: ...


def trade(pace: Pace, paced: Paced, token: UUID, report: tuple[int, Seen], want: Want, bounds: Bounds) -> Granted:
    """Report, ask, and close the window if it is this one's turn to be closed."""
    got = pace.exchange(paced, token, report, want, bounds)
    granted = got.granted
    waits = granted.closed and not got.seen.retry_after_s
    if not got.probing and not waits and is_due(got.seen):
        move = decide(granted.law, got.seen, got.trips, bounds)
        pace.close(paced, granted.window_no, granted.law.rate, move, got.seen)
    return granted


_KEY = "p.tenant_id = :owner and p.account = :account and p.domain = :domain"
# What a window adds up.
_SUMS = ("sent", "ok", "throttled", "failed", "slow", "ln1", "ln2")
_TYPES = {name: "double precision" if name.startswith("ln") else "integer" for name in _SUMS}
# Report and ask, on one row and in one flight. `asked` is what the function says, `turns` how far other tenants of a shared
# account are. Then one small fact after the other is worked out on the row as it is under its lock, and all are written.
EXCHANGE = sa.text(f"""
with asked as (
    select cast(:taker as uuid) as taker, cast(:token as uuid) as token, cast(:window_no as bigint) as window_no,
           {", ".join(f"cast(:{name} as {kind}) as {name}" for name, kind in _TYPES.items())},
           cast(:late_ok as integer) as late_ok, cast(:retry_after_s as double precision) as retry_after_s,
           cast(:want as integer) as want, cast(:within_s as double precision) as within_s),
turns as (
    select min(s.used) filter (where s.taker_id <> asked.taker) as least, max(s.used) filter (where s.taker_id <> asked.taker) as most,
           max(s.used) filter (where s.taker_id = asked.taker) as mine
    from asked left join pace_share s
        on s.tenant_id = :owner and s.account = :account and s.domain = :domain and s.until > now()),
changed as (
    update pace p set
        (window_no, opened_at, {", ".join(_SUMS)}, late_ok, retry_after_s,
         closed, closed_until, prober, trips, granted, next_slot_at) = (
            select p.window_no + case when starts.anew then 1 else 0 end,
                   case when starts.anew then now() else p.opened_at end,
                   {", ".join(f"case when starts.anew then 0 when told.now then p.{n} + asked.{n} else p.{n} end" for n in _SUMS)},
                   case when starts.anew then 0
                        else p.late_ok + asked.late_ok + case when told.now then 0 else asked.ok end end,
                   case when starts.anew then 0 when told.now then greatest(p.retry_after_s, asked.retry_after_s)
                        else p.retry_after_s end,
                   gate.closed,
                   case when probe.begins then now() + interval '{PROBE_S} s' else gate.until end,
                   case when probe.begins then asked.token when proof.opens or proof.shuts then null else p.prober end,
                   case when proof.opens then 0 when proof.shuts and told.by_prober then least(p.trips + 1, 20)
                        else p.trips end,
                   slots.granted,
                   case when slots.granted > 0 then next.at + slots.granted / p.rate * interval '1 s' else p.next_slot_at end
            -- Is the report of the window that is open, and does it come from the one who probes the closed gate?
            from (select p.window_no = asked.window_no as now,
                         coalesce(p.closed and p.prober = asked.token and p.window_no = asked.window_no, false) as by_prober) told
            -- What it proves about the gate.
            cross join lateral (
                select told.by_prober and asked.ok > 0 as opens,
                       told.by_prober and asked.ok = 0 and asked.throttled + asked.failed > 0
                       or told.now and asked.retry_after_s > 0 as shuts) proof
            -- How the gate stands then. What the prober was given to report ends with its report.
            cross join lateral (
                select case when proof.opens then false when proof.shuts then true else p.closed end as closed,
                       case when proof.opens then now()
                            when proof.shuts then greatest(case when told.by_prober then now() else p.closed_until end,
                                now() + interval '1 s' * greatest(asked.retry_after_s, case when told.by_prober
                                    then least({LONGEST_SHUT_S}, 2 * power(2, least(p.trips, 10))) else 0 end))
                            else p.closed_until end as until) gate
            -- Its time is over: whoever asks now is the probe. A probe and an opened gate start a window.
            cross join lateral (select gate.closed and gate.until <= now() and asked.want > 0 as begins) probe
            cross join lateral (select proof.opens or probe.begins as anew) starts
            -- When the next slot is; a probe's is now, for all slots from before have passed by unused. A tenant that is ahead of the others by more than a second of the rate only gets
            -- what is free at this moment.
            cross join lateral (
                select case when probe.begins then now() else greatest(p.next_slot_at, now()) end as at,
                       extract(epoch from p.next_slot_at - now()) as in_s,
                       case when greatest(coalesce(turns.mine, turns.least), turns.most - 15 * p.rate) - turns.least > p.rate
                            then {AHEAD_S} else {PATIENCE_S} end as patience_s) next
            -- How many there are, of those that fall due while the asker still sends.
            cross join lateral (
                select case when asked.want = 0 then 0
                            when gate.closed then case when probe.begins then 1 else 0 end
                            when next.in_s > greatest(1.5 / p.rate, next.patience_s) or next.in_s > asked.within_s then 0
                            else least(asked.want, ceil(p.rate * {GRANT_S}),
                                       floor((asked.within_s - greatest(next.in_s, 0)) * p.rate) + 1)::integer
                            end as granted) slots)
    from asked cross join turns where {_KEY}
    returning p.*, asked.taker, turns.least, turns.most, turns.mine),
share as (
    insert into pace_share as s (tenant_id, account, domain, taker_id, used, until)
    select c.tenant_id, c.account, c.domain, c.taker,
           greatest(case when c.mine is null then c.least end, c.most - 15 * c.rate, c.mine, 0) + c.granted,
           now() + case c.granted when 0 then interval '17 s' else interval '2 s' end
    from changed c where c.tenant_id = '{SHARED}'
    on conflict (tenant_id, account, domain, taker_id)
    do update set used = excluded.used, until = greatest(s.until, excluded.until))
select granted, rate, law, window_no, closed, trips, prober is not null as probing,
       extract(epoch from next_slot_at - now())::double precision as next_slot_in_s,
       extract(epoch from closed_until - now())::double precision as opens_in_s,
       extract(epoch from now() - opened_at)::double precision as seconds,
       {", ".join(_SUMS)}, late_ok, retry_after_s
from changed
""")
BEGIN = sa.text("""
insert into pace (tenant_id, account, domain, rate, opened_at, next_slot_at, closed_until)
values (:owner, :account, :domain, cast(:rate as double precision), now(), now(), now()) on conflict do nothing
""")
# Of all who see that a window is full, one closes it: whoever finds its number unchanged.
CLOSE = sa.text(f"""
with w as (
    update pace p set rate = cast(:rate as double precision), law = cast(:law as jsonb), window_no = p.window_no + 1,
        opened_at = now(), sent = 0, ok = 0, throttled = 0, failed = 0, slow = 0, late_ok = 0, ln1 = 0, ln2 = 0,
        retry_after_s = 0, closed = p.closed or cast(:shut_s as double precision) > 0,
        closed_until = case when cast(:shut_s as double precision) > 0
            then greatest(p.closed_until, now() + cast(:shut_s as double precision) * interval '1 s') else p.closed_until end,
        prober = case when cast(:shut_s as double precision) > 0 then null else p.prober end,
        trips = least(p.trips + cast(:tripped as integer), 20)
    where {_KEY} and p.window_no = :window_no
    returning p.tenant_id, p.account, p.domain)
insert into pace_decision (tenant_id, account, domain, window_no, at, rate_before, rate_after, reason, seen)
select tenant_id, account, domain, cast(:window_no as bigint), now(), cast(:before as double precision),
       cast(:rate as double precision), cast(:reason as text), cast(:seen as jsonb)
from w
returning 1
""")
# Slots of a known rate, from `burst` of them ago at the earliest; only those that fall due within the asker's patience.
TAKE = sa.text("""
with x as (
    select cast(:rate as double precision) as rate, cast(:want as integer) as want,
           cast(:patience_s as double precision) as patience,
           now() - cast(:spare_s as double precision) * interval '1 s' as earliest)
insert into pace as p (tenant_id, account, domain, rate, next_slot_at, granted)
select cast(:owner as uuid), :account, :domain, x.rate, x.earliest + t.k / x.rate * interval '1 s', t.k
from x cross join lateral (
    select least(x.want, floor((extract(epoch from now() - x.earliest)::double precision + x.patience) * x.rate + 1e-6)::integer + 1)
        as k) t
on conflict (tenant_id, account, domain) do update set
    (rate, granted, next_slot_at) = (
        select x.rate, t.k, case when t.k > 0 then s.start + t.k / x.rate * interval '1 s' else p.next_slot_at end
        from x
        cross join lateral (select greatest(p.next_slot_at, x.earliest) as start) s
        cross join lateral (
            select greatest(0, least(x.want, floor(
                (extract(epoch from now() - s.start)::double precision + x.patience) * x.rate + 1e-6)::integer + 1)) as k) t)
returning granted, extract(epoch from next_slot_at - now())::double precision as next_slot_in_s
""")


class Paces:
    """The rows in Postgres. Each call is one statement; every process asks for itself."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def exchange(self, paced: Paced, token: UUID, report: tuple[int, Seen], want: Want, bounds: Bounds) -> Exchanged:
        """Report and ask. The first ever makes the row."""
        window_no, told = report
        counts = {name: value for name, value in asdict(told).items() if name != "seconds"}
        asked = {"want": want.slots, "within_s": want.within_s}
        params = {**_key(paced), "taker": paced.taker, "token": token, "window_no": window_no, **asked, **counts}
        with direct.alone(self._engine, paced.taker) as line:
            row = line.often(EXCHANGE, params)
        if row is None:
            with direct.alone(self._engine, paced.taker) as line:
                line.run(BEGIN, {**_key(paced), "rate": bounds.first})
            with direct.alone(self._engine, paced.taker) as line:
                row = line.often(EXCHANGE, params)
        assert row is not None
        return _exchanged(row)

    def close(self, paced: Paced, seen_no: int, before: float, move: Move, seen: Seen) -> bool:
        """Whether this one closed the window; else another was first."""
        params = {
            **_key(paced), "window_no": seen_no, "before": before, "rate": move.law.rate, "reason": move.reason,
            "law": db.jsonb(move.law.to_json()), "seen": db.jsonb(asdict(seen)), "shut_s": move.shut_s,
            "tripped": int(move.trips),
        }  # fmt: skip
        with direct.alone(self._engine, paced.taker) as line:
            return line.one(CLOSE, params) is not None

    def take(self, paced: Paced, plain: Plain, want: int = 1, patience_s: float = 0.0) -> list[float]:
        """Slots of a known limit, as seconds from now; as many as fall due within `patience_s`.

        If there is none, `Later` says when: the lane waits, which spends nothing.
        """
        spare_s = (plain.burst - 1) / plain.rate
        params = {**_key(paced), "rate": plain.rate, "want": want, "patience_s": patience_s, "spare_s": spare_s}
        with direct.alone(self._engine, paced.taker) as line:
            row = line.one(TAKE, params)
        assert row is not None
        granted, after_s = row["granted"], row["next_slot_in_s"]
        if not granted:
            raise Later(max(after_s - patience_s, 0.1), f"its turn at {paced.domain}")
        return [max(0.0, after_s - back / plain.rate) for back in range(granted, 0, -1)]


def _key(paced: Paced) -> dict[str, Any]:
    return {"owner": paced.whose, "account": paced.account, "domain": paced.domain}


def _exchanged(row: Mapping[str, Any]) -> Exchanged:
    law = Law.of(row["rate"], row["law"])
    granted, ends_in_s = row["granted"], row["next_slot_in_s"]
    if granted:
        in_s = ends_in_s - granted / law.rate
    elif row["closed"]:
        in_s = min(row["opens_in_s"], 0.5) if row["probing"] else row["opens_in_s"] + 0.01
    else:
        in_s = ends_in_s
    seen = Seen(**{each.name: row[each.name] for each in fields(Seen)})
    return Exchanged(
        granted=Granted(slots=granted, in_s=max(0.0, in_s), window_no=row["window_no"], law=law, closed=row["closed"]),
        seen=seen,
        trips=row["trips"],
        probing=row["closed"] and row["probing"],
    )
