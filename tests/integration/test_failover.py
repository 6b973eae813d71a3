"""Guards that a failover costs no call: a kept connection to a server that is gone, or only reads now, is replaced at once."""

from __future__ import annotations

import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from uuid import UUID

import pytest
import sqlalchemy as sa
from pg8000.exceptions import DatabaseError

from infra.local.postgres import Postgres
from shared.kernel import db, direct
from shared.kernel import run as runs
from shared.kernel.decide import change_for
from shared.kernel.model import Continue, Intent, NoTurn, Problem, StepOutcome
from shared.kernel.step import _Step
from shared.kernel.store import PgStore
from shared.kernel.tick import tick
from tests.support.databases import ServerAdmin, as_user, scratch_directory
from tests.support.house import ALICE, House
from tests.support.tally import SCHEMA

pytestmark = pytest.mark.full


@dataclass(slots=True)
class Name:
    """The one name of a cluster: new connections go to the server that it means now, old ones stay where they are."""

    server_port: int
    port: int = 0
    _ends: list[socket.socket] = field(default_factory=list)

    def serve(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", self.server_port))
                self._ends += [client, server]
                threading.Thread(target=self._pump, args=(client, server), daemon=True).start()

    @staticmethod
    def _pump(client: socket.socket, server: socket.socket) -> None:
        with client, server, suppress(OSError):
            while True:
                for end in select.select([client, server], [], [])[0]:
                    data = end.recv(65536)
                    if not data:
                        return
                    (server if end is client else client).sendall(data)


@contextmanager
def name_of(server_port: int) -> Iterator[Name]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        name = Name(server_port, listener.getsockname()[1])
        threading.Thread(target=name.serve, args=(listener,), daemon=True).start()
        try:
            yield name
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)


class Cluster:
    """Two servers with the same data, of which the first writes until it fails over to the second."""

    def __init__(self, house: House, name: Name, first: Postgres, second: Postgres, database: str) -> None:
        self.house, self.name, self.first, self.second, self.database = house, name, first, second, database
        where = sa.make_url(as_user(first.url(database), "baton_worker")).set(port=name.port)
        self.engine = db.connect_engine(where.render_as_string(hide_password=False))
        self.store = PgStore(self.engine)
        self.ports = house.ports_of(self.store)

    def backend(self) -> tuple[int, str]:
        """Which session is kept, and whether it only reads."""
        with direct.alone(self.engine) as line:
            row = line.one(
                sa.text("select pg_backend_pid() as pid, current_setting('transaction_read_only') as only"), {}
            )
        assert row is not None
        return row["pid"], row["only"]

    def only_reads(self) -> None:
        """The server stays, and so does the connection: it is a reader now."""
        _on(self.first, "alter system set default_transaction_read_only = on", "select pg_reload_conf()")
        while self.backend()[1] != "on":
            time.sleep(0.01)
        self.name.server_port = self.second.port

    def ends_the_session(self) -> None:
        pid, _ = self.backend()
        self.name.server_port = self.second.port
        _on(self.first, f"select pg_terminate_backend({pid}, 5000)")

    def close(self) -> None:
        self.engine.dispose()
        _on(self.first, "alter system reset default_transaction_read_only", "select pg_reload_conf()")
        while _on(self.first, "show default_transaction_read_only") != "off":
            time.sleep(0.01)


def _on(server: Postgres, *statements: str, database: str = "postgres") -> object:
    engine = db.connect_engine(server.url(database), pool="none")
    with db.autocommit(engine).connect() as connection:
        for statement in statements:
            result = connection.exec_driver_sql(statement)
        return result.scalar() if result.returns_rows else None


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Postgres, Postgres, str, list[UUID]]]:
    """A server, and a second one started on a copy of its files: what a replica that was promoted looks like."""
    with scratch_directory() as path, Postgres.start(path / "first") as first:
        admin = ServerAdmin(first.url())
        database = admin.create_from_template(admin.create_template())
        _on(first, SCHEMA, database=database)
        house = House(first.url(database))
        started = [house.start_running(target=9) for _ in range(20)]
        house.close()
        admin._engine.dispose()
        first.stop()
        subprocess.run(["cp", "-a", str(first.directory), str(path / "second")], check=True)
        first.restart()
        with Postgres.start(path / "second") as second:
            yield first, second, database, started


