"""Runs of a kind that is not deployed anymore. Nothing runs their steps, and nothing but a person's cancel ends them: a deployment
that lost a kind by mistake must find its runs again when the kind is back."""

from __future__ import annotations

from uuid import UUID

from shared.kernel.catalogue import Kind, Outside
from shared.kernel.model import By, Cancel, Decision, Ending, Problem, RunStatus, Turn
from shared.kernel.ports import Ports
from shared.kernel.run import NOBODY, cancel_run, changing, end

NOT_DEPLOYED = "not_deployed"


def sentence(kind: str) -> str:
    return f"The kind {kind!r} isn't deployed anymore, so nothing runs its steps. Deploy it again, or cancel the run."


def cancel_undeployed(ports: Ports, kind: str, tenant_id: UUID, run_id: UUID, by: By = NOBODY) -> None:
    """No lane would take the turn in which it stops: they are closed here, also of a run that was asked to stop while its kind was
    still there."""
    nobody = Kind(name=kind, take_step=_stop)
    cancel_run(ports, nobody, tenant_id, run_id, by)
    with changing(ports, tenant_id, run_id) as (tx, run, dues):
        if run.status.ended:
            return
        problem = Problem(NOT_DEPLOYED, f"The kind {kind!r} isn't deployed anymore.")
        tx.fail_open_lanes(run.id, problem)
        dues.extend(end(tx, run, Ending(RunStatus.CANCELED, "canceled", problem), nobody, ports))


def _stop(turn: Turn, outside: Outside) -> Decision:  # noqa: ARG001 - the shape of a step
    return Cancel()
