"""A CSV file into the rows of a job: the step that ships, slice after slice, against psycopg's COPY and against dlt.

How much memory it takes is measured in a process of its own for each size: `python -m tests.bench.paths.rows URL ROWS FILE_ID [WIDTH]`.
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
import itertools
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import sqlalchemy as sa

from shared.kernel import db
from shared.kernel.catalogue import Kind
from shared.kernel.clock import new_id
from shared.kernel.control import Paces
from shared.kernel.flights import Connection
from shared.kernel.handle import handle_baton
from shared.kernel.ports import Ports
from shared.kernel.queue_memory import MemoryQueue, QueueSettings
from shared.kernel.run import start_run
from shared.kernel.store import PgStore
from shared.row_job.adapters.hands import Threads, in_a_thread
from shared.row_job.model import KIND, RowSettings
from shared.row_job.ports import Ports as RowPorts
from shared.row_job.steps import row_job
from shared.row_job.store import RowStore
from tests.bench.figures import Figure
from tests.bench.limits import copied_rows
from tests.bench.measure import Act, Side, cpu, race, versus
from tests.bench.place import TENANT, Place
from tests.support.databases import as_user
from tests.support.made_file import MadeFile

SETTINGS = RowSettings()
TABLES = "search_events, job_items, row_fixes, row_exports, export_kept, file_jobs, files, lane, run, step, history"
NEW_FILE = (
    "insert into files (id, tenant_id, name, size, arrived_at) values ('{id}', '{tenant}', 'rows.csv', {size}, now())"
)
NEW_JOB = """insert into file_jobs (run_id, tenant_id, file_id, user_id, job_type, slots)
             values ('{id}', '{tenant}', '{id}', 'user:ann', 'csv', {slots})"""


def measure(place: Place, *, rows: int, rounds: int) -> list[Figure]:
    """Without psycopg, which only the environment of `make bench` has, against nothing."""
    file, name = MadeFile(rows), f"{rows:,} rows of a file"
    ours = product(place, file)
    if importlib.util.find_spec("psycopg") is None:
        found = race([ours], rounds)
        return [Figure(name=f"{name}, read into a job", value=found["product"][0].rate, unit="rows/s")]
    found = race([ours, _copy(place, file)], rounds)
    return [
        versus(f"{name}, read into a job, against psycopg's COPY", "rows/s", found, "product", "copy", ">= 0.9"),
        *cpu(f"a row of {name}", found, "product", "copy"),
    ]


def measure_dlt(place: Place, *, rows: int, rounds: int) -> list[Figure]:
    if importlib.util.find_spec("dlt") is None:
        return []
    with tempfile.TemporaryDirectory(prefix="baton-bench-dlt-") as home:
        file = MadeFile(rows)
        found = race([product(place, file), _dlt(place, file, home)], rounds)
    name = f"{rows:,} rows of a file, read into a job, against dlt"
    return [versus(name, "rows/s", found, "product", "dlt", ">= 5")]


def measure_memory(place: Place, sizes: Sequence[int]) -> list[Figure]:
    few, many = [_peak_mb(place, rows) for rows in sizes]
    name = f"peak memory of reading {sizes[1]:,} rows, against {sizes[0]:,}"
    return [Figure(name=name, value=many, unit="MB", against=few, ratio=many / few, goal="<= 1.1")]


def _peak_mb(place: Place, rows: int) -> float:
    place.owner_runs(f"truncate {TABLES}", *_new_file(MadeFile(rows), file_id := new_id()))
    return peak_mb_of("tests.bench.paths.rows", as_user(place.url, "baton_worker"), str(rows), str(file_id))


def peak_mb_of(program: str, *arguments: str) -> float:
    """What a program of ours says that it took."""
    command = [sys.executable, "-m", program, *arguments]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _new_file(file: MadeFile, file_id: UUID) -> list[str]:
    return [NEW_FILE.format(id=file_id, tenant=TENANT, size=file.size)]


def product(place: Place, file: MadeFile) -> Side:
    def prepare() -> Act:
        file_id = new_id()
        place.owner_runs(f"truncate {TABLES}", *_new_file(file, file_id))

        def act() -> int:
            read(place.engine, place.ports, file, file_id)
            return file.rows

        return act

    return Side("product", prepare, place.product_connection)


def read(engine: sa.Engine, ports: Ports, file: MadeFile, file_id: UUID) -> None:
    """Start the job and take the steps of the lane that reads; nobody works on the rows."""
    kind = kind_of(engine, files=file)
    ports, queue = own_queue(ports)
    fifo = ports.relay.queue_of(KIND)
    run_id = start_run(ports, kind, TENANT, {"file_id": str(file_id)})
    with engine.connect() as connection:
        db.set_tenant(connection, TENANT)
        lane = connection.execute(
            sa.text("select id from lane where run_id = :id and key = 'ingest'"), {"id": run_id}
        ).scalar_one()
    while message := next(iter(queue.receive(fifo)), None):
        if str(lane) in message.body:
            assert handle_baton(ports, kind, message)
        queue.delete(fifo, message.receipt)
    with engine.connect() as connection:
        db.set_tenant(connection, TENANT)
        job = sa.text("select read_rows, read_at is not null from file_jobs where run_id = :id")
        assert tuple(connection.execute(job, {"id": run_id}).one()) == (file.rows, True)


def kind_of(engine: sa.Engine, **buckets: Any) -> Kind:
    """As it ships; `buckets`: where files are read from and written to."""
    ports = RowPorts(
        search=_nobody,
        hands=Threads,
        pace=Paces(engine),
        reads=RowStore(engine),
        settings=SETTINGS,
        beside=in_a_thread,
        **{"files": MadeFile(0), **buckets},
    )
    return row_job(ports)


def own_queue(ports: Ports) -> tuple[Ports, MemoryQueue]:
    queues = {
        ports.relay.queue_of(KIND): QueueSettings(fifo=True, visibility_s=180, dedup_scope="messageGroup"),
        ports.relay.delay_queue: QueueSettings(fifo=False, visibility_s=60),
    }
    queue = MemoryQueue(queues, time.monotonic, Random(1))
    return replace(ports, queue=queue), queue


def _nobody(*_: object) -> Any:
    raise AssertionError("no row is worked on here")


def _copy(place: Place, file: MadeFile) -> Side:
    connection = psycopg_connection(place)

    def prepare() -> Act:
        run_id = new_id()
        job = NEW_JOB.format(id=run_id, tenant=TENANT, slots=SETTINGS.slots)
        place.owner_runs(f"truncate {TABLES}", *_new_file(file, run_id), job)

        def act() -> int:
            return copied_rows.copied(
                connection, lambda at, most: file.read("", None, at, most), run_id, TENANT, SETTINGS.slots
            )

        return act

    return Side("copy", prepare, lambda: cast("Connection", _Known(connection.info.backend_pid)))


def psycopg_connection(place: Place) -> Any:
    url = sa.make_url(place.url).set(drivername="postgresql").render_as_string(hide_password=False)
    return copied_rows.connect(url)


class _Known(SimpleNamespace):
    """What `measure` asks a connection for: whose processor time is its server's."""

    def __init__(self, pid: int) -> None:
        super().__init__(_backend_key_data=struct.pack("!ii", pid, 0))


