"""Guards that jobs survive their workers: real processes, killed with -9 while they work; every job ends once, none twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.databases import ServerAdmin, as_user, scratch_server
from tests.support.house import ALICE, BOB
from tests.support.jobs import Office, job_office

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
AT_WORK = "select distinct worker from offer where taken_at is not null"
# Says when it begins and ends, and whether another of the same job is at work: the lock goes with its process.
# It takes as long as the test says, or until the file is there that the test names.
COMMAND = """
import fcntl, os, sys, time
folder, job = sys.argv[1], os.environ["BATON_JOB_ID"]
with open(f"{folder}/{job}", "a") as log:
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        log.write("overlap\\n")
        sys.exit(9)
    log.write("start\\n")
    log.flush()
    if os.path.isabs(sys.argv[2]):
        while not os.path.exists(sys.argv[2]):
            time.sleep(0.05)
    else:
        time.sleep(float(sys.argv[2]))
    log.write("end\\n")
"""


@pytest.fixture(scope="module")
def office(postgres_server: ServerAdmin, template: str) -> Iterator[Office]:
    with job_office(postgres_server, template) as office:
        yield office


def worker(office: Office, commands: Path, *options: str) -> subprocess.Popen[bytes]:
    env = {
        "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "DATABASE_URL": as_user(office.url, "baton_worker"),
        "BATON_JOB_COMMANDS": str(commands), "BATON_NIVODA_BASE_URL": "http://127.0.0.1:1",
    }  # fmt: skip
    given = ["worker", "--concurrency", "3", "--lease", "2", "--poll", "0.1", "--tick", "0.5", *options]
    return subprocess.Popen([sys.executable, "-m", "infra.cli", *given], cwd=ROOT, env=env)


def commands_file(tmp_path: Path, until: float | Path = 0.15) -> tuple[Path, Path]:
    folder, script, commands = tmp_path / "log", tmp_path / "command.py", tmp_path / "commands.toml"
    folder.mkdir()
    script.write_text(COMMAND)
    commands.write_text(f'[test]\nargv = ["{{python}}", "{script}", "{folder}", "{until}"]\n')
    return commands, folder


def at_work(office: Office, workers: list[subprocess.Popen[bytes]]) -> list[int]:
    taken = {int(row.worker.split(":")[1]) for row in office.sql(AT_WORK)}
    return [n for n, each in enumerate(workers) if each.pid in taken]


def wait_until(done: object, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not done():  # type: ignore[operator]
        assert time.monotonic() < until, "it takes too long"
        time.sleep(0.1)


@pytest.mark.long
def test_thousands_of_jobs_outlive_workers_that_are_killed_and_a_database_that_restarts(
    template: str, tmp_path: Path
) -> None:
    """4 workers killed at random, and Postgres with them now and then: every job ends once, and none is at work twice."""
    total = int(os.environ.get("BATON_CHAOS_JOBS", "5000"))
    commands, folder = commands_file(tmp_path, 0.01)
    rng = random.Random(int(os.environ.get("BATON_CHAOS_SEED", "1")))
    with scratch_server({"max_connections": "100"}) as server:
        admin = ServerAdmin(server.url())
        with job_office(admin, admin.create_template()) as office:
            office.define(max_attempts=100, arg_schema={})
            jobs = [office.add(rng.choice((ALICE, BOB))) for _ in range(total)]
            workers = [worker(office, commands) for _ in range(4)]
            until, restarts = time.monotonic() + 60 + total, 0
            try:
                while office.value("select count(*) from run where kind = 'job' and finished_at is null"):
                    assert time.monotonic() < until, "it takes too long"
                    time.sleep(1 + 2 * rng.random())
                    victims = at_work(office, workers)
                    if not victims:
                        continue
                    victim = rng.choice(victims)
                    workers[victim].kill()
                    workers[victim].wait()
                    workers[victim] = worker(office, commands)
                    if rng.random() < 0.1 or not restarts:
                        restarts += 1
                        server.kill()
                        server.restart()
                        for engine in office._own_engines:
                            engine.dispose()
                    office.pass_time(60)
            finally:
                for each in workers:
                    each.kill()
                    each.wait()
            for job in jobs:
                attempts, lines = office.attempts(job), (folder / str(job)).read_text().splitlines()
                assert (office.seen(job).status, office.endings(job)) == ("succeeded", ["succeeded"])
                assert [each.attempt_no for each in attempts] == list(range(1, len(attempts) + 1))
                assert "overlap" not in lines
                assert lines[-1] == "end"
            lost = office.value("select count(*) from job_attempts where error_text like '%stopped responding%'")
            assert lost > 0
            print(f"\n{total} jobs, {restarts} restarts of Postgres, {lost} attempts lost with their workers, "
                  f"{office.value('select count(*) from job_attempts')} attempts")  # fmt: skip
        admin.close()


def test_jobs_outlive_workers_that_are_killed(office: Office, tmp_path: Path) -> None:
    # The worker's own words come first (--tenant-id=…): the command takes the folder from the reviewed list.
    commands, folder = commands_file(tmp_path)
    office.empty()
    office.define(max_attempts=50, arg_schema={})
    jobs = [office.add(tenant) for tenant in (ALICE, BOB) for _ in range(12)]
    rng = random.Random(1)
    workers = [worker(office, commands) for _ in range(2)]
    try:
        wait_until(lambda: office.value("select count(*) from job_attempts") > 3, 300)
        for _ in range(4):
            wait_until(lambda: at_work(office, workers), 300)
            victim = rng.choice(at_work(office, workers) or [0])
            workers[victim].kill()
            workers[victim].wait()
            workers[victim] = worker(office, commands)
            # A retry waits for its backoff; time passes for what was lost.
            office.pass_time(60)

        def over() -> bool:
            office.pass_time(60)
            return bool(office.value("select count(*) = 0 from run where kind = 'job' and finished_at is null"))

        wait_until(over, 600)
        for each in workers:
            each.send_signal(signal.SIGTERM)
        # One that was started last may not have come so far as to hear a signal.
        assert {each.wait(300) for each in workers} in ({0}, {0, -signal.SIGTERM})
    finally:
        for each in workers:
            each.kill()
    killed = office.value("select count(*) from job_attempts where error_text like '%stopped responding%'")
    assert killed > 0
    for job in jobs:
        attempts, lines = office.attempts(job), (folder / str(job)).read_text().splitlines()
        assert (office.seen(job).status, office.endings(job)) == ("succeeded", ["succeeded"])
        assert [each.attempt_no for each in attempts] == list(range(1, len(attempts) + 1))
        assert [each.status for each in attempts][-1] == "succeeded"
        assert "overlap" not in lines
        assert lines[-1] == "end"
    assert (
        office.sql(
            "select worker_id from job_workers where last_seen_at > now() - interval '2 s' and running_count > 0"
        )
        == []
    )


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_command_ends_with_its_worker(office: Office, tmp_path: Path, how: signal.Signals) -> None:
    """Else it would go on while another worker runs the same job. A worker that stands still is gone when its lease is over."""
    commands, folder = commands_file(tmp_path, 20)
    office.empty()
    office.define(max_attempts=50, arg_schema={})
    job = office.add()
    log = folder / str(job)
    first, second = worker(office, commands), None
    try:
        wait_until(lambda: log.exists() and log.read_text(), 300)
        first.send_signal(how)
        second = worker(office, commands)
        wait_until(lambda: [each.status for each in office.attempts(job)][:1] == ["failed"], 300)

        def taken_over() -> bool:
            office.pass_time(60)
            return len(log.read_text().splitlines()) > 1

        wait_until(taken_over, 300)
    finally:
        for each in (first, second):
            if each is not None:
                each.kill()
                each.wait()
    assert log.read_text().splitlines()[:2] == ["start", "start"]


def test_what_ended_in_an_outage_is_not_run_again_though_every_lease_is_over(template: str, tmp_path: Path) -> None:
    """While the database is away nobody can have another's job, and a tick that finds it back calls nothing lost too soon."""
    outage, lease = tmp_path / "outage", 10
    commands, folder = commands_file(tmp_path, until=outage)
    with scratch_server() as server:
        admin = ServerAdmin(server.url())
        with job_office(admin, admin.create_template()) as office:
            office.define(max_attempts=2, arg_schema={})
            jobs = [office.add() for _ in range(4)]
            workers = [worker(office, commands, "--concurrency", "2", "--lease", str(lease)) for _ in range(2)]

            def lines() -> list[list[str]]:
                return [path.read_text().splitlines() for path in folder.iterdir()]

            try:
                wait_until(lambda: lines() == [["start"]] * len(jobs), 300)
                server.kill()
                outage.touch()
                wait_until(lambda: lines() == [["start", "end"]] * len(jobs), 300)
                time.sleep(lease + 1)
                server.restart()
                for engine in office._own_engines:
                    engine.dispose()
                wait_until(lambda: not office.value("select count(*) from run where finished_at is null"), 300)
            finally:
                for each in workers:
                    each.kill()
                    each.wait()
            assert [[each.status for each in office.attempts(job)] for job in jobs] == [["succeeded"]] * len(jobs)
            assert lines() == [["start", "end"]] * len(jobs)
        admin.close()
