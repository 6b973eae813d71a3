"""The real ports of jobs. BATON_JOB_COMMANDS: the file of commands, if not the product's own."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

import sqlalchemy as sa
from pydantic import Field

from shared.job_queue.adapters.commands import PREFIX, CommandFile, read_commands
from shared.job_queue.adapters.process import ProcessRunner
from shared.job_queue.model import Command, Word
from shared.job_queue.ports import Ports, Runner, Starter
from shared.job_queue.steps import SPARE_S, job_kind
from shared.job_queue.store import JobReader
from shared.kernel.catalogue import Catalogue, Kind
from shared.kernel.clock import Chance, new_id
from shared.kernel.connections import Provider
from shared.kernel.live import live_queue
from shared.kernel.metrics import Meter, NoMeter
from shared.kernel.model import By, Json, RunCommand, Turn
from shared.kernel.offers import PgOffers
from shared.kernel.ports import Ports as RelayPorts
from shared.kernel.queue import Queue
from shared.kernel.run import start_run
from shared.kernel.settings import BadSettings, Groups, Relay, Settings
from shared.kernel.store import PgStore

LEASE_S = 60.0
LIVE_S = 3.0  # how old the log of a running command may be for those who read it
STARTING_S = 60  # of a function's time that is no command's: it starts, ends the command and commits


class JobFunction(Settings):
    """The function that runs jobs: how long it may take, in all."""

    timeout_s: Annotated[int, Field(ge=2 * STARTING_S, le=900)] = 900


def longest_on_lambda_s(env: Mapping[str, str]) -> int:
    """How long a command may run in a function."""
    return JobFunction.from_env(env, PREFIX).timeout_s - STARTING_S


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
    commands: Sequence[RunCommand] = (),
    starter: Starter | None = None,
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
        commands=_all_commands(read_commands(env), commands),
        starter=starter,
        runner=runner or ProcessRunner(beat_s=min(LIVE_S, lease_s / 6)),
        reader=JobReader(engine),
        validate=_validate,
        beat=beat,
        worker_id=worker_id or a_worker_id(),
        environ=env,
        lease_s=lease_s,
        longest_on_lambda_s=longest_on_lambda_s(env),
        meter=_meter(env),
    )


def _meter(env: Mapping[str, str]) -> Meter:
    """Metrics are lines that Lambda's log makes metrics of; elsewhere they would only be noise."""
    if "AWS_LAMBDA_FUNCTION_NAME" not in env:
        return NoMeter()
    from shared.kernel.metrics_emf import NAMESPACE, EmfMeter  # noqa: PLC0415 - as above

    return EmfMeter(env.get("POWERTOOLS_METRICS_NAMESPACE", NAMESPACE))


def _all_commands(of_file: Mapping[str, Command], starts: Sequence[RunCommand]) -> dict[str, Command]:
    built_in = {each.key: Command(each.key, starts=each) for each in starts}
    if clash := of_file.keys() & built_in.keys():
        raise BadSettings(f"BATON_JOB_COMMANDS: {', '.join(sorted(clash))} is built in and cannot be another command")
    return {**of_file, **built_in}


def a_worker_id() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{str(new_id())[-12:]}"


@dataclass(frozen=True, slots=True)
class RunStarter:
    """Starts runs as the relay does. Where nothing can be sent from here, the tick sends their first batons."""

    engine: sa.Engine
    kinds: Catalogue
    queue: Queue
    relay: Relay

    def start(self, tenant_id: UUID, command: RunCommand, params: Json, by: By, run_id: UUID) -> UUID:
        ids = iter([run_id])
        chance = Chance(new_id=lambda: next(ids, None) or new_id())
        ports = RelayPorts(store=PgStore(self.engine), queue=self.queue, relay=self.relay, chance=chance)
        return start_run(ports, self.kinds[command.kind], tenant_id, params, by)


def kind_with(engine: sa.Engine, commands: Sequence[RunCommand], kinds: Catalogue) -> Kind:
    starter = RunStarter(engine, kinds, live_queue(os.environ, engine), Relay.from_env(os.environ))
    return job_kind(build_ports(engine, commands=commands, starter=starter))


def kind(engine: sa.Engine) -> Kind:
    return job_kind(build_ports(engine))


def settings() -> Groups:
    return [(PREFIX, JobFunction), (PREFIX, CommandFile)]


def providers() -> list[Provider]:
    return []
