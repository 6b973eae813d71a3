"""Stand-ins for InfoJobs and Adzuna: real shapes, a truth that grows with time, misbehaviour on demand.

By hand: python -m infra.local.standins.boards infojobs --port 0
"""

from __future__ import annotations

import argparse
import base64
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, ClassVar

from infra.local.standins.server import Reply, Request, StandIn, run_by_hand

CLIENT_ID, CLIENT_SECRET = "baton-app", "stand-in-secret"  # they open nothing
SINCE = {"_24_HOURS": 1, "_7_DAYS": 7, "_15_DAYS": 15, "ANY": None}
# Beside those of every stand-in: what these boards do to their pages.
FAULTS = {
    "two_lists": "items and offers are as long as each other, and differ in one offer",
    "same_page": "page 1, whatever page was asked for",
    "endless": "every page is full, and another follows",
    "totals": "another total with every answer",
    "few": "a total of one, however many there are",
    "unsorted": "in the order of their ids, whatever order was asked for",
    "empty": "an empty page in the middle",
    "bad_records": "`by` records of the page are no offers",
    "shape": "an object without anything we know",
    "refused": "401",
}


@dataclass(frozen=True, slots=True)
class Posted:
    """One offer. It is dated `at`, can be found from `visible` on, and is gone after `gone`."""

    id: str
    at: float
    visible: float
    title: str
    company: int | None
    gone: float = math.inf


