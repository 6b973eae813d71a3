"""The catalogue that a killed ingestion reads, in a process that nobody kills; and what must be in the database afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from infra.local.standins.nivoda import NivodaStandIn
from tests.chaos.worker import Catalogued

STONES = 80

OUTCOMES = sa.text("select id, outcome from run")
RAW = sa.text("select external_id, price_cents from raw_item where run_id = :run_id")
DIAMONDS = sa.text("select external_id, price_cents from diamond where gone_at is null")
GONE = sa.text("select count(*) from diamond where gone_at is not null")
PHASES = sa.text("select count(*) from lane where run_id = :run_id and key like :like")


@dataclass(frozen=True, slots=True)
class Upstream:
    standin: NivodaStandIn
    address: Catalogued

    def violations(self, connection: sa.Connection) -> list[str]:
        """A run whose start was asked for twice is there twice; each must have read everything."""
        stones = {(stone.id, stone.price_cents) for stone in self.standin.stones}
        found = [f"the stand-in was surprised: {self.standin.surprises[:3]}"] if self.standin.surprises else []
        for run_id, outcome in connection.execute(OUTCOMES).all():
            if outcome != "complete":
                found.append(f"an ingestion is complete: {outcome}")
            found += _differences("raw rows", connection.execute(RAW, {"run_id": run_id}).all(), stones)
            for phase, least, most in (("part:%", 3, 99), ("audit:%", 1, 99), ("consolidate:%", 1, 1)):
                lanes = connection.execute(PHASES, {"run_id": run_id, "like": phase}).scalar_one()
                if not least <= lanes <= most:
                    found.append(f"an ingestion has {least} to {most} lanes {phase}: {lanes}")
        found += _differences("diamonds", connection.execute(DIAMONDS).all(), stones)
        if gone := connection.execute(GONE).scalar_one():
            found.append(f"no stone is judged gone that is there: {gone}")
        return found


def _differences(what: str, found: Sequence[Any], stones: set[tuple[str, int]]) -> list[str]:
    rows = sorted((external_id, price_cents) for external_id, price_cents in found)
    if rows == sorted(stones):
        return []
    missing, foreign = stones - set(rows), set(rows) - stones
    return [f"the {what} are the catalogue: {len(rows)} rows, {len(missing)} missing, {len(foreign)} foreign"]


@contextmanager
def open_upstream() -> Iterator[Upstream]:
    """It shows empty pages, so that turns wait in the delay queue, and throttles once, so that a gate closes."""
    with NivodaStandIn(stones=STONES) as standin:
        standin.misbehave("empty_page", every=4, budget=3)
        standin.misbehave("throttle", after=9, budget=1, retry_after="200")
        base_url = standin.start()
        yield Upstream(standin, Catalogued(base_url=base_url, username=standin.username, password=standin.password))
