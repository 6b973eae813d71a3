"""The demonstration without any cloud: Postgres, two workers, one of which is killed on the way; every row compared."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from infra.local import private
from infra.local.cloud import DATABASE, Address, create_database, throwaway_home, without_password
from infra.local.demo import KILL_AT_PAGE, LONGEST_S, ROWS, differences, start_run, verdict
from infra.local.deploy import ROOT
from infra.local.postgres import Postgres
from infra.local.progress import view, watch
from infra.local.runs import Runs
from infra.local.standins.all import STANDINS
from infra.local.standins.nivoda import NivodaStandIn
from infra.local.standins.nivoda_faults import Operation
from infra.local.supervise import signals_end_it
from infra.migrations.run import migrate
from shared.kernel import db
from shared.kernel.clock import stopwatch
from shared.kernel.queue_postgres import PgQueue
from shared.kernel.settings import Relay

WORKER = ("worker", "--kinds", "all", "--tick", "2", "--concurrency", "3", "--poll", "0.2", "--lease", "7")
RELAY = {"BATON_STEP_TIMEOUT_S": "5", "BATON_LEASE_S": "7"}


def worker_demo(console: Console, *, stones: int, seed: int) -> int:
    """0 only if every row is exactly right."""
    elapsed = stopwatch()
    with signals_end_it(), throwaway_home() as home:
        console.print("[bold]Postgres and two workers on this machine[/] (no AWS; all of it is gone at the end)")
        private.home(home)
        upstream = NivodaStandIn(seed, stones=stones)
        try:
            with Postgres.start(home / "postgres") as postgres:
                create_database(postgres.url())
                migrate(postgres.url(DATABASE))
                private.give_passwords(postgres.url(DATABASE))
                console.print(f"Postgres     {without_password(postgres.url(DATABASE))}")
                return _demo(console, home, postgres, upstream, elapsed())
        finally:
            upstream.stop()


def _demo(console: Console, home: Path, postgres: Postgres, upstream: NivodaStandIn, set_up_s: float) -> int:
    address = Address(
        pid=os.getpid(), endpoint="", access_key="", database_url=postgres.url(DATABASE), upstreams={}, parameters={},
        outputs={},
    )  # fmt: skip
    workers = Workers(home, _environment(postgres, upstream.start()))
    queue_engine = db.connect_engine(postgres.url(DATABASE, "baton_api"), application_name="baton-demo")
    stones = len(upstream.stones)
    try:
        for _ in range(2):
            workers.start()
        upstream.before_each = workers.kill_one_at(KILL_AT_PAGE)
        relay = Relay.from_env(RELAY)
        with Runs(address, PgQueue(queue_engine), relay) as runs:
            run_id = start_run(runs, stones)
            console.print(f"\n[bold]Run {run_id}[/]: {stones:,} records of the catalogue, page by page")
            with view(console) as shown:
                now = watch(runs, run_id, shown, seconds=LONGEST_S, meanwhile=lambda _: workers.tell(shown.note))
            wrong = differences(upstream.stones, runs.sql(ROWS))
            figures = runs.figures(run_id)
    finally:
        queue_engine.dispose()
        workers.stop()
    killed = f"{len(workers.killed)} worker with -9, in the middle of a page; another took its place"
    right = len(workers.killed) == 1
    return verdict(console, now, figures, killed, wrong, set_up_s=set_up_s, stones=stones, right=right)


def _environment(postgres: Postgres, upstream_url: str) -> dict[str, str]:
    place = STANDINS["nivoda"]
    account = dict(place.account.values())
    told = {place.address[1]: upstream_url, **account, "DATABASE_URL": postgres.url(DATABASE, "baton_worker"), **RELAY}
    return {**{name: value for name, value in os.environ.items() if not name.startswith("AWS_")}, **told}


class Workers:
    """Real processes, as anybody would start them; one is killed when the catalogue is asked for a certain page."""

    def __init__(self, home: Path, env: Mapping[str, str]) -> None:
        self._home, self._env = home, env
        self._all: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()
        self._told = False
        self.killed: list[int] = []

    def start(self) -> None:
        with private.open_file(self._home / "workers.log", "ab") as log:
            self._all.append(
                subprocess.Popen(
                    [sys.executable, "-m", "infra.cli", *WORKER], cwd=ROOT, env=dict(self._env), stdout=log, stderr=log
                )
            )

    def kill_one_at(self, page: int) -> Any:
        pages = [0]

        def before_each(operation: Operation, asked: Mapping[str, Any]) -> None:  # noqa: ARG001 - the shape of a hook
            with self._lock:
                pages[0] += operation is Operation.PAGE
                if pages[0] < page or self.killed:
                    return
                self._all[0].send_signal(signal.SIGKILL)
                self.killed.append(self._all[0].pid)
                self.start()

        return before_each

    def tell(self, note: Any) -> None:
        if self.killed and not self._told:
            self._told = True
            note(f"[red]kill -9[/] of a worker, pid {self.killed[0]}, with up to three pages in hand. Another starts.")

    def stop(self) -> None:
        for each in self._all:
            each.terminate()
        for each in self._all:
            try:
                each.wait(20)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()