class Board(StandIn):
    """`clock` gives the seconds since `began`. What is posted is the truth."""

    misbehaves: ClassVar[Mapping[str, str]] = FAULTS

    def __init__(
        self, seed: int = 0, *, budget: int | None = None, clock: Callable[[], float] = lambda: time.time_ns() / 1e9,
        began: datetime = datetime(1970, 1, 1, tzinfo=UTC),
    ) -> None:  # fmt: skip
        super().__init__(seed, budget=budget, clock=clock)
        self.began = began
        self.posted: list[Posted] = []
        self.client_id, self.client_secret = CLIENT_ID, CLIENT_SECRET
        self.log: list[tuple[float, int, frozenset[str]]] = []  # when, which page, what struck it
        self._random = Random(f"{self.name} {seed}")  # noqa: S311 - repeatable, not secret

    # --- the truth

    def post(self, at: float, *, late_s: float = 0, **told: Any) -> Posted:
        number = len(self.posted)
        fields = {"title": f"Engineer {number}", "company": number % 7, **told}
        found = Posted(f"{self.name[:2]}{number:06d}", at, at + late_s, **fields)
        with self.lock:
            self.posted.append(found)
        return found

    def post_days(self, first: float, days: float, per_day: int, *, late: float = 0.1) -> None:
        """So many a day, at random times; some appear up to two days late."""
        for _ in range(int(days * per_day)):
            at = first + self._random.random() * days * 86_400
            is_late = self._random.random() < late
            self.post(round(at, 3), late_s=self._random.random() * 47 * 3_600 if is_late else 0)

    def truth(self, since: float, until: float) -> set[str]:
        """Offers that are dated in this time."""
        return {each.id for each in self.posted if since <= each.at < until}

    def shown(self, days: int | None) -> list[Posted]:
        now = self.now()
        oldest = -math.inf if days is None else now - days * 86_400
        found = [each for each in self.posted if each.visible <= now < each.gone and each.at >= oldest]
        return sorted(found, key=lambda each: (-each.at, each.id))

    # --- answering

    def serve(self, request: Request) -> Reply:
        found = self._asked(request)
        if isinstance(found, Reply):
            return found
        page, size, days = found
        faults = self.struck_by("page", page=page)
        with self.lock:
            self.log.append((self.now(), page, frozenset(faults)))
        if "refused" in faults:
            return self._refused()
        if "shape" in faults:
            return self.spoil(Reply.json({}), faults)
        shown = self.shown(days)
        if "unsorted" in faults:
            shown.sort(key=lambda each: each.id)
        asked = 1 if "same_page" in faults else max(1, page)
        records = [self.record(each) for each in shown[(asked - 1) * size : asked * size]]
        total = len(shown)
        if "endless" in faults:
            records = [self.record(Posted(f"x{page}-{n}", self.now() - page, 0, "More", 1)) for n in range(size)]
            total = (page + 1) * size
        if "totals" in faults:
            total += self._random.randrange(size) + len(self.log) % 7
        if "few" in faults:
            total = min(total, 1)
        if "empty" in faults:
            records = []
        for n in range(min(len(records), faults["bad_records"].by) if "bad_records" in faults else 0):
            records[n] = {**records[n], "title": None}
        return self.spoil(Reply.json(self.answer(page, size, total, records, faults)), faults)

    def _asked(self, request: Request) -> tuple[int, int, int | None] | Reply:
        raise NotImplementedError

    def _refused(self) -> Reply:
        raise NotImplementedError

    def record(self, offer: Posted) -> dict[str, Any]:
        raise NotImplementedError

    def answer(self, page: int, size: int, total: int, records: list[Any], faults: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    def figures(self) -> Mapping[str, Any]:
        return {"posted": len(self.posted), "requests": len(self.log)}

    def when(self, seconds: float) -> str:
        at = self.began + timedelta(seconds=seconds)
        return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"


class InfoJobsStandIn(Board):
    name = "infojobs"

    def _asked(self, request: Request) -> tuple[int, int, int | None] | Reply:
        if request.path != "/api/9/offer":
            return Reply.json({"error": "1", "error_description": "The operation does not exist"}, 404)
        wanted = "Basic " + base64.b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
        if request.headers.get("Authorization") != wanted:
            return self._refused()
        query = {name: values[0] for name, values in request.query.items()}
        size = int(query.get("maxResults", "20"))
        if size > 50 or query.get("sinceDate", "ANY") not in SINCE or query.get("order") != "updated-desc":
            return Reply.json({"error": "202", "error_description": "Invalid parameter"}, 400)
        return int(query.get("page", "1")), size, SINCE[query.get("sinceDate", "ANY")]

    def _refused(self) -> Reply:
        told = {"error": "101", "error_description": "The user has not been authenticated"}
        return Reply(status=401, body=Reply.json(told).body, headers={"WWW-Authenticate": 'Basic realm="InfoJobs-API"'})

    def record(self, offer: Posted) -> dict[str, Any]:
        author = {
            "author": {
                "id": f"c{offer.company}",
                "name": f"Company {offer.company}",
                "uri": "https://www.infojobs.net/c",
            }
        }
        return {
            "id": offer.id, "title": offer.title, "province": {"id": 9, "value": "Barcelona"}, "city": "Barcelona",
            "link": f"https://www.infojobs.net/of-i{offer.id}", "published": self.when(offer.at),
            "updated": self.when(offer.at), "applications": "0", **({} if offer.company is None else author),
        }  # fmt: skip

    def answer(self, page: int, size: int, total: int, records: list[Any], faults: Mapping[str, Any]) -> Any:
        return {
            "currentPage": max(1, page), "pageSize": size, "totalResults": total, "currentResults": len(records),
            "totalPages": math.ceil(total / size), "sortBy": "updated-desc", "items": records,
            "offers": [*records[:-1], {"id": "another"}] if "two_lists" in faults else records,
        }  # fmt: skip


class AdzunaStandIn(Board):
    name = "adzuna"

    def _asked(self, request: Request) -> tuple[int, int, int | None] | Reply:
        parts = request.path.split("/")
        query = {name: values[0] for name, values in request.query.items()}
        if (query.get("app_id"), query.get("app_key")) != (self.client_id, self.client_secret):
            return self._refused()
        if parts[:4] != ["", "v1", "api", "jobs"] or parts[5] != "search" or query.get("sort_by") != "date":
            return Reply.json({"exception": "UNKNOWN", "display": "No such page"}, 404)
        days = query.get("max_days_old")
        return int(parts[6]), int(query.get("results_per_page", "10")), None if days is None else int(days)

    def _refused(self) -> Reply:
        return Reply.json({"exception": "AUTH_FAIL", "doc": "…", "display": "Authorisation failed"}, 401)

    def record(self, offer: Posted) -> dict[str, Any]:
        company = {"company": {"display_name": f"Company {offer.company}"}}
        return {
            "id": offer.id, "title": offer.title, "created": self.when(offer.at), "salary_min": 30000.0,
            "location": {"display_name": "Madrid", "area": ["España", "Madrid"]},
            "redirect_url": f"https://www.adzuna.es/land/ad/{offer.id}", **({} if offer.company is None else company),
        }  # fmt: skip

    def answer(self, page: int, size: int, total: int, records: list[Any], faults: Mapping[str, Any]) -> Any:  # noqa: ARG002 - the shape of the base class
        return {"count": total, "mean": 30_000.0, "results": records}


def with_offers(standin: Board, days: int = 30, per_day: int = 40) -> Board:
    """As the local cloud starts it: a month of offers."""
    standin.post_days(standin.now() - days * 86_400, days, per_day, late=0)
    return standin


if __name__ == "__main__":
    boards = {each.name: each for each in (InfoJobsStandIn, AdzunaStandIn)}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("board", choices=sorted(boards))
    run_by_hand(parser, lambda options: with_offers(boards[options.board](options.seed)), "a month of offers")
