"""The reading of a file with images: as far as a slice lasts, then on from the next image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from shared.kernel import db
from shared.kernel.catalogue import Outside
from shared.kernel.clock import stopwatch
from shared.kernel.errors import Permanent
from shared.kernel.model import Continue, Decision, Effect, Finish, Turn
from shared.kernel.points import point
from shared.row_job import decide, images, store, table
from shared.row_job.decide import Batch
from shared.row_job.model import WayPoint
from shared.row_job.ports import Ports, Progress
from shared.row_job.reading import batch_after, batch_at, bytes_of

COLUMNS = ["name", "format", "width", "height", "bytes", "sha256"]


@dataclass(frozen=True, slots=True)
class Picturing:
    """The directory is read again by each step, and an image's number in it is the row's: a step that did not come to its end is
    done again, and finds its rows there."""

    ports: Ports
    turn: Turn
    outside: Outside

    def step(self) -> Decision:
        job = self.ports.reads.progress(self.turn.tenant_id, self.turn.run_id)
        if job is None:
            raise Permanent("The job's file isn't known any more.", "no_file")
        try:
            return self._read(job)
        except table.BadFile as error:
            raise Permanent(error.message, error.code) from None

    def _read(self, job: Progress) -> Decision:
        fetch = partial(bytes_of, self.ports, job)
        members = images.members(fetch, job.size, job.name)
        first, elapsed = int(self.turn.cursor.get("done", 0)), stopwatch()
        done = first
        settings = self.ports.settings
        seconds = decide.slice_s(settings, self.outside.time_left_s())
        batch, rows, size = batch_at(self.ports, self.turn), list[table.Row](), 0
        while done < len(members) and (done == first or elapsed() < seconds):  # one at least, however late it is
            done += 1
            rows.append(images.row_of(done, members[done - 1], fetch))
            size += len(str(rows[-1].input))
            if len(rows) >= batch.rows or size >= settings.ingest_max_batch_bytes:
                batch, rows, size = self._write(rows, batch), [], 0
        batch = self._write(rows, batch)
        read = {
            "dialect": db.jsonb({"images": len(members)}), "columns": db.jsonb(COLUMNS), "read_rows": done,
            "read_bytes": job.size * done // len(members), "batch_rows": batch.rows, "done": done == len(members),
        }  # fmt: skip
        noted = Effect(store.NOTE_READ, read)
        if done == len(members):
            return Finish(effects=[noted], rows=done)
        return Continue(cursor={"done": done, **batch.to_json()}, effects=[noted], renews=True)

    def _write(self, rows: Sequence[table.Row], batch: Batch) -> Batch:
        if not rows:
            return batch
        elapsed = stopwatch()
        self.outside.write(store.kept(rows))
        point(WayPoint.PICTURED)
        return batch_after(self.ports, batch, len(rows), elapsed())
