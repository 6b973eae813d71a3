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
    return replace(
        law, rate=rate, ceiling=rate / CUT, clean=min(law.clean, rate), gain=FIRST_GAIN, debt=debt, slow_at_s=0.0,
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

    by_window: dict[int, Seen] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.by_window)

    def add(self, window_no: int, **counts: float) -> None:
        seen = self.by_window.get(window_no, Seen())
        changed: dict[str, Any] = {name: getattr(seen, name) + value for name, value in counts.items()}
        self.by_window[window_no] = replace(seen, **changed)

    def sent(self, window_no: int) -> None:
        self.add(window_no, sent=1)

    def answered(self, window_no: int, what: str, latency_s: float, retry_after_s: float = 0.0) -> None:
        """`what`: ok, throttled, failed or slow."""
        if what in ("ok", "slow"):
            ln = math.log(max(latency_s, 1e-4))
            self.add(window_no, **{what: 1}, ln1=ln, ln2=ln * ln)
        else:
            self.add(window_no, **{what: 1})
        if retry_after_s > 0:
            seen = self.by_window[window_no]
            self.by_window[window_no] = replace(seen, retry_after_s=max(seen.retry_after_s, retry_after_s))

    def hand_over(self) -> tuple[int, Seen]:
        """The newest window's counts; of older ones only what came through."""
        newest = max(self.by_window, default=0)
        late = sum(seen.ok for window_no, seen in self.by_window.items() if window_no != newest)
        told = replace(self.by_window.get(newest, Seen()), late_ok=late)
        self.by_window.clear()
        return newest, told


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


class Pace(Protocol):
    """What slices need of this module; `Paces` is the real one."""

    def exchange(self, paced: Paced, token: UUID, report: tuple[int, Seen], want: int, bounds: Bounds) -> Exchanged: ...
    def close(self, paced: Paced, seen_no: int, before: float, move: Move, seen: Seen) -> bool: ...


def trade(pace: Pace, paced: Paced, token: UUID, report: tuple[int, Seen], want: int, bounds: Bounds) -> Granted:
    """Report, ask, and close the window if it is this one's turn to be closed."""
    got = pace.exchange(paced, token, report, want, bounds)
    granted = got.granted
    waits = granted.closed and not got.seen.retry_after_s
    if not got.probing and not waits and is_due(got.seen):
        move = decide(granted.law, got.seen, got.trips, bounds)
        pace.close(paced, granted.window_no, granted.law.rate, move, got.seen)
    return granted


