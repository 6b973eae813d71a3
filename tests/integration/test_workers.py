"""Guards `baton worker`: what a job may start, everything on Postgres alone, a quick pick-up, a health endpoint, a worker over
HTTP, and a wheel that runs in an empty environment."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from infra import remote_worker
from infra import worker as command
from infra.client.http import Client, Refusal, Unanswered
from infra.client.session import Fixed
from infra.remote_worker import RemoteWorker
from shared.job_queue.build import RunStarter, build_ports
from shared.job_queue.model import Finished, Word
from shared.job_queue.steps import job_kind
from shared.job_queue.worker import _tell
from shared.kernel import db
from shared.kernel.api.frame import LARGEST_BODY
from shared.kernel.catalogue import Catalogue, Kind
from shared.kernel.errors import NoRoom, Refused
from shared.kernel.model import NewLane, NewRun, RunCommand, Starting
from shared.kernel.ports import Tx
from shared.kernel.queue import Outgoing
from shared.kernel.queue_postgres import PgQueue
from shared.kernel.step import do_turn
from tests.support.databases import ServerAdmin, as_user
from tests.support.house import ALICE
from tests.support.jobs import FakeRunner, Office, job_office
from tests.support.tally import QuietWorld, tally_kind

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def shared_office(postgres_server: ServerAdmin, template: str) -> Iterator[Office]:
    with job_office(postgres_server, template) as office:
        yield office


@pytest.fixture
def office(shared_office: Office) -> Iterator[Office]:
    shared_office.empty()
    yield shared_office
    shared_office.send_guests_home()


def wait_until(done: Callable[[], Any], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until, "it takes too long"
        time.sleep(0.05)


# --- commands that start runs ---


def starting_kind(office: Office, kind: Kind) -> Kind:
    starter = RunStarter(office.store._engine, Catalogue(kind), office.queue, office.relay)
    commands = [RunCommand("tally.start", kind.name)]
    return job_kind(
        build_ports(office.store._engine, {}, runner=FakeRunner(), worker_id="w1", commands=commands, starter=starter)
    )


def a_starting_job(office: Office) -> Any:
    office.define("begin", command="tally.start", arg_schema={}, max_attempts=2)
    return office.add(key="begin")


def started(office: Office) -> list[Any]:
    return office.sql("select id, source, source_ref, tenant_id from run where kind = 'tally'")


def simple_start(tx: Tx, starting: Starting) -> NewRun:
    return NewRun(params={}, lanes=[NewLane(key="all")])


def test_a_job_starts_a_run_of_another_kind_once_and_says_why(office: Office) -> None:
    tally = replace(tally_kind(QuietWorld()), start=simple_start)
    job = a_starting_job(office)
    turn = office.take_one()
    do_turn(turn, starting_kind(office, tally), office.ports)

    ((run_id, source, ref, tenant),) = [(r.id, r.source, r.source_ref, r.tenant_id) for r in started(office)]
    assert (source, ref, tenant) == ("job", str(job), ALICE)
    assert office.seen(job).status == "succeeded"
    assert str(run_id) in office.attempts(job)[0].stdout_tail


def test_a_start_whose_answer_was_lost_is_not_repeated(office: Office) -> None:
    tally = replace(tally_kind(QuietWorld()), start=simple_start)
    job = a_starting_job(office)
    kind = starting_kind(office, tally)
    jobs: Any = kind.take_step
    real = jobs.__self__.ports.starter

    class Dies:
        def start(self, *given: Any) -> UUID:
            real.start(*given)
            raise OSError("the answer was lost")

    object.__setattr__(jobs.__self__, "ports", replace(jobs.__self__.ports, starter=Dies()))
    do_turn(office.take_one(), kind, office.ports)
    assert office.seen(job).status == "queued"
    office.pass_time()
    do_turn(office.take_one(), starting_kind(office, tally), office.ports)
    assert (office.seen(job).status, len(started(office))) == ("succeeded", 1)


@pytest.mark.parametrize(
    ("error", "status"), [(Refused("bad", "low: is missing"), "failed"), (NoRoom("too_many_runs", "full"), "queued")]
)
def test_a_start_that_is_refused_fails_and_one_without_room_waits(office: Office, error: Refused, status: str) -> None:
    def refuse(*_: object) -> NewRun:
        raise error

    job = a_starting_job(office)
    do_turn(office.take_one(), starting_kind(office, replace(tally_kind(QuietWorld()), start=refuse)), office.ports)
    assert (office.seen(job).status, started(office)) == (status, [])


def test_page_ingest_declares_its_command() -> None:
    from functions.catalogue import all_commands

    assert "page_ingest.start" in {each.key for each in all_commands()}


# --- queues in Postgres ---


def test_messages_in_postgres_come_at_least_once_and_hide_meanwhile(office: Office) -> None:
    queue, engine = PgQueue(office.store._engine, visibility_s=60), office.store._engine
    q = "baton-x.fifo"
    out = Outgoing(body="{}", group="g", dedup_id="d1")
    assert queue.send(q, [out, replace(out, dedup_id="d2")]) == []
    assert queue.send(q, [out]) == []
    first = queue.receive(q, 10)
    assert [(each.dedup_id, each.receive_count) for each in first] == [("d1", 1), ("d2", 1)]
    assert queue.receive(q, 10) == []
    queue.change_visibility(q, first[0].receipt, 0)
    (again,) = queue.receive(q, 10)
    assert (again.dedup_id, again.receive_count) == ("d1", 2)
    queue.delete(q, first[0].receipt)  # the receipt of an earlier delivery: it is in other hands
    assert not queue.is_empty(q)
    queue.delete(q, again.receipt)
    queue.delete(q, first[1].receipt)
    assert queue.is_empty(q)
    queue.send("baton-delay", [Outgoing(body="{}", group="g", delay_s=60)])
    assert queue.receive("baton-delay") == []
    queue.purge("baton-delay")
    assert engine is not None


# --- processes ---


def environment(office: Office, **more: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "DATABASE_URL": as_user(office.url, "baton_worker"), **more,
    }  # fmt: skip


@pytest.mark.full
def test_a_worker_picks_up_runs_tells_its_health_and_stops(office: Office, tmp_path: Path) -> None:
    office.define("sync-dropbox", command="recompute-trained-tags", arg_schema={}, timeout_seconds=60)
    log = (tmp_path / "log").open("wb")
    given = ["worker", "--poll", "30", "--health", "0", "--tick", "60", "--executors", "worker,lambda"]
    process = subprocess.Popen(
        [sys.executable, "-m", "infra.cli", *given], cwd=ROOT, env=environment(office), stdout=log, stderr=log
    )
    try:

        def said(pattern: str) -> re.Match[str] | None:
            return re.search(pattern, (tmp_path / "log").read_text())

        wait_until(lambda: said(r'"?port"?\W+(\d+)') or process.poll() is not None)
        assert process.poll() is None, (tmp_path / "log").read_text()
        wait_until(lambda: office.sql("select 1 from pull_queue where listens_until > now()"))
        # It looks every 30 s only: what is added now is heard of.
        job = office.add(key="sync-dropbox")
        wait_until(lambda: office.seen(job).status == "succeeded", 60)
        assert "done" in office.attempts(job)[0].stdout_tail
        port = said(r'"?port"?\W+(\d+)')
        assert port is not None
        with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/health", timeout=60) as answer:
            assert json.load(answer)["well"] is True
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/other", timeout=60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert office.sql("select * from job_workers") == []
        written = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if '"_aws"' in line]
        assert {"Step", "StepMilliseconds"} <= {name for line in written for name in line}, "as every function does"
        assert {line["_aws"]["CloudWatchMetrics"][0]["Namespace"] for line in written} == {"Baton"}
    finally:
        process.kill()
        process.wait()
        log.close()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--kinds", "nobody"], "unknown nobody. Available: page_ingest"),
        (["--executors", "ship"], "unknown ship. Available: worker, lambda"),
        (["--concurrency", "0"], "must be at least 1"),
        (["--lease", "nan"], "must be at least 1"),
        (
            [],
            "DATABASE_URL, BATON_DB_SECRET_ARN or BATON_DB_IAM must say how to reach Postgres. To take jobs from an API instead: --url",
        ),
        (["--url", "https://example.com"], "BATON_TOKEN must hold a machine token"),
        (["--queue", "mail"], "baton: unknown option '--queue'. Did you mean '--queues'? See `baton worker --help`"),
    ],
)
def test_a_worker_says_what_is_wrong_with_its_options(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BATON_TOKEN", "DATABASE_URL", "BATON_DB_SECRET_ARN", "BATON_DB_IAM"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit):
        command.main(given)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("given", [[], ["--url", "https://example.com"]])
def test_a_worker_with_settings_that_make_no_sense_does_not_start(
    given: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "none that works: a worker that goes on ends too, and says something else")
    monkeypatch.delenv("BATON_TOKEN", raising=False)
    monkeypatch.setenv("BATON_SETTINGS", "BATON_ROWS_SLOT=8")
    with pytest.raises(SystemExit) as ended:
        command.main(given)

    assert ended.value.code == 2
    assert "unknown setting BATON_ROWS_SLOT (did you mean BATON_ROWS_SLOTS?)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "url", ["foo", "postgresql://x:hunter2@db:port/x", "mysql://x:hunter2@db/x", "postgres://db/x?a=b"]
)
def test_a_worker_without_a_usable_url_says_so_in_a_line(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", url)
    with pytest.raises(SystemExit) as ended:
        command.main([])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert (said.startswith("baton worker: "), said.count("\n"), "hunter2" in said) == (True, 1, False)


def test_a_worker_whose_health_port_is_taken_says_so(
    office: Office, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", as_user(office.url, "baton_worker"))
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit):
        command.main(["--health", str(taken.getsockname()[1])])
    assert "--health: can't listen on 127.0.0.1:" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["postgresql://nobody:wrong@127.0.0.1:{port}/postgres", "postgresql://x@127.0.0.1:1/x"])
def test_a_database_that_does_not_let_a_worker_in_is_told_in_a_line(
    url: str, office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    engine = db.connect_engine(url.format(port=sa.make_url(office.url).port))
    with pytest.raises(Exception) as refused, engine.connect():
        pass
    assert _tell("looking for work", refused.value)
    assert [line.exc_info for line in caplog.records] == [None]


class Api:
    """What a worker over HTTP asks; the API itself is tested at its door."""

    def __init__(self, jobs: list[dict[str, Any]], word: str = "go_on") -> None:
        self.jobs, self.word = jobs, word
        self.told: list[tuple[str, Any]] = []

    def post(self, path: str, body: Any, within_s: float = 35) -> Any:
        if path.endswith("/claim"):
            assert "recompute-trained-tags" in body["commands"], "what it cannot run, another gets"
            return {"jobs": [self.jobs.pop()] if self.jobs else []}
        self.told.append((path.rsplit("/", 1)[1], body))
        if path.endswith("/heartbeat"):
            if self.word == "lost":
                raise Refusal("over", {"status": 409})
            return {"word": self.word}
        return {"done": True}


JOB = {
    "id": "0198a000-0000-7000-8000-000000000001", "tenant_id": str(ALICE), "claim_token": "t", "attempt_no": 1,
    "definition_key": "sync-dropbox", "command": "recompute-trained-tags", "payload": {}, "timeout_seconds": 60,
}  # fmt: skip


@pytest.mark.parametrize(
    ("word", "ended", "told"),
    [
        ("go_on", Finished(exit_code=0, stdout="x"), [("complete", None)]),
        ("go_on", Finished(exit_code=2), [("fail", "exit")]),
        ("go_on", Finished(exit_code=None, timed_out=True), [("fail", "timeout")]),
        ("cancel", Finished(exit_code=None, canceled=True), [("heartbeat", None), ("fail", "canceled")]),
        ("lost", Finished(exit_code=None, lost=True), [("heartbeat", None)]),
    ],
)
def test_a_worker_over_http_says_how_each_attempt_ended(
    word: str, ended: Finished, told: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "baton")
    api, runner = Api([dict(JOB)], word), FakeRunner()
    words = {"cancel": Word.CANCEL, "lost": Word.LOST}

    def ends(_: Any, __: Any, ___: float, beat: Any) -> Finished:
        if word != "go_on":
            assert beat(7, "out", "err") is words[word]
        return ended

    runner.ends = ends
    client: Any = api
    worker = RemoteWorker(client, ["default"], "w", 1, 60, 0.01, env={}, runner=runner)
    for job in worker._claim(1):
        worker._do(job)
    assert [(what, body.get("reason")) for what, body in api.told] == told
    assert [line.message for line in caplog.records] == ["job attempt started", "job attempt ended"]
    assert runner.asked[0][0][-1] == f"--tenant-id={ALICE}"


def test_a_worker_over_http_that_can_start_nothing_puts_jobs_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards that a machine with a full disk costs a job no attempt."""
    monkeypatch.setattr(remote_worker, "AFTER_TROUBLE_S", 0.0)
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent/disk")
    api = Api([dict(JOB)])
    client: Any = api
    worker = RemoteWorker(client, ["default"], "w", 1, 60, 0.01, env={})
    for job in worker._claim(1):
        worker._do(job)
    assert [(what, body.get("reason")) for what, body in api.told] == [("fail", "stopped")]


