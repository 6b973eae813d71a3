"""What follows when lanes of a source have ended, and what the run may claim. Pure.

A run never claims more than its file can prove, and never more than what happened proves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from shared.kernel.model import Ending, Lane, LaneStatus, NewLane, NextPhase, Problem, Run, RunStatus, Settlement
from shared.page_ingest.decide import AUDIT_SHARE
from shared.page_ingest.model import AtLeast
from shared.page_ingest.reader.model import (
    AuditCursor,
    ConsolidateCursor,
    PlanCursor,
    ReadCursor,
    SourceParams,
    part_key,
    read_lane,
)
from shared.page_ingest.reader.plan import covered, mark_scope, said, undivided
from shared.page_ingest.reader.words import instant
from shared.page_ingest.source.model import Claim

# How much each says; whoever is made of several says what the least of them does.
RANK = {"complete": 4, "through T": 3, "walked": 2, "drifted": 1, "partial": 0}
REPLAYED = "replayed"
Told = tuple[str, str]  # a claim and its reason


def settle(run: Run, lanes: Sequence[Lane]) -> Settlement:
    """Plan, read and audit, a generation of parents after the other; then each resource is moved into its table."""
    params = SourceParams.model_validate(dict(run.params))
    held = {lane.key: lane for lane in lanes if lane.holds_run}
    if params.replay:
        return _after_replay(run, held)
    shape: Mapping[str, Any] = held["plan/0"].cursor["shape"]
    told: dict[str, Told] = {}
    for generation, names in enumerate(shape["generations"]):
        found = _generation(run, params, held, shape, generation, names, told)
        if found is not None:
            return found
    consolidations = [lane for key, lane in held.items() if key.startswith(f"consolidate/{run.epoch}/")]
    if consolidations:
        return _ended(consolidations)
    return NextPhase([_consolidate(run, held, shape, name, told[name]) for name in told])


def _generation(
    run: Run, params: SourceParams, held: Mapping[str, Lane], shape: Mapping[str, Any], generation: int,
    names: Sequence[str], told: dict[str, Told],
) -> Settlement | None:  # fmt: skip
    """What this generation still needs; None: it is read, and `told` says how well."""
    plan = held.get(f"plan/{generation}")
    if plan is None:
        first = held["plan/0"].cursor
        cursor = PlanCursor(t=first["t"], scope=first["scope"], generation=generation, above=_readings(held))
        return NextPhase([NewLane(key=f"plan/{generation}", cursor=cursor.to_json())])
    if plan.status is not LaneStatus.DONE:
        return _failed("the list could not be divided into partitions", [plan])
    parts = [lane for lane in latest(held.values()) if lane.cursor["part"]["resource"] in names]
    problem = broken_policy(params, parts)
    if problem is not None:
        return Ending(RunStatus.FAILED, "partitions_failed", problem)
    audits = _audits(run.epoch, generation, held)
    audited = [lane for lane in parts if _is_audited(lane, shape)]
    counted = any(lane.status is LaneStatus.DONE for lane in audited)
    if counted and not audits:
        return NextPhase(audit_lanes(run.epoch, generation, 1, audited))
    if audits and any(lane.status is not LaneStatus.DONE for lane in audits[-1]):
        return _failed("the partitions could not be counted again", audits[-1])
    drifted = {key for lane in audits[-1] for key in lane.cursor["drifted"]} if audits else set()
    drifted |= {
        lane.key for lane in parts
        if not _is_audited(lane, shape) and lane.status is LaneStatus.DONE and not lane.cursor["ok"]
    }  # fmt: skip
    again = [lane for lane in parts if lane.key in drifted and lane.cursor["crawl"] <= params.recrawls]
    if again:
        return NextPhase([read_again(lane) for lane in again])
    if counted and not drifted <= {lane.key for lane in parts}:
        return NextPhase(audit_lanes(run.epoch, generation, len(audits) + 1, audited))
    for name in names:
        own = [lane for lane in parts if lane.cursor["part"]["resource"] == name]
        found = claimed(shape["best"][name], own, drifted)
        parent = shape["parents"].get(name)
        told[name] = found if parent is None else _under(found, parent, told[parent], held, plan.cursor.get("above"))
    return None


def claimed(best: str, parts: Sequence[Lane], drifted: set[str]) -> Told:
    """What the reading of one resource proves."""
    failed = [lane for lane in parts if lane.status is not LaneStatus.DONE]
    if failed:
        return "partial", f"{len(failed)} of {len(parts)} partitions failed: {_why(failed)}"
    good = "clean" if best == Claim.COMPLETE else "ok"
    bad = [lane for lane in parts if lane.key in drifted or not lane.cursor[good]]
    if bad:
        why = next((lane.cursor["why"] for lane in bad if lane.cursor["why"]), "a count has changed since")
        return "drifted", f"{len(bad)} of {len(parts)} partitions changed while they were read: {why}"
    if RANK[best] > RANK[Claim.WALKED] and any(lane.cursor.get("numbered") for lane in parts):
        return Claim.WALKED, "its links are page numbers, and a row that moves while the list is read can be skipped"
    return best, REASONS[best]


REASONS: Mapping[str, str] = {
    Claim.COMPLETE: "every partition has exactly as many different rows as were counted before, after and again at the end",
    Claim.THROUGH: "every list of changes was read to its end",
    Claim.WALKED: "every list was read to its end; whether a row was missed nobody knows",
}


def _under(own: Told, parent: str, of_parent: Told, held: Mapping[str, Lane], above: Mapping[str, int] | None) -> Told:
    """Never more than the parent: the rows of one that was missed, or whose list was not read, are missed too."""
    proofs = [own, (of_parent[0], f"because of its parent {parent}: {of_parent[1]}")]
    if above is not None and above.get(parent, 0) != _readings(held).get(parent, 0):
        proofs.append(("drifted", f"its parent {parent} was read again after this list was divided; start another run"))
    readings = [lane for lane in latest(held.values()) if lane.cursor["part"]["resource"] == parent]
    if any(lane.cursor["quarantined"] for lane in readings):
        said_ = f"rows of its parent {parent} are in quarantine, and the lists that belong to them were not read"
        proofs.append(("partial", said_))
    return min(proofs, key=lambda told: RANK[told[0]])


def _readings(held: Mapping[str, Lane]) -> dict[str, int]:
    """How many readings of partitions of each list have come to their end."""
    return dict(
        Counter(
            lane.cursor["part"]["resource"]
            for key, lane in held.items()
            if key.startswith("part/") and lane.status is LaneStatus.DONE
        )
    )


def _consolidate(run: Run, held: Mapping[str, Lane], shape: Mapping[str, Any], name: str, told: Told) -> NewLane:
    first = held["plan/0"].cursor
    lanes = [lane for lane in held.values() if lane.key.startswith(f"part/{name}/")]
    through = said(instant(first["t"]) - timedelta(seconds=shape["lags"].get(name, 0)))
    covers = covered([lane.cursor["part"] for lane in lanes])
    params = SourceParams.model_validate(dict(run.params))
    spans = name in shape.get("spans", ())  # runs that began before there were any have none
    cursor = ConsolidateCursor(
        resource=name, scope=first["scope"], claim=told[0], reason=told[1],
        t=through if covers is None else min(through, covers[1]),
        mark=mark_scope(first["scope"], params.begin, params.to) if spans else None,
        full=name not in shape["marked"] and all(lane.cursor["since"] is None for lane in lanes),
        drops=told[0] == Claim.COMPLETE
        and any(lane.cursor["crawl"] > 1 or lane.cursor["began"] > 0 or lane.cursor["restarts"] for lane in lanes),
        covers=covers,
    )  # fmt: skip
    return NewLane(key=f"consolidate/{run.epoch}/{name}", cursor=cursor.to_json())


def _after_replay(run: Run, held: Mapping[str, Lane]) -> Settlement:
    replays = [lane for key, lane in held.items() if key.startswith("replay/")]
    if any(lane.status is not LaneStatus.DONE for lane in replays):
        return _failed("the quarantine could not be tried again", replays)
    consolidations = [lane for key, lane in held.items() if key.startswith(f"consolidate/{run.epoch}/")]
    if consolidations:
        return _ended(consolidations)
    reason = "rows of the quarantine were tried again; nothing was asked"
    return NextPhase(
        [
            NewLane(
                key=f"consolidate/{run.epoch}/{lane.cursor['resource']}",
                cursor=ConsolidateCursor(
                    resource=lane.cursor["resource"],
                    scope="",
                    claim=REPLAYED,
                    reason=reason,
                    t="",
                    full=False,
                ).to_json(),
            )
            for lane in replays
        ]
    )


def _ended(consolidations: Sequence[Lane]) -> Ending:
    if any(lane.status is not LaneStatus.DONE for lane in consolidations):
        return _failed("the rows could not be moved into their table", consolidations)
    claims = [str(lane.cursor["claim"]) for lane in consolidations]
    return Ending(RunStatus.SUCCEEDED, min(claims, key=lambda claim: RANK.get(claim, 0)))


# --- lanes ------------------------------------------------------------------------------------------------------------


def latest(lanes: Iterable[Lane]) -> list[Lane]:
    """The last reading of each partition."""
    found: dict[str, Lane] = {}
    for lane in sorted((each for each in lanes if each.key.startswith("part/")), key=lambda each: each.cursor["crawl"]):
        found[lane.key.partition("#")[0]] = lane
    return [found[key] for key in sorted(found)]


def read_again(lane: Lane) -> NewLane:
    cursor = ReadCursor.read(lane.cursor)
    return read_lane(cursor.from_the_start(crawl=cursor.crawl + 1).but(restarts=0))


def audit_lanes(epoch: int, generation: int, audit: int, parts: Sequence[Lane]) -> list[NewLane]:
    """Every partition is counted in every audit: a row may have moved into one that was in order before. What was divided by
    listed values or numbers is counted as a whole too: rows that have none of them are in no partition."""
    todo = [
        (lane.key, lane.cursor["part"], lane.cursor["since"], _clean_count(lane))
        for lane in parts
        if lane.status is LaneStatus.DONE
    ]
    wholes: dict[str, list[Lane]] = {}
    for lane in parts:
        if (whole := undivided(lane.cursor["part"])) is not None:
            wholes.setdefault(part_key(whole), []).append(lane)
    for lanes in wholes.values():
        counts = [_clean_count(lane) for lane in lanes]
        if all(lane.status is LaneStatus.DONE for lane in lanes):
            total = None if None in counts else sum(filter(None, counts))
            first = lanes[0]
            todo.append((first.key, undivided(first.cursor["part"]), first.cursor["since"], total))
    scope = parts[0].cursor["scope"]
    shares = [todo[at : at + AUDIT_SHARE] for at in range(0, len(todo), AUDIT_SHARE)]
    return [
        NewLane(key=f"audit/{epoch}.{generation}.{audit}.{share}", cursor=AuditCursor(scope=scope, todo=each).to_json())
        for share, each in enumerate(shares)
    ]


def _clean_count(lane: Lane) -> int | None:
    return lane.cursor["counted"] if lane.cursor["clean"] else None


def recounted(cursor: AuditCursor, count: int, *, exact: bool) -> AuditCursor:
    """A partition drifted if its reading was not clean, or if its count has changed since."""
    (key, _, _, counted), *rest = cursor.todo
    drifted = cursor.drifted if exact and count == counted else [*cursor.drifted, key]
    return AuditCursor(scope=cursor.scope, todo=rest, drifted=drifted)


def _is_audited(lane: Lane, shape: Mapping[str, Any]) -> bool:
    return bool(shape["best"][lane.cursor["part"]["resource"]] == Claim.COMPLETE)


def _audits(epoch: int, generation: int, held: Mapping[str, Lane]) -> list[list[Lane]]:
    rounds: dict[int, list[Lane]] = {}
    for key, lane in held.items():
        if key.startswith(f"audit/{epoch}.{generation}."):
            rounds.setdefault(int(key.split(".")[2]), []).append(lane)
    return [rounds[each] for each in sorted(rounds)]


def broken_policy(params: SourceParams, parts: Sequence[Lane]) -> Problem | None:
    """Why the failed partitions are too many for the run to go on, if they are."""
    failed = [lane for lane in parts if lane.status is not LaneStatus.DONE]
    if not failed:
        return None
    if isinstance(params.policy, AtLeast):
        reached = 100 * (len(parts) - len(failed)) / len(parts)
        if reached >= params.policy.percent:
            return None
        said_ = f"{reached:.1f} % of the partitions succeeded, {params.policy.percent:g} % are needed: {_why(failed)}"
        return Problem("too_few_partitions", said_)
    return Problem("partitions_failed", f"{len(failed)} of {len(parts)} partitions failed: {_why(failed)}")


def _failed(what: str, lanes: Sequence[Lane]) -> Ending:
    return Ending(RunStatus.FAILED, "failed", Problem("phase_failed", f"{what}: {_why(lanes)}"))


def _why(lanes: Sequence[Lane]) -> str:
    said_ = ((lane.last_error or {}).get("message") for lane in lanes if lane.status is not LaneStatus.DONE)
    return next(filter(None, said_), "no reason was noted")
