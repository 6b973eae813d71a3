"""A local cloud for tests: the deployed template, a tenant and a price range for each test, and ways to let fate and time pass."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from infra.local.cli import fire_tick, purge
from infra.local.cloud import Address, Cloud, throwaway_home
from infra.local.deploy import STACK
from infra.local.runs import Progress, Runs
from infra.local.standins.nivoda_faults import Operation
from shared.kernel import aws
from shared.kernel.clock import new_id

# As short as the template allows: a message that a dead process held comes again soon.
QUICK = {"VisibilitySeconds": "12"}
STEP = f"{STACK}-page_ingest"
PATIENCE_S = 300.0


class Scene:
    """The cloud with one test in it: its runs have a tenant of their own, so nothing of another test is met."""

    def __init__(self, cloud: Cloud, outputs: Mapping[str, str]) -> None:
        self.cloud = cloud
        self._enter(outputs)
        self.begin()

    def deploy_again(self) -> None:
        """Into an AWS that is empty again: what it makes has other names."""
        self._enter(self.cloud.deploy().outputs)

    def _enter(self, outputs: Mapping[str, str]) -> None:
        self.address: Address = self.cloud.address(os.getpid(), outputs)
        self.runs = Runs(self.address)

    def begin(self) -> None:
        self.tenant: UUID = new_id()
        self.killed: list[int] = []
        self.cloud.nivoda.behave()
        self.cloud.nivoda.before_each = None

    # --- runs

    def start(self, stones: int, *, page_size: int = 50, partition_records: int = 10_000) -> UUID:
        """A run over the cheapest prices that hold at least so many stones."""
        self.low, self.high = 200, self._price_above(stones)
        params = {"source": "nivoda", "low": self.low, "high": self.high, "page_size": page_size}
        return self.runs.start("page_ingest", {**params, "partition_records": partition_records}, self.tenant)

    def _price_above(self, stones: int) -> int:
        prices = sorted(stone.price_cents for stone in self.cloud.nivoda.stones)
        return prices[stones] // 100 + 1

    def wait(
        self, run_id: UUID, until: Callable[[Progress], object] = lambda now: now.ended, seconds: float = PATIENCE_S
    ) -> Progress:
        deadline = time.monotonic() + seconds
        while not until(now := self.runs.progress(run_id)):
            in_time = time.monotonic() < deadline and not now.ended
            assert in_time, f"nothing came of it: {now}\n{self.cloud.ministack.log_tail()}"
            time.sleep(0.1)
        return now

    def completes(self, run_id: UUID) -> Progress:
        """The run ends as it should, with exactly the rows of its prices."""
        now = self.wait(run_id)
        assert (now.run["status"], now.run["outcome"]) == ("succeeded", "complete"), now
        rows = self.runs.sql("select external_id, price_cents from diamond where source_run = :id", id=run_id)
        held = {
            s.id: s.price_cents for s in self.cloud.nivoda.stones if self.low * 100 <= s.price_cents < self.high * 100
        }
        assert {row["external_id"]: row["price_cents"] for row in rows} == held
        assert len(rows) == len(held) > 0
        endings = self.runs.sql(
            "select type from history where run_id = :id and epoch = :epoch and type in ('succeeded', 'failed', 'canceled')",
            id=run_id, epoch=now.run["epoch"],
        )  # fmt: skip
        assert [row["type"] for row in endings] == ["succeeded"]
        return now

    def lanes(self, run_id: UUID) -> list[Mapping[str, Any]]:
        return self.runs.sql(
            """select id, key, status, epoch, seq, resend_no, claims, attempts, last_error, sent_at, next_due_at > now() as later
               from lane where run_id = :id order by key""",
            id=run_id,
        )

    def repairs(self, run_id: UUID) -> list[str]:
        found = self.runs.sql(
            "select r.why from repair r join lane l on l.id = r.lane_id where l.run_id = :id order by r.id", id=run_id
        )
        return [row["why"] for row in found]

    # --- time and fate

    def tick(self) -> Any:
        return fire_tick(self.address)

    def pass_time(self, run_id: UUID, seconds: int) -> None:
        """What the database remembers of this run becomes so much older; nobody waits."""
        self.runs.sql(
            """update lane set lease_until = lease_until - s, next_due_at = next_due_at - s, sent_at = sent_at - s,
                               check_at = check_at - s
               from (select make_interval(secs => :seconds) as s) as passed where run_id = :id""",
            id=run_id, seconds=seconds,
        )  # fmt: skip
        self.runs.sql(
            "update gate set until = until - make_interval(secs => :seconds) where tenant_id = :tenant",
            tenant=self.tenant, seconds=seconds,
        )  # fmt: skip

    def purge(self) -> None:
        purge(self.address)

    def at_page(self, number: int, act: Callable[[], None]) -> None:
        """Do something once, while a function is in the middle of its step: it waits for this page."""
        pages = itertools.count(1)

        def hook(operation: Operation, _: Mapping[str, Any]) -> None:
            if operation is Operation.PAGE and next(pages) == number:
                act()

        self.cloud.nivoda.before_each = hook

    def at_every_page(self, act: Callable[[], None]) -> None:
        def hook(operation: Operation, _: Mapping[str, Any]) -> None:
            if operation is Operation.PAGE:
                act()

        self.cloud.nivoda.before_each = hook

    def kill_the_step(self) -> None:
        for pid in self.cloud.ministack.workers(STEP):
            os.kill(pid, signal.SIGKILL)
            self.killed.append(pid)


@contextmanager
def local_cloud(parameters: Mapping[str, str] = QUICK, **how: Any) -> Iterator[Scene]:
    """A cloud of its own, deployed, and gone at the end."""
    with throwaway_home() as home, Cloud.start(home, print, parameters=parameters, **how) as cloud:
        scene = Scene(cloud, cloud.deploy(print).outputs)
        try:
            yield scene
        finally:
            scene.runs.close()
            for service in ("sqs", "lambda", "logs", "s3", "scheduler"):
                scene.address.client(service).close()
            where = {"endpoint": scene.address.endpoint, "access_key": scene.address.access_key}
            aws.client("cloudformation", **where, read_s=60).close()
