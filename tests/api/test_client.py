"""Guards `baton` over the API: as one types it, against the real handler over real HTTP."""

from __future__ import annotations

import io
import json
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from infra.cli import main, make_parser
from infra.client import discover, kinds, session, show
from infra.client.http import Refusal, ask
from infra.client.parser import commands_of
from shared.kernel.auth import Role
from shared.kernel.clock import new_id
from shared.kernel.dead_letter import note_dead_letter
from shared.kernel.tick import roll_up
from tests.support.door import Door, TenantHouse
from tests.support.gateway import CLIENT_ID, Gateway, served

ROOT = Path(__file__).resolve().parents[2]
ONE = '{"lanes": 1, "target": 1}'


class Command:
    """`baton` with a home of its own; the place is a local cloud as its file describes it."""

    def __init__(self, gateway: Gateway, url: str, home: Path, said: pytest.CaptureFixture[str]) -> None:
        self.gateway, self.url, self.home, self._said = gateway, url, home, said
        state = {"endpoint": url, "outputs": {"ApiUrl": url, "UserPoolClientId": CLIENT_ID}}
        (home / session.STATE).write_text(json.dumps(state))

    def __call__(self, *arguments: str, code: int = 0) -> str:
        self._said.readouterr()
        ended_with = main(["--home", str(self.home), *arguments])
        said = "".join(self._said.readouterr())
        assert ended_with == code, said
        return said

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def baton(
    door: Door, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Command]:
    for name in ("BATON_URL", "BATON_TOKEN", "BATON_TENANT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    gateway = Gateway(door)
    with served(gateway) as url:
        yield Command(gateway, url, tmp_path, capsys)


@pytest.fixture
def as_admin(baton: Command, acme: TenantHouse, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("BATON_TOKEN", acme.machines[Role.ADMIN].token or "")
    return baton


@pytest.mark.full
def test_a_login_is_kept_for_its_owner_alone_and_renewed(
    baton: Command, acme: TenantHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    baton.gateway.people["ann@example.com"] = ("canary-pass", acme.admin.subject or "")
    monkeypatch.setattr(sys, "stdin", io.StringIO("wrong\ncanary-pass\n"))
    assert "Incorrect username or password" in baton("login", "ann@example.com", "--password-stdin", code=1)

    assert "Logged in" in baton("login", "ann@example.com", "--password-stdin")

    kept = baton.home / session.KEPT
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "canary" not in kept.read_text()
    assert baton.json("me")["actor"] == acme.admin.actor

    baton.gateway.tokens.clear()  # an hour later
    assert baton.json("runs") == {"runs": [], "next": None}
    baton.gateway.tokens.clear()
    assert baton.json("me")["actor"] == acme.admin.actor  # what was renewed was kept

    baton("logout")
    assert not kept.exists()


def test_a_deployment_is_named_by_its_url_and_its_login_is_kept_at_home(
    baton: Command, acme: TenantHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    (baton.home / session.STATE).unlink()
    assert "`baton up`" in baton("runs", code=1)
    assert "--client-id" in baton("login", "--url", baton.url, code=1)
    place = session.Place(baton.url, baton.url, CLIENT_ID)
    baton.gateway.people["ann@example.com"] = ("pass", acme.admin.subject or "")
    session.log_in(place, session.user_home() / session.KEPT, "ann@example.com", "pass")

    assert baton.json("me")["actor"] == acme.admin.actor
    assert baton.json("me", "--url", baton.url + "/")["actor"] == acme.admin.actor
    assert "not logged in to https://elsewhere.example" in baton("me", "--url", "https://elsewhere.example", code=1)
    assert "is not encrypted" in _refused_plain()


def _refused_plain() -> str:
    with pytest.raises(Refusal) as caught:
        ask("GET", "http://elsewhere.example/", {})
    return str(caught.value)


@pytest.mark.full
def test_a_run_from_its_start_to_its_retry(as_admin: Command, door: Door) -> None:
    baton = as_admin
    run_id = baton("start", "tally", "--params", ONE, "--label", "mine").strip()

    assert [(run["id"], run["label"]) for run in baton.json("runs", "--label", "mine")["runs"]] == [(run_id, "mine")]
    assert baton.json("run", "list", "--status", "failed")["runs"] == []
    assert run_id in baton("run", "show", run_id)
    baton("pause", run_id, "--reason", "lunch")
    assert "The run is paused." in baton("why", run_id)
    assert "The run is paused." in baton("runs")
    baton("resume", run_id)
    baton("cancel", run_id)
    door.finish(UUID(run_id))
    assert "already canceled" in baton("cancel", run_id, code=1)
    baton("retry", run_id, "--reason", "again")
    door.finish(UUID(run_id))

    assert baton.json("run", "show", run_id)["status"] == "succeeded"
    told = [line["type"] for line in baton.json("run", "history", run_id)["lines"]]
    assert [type_ for type_ in told if type_ in {"canceled", "succeeded"}] == ["canceled", "succeeded"]
    acts = [(line["action"], line["reason"]) for line in baton.json("audit")["lines"]]
    assert (acts[0], acts[-2:]) == (("run.retry", "again"), [("run.pause", "lunch"), ("run.start", "")])


@pytest.mark.full
def test_whoever_watches_sees_the_end_and_its_exit_code(
    as_admin: Command, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    baton = as_admin
    run_id = UUID(baton("start", "tally", "--params", ONE).strip())
    looks = []

    def a_second() -> None:
        looks.append(1)
        door.finish(run_id)

    monkeypatch.setattr(show, "pause", a_second)

    said = baton("watch")

    assert said.startswith("queued: 0 of 1 lane, 0 steps")
    assert "succeeded (done) after" in said
    assert looks == [1]
    assert baton.json("watch", str(run_id))["status"] == "succeeded"
    canceled = baton("start", "tally", "--params", ONE).strip()
    baton("cancel", canceled)
    door.finish(UUID(canceled))
    assert "canceled" in baton("watch", canceled, code=1)


def test_refusals_are_one_sentence_or_the_problem_document(as_admin: Command) -> None:
    baton = as_admin
    assert baton("start", "nothing", code=1).startswith("baton: Unknown kind 'nothing'. Available: ")
    assert "not valid JSON" in baton("start", "tally", "--params", "{", code=1)
    assert "must be a JSON object" in baton("start", "tally", "--params", "[]", code=1)
    assert "'target' is not NAME=VALUE" in baton("run", "start", "tally", "--param", "target", code=1)
    assert baton("run", "show", str(new_id()), code=1).startswith("baton: Not found.")
    assert "`created_from`: a date and a time" in baton("runs", "--created-from", "yesterday", code=1)
    assert json.loads(baton("run", "show", str(new_id()), "--json", code=1))["code"] == "not_found"
    with pytest.raises(SystemExit) as usage:
        baton("run", "show", "no-id")
    assert usage.value.code == 2


@pytest.mark.parametrize(
    ("status", "message", "said"),
    [
        (403, "Forbidden", "the gateway in front of the API refused"), (413, "Request Entity Too Large", "larger than the gateway takes"),
        (429, "Too Many Requests", "too many requests at once"), (500, "Internal Server Error", "Its log says why: `baton logs`"),
        (503, "Service Unavailable", "didn't answer in time"), (504, "Endpoint request timed out", "didn't answer in time"),
    ],
)  # fmt: skip
def test_what_the_gateway_answers_itself_is_told_with_what_to_do(
    as_admin: Command, status: int, message: str, said: str
) -> None:
    """A change that it was asked for may have been made: only a question can be asked again without a thought."""
    as_admin.gateway.says = (status, message)

    asked, changed = as_admin("runs", code=1), as_admin("token", "add", "x", "--role", "viewer", code=1)

    assert said in asked
    assert said in changed
    assert message not in asked + changed
    assert "may have been done" not in asked
    assert ("may have been done" in changed) == (status >= 500)


def test_parameters_are_named_one_by_one_or_given_as_json(as_admin: Command, door: Door) -> None:
    given = (
        "--params",
        '{"lanes": 7, "target": 2}',
        "--param",
        "lanes=1",
        "--param",
        "note=as it is",
        "--param",
        'code="007"',
    )
    run_id = as_admin("run", "start", "tally", *given).strip()

    assert as_admin.json("run", "show", run_id)["params"] == {
        "lanes": 1,
        "target": 2,
        "note": "as it is",
        "code": "007",
    }


INGESTION = {"source": "nivoda", "low": 200, "high": 300, "partition_records": 2_000, "page_size": 30, "recrawls": 2}


@pytest.mark.full
def test_a_kind_brings_its_own_commands(as_admin: Command, door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    baton = as_admin
    run_id = baton("page-ingest", "start", "--high", "300", "--label", "stones").strip()
    assert INGESTION.items() <= baton.json("run", "show", run_id)["params"].items()
    assert baton.json("page-ingest", "show", run_id)["partitions"] == 0
    short = baton("ingest", "--high", "300").strip()
    assert baton.json("run", "show", short)["params"] == baton.json("run", "show", run_id)["params"]

    cursor = {
        "low": 200,
        "high": 300,
        "crawl": 2,
        "offset": 40,
        "counted": 50,
        "duplicates": 0,
        "split": False,
        "clean": False,
    }
    door.sql(
        "update lane set key = 'part:0000000200-0000000300#2', cursor = cast(:cursor as jsonb) where run_id = :id",
        id=run_id, cursor=json.dumps(cursor),
    )  # fmt: skip
    assert "$200 \N{EN DASH} $300, crawl 2" in baton("page-ingest", "partitions", run_id)
    baton("cancel", run_id)
    monkeypatch.setattr(
        show,
        "pause",
        lambda: door.sql("update run set status = 'canceled', finished_at = now() where id = :id", id=run_id),
    )
    assert "40 rows read" in baton("watch", run_id, code=1)


def test_a_file_that_is_there_is_a_kinds_commands(
    as_admin: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Discovered, not switched on; its words are known to `baton` before the local cloud is asked."""
    (tmp_path / "tally.py").write_text(TALLY)
    with monkeypatch.context() as joined:
        joined.setattr(kinds, "__path__", [*kinds.__path__, str(tmp_path)])
        discover.found.cache_clear()
        run_id = as_admin("tally", "count", "3").strip()
        assert {"tally", "ingest"} <= commands_of(make_parser()).keys()
    discover.found.cache_clear()
    del sys.modules["infra.client.kinds.tally"]

    assert as_admin.json("run", "show", run_id)["params"] == {"lanes": 1, "target": 3}
    assert "tally" not in commands_of(make_parser())


TALLY = """
from infra.client.command import command, group, started, starting

def add_commands(commands):
    made = starting(command(group(commands, "tally", "count"), "count", count, "count to a number"))
    made.add_argument("target", type=int)

def count(options):
    return started(options, "/runs", {"kind": "tally", "params": {"lanes": 1, "target": options.target}})
"""


def test_the_same_key_starts_one_run(as_admin: Command) -> None:
    first, again = (as_admin("start", "tally", "--params", ONE, "--key", "k1") for _ in range(2))

    assert first == again
    assert len(as_admin.json("runs")["runs"]) == 1


@pytest.mark.full
def test_lists_are_read_page_after_page(as_admin: Command, door: Door, acme: TenantHouse) -> None:
    for _ in range(103):
        door.start(acme)

    told = as_admin.json("runs", "--limit", "102")

    assert len(told["runs"]) == 102
    assert told["next"] is not None
    assert as_admin.gateway.requests.count(("GET", "/machine/api/v1/runs")) == 2


@pytest.mark.full
def test_tokens_and_gates(as_admin: Command, door: Door, acme: TenantHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    baton = as_admin
    made = baton("token", "add", "ci", "--role", "viewer").strip()
    (token,) = [each for each in baton.json("token", "list")["tokens"] if each["name"] == "ci"]
    with monkeypatch.context() as other:
        other.setenv("BATON_TOKEN", made)
        assert baton.json("me")["tenants"][0]["role"] == "viewer"
        assert "needs the role" in baton("start", "tally", code=1)
    baton("token", "revoke", token["id"])
    monkeypatch.setenv("BATON_TOKEN", made)
    assert "in BATON_TOKEN is wrong, expired or revoked" in baton("me", code=1)
    monkeypatch.setenv("BATON_TOKEN", acme.machines[Role.ADMIN].token or "")
    assert baton("rate-limits") == baton("gates") == "Nothing to show.\n"


def test_now_is_calm_on_a_good_day_and_names_the_cause_on_a_bad_one(
    as_admin: Command, door: Door, acme: TenantHouse
) -> None:
    baton = as_admin
    calm = baton("overview")
    run_id = door.start(acme)
    door.sql("update lane set next_due_at = now() - interval '1 hour', sent_at = null where run_id = :id", id=run_id)
    failed = door.start(acme, max_steps=1)
    door.finish(failed)
    door.sql("update step set at = at - interval '2 minutes' where tenant_id = :t", t=acme.id)
    door.call(acme.member, "POST", f"/runs/{door.start(acme)}/pause", {})
    door.call(acme.admin, "POST", "/gates/shelf/close", {"reason": "they move", "for_s": 60})
    roll_up(door.worker_ports, None)

    said = baton("now")

    assert "0 open, 0 made progress in the last 5 minutes" in calm
    assert "nothing overdue, nothing failed, nothing waiting" in calm
    assert "hour up to two minutes ago: 0 steps" in calm
    assert "2 open (1 queued, 1 paused), 0 made progress" in said
    for word in (
        "overdue",
        str(run_id),
        "failed in the last 24 hours",
        str(failed),
        "waiting",
        "The run is paused.",
        "they move",
    ):
        assert word in said
    assert "nothing" not in said
    assert "hour up to two minutes ago: 2 steps, 1 failed, 1 rows" in said
    assert "█" in said
    told = baton.json("now")
    assert [late["id"] for late in told["late"]["runs"]] == [str(run_id)]


def test_system_says_whether_the_machinery_is_well(
    as_admin: Command, door: Door, acme: TenantHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    door.worker_ports.store.beat("tick")
    run_id = door.start(acme)
    door.sql("update lane set next_due_at = now() - interval '1 hour', sent_at = null where run_id = :id", id=run_id)
    note_dead_letter(door.worker_ports, door.baton(run_id).to_json(), 10)

    said = as_admin("system")

    assert "s ago" in said
    assert "1 in 24 hours (dead_letter 1)" in said
    assert str(run_id) in said
    assert "all tenants" not in said
    assert as_admin.json("system")["unsent"] == 1
    monkeypatch.setenv("BATON_TOKEN", acme.machines[Role.MEMBER].token or "")
    assert "needs the role admin" in as_admin("system", code=1)
    as_admin("now")


def test_a_super_admin_sees_the_tables_of_all(
    capsys: pytest.CaptureFixture[str], door: Door, acme: TenantHouse
) -> None:
    show.system(door.call(door.super_admin.choosing(acme.id), "GET", "/system").json())

    said = capsys.readouterr().out
    assert "all tenants" in said
    assert "signals waiting" in said
    assert "pulse" in said


def test_a_client_that_only_speaks_http_imports_no_aws_and_no_database() -> None:
    code = "import sys, infra.cli; print(sorted({'boto3', 'botocore', 'sqlalchemy', 'pg8000', 'shared'} & set(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert told.stdout.strip() == "[]"


def test_a_file_of_searches_is_applied_as_it_is_now(
    as_admin: Command, door: Door, acme: TenantHouse, tmp_path: Path
) -> None:
    """What was changed in the file is changed here, and the answer says what became of each."""
    door.sql(
        "insert into connection (id, tenant_id, provider, name, settings, secret_ref, created_by) values (:id, :t, 'infojobs', 'main', cast(:s as jsonb), '1', 'test')",
        id=new_id(), t=acme.id, s='{"client_id": "a"}',
    )  # fmt: skip
    file = tmp_path / "searches.json"
    one = {
        "name": "python",
        "client": "infojobs",
        "connection": "main",
        "params": {"q": "python"},
        "seed_from": "2026-11-01",
    }
    file.write_text(json.dumps([one]))
    assert "saved" in as_admin("search", "apply", str(file))

    file.write_text(json.dumps([{**one, "max_pages": 7}, {**one, "name": "java", "params": {"q": "java"}}]))
    said = as_admin("search", "apply", str(file))

    assert "changed: max_pages" in said
    assert "saved" in said
    assert "as it was" in as_admin("search", "apply", str(file))
    file.write_text(json.dumps([{**one, "client": "adzuna"}]))
    assert "a search stays with its job board, infojobs" in as_admin("search", "apply", str(file), code=1)
