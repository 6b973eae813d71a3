"""The clean-up of what was left behind: outside assets of ended runs, and rows past their retention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
CLEANING = 0.5  # of the time: an outside that answers slowly must not keep rows from being pruned
SPARE_S = 10.0  # for the batch or the asset in hand when the time is over
LEAST_S = 1.0

PruneRows = Callable[[Tx, Run, int], int]
InTime = Callable[[], bool]


def sweep(ports: Ports, kinds: Catalogue, retention_days: Mapping[str, int] = RETENTION_DAYS) -> dict[str, int]:
    """Clean, then prune, in batches and within the tick's time. Answers how much of each."""
    elapsed, begun_with_s = stopwatch(), ports.time_left_s()
    limit_s = max(LEAST_S, min(ports.relay.tick_seconds, begun_with_s - SPARE_S))

    def spent_s() -> float:
        return max(elapsed(), begun_with_s - ports.time_left_s())

    done = {"assets": _clean_assets(ports, kinds, lambda: spent_s() < limit_s * CLEANING)}
    return done | _prune(ports, kinds, lambda: spent_s() < limit_s, retention_days)


def _prune(ports: Ports, kinds: Catalogue, in_time: InTime, retention_days: Mapping[str, int]) -> dict[str, int]:
    """A batch of each table in turn, until none has old rows or the time is over: one with many must not starve the next."""
    done = dict.fromkeys(retention_days, 0)
    left = list(retention_days)
    while left:
        for table in tuple(left):
            if not in_time():
                return done
            pruned, more = _prune_batch(ports, kinds, in_time, table, retention_days[table])
            done[table] += pruned
            ports.meter.count(Metric.PRUNED, pruned, table=table)
            if not more:
                left.remove(table)
    return done


def _prune_batch(ports: Ports, kinds: Catalogue, in_time: InTime, table: str, days: int) -> tuple[int, bool]:
    """How many went, and whether there may be more. What one table refuses does not keep the others."""
    try:
        if table == "run":
            return _prune_runs(ports, kinds, in_time, days)
        pruned = ports.store.prune(table, days, BATCH)
    except Exception:
        logger.exception("a table could not be pruned", extra={"table": table})
        ports.meter.count(Metric.PRUNE_FAILED, table=table)
        return 0, False
    return pruned, pruned >= BATCH


def _prune_runs(ports: Ports, kinds: Catalogue, in_time: InTime, days: int) -> tuple[int, bool]:
    """Rows of old runs first, then the runs; those whose kind has rows of its own leave with the last of these."""
    with_rows = {name: kind.prune for name, kind in kinds.items() if kind.prune is not None}
    batch = ports.store.prune_runs(sorted(with_rows), days, BATCH)
    gone = batch.runs
    for run_id, tenant_id, kind in batch.with_rows:
        if not in_time():
            break
        gone += _prune_rows(ports, with_rows[kind], in_time, run_id, tenant_id)
    return gone, bool(batch.rows or gone)


def _prune_rows(ports: Ports, prune: PruneRows, in_time: InTime, run_id: UUID, tenant_id: UUID) -> bool:
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
        ports.meter.count(Metric.PRUNE_FAILED, table="run")
        ports.store.put_off_pruning(run_id, tenant_id)
    return False


def _clean_assets(ports: Ports, kinds: Catalogue, in_time: InTime) -> int:
    """The one that was tried least lately first."""
    cleaned = 0
    for asset, params in ports.store.leaked_assets(BATCH, ports.relay.asset_grace_s):
        if not in_time():
            break
        cleaned += _clean(ports, kinds, asset, params)
    return cleaned


def _clean(ports: Ports, kinds: Catalogue, asset: RemoteCall, params: Json) -> bool:
    """Removing what is gone already is fine; a failure is tried again by a later sweep."""
    try:
        if not ports.store.put_off_cleaning(asset):
            return False
        kind = kinds.get(asset.run_kind)
        if kind is None or kind.clean is None:
            return False
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
