"""Guards that the local Postgres is real, private, durable against kill -9, and never left running."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pg8000
import pytest
import sqlalchemy as sa

from infra.local import binaries
from infra.local.binaries import PostgresError
from infra.local.postgres import Postgres
from tests.support.databases import scratch_directory, scratch_server

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(pg8000.__file__).resolve().parents[1]

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root lends the server another account")

START = """
import json, os, sys, time
from pathlib import Path
from infra.local.postgres import Postgres
server = Postgres.start(Path(sys.argv[1]))
holder = os.fork() if "fork" in sys.argv else 0
if holder or "fork" not in sys.argv:
    parent_of = lambda pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    print(json.dumps({"server": server.pid, "guard": parent_of(server.pid), "holder": holder}), flush=True)
time.sleep(60)
"""
START_AND_STOP = """
import os, sys
from pathlib import Path
from infra.local.postgres import Postgres
with Postgres.start(Path(sys.argv[1])) as server:
    print(server.directory, Path(f"/proc/{server.pid}/exe").readlink(), Path(f"/proc/{server.pid}").stat().st_uid)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with scratch_server() as server:
        yield server


@pytest.fixture(scope="module")
def used_directory() -> Iterator[Path]:
    """The data of servers that ended one after the other."""
    with scratch_directory() as path:
        yield path


@pytest.fixture
def directory() -> Iterator[Path]:
    with scratch_directory() as path:
        yield path


def execute(server: Postgres, sql: str) -> list[tuple[object, ...]]:
    engine = sa.create_engine(server.url(), poolclass=sa.NullPool)
    with engine.begin() as connection:
        result = connection.exec_driver_sql(sql)
        return [tuple(row) for row in result] if result.returns_rows else []


