"""`baton worker --url`: a worker that has no database. It asks the API for jobs of its tenant and runs them here.

BATON_TOKEN is a machine token with the role worker. Which commands it may run, its own reviewed file says.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from infra.client.http import READ_S, Client, Refusal, Unanswered
from infra.client.session import Fixed
from infra.worker import KEPT_S, serve_health, until_signaled
from shared.job_queue import decide
from shared.job_queue.adapters.commands import read_commands
from shared.job_queue.adapters.process import ProcessRunner
from shared.job_queue.build import a_worker_id
from shared.job_queue.model import Finished, Word
from shared.job_queue.ports import Runner
from shared.kernel.clock import new_id
from shared.kernel.errors import Later, Refused
from shared.kernel.log import logger
from shared.kernel.settings import BadSettings

AFTER_TROUBLE_S = 5.0
LONGEST_LEASE_S = 900  # as the API has it
FIRST_PAUSE_S = 1.0
MOST_PAUSE_S = 2.0  # the tick waits a little longer before it calls what has ended lost
LEAST_TELLS = 5  # how often it tries to say how an attempt ended, at least
CREATE_ONE = "Create one with `baton token add NAME --role worker`"  # a worker has no login to fall back on
MOST_TOLD = 125_000  # of one stream, as JSON: the API takes a body of 256 KB


def work_for(options: argparse.Namespace, queues: Sequence[str]) -> int:
    token = os.environ.get("BATON_TOKEN")
    if not token:
        raise BadSettings(f"BATON_TOKEN must hold a machine token with the role worker. {CREATE_ONE}")
    if options.lease > LONGEST_LEASE_S:
        raise BadSettings(f"--lease: at most {LONGEST_LEASE_S} seconds with --url")
    worker = RemoteWorker(
        Client(options.url.rstrip("/"), Fixed(token, CREATE_ONE)), list(queues), a_worker_id(), options.concurrency,
        int(max(10, options.lease)), max(1.0, options.poll), options.grace,
    )  # fmt: skip
    until_signaled(worker.stop.set)
    health = serve_health(options, lambda: {"worker_id": worker.worker_id, "running": worker.in_hand, "well": True})
    logger.info(
        "worker started", extra={"worker_id": worker.worker_id, "queues": list(queues), "url": worker.client.url}
    )
    worker.run()
    if health is not None:
        health.shutdown()
    logger.info("worker stopped", extra={"worker_id": worker.worker_id})
    return 0


@dataclass(slots=True)
class RemoteWorker:
    client: Client
    queues: list[str]
    worker_id: str
    concurrency: int
    lease_s: int
    poll_s: float
    grace_s: float = 30.0
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)
    runner: Runner | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    _running: set[Future[None]] = field(default_factory=set)
    _stopped_at: float | None = None
    _claims: int = 0
    _unheard: str | None = None  # a claim that may have taken jobs, and whose answer was lost

    @property
    def in_hand(self) -> int:
        return len(self._running)

    def run(self) -> None:
        with ThreadPoolExecutor(self.concurrency, thread_name_prefix="job") as pool:
            while not self.stop.is_set():
                self._running = {each for each in self._running if not each.done()}
                room = self.concurrency - len(self._running)
                jobs = self._claim(min(room, 10)) if room > 0 else []
                self._running |= {pool.submit(self._do, job) for job in jobs}
                if not jobs:
                    self.stop.wait(self.poll_s)
            self._stopped_at = time.monotonic()
        try:
            self._post("/worker/sign-off", {"worker_id": self.worker_id}, "done")
        except Refusal as error:  # it is listed as not responding for a while
            logger.warning("the worker could not sign off", extra={"error": str(error)})

    def _claim(self, most: int) -> list[dict[str, Any]]:
        again, self._unheard = self._unheard, self._unheard or str(new_id())
        self._claims += again is None
        lost_at = self._lost_at()
        try:
            asked = {"worker_id": self.worker_id, "queues": self.queues, "most": most, "lease_seconds": self.lease_s,
                     "claim_id": self._unheard, "claim_no": self._claims, "again": again is not None,
                     "commands": sorted(read_commands(self.env))}  # fmt: skip
            # If the answer is lost, there must be time to ask again before what was taken counts as lost.
            found = self._post("/worker/jobs/claim", asked, "jobs", min(READ_S, self.lease_s / 3))
            self._unheard = None
        except (Refusal, BadSettings) as error:
            logger.warning("no jobs could be taken", extra={"error": str(error)})
            self.stop.wait(AFTER_TROUBLE_S)
            return []
        return [{**job, "lost_at": lost_at} for job in found]

    def _lost_at(self) -> float:
        """When somebody else may have what is asked for now: the lease began before its answer came."""
        return time.monotonic() + self.lease_s

    def _post(self, path: str, told: Mapping[str, Any], wanted: str, within_s: float = READ_S) -> Any:
        """What the API says under this name. Whoever answers in its place, a proxy or a login page, has said nothing."""
        answer = self.client.post(path, told, within_s=within_s)
        if not isinstance(answer, dict) or wanted not in answer:
            raise Refusal(f"the answer to {path} is not the API's")
        return answer[wanted]

    def _do(self, job: Mapping[str, Any]) -> None:
        lost_at = [float(job["lost_at"])]
        said = {name: job[name] for name in ("tenant_id", "definition_key", "attempt_no")}
        said |= {"job_id": job["id"], "worker_id": self.worker_id}
        logger.info("job attempt started", extra=said)
        try:
            try:
                ended = self._run(job, lost_at)
            except Later:  # it cannot be started here: others may have it, and this one waits a little
                ended = Finished(exit_code=None, stopped=True)
                self.stop.wait(AFTER_TROUBLE_S)
            if not ended.lost:
                self._tell(job, ended, lost_at[0])
            how = {name: getattr(ended, name) for name in ("exit_code", "timed_out", "canceled", "stopped", "lost")}
            logger.info("job attempt ended", extra=said | how)
        except Exception:
            logger.exception("a job could not be taken to its end", extra={"job_id": job["id"]})

    def _run(self, job: Mapping[str, Any], lost_at: list[float]) -> Finished:
        command = read_commands(self.env).get(job["command"])
        if command is None:
            return Finished(exit_code=127, stderr=f"{job['command']!r} is not an allowed command on this worker.")
        try:
            argv = decide.argv(command, UUID(job["tenant_id"]), job["payload"])
        except Refused as error:
            return Finished(exit_code=127, stderr=error.message)
        if time.monotonic() >= lost_at[0]:
            raise Later(AFTER_TROUBLE_S, "a claim that is answered in time")
        passed = {name: self.env[name] for name in command.env if name in self.env}
        env = {**passed, "BATON_JOB_ID": job["id"], "BATON_ATTEMPT_NO": str(job["attempt_no"])}

        def beat(pid: int, stdout: str, stderr: str) -> Word:
            next_lost_at = self._lost_at()
            left_s = max(1.0, lost_at[0] - time.monotonic())
            told = {"claim_token": job["claim_token"], "lease_seconds": self.lease_s, "pid": pid,
                    "stdout_tail": fitting(stdout), "stderr_tail": fitting(stderr)}  # fmt: skip
            try:
                word = self._post(f"/worker/jobs/{job['id']}/heartbeat", told, "word", left_s)
            except Refusal as error:
                # Without an answer it goes on as long as nobody else can have the job.
                over = error.problem.get("status") in {404, 409} or time.monotonic() >= lost_at[0]
                return Word.LOST if over else Word.GO_ON
            lost_at[0] = next_lost_at
            if word == "cancel":
                return Word.CANCEL
            return Word.STOP if self._is_over() else Word.GO_ON

        runner = self.runner or ProcessRunner(beat_s=self.lease_s / 6)
        return runner.run(argv, env, job["timeout_seconds"], beat, lambda: lost_at[0] - time.monotonic())

    def _is_over(self) -> bool:
        return self._stopped_at is not None and time.monotonic() - self._stopped_at >= self.grace_s

    def _tell(self, job: Mapping[str, Any], ended: Finished, lost_at: float) -> None:
        """As often as it takes: what the command did is not to be done again. If nobody answers, somebody else may have the job by
        then, and may not: the API knows."""
        told: dict[str, Any] = {
            "claim_token": job["claim_token"], "stdout_tail": fitting(ended.stdout), "stderr_tail": fitting(ended.stderr)
        }  # fmt: skip
        by_itself = not (ended.timed_out or ended.canceled or ended.stopped)
        what = "complete" if by_itself and ended.exit_code == 0 else "fail"
        if what == "fail":
            told["reason"] = (
                "timeout"
                if ended.timed_out
                else "canceled"
                if ended.canceled
                else "stopped"
                if ended.stopped
                else "exit"
            )
            told["exit_code"] = ended.exit_code if told["reason"] == "exit" else None
        pause_s, tries, until = FIRST_PAUSE_S, 0, lost_at
        while tries < LEAST_TELLS or time.monotonic() < until:
            tries += 1
            try:
                self._post(f"/worker/jobs/{job['id']}/{what}", told, "done")
            except Refusal as error:
                if error.problem.get("status") in {404, 409, 422}:
                    logger.warning("how a job ended was refused", extra={"job_id": job["id"], "error": str(error)})
                    return
                until = lost_at + KEPT_S if isinstance(error, Unanswered) and not self.stop.is_set() else lost_at
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, MOST_PAUSE_S)
            else:
                return
        logger.error("how a job ended could not be told", extra={"job_id": job["id"]})


def fitting(text: str) -> str:
    """The last of what a command printed that a request has room for: a character takes up to six bytes there."""
    while len(json.dumps(text)) > MOST_TOLD:
        text = text[len(text) // 4 + 1 :]
    return text
