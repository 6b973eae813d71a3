"""What a person does to a row job: nudge it, promote its canary, work on rows again, fix them, delete it. Each under its run's
lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from shared.kernel import db
from shared.kernel import run as runs
from shared.kernel.catalogue import Kind
from shared.kernel.errors import Conflict, NotFound, Refused
from shared.kernel.model import By, Due, Effect, NewLane, Run
from shared.kernel.ports import Ports, Tx
from shared.row_job import fix, store, table
from shared.row_job.model import ENDED, ERASE, FIX, JobType, Status
from shared.row_job.steps import work_lane

AGAIN = (Status.ERROR, Status.NOT_FOUND)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reprocess:
    """Which rows to work on again, with fresh attempts. `row_nos`: these, also if they wait to be tried again later or were
    refused for what is in them, unless `statuses` and `permanent` say otherwise; else all that failed."""

    row_nos: Sequence[int] | None = None
    statuses: Sequence[Status] | None = None
    permanent: bool | None = None
    dry_run: bool = False


def reprocess(ports: Ports, kind: Kind, tenant_id: UUID, run_id: UUID, wanted: Reprocess, by: By) -> int:
    """Answers how many rows there are; without `dry_run` they are open again, and so is the job, in one transaction."""
    if not set(wanted.statuses or ()) <= ENDED:
        raise Refused("bad_statuses", "statuses: only rows that have ended can be worked on again.")
    with runs.changing(ports, tenant_id, run_id) as (tx, run, dues):
        job = _job(tx, run)
        _refuse_canceling(run)
        which = _which(run, wanted)
        if wanted.row_nos is not None:
            _refuse_open(tx, which)
        if wanted.dry_run:
            return int(tx.read(store.COUNT_RESET, which)[0]["count"])
        count = tx.apply(Effect(store.RESET, which))
        if count:
            dues.extend(_go_on(tx, ports, kind, run, job, by, rows=wanted.row_nos))
            runs.note_action(tx, run, "reprocess", by, {"rows": count})
        return count


def _go_on(
    tx: Tx, ports: Ports, kind: Kind, run: Run, job: Any, by: By, *more: NewLane, rows: Sequence[int] | None = None
) -> list[Due]:
    """See that rows that were opened are taken: those with these numbers, or any. A lane that waits looks now, and one that has
    ended begins again. One that is at work may have seen that nothing is left, and end: another one follows it, and waits
    until it has ended, so that no row is ever two lanes'."""
    dues: list[Due] = []
    if run.status.ended:
        run = runs.reopen(tx, run, kind, by)
        dues += tx.reopen_lanes(run.id)
    else:
        dues += tx.wake_lanes(run.id)
    slots, added = int(job["slots"]), list(more)
    newest = {row["slot"]: row for row in tx.read(store.NEWEST_LANES, _key(run))}
    for slot in range(slots) if rows is None else sorted({row_no % slots for row_no in rows}):
        lane = newest.get(slot)
        if lane is None:
            added.append(work_lane(slot))
        elif not lane["active"]:
            dues += filter(None, [tx.restart_lane(lane["id"], None)])
        elif lane["claimed"]:
            added.append(work_lane(slot, lane["gen"] + 1))
    return dues + runs.create_lanes(tx, run, added, kind, ports)


def _which(run: Run, wanted: Reprocess) -> dict[str, Any]:
    named = wanted.row_nos is not None
    usual = {*ENDED, Status.PENDING} if named else {*AGAIN}
    statuses = sorted(usual if wanted.statuses is None else set(wanted.statuses))
    return {
        "run_id": run.id, "tenant_id": run.tenant_id, "statuses": [str(each) for each in statuses],
        "row_nos": None if wanted.row_nos is None else list(wanted.row_nos), "permanent": named if wanted.permanent is None else wanted.permanent,
    }  # fmt: skip


def _refuse_open(tx: Tx, which: dict[str, Any]) -> None:
    named = {name: which[name] for name in ("run_id", "tenant_id", "row_nos")}
    still = tx.read(store.OPEN_AMONG, named)
    if empty := [str(row["row_no"]) for row in still if row["is_empty"]]:
        raise Conflict(
            "nothing_to_search", f"Rows that have nothing to search for must be fixed first: {', '.join(empty)}."
        )
    if still:
        listed = ", ".join(f"{row['row_no']} is {row['status']}" for row in still)
        raise Conflict(
            "items_open", f"Only rows that have ended or wait for a later time can be worked on again: {listed}."
        )


