"""`baton source`: what it prints, what it writes, what it answers to bad files. Nothing is asked over the network."""

from __future__ import annotations

import io
import itertools
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infra.cli import main
from infra.local.standins.server import Reply
from shared.kernel.errors import Later, Permanent
from shared.page_ingest.reader import build, tryout
from shared.page_ingest.reader.client import Client
from shared.page_ingest.source import draft
from shared.page_ingest.source.compile import Compiled, compile_source
from tests.support.rig import BEGINNING
from tests.support.source_model import DirectWire

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "example-sources"


class Stdin(io.TextIOWrapper):
    def __init__(self, text: str) -> None:
        super().__init__(io.BytesIO(text.encode()), encoding="utf-8")


def test_a_good_file_is_shown_with_its_claim_and_its_steps(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(EXAMPLES / "zendesk.toml")

    assert main(["source", "check", file]) == 0

    digest = compile_source(file, Path(file).read_bytes()).digest
    assert capsys.readouterr().out.splitlines() == [
        f"{file}: source zendesk, {digest}",
        "",
        "tickets (table zendesk_tickets)",
        "  best claim   through T: rows move as /updated_at changes, so a run has every change up to T, its start less PT1M.",
        "  plan         makes one partition, the whole list.",
        (
            "  part         GET /api/v2/incremental/tickets/cursor.json, 1,000 rows a page; the next page by the token in"
            " /after_cursor; ends where /end_of_stream is true."
        ),
        "  consolidate  upserts into zendesk_tickets by /id; a row is gone when /status is deleted.",
    ]


def test_a_good_file_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["source", "check", str(EXAMPLES / "stripe.toml"), "--json"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert (told["source"], told["claim"], told["faults"]) == ("stripe", "walked", [])
    assert told["digest"].startswith("sha256:")
    (charges,) = told["resources"]
    assert charges["endings"] == ["walked", "drifted", "partial"]
    assert [step["phase"] for step in charges["steps"]] == ["plan", "part", "consolidate"]


def test_a_bad_file_is_refused_line_by_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (EXAMPLES / "github.toml").read_text().replace("hosts =", "hots =").replace("size = 100", "size = 0")

    monkeypatch.setattr(sys, "stdin", Stdin(text))
    assert main(["source", "check", "-"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "stdin:3 hots: unknown; did you mean hosts?",
        "stdin:16 issues.page.size: must be between 1 and 10,000.",
    ]

    monkeypatch.setattr(sys, "stdin", Stdin(text))
    assert main(["source", "check", "-", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["faults"][0] == {
        "file": "stdin",
        "line": 3,
        "key": "hots",
        "message": "unknown; did you mean hosts?",
    }


def test_a_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["source", "check", "nowhere.toml"]) == 1
    assert capsys.readouterr().err == "baton: nowhere.toml cannot be read: No such file or directory\n"


def test_what_cannot_be_tried_is_said_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text("5")
    openalex, stripe = str(EXAMPLES / "openalex.toml"), str(EXAMPLES / "stripe.toml")

    for options, said in (
        ([stripe, "--secret", str(secret)], "the secret must be a JSON object"),
        ([openalex, "--from", "soon"], "soon is not a day or a time"),
        ([openalex, "--from", "0001-01-01T00:00+01:00"], "is not a day or a time"),
    ):
        assert main(["source", "try", *options]) == 1
        assert said in capsys.readouterr().err


def test_what_an_upstream_says_moves_no_cursor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"key": "W1", "columns": {"title": "a\x1b[2Jb\nc"}}
    told = {
        "resource": "works", "claim": "complete", "reason": "it is counted", "partition": {}, "pages": [], "ended": True, "counted": None,
        "requests": 1, "unfit": [], "rows": [row],
    }  # fmt: skip
    monkeypatch.setattr(tryout, "try_out", lambda *_: told)

    assert main(["source", "try", str(EXAMPLES / "openalex.toml")]) == 0
    assert "\x1b" not in (said := capsys.readouterr().out)
    assert "  W1  title=a [2Jb c\n" in said


def test_a_row_of_a_parent_without_an_id_is_not_asked_for() -> None:
    text = """source = "any"
hosts = ["api.example.com"]
auth = "none"
[resources.p]
get = "/p"
page = { link = "next" }
rows = ""
key = ["/id"]
[resources.items]
get = "/p/{parent}/items"
page = { link = "next" }
rows = ""
key = ["/id"]
split = { parent = "p", key = "/slug" }
"""
    compiled = compile_source("any.toml", text.encode())
    wire = DirectWire(lambda *_: Reply.json([{"id": 1}]))
    client = Client(source=compiled.source, settings={}, secret={}, wire=wire)

    with pytest.raises(Permanent, match="A row of p has no /slug, so its items can't be read"):
        tryout.try_out(client, compiled, "items", None, None, BEGINNING)
    assert [path for _, path in wire.sent] == ["/p"]


WINDOWS = """source = "any"
hosts = ["api.example.com"]
auth = "none"
rate = { pace = "PACE" }
[resources.items]
get = "/items"
query = { from = "{from}", to = "{to}", cursor = "{token}" }
page = { token = "/next" }
rows = "/items"
key = ["/id"]
count = { at = "/n", get = "/count" }
split = { window = "P1D", as = "date", most = 10 }
"""


def windows(pace: str, count: int = 5, window: str = "P1D") -> tuple[Compiled, DirectWire, Client]:
    """A list whose pages never end, behind the client that the product makes for who tries it."""
    compiled = compile_source("any.toml", WINDOWS.replace("PACE", pace).replace("P1D", window).encode())
    more = itertools.count(1)
    wire = DirectWire(lambda *_: Reply.json({"items": [{"id": next(more)}], "next": f"t{next(more)}", "n": count}))
    client = build.client_of(compiled, {}, {}, gate="any", time_left_s=lambda: 60.0)
    client.wire = wire
    return compiled, wire, client


def test_a_list_is_tried_up_to_the_day_that_was_asked_for() -> None:
    compiled, _, client = windows("100/s")

    found = tryout.try_out(client, compiled, None, None, "2025-03-05", BEGINNING)

    assert found["partition"] == {"from": "2025-03-04T00:00:00Z", "to": "2025-03-05T00:00:00Z"}


@pytest.mark.full
def test_a_try_asks_no_faster_than_the_file_says() -> None:
    compiled, wire, client = windows("2/h")

    found = tryout.try_out(client, compiled, None, "2025-03-04", "2025-03-05", BEGINNING)

    assert (len(wire.sent), len(found["pages"]), found["ended"], found["counted"]) == (2, 2, False, None)
    with pytest.raises(Later, match="the pace of the file, 2/h"):
        tryout.try_out(client, compiled, None, "2025-03-04", "2025-03-05", BEGINNING)
    began = time.monotonic()
    compiled, wire, client = windows("2/s")
    tryout.try_out(client, compiled, None, "2025-03-04", "2025-03-05", BEGINNING)
    assert (len(wire.sent), time.monotonic() - began >= 1) == (4, True)


def test_an_estimate_asks_no_faster_than_the_file_says_and_guesses_the_rest() -> None:
    compiled, wire, client = windows("3/h")

    (found,) = tryout.estimate(client, compiled, "2025-01-01", "2025-01-11", BEGINNING)["resources"]

    assert (len(wire.sent), found["asked"], found["partitions"], found["rows"], found["exact"]) == (3, 3, 10, 50, False)


def test_an_estimate_of_partitions_that_are_all_too_large_asks_for_forty_counts() -> None:
    compiled, wire, client = windows("10000/s", count=1_000, window="P90D")

    (found,) = tryout.estimate(client, compiled, "2024-01-01", "2025-01-01", BEGINNING)["resources"]

    assert len(wire.sent) == found["asked"] == tryout.MOST_COUNTS == 40


def test_a_tenants_values_are_shown_as_they_would_work(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(EXAMPLES / "openalex.toml")

    assert main(["source", "check", file, "--tighten", "works.size=25", "--tighten", "works.window=P7D"]) == 0
    shown = capsys.readouterr().out
    assert "25 rows a page" in shown
    assert "windows of P7D" in shown

    assert main(["source", "check", file, "--tighten", "works.size=500"]) == 1
    assert capsys.readouterr().err == "baton: --tighten: works.size can only be smaller than 100.\n"


@pytest.mark.full
def test_checking_loads_neither_the_api_nor_a_database() -> None:
    """What a reviewer runs on every change must be quick, and must work on a machine that has nothing set up."""
    code = (
        "import sys; from infra.cli import main; main(['source', 'check', sys.argv[1]]);"
        "print([name for name in ('sqlalchemy', 'boto3', 'pydantic', 'pg8000') if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(EXAMPLES / "notion.toml")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout.splitlines()[-1] == "[]"


# --- new --------------------------------------------------------------------------------------------------------------


def answered(*lines: str) -> Stdin:
    return Stdin("".join(f"{line}\n" for line in lines))


def test_a_few_answers_make_a_file_that_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "shop.toml"
    answers = ["", "http://api.example.com", "api.example.com", "", "orders", "/v1/orders", "token", "/next", "", "",
               "per_page", "/data", "", "/total", ""]  # fmt: skip
    monkeypatch.setattr(sys, "stdin", answered(*answers))

    assert main(["source", "new", str(file)]) == 0

    said = capsys.readouterr()
    assert 'This "http://api.example.com" must be a host alone' in said.err
    assert "best claim   complete" in said.out
    assert file.read_text() == (
        'source = "shop"\nhosts = ["api.example.com"]\nauth = { bearer = "token" }\n\n'
        '[resources.orders]\nget = "/v1/orders"\nquery = { per_page = "{size}", cursor = "{token}" }\n'
        'page = { token = "/next", size = 100 }\nrows = "/data"\nkey = ["/id"]\ncount = { at = "/total" }\n'
    )
    assert main(["source", "check", str(file)]) == 0


def test_a_file_that_exists_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "shop.toml"
    file.write_text("mine")
    monkeypatch.setattr(sys, "stdin", answered("", "api.example.com", "none", "", "/v1/items", *[""] * 9))

    assert main(["source", "new", str(file)]) == 1
    assert file.read_text() == "mine"
    assert "exists. Choose another name" in capsys.readouterr().err


def test_questions_that_are_left_unanswered_write_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", answered("shop", "api.example.com"))

    assert main(["source", "new", str(tmp_path / "shop.toml")]) == 1
    assert list(tmp_path.iterdir()) == []
    assert "no file was written" in capsys.readouterr().err


SAID = {
    "header": ["", "X-Token"], "sort": ["", "sort=id", "order by=name asc"], "rows": ["", "/data", "/a~1b"],
    "auth": ["bearer", "header", "basic", "none"], "page": ["number", "offset", "link", "next", "token", "after"],
    "count": ["", "/total"], "since": ["", "/updated_at"], "format": ["time", "date", "unix", "unix_ms"],
    "host": ["api.example.com"], "get": ["/v1/items"], "order": ["", "desc /created", "asc /updated_at"],
    "sent_as": ["", "limit", "c[x]", '"'], "size_as": ["", "cursor", "per page", "p"], "since_as": ["", "cursor", "s"],
}  # fmt: skip


@pytest.mark.full
def test_whatever_is_answered_the_file_passes() -> None:
    seen = set()
    for seed in range(600):
        dice, answers = random.Random(seed), dict[str, str]()
        while (question := next(draft.questions(answers, "shop"), None)) is not None:
            said = dice.choice(SAID.get(question.name, [""]))
            try:
                answers[question.name] = question.read(said)
            except ValueError:
                continue
        known = compile_source("shop.toml", draft.draft(answers).encode())
        seen.add((answers["page"], known.claim))

    assert len(seen) >= 15
