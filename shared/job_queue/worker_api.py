"""Workers without a database: they take jobs of their own tenant, say that they are alive, and how each attempt ended."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, Literal
from uuid import UUID

from aws_lambda_powertools.event_handler.api_gateway import Router
from aws_lambda_powertools.event_handler.openapi.params import Body, Path
from pydantic import Field

from shared.job_queue import decide, store
from shared.job_queue.model import KIND, Finished
from shared.job_queue.steps import jobs_of
from shared.kernel.api.desk import Desk
from shared.kernel.api.frame import Problem, desk, operation
from shared.kernel.api.shapes import Asked, Done, Short, Told
from shared.kernel.auth import WORKS
from shared.kernel.clock import new_id
from shared.kernel.errors import Later, NotFound, Overtaken, StepError
from shared.kernel.log import logger
from shared.kernel.model import Effect, Turn
from shared.kernel.offers import PgOffers
from shared.kernel.ports import Ports
from shared.kernel.remote_call import Calls
from shared.kernel.step import Lost, do_turn

router = Router()  # type: ignore[no-untyped-call]
JobId = Annotated[UUID, Path(description="The job's id")]
LONGEST_TOLD = 256 * 1024
ELSEWHERE_S = 30.0  # until a job is offered again that this worker cannot run
Tail = Annotated[str, Field(max_length=LONGEST_TOLD)]
WorkerId = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[!-~]+$")]
QueueName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,62}(@lambda)?$")]


class ClaimJobs(Asked):
    """`claim_id`: a new id for each claim. A claim that comes twice, because its answer was lost or somebody on the way repeats it,
    is answered with what it took. `again`: the worker knows that it asks again. `claim_no`: one more with each new claim of this
    `worker_id`. A claim that was held up on the way takes nothing once the worker has sent another, or has been answered. `commands`: those that the worker knows; jobs with
    another one wait for another worker, which costs no attempt."""

    worker_id: WorkerId
    queues: Annotated[list[QueueName], Field(min_length=1, max_length=20)]
    most: Annotated[int, Field(ge=1, le=10)] = 1
    lease_seconds: Annotated[int, Field(ge=10, le=900)] = 60
    claim_id: UUID | None = None
    claim_no: Annotated[int, Field(ge=1, le=2**53)] | None = None
    again: bool = False
    commands: Annotated[list[Short], Field(max_length=1000)] | None = None


class ClaimedJob(Told):
    """`claim_token` is the proof of the claim; heartbeat, complete and fail need it."""

    id: UUID
    tenant_id: UUID
    claim_token: UUID
    attempt_no: int
    definition_key: str
    command: str
    payload: dict[str, Any]
    timeout_seconds: int


class ClaimedJobs(Told):
    jobs: list[ClaimedJob]


class Heartbeat(Asked):
    claim_token: UUID
    lease_seconds: Annotated[int, Field(ge=10, le=900)] = 60
    pid: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    stdout_tail: Tail | None = None
    stderr_tail: Tail | None = None


class Word(Told):
    """`cancel`: somebody canceled the job; stop the command and report it as canceled."""

    word: Literal["go_on", "cancel"]


class SignOff(Asked):
    worker_id: WorkerId


class CompleteJob(Asked):
    claim_token: UUID
    stdout_tail: Tail = ""
    stderr_tail: Tail = ""


class FailJob(Asked):
    """`reason`: how it ended. `stopped`: the worker has to stop; the job is put back, which costs no attempt."""

    claim_token: UUID
    reason: Literal["exit", "timeout", "canceled", "stopped"] = "exit"
    exit_code: Annotated[int, Field(ge=-255, le=255)] | None = None
    stdout_tail: Tail = ""
    stderr_tail: Tail = ""


@operation(router, "POST", "/worker/jobs/claim", WORKS, tag="workers")
def claim_jobs(asked: Annotated[ClaimJobs, Body()]) -> ClaimedJobs:
    """Take the best jobs of the tenant that are due. Each is the worker's until its lease runs out."""
    here = desk(router)
    ports, worker = _ports(here), f"{_whose(here)}/{asked.worker_id}"
    if asked.claim_id is None and (asked.again or asked.claim_no is not None):
        raise Problem(422, "invalid", "claim_id: required with again and with claim_no.")
    (seen,) = here.all(
        store.SEEN_WORKER, worker_id=worker, hostname=asked.worker_id.partition(":")[0], queues=asked.queues, claim_no=asked.claim_no,
        tenant_id=here.tenant_id,
    )  # fmt: skip
    offers, token = _offers(here), asked.claim_id or new_id()
    # Each look waits for a take of its queue that is still under way; the last one sees what all of them took.
    lost = [offers.taken(queue, token, worker) for queue in asked.queues][-1] if asked.claim_id else []
    if lost:
        offers.renew(lost, asked.lease_seconds)
    claimed: list[ClaimedJob] = []
    for queue in asked.queues:
        room = asked.most - len(claimed)
        if room <= 0 or not (lost or seen["is_new"]):  # nobody would hear of what an old claim takes
            break
        turns, lost = lost or offers.take(queue, room, token, asked.lease_seconds, worker), []
        for turn in turns:
            try:
                claimed += _begun(here, ports, turn, asked.commands)
            except Exception:
                # Those before it are told: nobody would know of them otherwise. This one is given back, at no cost.
                logger.exception("a job that was taken could not be started", extra={"job_id": str(turn.run_id)})
                with suppress(Exception):
                    offers.give_back(turn)
    return ClaimedJobs(jobs=claimed)