def test_a_worker_over_http_stops_when_somebody_else_may_have_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease counts from when it was asked for, not from when the answer came; without answers it is not renewed."""
    now, silent, waited = 100.0, False, []
    words: list[Word] = []

    class SlowApi(Api):
        def post(self, path: str, body: Any, within_s: float = 35) -> Any:
            nonlocal now
            waited.append(within_s)
            now += min(20, within_s)
            if silent:
                raise Refusal("not responding")
            return super().post(path, body)

    monkeypatch.setattr(remote_worker, "time", SimpleNamespace(monotonic=lambda: now))

    def ends(_: Any, __: Any, ___: float, beat: Any) -> Finished:
        nonlocal now, silent
        for at, is_silent in ((150, False), (170, True), (201, True)):  # asked at 100, and again at 150
            now, silent = at, is_silent
            words.append(beat(7, "", ""))
        return Finished(exit_code=None, lost=True)

    api, runner = SlowApi([dict(JOB)]), FakeRunner()
    runner.ends = ends
    client: Any = api
    worker = RemoteWorker(client, ["default"], "w", 1, 60, 0.01, env={}, runner=runner)
    for job in worker._claim(1):
        worker._do(job)
    assert words == [Word.GO_ON, Word.GO_ON, Word.LOST]
    assert waited == [20, 10, 40, 9], "no answer is waited for beyond the lease, and a claim's can be asked for again"
    assert now == 210
    assert [what for what, _ in api.told] == ["heartbeat"], "what is lost is not told"


def test_a_worker_over_http_begins_nothing_that_somebody_else_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim's answer took longer than its lease. It is put back: nothing was done, and that costs no attempt."""
    now = iter([100.0, 160.0])
    monkeypatch.setattr(remote_worker, "time", SimpleNamespace(monotonic=lambda: next(now, 161.0)))
    monkeypatch.setattr(remote_worker, "AFTER_TROUBLE_S", 0.0)
    api, runner = Api([dict(JOB)]), FakeRunner()
    client: Any = api
    worker = RemoteWorker(client, ["default"], "w", 1, 60, 0.01, env={}, runner=runner)
    for job in worker._claim(1):
        worker._do(job)
    assert runner.asked == []
    assert [(what, body.get("reason")) for what, body in api.told] == [("fail", "stopped")]


