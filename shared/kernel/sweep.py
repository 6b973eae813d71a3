"""The clean-up of what was left behind: outside assets of ended runs, and rows past their retention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from uuid import UUID

from shared.kernel.catalogue import Catalogue
from shared.kernel.clock import stopwatch
from shared.kernel.log import logger
from shared.kernel.metrics import Metric
from shared.kernel.model import Json, RemoteCall, Run
from shared.kernel.points import Point, point
from shared.kernel.ports import Ports, Tx
from shared.kernel.settings import RETENTION_DAYS

BATCH = 1_000

PruneRows = Callable[[Tx, Run, int], int]


def sweep(ports: Ports, kinds: Catalogue, retention_days: Mapping[str, int] = RETENTION_DAYS) -> dict[str, int]:
    """Clean, then prune, in batches and within the tick's time. Answers how much of each."""
    elapsed = stopwatch()

    def in_time() -> bool:
        return elapsed() < ports.relay.tick_seconds

    done = {"assets": _clean_assets(ports, kinds)}
    for table, days in retention_days.items():
        done[table] = 0
        while in_time():
            prune = partial(_prune_runs, ports, kinds, in_time) if table == "run" else partial(ports.store.prune, table)
            pruned = prune(days, BATCH)
            done[table] += pruned
            ports.meter.count(Metric.PRUNED, pruned, table=table)
            if pruned < BATCH:
                break
    return done


def _prune_runs(ports: Ports, kinds: Catalogue, in_time: Callable[[], bool], days: int, most: int) -> int:
    """Whole runs, save those whose kind has rows of its own: these leave a batch at a time, the run with the last."""
    with_rows = {name: kind.prune for name, kind in kinds.items() if kind.prune is not None}
    old = ports.store.prune_runs(sorted(with_rows), days, most)
    return sum(
        kind not in with_rows or _prune_rows(ports, with_rows[kind], in_time, run_id, tenant_id)
        for run_id, tenant_id, kind in old
    )


def _prune_rows(ports: Ports, prune: PruneRows, in_time: Callable[[], bool], run_id: UUID, tenant_id: UUID) -> bool:
    """As the run's tenant, and under its lock: of two sweeps only one may find that no more rows are left."""
    try:
        while in_time():
            with ports.store.begin(tenant_id) as tx:
                run = tx.lock_run(run_id, tenant_id)
                if run is None:
                    return False
                if prune(tx, run, BATCH) < BATCH:
                    tx.forget_run(run)
                    return True
    except Exception:
        logger.exception("a run's rows could not be pruned", extra={"run": str(run_id)})
    return False


def _clean_assets(ports: Ports, kinds: Catalogue) -> int:
    leaked = ports.store.leaked_assets(BATCH, ports.relay.asset_grace_s)
    return sum(_clean(ports, kinds, asset, params) for asset, params in leaked)


def _clean(ports: Ports, kinds: Catalogue, asset: RemoteCall, params: Json) -> bool:
    """Removing what is gone already is fine; a failure is tried again by the next sweep."""
    kind = kinds.get(asset.run_kind)
    if kind is None or kind.clean is None:
        return False
    try:
        kind.clean(asset, params, ports.time_left_s)
        point(Point.SWEEP_CLEANED)
        ports.store.note_cleaned(asset)
    except Exception:
        logger.exception("an asset could not be cleaned", extra={"run": str(asset.run_id), "key": asset.key})
        ports.meter.count(Metric.CLEAN_FAILED, kind=asset.run_kind)
        return False
    point(Point.SWEEP_NOTED)
    ports.meter.count(Metric.CLEANED, kind=asset.run_kind)
    return True
