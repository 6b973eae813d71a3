"""`baton query`: run SQL in Marketing Cloud, see how far it is, read or download the rows."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import urllib3

from infra.client import show
from infra.client.command import (
    Commands,
    client_of,
    command,
    did,
    group,
    short,
    started,
    starting,
    tell,
    with_id,
    with_limit,
)  # fmt: skip
from infra.client.http import POOL, SECONDS, Client, Refusal

PAGE = 1_000
SUMMARY = ("id", "status", "doing", "snippet_name", "row_count", "created_at", "poll_count", "outcome")
CHUNK = 2**16


def add_commands(commands: Commands) -> None:
    below = group(commands, "query", "run SQL in Marketing Cloud")
    made = command(below, "run", run, "run a query")
    made.add_argument("sql", help="the query; @FILE reads it from a file, - from standard input")
    made.add_argument("--connection", required=True, help="the account to use: a connection's name or ID")
    made.add_argument("--mid", required=True, help="the business unit to run in")
    made.add_argument("--eid", help="the enterprise that it belongs to")
    made.add_argument("--name", help="the name of the snippet")
    made.add_argument(
        "--column", action="append", metavar="NAME[:TYPE]", help="a column of the result, if the query doesn't name it"
    )
    starting(made)
    with_id(command(below, "status", status, "show what a query is doing"))
    listed = with_limit(command(below, "list", runs, "list queries, newest first"))
    listed.add_argument("--status", choices=["queued", "running", "ready", "failed", "canceled"])
    read = with_id(command(below, "rows", rows, "print the rows of a query that is ready"))
    read.add_argument("--limit", type=int, default=20, help="maximum number of rows (default: 20)")
    read.add_argument("--csv", metavar="FILE", help="download all rows as CSV; - writes to standard output")
    stop = with_id(command(below, "cancel", cancel, "cancel a query"))
    stop.add_argument("--reason", default="", help="why; kept with the run")
    with_limit(command(below, "leftovers", leftovers, "list what queries left in Marketing Cloud, and why"))


def run(options: argparse.Namespace) -> int:
    body: dict[str, Any] = {"sql_text": _sql(options.sql), "mid": options.mid, "connection": options.connection}
    body |= {name: given for name, given in (("eid", options.eid), ("snippet_name", options.name)) if given}
    if options.column:
        body["columns"] = [_column(each) for each in options.column]
    return started(options, "/query-runs", body)


def _sql(given: str) -> str:
    if given == "-":
        return sys.stdin.read()
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Refusal(f"{given[1:]} can't be read: {getattr(error, 'strerror', None) or error}") from None


def _column(given: str) -> dict[str, str]:
    name, colon, type_ = given.rpartition(":")
    return {"name": name, "type": type_} if colon else {"name": given}


def status(options: argparse.Namespace) -> None:
    tell(options, client_of(options).get(f"/query-runs/{options.id}"), show.facts)


def runs(options: argparse.Namespace) -> None:
    found = client_of(options).listing("/query-runs", "query_runs", options.limit, status=options.status)
    tell(options, found, lambda told: show.table(told["query_runs"], *SUMMARY, optional=("poll_count", "outcome")))


def rows(options: argparse.Namespace) -> None:
    client = client_of(options)
    if options.csv:
        _download(client, options.id, options.csv)
        return
    first = client.get(f"/query-runs/{options.id}/rows", page=1, page_size=max(1, min(options.limit, PAGE)))
    found = list(_rows(client, options.id, first, options.limit))
    names = [column["name"] for column in first["columns"]]

    def table(told: Any) -> None:
        show.table(told, *(name.replace(".", " ") for name in names))
        if first["count"] > len(told):
            show.console.print(f"{len(told):,} of {first['count']:,} rows; --limit or --csv gives more")

    tell(options, found, table)


def _rows(client: Client, run_id: str, first: Mapping[str, Any], most: int) -> Iterator[Mapping[str, Any]]:
    page, size = first, max(1, min(most, PAGE))
    wanted = min(most, first["count"])
    yield from page["rows"][:wanted]
    number, seen = 1, len(page["rows"])
    while seen < wanted and page["rows"]:
        number += 1
        page = client.get(f"/query-runs/{run_id}/rows", page=number, page_size=size)
        yield from page["rows"][: wanted - seen]
        seen += len(page["rows"])


def _download(client: Client, run_id: str, to: str) -> None:
    """The file is written in the cloud first. It comes under its name only when it is whole."""
    folder, partial = Path(to).parent, Path(f"{to}.partial")
    if to != "-" and (not folder.is_dir() or Path(to).is_dir()):  # before anybody waits for it
        raise Refusal(
            f"--csv: {to} is a folder; name a file" if Path(to).is_dir() else f"--csv: {folder} is not a folder"
        )
    while (told := client.post(f"/query-runs/{run_id}/download", {}))["url"] is None:
        show.pause()
    try:
        with POOL.request("GET", told["url"], preload_content=False, timeout=SECONDS, redirect=False) as answer:
            if answer.status != 200:
                raise Refusal(f"the file can't be downloaded: the bucket answered {answer.status}")
            if to == "-":
                for chunk in answer.stream(CHUNK):
                    sys.stdout.buffer.write(chunk)
                sys.stdout.buffer.flush()
                return
            with partial.open("wb") as file:
                for chunk in answer.stream(CHUNK):
                    file.write(chunk)
            partial.replace(to)
    except urllib3.exceptions.HTTPError as error:
        raise Refusal(f"the file can't be downloaded ({type(error).__name__})") from None
    except BrokenPipeError:  # `--csv - | head`
        raise
    except OSError as error:
        raise Refusal(f"{to} can't be written: {error.strerror}") from None
    finally:
        if to != "-":
            partial.unlink(missing_ok=True)
    print(f"{told['rows']:,} rows in {to}")


def cancel(options: argparse.Namespace) -> None:
    answer = client_of(options).post(f"/query-runs/{options.id}/cancel", {"reason": options.reason})
    did(
        options,
        answer,
        f"Canceling {short(options.id)}. What it made in Marketing Cloud is removed once it has stopped.",
    )


def leftovers(options: argparse.Namespace) -> None:
    found = client_of(options).get("/query-run-assets", limit=options.limit)

    def text(told: Mapping[str, Any]) -> None:
        show.table(told["assets"], "run_id", "kind", "made_at", "run_status", "why", optional=("run_status",))
        if told["unknown"]:
            show.console.print("\nunknown: they belong to no run of yours, and are never removed")
            show.table(told["unknown"], "key", "kind", "first_seen_at", "account")

    tell(options, found, text)


def progress(client: Client, run: Mapping[str, Any]) -> show.Bars:
    """What `baton watch` shows below the run's own bar."""
    told = client.get(f"/query-runs/{run['id']}")
    polls = told["poll_count"]
    return show.Bars(line=f"{told['doing']}, {polls} poll{'' if polls == 1 else 's'}")
