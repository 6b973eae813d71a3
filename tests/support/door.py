"""The front door as tests enter it: the real handler on a real Postgres, in this process, and people of every role."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode
from uuid import UUID

import sqlalchemy as sa

from functions.catalogue import KINDS, all_commands, one_kind
from functions.routes import ROUTERS
from infra.migrations.head import newest_revision
from shared.job_queue.build import kind_with as job
from shared.kernel import db
from shared.kernel import run as runs
from shared.kernel.api.desk import Front
from shared.kernel.api.frame import API, MACHINES, api_handler
from shared.kernel.auth import Role, new_token, token_hash
from shared.kernel.baton import Baton
from shared.kernel.catalogue import Catalogue
from shared.kernel.clock import new_id
from shared.kernel.model import By, NoTurn
from shared.kernel.ports import Ports
from shared.kernel.queue_memory import QueueSettings
from shared.kernel.settings import Relay
from shared.kernel.step import take_turn
from shared.kernel.store import PgStore
from shared.page_ingest.build import build_ports
from shared.page_ingest.reader.build import source_ports
from shared.page_ingest.steps import page_ingest
from shared.query_run.build import build_ports as query_ports
from shared.query_run.steps import query_run
from shared.row_job.build import build_ports as row_ports
from shared.row_job.steps import row_job
from shared.search.build import build_ports as search_ports
from shared.search.steps import search
from tests.support.databases import as_user
from tests.support.house import new_queue
from tests.support.lambda_calls import FakeContext
from tests.support.subject import brought, subjects
from tests.support.tally import QuietWorld, tally_kind

QUEUES = {
    "baton-tally.fifo": QueueSettings(fifo=True, visibility_s=360),
    "baton-page-ingest.fifo": QueueSettings(fifo=True, visibility_s=360),
    "baton-query-run.fifo": QueueSettings(fifo=True, visibility_s=360),
    "baton-delay": QueueSettings(fifo=False, visibility_s=60),
}


@dataclass(frozen=True, slots=True)
class Who:
    """Somebody at the door: a person by what the authorizer read, or a machine by its token."""

    subject: str | None = None
    token: str | None = None
    tenant_id: UUID | None = None

    @property
    def actor(self) -> str:
        return f"user:{self.subject}"

    def choosing(self, tenant_id: UUID) -> Who:
        return Who(self.subject, self.token, tenant_id)


ANONYMOUS = Who()


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: str
    headers: Mapping[str, str]

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json()["code"])


@dataclass(frozen=True, slots=True)
class TenantHouse:
    """A tenant with one person of each role, and two members."""

    id: UUID
    viewer: Who
    member: Who
    other: Who
    admin: Who
    worker: Who
    machines: Mapping[Role, Who] = field(default_factory=dict)


class Door:
    def __init__(self, superuser_url: str) -> None:
        self.url = superuser_url
        self._owner_engine = db.connect_engine(superuser_url, application_name="owner")
        self.owner = db.autocommit(self._owner_engine)
        self.engine = db.connect_engine(as_user(superuser_url, "baton_api"), application_name="api")
        self._worker = db.connect_engine(as_user(superuser_url, "baton_worker"), application_name="worker")
        self.tally = tally_kind(QuietWorld())
        here = [subject for subject in subjects().values() if subject.name not in KINDS]
        for subject in here:
            self.sql(subject.schema)
        made = [subject.build(self._worker, None, superuser_url) for subject in here]
        tried = [kind for kind in made if kind.name not in KINDS]  # a source is page ingestion by a file
        queries = query_run(replace(query_ports(self._worker, {}), needs_connection=False))
        rows = row_job(replace(row_ports(self._worker, {}), needs_connection=False))
        self.kinds = Catalogue(
            self.tally,
            page_ingest(build_ports(self._worker, {}), sources=lambda: source_ports(self._worker)),
            queries,
            job(self.engine, all_commands(), Catalogue()),
            rows,
            search(search_ports(self._worker, {})),
            one_kind("folder_sync", self._worker),
            *tried,
        )
        self.queue = new_queue(QUEUES)
        relay = Relay(step_timeout_s=60, lease_s=70)
        self.ports = Ports(store=PgStore(self.engine), queue=self.queue, relay=relay)
        self.worker_ports = Ports(store=PgStore(self._worker), queue=self.queue, relay=relay)
        self.front = Front(self.engine, self.ports, self.kinds)
        self.handler = api_handler(
            self.front,
            PgStore(self.engine).health,
            newest_revision(),
            (*ROUTERS, *(module.router for module in brought("api"))),
        )
        self.super_admin = Who(f"super-{new_id()}")
        self.sql("insert into super_admin (subject) values (:s)", s=self.super_admin.subject)

    def close(self) -> None:
        for engine in (self._owner_engine, self.engine, self._worker):
            engine.dispose()

    # Rows, as the superuser.

    def sql(self, text: str, **params: Any) -> list[Any]:
        with self.owner.connect() as connection:
            result = connection.execute(sa.text(text), params)
            return list(result.mappings()) if result.returns_rows else []

    def value(self, text: str, **params: Any) -> Any:
        ((value,),) = (tuple(row.values()) for row in self.sql(text, **params))
        return value

    def new_tenant(self, name: str = "Acme") -> TenantHouse:
        tenant = new_id()
        self.sql("insert into tenant (id, name) values (:id, :name)", id=tenant, name=name)
        people = {
            who: Who(f"{who}-{tenant}") for who in ("viewer", "member", "other", "admin", "worker")
        }  # fmt: skip
        machines = {role: Who(token=new_token()) for role in Role}
        with self.owner.connect() as connection:
            connection.execute(
                sa.text("insert into member (tenant_id, subject, role, added_by) values (:t, :s, :r, 'test')"),
                [{"t": tenant, "s": p.subject, "r": "member" if n == "other" else n} for n, p in people.items()],
            )
            connection.execute(
                sa.text("""insert into machine_token (id, tenant_id, name, role, hash, created_by)
                           values (:id, :t, 'machine', :r, :h, 'test')"""),
                [
                    {"id": new_id(), "t": tenant, "r": str(role), "h": token_hash(who.token or "")}
                    for role, who in machines.items()
                ],
            )
        return TenantHouse(tenant, machines=machines, **people)

    def join(self, who: Who, tenant: TenantHouse, role: Role) -> None:
        self.sql(
            "insert into member (tenant_id, subject, role, added_by) values (:t, :s, :r, 'test')",
            t=tenant.id, s=who.subject, r=str(role),
        )  # fmt: skip

    # Requests.

    def call(
        self,
        who: Who,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        raw: Mapping[str, Any] | None = None,
        left_ms: int = 30_000,
        **query: Any,
    ) -> Answer:
        """One request below `/api/v1`, as API Gateway would hand it over; `raw` replaces parts of its event."""
        event = self.event(who, method, API + path, body, headers=headers, query=query)
        return self.ask({**event, **(raw or {})}, left_ms)

    def ask(self, event: Mapping[str, Any], left_ms: int = 30_000) -> Answer:
        answered = self.handler(dict(event), FakeContext(left_ms=left_ms))
        return Answer(answered["statusCode"], answered.get("body") or "", dict(answered.get("headers") or {}))

    def event(
        self,
        who: Who,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        sent: dict[str, str] = {"content-type": "application/json"} if body is not None else {}
        if who.tenant_id is not None:
            sent["x-tenant-id"] = str(who.tenant_id)
        if who.token is not None:
            path = MACHINES + path
            sent["authorization"] = f"Bearer {who.token}"
        claims = {"authorizer": {"jwt": {"claims": {"sub": who.subject}, "scopes": None}}} if who.subject else {}
        asked = urlencode({name: str(value) for name, value in (query or {}).items()})
        event: dict[str, Any] = {
            "version": "2.0", "routeKey": "$default", "rawPath": path, "rawQueryString": asked,
            "headers": sent | {name.lower(): value for name, value in (headers or {}).items()},
            "requestContext": {
                "http": {"method": method, "path": path, "sourceIp": "1.1.1.1", "protocol": "HTTP/1.1", "userAgent": "x"},
                "requestId": "request-1", "stage": "$default", **claims,
            },
            "isBase64Encoded": False,
        }  # fmt: skip
        if asked:
            event["queryStringParameters"] = dict(parse_qsl(asked, keep_blank_values=True))
        if body is not None:
            event["body"] = body if isinstance(body, str) else json.dumps(body)
        return event

    # Work.

    def start(self, tenant: TenantHouse, by: Who | None = None, **params: Any) -> UUID:
        """A run of the tally, of somebody's own."""
        actor = (by or tenant.member).actor
        params = {"lanes": 1, "target": 2, **params}
        return runs.start_run(self.ports, self.tally, tenant.id, params, By(actor))

    def lane(self, run_id: UUID) -> Any:
        """The run's first lane that goes on, or its first."""
        (row,) = self.sql(
            """select *, check_at::text as check_at from lane where run_id = :id
               order by status = 'active' desc, key limit 1""",
            id=run_id,
        )
        return row

    def baton(self, run_id: UUID) -> Baton:
        lane = self.lane(run_id)
        return Baton(
            kind=lane["kind"], lane_id=lane["id"], epoch=lane["epoch"], seq=lane["seq"], resend_no=lane["resend_no"]
        )

    def step(self, run_id: UUID) -> None:
        take_turn(self.baton(run_id), self.tally, self.worker_ports)

    def finish(self, run_id: UUID) -> None:
        """Let its lanes go on, one after the other, for as many steps as any run of a test needs."""
        for _ in range(50):
            if self.value("select finished_at is not null from run where id = :id", id=run_id):
                return
            self.step(run_id)
        raise AssertionError("the run does not end")

    def claims(self, run_id: UUID) -> bool:
        """Whether the lane's own baton would be taken now."""
        return not isinstance(self.worker_ports.store.claim(self.baton(run_id), new_id(), 70), NoTurn)

    def audited(self, tenant: TenantHouse) -> list[tuple[str, str, str]]:
        rows = self.sql("select actor, action, target from audit where tenant_id = :t order by id", t=tenant.id)
        return [(row["actor"], row["action"], row["target"]) for row in rows]


@contextmanager
def open_door(superuser_url: str) -> Iterator[Door]:
    door = Door(superuser_url)
    try:
        yield door
    finally:
        door.close()
