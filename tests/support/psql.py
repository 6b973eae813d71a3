"""psql, as a person runs it with what `baton env` exports."""

from __future__ import annotations

import os
import subprocess
from uuid import UUID

import sqlalchemy as sa

from infra.local.binaries import bin_directory


def psql(where: sa.URL, statement: str, tenant: UUID | None, **variables: object) -> list[str]:
    env = {
        "PGHOST": where.host, "PGPORT": where.port, "PGDATABASE": where.database, "PGUSER": where.username,
        "PGPASSWORD": where.password, **({"PGOPTIONS": f"-c app.tenant={tenant}"} if tenant else {}),
    }  # fmt: skip
    named = [word for name, value in variables.items() for word in ("-v", f"{name}={value}")]
    command = [str(bin_directory(os.getuid()) / "psql"), "-XAt", "-v", "ON_ERROR_STOP=1", *named]
    asked = {name: str(value) for name, value in env.items() if value is not None}
    told = subprocess.run(command, input=statement, env=asked, capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 0, told.stderr
    return told.stdout.splitlines()
