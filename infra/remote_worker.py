"""`baton worker --url`: a worker that has no database. It asks the API for jobs of its tenant and runs them here.

BATON_TOKEN is a machine token with the role worker. Which commands it may run, its own reviewed file says.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from infra.client.http import Client, Refusal
from infra.worker import serve_health, until_signaled
from shared.job_queue import decide
from shared.job_queue.adapters.commands import read_commands
from shared.job_queue.adapters.process import ProcessRunner
from shared.job_queue.build import a_worker_id
from shared.job_queue.model import Finished, Word
from shared.job_queue.ports import Runner
from shared.kernel.errors import Refused
from shared.kernel.log import logger
from shared.kernel.settings import BadSettings

AFTER_TROUBLE_S = 5.0
TELLS = 5  # how often it tries to say how an attempt ended


class Token:
    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        return self._token

    def renew(self) -> bool:
        return False


def work_for(options: argparse.Namespace, queues: Sequence[str]) -> int:
    token = os.environ.get("BATON_TOKEN")
    if not token:
        raise BadSettings("BATON_TOKEN must hold a machine token with the role worker")
    worker = RemoteWorker(
        Client(options.url.rstrip("/"), Token(token)), list(queues), a_worker_id(), options.concurrency,
        int(max(10, options.lease)), max(1.0, options.poll), options.grace,
    )  # fmt: skip
    until_signaled(worker.stop.set)
    health = serve_health(options, lambda: {"worker_id": worker.worker_id, "running": worker.in_hand, "well": True})
    worker.run()
    if health is not None:
        health.shutdown()
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

    def _claim(self, most: int) -> list[dict[str, Any]]:
        asked = {"worker_id": self.worker_id, "queues": self.queues, "most": most, "lease_seconds": self.lease_s}
        try:
            found: list[dict[str, Any]] = self.client.post("/worker/jobs/claim", asked)["jobs"]
        except Refusal as error:
            logger.warning("no jobs could be taken", extra={"error": str(error)})
            self.stop.wait(AFTER_TROUBLE_S)
            return []
        return found

    def _do(self, job: Mapping[str, Any]) -> None:
        try:
            ended = self._run(job)
            if not ended.lost:
                self._tell(job, ended)
        except Exception:
            logger.exception("a job could not be taken to its end", extra={"job_id": job["id"]})

    def _run(self, job: Mapping[str, Any]) -> Finished:
        command = read_commands(self.env).get(job["command"])
        if command is None:
            return Finished(exit_code=127, stderr=f"{job['command']!r} is not an allowed command on this worker.")
        try:
            argv = decide.argv(command, UUID(job["tenant_id"]), job["payload"])
        except Refused as error:
            return Finished(exit_code=127, stderr=error.message)
        passed = {name: self.env[name] for name in command.env if name in self.env}
        env = {**passed, "BATON_JOB_ID": job["id"], "BATON_ATTEMPT_NO": str(job["attempt_no"])}
        lost_at = [time.monotonic() + self.lease_s]

        def beat(pid: int, stdout: str, stderr: str) -> Word:
            told = {"claim_token": job["claim_token"], "lease_seconds": self.lease_s, "pid": pid,
                    "stdout_tail": stdout, "stderr_tail": stderr}  # fmt: skip
            try:
                word = self.client.post(f"/worker/jobs/{job['id']}/heartbeat", told)["word"]
            except Refusal as error:
                # Without an answer it goes on as long as nobody else can have the job.
                over = error.problem.get("status") in {404, 409} or time.monotonic() >= lost_at[0]
                return Word.LOST if over else Word.GO_ON
            lost_at[0] = time.monotonic() + self.lease_s
            if word == "cancel":
                return Word.CANCEL
            return Word.STOP if self._is_over() else Word.GO_ON

        runner = self.runner or ProcessRunner(beat_s=self.lease_s / 6)
        return runner.run(argv, env, job["timeout_seconds"], beat)

    def _is_over(self) -> bool:
        return self._stopped_at is not None and time.monotonic() - self._stopped_at >= self.grace_s

    def _tell(self, job: Mapping[str, Any], ended: Finished) -> None:
        told: dict[str, Any] = {
            "claim_token": job["claim_token"], "stdout_tail": ended.stdout, "stderr_tail": ended.stderr
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
        for n in range(TELLS):
            try:
                self.client.post(f"/worker/jobs/{job['id']}/{what}", told)
            except Refusal as error:
                if error.problem.get("status") in {404, 409, 422}:
                    logger.warning("the job was given to another", extra={"job_id": job["id"]})
                    return
                time.sleep(2**n)
            else:
                return
        logger.error("how a job ended could not be told", extra={"job_id": job["id"]})
