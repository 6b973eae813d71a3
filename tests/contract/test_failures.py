"""Guards that no exception leaves a function, or is logged, with what somebody entrusted to us in its text."""

from __future__ import annotations

import io
import json
import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from functions.catalogue import KINDS
from shared.kernel import db, direct
from shared.kernel.catalogue import Catalogue, Kind
from shared.kernel.custom_resource import custom_resource_handler
from shared.kernel.entry import Handler, dead_letter_handler, forward_handler, step_handler, sweep_handler, tick_handler
from shared.kernel.intake import intake_handler
from shared.kernel.log import logger
from shared.kernel.log_json import FunctionFailed, logged, to_line
from shared.kernel.people import people_handler
from shared.kernel.ports import Ports
from shared.kernel.settings import Relay
from tests.support.databases import ServerAdmin, scratch_server
from tests.support.lambda_calls import FakeContext

ROOT = Path(__file__).parents[2]
CANARY = "canary-7f3a"
SIGNAL = {
    "id": "1", "source": "me", "detail-type": "Baton Signal",
    "detail": {"tenant_id": "2f1d9c1e-6f0a-4f6e-9d0b-0c9f2e1a7b34", "name": "hello.world", "payload": {}},
}  # fmt: skip


class Broken:
    """A store whose database says back what it was given, as Postgres does."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def fail(*_: Any, **__: Any) -> Any:
            raise RuntimeError(f'{name}: invalid input, CONTEXT: JSON data, line 1: {{"password": "{CANARY}"}}')

        return fail


PORTS = Ports(store=Broken(), queue=Broken(), relay=Relay())  # nothing of it works


def by_hand(_: float) -> dict[str, str]:
    raise RuntimeError(f"postgresql://owner:{CANARY}@db/baton does not answer")


class BrokenEngine(Broken):
    pool = dialect = url = property(lambda self: self.connect())


def step(*_: Any) -> Any:
    raise AssertionError("it cannot be claimed")


TALLY = Kind(name="tally", take_step=step)
HANDLERS: dict[str, tuple[Callable[[], Handler], dict[str, Any]]] = {
    "tick": (lambda: tick_handler(PORTS, Catalogue()), {}),
    "sweep": (lambda: sweep_handler(PORTS, Catalogue()), {}),
    "intake": (lambda: intake_handler(PORTS, None, Catalogue()), SIGNAL),
    "migrate": (lambda: custom_resource_handler(by_hand), {}),
    "people": (lambda: people_handler(BrokenEngine()), {"tenant": "acme", "subject": "x"}),  # type: ignore[arg-type]
}
# These give a message back instead.
OF_QUEUES: dict[str, Callable[[], Handler]] = {
    "step": lambda: step_handler(TALLY, PORTS),
    "forward": lambda: forward_handler(PORTS),
    "dead_letter": lambda: dead_letter_handler(PORTS),
}


def what_is_logged() -> io.StringIO:
    log = io.StringIO()
    for each in logger.handlers:
        assert isinstance(each, logging.StreamHandler)
        each.setStream(log)
    return log


def test_every_function_is_tried_here_or_by_its_canaries() -> None:
    steps = {"step"} | set(KINDS)
    tried = set(HANDLERS) | set(OF_QUEUES) | steps | {"api"}  # of the API: tests/api/test_canaries.py

    assert tried - {"step"} == {path.parent.name for path in (ROOT / "functions").glob("*/app.py")}


@pytest.mark.parametrize("name", HANDLERS)
def test_no_exception_leaves_a_handler_with_a_secret(name: str) -> None:
    make, event = HANDLERS[name]
    handler = make()
    log = what_is_logged()

    with pytest.raises(FunctionFailed) as failed:
        handler(event, FakeContext())

    whole = "".join(traceback.format_exception(failed.value))  # more than Lambda writes
    assert CANARY not in whole
    assert "***" in str(failed.value)
    assert CANARY not in log.getvalue()
    assert "the function failed" in log.getvalue()


@pytest.mark.parametrize("name", OF_QUEUES)
def test_no_message_is_given_back_with_a_secret_in_the_log(name: str) -> None:
    handler = OF_QUEUES[name]()
    log = what_is_logged()
    event = json.loads((ROOT / "events" / "page_ingest.json").read_text())
    body = json.loads(event["Records"][0]["body"]) | {"kind": "tally"}
    event["Records"][0]["body"] = json.dumps(body)

    answer = handler(event, FakeContext())

    assert answer["batchItemFailures"], "it comes again"
    assert CANARY not in json.dumps(answer)
    assert CANARY not in log.getvalue()
    assert "***" in log.getvalue(), "the failure is told"


def test_a_secret_whose_name_was_cut_off_is_not_logged() -> None:
    long = "x" * 1_950
    for text in (f"Error: password={long}{CANARY}", f'{long}\n{{"password": "{long}{CANARY}"}}\nafter'):
        assert CANARY not in to_line({"exception": text})


def test_nothing_within_a_logged_structure_passes_unredacted() -> None:
    line = to_line({"report": {"error": f"password={CANARY}", "token": CANARY, "tries": [f"Bearer {CANARY}0000"]}})

    assert CANARY not in line
    assert json.loads(line)["report"]["error"] == "password=***"


def test_the_reason_of_a_failure_is_still_told() -> None:
    def fail(_: Any, __: Any) -> Any:
        raise KeyError("Records")

    with pytest.raises(FunctionFailed, match="KeyError: 'Records'"):
        logged(fail)({}, FakeContext())


def test_an_error_of_the_database_does_not_quote_rows_or_parameters(database_url: str) -> None:
    engine = db.connect_engine(database_url)
    with pytest.raises(Exception, match="unsupported Unicode") as refused, direct.alone(engine) as line:
        line.all(sa.text("select cast(:x as jsonb)"), {"x": f'{{"note": "{CANARY}", "nul": "\\u0000"}}'})

    assert db.sqlstate(refused.value) == "22P05"
    assert CANARY not in "".join(traceback.format_exception(refused.value))
    engine.dispose()


@pytest.mark.full
def test_postgres_logs_no_parameter_of_a_statement_that_failed(postgres_server: ServerAdmin) -> None:
    with scratch_server() as server:
        engine = db.connect_engine(server.url(), pool="none")
        for value in (f'{{"password": "{CANARY}", "nul": "\\u0000"}}', f"{CANARY}: no json"):
            with pytest.raises(sa.exc.DatabaseError), engine.connect() as connection:
                connection.execute(sa.text("select cast(:x as jsonb)"), {"x": value})

        told = server.log_tail(200)

    assert "ERROR" in told
    assert CANARY not in told
