"""Guards that a deployment breaks nobody: the release before, as it was, works on the schema of today."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections import Counter
from itertools import count
from pathlib import Path

import pytest

from shared.kernel.baton import read_baton
from shared.kernel.deliver import deliver
from shared.kernel.model import Due
from shared.kernel.step import take_turn
from tests.releases.take import ARCHIVE, COMMIT, KEPT
from tests.support.databases import ServerAdmin, as_user
from tests.support.house import ALICE, FIFO, House

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
# A claim, a commit, a tick: of queues, and of what is pulled.
TESTS = [path for path in KEPT if re.search(r"/test_\w+\.py$", path)]


# One function of that release: takes the turns of the batons that it is handed, and tells which ones it sends on.
FUNCTION = """
import sys
from shared.kernel import db
from shared.kernel.baton import read_baton
from shared.kernel.ports import Ports
from shared.kernel.settings import Relay
from shared.kernel.step import take_turn
from shared.kernel.store import PgStore
from tests.support.tally import QuietWorld, tally_kind

class Told:
    def send(self, queue, messages):
        for each in messages:
            print(each.body, flush=True)
        return []

ports = Ports(store=PgStore(db.connect_engine(sys.argv[1])), queue=Told(), relay=Relay(step_timeout_s=60, lease_s=70))
kind = tally_kind(QuietWorld())
for line in sys.stdin:
    take_turn(read_baton(line), kind, ports)
    print("", flush=True)
"""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code of the release before, beside the migrations of today."""
    folder = tmp_path_factory.mktemp("release")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    (folder / "infra").symlink_to(ROOT / "infra")
    return folder


def test_two_releases_at_once_take_turns_of_the_same_lanes_and_do_nothing_twice(house: House, release: Path) -> None:
    """As a canary has it: one step by the old code, the next by the new. Whoever hands a baton on knows nothing of the other."""
    run_id = house.start(lanes=3, target=9)
    command = [sys.executable, "-c", FUNCTION, as_user(house.url, "baton_worker")]
    by: Counter[str] = Counter()
    with subprocess.Popen(command, cwd=release, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as old:
        assert old.stdin is not None
        assert old.stdout is not None
        for n in count():
            if not (received := house.queue.receive(FIFO)):
                break
            (message,) = received
            house.queue.delete(FIFO, message.receipt)
            if n % 2:
                take_turn(read_baton(message.body), house.kind, house.ports)
            else:
                print(message.body, file=old.stdin, flush=True)
                bodies = list(iter(old.stdout.readline, "\n"))
                assert "" not in bodies, "the old release ended"
                dues = [Due(read_baton(body), ALICE, 0) for body in bodies]
                assert deliver(house.ports, dues) == []
            by["new" if n % 2 else "old"] += 1
        old.stdin.close()

    assert house.run(run_id).status == "succeeded"
    assert min(by.values()) >= 12, by
    (told,) = house.sql(
        "select count(*) as rows, count(distinct (lane, n)) as once from tally where run_id = :id", id=run_id
    )
    assert told.rows == told.once == 3 * 9
    assert house.sql("select 1 from repair") == []


def test_no_migration_breaks_the_functions_that_are_not_replaced_yet(
    release: Path, postgres_server: ServerAdmin
) -> None:
    """The old code and its own tests, with the migrations of today. Whoever contracts the schema waits for the next release,
    and takes that one along: `python -m tests.releases.take <commit>`."""
    environment = {**os.environ, "DATABASE_URL": postgres_server.url("postgres"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", *TESTS]

    done = subprocess.run(command, cwd=release, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, f"release {COMMIT.read_text()}{done.stdout[-5000:]}{done.stderr[-2000:]}"
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) > 40, done.stdout
    assert "skipped" not in done.stdout.splitlines()[-1]
