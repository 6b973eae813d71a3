"""Who hears what happened: each signal once to each listener, oldest first. One that fails holds up no other.

A signal is fanned out into a `hearing` per listener. A hearing is taken, which counts it, and then heard in a transaction
of its tenant together with all that the listener writes and starts: it happens with them or not at all. Reads only the
database, needs no leader and may run twice at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from shared.kernel import db
from shared.kernel.catalogue import Catalogue, Kind
from shared.kernel.clock import stopwatch
from shared.kernel.deliver import deliver
from shared.kernel.errors import NoRoom, Overtaken, Refused
from shared.kernel.log import logger
from shared.kernel.metrics import Metric
from shared.kernel.model import By, Due, Hearing, Problem, Signal, Start
from shared.kernel.points import Point, point
from shared.kernel.ports import Ports, Tx
from shared.kernel.retry import SURPRISE
from shared.kernel.run import create_run
from shared.kernel.settings import RETENTION_DAYS

OURS = ("run.", "object.", "provider.connection.")  # what the relay itself says
SUBSCRIBER = "/"  # between a kind and the one of its subscribers that hears
BATCH = 200
MOST_ATTEMPTS = 10
HEARING_S = 60.0  # and the time of a tick: whoever has not heard by then is dead
AFTER_TROUBLE_S = 15.0
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
    done, lease_s = 0, HEARING_S + ports.relay.tick_seconds
    while in_time() and _fan_out(ports, kinds) == BATCH:
        pass
    while in_time() and (most is None or done < most):
        hearings = ports.store.take_hearings(BATCH, lease_s)
        if not hearings:
            break
        point(Point.SIGNAL_TAKEN)
        done += _hear(ports, kinds, hearings, in_time)
    return done


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


def _hear(ports: Ports, kinds: Catalogue, hearings: Sequence[Hearing], in_time: Callable[[], bool]) -> int:
    """A batch in one transaction; if one of it fails, one by one, so that it alone is set aside."""
    if len(hearings) > 1:
        try:
            return _hear_together(ports, kinds, hearings)
        except _Failed:
            pass
    done = 0
    for n, hearing in enumerate(hearings):
        if n and not in_time():
            _give_back(ports, hearings[n:], 0)
            break
        done += _hear_alone(ports, kinds, hearing)
    return done


def _hear_alone(ports: Ports, kinds: Catalogue, hearing: Hearing) -> int:
    if hearing.attempts > MOST_ATTEMPTS:
        died = Problem("poison", f"{hearing.attempts - 1} processes started on this and none finished it")
        _give_up(ports, hearing, died)
        return 1
    try:
        return _hear_together(ports, kinds, [hearing])
    except _Failed as failed:
        _set_aside(ports, failed)
        return 1


def _hear_together(ports: Ports, kinds: Catalogue, hearings: Sequence[Hearing]) -> int:
    """All of one tenant, in one transaction. 0: another tick has them by now, and nothing was done."""
    dues: list[Due] = []
    try:
        with ports.store.begin(hearings[0].signal.tenant_id) as tx:
            for listener, heard in _by_listener(hearings):
                with _failing(heard[0]):
                    dues += _hear_all(tx, ports, kinds, listener, [hearing.signal for hearing in heard])
            if not tx.note_heard(hearings):
                raise Overtaken  # noqa: TRY301 - so that it is rolled back
            point(Point.SIGNAL_HEARD)
    except Overtaken:
        return 0
    except _Failed:
        raise
    except Exception as error:
        if db.is_disconnect(error):
            _give_back(ports, hearings, AFTER_TROUBLE_S)
            raise
        raise _Failed(hearings[0], error) from error
    point(Point.SIGNAL_COMMITTED)
    deliver(ports, dues)
    ports.meter.count(Metric.SIGNAL, len(hearings), outcome="heard")
    return len(hearings)


def _give_back(ports: Ports, hearings: Sequence[Hearing], delay_s: float) -> None:
    """Nobody has failed. If the database does not take it, they come again when their lease ends."""
    try:
        ports.store.give_hearings_back(hearings, delay_s)
    except Exception:
        logger.exception("hearings could not be given back")


def _by_listener(hearings: Sequence[Hearing]) -> list[tuple[str, list[Hearing]]]:
    """Sorted: those who hear at the same time lock what they share in the same order."""
    heard: dict[str, list[Hearing]] = {}
    for hearing in hearings:
        heard.setdefault(hearing.listener, []).append(hearing)
    return sorted(heard.items())


def _hear_all(tx: Tx, ports: Ports, kinds: Catalogue, listener: str, signals: Sequence[Signal]) -> Sequence[Due]:
    name, _, subscriber = listener.partition(SUBSCRIBER)
    kind = kinds.get(name)
    if kind is not None and subscriber:
        return () if kind.subscribers is None else kind.subscribers.tell(tx, ports, kind, subscriber, signals)
    return [due for signal in signals for due in _hear_one(tx, ports, kinds, kind, signal)]


def _hear_one(tx: Tx, ports: Ports, kinds: Catalogue, kind: Kind | None, signal: Signal) -> Sequence[Due]:
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

    def __init__(self, hearing: Hearing, cause: Exception) -> None:
        super().__init__()
        self.hearing, self.cause = hearing, cause


@contextmanager
def _failing(hearing: Hearing) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if db.is_disconnect(error):
            raise
        raise _Failed(hearing, error) from error


def _set_aside(ports: Ports, failed: _Failed) -> None:
    """It comes again later, and slower each time; at last it is given up, and stays to be seen until its retention ends."""
    hearing, cause = failed.hearing, failed.cause
    if db.is_conflict(cause):
        _give_back(ports, [hearing], AFTER_TROUBLE_S)
        return
    code = cause.code if isinstance(cause, Refused) else "unexpected"
    problem = Problem(code, f"{type(cause).__name__}: {cause}")
    delay_s = SURPRISE.delay_s(hearing.attempts, ports.chance.fraction())
    if hearing.attempts < MOST_ATTEMPTS:
        _note(ports, hearing, problem, "failed", delay_s)
    elif isinstance(cause, NoRoom):  # there will be room again, however long it takes: what was accepted is not lost
        _give_back(ports, [hearing], delay_s)
    else:
        _give_up(ports, hearing, problem)


def _give_up(ports: Ports, hearing: Hearing, problem: Problem) -> None:
    _note(ports, hearing, problem, "given_up", None)


def _note(ports: Ports, hearing: Hearing, problem: Problem, outcome: str, delay_s: float | None) -> None:
    said = {"signal": hearing.signal.id, "listener": hearing.listener, "error": problem.to_json()}
    logger.warning("a signal was not heard", extra=said)
    ports.meter.count(Metric.SIGNAL, outcome=outcome)
    ports.store.note_unheard(hearing, delay_s, problem)
