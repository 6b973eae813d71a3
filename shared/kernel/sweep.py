"""The clean-up of what was left behind: outside assets of ended runs, and rows past their retention."""

from __future__ import annotations

from collections.abc import Mapping

from shared.kernel.catalogue import Catalogue
from shared.kernel.clock import stopwatch
from shared.kernel.log import logger
from shared.kernel.metrics import Metric
from shared.kernel.model import RemoteCall
from shared.kernel.points import Point, point
from shared.kernel.ports import Ports
from shared.kernel.settings import RETENTION_DAYS

BATCH = 1_000


def sweep(ports: Ports, kinds: Catalogue, retention_days: Mapping[str, int] = RETENTION_DAYS) -> dict[str, int]:
    """Clean, then prune, in batches and within the tick's time. Answers how much of each."""
    elapsed = stopwatch()
    done = {"assets": _clean_assets(ports, kinds)}
    for table, days in retention_days.items():
        done[table] = 0
        while elapsed() < ports.relay.tick_seconds:
            pruned = ports.store.prune(table, days, BATCH)
            done[table] += pruned
            ports.meter.count(Metric.PRUNED, pruned, table=table)
            if pruned < BATCH:
                break
    return done


def _clean_assets(ports: Ports, kinds: Catalogue) -> int:
    leaked = ports.store.leaked_assets(BATCH, ports.relay.asset_grace_s)
    return sum(_clean(ports, kinds, asset) for asset in leaked)


def _clean(ports: Ports, kinds: Catalogue, asset: RemoteCall) -> bool:
    """Removing what is gone already is fine; a failure is tried again by the next sweep."""
    kind = kinds.get(asset.run_kind)
    if kind is None or kind.clean is None:
        return False
    try:
        kind.clean(asset)
        point(Point.SWEEP_CLEANED)
        ports.store.note_cleaned(asset)
    except Exception:
        logger.exception("an asset could not be cleaned", extra={"run": str(asset.run_id), "key": asset.key})
        ports.meter.count(Metric.CLEAN_FAILED, kind=asset.run_kind)
        return False
    point(Point.SWEEP_NOTED)
    ports.meter.count(Metric.CLEANED, kind=asset.run_kind)
    return True
