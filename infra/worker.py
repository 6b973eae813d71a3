"""`baton worker`: takes jobs from Postgres and runs their commands on this machine, until it is told to stop.

DATABASE_URL (or BATON_DB_…) says where Postgres is, as for every function; the user is `baton_worker`.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import threading
import time
from collections.abc import Sequence

from functions.catalogue import all_kinds
from shared.job_queue.build import a_worker_id, build_ports
from shared.job_queue.model import KIND
from shared.job_queue.steps import job_kind
from shared.job_queue.worker import Worker
from shared.kernel import db
from shared.kernel.catalogue import Catalogue
from shared.kernel.live import live_url
from shared.kernel.log import logger
from shared.kernel.offers import PgOffers
from shared.kernel.ports import Ports
from shared.kernel.queue import Outgoing, QueueUnavailable
from shared.kernel.settings import Relay
from shared.kernel.store import PgStore


class NoQueue:
    """A worker sends nothing: what it takes is offered in Postgres, and only that is its own to repair."""

    def send(self, queue: str, messages: Sequence[Outgoing]) -> list[int]:  # noqa: ARG002 - the port's shape
        return list(range(len(messages)))

    def is_empty(self, queue: str) -> bool:
        raise QueueUnavailable(queue)

    def change_visibility(self, queue: str, receipt: str, seconds: int) -> None:  # noqa: ARG002 - as above
        raise QueueUnavailable(queue)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="baton worker", description="Run jobs on this machine.", allow_abbrev=False)
    made.add_argument(
        "--queues", default="default", help="queues to take jobs from, separated by commas (default: default)"
    )
    made.add_argument("--concurrency", type=int, default=4, help="how many jobs to run at once (default: 4)")
    made.add_argument(
        "--lease", type=float, default=60.0, help="seconds without a heartbeat after which a job is lost (60)"
    )
    made.add_argument("--poll", type=float, default=0.5, help="seconds between looks when there is nothing to do (0.5)")
    made.add_argument("--grace", type=float, default=30.0, help="seconds to let running jobs end after SIGTERM (30)")
    made.add_argument(
        "--tick", type=float, nargs="?", const=60.0, help="also repair lost jobs, every so many seconds (60)"
    )
    return made


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    if options.concurrency < 1 or options.lease < 1:
        parser().error("--concurrency and --lease must be at least 1")
    url, password = live_url(os.environ)
    engine = db.connect_engine(
        url, pool_size=options.concurrency + 2, application_name="baton worker", password=password
    )
    stop, stopped_at = threading.Event(), [float("inf")]

    def ask_to_stop(*_: object) -> None:
        stopped_at[0] = min(stopped_at[0], time.monotonic())
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask_to_stop)
    worker_id = a_worker_id()
    jobs = build_ports(
        engine,
        worker_id=worker_id,
        lease_s=options.lease,
        stopping=lambda: time.monotonic() - stopped_at[0] >= options.grace,
    )
    kinds = Catalogue(job_kind(jobs), *(kind for name, kind in all_kinds(engine).items() if name != KIND))
    ports = Ports(
        store=PgStore(engine), queue=NoQueue(), offers=PgOffers(engine), relay=Relay.from_env(os.environ),
        time_left_s=lambda: math.inf,
    )  # fmt: skip
    queues = [name for name in options.queues.split(",") if name]
    logger.info("worker started", extra={"worker_id": worker_id, "queues": queues})
    Worker(
        engine=engine, ports=ports, kinds=kinds, worker_id=worker_id, queues=queues, concurrency=options.concurrency,
        lease_s=options.lease, poll_s=options.poll, tick_s=options.tick, stop=stop,
    ).run()  # fmt: skip
    logger.info("worker stopped", extra={"worker_id": worker_id})
    return 0
