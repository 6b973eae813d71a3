"""A file of a gigabyte goes through a function of 256 MB: it is read piece by piece, and nothing of it is kept."""

from __future__ import annotations

import subprocess
import sys

import pytest
import sqlalchemy as sa

from shared.kernel import db
from shared.kernel.clock import new_id
from tests.bench.place import TENANT
from tests.support.databases import ServerAdmin, as_user
from tests.support.made_file import MadeFile

FUNCTION_MB = 256


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_a_file_of_a_gigabyte_is_read_within_256_mb(postgres_server: ServerAdmin, template: str) -> None:
    file, file_id = MadeFile(rows=270_000, width=4_000), new_id()
    assert file.size > 1024**3
    name = postgres_server.create_from_template(template)
    owner = db.connect_engine(postgres_server.url(name))
    try:
        with owner.begin() as connection:
            connection.execute(
                sa.text(
                    "insert into files (id, tenant_id, name, size, arrived_at) values (:id, :t, 'x', :size, now())"
                ),
                {"id": file_id, "t": TENANT, "size": file.size},
            )
        command = [
            sys.executable, "-m", "tests.bench.paths.rows", as_user(postgres_server.url(name), "baton_worker"),
            str(file.rows), str(file_id), str(file.width),
        ]  # fmt: skip
        peak_mb = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        with owner.connect() as connection:
            counted = connection.execute(sa.text("select count(*), max(row_no) from job_items")).one()
    finally:
        owner.dispose()
        postgres_server.drop(name)

    assert tuple(counted) == (file.rows, file.rows)
    assert peak_mb <= FUNCTION_MB, peak_mb
