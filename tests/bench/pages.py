"""The measured kind of work: each step upserts one page of rows, for as many steps as the run's params say."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from shared.kernel import db
from shared.kernel.catalogue import Kind, Outside
from shared.kernel.model import Continue, Decision, Effect, Finish, Json, NewLane, NewRun, Starting, Statement, Turn
from shared.kernel.ports import Tx
from tests.bench import rows

UPSERT = Statement(
    "bench.upsert_page",
    """insert into bench_row as b (tenant_id, run_id, external_id, hash, body)
       select turn.tenant_id, turn.run_id, r ->> 'external_id', r ->> 'hash', r
       from turn, jsonb_array_elements(cast(:page as jsonb)) as r
       order by r ->> 'external_id'
       on conflict (run_id, external_id)
       do update set hash = excluded.hash, body = excluded.body, updated_at = now()
       where b.hash is distinct from excluded.hash""",
)


@lru_cache(maxsize=4096)
def _page(number: int, size: int) -> list[dict[str, Any]]:
    return rows.page(number, size)


def _start(tx: Tx, starting: Starting) -> NewRun:
    params = starting.params
    lanes = [NewLane(key=f"l{n:05d}", cursor={"n": 0}) for n in range(params["lanes"])]
    return NewRun(params=params, lanes=lanes)


def _take_step(turn: Turn, outside: Outside) -> Decision:
    n, size = turn.cursor["n"], turn.params["rows"]
    effects = [Effect(UPSERT, {"page": db.jsonb(_page(n, size))})]
    if n + 1 >= turn.params["steps"]:
        return Finish(cursor={"n": n + 1}, effects=effects, rows=size)
    return Continue(cursor={"n": n + 1}, effects=effects, rows=size)


PAGES = Kind(name="pages", take_step=_take_step, start=_start, most_open_runs=100_000_000)


def params(*, lanes: int = 1, steps: int = 1_000_000, size: int = rows.PAGE_ROWS) -> Json:
    return {"lanes": lanes, "steps": steps, "rows": size}
