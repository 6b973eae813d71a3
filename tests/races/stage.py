"""Guards that a race is staged and not hoped for: actors on threads and connections of their own, stopped by name."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import sqlalchemy as sa

from shared.kernel import db, direct
from shared.kernel.points import watch_points
from shared.kernel.store import PgStore
from tests.support.house import House

T = TypeVar("T")
PATIENCE_S = 60.0
Place = str | sa.TextClause

BLOCKED = """
select count(*) from pg_stat_activity
where application_name = :name and datname = current_database() and wait_event_type = 'Lock'
"""


class Actor:
    """A process of its own. It runs until its next stop: a named point, or the moment before a statement."""

    def __init__(self, house: House, name: str, role: str = "baton_worker", url: str | None = None) -> None:
        self.house, self.name = house, name
        self.engine = house.engine(role, name, url)
        self.store = PgStore(self.engine)
        self.ports = house.ports_of(self.store)
        self.errors: list[str] = []
        self._stops: set[Place] = set()
        self._at: Place | None = None
        self._moved = threading.Condition()
        self._thread: threading.Thread | None = None

    def does(self, body: Callable[[Actor], T], *, until: Place | None = None) -> Scene[T]:
        """Begin `body`; if it is to stop somewhere, it has done so when this returns."""
        scene = Scene(self, body)
        if until is not None:
            self._stops.add(until)
        self._thread = scene.thread
        scene.thread.start()
        if until is not None:
            self.reaches(until)
        return scene

    def goes_on(self, until: Place | None = None) -> None:
        """Leave the present stop; with `until`, go on to the next one."""
        with self._moved:
            assert self._at is not None, f"{self.name} is not at a stop"
            self._stops.discard(self._at)
            self._at = None
            if until is not None:
                self._stops.add(until)
            self._moved.notify_all()
        if until is not None:
            self.reaches(until)

    def reaches(self, place: Place) -> None:
        with self._moved:
            arrived = self._moved.wait_for(lambda: self._at is place or self._over(), PATIENCE_S)
            assert arrived, f"{self.name} is still on its way to {place}"
            assert self._at is place, f"{self.name} ended and did not come to {place}"

    def blocks(self) -> None:
        """Return once the database says that this actor waits for a lock; it must not have ended before."""
        self.comes_to_rest()
        assert not self._over(), f"{self.name} was to wait for a lock and did not"

    def comes_to_rest(self) -> None:
        """Return once this actor waits for a lock or has ended."""
        deadline = time.monotonic() + PATIENCE_S
        while not self._over() and not self.house.value(BLOCKED, name=self.name):
            assert time.monotonic() < deadline, f"{self.name} neither waits for a lock nor ends"
            time.sleep(0.002)

    def passes(self, place: Place) -> None:
        """Called on the actor's own thread at every point and before every statement."""
        self._stop_at(place)

    def _stop_at(self, place: Place | None) -> None:
        if not any(place is stop for stop in self._stops):
            return
        with self._moved:
            self._at = place
            self._moved.notify_all()
            gone_on = self._moved.wait_for(lambda: self._at is None, PATIENCE_S)
        assert gone_on, f"{self.name} was left standing at {place}"

    def meets(self, error: BaseException) -> None:
        """Called on the actor's own thread when the database answers with an error."""
        self.errors.append(db.sqlstate(error) or type(error).__name__)

    def _over(self) -> bool:
        return self._thread is not None and not self._thread.is_alive()

    def let_go(self) -> None:
        """At the end of a test, also of a failed one: nothing stops here any more."""
        with self._moved:
            self._stops.clear()
            self._at = None
            self._moved.notify_all()
        if self._thread is not None:
            self._thread.join(PATIENCE_S)


class Scene(Generic[T]):
    """What one actor is doing, and its answer."""

    def __init__(self, actor: Actor, body: Callable[[Actor], T]) -> None:
        self._actor, self._body = actor, body
        self._results: list[T] = []
        self._failures: list[BaseException] = []
        self.thread = threading.Thread(target=self._play, name=actor.name, daemon=True)

    def _play(self) -> None:
        _playing.actor = self._actor
        try:
            self._results.append(self._body(self._actor))
        except BaseException as error:
            self._failures.append(error)
        finally:
            with self._actor._moved:
                self._actor._moved.notify_all()

    def answer(self, within_s: float = PATIENCE_S) -> T:
        self.thread.join(within_s)
        assert not self.thread.is_alive(), f"{self._actor.name} does not end"
        if self._failures:
            raise self._failures[0]
        return self._results[0]

    def failure(self, expected: type[Exception]) -> Exception:
        try:
            answer = self.answer()
        except expected as error:
            return error
        raise AssertionError(f"{self._actor.name} answered {answer!r} instead of {expected.__name__}")


_playing = threading.local()


def _pass(place: Place) -> None:
    actor: Actor | None = getattr(_playing, "actor", None)
    if actor is not None:
        actor.passes(place)


@contextmanager
def _statements_watched() -> Iterator[None]:
    """Every statement of the store passes the stops of the actor who runs it."""
    plain = direct.Line._execute

    def watched(line: direct.Line, statement: sa.TextClause, params: direct.Row, **how: Any) -> Any:
        _pass(statement)
        try:
            return plain(line, statement, params, **how)
        except Exception as error:
            actor: Actor | None = getattr(_playing, "actor", None)
            if actor is not None:
                actor.meets(error)
            raise

    direct.Line._execute = watched  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        direct.Line._execute = plain  # type: ignore[method-assign]


class Stage:
    """Where actors meet. At the end nobody may have met an error of the database."""

    def __init__(self, house: House) -> None:
        self.house = house
        self._actors: list[Actor] = []

    def actor(self, name: str, role: str = "baton_worker", url: str | None = None) -> Actor:
        self._actors.append(Actor(self.house, name, role, url))
        return self._actors[-1]

    @property
    def errors(self) -> list[str]:
        return [error for actor in self._actors for error in actor.errors]

    def clear(self) -> None:
        for actor in self._actors:
            actor.let_go()


@contextmanager
def stage_in(house: House) -> Iterator[Stage]:
    stage = Stage(house)
    watch_points(_pass)
    try:
        with _statements_watched():
            yield stage
    finally:
        stage.clear()
        watch_points(None)
