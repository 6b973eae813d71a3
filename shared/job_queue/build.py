"""The real ports of jobs. BATON_JOB_COMMANDS: the file of commands, if not the product's own."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa

from shared.job_queue.adapters.commands import read_commands
from shared.job_queue.adapters.process import ProcessRunner
from shared.job_queue.model import Word
from shared.job_queue.ports import Ports, Runner
from shared.job_queue.steps import job_kind
from shared.job_queue.store import JobReader
from shared.kernel.catalogue import Kind
from shared.kernel.clock import new_id
from shared.kernel.connections import Provider
from shared.kernel.model import Turn
from shared.kernel.offers import PgOffers

LEASE_S = 60.0


def _validate(schema: Mapping[str, Any], payload: Mapping[str, Any]) -> None:
    # What only the start of a job needs is not imported by the tick and the sweep.
    from shared.job_queue.adapters.schemas import validate  # noqa: PLC0415

    validate(schema, payload)


def build_ports(
    engine: sa.Engine,
    env: Mapping[str, str] = os.environ,
    *,
    runner: Runner | None = None,
    worker_id: str | None = None,
    lease_s: float = LEASE_S,
    stopping: Callable[[], bool] = lambda: False,
) -> Ports:
    offers = PgOffers(engine)

    def beat(turn: Turn) -> Word:
        held = offers.renew([turn], lease_s)
        if not held:
            return Word.LOST
        if held[0].cancel_at is not None:
            return Word.CANCEL
        return Word.STOP if stopping() else Word.GO_ON

    return Ports(
        commands=read_commands(env),
        runner=runner or ProcessRunner(beat_s=lease_s / 6),
        reader=JobReader(engine),
        validate=_validate,
        beat=beat,
        worker_id=worker_id or a_worker_id(),
        environ=env,
    )


def a_worker_id() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{str(new_id())[-12:]}"


def kind(engine: sa.Engine) -> Kind:
    return job_kind(build_ports(engine))


def providers() -> list[Provider]:
    return []
