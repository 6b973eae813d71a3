"""Guards that runs of the local cloud are started, changed and seen as they would be in AWS: through the kernel, as a tenant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import sqlalchemy as sa

from functions.catalogue import all_kinds
from infra.local.cloud import Address
from infra.local.deploy import STACK
from shared.kernel import db, run
from shared.kernel.catalogue import Kind
from shared.kernel.errors import NotFound, Refused
from shared.kernel.model import Json
from shared.kernel.ports import Ports
from shared.kernel.queue import Queue
from shared.kernel.queue_sqs import SqsQueue
from shared.kernel.settings import Relay
from shared.kernel.store import PgStore

TENANT = UUID("00000000-0000-7000-8000-00000000ba70")  # the one that the local commands speak for
ENDED = frozenset({"succeeded", "failed", "canceled"})

RUN = sa.text("select id, tenant_id, kind, status, outcome, epoch, error from run where id = :id")
LANES = sa.text("""
select l.key, l.status, l.steps, l.attempts, l.claims, l.last_error, l.lease_until > now() as at_work,
       greatest(0, extract(epoch from l.next_due_at - now()))::double precision as due_in_s,
       least((l.cursor ->> 'offset')::bigint, (l.cursor ->> 'counted')::bigint) as done,
       (l.cursor ->> 'counted')::bigint as total
from lane l where l.run_id = :id order by l.created_at, l.key
""")
ROWS = sa.text("select count(*) as rows from raw_item where run_id = :id")
FIGURES = sa.text("""
select (select count(*) from raw_item where run_id = :id) as rows,
       (select coalesce(sum((o.cursor ->> 'pages')::integer), 0) from lane o where o.run_id = :id and o.key like 'part:%') as pages,
       count(*) as steps,
       count(*) filter (where s.outcome in ('retried', 'throttled')) as retries,
       (select count(*) from repair p join lane o on o.id = p.lane_id where o.run_id = :id) as repairs,
       (select extract(epoch from coalesce(finished_at, now()) - created_at)::double precision from run where id = :id) as seconds
from step s join lane l on l.id = s.lane_id where l.run_id = :id
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A run and its lanes as they are now."""

    run: Mapping[str, Any]
    lanes: list[Mapping[str, Any]]
    rows: int

    @property
    def ended(self) -> bool:
        return self.run["status"] in ENDED


class Runs:
    """Holds two connections: one as the API's role, bound to its tenant, and one that may look at everything."""

    def __init__(self, address: Address, queue: Queue | None = None, relay: Relay | None = None) -> None:
        self._address = address
        self._api = db.connect_engine(address.url_as("baton_api"), application_name="baton-cli")
        self._all = db.connect_engine(address.database_url, application_name="baton-cli")
        self.kinds = all_kinds(self._api)
        self.ports = Ports(
            store=PgStore(self._api),
            queue=queue or SqsQueue(address.client("sqs")),
            relay=relay or Relay.from_env(environment_of(address, "tick")),
        )

    def start(self, kind: str, params: Json, tenant: UUID = TENANT) -> UUID:
        return run.start_run(self.ports, self._kind(kind), tenant, params)

    def retry(self, run_id: UUID) -> None:
        row = self.row(run_id)
        run.retry_run(self.ports, self._kind(row["kind"]), row["tenant_id"], run_id)

    def cancel(self, run_id: UUID) -> None:
        row = self.row(run_id)
        run.cancel_run(self.ports, self._kind(row["kind"]), row["tenant_id"], run_id)

    def row(self, run_id: UUID) -> Mapping[str, Any]:
        rows = self.sql(RUN, id=run_id)
        if not rows:
            raise NotFound
        return rows[0]

    def progress(self, run_id: UUID) -> Progress:
        lanes = self.sql(LANES, id=run_id)
        return Progress(run=self.row(run_id), lanes=lanes, rows=self.sql(ROWS, id=run_id)[0]["rows"])

    def figures(self, run_id: UUID) -> Mapping[str, Any]:
        """What it took: rows, pages, steps, retries, repairs, seconds."""
        return self.sql(FIGURES, id=run_id)[0]

    def sql(self, statement: sa.TextClause | str, **values: Any) -> list[Mapping[str, Any]]:
        """Ask the database as its superuser; for people and tests, never for functions."""
        statement = sa.text(statement) if isinstance(statement, str) else statement
        with db.autocommit(self._all).connect() as connection:
            result = connection.execute(statement, values)
            return [dict(row) for row in result.mappings()] if result.returns_rows else []

    def close(self) -> None:
        self._api.dispose()
        self._all.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _kind(self, name: str) -> Kind:
        if name not in self.kinds:
            raise Refused("unknown_kind", f"unknown kind {name}; there is {', '.join(sorted(self.kinds))}")
        return self.kinds[name]


def environment_of(address: Address, function: str) -> dict[str, str]:
    """The variables that a function was deployed with."""
    return dict(configuration_of(address, function).get("Environment", {}).get("Variables", {}))


def configuration_of(address: Address, function: str) -> dict[str, Any]:
    name = function if function.startswith(f"{STACK}-") else f"{STACK}-{function}"
    return dict(address.client("lambda").get_function_configuration(FunctionName=name))


def functions_of(address: Address) -> list[str]:
    """The names of the functions, without the stack's."""
    pages = address.client("lambda").get_paginator("list_functions").paginate()
    names = [function["FunctionName"] for page in pages for function in page["Functions"]]
    return sorted(name.removeprefix(f"{STACK}-") for name in names if name.startswith(f"{STACK}-"))


def queues_of(address: Address) -> dict[str, str]:
    """The addresses of the stack's queues by name."""
    urls = address.client("sqs").list_queues(QueueNamePrefix=f"{STACK}-").get("QueueUrls", [])
    return {url.rsplit("/", 1)[1]: url for url in sorted(urls)}
