"""Guards that secrets are found nowhere: not in any row, log line, message or answer, whatever way they came in."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import boto3
import pytest

from shared.kernel.log import logger
from shared.kernel.log_json import json_log
from tests.support.canaries import CANARY, Canaries, open_canaries
from tests.support.door import QUEUES, Door, TenantHouse
from tests.support.subject import brought

pytestmark = pytest.mark.full


@pytest.fixture
def there(door: Door, acme: TenantHouse) -> Iterator[Canaries]:
    with open_canaries(door, acme) as canaries:
        yield canaries


def dump(door: Door) -> dict[str, str]:
    """Every row of every table as text."""
    tables = [row["tablename"] for row in door.sql("select tablename from pg_tables where schemaname = 'public'")]
    return {table: "\n".join(row["t"] for row in door.sql(f"select t::text from {table} t")) for table in tables}


def test_no_canary_is_found_anywhere(there: Canaries) -> None:
    door, log = there.door, io.StringIO()
    json_log()
    for handler in logger.handlers:
        assert isinstance(handler, logging.StreamHandler)
        handler.setStream(log)

    kept: list[str] = []
    for module in brought("canaries"):
        kept += module.pass_canaries(there)

    # Through parameters, headers and bodies that are refused, whatever the kind.
    run_id = there.start("tally", {"lanes": 1, "target": 1})
    there.ask("POST", "/runs", {"kind": f"token={CANARY}", "params": {}})
    there.ask("POST", "/runs", f'{{"password": "{CANARY}"')
    there.ask("GET", "/runs", Authorization=f"Bearer {CANARY}")
    there.ask("POST", f"/runs/{run_id}/cancel", {"reason": f"password={CANARY}"})
    there.ask("GET", "/audit")

    assert [answer.status for answer in there.answers if answer.status >= 500] == []
    logged = log.getvalue()
    assert '"message":"turn"' in logged  # there are lines to look at
    assert "password=***" in logged
    messages = str([door.queue.messages(queue) for queue in QUEUES])
    assert "page_ingest" in messages  # as above
    assert [table for table, rows in dump(door).items() if CANARY in rows] == []
    assert [answer.body for answer in there.answers if CANARY in answer.body] == []
    assert CANARY not in logged
    assert CANARY not in messages
    # And they were really there to be found: each connection that a kind made has one in the vault.
    vault = boto3.client("secretsmanager")
    secrets = [
        vault.get_secret_value(SecretId=each["Name"])["SecretString"] for each in vault.list_secrets()["SecretList"]
    ]
    assert len(secrets) == len(kept) > 0
    assert all(CANARY in secret for secret in secrets)
    assert [connection for connection in kept if connection in messages] == []