@pytest.fixture(params=["only_reads", "ends_the_session"])
def failed_over(
    request: pytest.FixtureRequest, servers: tuple[Postgres, Postgres, str, list[UUID]]
) -> Iterator[tuple[Cluster, Callable[[], UUID]]]:
    first, second, database, started = servers
    house = House(second.url(database))
    with name_of(first.port) as name:
        cluster = Cluster(house, name, first, second, database)
        cluster.backend()
        getattr(cluster, request.param)()
        yield cluster, started.pop
        cluster.close()
    house.close()


Failover = tuple[Cluster, Callable[[], UUID]]


def test_a_claim_and_a_commit_go_to_the_server_that_writes_now(failed_over: Failover) -> None:
    cluster, next_run = failed_over
    run_id = next_run()

    assert [cluster.house.take_turn(run_id, ports=cluster.ports) for _ in range(3)] == [StepOutcome.MOVED] * 3
    assert cluster.house.tally(run_id) == [0, 1, 2]


def test_a_step_that_was_claimed_before_the_failover_commits_after_it(failed_over: Failover) -> None:
    cluster, next_run = failed_over
    house, run_id = cluster.house, next_run()
    turn = house.claim(run_id)

    _Step(turn, house.kind, cluster.ports)._commit(change_for(Continue(cursor={"n": 1}), turn), 5)

    assert house.baton(run_id).to_json() in house.waiting()
    assert (house.lane(run_id).seq, house.lane(run_id).cursor) == (1, {"n": 1})


@pytest.mark.parametrize(
    "call",
    [
        lambda cluster, turn: cluster.store.pass_gates(turn, ["api"], 70).wait_s is None,
        lambda cluster, turn: cluster.store.intend(turn, "job", "thing", True) == Intent(True, False, None),
        lambda cluster, turn: cluster.store.claim(cluster.house.baton(turn.run_id), turn.token, 70) is not NoTurn.TWIN,
        lambda cluster, turn: cluster.store.beat("tick") is not False,
        lambda cluster, turn: tick(cluster.ports, cluster.house.kinds).finished,
        lambda cluster, turn: not runs.pause_run(cluster.ports, ALICE, turn.run_id),  # type: ignore[func-returns-value]
        lambda cluster, turn: isinstance(
            runs.start_run(cluster.ports, cluster.house.kind, ALICE, {"lanes": 1, "target": 1}), UUID
        ),
    ],
    ids=["gates", "intent", "claim", "beat", "tick", "pause", "start"],
)
def test_every_call_is_tried_again_where_it_can_be_written(
    servers: tuple[Postgres, Postgres, str, list[UUID]], call: Callable[[Cluster, object], bool]
) -> None:
    first, second, database, started = servers
    house = House(second.url(database))
    turn = house.claim(started.pop())
    with name_of(first.port) as name:
        cluster = Cluster(house, name, first, second, database)
        cluster.only_reads()

        assert call(cluster, turn)
        assert cluster.backend()[1] == "off", "the connection that only reads is not kept"
        cluster.close()
    house.close()


def test_twenty_calls_after_a_failover_that_is_not_over_yet_fail_and_the_next_one_works(
    servers: tuple[Postgres, Postgres, str, list[UUID]],
) -> None:
    """The name still means the old server: each call asks anew where to go."""
    first, second, database, started = servers
    house, run_id = House(second.url(database)), started.pop()
    with name_of(first.port) as name:
        cluster = Cluster(house, name, first, second, database)
        cluster.only_reads()
        name.server_port = first.port
        pids = set()
        for _ in range(20):
            with pytest.raises(DatabaseError) as caught:
                cluster.store.beat("tick")
            assert db.is_disconnect(caught.value)
            pids.add(cluster.backend()[0])
        name.server_port = second.port

        assert len(pids) == 20
        assert house.take_turn(run_id, ports=cluster.ports) is StepOutcome.MOVED
        cluster.close()
    house.close()


def reads_and_writes(cluster: Cluster, run_id: UUID) -> None:
    with cluster.store.begin(ALICE) as tx:
        assert tx.has_open_lanes(run_id), "what it read there may not be true elsewhere"
        tx.fail_open_lanes(run_id, Problem("broken", "it broke"))


def test_a_transaction_that_has_begun_is_not_carried_to_another_server(
    servers: tuple[Postgres, Postgres, str, list[UUID]],
) -> None:
    first, second, database, started = servers
    house, run_id = House(second.url(database)), started.pop()
    with name_of(first.port) as name:
        cluster = Cluster(house, name, first, second, database)
        cluster.only_reads()
        with pytest.raises(DatabaseError) as caught:
            reads_and_writes(cluster, run_id)
        assert db.only_reads(caught.value)
        assert house.take_turn(run_id, ports=cluster.ports) is StepOutcome.MOVED
        cluster.close()
    house.close()