def _dlt(place: Place, file: MadeFile, home: str) -> Side:
    """Into one table without an index: less than a job's rows have."""
    os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"
    dlt: Any = importlib.import_module("dlt")
    admin = place.admin
    url = sa.make_url(admin.url(admin.create_from_template("template1")))
    url = url.set(drivername="postgresql", password=url.password or "unused")  # dlt insists on one
    destination = dlt.destinations.postgres(url.render_as_string(hide_password=False))
    numbers = itertools.count()

    def prepare() -> Act:
        name = f"rows_{next(numbers)}"
        pipeline = dlt.pipeline(name, destination=destination, dataset_name=name, pipelines_dir=home)

        def pages() -> Iterator[list[dict[str, Any]]]:
            whole = copied_rows.Whole(lambda at, most: file.read("", None, at, most))
            reader = csv.DictReader(io.TextIOWrapper(io.BufferedReader(whole, 1_000_000), "utf-8", newline=""))
            while page := list(itertools.islice(reader, 5_000)):
                yield [{"row_no": n, "input": row} for n, row in enumerate(page)]

        def act() -> int:
            resource_of = dlt.resource(pages, name="row", columns={"input": {"data_type": "json"}})
            pipeline.run(resource_of).raise_on_failed_jobs()
            with pipeline.sql_client() as client:
                assert client.execute_sql('select count(*) from "row"') == [(file.rows,)]
            return file.rows

        return act

    return Side("dlt", prepare)


def main() -> None:
    url, rows, file_id, *width = sys.argv[1:]
    engine, file = db.connect_engine(url), MadeFile(int(rows), *map(int, width))
    ports = Ports(store=PgStore(engine), queue=MemoryQueue({}, time.monotonic, Random(1)))
    read(engine, ports, file, UUID(file_id))
    print_peak()


def print_peak() -> None:
    """Of this program, in MB: `ru_maxrss` counts what the parent had when it was forked."""
    lines = Path("/proc/self/status").read_text().splitlines()
    print(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024)


if __name__ == "__main__":
    main()
