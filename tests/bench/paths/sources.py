"""A source of three shapes, from its start to its rows in a typed table; beside it dlt's rest_api reads the same lists.

The upstream answers prepared rows in a process of its own. Ours counts, audits and moves rows into their table; dlt merges by
the same key. Both are also read by processes of their own (`tests/bench/paths/sources_apart.py`): what they hold in memory at
most, and what is asked for again after one was killed when nine of ten pages were asked for.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import sqlalchemy as sa
from pydantic import Field

from infra.migrations.tenancy import tenant_table
from shared.kernel.answers import Shape, read_json, shaped, storable
from shared.kernel.catalogue import Kind
from shared.kernel.errors import Permanent, bad_answer
from shared.kernel.handle import handle_baton
from shared.kernel.http import Http, new_pool
from shared.kernel.ports import Ports as KernelPorts
from shared.kernel.queue_memory import MemoryQueue, QueueSettings
from shared.kernel.run import start_run
from shared.kernel.store import PgStore
from shared.kernel.tokens import Tokens
from shared.page_ingest.ports import Ports as IngestPorts
from shared.page_ingest.reader import answers, walk
from shared.page_ingest.reader.build import Clients, client_of
from shared.page_ingest.reader.model import ReadCursor
from shared.page_ingest.reader.steps import Ports
from shared.page_ingest.reader.store import SourceStore
from shared.page_ingest.source.compile import Compiled, compile_source
from shared.page_ingest.source.migration import table_sql
from shared.page_ingest.steps import page_ingest
from shared.page_ingest.store import PageStore
from tests.bench.figures import Figure
from tests.bench.measure import Act, Side, cpu, race, versus
from tests.bench.paths.ingest import dlt_installed
from tests.bench.place import TENANT, Place
from tests.support.databases import as_user
from tests.support.source_model import OneFile

HOST, SIZE = "api.example.com", 500
TABLES = "source_raw, source_quarantine, source_mark, bench_items, account_token, lane, run, step, history"
PAGING = {
    "token": ('token = "/next", size = 500', 'limit = "{size}", cursor = "{token}"'),
    "offset": ('offset = 0, sorted_by = "upstream", size = 500', 'limit = "{size}", offset = "{offset}"'),
    "link": ('link = "next", size = 500', 'limit = "{size}"'),
}
THEIRS: Mapping[str, Mapping[str, Any]] = {
    "token": {"type": "cursor", "cursor_path": "next", "cursor_param": "cursor"},
    "offset": {"type": "offset", "limit": SIZE, "offset_param": "offset", "limit_param": "limit", "total_path": "n"},
    "link": {"type": "header_link"},
}
EXPIRED = """update lane set lease_until = now() - interval '1 second', check_at = now() - interval '1 second',
                             sent_at = now() - interval '1 hour', next_due_at = now() - interval '1 hour'
             where status = 'active'"""
OVERDUE = "update run set check_at = now() - interval '1 second' where outcome is null"


def measure(place: Place, *, rows: int, rounds: int) -> list[Figure]:
    figures = []
    with _upstream(rows) as upstream, tempfile.TemporaryDirectory(prefix="baton-bench-dlt-") as home:
        for shape in PAGING:
            ours = _product(place, upstream, shape, rows)
            theirs = _dlt(place, upstream, shape, rows, home) if dlt_installed() else None
            if theirs is None:
                ours.prepare()()
            else:
                figures += _raced(place, shape, rows, ours, theirs, rounds)
        figures += _pages_by_hand(upstream, pages=10 if rows < 10_000 else 100, rounds=max(2, rounds))
        if rows >= 10_000:  # a few pages end before anybody can be killed
            figures += _apart(place, upstream, rows, home)
    return figures


def _raced(place: Place, shape: str, rows: int, ours: Side, theirs: Side, rounds: int) -> list[Figure]:
    """By the clock, and by the processors: of this process, and of every process of the database server."""
    name = f"rows of a source by {shape}, {rows:,} of them, against dlt's rest_api"
    spent: dict[str, list[float]] = {ours.name: [], theirs.name: []}
    server = _Server.of(place)

    def watched(side: Side) -> Side:
        def prepare() -> Act:
            act = side.prepare()

            def measured() -> int:
                began = time.process_time() + server.spent_s()
                done = act()
                spent[side.name].append((time.process_time() + server.spent_s() - began) / done * 1e6)
                return done

            return measured

        return replace(side, prepare=prepare)

    found = race([watched(ours), watched(theirs)], rounds)
    mine, its = (each[1:] for each in (spent[ours.name], spent[theirs.name]))  # the first round warms up
    ratios = [a / b for a, b in zip(mine, its, strict=True)]
    processors = Figure(
        name=f"{name}: CPU here and at the server", value=statistics.median(mine), unit="us",
        against=statistics.median(its), ratio=statistics.median(ratios), goal="<= 0.5",
    )  # fmt: skip
    return [versus(name, "rows/s", found, ours.name, theirs.name, ">= 2"), processors]


@dataclass(frozen=True, slots=True)
class _Server:
    """All processes of the database server: dlt opens connections as it likes."""

    postmaster: int

    @classmethod
    def of(cls, place: Place) -> _Server:
        with place.owner.connect() as connection:
            backend = connection.execute(sa.text("select pg_backend_pid()")).scalar_one()
        return cls(int(cls._stat(backend)[1]))

    def spent_s(self) -> float:
        own = self._stat(self.postmaster)
        ticks = sum(map(int, own[11:15]))  # with children that have ended
        for each in Path("/proc").glob("[0-9]*"):
            stat = self._stat(int(each.name))
            if stat and int(stat[1]) == self.postmaster:
                ticks += int(stat[11]) + int(stat[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    @staticmethod
    def _stat(pid: int) -> list[str]:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return []


# --- ours


def _nobody(*_: object) -> Any:
    raise Permanent("not asked here")


def compiled_for(shape: str) -> Compiled:
    page, query = PAGING[shape]
    text = f"""source = "bench"
