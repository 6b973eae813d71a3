"""Guards the command line itself: words that are nearly right, IDs by their beginning, tables that fit 80 columns on a real pty,
a line after every action, and --json as the API answered."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import UUID

import pytest

from infra.cli import SECTIONS, SHORT_FORMS, main, make_parser, version
from infra.client import ids, show
from infra.client.parser import SCRIPTS, Subparsers, commands_of, next_words
from tests.api.test_client import ONE, Command, as_admin, baton
from tests.api.test_triggers_docs import define
from tests.support.door import Door, TenantHouse
from tests.support.terminal import Terminal

__all__ = ["as_admin", "baton"]

ROOT = Path(__file__).resolve().parents[2]
FIRST, TWIN = "0197a3b2-1c2d-7e3f-8a4b-5c6d7e8f9a0b", "0197a3b2-1c2d-7e3f-8a4b-5c6d7e8f9a0c"
LONG = "a sentence that is much longer than any column of a table, because upstreams say what they like"


# --- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rnus"], "baton: unknown command 'rnus'. Did you mean 'runs'? See `baton --help`\n"),
        (["run", "shwo"], "baton: unknown command 'shwo'. Did you mean 'show'? See `baton run --help`\n"),
        (["token", "xyz"], "baton: unknown command 'xyz'. Available: add, list, revoke. See `baton token --help`\n"),
        (["runs", "--lmit", "3"], "baton: unknown option '--lmit'. Did you mean '--limit'? See `baton runs --help`\n"),
        (["--json", "runs"], "baton: --json belongs after the command: `baton runs --json`. See `baton runs --help`\n"),
        (["status", "now"], "baton: unknown argument 'now'. See `baton status --help`\n"),
        (["run", "show", "no-id"], "baton: argument id: 'no-id' is not an ID. An ID looks like "),
        (["token", "add", "ci", "--role", "king"], "unknown value 'king'. Available: admin, member, viewer, worker"),
        (["run", "show"], "the following arguments are required: id"),
    ],
)
def test_a_word_that_is_not_known_gets_a_plain_answer(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)

    assert ended.value.code == 2
    heard = capsys.readouterr().err
    assert said in heard
    assert len(heard.splitlines()) == 1


def test_the_help_has_every_command_once_and_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    text = capsys.readouterr().out
    named = [name for names in SECTIONS.values() for name in names]
    shorts = [name for names in SHORT_FORMS.values() for name in names if name != "ingest"]

    assert max(map(len, text.splitlines())) <= 80
    assert sorted([*named, *shorts, "workers"]) == sorted(commands_of(make_parser()))
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"baton {version()}\n"
    assert main(["token"]) == 2
    assert "revoke" in capsys.readouterr().out


def test_short_forms_are_the_same_commands() -> None:
    parser = make_parser()
    for short, full in (
        ("up", "local up"),
        ("logs", "local logs"),
        ("runs", "run list"),
        ("retry", "run retry"),
        ("why", "run why"),
    ):
        one, other = _leaf(parser, [short]), _leaf(parser, full.split())
        assert one.format_usage().split()[3:] == other.format_usage().split()[4:]


def _leaf(parser: argparse.ArgumentParser, words: list[str]) -> argparse.ArgumentParser:
    for word in words:
        (below,) = (each for each in parser._actions if isinstance(each, Subparsers))
        parser = below.choices[word]
    return parser


def test_a_shell_completes_commands_options_and_values(tmp_path: Path) -> None:
    parser = make_parser()
    assert list(next_words(parser, ["run", "sh"])) == ["show"]
    assert {"up", "down", "status", "logs", "reset"} <= set(next_words(parser, ["local", ""]))
    assert "--limit" in next_words(parser, ["runs", "--l"])
    assert list(next_words(parser, ["token", "add", "x", "--role", "a"])) == ["admin"]
    assert list(next_words(parser, ["completion", ""])) == ["bash", "fish", "zsh"]
    (tmp_path / "baton").write_text(f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m infra.cli "$@"\n')
    (tmp_path / "baton").chmod(0o755)
    typed = 'eval "$(baton completion bash)"; COMP_WORDS=(baton connection che); COMP_CWORD=2; _baton; echo "${COMPREPLY[@]}"'
    told = subprocess.run(
        ["bash", "-c", typed], env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert told.stdout.strip() == "check"
    assert set(SCRIPTS) == {"bash", "zsh", "fish"}


# --- IDs --------------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_the_beginning_of_an_id_is_enough_everywhere(as_admin: Command, door: Door, acme: TenantHouse) -> None:
    baton = as_admin
    run_id = baton("start", "tally", "--params", ONE).strip()
    other = baton("start", "tally", "--params", ONE).strip()
    differs = next(n for n in range(36) if run_id[n] != other[n])
    part = run_id[: max(differs + 1, 14)]

    assert baton.json("run", "show", part)["id"] == run_id
    assert baton.json("run", "show", part.replace("-", "").upper())["id"] == run_id
    assert "several runs start with" in baton("run", "show", run_id[:6], code=1)
    assert "no run starts with 'ffffffff'" in baton("run", "show", "ffffffff", code=1)
    assert "no run starts with '0000'" in baton("run", "show", "0000", code=1)
    assert f"Paused {run_id[:13]}" in baton("pause", part)
    # However long ago.
    door.sql("update run set created_at = now() - interval '2 years' where id = :id", id=other)
    old = "01900000" + other[8:]
    for table, column in (("lane", "run_id"), ("history", "run_id"), ("run", "id")):
        door.sql(f"update {table} set {column} = :new where {column} = :id", new=old, id=other)
    door.sql("update run set created_at = to_timestamp(x'019000000000'::bigint / 1000.0) where id = :id", id=old)
    assert baton.json("why", "01900000")["status"] == "queued"

    token = baton.json("token", "add", "ci")["id"]
    assert "Revoked" in baton("token", "revoke", token[:20])
    define(door, acme, {"key": "recompute-zeroshot-tags"})
    trigger = baton("trigger", "add", "recompute-zeroshot-tags", "--cron", "@daily").strip()
    assert baton.json("trigger", "show", trigger[:14])["id"] == trigger
    job = baton("trigger", "run", trigger[:14]).strip()
    assert baton.json("job", "show", job[:18])["id"] == job


def test_what_can_be_the_beginning_of_an_id() -> None:
    assert ids.an_id(" 0197A3B2 ") == "0197a3b2"
    for wrong in ("019", "xyz0", "--", "", "0197a3b2-1c2d-7e3f-8a4b-5c6d7e8f9a0b0"):
        with pytest.raises(argparse.ArgumentTypeError):
            ids.an_id(wrong)


# --- a line after every action, and JSON -------------------------------------------------------------------------------


@pytest.mark.full
def test_every_action_says_what_it_did_and_json_is_what_the_api_answered(
    as_admin: Command, door: Door, acme: TenantHouse
) -> None:
    baton = as_admin
    run_id = baton("start", "tally", "--params", '{"lanes": 2, "target": 9}').strip()
    assert str(UUID(run_id)) == run_id, "in a pipe the ID alone"
    actions: list[tuple[str, ...]] = [
        ("pause", run_id), ("resume", run_id), ("run", "wake", run_id, "l0"), ("run", "restart", run_id, "l1"), ("cancel", run_id),
        ("rate-limit", "close", "shelf", "--reason", "they move"), ("rate-limit", "open", "she", "--reason", "moved"),
        ("run", "bulk", "cancel", "--kind", "tally", "--status", "paused", "--reason", "x", "--yes"),
    ]  # fmt: skip
    for words in actions:
        assert len(baton(*words).splitlines()) == 1, words
    door.finish(UUID(run_id))
    assert "Follow it with `baton watch" in baton("retry", run_id)
    assert "no lane starts with 'zz'" in baton("run", "wake", run_id, "zz", code=1)

    lists: list[tuple[tuple[str, ...], str]] = [
        (("runs",), "/runs"), (("run", "show", run_id), f"/runs/{run_id}"), (("run", "lanes", run_id), f"/runs/{run_id}/lanes"),
        (("run", "history", run_id), f"/runs/{run_id}/history"), (("why", run_id), f"/runs/{run_id}/why"),
        (("gates",), "/gates"), (("audit",), "/audit"), (("token", "list"), "/tokens"), (("connection", "list"), "/connections"),
        (("definition", "list"), "/admin/jobs/definitions"), (("trigger", "list"), "/jobs/triggers"), (("search", "list"), "/searches"),
    ]  # fmt: skip
    for words, path in lists:
        told, answered = baton.json(*words), door.call(acme.admin, "GET", path).json()
        assert told.keys() == answered.keys(), words
        for name in answered.keys() - {"next", "tokens", "progress", "updated_at"}:  # cursors belong to a reader
            assert told[name] == answered[name], words


def test_a_person_at_a_terminal_is_told_what_to_do_next(as_admin: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Terminal(monkeypatch)(lambda: main(["--home", str(as_admin.home), "start", "tally", "--params", ONE]))

    run_id, said = seen.splitlines()
    assert said == f"Started. Follow it with `baton watch {run_id[:13]}`."


# --- tables -----------------------------------------------------------------------------------------------------------

# One row with every field that any table shows, each as wide as the world makes it.
WIDE: dict[str, Any] = {
    "kind": "page_ingest", "state": "throttled", "status": "dead_letter", "label": LONG, "outcome": "partitions_failed",
    "why": {"sentence": LONG, "until": "2026-11-18T04:00:00+00:00"}, "sentence": LONG, "action": "fix the connection, then retry",
    "held_by": "nivoda/0197a3b2-1c2d-7e3f-8a4b-5c6d7e8f9a0b", "until": "2026-12-24T18:00:00+00:00", "since": "2026-11-17T04:00:00+00:00",
    "key": "part:0000000200-0000002000#2", "steps": 123_456, "attempts": 12, "attempt_no": 12, "n": 1234, "at": "2026-11-17T04:00:00+00:00",
    "epoch": 2, "type": "lane.restarted", "data": {"reason": LONG}, "reason": LONG, "is_shared": True, "actor": f"user:{FIRST}",
    "target": f"run:{FIRST}", "after": {"settings": LONG}, "provider": "google_sheets", "name": LONG[:60], "settings": {"username": LONG},
    "works": False, "check_says": LONG, "role": "member", "lanes": 12, "runs": 1234, "count": 1234, "code": "access_refused", "message": LONG,
    "definition_key": "recompute-trained-tags", "attempt_count": 2, "max_attempts": 3, "source": "schedule", "claimed_by_worker": f"{LONG[:30]}:1",
    "description": LONG, "queue": "default", "executor": "lambda", "timeout_seconds": 3600, "is_active": True, "version": 7, "worker_id": "ip-10-0-12-113:4711",
    "stale": True, "held_because": LONG, "held_until": "2026-11-18T04:00:00+00:00", "is_another_query": True, "queues": ["default", "images", "mail"], "running_count": 4, "exit_code": 137, "error_text": LONG, "low": 200, "high": 2000,
    "crawl": 2, "offset": 123_456, "counted": 123_456, "last_error": {"message": LONG}, "doing": "waiting for the result to settle", "poll_count": 120,
    "row_count": 1_000_000, "snippet_name": LONG, "run_status": "succeeded", "row_no": 100_000, "title": LONG, "input_summary": {"title": LONG}, "job_name": "products.csv", "price": "129.90 EUR",
    "client": "infojobs", "fresh": False, "problem": {"message": LONG}, "purpose": "backfill", "stop_reason": "window_exhausted",
    "pages_fetched": 20, "offers_fetched": 1000, "external_id": "0a1b2c3d4e5f60718293a4b5c6d7e8f9", "company": LONG, "location": LONG, "times": 3,
    "searches": 12, "tab": "Companies", "night": "2026-11-17", "rows_written": 1200, "rows_cleared": 12, "feedback_read": 12, "cause": "schedule",
    "fire_at": "2026-11-17T04:00:00+00:00", "event_name": "provider.folder.updated", "cron_expr": "*/15 2-6 * * MON-FRI", "timezone": "America/New_York",
    "is_enabled": True, "recent": [{"reason": None, "run_status": "succeeded", "status": "started"}], "payload": {"folder": LONG}, "account": LONG,
    "lane_key": "part:0000000200-0000002000#2", "bytes": 10**9, "rows": 10**7, "dead_rows": 10**5, "parameter": "province", "before": LONG,
    "tenant": LONG[:40], "queued": 1234, "scheduled": 12, "running": 3, "oldest_queued_age_s": 12345.6, "definitions": 12, "workers": 3,
    "progress": {"lanes": 5_000, "lanes_ended": 4_999, "rows": {"done": 10**9, "failed": 10**9, "all": 10**10, "unit": "offers"}},
    "moved": True, "paused_until": "2026-11-18T04:00:00+00:00",
}  # fmt: skip
TIMES = ("created_at", "expires_at", "revoked_at", "last_used_at", "next_due_at", "last_at", "queued_at", "started_at", "finished_at", "made_at",
         "first_seen_at", "last_seen_at", "updated_at", "seen_at", "last_success_at", "next_fire_at", "window_from", "window_to")  # fmt: skip
LISTS = ("runs", "lanes", "lines", "gates", "connections", "tokens", "jobs", "definitions", "workers", "partitions", "query_runs", "assets", "unknown",
         "items", "searches", "offers", "records", "clients", "triggers", "firings", "events", "attempts", "changes", "reasons")  # fmt: skip


def _row(full_id: str) -> dict[str, Any]:
    known = {
        "id": full_id,
        "run_id": full_id,
        "tenant_id": full_id,
        **dict.fromkeys(TIMES, "2026-11-17T04:05:06+00:00"),
    }
    return {**WIDE, **known}


ROWS = [_row(FIRST), _row(TWIN)]
ANSWER: dict[str, Any] = {
    **WIDE, **dict.fromkeys(LISTS, ROWS), "next": None, "id": FIRST, "why": None, "moving": 3,
    "sheets": [{"id": each["id"], "tab": "Companies", "nights": [each]} for each in ROWS],
}  # fmt: skip
NOW = {
    "open": {"queued": 1, "running": 1, "paused": 1, "more": False}, "moving": 1, "tick_age_s": 3.0, "waiting": ROWS, "gates": ROWS, "repairs": ROWS,
    "late": {"count": 2, "runs": ROWS}, "failing": {"count": 2, "groups": ROWS}, "throughput": [{"steps": n, "failed": 0, "rows": n} for n in range(60)],
}  # fmt: skip
SYSTEM = {
    "schema": "0042", "tick_age_s": 3.0, "sweep_age_s": 3.0, "unsent": 0, "oldest_due": None, "dead_letters": {"count": 2, "latest": ROWS},
    "unheard": {"count": 2, "latest": [{**each, "error": None} for each in ROWS]},
    "repairs": {"count": 2, "by": [{"why": "lost", "count": 2}], "latest": ROWS}, "everywhere": {"signals_waiting": 3, "tables": ROWS},
}  # fmt: skip
SUMMARY: dict[str, Any] = {
    **dict.fromkeys(("queued", "running", "succeeded", "failed", "dead_letter", "canceled"), 3), "more": [], "oldest_queued_age_s": 3.0,
    "per_minute": {"enqueued": 1.0}, "queue_latency": None, "run_time": None, "everywhere": {"tenants": ROWS, "queues": ROWS},
}  # fmt: skip


COVERAGE = {
    "since": "2026-10-21", "until": "2026-11-17", "gaps": [{"low": 10**7, "high": 10**8 - 1}] * 2,
    "bands": [{"low": 10**7, "high": 10**8 - 1, "complete_at": "2026-11-17T04:05:06+00:00", "latest_run": each["id"], "latest_state": "failed",
               "days": [{"day": "2026-11-16", "state": "complete", "partly": False}]} for each in ROWS],
}  # fmt: skip


class WideApi(BaseHTTPRequestHandler):
    """Answers everything with more than a terminal has room for."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        special = {"/now": NOW, "/system": SYSTEM, "/jobs/summary": SUMMARY, "-coverage": COVERAGE}
        answer = next((told for end, told in special.items() if path.endswith(end)), ANSWER)
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def wide_api() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), WideApi)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