_KEY = "p.tenant_id = :owner and p.account = :account and p.domain = :domain"
# What was reported is added to its window, the gate moves, and slots are granted: `a` to `e` say in turn whose report it is,
# what it does to the gate, how the gate stands then, whether the asker becomes its probe, and how many slots there are.
# A tenant that is ahead of the others by more than a second of the rate only gets what is free at this moment.
EXCHANGE = sa.text(f"""
with x as (
    select cast(:taker as uuid) as taker, cast(:token as uuid) as token, cast(:window_no as bigint) as w,
           cast(:sent as integer) as sent, cast(:ok as integer) as ok, cast(:throttled as integer) as throttled,
           cast(:failed as integer) as failed, cast(:slow as integer) as slow, cast(:late_ok as integer) as late_ok,
           cast(:ln1 as double precision) as ln1, cast(:ln2 as double precision) as ln2,
           cast(:retry_after_s as double precision) as ra, cast(:want as integer) as want),
f as (
    select x.*, o.lo, o.hi, o.mine from x cross join lateral (
        select min(s.used) filter (where s.taker_id <> x.taker) as lo, max(s.used) filter (where s.taker_id <> x.taker) as hi,
               max(s.used) filter (where s.taker_id = x.taker) as mine
        from pace_share s
        where s.tenant_id = :owner and s.account = :account and s.domain = :domain and s.until > now()) o),
g as (
    update pace p set
        (sent, ok, throttled, failed, slow, late_ok, ln1, ln2, retry_after_s, window_no, opened_at, closed, closed_until,
         prober, trips, granted, next_slot_at) = (
            select case when n.anew then 0 else p.sent + case when a.same then f.sent else 0 end end,
                   case when n.anew then 0 else p.ok + case when a.same then f.ok else 0 end end,
                   case when n.anew then 0 else p.throttled + case when a.same then f.throttled else 0 end end,
                   case when n.anew then 0 else p.failed + case when a.same then f.failed else 0 end end,
                   case when n.anew then 0 else p.slow + case when a.same then f.slow else 0 end end,
                   case when n.anew then 0 else p.late_ok + f.late_ok + case when a.same then 0 else f.ok end end,
                   case when n.anew then 0 else p.ln1 + case when a.same then f.ln1 else 0 end end,
                   case when n.anew then 0 else p.ln2 + case when a.same then f.ln2 else 0 end end,
                   case when n.anew then 0 when a.same then greatest(p.retry_after_s, f.ra) else p.retry_after_s end,
                   case when n.anew then p.window_no + 1 else p.window_no end,
                   case when n.anew then now() else p.opened_at end,
                   c.closed, case when d.probes then now() + interval '{PROBE_S} s' else c.until end,
                   case when d.probes then f.token when b.opens or b.shuts then null else p.prober end,
                   case when b.opens then 0 when b.shuts and a.probing then least(p.trips + 1, 20) else p.trips end,
                   e.k,
                   case when e.k > 0 then greatest(p.next_slot_at, now()) + e.k / p.rate * interval '1 s'
                        else p.next_slot_at end
            from (select p.window_no = f.w as same, p.closed and p.prober = f.token and p.window_no = f.w as probing) a
            cross join lateral (
                select coalesce(a.probing, false) and f.ok > 0 as opens,
                       coalesce(a.probing, false) and f.ok = 0 and f.throttled + f.failed > 0 or a.same and f.ra > 0 as shuts) b
            cross join lateral (
                select case when b.opens then false when b.shuts then true else p.closed end as closed,
                       case when b.shuts then greatest(p.closed_until, now() + greatest(f.ra,
                                case when a.probing then least({LONGEST_SHUT_S}, 2 * power(2, least(p.trips, 10))) else 0 end)
                                * interval '1 s')
                            else p.closed_until end as until) c
            cross join lateral (select c.closed and c.until <= now() and f.want > 0 as probes) d
            cross join lateral (select b.opens or d.probes as anew) n
            cross join lateral (
                select case when f.want = 0 then 0
                            when c.closed then case when d.probes then 1 else 0 end
                            when extract(epoch from p.next_slot_at - now()) > greatest(1.5 / p.rate, case
                                when greatest(coalesce(f.mine, f.lo), f.hi - 15 * p.rate) - f.lo > p.rate then 0.15 else 1 end)
                            then 0
                            else least(f.want, ceil(p.rate * {GRANT_S})::integer) end as k) e)
    from f where {_KEY}
    returning p.*, f.taker, f.lo, f.hi, f.mine),
s as (
    insert into pace_share as s (tenant_id, account, domain, taker_id, used, until)
    select g.tenant_id, g.account, g.domain, g.taker,
           greatest(case when g.mine is null then g.lo end, g.hi - 15 * g.rate, g.mine, 0) + g.granted,
           now() + case g.granted when 0 then interval '17 s' else interval '2 s' end
    from g where g.tenant_id = '{SHARED}'
    on conflict (tenant_id, account, domain, taker_id)
    do update set used = excluded.used, until = greatest(s.until, excluded.until))
select g.granted, g.rate, g.law, g.window_no, g.closed, g.trips, g.prober is not null as probing,
       extract(epoch from g.next_slot_at - now())::double precision as next_slot_in_s,
       extract(epoch from g.closed_until - now())::double precision as opens_in_s,
       extract(epoch from now() - g.opened_at)::double precision as seconds,
       g.sent, g.ok, g.throttled, g.failed, g.slow, g.late_ok, g.ln1, g.ln2, g.retry_after_s
from g
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

    def exchange(self, paced: Paced, token: UUID, report: tuple[int, Seen], want: int, bounds: Bounds) -> Exchanged:
        """Report and ask. The first ever makes the row."""
        window_no, told = report
        counts = {name: value for name, value in asdict(told).items() if name != "seconds"}
        params = {**_key(paced), "taker": paced.taker, "token": token, "window_no": window_no, "want": want, **counts}
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
