"""Scans: look where files wait, and take those that nobody is writing any more. Each becomes an upload, with its own job.

A file is taken when a scan finds it as an earlier one did: same size, same stamp. The upload's id follows from all of that,
so the same file is one upload and one job, however often it is brought.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID, uuid5

from shared.kernel import db
from shared.kernel.catalogue import Outside
from shared.kernel.errors import Refused, Transient
from shared.kernel.log import logger
from shared.kernel.model import Continue, Decision, Effect, Finish, NewLane, NewRun, Starting, Turn
from shared.kernel.params import parse, with_connection
from shared.kernel.points import point
from shared.kernel.ports import Tx
from shared.row_job import decide, store
from shared.row_job.model import FTP, SCAN, TAKE, UPLOADS, UPSTREAM, Options, ScanParams, WayPoint, type_of
from shared.row_job.ports import Changed, Listed, Ports

NAMESPACE = UUID("5b1f3f52-6c3e-5b0f-8d0a-3b8f5a1f2c77")
SEEN_AT_ONCE = 1_000
TAKEN_AT_ONCE = 100  # the rest waits for the next scan


def is_scan(params: Any) -> bool:
    return SCAN in params


def start_scan(ports: Ports, tx: Tx, starting: Starting) -> NewRun:
    wanted = parse(ScanParams, starting.params)
    if (wanted.scan == FTP) != (wanted.server is not None):
        raise Refused("bad_params", "server: name the connection to the FTP server, and only for a scan of one.")
    if wanted.server is not None:
        found = tx.find_connection(starting.tenant_id, FTP, wanted.server)
        if found is None:
            raise Refused("unknown_connection", "server: no connection to ftp has this name or id.")
        wanted = wanted.model_copy(update={"server": str(found)})
    wanted = with_connection(tx, starting.tenant_id, wanted, UPSTREAM)
    if ports.needs_connection and wanted.connection is None:
        raise Refused("bad_params", f"connection: name a connection to {UPSTREAM}.")
    label = (
        f"Scan of {'an FTP server' if wanted.scan == FTP else 'the folder' if wanted.scan == 'folder' else 'the inbox'}"
    )
    return NewRun(params=wanted.model_dump(mode="json", exclude_none=True), lanes=[NewLane(key=SCAN)], label=label)


@dataclass(frozen=True, slots=True)
class Scanning:
    ports: Ports
    turn: Turn
    outside: Outside

    @property
    def wanted(self) -> ScanParams:
        return ScanParams.model_validate(dict(self.turn.params))

    def look(self) -> Decision:
        try:
            files = self.ports.inbox(self.turn.tenant_id, self.wanted).files()
        except Changed:
            raise Transient("The files changed while they were listed.", "no_list_now") from None
        settled: list[NewLane] = []
        for first in range(0, len(files), SEEN_AT_ONCE):
            told = [asdict(each) for each in files[first : first + SEEN_AT_ONCE]]
            rows = self.outside.write(Effect(store.SEE, {"source": self.wanted.source, "files": db.jsonb(told)}))
            found = [
                Listed(row["name"], row["size"], row["stamp"])
                for row in rows
                if row["settled"] and row["file_id"] is None
            ]
            settled += [self._taking(each) for each in sorted(found, key=lambda each: each.name)]
        point(WayPoint.SEEN)
        logger.info("a scan has looked", extra={"files": len(files), "taken": len(settled[:TAKEN_AT_ONCE])})
        forget = Effect(store.FORGET, {"source": self.wanted.source})
        return Finish(effects=[forget], lanes=settled[:TAKEN_AT_ONCE], rows=len(files))

    def _taking(self, file: Listed) -> NewLane:
        named = f"{self.turn.tenant_id}\n{self.wanted.source}\n{file.name}\n{file.size}\n{file.stamp}"
        return NewLane(key=f"{TAKE}:{uuid5(NAMESPACE, named)}", cursor=asdict(file))

    def take(self) -> Decision:
        cursor = dict(self.turn.cursor)
        place = cursor.pop("place", None)
        file = Listed(**cursor)
        file_id = UUID(self.turn.key.partition(":")[2])
        self.outside.write(
            Effect(store.ISSUE_SCANNED, {"file_id": file_id, "name": file.name, "options": self._options(file)})
        )
        seconds = decide.slice_s(self.ports.settings, self.outside.time_left_s())
        try:
            key = UPLOADS.format(tenant_id=self.turn.tenant_id, file_id=file_id)
            place = self.ports.inbox(self.turn.tenant_id, self.wanted).bring(file, key, place, seconds)
        except Changed:
            logger.info("a file changed while it was taken; the next scan reads it again", extra={"file": str(file_id)})
            return Finish()
        point(WayPoint.BROUGHT)
        if place is not None:
            return Continue(cursor={**cursor, "place": place})
        taken = {"file_id": file_id, "source": self.wanted.source, **asdict(file)}
        return Finish(effects=[Effect(store.TAKEN, taken)], rows=1)

    def _options(self, file: Listed) -> str:
        chosen = {name: getattr(self.wanted, name) for name in Options.model_fields}
        options = Options(**{**chosen, "job_type": type_of(file.name)})
        return db.jsonb(options.model_dump(mode="json", exclude_none=True))
