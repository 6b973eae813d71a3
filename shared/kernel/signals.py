"""Who hears what happened: each signal once to each listener, oldest first. One that fails holds up no other.

A signal is fanned out into a `hearing` per listener, and each hearing is heard in a transaction of its tenant together
with all that the listener writes and starts: it happens with them or not at all. Reads only the database, needs no leader
and may run twice at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from uuid import UUID

from shared.kernel.catalogue import Catalogue, Kind
from shared.kernel.clock import stopwatch
from shared.kernel.deliver import deliver
from shared.kernel.errors import Refused
from shared.kernel.log import logger
from shared.kernel.metrics import Metric
from shared.kernel.model import By, Due, Problem, Signal, Start
from shared.kernel.points import Point, point
from shared.kernel.ports import Ports, Tx
from shared.kernel.retry import SURPRISE
from shared.kernel.run import create_run
from shared.kernel.settings import RETENTION_DAYS

OURS = ("run.", "object.")  # what the relay itself says
SUBSCRIBER = "/"  # between a kind and the one of its subscribers that hears
BATCH = 200
MOST_ATTEMPTS = 10
AT_ONCE_S = 5.0  # what a step may spend on others after its own work is done
AT_ONCE = 50


def reserved(kinds: Catalogue) -> tuple[str, ...]:
    """Prefixes of names that only Baton says: from outside they would be forgeries."""
    return (*OURS, *(prefix for kind in kinds.values() for prefix in kind.own_signals))


def announced(ports: Ports, kinds: Catalogue) -> Ports:
    """Ports whose user tells listeners at once what it wrote. A failure there is the tick's to repeat."""

    def tell(now: Ports) -> None:
        elapsed, most_s = stopwatch(), min(AT_ONCE_S, now.time_left_s() / 2)
        try:
            dispatch(now, kinds, lambda: elapsed() < most_s, AT_ONCE)
        except Exception:
            logger.exception("signals could not be dispatched at once")

    return replace(ports, announce=tell)


def dispatch(
    ports: Ports, kinds: Catalogue, in_time: Callable[[], bool] = lambda: True, most: int | None = None
) -> int:
    """Let every listener hear what it has not heard yet; answers how many hearings were done."""
    heard = 0
    while in_time() and _fan_out(ports, kinds) == BATCH:
        pass
    while in_time() and (most is None or heard < most):
        tenant_id = ports.store.hearing_tenant()
        if tenant_id is None:
            break
        done = _hear(ports, kinds, tenant_id)
        if not done:  # another tick is at it
            break
        heard += done
    return heard


def _fan_out(ports: Ports, kinds: Catalogue) -> int:
    with ports.store.begin(None) as tx:
        signals = tx.lock_new_signals(BATCH, RETENTION_DAYS["signal"])
        if not signals:
            return 0
        point(Point.SIGNAL_LOCKED)
        heard_by = [(signal_id, kind.name) for signal_id, name in signals for kind in _listeners(kinds, name)]
        heard_by += _subscribed(tx, kinds, [signal_id for signal_id, name in signals if name])
        tx.fan_out([signal_id for signal_id, _ in signals], heard_by)
    point(Point.SIGNAL_FANNED_OUT)
    return len(signals)


def _listeners(kinds: Catalogue, name: str) -> Iterator[Kind]:
    return (kind for kind in kinds.values() if _pattern(kind, name) is not None)


def _subscribed(tx: Tx, kinds: Catalogue, signal_ids: Sequence[int]) -> list[tuple[int, str]]:
    asked = {"signal_ids": [str(each) for each in signal_ids]}
    return [
        (row["signal_id"], f"{kind.name}{SUBSCRIBER}{row['subscriber']}")
        for kind in kinds.values()
        if kind.subscribers is not None
        for row in tx.read(kind.subscribers.find, asked)
    ]


def _pattern(kind: Kind, name: str) -> str | None:
    """By which of its patterns a kind hears a name: the name itself, or else the longest prefix."""
    if not name:
        return None
    if name in kind.listens:
        return name
    fitting = [each for each in kind.listens if each.endswith("*") and name.startswith(each[:-1])]
    return max(fitting, key=len, default=None)


