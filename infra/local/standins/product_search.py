"""A stand-in for a product search on its wire protocol: limits per domain that move, and a log of every call.

A title that begins with `missing` is never found, one with `late` only in a relaxed search; `vague` is refused. The control
endpoint moves limits: {"limits": {"shop1.example": 5}} allows five calls a second there; `null` takes a limit away.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from infra.local.standins.server import Reply, Request, StandIn, run_by_hand

API_KEY = "stand-in-key"  # it opens nothing
ANYWHERE = "any"


@dataclass(slots=True)
class Asked:
    """One call: when it began and ended, and for which attempt of which row."""

    key: str
    domain: str
    strategy: str
    began: float
    ended: float | None = None
    status: int = 0


class SearchStandIn(StandIn):
    name = "product_search"

    def __init__(self, seed: int = 0, **options: Any) -> None:
        super().__init__(seed, **options)
        self.limits: dict[str, float] = {}
        self.asked: list[Asked] = []
        self.takes_s = 0.0
        self._tokens: dict[str, tuple[float, float]] = {}

    def serve(self, request: Request) -> Reply:
        faults = self.struck_by("search")
        if (request.method, request.path) != ("POST", "/v1/search"):
            return Reply.json({"error": {"code": "NOT_FOUND", "message": "no such path"}}, 404)
        if request.headers.get("x-api-key") != API_KEY:
            return Reply.json({"error": {"code": "UNAUTHORIZED", "message": "unknown key"}}, 401)
        wanted = json.loads(request.body)
        domain = wanted["retailers"][0] if wanted["retailers"] else ANYWHERE
        call = Asked(str(request.headers.get("idempotency-key")), domain, wanted["strategy"], self.now())
        with self.lock:
            self.asked.append(call)
            refused_s = self._over(domain)
        if refused_s is not None:
            error = {"code": "RATE_LIMITED", "domain": domain, "retry_after_ms": int(refused_s * 1000)}
            reply = Reply.json({"error": error}, 429)
        else:
            self.wait(self.takes_s)
            reply = self.spoil(self._answer(wanted, domain), faults)
        call.ended, call.status = self.now(), reply.status
        return reply

    def obey(self, orders: Mapping[str, Any]) -> None:
        for domain, limit in (orders.get("limits") or {}).items():
            if limit is None:
                self.limits.pop(domain, None)
            else:
                self.limits[domain] = float(limit)
        if "takes_s" in orders:
            self.takes_s = float(orders["takes_s"])

    def figures(self) -> Mapping[str, Any]:
        with self.lock:
            return {"answers": Counter(str(each.status) for each in self.asked), "at_once": self.at_once()}

    def at_once(self) -> list[str]:
        """Rows that were worked on twice at the same time: there is none if all is well."""
        with self.lock:
            spans = sorted((each.key.rsplit(":", 1)[0], each.began, each.ended or each.began) for each in self.asked)
        pairs = pairwise(spans)
        return [row for (row, _, ended), (other, began, _) in pairs if row == other and began < ended]

    def _over(self, domain: str) -> float | None:
        limit = self.limits.get(domain)
        if limit is None:
            return None
        now = self.now()
        tokens, at = self._tokens.get(domain, (max(1.0, limit), now))
        tokens = min(max(1.0, limit), tokens + (now - at) * limit)
        over = tokens < 1
        self._tokens[domain] = (tokens if over else tokens - 1, now)
        return max(0.2, (1 - tokens) / limit) if over else None

    def _answer(self, wanted: Mapping[str, Any], domain: str) -> Reply:
        title = str(wanted.get("title") or wanted.get("sku") or "")
        if title.startswith("vague"):
            return Reply.json({"error": {"code": "INVALID_QUERY", "message": "Say more about it."}}, 422)
        if title.startswith("missing") or (title.startswith("late") and wanted["strategy"] == "exact_sku"):
            return Reply.json({"status": "NOT_FOUND", "results": []})
        price = f"{sum(title.encode()) % 500 + 1}.90"
        found = {
            "title": title, "brand": wanted.get("brand"), "sku": wanted.get("sku"), "price": price,
            "currency": wanted["currency"], "url": f"https://{domain}/p/{sum(title.encode())}", "retailer": domain,
            "domain": domain, "score": 0.9, "in_stock": True,
        }  # fmt: skip
        return Reply.json({"status": "FOUND", "query": title.lower(), "results": [found], "cost_ms": 5})


if __name__ == "__main__":
    run_by_hand(argparse.ArgumentParser(), lambda options: SearchStandIn(options.seed), f"key {API_KEY}")
