"""The real ports of jobs. BATON_JOB_COMMANDS: the file of commands, if not the product's own."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import sqlalchemy as sa
from pydantic import Field

from shared.job_queue.adapters.commands import read_commands
from shared.job_queue.adapters.process import ProcessRunner
from shared.job_queue.model import Word
from shared.job_queue.ports import Ports, Runner
from shared.job_queue.steps import SPARE_S, job_kind
from shared.job_queue.store import JobReader
from shared.kernel.catalogue import Kind
from shared.kernel.clock import new_id
from shared.kernel.connections import Provider
from shared.kernel.model import Turn
from shared.kernel.offers import PgOffers
from shared.kernel.settings import Settings

LEASE_S = 60.0
STARTING_S = 60  # of a function's time that is no command's: it starts, ends the command and commits


class JobFunction(Settings):
    """The function that runs jobs: how long it may take, in all."""

    timeout_s: Annotated[int, Field(ge=2 * STARTING_S, le=900)] = 900


def longest_on_lambda_s(env: Mapping[str, str]) -> int:
    """How long a command may run in a function."""
    return JobFunction.from_env(env, "BATON_JOB_").timeout_s - STARTING_S


def longest_turn_s(env: Mapping[str, str]) -> float:
    """How much time must be left before a function takes a job."""
    return longest_on_lambda_s(env) + SPARE_S


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
        longest_on_lambda_s=longest_on_lambda_s(env),
    )


def a_worker_id() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{str(new_id())[-12:]}"


def kind(engine: sa.Engine) -> Kind:
    return job_kind(build_ports(engine))


def providers() -> list[Provider]:
    return []
