"""The rows of a job into files: the steps that ship, against one COPY of the same cells and against XlsxWriter.

The bucket is nowhere: what it would be sent is counted. How much memory an export takes is measured in a process of its own for
each size: `python -m tests.bench.paths.row_exports URL JOB_ID FORMAT`.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from uuid import UUID

import sqlalchemy as sa

from shared.kernel import db
from shared.kernel.clock import new_id
from shared.kernel.handle import handle_baton, handle_delayed
from shared.kernel.model import By
from shared.kernel.ports import Ports
from shared.kernel.queue_memory import MemoryQueue
from shared.kernel.run import start_run
from shared.kernel.store import PgStore
from shared.row_job.grid import HEADER_LINE
from shared.row_job.model import KIND, Format
from tests.bench.figures import Figure
from tests.bench.limits import copied_out
from tests.bench.measure import Side, cpu, race, versus
from tests.bench.paths.rows import TABLES, kind_of, own_queue, peak_mb_of, print_peak, psycopg_connection
from tests.bench.place import TENANT, Place
from tests.support.databases import as_user

# Nine rows of ten were found, at three shops; the rest were not, or failed. What a shop calls them is packed as badly as real ones.
JOB = """
truncate {tables};
insert into files (id, tenant_id, name) values ('{id}', '{tenant}', 'rows.csv');
insert into run (id, tenant_id, kind, status, check_at) values ('{id}', '{tenant}', 'row_job', 'running', now() + interval '1 h');
insert into file_jobs (run_id, tenant_id, file_id, user_id, job_type, slots, read_at)
values ('{id}', '{tenant}', '{id}', 'user:ann', 'csv', 4, now());
set session_replication_role = replica;
insert into job_items (run_id, row_no, tenant_id, user_id, job_type, slot, status, input_json, normalized_json, result_json, attempts,
                       last_error, due_at, updated_at)
select '{id}', n, '{tenant}', 'user:ann', 'csv', n % 4, case when n % 20 = 0 then 'ERROR' when n % 20 = 1 then 'NOT_FOUND' else 'DONE' end,
       wanted || jsonb_build_object('price', '12.90', 'description', 'some words about the thing that is sold here, and more of them'),
       wanted, case when n % 20 > 1 then jsonb_build_object('offers', offers) end, 1 + n % 2,
       case when n % 20 = 0 then 'The provider answered with status 503.' end, now(), now() + n * interval '1 ms'
from generate_series(1, {rows}) n
cross join lateral (select jsonb_build_object('title', 'Product ' || n || ' of the catalogue, "new" & boxed', 'brand', 'Acme',
                                              'sku', 'SKU-' || left(md5(n::text), 10)) as wanted) w
cross join lateral (
    select jsonb_agg(jsonb_build_object(
        'title', 'Product ' || n || ', the édition with the long name at shop ' || shop, 'brand', 'Acme', 'sku', 'SKU-' || left(md5(n::text), 10),
        'price', (n * 79 % 90000 + shop)::text || '.90', 'currency', 'EUR', 'url', 'https://shop-' || shop || '.example/products/' || md5(n::text || shop),
        'retailer', 'Shop ' || shop, 'domain', 'shop-' || shop || '.example', 'score', 0.97 - shop * 0.1, 'in_stock', n % 3 > 0)) as offers
    from generate_series(1, 3) shop) o;
