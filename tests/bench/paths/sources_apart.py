"""One reader of a source in a process of its own, to be measured and killed: what it held in memory at most, in MB.

python -m tests.bench.paths.sources_apart ours|dlt DATABASE UPSTREAM FOLDER NAME [--again]
"""

from __future__ import annotations

import resource
import sys
import time

import sqlalchemy as sa

from shared.kernel import db
from shared.kernel.catalogue import Catalogue
from shared.kernel.ports import Ports
from shared.kernel.run import start_run
from shared.kernel.store import PgStore
from shared.kernel.tick import tick
from tests.bench.paths import sources
from tests.bench.place import TENANT, ListQueue

SHAPE = "link"
LOOKS = 1_000


def ours(url: str, address: str, *, again: bool) -> None:
    engine = db.connect_engine(url)
    kind = sources.reader_of(engine, address, SHAPE)
    ports, work = sources.with_queue(Ports(store=PgStore(engine), queue=ListQueue()), engine, kind)
    if not again:
        start_run(ports, kind, TENANT, {"source": "bench"})
    for _ in range(LOOKS):
        if again:
            tick(ports, Catalogue(kind))
        work()
        if _is_over(engine):
            return
        time.sleep(0.01)
    raise AssertionError("the run did not end")


def _is_over(engine: sa.Engine) -> bool:
    with engine.begin() as connection:
        db.set_tenant(connection, TENANT)
        return connection.execute(sa.text("select outcome is not null from run")).scalar_one() is True


def theirs(url: str, address: str, home: str, name: str) -> None:
    pipeline, source = sources.dlt_pipeline(url, address, SHAPE, home, f"apart_{name}")
    pipeline.run(source).raise_on_failed_jobs()


if __name__ == "__main__":
    who, database, upstream, folder, called, *more = sys.argv[1:]
    if who == "ours":
        ours(database, upstream, again=bool(more))
    else:
        theirs(database, upstream, folder, called)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, flush=True)