def resubmit(ports: Ports, kind: Kind, tenant_id: UUID, run_id: UUID, file_id: UUID, by: By) -> None:
    """Read a file of fixed rows into the job; the rows that match are worked on again. The same file counts once."""
    with runs.changing(ports, tenant_id, run_id) as (tx, run, dues):
        job = _job(tx, run)
        _refuse_canceling(run)
        _refuse_no_table(job, run)
        found = tx.read(store.FIX_FILE, {"file_id": file_id, "tenant_id": tenant_id})
        if not found:
            raise Refused("unknown_file", "file_id: upload not found.")
        (file,) = found
        if file["fixes"] == run_id:
            if run.status.ended and not file["done"]:  # the job ended before all of it was read
                dues.extend(_go_on(tx, ports, kind, run, job, by))
                runs.note_action(tx, run, "resubmit", by, {"file_id": str(file_id)})
            return
        if file["fixes"] is not None or file["job_id"] is not None:
            raise Conflict("file_used", "This file belongs to another job. Upload it again.")
        if not file["arrived"]:
            raise Conflict("not_uploaded", "The file hasn't been uploaded yet.")
        tx.apply(Effect(store.ADD_FIX, {"file_id": file_id, **_key(run), "created_by": by.actor}))
        dues.extend(_go_on(tx, ports, kind, run, job, by, NewLane(key=f"{FIX}:{file_id}")))
        runs.note_action(tx, run, "resubmit", by, {"file_id": str(file_id)})


def fix_rows(ports: Ports, kind: Kind, tenant_id: UUID, run_id: UUID, fixes: Sequence[fix.Fix], by: By) -> fix.Judged:
    """The same for some rows, at once."""
    with runs.changing(ports, tenant_id, run_id) as (tx, run, dues):
        job = _job(tx, run)
        _refuse_canceling(run)
        _refuse_no_table(job, run)
        for each in fixes:
            if unknown := sorted(each.given.keys() - set(job["columns"])):
                raise Refused(
                    "unknown_column", f"input: row {each.row_no}: the job has no column {unknown[0][:100]!r}."
                )
        found = tx.read(store.FIXABLE, {**_key(run), "row_nos": [each.row_no for each in fixes]})
        mapping = table.mapping_of(job["columns"], run.params.get("mapping"))
        judged = fix.judge(fixes, store.fix_rows(found), job["columns"], mapping)
        if judged.rows:
            count = tx.apply(Effect(store.FIX_NOW, {**_key(run), "fixes": db.jsonb(judged.rows)}))
            if count != len(judged.rows):
                raise Conflict("changed", "A row was changed meanwhile. Look at it again.")
            dues.extend(_go_on(tx, ports, kind, run, job, by, rows=[row["n"] for row in judged.rows]))
            runs.note_action(tx, run, "fixed", by, {"rows": count})
        return judged


def _refuse_canceling(run: Run) -> None:
    if run.cancel_requested_at is not None and not run.status.ended:
        raise Conflict("being_canceled", "The job is being canceled.")


def _refuse_no_table(job: Any, run: Run) -> None:
    if job["columns"] is None or run.params.get("job_type") == JobType.IMAGE:
        raise Conflict("not_a_table", "Only rows of a CSV file can be fixed.")


def kickoff(ports: Ports, tenant_id: UUID, run_id: UUID, by: By) -> int:
    """Let lanes that wait look again now. It starts no second worker: a lane at work is left alone."""
    with runs.changing(ports, tenant_id, run_id) as (tx, run, dues):
        _job(tx, run)
        if run.status.ended:
            raise Conflict("already_ended", f"The job has already {run.status}.")
        dues.extend(tx.wake_lanes(run.id))
        runs.note_action(tx, run, "kickoff", by, {"lanes": len(dues)})
        return len(dues)


def promote(ports: Ports, tenant_id: UUID, run_id: UUID, by: By) -> None:
    """The canary has shown enough: all rows may be worked on."""
    with runs.changing(ports, tenant_id, run_id) as (tx, run, dues):
        _job(tx, run)
        if not tx.apply(Effect(store.PROMOTE, _key(run))):
            raise Conflict("no_canary", "The job isn't held back at a canary.")
        dues.extend(tx.wake_lanes(run.id))
        runs.note_action(tx, run, "promoted", by, {})


def delete(ports: Ports, kind: Kind, tenant_id: UUID, run_id: UUID, by: By) -> None:
    """Hide an ended job at once and take its rows away."""
    with runs.changing(ports, tenant_id, run_id) as (tx, run, dues):
        _job(tx, run)
        if not run.status.ended:
            raise Conflict("not_ended", "Only a job that has ended can be deleted. Cancel it first.")
        tx.apply(Effect(store.DELETE, _key(run)))
        dues.extend(runs.create_lanes(tx, run, [NewLane(key=ERASE, holds_run=False)], kind, ports))
        runs.note_action(tx, run, "deleted", by, {})


def _job(tx: Tx, run: Run) -> Any:
    found = tx.read(store.SLOTS, _key(run))
    if not found or found[0]["deleted"]:
        raise NotFound
    return found[0]


def _key(run: Run) -> dict[str, Any]:
    return {"run_id": run.id, "tenant_id": run.tenant_id}