@pytest.mark.parametrize(
    ("error", "back_at", "stops", "told"),
    [
        (Refusal("not the API"), 150, False, ["complete"]),
        (Refusal("not the API"), 200, False, []),
        (Unanswered("not responding"), 900, False, ["complete"]),
        (Unanswered("not responding"), 900, True, []),
        (Unanswered("not responding"), 9000, False, []),
    ],
)
def test_a_worker_over_http_tells_an_end_as_long_as_it_may_count(
    monkeypatch: pytest.MonkeyPatch, error: Refusal, back_at: float, stops: bool, told: list[str]
) -> None:
    """What its command did is not to be done again because of an outage. While the lease lasts nobody else can have the job; while
    nobody answers, likely neither."""
    now = 100.0

    class AwayApi(Api):
        def post(self, path: str, body: Any, within_s: float = 35) -> Any:
            if path.endswith("/complete") and now < back_at:
                raise error
            return super().post(path, body)

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(remote_worker, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    api = AwayApi([dict(JOB)])
    client: Any = api
    worker = RemoteWorker(client, ["default"], "w", 1, 60, 0.01, env={}, runner=FakeRunner())
    for job in worker._claim(1):
        if stops:
            worker.stop.set()
        worker._do(job)
    assert [what for what, _ in api.told] == told


class Portal(ThreadingHTTPServer):
    """The API behind a proxy that answers in its place now and then, politely and with 200."""

    def __init__(self) -> None:
        self.jobs, self.told = [dict(JOB)], list[tuple[str, int]]()
        self.claims: list[tuple[str, bool]] = []
        self.numbers: list[int] = []
        self.instead = {
            name: [b"<html>Log in</html>", b"[]", b"null", b"{}"] for name in ("claim", "heartbeat", "complete")
        }
        portal = self

        class Answers(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                what = self.path.rsplit("/", 1)[1]
                size = int(self.headers["content-length"])
                said = json.loads(self.rfile.read(size))
                if what == "claim":
                    portal.claims.append((said["claim_id"], said["again"]))
                    portal.numbers.append(said["claim_no"])
                answer = (
                    portal.instead[what].pop(0)
                    if portal.instead[what]
                    else json.dumps(portal.answer(what, size)).encode()
                )
                self.send_response(200)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        super().__init__(("127.0.0.1", 0), Answers)

    def answer(self, what: str, size: int) -> Any:
        if what == "claim":
            return {"jobs": [self.jobs.pop()] if self.jobs else []}
        self.told.append((what, size))
        return {"word": "go_on"} if what == "heartbeat" else {"done": True}


def test_a_worker_over_http_believes_the_api_alone_and_never_says_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards that an answer that is not the API's is none: the worker goes on, the command does, and how it ended is told until
    the API has heard it. And that much output in letters that take room is cut to what the API takes."""
    monkeypatch.setattr(remote_worker, "AFTER_TROUBLE_S", 0.0)
    monkeypatch.setattr(remote_worker, "FIRST_PAUSE_S", 0.0)
    portal, runner = Portal(), FakeRunner()
    threading.Thread(target=portal.serve_forever, daemon=True).start()
    words: list[Word] = []

    def ends(_: Any, __: Any, ___: float, beat: Any) -> Finished:
        words.extend(beat(7, "\x1b" * 60_000, "\N{CYRILLIC SMALL LETTER YA}" * 30_000 + "the end") for _ in range(5))
        return Finished(exit_code=0, stdout="\x1b" * 60_000, stderr="\x1b" * 60_000)

    runner.ends = ends
    client = Client(f"http://127.0.0.1:{portal.server_address[1]}", Fixed("baton_x"))
    worker = RemoteWorker(client, ["default"], "w", 1, 60, 0.01, env={}, runner=runner)
    working = threading.Thread(target=worker.run)
    working.start()
    try:
        wait_until(lambda: [what for what, _ in portal.told] == ["heartbeat", "complete"] and len(portal.claims) > 5)
    finally:
        worker.stop.set()
        working.join(60)
        portal.shutdown()
    assert words == [Word.GO_ON] * 5
    # Whether a claim took something is not known before it is answered: until then it is the same one.
    assert [again for _, again in portal.claims[:6]] == [False, True, True, True, True, False]
    assert len({claim_id for claim_id, _ in portal.claims[:5]}) == 1
    assert portal.numbers[:6] == [1, 1, 1, 1, 1, 2], "by its number the API knows a claim that comes late"
    assert all(100_000 < size <= LARGEST_BODY for _, size in portal.told)


@pytest.mark.full
def test_a_wheel_runs_in_an_empty_environment(office: Office, tmp_path: Path) -> None:
    """Nothing is there but the wheel and what requirements.lock names; its commands come with it."""
    uv, empty = ROOT / ".venv" / "bin" / "uv", tmp_path / "empty"
    clean = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}

    def run(*words: str | Path) -> None:
        subprocess.run(words, check=True, env={**clean, "VIRTUAL_ENV": str(empty)}, cwd=ROOT)

    run(uv, "build", "--wheel", "--quiet", "-o", tmp_path, ROOT)
    run(uv, "venv", "--quiet", "--python", sys.executable, empty)
    run(uv, "pip", "sync", "--quiet", "--require-hashes", "requirements.lock")
    (wheel,) = tmp_path.glob("*.whl")
    run(uv, "pip", "install", "--quiet", "--no-deps", "--offline", wheel)
    baton, bare = (
        empty / "bin" / "baton",
        {"PATH": "/usr/bin:/bin", "DATABASE_URL": as_user(office.url, "baton_worker")},
    )
    told = subprocess.run(
        [baton, "worker", "--help"], capture_output=True, text=True, cwd=tmp_path, env=bare, check=True
    )
    assert "--executors" in told.stdout
    office.define("sync-dropbox", command="recompute-trained-tags", arg_schema={}, timeout_seconds=60)
    job = office.add(key="sync-dropbox")
    process = subprocess.Popen([baton, "worker"], cwd=tmp_path, env=bare)
    try:
        wait_until(lambda: office.seen(job).status == "succeeded", 60)
    finally:
        process.terminate()
        assert process.wait(60) == 0
