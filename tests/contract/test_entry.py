"""Guards what Lambda sees of us: answers, log lines, metric lines, and the time that an invocation has left."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from shared.kernel.catalogue import Outside
from shared.kernel.entry import dead_letter_handler, step_handler, sweep_handler, tick_handler
from shared.kernel.errors import Permanent
from shared.kernel.log import logger
from shared.kernel.log_json import FunctionFailed, json_log
from shared.kernel.metrics import Metric
from shared.kernel.metrics_emf import EmfMeter
from shared.kernel.model import Decision, Turn
from tests.support.lambda_calls import FakeContext, a_message, sqs_record
from tests.support.rig import FIFO, Rig
from tests.support.tally import QuietWorld, tally_kind

ReadOut = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> ReadOut:
    """What was written to standard output since the last call: every line is JSON."""
    return lambda: [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_step_knows_how_much_time_its_invocation_has_left(rig: Rig) -> None:
    left: list[float] = []
    tally = tally_kind(QuietWorld())

    def step(turn: Turn, outside: Outside) -> Decision:
        left.append(outside.time_left_s())
        return tally.take_step(turn, outside)

    rig.kind = replace(tally, take_step=step)
    handler = step_handler(rig.kind, rig.ports)
    rig.start(target=2)

    for milliseconds in (29_500, 1_250):
        record = sqs_record(rig.expect(), FIFO)
        handler({"Records": [record]}, FakeContext(left_ms=milliseconds))
        rig.queue.delete(FIFO, record["receiptHandle"])

    assert left == [29.5, 1.25]
    assert rig.ports.time_left_s() == 60.0, "the ports that every invocation shares are left alone"


def test_a_step_is_one_line_with_the_request_and_the_outcome(rig: Rig, lines: ReadOut) -> None:
    handler = step_handler(rig.kind, rig.ports)
    run_id = rig.start()

    handler({"Records": [sqs_record(rig.expect(), FIFO)]}, FakeContext(aws_request_id="request-1"))

    (line,) = lines()
    assert (line["message"], line["level"], line["service"]) == ("turn", "INFO", "baton")
    assert (line["kind"], line["seq"], line["outcome"]) == ("tally", 0, "moved")
    assert line["lane"] == str(rig.lane(run_id)["id"])
    assert line["function_request_id"] == "request-1"


@pytest.mark.parametrize(("level", "expected"), [("WARNING", []), ("DEBUG", ["turn"])])
def test_the_log_level_comes_from_the_environment(
    rig: Rig, lines: ReadOut, monkeypatch: pytest.MonkeyPatch, level: str, expected: list[str]
) -> None:
    monkeypatch.setenv("LOG_LEVEL", level)
    handler = step_handler(rig.kind, rig.ports)
    rig.start()

    handler({"Records": [sqs_record(rig.expect(), FIFO)]}, FakeContext())

    assert [line["message"] for line in lines()] == expected


def test_no_secret_reaches_the_log_not_even_in_a_traceback(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    def leak(turn: Turn, n: int) -> None:
        raise RuntimeError("x" * 5000 + "\npostgresql://me:canary-1@host/db?token=canary-2 Bearer canary-345678")

    rig.kind = tally_kind(QuietWorld(leak))
    handler = step_handler(rig.kind, rig.ports)
    run_id = rig.start()

    handler({"Records": [sqs_record(rig.expect(), FIFO)]}, FakeContext())

    out = capsys.readouterr().out
    assert "RuntimeError" in out
    assert "postgresql://me:***@host" in out
    assert "canary" not in out
    assert "canary" not in str(rig.lane(run_id)["last_error"])


def test_a_line_is_written_whatever_its_values_are(lines: ReadOut, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logger, "propagate", False)  # pytest keeps log lines too, and cannot send a lone surrogate on
    json_log()
    odd = {1: {2}, "nul": "a\x00b", "lone": "\ud800", "big": 2**70}

    logger.info("odd \ud800", extra={"odd": odd, "deep": FakeContext()})

    (line,) = lines()
    assert line["odd"]["big"] == 2**70


def test_metrics_are_written_once_per_invocation(rig: Rig, lines: ReadOut) -> None:
    logger.setLevel(logging.CRITICAL)
    handler = step_handler(rig.kind, replace(rig.ports, meter=EmfMeter()))
    logger.setLevel(logging.CRITICAL)
    rig.start(lanes=2)
    records = [sqs_record(rig.expect(), FIFO) for _ in range(2)]

    handler({"Records": records}, FakeContext())
    first = lines()
    handler({"Records": records}, FakeContext())
    second = lines()

    steps = [line for line in first if "Step" in line]
    assert [(line["Step"], line["kind"], line["outcome"]) for line in steps] == [([2.0], "tally", "moved")]
    times = [line for line in first if "StepMilliseconds" in line]
    assert [len(line["StepMilliseconds"]) for line in times] == [2]
    definition = steps[0]["_aws"]["CloudWatchMetrics"][0]
    assert definition == {
        "Namespace": "Baton",
        "Dimensions": [["kind", "outcome"]],
        "Metrics": [{"Name": "Step", "Unit": "Count"}],
    }
    assert [(line["Refused"], line["reason"]) for line in second] == [([2.0], "stale")]


def test_metrics_are_written_even_if_the_work_fails(rig: Rig, lines: ReadOut) -> None:
    meter = EmfMeter()

    def broken(*_: object) -> None:
        meter.count(Metric.TICK)
        raise RuntimeError("the database is away")

    store = type("Store", (), {"begin": broken})
    handler = tick_handler(replace(rig.ports, store=store(), meter=meter), rig.kinds)

    with pytest.raises(FunctionFailed, match="the database is away"):
        handler({}, FakeContext())

    assert [line["Tick"] for line in lines() if "Tick" in line] == [[2.0]], "lanes and signals, each on its own"


def test_a_tick_tells_the_alarms_how_much_it_mended_and_the_api_that_it_lives(rig: Rig) -> None:
    handler = tick_handler(rig.ports, rig.kinds)
    rig.start()
    rig.purge()
    rig.now += 600

    handler({}, FakeContext())

    assert rig.counted[Metric.REPAIRS] == rig.counted[Metric.REPAIR] == 1
    assert 0 < rig.counted[Metric.CONNECTIONS_USED] < 100
    assert [row.name for row in rig.rows("select name from beat")] == ["tick"]


def test_a_tick_that_fails_is_no_sign_of_life(rig: Rig) -> None:
    def away(*_: object) -> None:
        raise RuntimeError("the queue's address is wrong")

    broken = replace(rig.ports, store=type("Store", (type(rig.ports.store),), {"due_runs": away})(rig.engine))

    with pytest.raises(FunctionFailed):
        tick_handler(broken, rig.kinds)({}, FakeContext())

    assert rig.rows("select name from beat") == []


def test_a_meter_that_fails_does_not_fail_the_messages(rig: Rig) -> None:
    class Broken(EmfMeter):
        def flush(self) -> None:
            raise OSError("no space")

    handler = step_handler(rig.kind, replace(rig.ports, meter=Broken()))
    rig.start()

    assert handler({"Records": [sqs_record(rig.expect(), FIFO)]}, FakeContext()) == {"batchItemFailures": []}


def test_hundreds_of_values_are_all_written(lines: ReadOut) -> None:
    meter = EmfMeter()
    for value in range(250):
        meter.count(Metric.STEP_MS, value, kind="tally")
        meter.count(Metric.REPAIR, kind="tally", why="unsent")

    meter.flush()
    meter.flush()

    written = lines()
    assert sum(len(line.get("StepMilliseconds", ())) for line in written) == 250
    assert [line["Repair"] for line in written if "Repair" in line] == [[250.0]]


def test_a_dead_letter_is_noted_and_done_with_whatever_it_is(rig: Rig) -> None:
    run_id = rig.start()
    current = sqs_record(rig.expect(), FIFO)
    handler = dead_letter_handler(rig.ports)

    answer = handler({"Records": [current, sqs_record(a_message("no baton"), FIFO)]}, FakeContext())

    assert answer == {"batchItemFailures": []}
    assert rig.lane(run_id)["last_error"]["code"] == "dead_letter"


def test_a_dead_letter_that_cannot_be_noted_comes_again(rig: Rig) -> None:
    def away(*_: object) -> None:
        raise ConnectionResetError

    rig.start()
    store = type("Store", (), {"note_dead_letter": away})
    handler = dead_letter_handler(replace(rig.ports, store=store()))

    message = rig.expect()
    answer = handler({"Records": [sqs_record(message, FIFO)]}, FakeContext())

    assert answer == {"batchItemFailures": [{"itemIdentifier": message.message_id}]}


def test_a_record_without_attributes_fails_alone(rig: Rig) -> None:
    rig.start()
    good = sqs_record(rig.expect(), FIFO)
    bare = {"messageId": "bare", "eventSourceARN": good["eventSourceARN"]}

    answer = step_handler(rig.kind, rig.ports)({"Records": [bare, good]}, FakeContext())

    assert answer == {"batchItemFailures": [{"itemIdentifier": "bare"}]}
    assert rig.counted[Metric.GIVEN_BACK] == 1


def test_a_failure_that_lambda_counts_as_success_is_not_hidden_from_the_alarms(rig: Rig, lines: ReadOut) -> None:
    """The alarms read sums without dimensions: of one kind alone they would see nothing."""

    def away(*_: object) -> None:
        raise ConnectionResetError

    rig.start()
    store = type("Store", (type(rig.ports.store),), {"claim": away})
    handler = step_handler(rig.kind, replace(rig.ports, store=store(rig.engine), meter=EmfMeter("Baton/dev")))

    answer = handler({"Records": [sqs_record(rig.expect(), FIFO)]}, FakeContext())

    assert len(answer["batchItemFailures"]) == 1
    told = [line["_aws"]["CloudWatchMetrics"][0] for line in lines() if line.get("GivenBack") == [1.0]]
    assert [each for each in told if each["Dimensions"] == [[]]] != [], told


def test_a_run_that_fails_is_counted_for_the_alarm(rig: Rig) -> None:
    def never(turn: Turn, outside: Outside) -> Decision:
        raise Permanent("no", "never")

    rig.kind = replace(rig.kind, take_step=never)
    run_id = rig.start()

    assert rig.run_to_end(run_id, 3600) == "failed"
    assert rig.counted[Metric.RUNS_FAILED] == 1


def test_a_sweep_says_how_much_it_removed(rig: Rig) -> None:
    answer = sweep_handler(rig.ports, rig.kinds)({}, FakeContext())

    assert rig.counted[Metric.SWEEP] == 1
    assert answer == {
        "assets": 0,
        "step": 0,
        "pulse": 0,
        "repair": 0,
        "signal": 0,
        "hearing": 0,
        "answered": 0,
        "pace_decision": 0,
        "run": 0,
    }


HEAVY = ("sqlalchemy.orm", "boto3", "alembic", "moto", "requests", "aws_lambda_powertools.utilities.batch")


@pytest.mark.full
@pytest.mark.parametrize("module", ["shared.kernel.entry", "shared.kernel.store", "shared.kernel.live"])
def test_a_cold_start_imports_nothing_heavy(module: str) -> None:
    probe = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"

    found = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"