reset session_replication_role
"""


@dataclass(slots=True)
class Nowhere:
    """A bucket that takes everything and keeps what a step leaves for the next."""

    left: dict[str, bytes] = field(default_factory=dict)

    def put(self, key: str, body: bytes) -> None:
        self.left = {key: body}

    def get(self, key: str) -> bytes:
        return self.left[key]

    def delete(self, key: str) -> None: ...

    def begin(self, key: str) -> str:
        return key

    def add(self, key: str, upload: str, number: int, body: bytes) -> str:
        return f"{number}-{len(body)}"

    def finish(self, key: str, upload: str, parts: Sequence[str], last: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class Filled:
    """A job with so many rows. `bytes`: what the CSV sides wrote, to see that they wrote the same."""

    place: Place
    job_id: UUID
    rows: int
    bytes: dict[str, int] = field(default_factory=dict)


def measure(place: Place, *, rows: int, rounds: int, formats: Sequence[Format] = tuple(Format)) -> list[Figure]:
    """Without psycopg and XlsxWriter, which only the environment of `make bench` has, against nothing."""
    with filled(place, rows) as job:
        return [figure for format_ in formats for figure in _measured(job, format_, rounds)]


def measure_memory(place: Place, sizes: Sequence[int]) -> list[Figure]:
    peaks: dict[Format, list[float]] = {format_: [] for format_ in Format}
    for rows in sizes:
        with filled(place, rows) as job:
            for format_ in Format:
                url = as_user(place.url, "baton_worker")
                peaks[format_].append(peak_mb_of("tests.bench.paths.row_exports", url, str(job.job_id), format_))
    return [
        Figure(
            name=f"peak memory of exporting {sizes[1]:,} rows as {format_.upper()}, against {sizes[0]:,}",
            value=many,
            unit="MB",
            against=few,
            ratio=many / few,
            goal="<= 1.1",
        )
        for format_, (few, many) in peaks.items()
    ]


@contextmanager
def filled(place: Place, rows: int) -> Iterator[Filled]:
    job_id = new_id()
    fill = JOB.format(id=job_id, tenant=TENANT, rows=rows, tables=TABLES)
    place.owner_runs(fill, "vacuum analyze job_items", "checkpoint")
    try:
        yield Filled(place, job_id, rows)
    finally:
        place.owner_runs(f"truncate {TABLES}")


def _measured(job: Filled, format_: Format, rounds: int) -> list[Figure]:
    name = f"{job.rows:,} rows exported as {format_.upper()}"
    ours = product(job, format_)
    if not _installed():
        found = race([ours], rounds)
        return [Figure(name=name, value=found["product"][0].rate, unit="rows/s")]
    with tempfile.TemporaryDirectory(prefix="baton-bench-xlsx-") as home:
        csv = format_ is Format.CSV
        theirs, what, goal = (
            (_copy(job), "one COPY", ">= 0.5") if csv else (_xlsxwriter(job, Path(home)), "XlsxWriter", ">= 1.0")
        )
        found = race([ours, theirs], rounds)
    if csv:
        assert job.bytes["product"] == job.bytes["copy"] + len(HEADER_LINE), "not the same cells"
    return [
        versus(f"{name}, against {what}", "rows/s", found, ours.name, theirs.name, goal),
        # The server may use several processes for the one COPY: what it takes there is not told.
        *cpu(f"a row of {name}", found, ours.name, theirs.name),
    ]


def _installed() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("psycopg", "xlsxwriter"))


def product(job: Filled, format_: Format) -> Side:
    def act() -> int:
        written, job.bytes["product"] = export(job.place.engine, job.place.ports, job.job_id, format_)
        assert written == job.rows
        return written

    return Side("product", lambda: act)


def export(engine: sa.Engine, ports: Ports, job_id: UUID, format_: Format) -> tuple[int, int]:
    """Start an export and take its steps until nothing is left to do: how many rows and bytes there are."""
    kind = kind_of(engine, results=Nowhere())
    ports, queue = own_queue(ports)
    fifo, delayed = ports.relay.queue_of(KIND), ports.relay.delay_queue
    run_id = start_run(ports, kind, TENANT, {"export": str(job_id), "format": str(format_)}, By())
    while not (queue.is_empty(fifo) and queue.is_empty(delayed)):
        for message in queue.receive(fifo):
            assert handle_baton(ports, kind, message)
            queue.delete(fifo, message.receipt)
        for message in queue.receive(delayed):
            assert handle_delayed(ports, message)
            queue.delete(delayed, message.receipt)
    with engine.connect() as connection:
        db.set_tenant(connection, TENANT)
        ended = sa.text("select written, files from row_exports where run_id = :id and finished_at is not null")
        written, files = connection.execute(ended, {"id": run_id}).one()
    return written, sum(each["bytes"] for each in files)


def _copy(job: Filled) -> Side:
    connection = psycopg_connection(job.place)

    def act() -> int:
        job.bytes["copy"] = copied_out.copied(connection, job.job_id)
        return job.rows

    return Side("copy", lambda: act)


def _xlsxwriter(job: Filled, home: Path) -> Side:
    connection = psycopg_connection(job.place)

    def act() -> int:
        written = copied_out.written(connection, job.job_id, home / "rows.xlsx")
        assert written == job.rows
        return written

    return Side("xlsxwriter", lambda: act)


def main() -> None:
    url, job_id, format_ = sys.argv[1:]
    engine = db.connect_engine(url)
    ports = Ports(store=PgStore(engine), queue=MemoryQueue({}, time.monotonic, Random(1)))
    export(engine, ports, UUID(job_id), Format(format_))
    print_peak()


if __name__ == "__main__":
    main()
