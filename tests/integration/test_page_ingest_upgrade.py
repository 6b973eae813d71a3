"""Guards that a run which was begun before a deployment goes on after it: its rows come from a database at revision 0006."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from infra.migrations.head import VERSIONS
from infra.migrations.run import migrate
from shared.kernel import db
from tests.simulation.backends import prepare_database
from tests.support.databases import ServerAdmin, as_user
from tests.support.ingest import IngestRig, ids
from tests.support.rig import TENANT

pytestmark = pytest.mark.full

TABLES = ("run", "lane", "raw_item", "diamond")
NEW_IN_CURSORS = ("began", "edge", "received", "cuts", "drops")
OLD_UPSTREAM = """
insert into upstream (tenant_id, source, token, token_until, page_size, page_size_until)
values (:tenant, 'nivoda', 'of before', now() + interval '1 day', 25, now() + interval '1 hour')
"""


@pytest.mark.usefixtures("page_by_page")
def test_a_run_that_was_begun_before_the_migration_goes_on_after_it(
    ingest: IngestRig, postgres_server: ServerAdmin, tmp_path: Path
) -> None:
    ingest.stock(300)
    run_id = ingest.start(partition_records=120)
    while not ingest.lanes(run_id):
        ingest.work(ingest.expect())
    for _ in range(6):
        ingest.work(ingest.expect())
    kept = {table: [row["row"] for row in ingest.rows(f"select to_jsonb(t) as row from {table} t")] for table in TABLES}
    assert any(lane["cursor"].get("offset", 0) > 0 for lane in kept["lane"])

    url = postgres_server.url(postgres_server.create_from_template("template1"))
    migrate(url, _up_to("0006", tmp_path))
    _fill(url, kept)
    migrate(url)
    prepare_database(url)

    worker, owner = db.connect_engine(as_user(url, "baton_worker")), db.connect_engine(url)
    try:
        rig = IngestRig(worker, owner)
        sa.event.listen(worker, "checkout", rig.tell_the_time)
        rig.standin, rig.base_url, rig.now = ingest.standin, ingest.base_url, ingest.now

        assert rig.finish(run_id) == "succeeded complete", rig.run(run_id)["error"]

        assert sorted(rig.seen(run_id)) == sorted(ids(rig.standin))
        assert rig.diamonds() == ids(rig.standin)
        assert [row["token"] for row in rig.rows("select token from upstream")] == [None], "an old token is not kept"
        assert rig.finish(rig.start()) == "succeeded complete", "and the next one too"
    finally:
        worker.dispose()
        owner.dispose()


def _up_to(revision: str, folder: Path) -> Path:
    versions = folder / "versions"
    versions.mkdir()
    for each in VERSIONS.glob("*.py"):
        if each.name[:4] <= revision:
            shutil.copy(each, versions)
    return versions


def _fill(url: str, kept: dict[str, list[dict[str, Any]]]) -> None:
    for lane in kept["lane"]:
        lane["cursor"] = {name: value for name, value in lane["cursor"].items() if name not in NEW_IN_CURSORS}
    engine = db.connect_engine(url)
    with engine.begin() as connection:
        for table, rows in kept.items():
            insert = sa.text(
                f"insert into {table} select (jsonb_populate_record(null::{table}, cast(:row as jsonb))).*"
            )
            for row in rows:
                connection.execute(insert, {"row": json.dumps(row)})
        connection.execute(sa.text(OLD_UPSTREAM), {"tenant": TENANT})
    engine.dispose()
