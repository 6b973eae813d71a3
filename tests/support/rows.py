"""Row jobs on a real Postgres under the rig's clock: files in memory, a provider that writes down every call, and hands
that make a call at once and let time pass when there is nothing to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Self
from uuid import UUID

import pytest
import sqlalchemy as sa

from shared.kernel import db
from shared.kernel import run as runs
from shared.kernel.clock import Chance
from shared.kernel.control import Paces
from shared.kernel.decide import Limits
from shared.kernel.errors import Permanent
from shared.kernel.model import By, Signal
from shared.kernel.settings import Relay
from shared.kernel.store import PgStore
from shared.row_job import control
from shared.row_job.decide import Answered
from shared.row_job.model import UPLOADS, Found, Item, RowSettings, Strategy
from shared.row_job.ports import Call, Changed, Listed
from shared.row_job.ports import Ports as RowPorts
from shared.row_job.steps import row_job
from shared.row_job.store import RowStore
from tests.support.files import MemoryFiles as Bucket
from tests.support.rig import BEGINNING, FIFO, LEASE_S, TENANT, Rig, RigDatabase

ROW_TABLES = (
    "export_kept",
    "row_exports",
    "row_fixes",
    "search_events",
    "job_items",
    "file_jobs",
    "files",
    "pace",
    "pace_share",
    "pace_decision",
    "hearing",
    "scanned_files",
)
SETTINGS = RowSettings(slots=2, provider_first_rate=50.0, provider_timeout_ms=5_000)
BY = By()  # as the worker: only the role of the API keeps an audit


@dataclass(slots=True)
class MemoryFiles:
    """As strict as the bucket: a version that is not there is gone, and no byte beyond the end is given. `results`: what was
    written to the same bucket, of which nobody knows a version."""

    results: Bucket = field(default_factory=Bucket)
    held: dict[tuple[str, str | None], bytes] = field(default_factory=dict)
    reads: list[tuple[int, int]] = field(default_factory=list)

    def read(self, key: str, version_id: str | None, offset: int, length: int) -> bytes:
        self.reads.append((offset, length))
        if version_id is None and key in self.results.held:
            return self.results.held[key][offset : offset + length]
        if (key, version_id) not in self.held:
            raise Permanent("The uploaded file isn't there any more.", "file_gone")
        return self.held[key, version_id][offset : offset + length]


@dataclass(slots=True)
class MemoryInbox:
    """Files that wait. As strict as a server: what is not there any more as it was listed is not brought. `parts`: it takes
    so many steps. `brought`: every file that came, by its key."""

    files_held: MemoryFiles
    waiting: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    parts: int = 1
    brought: list[str] = field(default_factory=list)

    def files(self) -> list[Listed]:
        return [Listed(name, len(content), stamp) for name, (content, stamp) in sorted(self.waiting.items())]

    def bring(self, file: Listed, key: str, place: dict[str, Any] | None, seconds: float) -> dict[str, Any] | None:
        if file not in self.files():
            raise Changed
        done = (place or {"parts": 0})["parts"] + 1
        if done < self.parts:
            return {"parts": done}
        self.files_held.held[key, "v1"] = self.waiting[file.name][0]
        self.brought.append(key)
        return None


@dataclass(slots=True)
class Provider:
    """What it is asked and by whom. `says` answers by title; by default everything is found."""

    says: Callable[[Item, Strategy], Answered | None] = lambda item, strategy: None
    calls: list[tuple[str, int, str]] = field(default_factory=list)  # title, attempt, strategy
    keys: Counter[str] = field(default_factory=Counter)

    def find(self, item: Item, strategy: Strategy, retailers: Sequence[str], idempotency_key: str) -> Answered:
        title = str(item.normalized.get("title") or item.normalized.get("sku"))
        self.calls.append((title, item.attempts, strategy))
        self.keys[idempotency_key] += 1
        return self.says(item, strategy) or found(title)


def found(title: str, price: str = "9.90") -> Answered:
    return Answered(what="found", ms=100, offers=[Found(title=title, price=price, currency="EUR")])


class InlineHands:
    """A call is made when it is submitted; time passes only while somebody waits."""

    def __init__(self, threads: int) -> None:
        self.at, self.done = 0.0, list[tuple[Call, Answered]]()

    def now(self) -> float:
        return self.at

    def submit(self, call: Callable[[], Answered], made_for: Call) -> None:
        self.done.append((made_for, call()))

    def collect(self, timeout_s: float) -> list[tuple[Call, Answered]]:
        found, self.done = self.done, []
        self.at += 0.0 if found else max(timeout_s, 0.001)
        return found

    def pressure(self) -> float:
        return 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class RowRig(Rig):
    def __init__(self, worker: sa.Engine, owner: sa.Engine) -> None:
        super().__init__(worker, owner)
        self.ids = Random(7)
        self.results, self.provider = Bucket(), Provider()
        self.files = MemoryFiles(self.results)
        self.inbox = MemoryInbox(self.files)
        self.settings = SETTINGS
        self.ports = replace(
            self.ports,
            relay=Relay(step_timeout_s=30, lease_s=LEASE_S, fifo_queue=FIFO),
            chance=Chance(new_id=lambda: UUID(int=self.ids.getrandbits(128)), fraction=lambda: 0.5),
        )
        self.use()

    def use(self, settings: RowSettings | None = None) -> None:
        self.settings = settings or self.settings
        self.row_ports = RowPorts(
            files=self.files,
            search=lambda tenant, params, left: self.provider,
            hands=InlineHands,
            pace=Paces(self.engine),
            reads=RowStore(self.engine),
            settings=self.settings,
            chance=self.ports.chance,
            meter=self,
            inbox=lambda tenant, scan: self.inbox,
            results=self.results,
        )
        self.kind = row_job(self.row_ports, Limits(max_attempts=4))

    @contextmanager
    def another_process(self) -> Iterator[RowRig]:
        worker = db.connect_engine(self.engine.url.render_as_string(hide_password=False))
        sa.event.listen(worker, "checkout", self.tell_the_time)
        other = copy(self)
        other.engine = worker
        other.ports = replace(self.ports, store=PgStore(worker))
        other.use()
        try:
            yield other
        finally:
            worker.dispose()

    def work_off(self, most: int = 10**9) -> int:
        return super().work_off(most)

    # What people and S3 do.

    def issue(self, name: str = "rows.csv", tenant: UUID = TENANT, hold: bool = False, **options: Any) -> UUID:
        file_id = UUID(int=self.ids.getrandbits(128))
        self.rows(
            """insert into files (id, tenant_id, name, options, hold, created_by, ip_address, created_at)
               values (:id, :t, :name, cast(:options as jsonb), :hold, 'user:ann', '10.0.0.9', clock_timestamp()) returning 1""",
            id=file_id, t=tenant, name=name, options=db.jsonb(options), hold=hold,
        )  # fmt: skip
        return file_id

    def arrive(self, file_id: UUID, content: bytes, tenant: UUID = TENANT, version: str = "v1") -> list[UUID]:
        """What the listener does when the object's signal is heard."""
        key = UPLOADS.format(tenant_id=tenant, file_id=file_id)
        self.files.held[key, version] = content
        payload = {"key": key, "version_id": version, "size": len(content), "etag": "e"}
        signal = Signal(1, tenant, "object.created", payload, BEGINNING)
        with self.ports.store.begin(tenant) as tx:
            wanted = self.kind.listens["object.created"](tx, signal)
        by = By(source="event")
        return [runs.start_run(self.ports, self.kind, tenant, each.params, by) for each in wanted]

    def scan(self, source: str = "s3", tenant: UUID = TENANT, **options: Any) -> UUID:
        params = {"scan": source, **options}
        run_id = runs.start_run(self.ports, self.kind, tenant, params, By(source="schedule"))
        self.run_to_end(run_id, 3600)
        return run_id

    def hear(self, key: str) -> list[UUID]:
        """What is started when the bucket has told of an object."""
        return self.arrive(UUID(key.rsplit("/", 1)[1]), self.files.held[key, "v1"])

    def upload(self, content: bytes | str, **options: Any) -> UUID:
        data = content if isinstance(content, bytes) else content.encode()
        (run_id,) = self.arrive(self.issue(**options), data)
        return run_id

    def finish(self, run_id: UUID, within_s: float = 3 * 86_400) -> str:
        self.run_to_end(run_id, within_s)
        run = self.run(run_id)
        return str(run["status"])

    def reprocess(self, run_id: UUID, **wanted: Any) -> int:
        again = control.Reprocess(**wanted)
        return control.reprocess(self.ports, self.kind, TENANT, run_id, again, BY)

    # What is the case.

    def items(self, run_id: UUID) -> list[Any]:
        return list(self.rows("select * from job_items where run_id = :id order by row_no", id=run_id))

    def statuses(self, run_id: UUID) -> Counter[str]:
        return Counter(row["status"] for row in self.items(run_id))

    def job(self, run_id: UUID) -> Any:
        return self.rows("select * from file_jobs where run_id = :id", id=run_id)[0]


def csv_of(count: int, first: int = 1) -> str:
    lines = [f"Product {n},Acme,SKU-{n}" for n in range(first, first + count)]
    return "\n".join(["title,brand,sku", *lines]) + "\n"


@pytest.fixture
def rows(rig_database: RigDatabase) -> Iterator[RowRig]:
    rig_database.empty(*ROW_TABLES)
    with rig_database.follows(RowRig(rig_database.worker, rig_database.owner)) as rig:
        yield rig