@dataclass(frozen=True, slots=True)
class _Hearing:
    signal: Signal
    listener: str
    attempts: int


def _hear(ports: Ports, kinds: Catalogue, tenant_id: UUID) -> int:
    """A batch in one transaction; if one of it fails, one by one, so that it alone is set aside."""
    try:
        return _hear_together(ports, kinds, tenant_id, BATCH)
    except _Failed:
        pass
    done = 0
    for _ in range(BATCH):
        try:
            heard = _hear_together(ports, kinds, tenant_id, 1)
        except _Failed as error:
            heard = 1
            _set_aside(ports, error)
        if not heard:
            break
        done += heard
    return done


def _hear_together(ports: Ports, kinds: Catalogue, tenant_id: UUID, most: int) -> int:
    dues: list[Due] = []
    with ports.store.begin(tenant_id) as tx:
        hearings = [_Hearing(*each) for each in tx.take_hearings(most)]
        if not hearings:
            return 0
        point(Point.SIGNAL_TAKEN)
        for hearing in hearings:
            with _failing(hearing):
                dues += _hear_one(tx, ports, kinds, hearing)
        tx.note_heard([(hearing.signal.id, hearing.listener) for hearing in hearings])
        point(Point.SIGNAL_HEARD)
    point(Point.SIGNAL_COMMITTED)
    deliver(ports, dues)
    ports.meter.count(Metric.SIGNAL, len(hearings), outcome="heard")
    return len(hearings)


def _hear_one(tx: Tx, ports: Ports, kinds: Catalogue, hearing: _Hearing) -> Sequence[Due]:
    name, _, subscriber = hearing.listener.partition(SUBSCRIBER)
    kind, signal = kinds.get(name), hearing.signal
    if subscriber:
        return (
            ()
            if kind is None or kind.subscribers is None
            else kind.subscribers.tell(tx, ports, kind, signal, subscriber)
        )
    pattern = None if kind is None else _pattern(kind, signal.name)
    if kind is None or pattern is None:
        return ()  # it listened when the signal was written, and does no more
    by = By(source="event", source_ref=f"signal:{signal.id}")
    return [due for start in kind.listens[pattern](tx, signal) for due in _start(tx, ports, kinds, signal, start, by)]


def _start(tx: Tx, ports: Ports, kinds: Catalogue, signal: Signal, start: Start, by: By) -> Sequence[Due]:
    if start.kind not in kinds:
        raise Refused("unknown_kind", f"Unknown kind {start.kind!r}. Available: {', '.join(sorted(kinds))}.")
    return create_run(tx, ports, kinds[start.kind], signal.tenant_id, start.params, by, start.label).dues


class _Failed(Exception):
    """A listener could not hear: whatever its transaction wrote is rolled back."""

    def __init__(self, hearing: _Hearing, cause: Exception) -> None:
        super().__init__(str(cause))
        self.hearing, self.cause = hearing, cause


@contextmanager
def _failing(hearing: _Hearing) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise _Failed(hearing, error) from error


def _set_aside(ports: Ports, failed: _Failed) -> None:
    """It comes again later, and slower each time; at last it is given up, and stays to be seen until its retention ends."""
    signal, listener = failed.hearing.signal, failed.hearing.listener
    attempts = failed.hearing.attempts + 1
    given_up = attempts >= MOST_ATTEMPTS
    delay_s = None if given_up else SURPRISE.delay_s(attempts, ports.chance.fraction())
    code = failed.cause.code if isinstance(failed.cause, Refused) else "unexpected"
    problem = Problem(code, f"{type(failed.cause).__name__}: {failed.cause}")
    logger.warning(
        "a signal was not heard", extra={"signal": signal.id, "listener": listener, "error": problem.to_json()}
    )
    ports.meter.count(Metric.SIGNAL, outcome="given_up" if given_up else "failed")
    ports.store.note_unheard(signal.id, listener, attempts, delay_s, problem)
