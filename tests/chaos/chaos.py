"""Everything at once on real processes: `python -m tests.chaos.chaos --runs 500`.

Workers are killed, Postgres is stopped, answers are cut, messages are lost and doubled, clocks are wrong. Then peace
comes, the tick repairs, and every run must have kept the promise.
"""

from __future__ import annotations

import argparse
import json
import re
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from infra.local.postgres import Postgres
from infra.local.private import give_passwords
from infra.migrations.run import migrate
from shared.kernel.queue import Outgoing
from tests.chaos.checks import OPEN_WORK, violations
from tests.chaos.hub import BATONS, ORDERS, Hub
from tests.chaos.stage import Stage, let_calls_end, open_stage, pass_time_for_the_idle
from tests.chaos.worker import TENANTS, Duty
from tests.support.databases import as_user, scratch_server
from tests.support.subject import Subject, subjects

Range = tuple[float, float]
LONGEST_WAIT_FOR_TROUBLE_S = 60.0
ACTIONS = ("cancel", "pause", "retry", "wake", "restart")

NUMBERS = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d+")
ENDED_RUNS = sa.text("select count(*) from run where finished_at is not null")
PAUSED_RUNS = sa.text("select id, tenant_id from run where paused_at is not null")
ONE_BACKEND = sa.text("""
select pg_terminate_backend(pid) from (
    select pid from pg_stat_activity where usename = 'baton_worker' order by random() limit 1) one
""")
FIGURES = sa.text("""
select 'runs', count(*) from run union all
select 'runs ' || status || coalesce(' (' || (error ->> 'code') || ')', ''), count(*) from run group by 1 union all
select 'epochs', sum(epoch) from run union all
select 'lanes', count(*) from lane union all
select 'steps', count(*) from step union all
select 'repairs: ' || why, count(*) from repair group by why
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much work and how much trouble."""

    runs: int
    seed: int
    seconds_limit: float = 1200.0
    seconds_least: float = 0.0
    workers: int = 4
    tickers: int = 2
    most_open: int = 300
    kill_every_s: Range = (0.1, 0.5)
    stop_every_s: Range = (5.0, 20.0)
    down_s: Range = (0.0, 5.0)
    terminate_every_s: Range = (0.5, 3.0)
    purge_every_s: Range = (5.0, 20.0)
    hurry_every_s: Range = (0.5, 0.5)
    hurry_s: float = 30.0
    cut_rate: float = 0.02
    duplicate_rate: float = 0.05
    send_trouble: float = 0.02
    skew_s: float = 600.0


@dataclass(slots=True)
class Report:
    plan: Plan
    figures: dict[str, int] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    server_errors: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    chaos_s: float = 0.0
    peace_s: float = 0.0

    def __str__(self) -> str:
        lines = [str(self.plan), f"{self.chaos_s:8.1f}  seconds of chaos", f"{self.peace_s:8.1f}  seconds of peace"]
        lines += [f"{number:8d}  {name}" for name, number in self.figures.items()]
        lines += [f"{number:8d}  {name}" for name, number in sorted(self.counts.items())]
        lines += [f"{number:8d}  server: {name}" for name, number in self.server_errors.most_common()]
        lines += [f"{len(self.violations):8d}  violations", *(f"          {each}" for each in self.violations)]
        return "\n".join(lines)


class Chaos:
    def __init__(self, plan: Plan, server: Postgres, stage: Stage, hub: Hub) -> None:
        self.plan, self.server, self.stage, self.hub = plan, server, stage, hub
        self.rng = Random(plan.seed)
        self.counts: Counter[str] = Counter()
        self.peace = False
        self.ordered = 0
        self._wanted = plan.runs
        self._ended = 0
        self._port = 0
        self._handed_out = 0
        self._crew: dict[int, str] = {}
        # Kinds whose outside needs no process of its own take part.
        self._others = [subject for subject in subjects().values() if subject.order is not None]

    def run(self) -> Report:
        self._port = self._open_proxy()
        self._replace_the_dead()
        report, began = Report(self.plan), time.monotonic()
        self._make_trouble(began)
        report.chaos_s = time.monotonic() - began
        self._make_peace()
        report.peace_s = time.monotonic() - began - report.chaos_s
        self._fill_in(report)
        return report

    # Trouble.

    def _make_trouble(self, began: float) -> None:
        plan = self.plan
        troubles = [
            _Repeated(self.rng, plan.kill_every_s, self._kill_somebody),
            _Repeated(self.rng, plan.stop_every_s, self._stop_the_server),
            _Repeated(self.rng, plan.terminate_every_s, self._terminate_a_backend),
            _Repeated(self.rng, plan.purge_every_s, self._purge),
            _Repeated(self.rng, plan.hurry_every_s, self._hurry),
        ]
        while self._goes_on(time.monotonic() - began):
            self._replace_the_dead()
            self._order_more()
            for trouble in troubles:
                trouble.perhaps()
            time.sleep(0.02)
        self._start_the_server()

    def _goes_on(self, for_s: float) -> bool:
        """Until most is done: the last few runs would only wait for the tick's patience. On a busy machine it lasts until
        everything that can go wrong has, and for that there is more to do."""
        if not all(kinds_of_trouble(self.counts + self.hub.counts).values()):
            self._wanted = max(self._wanted, min(2 * self.plan.runs, self._ended + 10))
            return for_s < self.plan.seconds_limit + LONGEST_WAIT_FOR_TROUBLE_S
        most_is_done = self.ordered >= self._wanted and self._ended >= 0.9 * self._wanted
        return for_s < self.plan.seconds_least or (for_s < self.plan.seconds_limit and not most_is_done)

    def _kill_somebody(self) -> None:
        pid = self.rng.choice(list(self._crew))
        if self.stage.zygote.kill(pid):
            self.counts[f"killed: {self._crew[pid]}"] += 1
        del self._crew[pid]

    def _stop_the_server(self) -> None:
        self.counts["postgres stopped"] += 1
        self.server.stop("immediate")
        back_at = time.monotonic() + self.rng.uniform(*self.plan.down_s)
        while time.monotonic() < back_at:
            self._replace_the_dead()
            time.sleep(0.05)
        self._start_the_server()

    def _start_the_server(self) -> None:
        if not self.server.running:
            self.server.restart()

    def _terminate_a_backend(self) -> None:
        with self._database() as connection:
            self.counts["backends terminated"] += len(connection.execute(ONE_BACKEND).all())

    def _purge(self) -> None:
        self.counts["purges"] += 1
        for queue in BATONS:
            self.hub.queue.purge(queue)

    def _hurry(self) -> None:
        with self._database() as connection:
            pass_time_for_the_idle(connection, self.plan.hurry_s)
            self._ended = int(connection.execute(ENDED_RUNS).scalar_one())

    @contextmanager
    def _database(self) -> Iterator[sa.Connection]:
        """Trouble of our own making does not stop us."""
        with suppress(sa.exc.DBAPIError), self.stage.connect() as connection:
            yield connection

    # The crew.

    def _replace_the_dead(self) -> None:
        for pid in self.stage.zygote.ended():
            role = self._crew.pop(pid, None)
            if role is not None:
                self.counts[f"ended by themselves: {role}"] += 1
        roles = Counter(self._crew.values())
        for role, wanted in (("serve", self.plan.workers), ("tick", self.plan.tickers)):
            for _ in range(wanted - roles[role]):
                self._crew[self.stage.zygote.fork(self._duty(role))] = role

    def _duty(self, role: Any) -> Duty:
        database = sa.make_url(as_user(self.stage.url, "baton_worker")).set(port=self._port)
        return Duty(
            role=role,
            hub=self.hub.address,
            database_url=database.render_as_string(hide_password=False),
            outside_url=self.stage.url,
            seed=self.rng.getrandbits(32),
            skew_s=self.rng.uniform(-self.plan.skew_s, self.plan.skew_s),
            send_trouble=0.0 if self.peace else self.plan.send_trouble,
            outside={subject.name: None for subject in self._others},
        )

    def _open_proxy(self) -> int:
        """Answers its port. It stays until the end; in peace nobody uses it."""
        duty = Duty(
            role="proxy",
            hub=self.hub.address,
            seed=self.rng.getrandbits(32),
            cut_rate=self.plan.cut_rate,
            server_port=self.server.port,
        )
        self.stage.zygote.fork(duty)
        return self.hub.proxy_port()

    # Work.

    def _order_more(self) -> None:
        open_at_most = self._ended + self.plan.most_open
        while self.ordered < min(self._wanted, open_at_most):
            self._order(draw_order(self.rng, self._others))
            self.ordered += 1

    def _order(self, order: dict[str, Any]) -> None:
        self.hub.queue.send(ORDERS, [Outgoing(body=json.dumps(order), group="")])

    # Peace.

    def _make_peace(self) -> None:
        """No more trouble: what is left is worked off, and what waits for the tick's patience does not wait for ours."""
        self.peace = True
        self.hub.duplicate_rate = 0.0
        self._port = self.server.port
        for pid in list(self._crew):
            self.stage.zygote.kill(pid)
            del self._crew[pid]
        began, patience, ended = time.monotonic(), 60 + self.plan.runs / 20, -1
        while time.monotonic() - began < patience and self._work_is_left():
            if self._ended > ended:  # while runs end, a slow machine gets its time
                began, ended = time.monotonic(), self._ended
            self._replace_the_dead()
            self._order_more()
            self._let_time_pass()
            time.sleep(0.1)
        self._sweep()

    def _work_is_left(self) -> bool:
        with self._database() as connection:
            self._ended = int(connection.execute(ENDED_RUNS).scalar_one())
            if self.ordered < self._wanted or self.hub.waiting(ORDERS):
                return True
            return bool(connection.execute(OPEN_WORK).scalar_one())
        return True

    def _let_time_pass(self) -> None:
        with self._database() as connection:
            for run_id, tenant_id in connection.execute(PAUSED_RUNS):
                self._order({"op": "resume", "tenant": TENANTS.index(tenant_id), "target": str(run_id)})
            before, self._handed_out = self._handed_out, self.hub.handed_out
            if before == self._handed_out:
                pass_time_for_the_idle(connection, 120)
                self.hub.skip(120)

    def _sweep(self) -> None:
        with self._database() as connection:
            let_calls_end(connection)
        self._order({"op": "sweep", "tenant": 0, "target": str(UUID(int=0))})
        until = time.monotonic() + 20
        while self.hub.waiting(ORDERS) and time.monotonic() < until:
            self._replace_the_dead()
            time.sleep(0.05)

    # The verdict.

    def _fill_in(self, report: Report) -> None:
        with self.stage.connect() as connection:
            report.figures = {name: int(number) for name, number in connection.execute(FIGURES)}
            report.violations = violations(
                connection, {rule: query for subject in self._others for rule, query in subject.rules.items()}
            )
        if report.figures["runs"] < self._wanted:
            report.violations.append(f"only {report.figures['runs']} of {self._wanted} runs were accepted")
        report.counts = self.counts + self.hub.counts
        report.server_errors = _errors_of(self.server)


def kinds_of_trouble(counts: Counter[str]) -> dict[str, int]:
    return {
        "killed": counts["killed: serve"] + counts["killed: tick"],
        "stopped": counts["postgres stopped"],
        "cut": counts["cut answers"],
        "doubled": counts["duplicates"],
        "purged": counts["purges"],
    }


class _Repeated:
    """Something that happens again and again, at intervals of the seed."""

    def __init__(self, rng: Random, every_s: Range, act: Callable[[], None]) -> None:
        self._rng, self._every_s, self._act = rng, every_s, act
        self._wind_up()

    def _wind_up(self) -> None:
        self._next_at = time.monotonic() + self._rng.uniform(*self._every_s)

    def perhaps(self) -> None:
        if time.monotonic() >= self._next_at:
            self._act()
            self._wind_up()


def draw_order(rng: Random, others: Sequence[Subject]) -> dict[str, Any]:
    """A run of some shape, and what an operator will ask of it."""
    if others and rng.random() < 0.2:
        subject = rng.choice(others)
        assert subject.order is not None
        asked = {"kind": subject.name, "params": subject.order(rng)}
        return {
            "op": "start",
            "tenant": rng.randrange(3),
            **asked,
            "then": _draw_actions(rng, ("cancel", "pause", "wake")),
        }
    lanes = rng.choice((1, 1, 2, 2, 3))
    names = [f"l{n}" for n in range(lanes)]
    params: dict[str, Any] = {"lanes": lanes, "target": rng.choice((1, 2, 2, 3))}
    params["delays"] = rng.choice(((0,), (0,), (0,), (1,), (0, 2), (1000,)))
    shape = rng.choice(
        ("plain", "plain", "asset", "leak", "split", "final", "gate", "trouble", "deadline", "max_steps")
    )
    match shape:
        case "asset" | "leak":
            params |= {"assets": [rng.choice(names)], "leaks": shape == "leak"}
        case "split":
            params["splits"] = [rng.choice(names)]
        case "final":
            params["final"] = True
        case "gate":
            params |= {"gate": "upstream", "trouble": {rng.choice(names): "throttled"} if rng.random() < 0.3 else {}}
        case "trouble":
            params["trouble"] = {rng.choice(names): rng.choice(("transient", "surprise"))}
        case "deadline":
            params["time_limit_s"] = rng.choice((2, 5, 100))
        case "max_steps":
            params["max_steps"] = 1
    if rng.random() < 0.005:
        params["killers"] = [rng.choice(names)]
    # A run that leaves assets is not cut short while a step is under way: test_slow_processes.py says what happens then.
    actions = ("cancel", "pause", "retry", "wake") if "assets" in params else ACTIONS
    return {"op": "start", "tenant": rng.randrange(3), "params": params, "then": _draw_actions(rng, actions)}


def _draw_actions(rng: Random, actions: Sequence[str]) -> list[tuple[str, int]]:
    if rng.random() >= 0.25:
        return []
    later = rng.choice((0, 0, 1, 2, 5))
    match rng.choice(actions):
        case "pause":
            return [("pause", later), ("resume", later + rng.choice((1, 2)))]
        case "retry":
            return [("cancel", later), ("retry", later + 2)]
        case action:
            return [(action, later)]


def _errors_of(server: Postgres) -> Counter[str]:
    """What the server itself complained about, each with the beginning of its statement."""
    log = (server.directory / "server.log").read_text(errors="replace")
    found = re.findall(
        r"(?:ERROR|PANIC): +(.*)\n(?:.*(?:DETAIL|HINT|CONTEXT):.*\n(?:\t.*\n)*)*(?:.*STATEMENT:\s*(.*))?", log
    )
    return Counter(f"{NUMBERS.sub('#', error)} <- {statement[:80]}" for error, statement in found)


def make_chaos(plan: Plan) -> Report:
    """On a server of its own, because it will be stopped."""
    with scratch_server() as server:
        migrate(server.url())
        give_passwords(server.url())
        with open_stage(server.url()) as stage, Hub(Random(plan.seed), plan.duplicate_rate) as hub:
            return Chaos(plan, server, stage, hub).run()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seconds-limit", type=float, default=1200.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--workers", type=int, default=4)
    args = parser.parse_args()
    seed = secrets.randbits(32) if args.seed is None else args.seed
    plan = Plan(runs=args.runs, seed=seed, seconds_limit=args.seconds_limit, workers=args.workers)
    report = make_chaos(plan)
    print(report)
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