hosts = ["{HOST}"]
auth = "none"
[resources.items]
get = "/{shape}"
query = {{ {query} }}
page = {{ {page} }}
rows = "/items"
key = ["/id"]
count = {{ at = "/n" }}
columns = {{ name = "text /name", price = "number /price", at = "time /at", stock = "int /stock" }}
"""
    return compile_source("bench.toml", text.encode())


def reader_of(engine: sa.Engine, address: str, shape: str) -> Kind:
    store, vault = SourceStore(engine), _nobody
    clients: Any = Clients(engine, vault, store, address)  # type: ignore[arg-type]
    ports = Ports(files=OneFile(compiled_for(shape)), client=clients, tokens=Tokens(engine), store=store)
    built_in = IngestPorts(upstream=_nobody, tokens=Tokens(engine), store=PageStore(engine))
    return page_ingest(built_in, sources=lambda: ports)


def with_queue(ports: KernelPorts, engine: sa.Engine, kind: Kind) -> tuple[KernelPorts, Callable[[], None]]:
    """The relay with a queue in memory, and what works it off."""
    fifo = ports.relay.queue_of(kind.name)
    settings = {
        fifo: QueueSettings(fifo=True, visibility_s=180, dedup_scope="messageGroup"),
        ports.relay.delay_queue: QueueSettings(fifo=False, visibility_s=60),
    }
    queue = MemoryQueue(settings, time.monotonic, Random(1))
    here = replace(ports, queue=queue, store=PgStore(engine))

    def work() -> None:
        while message := next(iter(queue.receive(fifo)), None):
            assert handle_baton(here, kind, message)
            queue.delete(fifo, message.receipt)

    return here, work


def _make_table(place: Place) -> None:
    (each,) = compiled_for("token").resources
    place.owner_runs(
        f"drop table if exists {each.table}",
        "set role baton_owner; " + table_sql(each) + tenant_table(each.table) + "reset role",
    )


def _product(place: Place, address: str, shape: str, rows: int) -> Side:
    _make_table(place)
    kind = reader_of(place.engine, address, shape)

    def prepare() -> Act:
        place.owner_runs(f"truncate {TABLES}")
        here, work = with_queue(place.ports, place.engine, kind)

        def act() -> int:
            start_run(here, kind, TENANT, {"source": "bench"})
            work()
            _is_complete(place, rows)
            return rows

        return act

    return Side("product", prepare, place.product_connection)


def _is_complete(place: Place, rows: int) -> None:
    with place.owner.connect() as connection:
        ended = connection.execute(sa.text("select outcome, (select count(*) from bench_items) from run")).one()
    assert tuple(ended) == ("complete", rows)


# --- theirs


def dlt_pipeline(url: str, address: str, shape: str, home: str, name: str) -> tuple[Any, Any]:
    os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"
    import dlt
    from dlt.sources.rest_api import rest_api_source

    pipeline = dlt.pipeline(
        name, destination=dlt.destinations.postgres(url), dataset_name=name, pipelines_dir=home
    )  # fmt: skip
    endpoint = {"path": shape, "params": {"limit": SIZE}, "data_selector": "items", "paginator": dict(THEIRS[shape])}
    if shape == "offset":
        endpoint.pop("params")
    asked = {"name": "items", "primary_key": "id", "write_disposition": "merge", "endpoint": endpoint}
    source: Any = rest_api_source({"client": {"base_url": f"{address}/{HOST}/"}, "resources": [asked]})
    return pipeline, source


def _dlt_url(place: Place) -> str:
    url = sa.make_url(place.admin.url(place.admin.create_from_template("template1")))
    url = url.set(drivername="postgresql", password=url.password or "unused")  # dlt insists on one
    return url.render_as_string(hide_password=False)


def _dlt(place: Place, address: str, shape: str, rows: int, home: str) -> Side:
    url, numbers = _dlt_url(place), itertools.count()

    def prepare() -> Act:
        pipeline, source = dlt_pipeline(url, address, shape, home, f"bench_{shape}_{next(numbers)}")

        def act() -> int:
            pipeline.run(source).raise_on_failed_jobs()
            with pipeline.sql_client() as client:
                assert client.execute_sql("select count(*) from items") == [(rows,)]
            return rows

        return act

    return Side("dlt", prepare)


# --- a page of the same list by hand, as the built-in catalogue is read


class _Item(Shape):
    id: Annotated[str, Field(min_length=1, max_length=answers.LONGEST_KEY)]
    name: str
    price: Annotated[str, Field(pattern=r"^-?[0-9]{1,30}(\.[0-9]{1,30})?$")]
    at: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
    stock: int


class _Items(Shape):
    n: Annotated[int, Field(ge=0)]
    items: list[_Item]


def _pages_by_hand(address: str, *, pages: int, rounds: int) -> list[Figure]:
    """A page from its question to rows that can be written: by the file, and by an adapter that is written for this list."""
    compiled = compiled_for("link")
    (each,) = compiled.resources
    pool = new_pool()
    http = Http(f"{address}/{HOST}", name="bench", gate="bench", time_left_s=lambda: 60.0, pool=pool)
    client = client_of(compiled, {}, {}, gate="bench", time_left_s=lambda: 60.0, standin=address)
    part = {"resource": "items"}

    def by_file() -> int:
        cursor = ReadCursor(part=part, t="2025-01-01T00:00:00Z", scope="", limit=SIZE)
        for _ in range(pages):
            asked = walk.request(each.resource, cursor)
            page = client.page(each.resource, part, None, asked)
            cursor = walk.after_page(each.resource, cursor, page, asked, page.count)
            cursor = cursor.but(ended=False, place=cursor.place if page.next else None, loop=())
            assert [(row.key, row.body, row.cols, row.hash) for row in page.rows]
        return pages

    def by_hand() -> int:
        target = f"/link?limit={SIZE}"
        for _ in range(pages):
            answer = http.send("GET", target, headers={"accept": "application/json"})
            assert answer.status == 200
            body = read_json(answer.body)
            found = shaped(_Items, body).items
            if len(found) > SIZE:
                raise bad_answer("too many")
            assert [
                (
                    item.id,
                    raw := storable(payload),
                    (item.name, item.price, item.at, item.stock),
                    answers.Row("", "", raw).hash,
                )
                for item, payload in zip(found, body["items"], strict=True)
            ]
            link = answers.kept_origin(answers._linked(answer.headers.get("link", "")), f"https://{HOST}/link")
            target = link or f"/link?limit={SIZE}"
        return pages

    found = race([Side("file", lambda: by_file), Side("hand", lambda: by_hand)], rounds)
    pool.clear()
    (figure,) = cpu("a page of 500 rows by a source's file, against an adapter by hand", found, "file", "hand")
    return [replace(figure, goal="<= 1.1")]


# --- in processes of their own


def _apart(place: Place, address: str, rows: int, home: str) -> list[Figure]:
    """Peak memory, and the pages that were asked for twice because the reader was killed at nine tenths."""
    pages = -(-rows // SIZE)
    _make_table(place)
    worker = as_user(place.url, "baton_worker")
    sides: dict[str, list[str]] = {"ours": ["ours", worker, address, home]}
    if dlt_installed():
        sides["dlt"] = ["dlt", _dlt_url(place), address, home]
    peaks: dict[str, float] = {}
    asked: dict[str, int] = {}
    for name, arguments in sides.items():
        place.owner_runs(f"truncate {TABLES}")
        _control(address, "forget")
        peaks[name] = float(_reader(*arguments, "whole").communicate()[0])
        more = _control(address, "asked") - pages  # the audit counts on the first page
        place.owner_runs(f"truncate {TABLES}")
        _control(address, "forget")
        with _reader(*arguments, "killed") as killed:
            while _control(address, "asked") < pages * 0.9 and killed.poll() is None:
                time.sleep(0.005)
            killed.kill()
        place.owner_runs(EXPIRED, OVERDUE)
        float(_reader(*arguments, "killed", "--again").communicate()[0])
        asked[name] = _control(address, "asked") - more
        if name == "ours":
            _is_complete(place, rows)
    return [
        _beside(f"peak memory of reading {rows:,} rows by link", "MB", peaks, ""),
        _beside(f"questions for {pages} pages whose reader is killed at 90 %", "pages", asked, f"<= {pages + 1}"),
    ]


def _beside(name: str, unit: str, found: Mapping[str, float], goal: str) -> Figure:
    against = found.get("dlt")
    ratio = None if against is None else found["ours"] / against
    return Figure(name=name, value=found["ours"], unit=unit, against=against, ratio=ratio, goal=goal)


def _reader(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.bench.paths.sources_apart", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _control(address: str, what: str) -> int:
    """How many pages were asked for."""
    with urlopen(f"{address}/{what}") as answer:
        return int(answer.read())


# --- the upstream, in a process of its own


@contextmanager
def _upstream(rows: int) -> Iterator[str]:
    with subprocess.Popen([sys.executable, "-m", __name__, str(rows)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def _row(n: int) -> dict[str, Any]:
    return {
        "id": f"item-{n:08d}",
        "name": f"Item {n}",
        "price": f"{n % 900}.50",
        "at": "2025-01-01T00:00:00Z",
        "stock": n % 40,
        "tag": "x" * 40,
    }


class Lists(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    rows: list[bytes]
    asked = 0

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        if asked.path in ("/asked", "/forget"):
            self._control(asked.path)
            return
        query = {name: values[0] for name, values in parse_qs(asked.query).items()}
        at = int(query.get("cursor") or query.get("offset") or 0)
        size = int(query.get("limit") or SIZE)
        Lists.asked += 1
        more = at + size < len(self.rows)
        following = b'"%d"' % (at + size) if more else b"null"
        body = b'{"n": %d, "next": %s, "items": [%s]}' % (
            len(self.rows), following, b", ".join(self.rows[at : at + size]),
        )  # fmt: skip
        headers = {}
        if more and asked.path.endswith("/link"):
            ours = self.headers.get("User-Agent") == "baton"  # which follows no link to another host than it asked
            base = f"https://{HOST}/link" if ours else f"http://{self.headers['Host']}{asked.path}"
            headers["Link"] = f'<{base}?limit={size}&cursor={at + size}>; rel="next"'
        self._answer(body, headers)

    def _control(self, path: str) -> None:
        if path == "/forget":
            Lists.asked = 0
        self._answer(b"%d" % Lists.asked, {})

    def _answer(self, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(200)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class _Quiet(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """Who is killed hangs up."""


if __name__ == "__main__":
    Lists.rows = [json.dumps(_row(n)).encode() for n in range(int(sys.argv[1]))]
    server = _Quiet(("127.0.0.1", 0), Lists)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()