@operation(router, "POST", "/worker/jobs/<job_id>/heartbeat", WORKS, tag="workers", refuses=[409])
def heartbeat_job(job_id: JobId, asked: Annotated[Heartbeat, Body()]) -> Word:
    """Keep a job, tell the last of what its command printed, and hear whether it was canceled."""
    here = desk(router)
    turn = _held(here, job_id, asked.claim_token)
    renewed = _offers(here).renew([turn], asked.lease_seconds)
    if not renewed:
        raise _not_yours()
    here.all(store.SEEN_AT_WORK, lane_id=turn.lane_id)
    if asked.stdout_tail is not None or asked.stderr_tail is not None:
        out, err = (each and decide.told_tail(each) for each in (asked.stdout_tail, asked.stderr_tail))
        try:
            Calls(turn, _ports(here)).write(Effect(store.TAILS, {"pid": asked.pid, "stdout": out, "stderr": err}))
        except Overtaken:
            raise _not_yours() from None
    return Word(word="go_on" if renewed[0].cancel_at is None else "cancel")


@operation(router, "POST", "/worker/sign-off", WORKS, tag="workers")
def sign_off_worker(asked: Annotated[SignOff, Body()]) -> Done:
    """Say that a worker has stopped: it is no longer listed, and nobody is told that its machine doesn't respond."""
    here = desk(router)
    here.all(store.FORGET_WORKER, worker_id=f"{_whose(here)}/{asked.worker_id}")
    return Done()


@operation(router, "POST", "/worker/jobs/<job_id>/complete", WORKS, tag="workers", refuses=[409])
def complete_job(job_id: JobId, asked: Annotated[CompleteJob, Body()]) -> Done:
    """Say that the command exited with 0."""
    return _end(job_id, asked.claim_token, Finished(exit_code=0), asked)


@operation(router, "POST", "/worker/jobs/<job_id>/fail", WORKS, tag="workers", refuses=[409])
def fail_job(job_id: JobId, asked: Annotated[FailJob, Body()]) -> Done:
    """Say that the command failed, ran too long, or was stopped. The job is tried again while it has attempts left."""
    if asked.reason == "exit" and (asked.exit_code is None or asked.exit_code == 0):
        raise Problem(422, "bad_exit_code", "exit_code: required, and not 0. For 0 use complete.")
    if asked.reason != "exit" and asked.exit_code is not None:
        raise Problem(422, "bad_exit_code", "exit_code: only for the reason exit.")
    ended = Finished(
        exit_code=asked.exit_code,
        timed_out=asked.reason == "timeout",
        canceled=asked.reason == "canceled",
        stopped=asked.reason == "stopped",
    )
    return _end(job_id, asked.claim_token, ended, asked)


def _whose(here: Desk) -> str:
    """A token has one tenant; a person may work for several, and is another worker in each."""
    actor = here.principal.actor
    return actor if actor.startswith("token:") else f"{actor}/{here.tenant_id}"


def _begun(here: Desk, ports: Ports, turn: Turn, known: Sequence[str] | None) -> list[ClaimedJob]:
    """What may not run any more fails here and is not handed out; what was canceled meanwhile ends. What its worker does not
    know waits: for a while, so that it holds up nothing that the worker can run."""
    try:
        if known is not None and turn.params["command"] not in known:
            raise Later(ELSEWHERE_S, f"a worker that knows {turn.params['command']!r}")
        attempt_no = jobs_of(here.kinds).begin(turn)
    except Overtaken:
        return []
    except StepError as error:
        told = error

        def fail(*_: object) -> Any:
            raise told

        do_turn(turn, replace(here.kinds[KIND], take_step=fail), ports)
        return []
    params = turn.params
    return [
        ClaimedJob(
            id=turn.run_id, tenant_id=turn.tenant_id, claim_token=turn.token, attempt_no=attempt_no,
            definition_key=params["definition_key"], command=params["command"], payload=params["payload"],
            timeout_seconds=params["timeout_seconds"],
        )
    ]  # fmt: skip


def _end(job_id: UUID, token: UUID, ended: Finished, asked: CompleteJob | FailJob) -> Done:
    here = desk(router)
    turn = _held(here, job_id, token)
    if ended.canceled and turn.cancel_at is None:
        raise Problem(422, "not_canceled", "reason: nobody has canceled this job. Use stopped to put it back.")
    out, err = decide.told_tail(asked.stdout_tail), decide.told_tail(asked.stderr_tail)
    # Its worker heard of a cancel, or did not: what the command did counts.
    turn = replace(turn, cancel_at=None)
    kind = jobs_of(here.kinds).as_told(here.kinds[KIND], replace(ended, stdout=out, stderr=err))
    outcome = do_turn(turn, kind, _ports(here))
    if outcome is Lost.OVERTAKEN:
        raise _not_yours()
    if outcome is Lost.GIVEN_BACK:
        raise Problem(503, "try_again", "The end of the job could not be written. Try again.")
    return Done()


def _held(here: Desk, job_id: UUID, token: UUID) -> Turn:
    turn = _offers(here).held(job_id, token)
    if turn is None and here.one(store.ONE_JOB, job_id=job_id) is None:
        raise NotFound
    if turn is None:
        raise _not_yours()
    return turn


def _not_yours() -> Problem:
    return Problem(
        409, "not_yours", "This claim is over: the job was given to another worker, ended, or never was yours."
    )


def _offers(here: Desk) -> PgOffers:
    return PgOffers(here.engine, here.tenant_id)


def _ports(here: Desk) -> Ports:
    return replace(here.ports, offers=_offers(here))
