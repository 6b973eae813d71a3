"""What every reader of an uploaded file needs: its bytes, and how many rows to write at once."""

from __future__ import annotations

import math

from shared.kernel.errors import Permanent
from shared.kernel.log import logger
from shared.kernel.model import Turn
from shared.row_job import decide
from shared.row_job.decide import Batch
from shared.row_job.model import RowMetric
from shared.row_job.ports import Ports, Progress


def bytes_of(ports: Ports, job: Progress, offset: int, length: int) -> bytes:
    """At the version that arrived."""
    length = min(length, job.size - offset)
    if length <= 0:
        return b""
    data = ports.files.read(job.key, job.version_id, offset, length)
    if len(data) != length:
        raise Permanent("The file changed while it was read. Upload it again.", "file_changed")
    return data


def batch_at(ports: Ports, turn: Turn) -> Batch:
    return decide.batch_of(turn.cursor, turn.attempts + turn.claims - 1, ports.settings)


def batch_after(ports: Ports, batch: Batch, rows: int, seconds: float, bad: int = 0) -> Batch:
    """The next batch, by how long the last one took to be written."""
    batch, why = decide.next_batch(batch, rows, seconds, ports.settings)
    ports.meter.count(RowMetric.INGEST_MS, seconds * 1000)
    if batch.log_s is not None:
        ports.meter.count(RowMetric.DB_LATENCY, math.exp(batch.log_s) * rows * 1000)
    if bad or why not in ("hold", "grow"):
        logger.info("rows were kept", extra={"rows": rows, "set_aside": bad, "batch": batch.rows, "why": why})
    return batch
