"""Guards `baton` against what a newcomer, a script and a bad day do to it: every fault is one sentence, none of them a
traceback, none of them something that was not asked for."""

from __future__ import annotations

import getpass
import io
import json
import os
import sys
import threading
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from infra import remote_worker
from infra.cli import main
from infra.client import http, show
from infra.client.kinds import source
from infra.worker import parser as worker_parser

API = "/machine/api/v1"
RUN = "0197a3b2-1c2d-7e3f-8a4b-5c6d7e8f9a0b"
NOWHERE = "http://127.0.0.1:9"
PAGE = (200, "<html>the console</html>")


def a_run(status: str) -> dict[str, Any]:
    progress = {"lanes": 1, "lanes_ended": 0, "lanes_failed": 0, "more_lanes": False, "steps": 1}
    times = {"created_at": "2026-11-17T10:00:00Z", "finished_at": "2026-11-17T10:00:01Z"}
    return {"id": RUN, "kind": "tally", "status": status, "state": status, "outcome": None, "error": None, "why": None,
            "progress": progress, **times}  # fmt: skip


class Api:
    """Answers as it is told to, on loopback: the next of a list, the last of it again and again."""

    def __init__(self) -> None:
        self.answers: dict[str, list[tuple[int, Any]]] = {}
        self.asked: list[tuple[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                asked = f"{self.command} {self.path.removeprefix(API)}"
                outer.asked.append((asked, json.loads(body) if body else None))
                known = outer.answers.get(asked) or outer.answers.get(asked.partition("?")[0])
                status, told = (
                    (404, {"detail": "Not found."}) if known is None else known.pop(0) if known[1:] else known[0]
                )
                said = (told if isinstance(told, str) else json.dumps(told)).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            do_POST = do_PUT = do_GET  # noqa: N815 - http.server calls them so

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def sent(self, asked: str) -> list[Any]:
        return [body for line, body in self.asked if line == asked]


@pytest.fixture
def api() -> Iterator[Api]:
    place = Api()
    thread = threading.Thread(target=place.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield place
    place.server.shutdown()
    thread.join()
    place.server.server_close()


Baton = Callable[..., tuple[int, str]]


@pytest.fixture
def baton(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Baton:
    monkeypatch.setenv("BATON_TOKEN", "baton_x")
    monkeypatch.setenv("BATON_URL", api.url)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(http, "AGAIN_AFTER_S", 0.0)
    monkeypatch.setattr(show, "pause", lambda: None)

    def run(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["--home", str(tmp_path), *words])
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


def typed(monkeypatch: pytest.MonkeyPatch, text: str, *, terminal: bool = False) -> None:
    given = io.StringIO(text)
    monkeypatch.setattr(given, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stdin", given)


# --- where the API is -------------------------------------------------------------------------------------------------


def test_the_page_of_another_server_is_not_taken_for_an_answer(api: Api, baton: Baton) -> None:
    """Who pastes the console's address gets a page for every path."""
    api.answers = {"GET /runs": [PAGE], "GET /me": [PAGE]}

    for words in (("runs",), ("me",), ("smoke", "--json")):
        code, said = baton(*words)
        assert (code, "Traceback" in said) == (1, False)
        assert "did not answer as Baton's API does" in said, words


@pytest.mark.parametrize("url", ["api.example.com", "localhost:8000", "http://[::1", "https://api:port", "ftp://api"])
def test_what_is_no_address_of_an_api_is_called_so(baton: Baton, url: str) -> None:
    code, said = baton("me", "--url", url)

    assert code == 1
    assert said.startswith("baton: ")
    assert "is not the address of an API" in said or "is not an address" in said


@pytest.mark.parametrize("token", ["baton_x\r", "baton_\N{EURO SIGN}"])
def test_a_token_that_cannot_be_sent_is_no_crash(baton: Baton, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("BATON_TOKEN", token)

    assert "can't be sent" in baton("me")[1]


def test_a_user_pool_that_answers_with_a_page_is_no_crash(
    api: Api, baton: Baton, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.answers = {"POST /": [PAGE]}
    monkeypatch.setenv("AWS_ENDPOINT_URL", api.url)
    typed(monkeypatch, "secret\n")

    code, said = baton(
        "login", "ann@example.com", "--url", api.url, "--client-id", "c", "--region", "r", "--password-stdin"
    )

    assert (code, "did not answer as a user pool does" in said) == (1, True)


def test_a_login_that_is_left_is_of_no_use_to_whoever_finds_it(api: Api, baton: Baton, tmp_path: Path) -> None:
    kept = {"url": api.url, "pool_url": api.url, "client_id": "c", "access_token": "a", "refresh_token": "r"}
    for pool in (api.url, NOWHERE):
        (tmp_path / "session.json").write_text(json.dumps({**kept, "pool_url": pool}))
        assert baton("logout") == (0, "Logged out.\n"), "also when nobody hears it"
        assert not (tmp_path / "session.json").exists()
    assert api.sent("POST /") == [{"ClientId": "c", "Token": "r"}]


# --- a bad day --------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_path_that_the_gateway_does_not_have_is_not_a_run_that_is_not_there(api: Api, baton: Baton) -> None:
    gateway = (404, {"message": "Not Found"})  # while a local cloud starts, too
    api.answers = {
        f"GET /runs/{RUN}": [(200, a_run("running")), gateway, (200, a_run("succeeded"))],
        "GET /me": [gateway],
    }

    assert "did not answer as Baton's API does" in baton("me")[1]
    assert baton("watch", RUN)[0] == 0


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_whoever_watches_is_not_told_that_a_run_failed_because_the_api_was_busy(
    api: Api, baton: Baton, status: int
) -> None:
    busy = (status, {"detail": "The database is busy."})
    api.answers = {f"GET /runs/{RUN}": [(200, a_run("running")), busy, busy, (200, a_run("succeeded"))]}

    code, said = baton("watch", RUN)

    assert code == 0
    assert said.count("The database is busy.; trying again") == 1
    assert said.strip().splitlines()[-1].startswith("succeeded after")


def test_whoever_watches_does_not_wait_for_ever(api: Api, baton: Baton, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MOST_AGAIN", 3)
    api.answers = {f"GET /runs/{RUN}": [(200, a_run("running")), (503, {"detail": "Busy."})]}

    assert baton("watch", RUN)[0] == 1
    assert len(api.asked) == 4
    api.answers = {f"GET /runs/{RUN}": [(503, {"detail": "Busy."})]}
    baton("watch", RUN)
    assert len(api.asked) == 5, "a cloud that is not there is not waited for at all"


def test_a_program_that_watches_gets_one_answer_and_the_exit_code(api: Api, baton: Baton) -> None:
    api.answers = {
        f"GET /runs/{RUN}": [(200, a_run("running")), (200, a_run("failed"))],
        "POST /runs": [(201, {"id": RUN})],
    }

    for words in (("watch", RUN), ("run", "start", "tally", "--watch")):
        code, said = baton(*words, "--json")
        assert (code, json.loads(said)["status"]) == (1, "failed"), words


def test_whoever_stops_watching_reads_that_the_run_goes_on(
    api: Api, baton: Baton, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ctrl_c() -> None:
        raise KeyboardInterrupt

    api.answers = {f"GET /runs/{RUN}": [(200, a_run("running"))], "POST /runs": [(201, {"id": RUN})]}
    monkeypatch.setattr(show, "pause", ctrl_c)

    code, said = baton("run", "start", "tally", "--watch")

    assert code == 130
    assert said.endswith(
        f"\nIt goes on. Follow it with `baton watch {RUN[:13]}`, or end it with `baton cancel {RUN[:13]}`.\n"
    )
    assert baton("watch", RUN, "--json") == (130, ""), "a program reads JSON or nothing"


def test_what_a_run_came_to_is_said_once_and_counted_in_words(api: Api, baton: Baton) -> None:
    api.answers = {f"GET /runs/{RUN}": [(200, {**a_run("failed"), "outcome": "failed"})]}

    assert baton("watch", RUN)[1].splitlines()[-1] == "failed after 1.0 s: 1 step in 1 lane"


def test_a_reader_that_leaves_early_is_no_error(api: Api, baton: Baton, monkeypatch: pytest.MonkeyPatch) -> None:
    api.answers = {"GET /me": [(200, {"actor": "user:ann"})]}
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as nobody_reads:
        monkeypatch.setattr(sys, "stdout", nobody_reads)
        assert baton("me", "--json")[0] == 0
        nobody_reads.flush()  # as Python does at its end, where it can only print a traceback


# --- what was not asked for -------------------------------------------------------------------------------------------


def test_a_program_that_asks_for_json_does_not_change_everything_unasked(api: Api, baton: Baton) -> None:
    preview = (200, {"count": 7, "next": "t", "done": 7})
    api.answers = {"POST /runs/bulk": [preview, (200, {"done": 7, "next": None})]}
    bulk = ("run", "bulk", "cancel", "--reason", "tidy", "--json")

    code, said = baton(*bulk)

    assert code == 1
    assert "7 runs would be canceled" in json.loads(said)["detail"]
    assert [body["mode"] for body in api.sent("POST /runs/bulk")] == ["preview"]
    api.answers = {"POST /runs/bulk": [preview, (200, {"done": 7, "next": None})]}
    assert json.loads(baton(*bulk, "--yes")[1]) == {"done": 7}


def test_nobody_who_asks_for_no_days_gets_a_token_that_never_expires(api: Api, baton: Baton) -> None:
    api.answers = {"POST /tokens": [(422, {"detail": "body.expires_in_days: must be at least 1"})]}

    assert baton("token", "add", "ci", "--days", "0")[0] == 1
    assert api.sent("POST /tokens") == [{"name": "ci", "role": "member", "expires_in_days": 0}]


def test_all_waiting_lanes_are_woken_by_one_request(api: Api, baton: Baton) -> None:
    api.answers = {f"POST /runs/{RUN}/wake": [(200, {"lanes": 1200})]}

    assert baton("run", "wake", RUN, "--reason", "back") == (0, "The next step of 1,200 lanes is due now.\n")
    assert len(api.asked) == 1


def test_a_token_that_is_refused_is_not_fixed_by_a_login(
    api: Api, baton: Baton, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be used again, whoever has logged in."""
    api.answers = {"GET /me": [(401, {"detail": "Missing or invalid credentials."})]}

    assert "the token in BATON_TOKEN is wrong, expired or revoked" in baton("me")[1]


def test_a_worker_whose_token_is_refused_hears_of_a_token_for_workers(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no login to fall back on."""
    monkeypatch.setenv("BATON_TOKEN", "baton_x")
    monkeypatch.setattr(remote_worker, "AFTER_TROUBLE_S", 0.0)
    monkeypatch.setattr(remote_worker, "until_signaled", lambda _: None)
    monkeypatch.setattr(remote_worker.RemoteWorker, "run", lambda worker: worker._claim(1))
    api.answers = {"POST /worker/jobs/claim": [(401, {"detail": "Missing or invalid credentials."})]}

    remote_worker.work_for(worker_parser().parse_args(["--url", api.url]), ["default"])

    (said,) = [record.__dict__["error"] for record in caplog.records if record.message == "no jobs could be taken"]
    assert said.startswith("the token in BATON_TOKEN is wrong, expired or revoked. ")
    assert "`baton token add NAME --role worker`" in said
    assert "login" not in said


def test_a_tenant_can_be_named(api: Api, baton: Baton) -> None:
    mine = [{"id": RUN, "name": "Acme", "role": "admin"}]
    api.answers = {"GET /me": [(200, {"tenants": mine})], "GET /runs": [(200, {"runs": [], "next": None})]}

    assert baton("runs", "--as-tenant", "Acme") == (0, "Nothing to show.\n")
    assert baton("runs", "--as-tenant", RUN) == (0, "Nothing to show.\n")
    said = "none of your tenants is named 'Amce'. List them with `baton me`, and use the ID"
    assert baton("runs", "--as-tenant", "Amce") == (1, f"baton: {said}\n")
    assert [asked.partition("?")[0] for asked, _ in api.asked] == ["GET /me", "GET /runs", "GET /runs", "GET /me"]


# --- what people type -------------------------------------------------------------------------------------------------


def test_a_question_that_nobody_answers_ends_the_command(
    api: Api, baton: Baton, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.answers = {"POST /runs/bulk": [(200, {"count": 7, "next": "t"})]}
    for words in (
        ("login", "--url", api.url, "--client-id", "c", "--region", "r"),  # the email
        ("run", "bulk", "cancel", "--reason", "tidy"),
    ):
        typed(monkeypatch, "")
        code, said = baton(*words)
        assert (code, "the input ended" in said) == (1, True), words
    assert [body["mode"] for body in api.sent("POST /runs/bulk")] == ["preview"]


@pytest.mark.parametrize("given", ["[1]", '"word"', "7", "{", ""])
def test_a_secret_that_is_no_object_is_explained(baton: Baton, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    typed(monkeypatch, given)

    code, said = baton("connection", "add", "nivoda", "main")

    assert (code, "pass the secret as a JSON object" in said) == (1, True)


def test_a_person_is_asked_for_every_part_of_a_secret(api: Api, baton: Baton, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"required": ["client_id", "client_secret"], "properties": {}}
    api.answers = {
        "GET /providers": [(200, {"providers": [{"name": "mce", "secret": schema}]})],
        "POST /connections": [(201, {"id": RUN})],
    }
    typed(monkeypatch, "", terminal=True)
    monkeypatch.setattr("getpass.getpass", lambda prompt: f"typed after {prompt}")

    assert baton("connection", "add", "mce", "main")[0] == 0
    assert "unknown provider 'mec'. Available: mce" in baton("connection", "add", "mec", "main")[1]

    (sent,) = api.sent("POST /connections")
    assert sent["secret"] == {"client_id": "typed after client_id: ", "client_secret": "typed after client_secret: "}


def test_a_connection_is_changed_and_keeps_what_nobody_names(
    api: Api, baton: Baton, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"id": RUN, "provider": "mce", "name": "main", "settings": {"mid": "1", "client_id": "a"}}
    api.answers = {
        "GET /connections": [(200, {"connections": [known], "next": None})],
        f"GET /connections/{RUN}": [(200, known)],
        f"PUT /connections/{RUN}": [(200, {"ok": True})],
    }
    typed(monkeypatch, '{"client_secret": "new"}')

    assert baton("connection", "change", "main", "--set", "mid=2") == (
        0,
        "Changed. Check it with `baton connection check mce/main`.\n",
    )
    assert baton("connection", "change", "main", "--name", "first", "--new-secret")[0] == 0

    assert api.sent(f"PUT /connections/{RUN}") == [
        {"name": "main", "settings": {"mid": "2", "client_id": "a"}},
        {"name": "first", "settings": {"mid": "1", "client_id": "a"}, "secret": {"client_secret": "new"}},
    ]


def test_a_password_is_not_asked_for_where_nobody_can_type(
    api: Api, baton: Baton, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_terminal(_: str) -> str:
        """As the standard library does it: it warns, and reads standard input."""
        warnings.warn("Can not control echo on the terminal.", getpass.GetPassWarning, stacklevel=2)
        return sys.stdin.readline()

    typed(monkeypatch, "secret\n")
    monkeypatch.setattr("getpass.getpass", without_terminal)

    code, said = baton("login", "ann@example.com", "--url", api.url, "--client-id", "c", "--region", "r")

    assert (code, "--password-stdin" in said) == (1, True)


@pytest.mark.parametrize("words", [("upload",), ("resubmit", RUN)])
def test_an_empty_file_is_not_sent(api: Api, baton: Baton, tmp_path: Path, words: tuple[str, ...]) -> None:
    file = tmp_path / "empty.csv"
    file.touch()

    assert baton("rows", *words, str(file)) == (1, f"baton: {file} is empty\n")
    assert api.asked == []


def test_a_number_that_is_none_is_refused_by_its_name(api: Api, baton: Baton) -> None:
    api.answers = {"POST /searches": [(422, {"detail": "params.salary_min: must be a number"})]}
    words = ("search", "add", "x", "--client", "adzuna", "--connection", "c", "--seed-from", "2026-10-01")

    assert baton(*words, "--param", "salary_min=much") == (1, "baton: params.salary_min: must be a number\n")
    baton(*words, "--param", "salary_min=100")
    assert [body["params"]["salary_min"] for body in api.sent("POST /searches")] == ["much", 100]


# --- long answers -----------------------------------------------------------------------------------------------------


def test_a_long_timeline_is_shown_to_its_end(api: Api, baton: Baton) -> None:
    lines: list[dict[str, Any]] = [
        {"n": n, "at": "2026-11-17T10:00:00Z", "epoch": 1, "type": f"line-{n}", "data": None} for n in (1, 2, 3)
    ]
    api.answers = {
        f"GET /runs/{RUN}/history": [(200, {"lines": lines[:2], "next": 2})],
        f"GET /runs/{RUN}/history?after=2": [(200, {"lines": lines[2:], "next": None})],
    }

    assert "line-3" in baton("run", "history", RUN)[1]
    assert json.loads(baton("run", "history", RUN, "--json")[1]) == {"lines": lines, "next": None}


def test_rows_that_wait_are_asked_for_by_the_beginning_of_their_job(api: Api, baton: Baton) -> None:
    api.answers = {
        "GET /runs": [(200, {"runs": [{"id": RUN}], "next": None})],
        "GET /pending": [(200, {"items": [], "next": None})],
    }

    assert baton("rows", "pending", "--job", RUN[:13])[0] == 0
    assert f"job_id={RUN}" in api.asked[-1][0]


@pytest.mark.full
def test_json_is_what_the_api_answered_about_sources(api: Api, baton: Baton) -> None:
    told = {"sources": [{"name": "shop", "resources": []}]}
    api.answers = {"GET /sources": [(200, told)], "GET /source-quarantine": [(200, {"rows": [], "next": None})]}

    assert json.loads(baton("source", "list", "--json")[1]) == told
    assert json.loads(baton("source", "quarantine", "shop", "--json")[1]) == {"rows": [], "next": None}


def test_what_an_upstream_says_cannot_move_the_cursor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {
        "resource": "r", "claim": "walked", "reason": "x", "requests": 1, "pages": [{"rows": 1}], "ended": True, "counted": None,
        "partition": {"parent": "\x1b[2Jp"}, "unfit": ["\x1b[2Jgone"], "rows": [{"key": "\x1b]0;owned\x07", "columns": {"name": "a\x1b[1Ab"}}],
    }  # fmt: skip
    monkeypatch.setattr(source, "_compiled", lambda _: None)
    monkeypatch.setattr(source, "_asking", lambda *_: found)

    source.try_out(Namespace(json=False, resource=None, begin=None))

    assert not set(capsys.readouterr().out) & {"\x1b", "\x07"}


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_bucket_that_cannot_be_reached_and_a_folder_that_is_not_there_are_no_crash(
    api: Api, baton: Baton, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("title\nlamp\n")
    export = {
        "status": "ready",
        "error": None,
        "files": [{"url": f"{NOWHERE}/rows.csv", "name": "rows.csv", "rows": 1}],
    }
    api.answers = {
        "POST /row-jobs/uploads": [(201, {"file_id": "f", "url": NOWHERE, "fields": {}})],
        f"POST /row-jobs/{RUN}/export": [(201, {"id": "e"})],
        f"GET /row-jobs/{RUN}/exports/e": [(200, export)],
        f"POST /query-runs/{RUN}/download": [(200, {"url": f"{NOWHERE}/rows.csv", "rows": 1})],
    }
    gone, home = str(tmp_path / "gone"), str(tmp_path / "home")
    Path(home).mkdir()
    for words, told in (
        (("rows", "upload", str(tmp_path / "rows.csv")), "127.0.0.1 didn't take the file"),
        (("rows", "export", RUN, "--out", home), "127.0.0.1 didn't give the file"),
        (("rows", "export", RUN, "--out", gone), "gone is not a folder"),
        (("query", "rows", RUN, "--csv", f"{gone}/rows.csv"), "gone is not a folder"),
        (("query", "rows", RUN, "--csv", home), "home is a folder; name a file"),
        (("query", "rows", RUN, "--csv", f"{home}/rows.csv"), "the file can't be downloaded"),
    ):
        api.asked.clear()
        code, said = baton(*words)
        assert (code, told in said, said.count("\n")) == (1, True, 1), said
        assert "gone" not in told or not api.asked, "said before anybody waits for the file"
    assert list(Path(home).iterdir()) == [], "nothing half is left behind"


# --- what a run that failed says ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fix", "said"),
    [
        (None, "fix:   `baton retry 0197a3b2-1c2d` tries again when the cause is gone"),
        (
            {"action": "fix_connection", "target": "0197a3b2-ffff-7e3f-8a4b-5c6d7e8f9a0b"},
            "fix:   `baton connection change 0197a3b2-ffff --new-secret` (or --set NAME=VALUE), then `baton retry 0197a3b2-1c2d`",
        ),
    ],
)
def test_why_names_the_cause_of_a_failed_run_and_what_fixes_it(api: Api, baton: Baton, fix: Any, said: str) -> None:
    failed = {**a_run("failed"), "error": {"code": "bad_credentials", "message": "Nivoda refuses."}, "fix": fix}
    ended = {"status": "failed", "moving": 0, "reasons": [], "more": False}
    api.answers = {f"GET /runs/{RUN}/why": [(200, ended)], f"GET /runs/{RUN}": [(200, failed)]}

    code, told = baton("why", RUN)

    assert (code, told.splitlines()[1:]) == (0, ["cause: Nivoda refuses.", said])
    assert json.loads(baton("why", RUN, "--json")[1]) == ended, "exactly what the API answered"


def test_a_list_of_an_unknown_kind_is_no_empty_list(api: Api, baton: Baton) -> None:
    """Else whoever mistypes in an incident believes that there is none."""
    api.answers = {
        "GET /runs": [(200, {"runs": [], "next": None})],
        "GET /kinds": [(200, {"kinds": [{"name": "tally"}]})],
    }

    assert baton("runs", "--kind", "taly") == (1, "baton: unknown kind 'taly'. Available: tally\n")
    assert baton("runs", "--kind", "tally")[0] == 0


def test_a_rate_limit_that_no_step_has_met_is_closed_with_a_word(api: Api, baton: Baton) -> None:
    api.answers = {
        "GET /gates": [(200, {"gates": [{"key": "nivoda"}], "next": None})],
        "POST /gates/nivoda/close": [(200, {"done": True})],
        "POST /gates/nivoad/close": [(200, {"done": True})],
    }

    assert "typo" not in baton("rate-limit", "close", "nivoda", "--reason", "x")[1]
    assert "if that is a typo" in baton("rate-limit", "close", "nivoad", "--reason", "x")[1]


def test_a_local_cloud_that_is_gone_names_the_way_back(baton: Baton, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_URL", "http://api.execute-api.localhost:9")

    assert "`baton up` to fix it" in baton("me")[1]
    assert "baton up" not in baton("me", "--url", NOWHERE)[1]