TABLES = [
    "overview", "system", "run list", "run lanes ID", "run history ID", "why ID", "rate-limit list", "audit", "connection list", "token list",
    "job list", "job summary", "definition list", "workers", "ingest partitions ID", "ingest coverage", "query list", "query leftovers", "rows items ID", "rows pending",
    "search list", "search runs ID", "search offers ID", "search quarantine ID", "search clients", "search sheets", "trigger list",
    "trigger firings ID", "event list",
]  # fmt: skip
NO_TABLE_OF_ITS_OWN = {"run show", "job show", "query rows", "runs", "rate-limits", "page-ingest partitions"}


def _with_limit(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, Subparsers):
            for name, below in action.choices.items():
                yield from _with_limit(below, (*words, name))
        elif "--limit" in action.option_strings and action.default == 20:
            yield " ".join(words)


def test_every_list_is_tried_below() -> None:
    tried = {words.removesuffix(" ID") for words in TABLES}

    assert set(_with_limit(make_parser())) - tried - NO_TABLE_OF_ITS_OWN - {"gates"} == set()


@pytest.mark.full
@pytest.mark.parametrize("words", TABLES)
def test_no_table_wraps_or_loses_an_id_at_80_columns(
    words: str, wide_api: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATON_TOKEN", "baton_x")
    given = ["--home", str(tmp_path), *words.replace("ID", FIRST).split(), "--url", wide_api]

    screen = Terminal(monkeypatch)(lambda: main(given))

    lines = screen.splitlines()
    assert lines
    assert [line for line in lines if show._wide(line) > 80] == []
    heads = [
        n
        for n, line in enumerate(lines)
        if {"id", "run id", "sheet id"} & set(line.split("  ")) or line.startswith("id ")
    ]
    for head in heads:
        first, twin = [line for line in lines[head + 1 :] if not line.startswith("  ")][:2]  # the rest are sentences
        assert any(FIRST.startswith(word) for word in first.split() if len(word) > 12), first
        assert any(TWIN.startswith(word) and not FIRST.startswith(word) for word in twin.split()), twin
    if words == "audit":
        assert screen.count("run:0197a3b2-1c2d") == 2, screen
    if words in {"overview", "run list", "why ID", "rate-limit list", "search list"}:
        assert LONG in " ".join(line.strip() for line in lines), "what is wrong is read whole, on a narrow terminal too"
    if words in {"run list", "job list", "token list", "connection list", "trigger list", "search list", "query list"}:
        assert heads, screen


def test_in_a_pipe_everything_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    show.table(ROWS, "id", "label", "why.sentence")

    head, first, _ = capsys.readouterr().out.splitlines()
    assert head.split() == ["id", "label", "why"]
    assert first.split("  ") == [FIRST, LONG, LONG]


def test_what_comes_from_outside_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    show.table([{"label": "a\x1b[2Jb\nc\x9b1;1Hd"}], "label")
    show.facts({"error": {"message": "x\x1b]0;title\x07y"}})

    assert not {"\x1b", "\x9b", "\x07"} & set(capsys.readouterr().out)


def test_bars_are_redrawn_in_place_and_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [show.Bar(f"${n * 1000:,} \N{EN DASH} ${n * 1000 + 999:,}", n * 100, 5_000, LONG) for n in range(50)]
    bars = show.LiveBars()

    def draw() -> None:
        bars.draw(parts[:3])
        bars.draw(parts)

    screen = Terminal(monkeypatch, lines=20)(draw)

    lines = screen.splitlines()
    assert max(map(show._wide, lines)) <= 80
    assert len(lines) == 3 + 18
    assert lines[-1] == "… and 33 more"


@pytest.mark.parametrize("columns", [46, 60, 120])
def test_a_bar_never_wraps(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    part = show.Bar("$12,000 \N{EN DASH} $14,999, crawl 2", 4_321, 5_000, "succeeded")

    (line,) = Terminal(monkeypatch, columns=columns)(lambda: show.LiveBars().draw([part])).splitlines()

    assert show._wide(line) <= columns
    assert "4,321/5,000 " in line


def test_whoever_watches_reads_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal(monkeypatch)(lambda: show.LiveBars().draw([show.Bar("lanes", 0, 1, "throttled")], LONG))

    assert LONG in " ".join(line.strip() for line in screen.splitlines())


def test_wide_letters_do_not_leave_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = "\N{FULLWIDTH LATIN CAPITAL LETTER A}" * 120

    screen = Terminal(monkeypatch)(lambda: show.facts({"label": wide, "error": "Produkt " + wide}))

    assert max(map(show._wide, screen.splitlines())) <= 80
    assert screen.count("\N{FULLWIDTH LATIN CAPITAL LETTER A}") == 240