def listening(server: Postgres) -> list[str]:
    """The addresses on which anything listens on the server's port, as the kernel writes them."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return [line[1] for line in lines if line[1].endswith(f":{server.port:04X}") and line[3] == "0A"]


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_dead(pid: int, seconds: float = 5) -> None:
    deadline = time.monotonic() + seconds
    while lives(pid):
        assert time.monotonic() < deadline, f"{pid} still lives after {seconds} seconds"
        time.sleep(0.02)


@contextlib.contextmanager
def started_by_another_process(directory: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, int]]]:
    command = [sys.executable, "-c", START, str(directory / "postgres"), *words]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as starter:
        assert starter.stdout is not None
        pids = json.loads(starter.stdout.readline())
        try:
            yield starter, pids
        finally:
            starter.kill()
            if pids["holder"]:
                os.kill(pids["holder"], signal.SIGKILL)


def test_a_server_answers_and_keeps_its_commits_honest(server: Postgres) -> None:
    settings = (
        "select current_setting('fsync'), current_setting('synchronous_commit'), current_setting('server_encoding')"
    )

    assert execute(server, settings) == [("off", "on", "UTF8")]


@linux_only
def test_a_server_listens_on_the_loopback_only(server: Postgres) -> None:
    assert listening(server) == [f"0100007F:{server.port:04X}"]
    assert execute(server, "select current_setting('unix_socket_directories')") == [("",)]


@pytest.mark.full
def test_no_committed_row_is_lost_when_the_server_is_killed(server: Postgres) -> None:
    execute(server, "create table kept (id int primary key)")
    engine = sa.create_engine(server.url(), poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for number in range(200):
            connection.exec_driver_sql(f"insert into kept values ({number})")
        port = server.port

        server.kill()
        connection.invalidate()
    assert not server.running
    server.restart()

    assert server.port == port
    assert execute(server, "select count(*) from kept") == [(200,)]


@pytest.mark.full
@linux_only
def test_a_killed_server_leaves_no_child(server: Postgres) -> None:
    children = [pid for (pid,) in execute(server, "select pid from pg_stat_activity where pid <> pg_backend_pid()")]
    assert children

    server.kill()

    assert [pid for pid in children if isinstance(pid, int) and lives(pid)] == []
    server.restart()


@pytest.mark.full
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_stopped_server_can_start_again(server: Postgres, mode: Literal["fast", "immediate"]) -> None:
    server.stop(mode)
    server.stop(mode)
    assert not server.running
    with pytest.raises(sa.exc.DBAPIError):
        execute(server, "select 1")

    server.restart()

    assert execute(server, "select 1") == [(1,)]


@pytest.mark.full
def test_two_servers_use_two_ports_and_a_taken_port_is_never_mistaken_for_ones_own(
    server: Postgres, used_directory: Path
) -> None:
    with Postgres.start(used_directory / "postgres") as other:
        assert other.port != server.port

    with pytest.raises(PostgresError, match="Address already in use"):
        Postgres.start(used_directory / "postgres", port=server.port)

    assert execute(server, "select 1") == [(1,)]


def test_a_second_server_on_the_same_data_is_refused_in_the_servers_own_words(server: Postgres) -> None:
    with pytest.raises(PostgresError, match=r'(?s)set DATABASE_URL.*lock file "postmaster.pid" already exists'):
        Postgres.start(server.directory)

    assert execute(server, "select 1") == [(1,)]


@pytest.mark.full
def test_a_server_lives_longer_than_the_thread_that_started_it(server: Postgres) -> None:
    with ThreadPoolExecutor(max_workers=1) as pool:
        pool.submit(server.restart).result()

    assert execute(server, "select 1") == [(1,)]


@pytest.mark.full
@linux_only
@pytest.mark.parametrize("words", [(), ("fork",)], ids=["alone", "with a forked child that lives on"])
def test_the_server_is_gone_soon_after_its_starter_was_killed(used_directory: Path, words: tuple[str, ...]) -> None:
    with started_by_another_process(used_directory, *words) as (starter, pids):
        assert lives(pids["server"])

        starter.kill()

        wait_until_dead(pids["server"])
        wait_until_dead(pids["guard"])


@pytest.mark.full
@linux_only
def test_the_server_is_gone_soon_after_its_guard_was_killed(used_directory: Path) -> None:
    with started_by_another_process(used_directory) as (_, pids):
        os.kill(pids["guard"], signal.SIGKILL)

        wait_until_dead(pids["server"])


@pytest.mark.full
@root_only
def test_root_starts_a_server_from_and_for_folders_that_only_root_may_enter(
    directory: Path,
) -> None:
    private, temporary = directory / "private", directory / "tmp"
    private.mkdir(mode=0o700)
    temporary.mkdir()
    temporary.chmod(0o755)
    for part in (Path(binaries.WHEEL), Path(f"{binaries.WHEEL}.libs")):
        shutil.copytree(SITE / part, private / part, ignore=shutil.ignore_patterns("pginstall", "include"))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(private), str(ROOT), *sys.path]),
        "TMPDIR": str(temporary),
    }
    environment.pop("PG_BIN", None)

    command = [sys.executable, "-c", START_AND_STOP, str(private / "data")]
    home, executable, uid = subprocess.check_output(command, env=environment, text=True).split()

    assert home.startswith(f"{temporary}/baton-0/")
    assert executable.startswith(f"{temporary}/baton-0/")
    assert uid == str(binaries.NOBODY)
    assert private.stat().st_mode & 0o777 == 0o700


@root_only
def test_data_that_was_put_elsewhere_is_found_again(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    private = directory / "private"
    private.mkdir(mode=0o700)

    places = [binaries.reachable_directory(private / name, binaries.NOBODY) for name in ("one", "two", "one")]

    assert places[0] == places[2] != places[1]


def test_a_common_folder_that_somebody_else_could_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    trap = tmp_path / f"baton-{os.geteuid()}"
    trap.mkdir()
    trap.chmod(0o777)

    with pytest.raises(PostgresError, match="only we can write to"):
        binaries.common_directory()


def test_a_common_folder_that_is_a_link_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tmp_path.joinpath(f"baton-{os.geteuid()}").symlink_to(tmp_path, target_is_directory=True)

    with pytest.raises(PostgresError, match="only we can write to"):
        binaries.common_directory()


def test_a_wrong_pg_bin_says_which_setting_to_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PG_BIN", str(tmp_path))

    with pytest.raises(PostgresError, match="Set PG_BIN"):
        Postgres.start(tmp_path / "postgres")


@pytest.mark.full
@root_only
def test_a_normal_user_starts_a_server_under_the_own_account(directory: Path) -> None:
    user = next((entry.pw_uid for entry in pwd.getpwall() if entry.pw_uid not in (0, binaries.NOBODY)), None)
    home = directory / "home"
    home.mkdir()
    if user is None or not (python := python_of(user, home)):
        pytest.skip("there is no normal user here, or none who can run Python with this project")
    os.chown(home, user, user)

    ended = subprocess.run([*python, START_AND_STOP, str(home / "postgres")], check=False, **as_normal_user(user, home))

    assert ended.stderr == ""
    assert ended.stdout.split()[::2] == [str(home / "postgres"), str(user)]


def as_normal_user(user: int, home: Path) -> dict[str, Any]:
    environment = {"HOME": str(home), "TMPDIR": str(home), "PYTHONPATH": f"{ROOT}:{SITE}", "PATH": os.defpath}
    ids = {"user": user, "group": user, "extra_groups": []}
    return ids | {"env": environment, "cwd": home, "capture_output": True, "text": True}


def python_of(user: int, home: Path) -> list[str]:
    """The start of a command line that runs a script of this project as `user`, if there is one."""
    check = "import sys, infra.local.postgres; sys.exit(sys.version_info < (3, 11))"
    for python in (sys.executable, "/usr/bin/python3"):
        with contextlib.suppress(OSError):
            if subprocess.run([python, "-B", "-c", check], check=False, **as_normal_user(user, home)).returncode == 0:
                return [python, "-B", "-c"]
    return []


@pytest.mark.parametrize("password", ["", "postgres"])
def test_nobody_is_let_in_without_the_password(server: Postgres, password: str) -> None:
    """Not even as the superuser, from this machine: others use it too."""
    with pytest.raises((pg8000.dbapi.Error, OSError)):
        pg8000.dbapi.connect(user="postgres", host="127.0.0.1", port=server.port, password=password).close()


def test_the_password_of_a_server_is_not_readable_by_others_and_on_no_command_line(server: Postgres) -> None:
    password = str(sa.make_url(server.url()).password)

    assert server.directory.joinpath("password").stat().st_mode & 0o077 == 0
    assert password.encode() not in Path(f"/proc/{server.pid}/cmdline").read_bytes()


@pytest.mark.full
def test_a_server_that_trusted_everybody_trusts_nobody_after_its_next_start(directory: Path) -> None:
    """Data of an earlier version: the rows are kept, the open door is not."""
    with Postgres.start(directory / "postgres") as old:
        execute(old, "create table kept as select 1 as n")
        hba = old.directory / "pgdata" / "pg_hba.conf"
    hba.write_text("host all all 127.0.0.1/32 trust\n")
    hba.parents[1].joinpath("password").unlink()

    with Postgres.start(directory / "postgres") as server:
        assert execute(server, "select n from kept") == [(1,)]
        with pytest.raises((pg8000.dbapi.Error, OSError)):
            pg8000.dbapi.connect(user="postgres", host="127.0.0.1", port=server.port, password="").close()
