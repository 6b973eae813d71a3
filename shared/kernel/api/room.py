"""How often somebody may ask for what many ask for all the time: each for themselves, and all together.

Of one copy of the function, which answers one request at a time: whoever is refused here is looked up and costs nothing
more, so that a person with very many streams takes next to nothing from anybody else. It bounds; it does not count exactly.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

MOST_KEPT = 1_000  # people; who has not come for longest is forgotten first, and finds a full bucket


@dataclass(slots=True)
class Bucket:
    """`rate` a second, and `burst` of them at once."""

    rate: float
    burst: float
    left: float = math.inf
    at: float = 0.0

    def look(self, now: float) -> float:
        """The seconds until there is one to take; 0: now."""
        self.left = min(self.burst, self.left + (now - self.at) * self.rate)
        self.at = now
        return max(0.0, (1 - self.left) / self.rate)


@dataclass(slots=True)
class Room:
    each_rate: float = 10.0
    each_burst: float = 40.0
    all_rate: float = 40.0
    all_burst: float = 120.0
    clock: Callable[[], float] = time.monotonic
    _everybody: Bucket = field(init=False)
    _people: OrderedDict[str, Bucket] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self._everybody = Bucket(self.all_rate, self.all_burst)

    def wait_s(self, who: str) -> int:
        """0: they may. Otherwise the seconds after which it is worth asking again."""
        now = self.clock()
        person = self._people.pop(who, None) or Bucket(self.each_rate, self.each_burst)
        self._people[who] = person
        if len(self._people) > MOST_KEPT:
            self._people.popitem(last=False)
        wait_s = max(person.look(now), self._everybody.look(now))
        if wait_s > 0:
            return math.ceil(wait_s)
        person.left -= 1
        self._everybody.left -= 1
        return 0
