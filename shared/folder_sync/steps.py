"""The steps of folder sync: one page per step, its entries and its cursor in one commit. The relay commits them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.folder_sync import decide, store
from shared.folder_sync.model import BEHIND_S, KIND, LANE, PROVIDER, FolderCursor, FolderParams
from shared.folder_sync.points import FolderPoint
from shared.folder_sync.ports import CursorReset, Ports
from shared.kernel.catalogue import Kind, Outside
from shared.kernel.decide import Limits
from shared.kernel.errors import Permanent, Refused
from shared.kernel.model import (
    Already,
    Continue,
    Decision,
    Effect,
    Ending,
    Finish,
    NewLane,
    NewRun,
    Run,
    Starting,
    Turn,
    Wait,
    account_name,
)
from shared.kernel.params import parse
from shared.kernel.points import point
from shared.kernel.ports import Tx


@dataclass(frozen=True, slots=True)
class Folders:
    ports: Ports

    def start(self, tx: Tx, starting: Starting) -> NewRun | Already:
        """It goes on where the last one ended. A folder that is being read is not read twice at once: one more run follows
        the one that has begun, which may have seen its last page before whatever this one is asked for happened."""
        wanted = parse(FolderParams, starting.params)
        connection = tx.find_connection(starting.tenant_id, PROVIDER, wanted.connection)
        if connection is None:
            raise Refused("unknown_connection", f"connection: no connection to {PROVIDER} has this name or id.")
        which = {"tenant_id": starting.tenant_id, "connection": connection, "path": wanted.folder}
        taken = tx.apply(Effect(store.TAKE, {**which, "run_id": starting.run_id}))
        (row,) = tx.read(store.FIND, which)
        if not taken:
            found = tx.read(store.UNREAD, {**which, "connection": str(connection), "kind": KIND})
            if found:
                return Already(found[0]["run_id"])
        cursor = FolderCursor(
            connection=str(connection), path=wanted.folder, at=row["cursor"], generation=row["generation"],
            listing=row["listing"], behind=not taken,
        )  # fmt: skip
        params = {"connection": str(connection), "path": wanted.folder}
        return NewRun(params=params, lanes=[NewLane(key=LANE, cursor=cursor.to_json())], label=wanted.folder or "/")

    def take_step(self, turn: Turn, outside: Outside) -> Decision:
        cursor = FolderCursor.read(turn.cursor)
        if cursor.behind or cursor.epoch != turn.run_epoch:
            rows = outside.write(Effect(store.RETAKE, {"connection": cursor.connection, "path": cursor.path}))
            if not rows and cursor.behind:
                return Wait(after_s=BEHIND_S, waits_for="the run that reads this folder", asked=False)
            if not rows:
                return Finish()  # another run reads the folder since: it does all that this one would
            (row,) = rows
            place = {"at": row["cursor"], "generation": row["generation"], "listing": row["listing"]}
            cursor = cursor.but(**place, resets=0, epoch=turn.run_epoch, behind=False)
        folder = self.ports.folder(turn, cursor, outside.time_left_s)
        try:
            page = folder.first(cursor.path) if cursor.at is None else folder.following(cursor.at)
        except CursorReset:
            again = decide.after_reset(cursor)
            return Continue(cursor=again.to_json(), effects=store.restarted(again))
        point(FolderPoint.LISTED)
        if not outside.write(Effect(store.HOLDS, {"connection": cursor.connection, "path": cursor.path})):
            raise Permanent(
                "Another run took over this folder and reads the rest of it. Retry this one only if that run fails.",
                "folder_taken_over",
            )
        following, entries = decide.after_page(cursor, page), decide.last_words(page.entries)
        effects = store.kept(cursor, following, entries, done=not page.has_more)
        if page.has_more:
            return Continue(cursor=following.to_json(), effects=effects, rows=len(entries))
        return Finish(cursor=following.to_json(), effects=effects, rows=len(entries))


def on_end(tx: Tx, run: Run, ending: Ending) -> Sequence[NewLane]:  # noqa: ARG001 - the shape of on_end
    tx.apply(Effect(store.LEAVE, {"tenant_id": run.tenant_id, "run_id": run.id}))
    return ()


def gates(turn: Turn) -> list[str]:
    return [account_name(PROVIDER, FolderCursor.read(turn.cursor).connection)]


def folder_sync(ports: Ports, limits: Limits | None = None) -> Kind:
    folders = Folders(ports)
    return Kind(
        name=KIND,
        take_step=folders.take_step,
        start=folders.start,
        on_end=on_end,
        gates=gates,
        limits=limits or Limits(),
    )
