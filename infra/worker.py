"""`baton worker`: takes jobs from Postgres and runs their commands on this machine, until it is told to stop.

DATABASE_URL (or BATON_DB_…) says where Postgres is, as for every function; the user is `baton_worker`. With `--kinds all`
it does the steps of every kind, and no queue of AWS is needed. With `--url` it needs no database: it asks the API.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import sqlalchemy as sa

from functions.catalogue import KINDS, all_commands, all_kinds, all_settings
from infra.client.parser import Parser
from shared.job_queue.build import RunStarter, a_worker_id, build_ports
from shared.job_queue.model import KIND, ON_LAMBDA
from shared.job_queue.steps import job_kind
from shared.job_queue.worker import Worker
from shared.kernel import db
from shared.kernel.catalogue import Catalogue
from shared.kernel.clock import patience
from shared.kernel.live import live_url
from shared.kernel.log import logger
from shared.kernel.log_json import json_log
from shared.kernel.metrics_emf import NAMESPACE, EmfMeter
from shared.kernel.offers import PgOffers
from shared.kernel.ports import Ports
from shared.kernel.queue import Outgoing, QueueUnavailable
from shared.kernel.queue_postgres import PgQueue
from shared.kernel.settings import BadSettings, Relay, check_settings
from shared.kernel.signals import announced
from shared.kernel.store import PgStore

ALL = "all"
KEPT_S = 3600.0  # for so long a result waits for a database that is away


class NoQueue:
    """A worker that only runs jobs sends nothing: what it takes is offered in Postgres, and only that is its own to repair."""

    def send(self, queue: str, messages: Sequence[Outgoing]) -> list[int]:  # noqa: ARG002 - the port's shape
        return list(range(len(messages)))

    def is_empty(self, queue: str) -> bool:
        raise QueueUnavailable(queue)

    def change_visibility(self, queue: str, receipt: str, seconds: int) -> None:  # noqa: ARG002 - as above
        raise QueueUnavailable(queue)


def parser() -> Parser:
    made = Parser(prog="baton worker", description="Run jobs on this machine.", allow_abbrev=False)
    add = made.add_argument
    add("--queues", default="default", help="queues to take jobs from, separated by commas (default: default)")
    add("--kinds", default=KIND, help=f"kinds of work to do: {KIND}, or {ALL} to run everything on Postgres alone")
    add("--executors", help="jobs of which executor to run: worker, lambda or both, separated by commas (worker)")
    add("--concurrency", type=int, default=4, help="how many jobs to run at once (default: 4)")
    add("--lease", type=float, default=60.0, help="seconds without a heartbeat after which a job is lost (60)")
    add("--poll", type=float, default=0.5, help="seconds between looks when there is nothing to do (0.5)")
    add("--grace", type=float, default=30.0, help="seconds to let running jobs end after SIGTERM (30)")
    add("--tick", type=float, nargs="?", const=60.0, help="also repair what was lost, every so many seconds (60)")
    add("--health", type=int, metavar="PORT", help="answer GET /health on this port; 0 picks one")
    add("--health-host", default="127.0.0.1", help="where to listen for it (127.0.0.1)")
    add("--url", help="ask this API for jobs instead of the database; the token of a worker is in BATON_TOKEN")
    return made


def main(arguments: Sequence[str]) -> int:
    made = parser()
    options = made.understood(arguments)
    if options.concurrency < 1 or not 1 <= options.lease < math.inf or not 0 < options.poll < math.inf:
        made.error("--concurrency and --lease must be at least 1, and --poll above 0")
    kinds = _kinds(options.kinds, made)
    executors = (options.executors or ("worker,lambda" if ALL in options.kinds.split(",") else "worker")).split(",")
    if unknown := set(executors) - {"worker", "lambda"}:
        made.error(f"--executors: unknown {', '.join(sorted(unknown))}. Available: worker, lambda")
    json_log()
    names = [name for name in options.queues.split(",") if name]
    queues = [name + (ON_LAMBDA if each == "lambda" else "") for name in names for each in executors]
    try:
        check_settings(os.environ, all_settings())
        if options.url:
            from infra.remote_worker import work_for  # noqa: PLC0415 - most workers have a database

            return work_for(options, queues)
        return _work(options, kinds, queues if KIND in kinds else [])
    except BadSettings as error:
        nowhere = not options.url and not os.environ.get("DATABASE_URL")
        instead = ". To take jobs from an API instead: --url, with the token of a worker in BATON_TOKEN"
        made.exit(2, f"baton worker: {error}{instead if nowhere else ''}\n")


def _kinds(asked: str, made: Parser) -> list[str]:
    names = list(KINDS) if asked == ALL else [name for name in asked.split(",") if name]
    if unknown := set(names) - set(KINDS):
        made.error(f"--kinds: unknown {', '.join(sorted(unknown))}. Available: {', '.join(KINDS)}, {ALL}")
    return names


def _work(options: argparse.Namespace, names: Sequence[str], queues: Sequence[str]) -> int:
    url, password = live_url(os.environ)
    size = options.concurrency + 5  # the loop, its listener, the tick, and two to spare
    engine = db.connect_engine(url, pool_size=size, application_name="baton worker", password=password)
    pushed = [name for name in names if name != KIND]
    stopped_at = [math.inf]
    worker_id, others = a_worker_id(), all_kinds(engine)
    jobs = build_ports(
        engine,
        worker_id=worker_id,
        lease_s=options.lease,
        stopping=lambda: time.monotonic() - stopped_at[0] >= options.grace,
        commands=all_commands(),
        starter=RunStarter(engine, others, PgQueue(engine) if pushed else NoQueue(), Relay.from_env(os.environ)),
    )
    kinds = Catalogue(job_kind(jobs), *(others[name] for name in KINDS if name != KIND))

    def waits(spent_s: float) -> bool:
        """While the database is away nobody else can have the job, however long ago its lease was over."""
        return patience(KEPT_S if stopped_at[0] == math.inf else options.lease)(spent_s)

    worker = Worker(
        engine=engine, ports=_ports(engine, kinds, waits, alone=bool(pushed)), kinds=kinds, worker_id=worker_id, queues=queues,
        concurrency=options.concurrency, lease_s=options.lease, poll_s=options.poll, tick_s=options.tick, pushed=pushed,
        messages=PgQueue(engine, _visibility_s()) if pushed else None, version=baton_version(),
    )  # fmt: skip

    def ask_to_stop() -> None:
        stopped_at[0] = min(stopped_at[0], time.monotonic())
        worker.ask_to_stop()

    until_signaled(ask_to_stop)
    health = serve_health(
        options, lambda: {"worker_id": worker_id, "running": worker.in_hand, "well": worker.is_well()}
    )
    logger.info("worker started", extra={"worker_id": worker_id, "queues": list(queues), "kinds": list(names)})
    worker.run()
    if health is not None:
        health.shutdown()
    engine.dispose()
    logger.info("worker stopped", extra={"worker_id": worker_id})
    return 0


def _visibility_s() -> int:
    return 6 * Relay.from_env(os.environ).step_timeout_s


def _ports(engine: sa.Engine, kinds: Catalogue, waits: Callable[[float], bool], *, alone: bool) -> Ports:
    """`alone`: there is no AWS; batons travel through Postgres, and nobody needs to be woken."""
    relay = Relay.from_env(os.environ)
    ports = Ports(
        store=PgStore(engine), queue=NoQueue(), offers=PgOffers(engine), relay=relay, time_left_s=lambda: math.inf,
        waits_for_database=waits, meter=EmfMeter(os.environ.get("POWERTOOLS_METRICS_NAMESPACE", NAMESPACE)),
    )  # fmt: skip
    if not alone:
        return ports
    relay = relay.model_copy(update={"wake_queue": None})
    return announced(replace(ports, queue=PgQueue(engine), relay=relay), kinds)


def until_signaled(ask_to_stop: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ask_to_stop())


def baton_version() -> str:
    try:
        return version("baton")
    except PackageNotFoundError:
        return ""


def serve_health(options: argparse.Namespace, tell: Callable[[], dict[str, Any]]) -> ThreadingHTTPServer | None:
    if options.health is None:
        return None

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told = tell() if self.path == "/health" else None
            body = json.dumps(told or {"error": "not_found"}).encode()
            self.send_response(404 if told is None else 200 if told["well"] else 503)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing: it is asked every few seconds."""

    try:
        server = ThreadingHTTPServer((options.health_host, options.health), Health)
    except (OSError, OverflowError) as error:
        raise BadSettings(f"--health: can't listen on {options.health_host}:{options.health}: {error}") from None
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    logger.info("health", extra={"port": server.server_address[1]})
    return server
