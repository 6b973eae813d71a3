"""Remote queries as a subject: a system that runs queries in the simulation, and a stand-in for processes that are killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import sqlalchemy as sa

from infra.local.standins.mce import CLIENT_ID, CLIENT_SECRET, MceStandIn
from shared.kernel.catalogue import Kind
from shared.kernel.clock import Chance
from shared.kernel.decide import Limits
from shared.kernel.errors import Permanent, Throttled, Transient
from shared.kernel.tokens import Token, TokenRefused, Tokens
from shared.query_run.adapters.mce import Mce
from shared.query_run.model import (
    KIND,
    TIMES,
    ActivityStatus,
    Column,
    PollConfig,
    QueryParams,
    Rowset,
    Validation,
    customer_key,
)
from shared.query_run.ports import Ports
from shared.query_run.steps import ASSET_TYPES, QueryPoint, query_run
from shared.query_run.store import QueryStore
from tests.simulation.invariants import require
from tests.support.files import MemoryFiles
from tests.support.subject import OpenOutside, Simulated, Subject

if TYPE_CHECKING:
    from tests.chaos.matrix import Play
    from tests.simulation.subjects import SubjectWorld

T = TypeVar("T")
TROUBLES = ("transient", "transient", "transient", "throttled", "surprise", "token", "permanent")
HIDDEN_S = 10.0  # after its start a query is not seen running
LATE_S = 5.0  # after its end some of its rows are not seen yet
CONFIG = PollConfig(  # as in production, but for fewer polls and shorter waits: a schedule must not take for ever
    initial_delay_ms=5_000, max_delay_ms=60_000, max_duration_ms=120_000, results_kept_s=120, late_watch_interval_s=60,
    late_watch_s=600, drain_s=900, max_in_flight=1, look_around_s=60,
)  # fmt: skip


@dataclass(slots=True)
class Activity:
    definition: str
    key: str
    began: float
    ends: float
    rows: int
    error: bool


@dataclass(slots=True)
class System:
    """The truth: what is there, what ran, what was done to it that nobody may do."""

    targets: dict[str, str] = field(default_factory=dict)  # key -> id
    definitions: dict[str, tuple[str, str, str]] = field(default_factory=dict)  # id -> key, target's key, sql
    activities: list[Activity] = field(default_factory=list)
    owners: dict[str, UUID] = field(default_factory=dict)  # each tenant has an account of its own
    zombies: set[str] = field(default_factory=set)  # keys that a process which outlived its lease had its hands on
    ids: int = 0

    def new_id(self) -> str:
        self.ids += 1
        return str(UUID(int=self.ids))

    def runs(self, definition: str, now: float) -> bool:
        return any(each.definition == definition and each.began <= now < each.ends for each in self.activities)

    def visible(self, target: str, now: float) -> int:
        for each in reversed(self.activities):
            if self.definitions.get(each.definition, ("", "", ""))[1] == target or each.key == target:
                if now < each.ends:
                    return int(each.rows * (now - each.began) / (each.ends - each.began))
                return each.rows // 2 if each.error or now < each.ends + LATE_S else each.rows
        return 0


class Client:
    """The remote system as one step sees it: every question is a port call, and may meet trouble."""

    def __init__(self, world: SubjectWorld, system: System, tenant: UUID) -> None:
        self.world, self.system, self.tenant = world, system, tenant

    def authenticate(self) -> Token:
        return self._ask("authenticate", lambda: Token(f"token {self.system.new_id()}", 1_079))

    def validate(self, token: Token, sql: str) -> Validation:
        return self._ask("validate", lambda: Validation(valid=True))

    def create_target(self, token: Token, key: str, columns: Sequence[Column], kept_days: int) -> str:
        def effect() -> str:
            self._touch(key)
            require(key not in self.system.targets or key in self.system.zombies, "a target is made once", key)
            return self.system.targets.setdefault(key, self.system.new_id())

        return self._ask("create_target", effect)

    def find_target(self, token: Token, key: str) -> str | None:
        return self._ask("find_target", lambda: self.system.targets.get(key))

    def create_query(self, token: Token, key: str, sql: str, target_key: str, target_id: str) -> str:
        def effect() -> str:
            self._touch(key)
            found = self._by_key(key)
            require(found is None or key in self.system.zombies, "a query is made once", key)
            made = found or self.system.new_id()
            self.system.definitions[made] = (key, target_key, sql)
            return made

        return self._ask("create_query", effect)

    def find_query(self, token: Token, key: str) -> str | None:
        return self._ask("find_query", lambda: self._by_key(key))

    def start(self, token: Token, object_id: str) -> str:
        def effect() -> str:
            system, now = self.system, self.world.now
            if object_id not in system.definitions:
                raise Permanent("there is no such query")
            key, _target, sql = system.definitions[object_id]
            self._touch(key)
            seen = [each for each in system.activities if each.key == key and now - each.began >= HIDDEN_S]
            traced = [each for each in seen if now < each.ends or each.rows]
            require(not traced or key in system.zombies, "no second start while a trace of the first is visible", key)
            plan = dict(pair.split("=") for pair in sql.split("/*")[1].split("*/")[0].split())
            seconds = float(plan["seconds"])
            system.activities.append(
                Activity(object_id, key, now, now + seconds, int(plan["rows"]), error=plan["error"] == "1")
            )
            return str(len(system.activities))

        return self._ask("start", effect)

    def status(self, token: Token, task_id: str) -> ActivityStatus | None:
        def effect() -> ActivityStatus | None:
            activity = self.system.activities[int(task_id) - 1]
            if self.world.now < activity.ends:
                return ActivityStatus(status="queued", completed=True)
            if activity.rows % 2:  # half of them stay Queued for ever: a message is all that tells of an error
                return ActivityStatus(status="queued", completed=True, error_msg="overflow" if activity.error else "")
            return ActivityStatus(status="error" if activity.error else "complete", completed=True)

        return self._ask("status", effect)

    def is_running(self, token: Token, object_id: str) -> bool:
        def effect() -> bool:
            now = self.world.now
            if object_id not in self.system.definitions:
                raise Transient("there is no such query")
            return any(
                each.definition == object_id and each.began + min(HIDDEN_S, each.ends - each.began) <= now < each.ends
                for each in self.system.activities
            )

        return self._ask("is_running", effect)

    def rows(self, token: Token, key: str, page: int, size: int) -> Rowset:
        def effect() -> Rowset:
            if key not in self.system.targets:
                raise Transient("there is no such target")
            count = self.system.visible(key, self.world.now)
            return Rowset(count=count, rows=[{"id": "1"}] * min(size, count), mark=str(count))

        return self._ask("rows", effect)

    def delete_query(self, token: Token, object_id: str) -> None:
        def effect() -> None:
            key = self.system.definitions.get(object_id, ("", "", ""))[0]
            in_use = self.system.runs(object_id, self.world.now) and key not in self.system.zombies
            require(not in_use, "no query is removed while it runs", key)
            self.system.definitions.pop(object_id, None)

        self._ask("delete_query", effect)

    def delete_target(self, token: Token, key: str) -> None:
        def effect() -> None:
            now = self.world.now
            using = [name for name, (own, target, _) in self.system.definitions.items() if target == key and own not in self.system.zombies]  # fmt: skip
            require(not any(self.system.runs(name, now) for name in using), "no data is removed while it is written")
            self.system.targets.pop(key, None)

        self._ask("delete_target", effect)

    def keys(self, token: Token, type_: str, prefix: str, most: int) -> list[str]:
        def effect() -> list[str]:
            system = self.system
            there = system.targets if type_ == "DataExtension" else [key for key, _, _ in system.definitions.values()]
            return [key for key in there if key.startswith(prefix) and system.owners[key] == self.tenant]

        return self._ask("keys", effect)

    def _by_key(self, key: str) -> str | None:
        return next((name for name, (own, _, _) in self.system.definitions.items() if own == key), None)

    def _touch(self, key: str) -> None:
        self.system.owners[key] = self.tenant
        if self.world._alive().stalled:
            self.system.zombies.add(key)  # as no function of Lambda can: it is killed before its lease ends

    def _ask(self, what: str, effect: Callable[[], T]) -> T:
        world = self.world
        answer = world.call(f"upstream.{what}", effect, error=lambda: Transient("no answer"))
        if world.rng.random() < world.scenario.upstream_trouble / 3:
            world.last_fault_at = world.now
            self._trouble(what, world.rng.choice(TROUBLES))
        return answer

    def _trouble(self, what: str, trouble: str) -> None:
        self.world.seen[f"remote {trouble}"] += 1
        match trouble:
            case "throttled":
                raise Throttled("mce", self.world.rng.choice((1.0, 30.0)))
            case "surprise":
                raise KeyError("surprise")
            case "token" if what != "authenticate":
                raise TokenRefused("not any more")
            case "permanent" if self.world.rng.random() < 0.1:
                raise Permanent("no such thing")
        raise Transient("no answer")


def simulate(world: SubjectWorld) -> Simulated:
    system = System()
    ports = Ports(
        remote=lambda tenant, params, left: Client(world, system, tenant),
        tokens=world.faulty(Tokens(world.worker)),
        store=world.faulty(QueryStore(world.worker)),
        files=MemoryFiles(),
        config=CONFIG,
        chance=Chance(fraction=world.rng.random),
    )

    def params(scenario: Any) -> dict[str, Any]:
        rng = world.rng
        plan = f"/* seconds={rng.choice((0, 3, 30, 150))} rows={rng.choice((0, 3, 4, 20))} error={int(rng.random() < 0.1)} */"
        return {"sql_text": f"{plan} select id from people", "mid": "1"}

    kind = query_run(ports, Limits(max_attempts=12))
    return Simulated(kind=kind, params=params, at_the_end=lambda: judge(world, system))


def judge(world: SubjectWorld, system: System) -> None:
    for row in world.rows(
        """select r.id, r.status, r.outcome, r.epoch, r.params ->> 'sql_text' as sql, q.row_count, l.cursor
           from run r join query_run q on q.run_id = r.id join lane l on l.run_id = r.id and l.key = 'query'"""
    ):
        world.seen[f"ended {row['outcome']}"] += 1
        if row["cursor"].get("adopted") and row["status"] == "succeeded":
            world.seen["adopted late"] += 1
        if row["status"] != "succeeded" or row["cursor"]["query_key"] in system.zombies:
            continue
        failed = "error=1" in row["sql"]
        if failed and row["cursor"].get("task_id") is None:  # nobody can ask how a task ended whose id was lost
            continue
        require(not failed, "a query that failed is never ready")
        truth = int(row["sql"].split("rows=")[1].split()[0])
        require(row["row_count"] == truth, "what is ready is complete", row["row_count"], truth)
    require(not world.rows("select * from query_slot"), "whoever has ended has left its place")
    listed = {customer_key(call.run_id, call.epoch, call.key) for call in world.store.left_outside()}  # type: ignore[attr-defined]
    left = {*system.targets, *(key for key, _, _ in system.definitions.values())}
    require(not left - listed - system.zombies, "nothing is left outside unlisted", left)
    strays = {row["key"] for row in world.rows("select key from query_stray")}
    require(not strays - system.zombies, "nothing of ours is taken for somebody else's", strays)
    ready = Counter(
        (row["run_id"], row["epoch"])
        for row in world.rows(
            "select payload ->> 'run_id' as run_id, payload ->> 'epoch' as epoch from signal where name = 'query_run.ready'"
        )
    )
    require(all(times == 1 for times in ready.values()), "ready is said once per epoch", ready)


# Processes that are killed ask a stand-in in a process that nobody kills. It answers at once: its clock is the real one.

SQL = "/* seconds=0; rows=3 */ select id, name from people"
IN_THE_MATRIX = PollConfig(results_kept_s=120, late_watch_interval_s=60, late_watch_s=600, drain_s=900)
READY = sa.text("select run_id, row_count from query_run q join run r on r.id = q.run_id where r.status = 'succeeded'")


@contextmanager
def outside() -> Iterator[OpenOutside]:
    """Every call that changes something is done once and not answered; the first token expires, and it throttles once."""
    with MceStandIn() as standin:
        for call in ("perform", *(f"{what} {of}" for what in ("create", "delete") for of in ASSET_TYPES.values())):
            standin.misbehave("reset", on=[call], budget=1)
        for question in ("validate", "isrunning", "rowset"):
            standin.misbehave("server_error", on=[question], budget=1)
        standin.misbehave("token_expired", on=["status"], budget=1)
        standin.misbehave("rate_limited", on=["create QueryDefinition"], budget=1)
        yield OpenOutside(standin.start(), lambda connection: differences(standin, connection))


def differences(standin: MceStandIn, connection: sa.Connection) -> list[str]:
    found = [f"the stand-in was surprised: {standin.surprises[:3]}"] if standin.surprises else []
    found += standin.wrong
    found += [f"{key} was started {n} times" for key, n in Counter(each.definition.key for each in standin.activities).items() if n > 1]  # fmt: skip
    found += [f"{key} is left" for key in standin.left()]
    found += [
        f"run {run_id} is ready with {count} rows" for run_id, count in connection.execute(READY).all() if count != 3
    ]
    return found


def build(engine: sa.Engine, address: str, outside_url: str) -> Kind:
    def remote(tenant: UUID, params: QueryParams, time_left_s: Callable[[], float]) -> Mce:
        return Mce(address, CLIENT_ID, CLIENT_SECRET, params.mid, time_left_s=time_left_s, gate=params.account)

    ports = Ports(
        remote=remote, tokens=Tokens(engine), store=QueryStore(engine), files=MemoryFiles(), config=IN_THE_MATRIX
    )
    return query_run(replace(ports, chance=Chance(fraction=lambda: 0.5)))


def a_query(play: Play) -> None:
    """Its start is not answered, its token expires; paused and resumed on its way."""
    run = play.start("succeeded", kind=KIND, sql_text=SQL, mid="1")
    for wait_s in (40, 40, 40, 40, 25, 20, 5, 5):
        play.work()
        play.pass_time(wait_s)
    play.act("pause", run)
    play.act("resume", run)
    play.work()


def a_canceled_query(play: Play) -> None:
    run = play.start("canceled", kind=KIND, sql_text=SQL, mid="1")
    play.act("cancel", run)
    play.work()


SUBJECT = Subject(
    name=KIND,
    simulate=simulate,
    build=build,
    outside=outside,
    tables=("query_run", "query_slot", "query_look", "query_stray", "account_token"),
    clocks=(
        "update account_token set refresh_until = refresh_until - {by}, token_until = token_until - {by}",
        "update query_run set results_expire_at = results_expire_at - {by}",
        *(
            f"update lane set cursor = cursor || jsonb_build_object('{name}', (cursor ->> '{name}')::timestamptz - {{by}}) "
            f"where kind = '{KIND}' and cursor ->> '{name}' is not null"
            for name in (*TIMES, "since")
        ),
    ),
    scenarios={each.__name__: each for each in (a_query, a_canceled_query)},
    points=frozenset(QueryPoint),
)
