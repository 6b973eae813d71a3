"""`baton page-ingest`: start a page ingestion, and see its partitions."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from infra.client import show
from infra.client.command import Commands, client_of, command, group, started, starting, tell, with_id, with_limit
from infra.client.http import Client

START = {"source": "nivoda", "low": 200, "high": 20_000, "partition_records": 1_000, "page_size": 50}
MOST_BARS = 200


def add_commands(commands: Commands) -> None:
    below = group(commands, "page-ingest", "ingest a catalogue page by page")
    _options(command(below, "start", start, "start a page ingestion"))
    with_id(command(below, "show", summary, "show the progress of a page ingestion"))
    with_limit(with_id(command(below, "partitions", partitions, "list the partitions of a page ingestion")))
    _options(command(commands, "ingest", start, "short for `baton page-ingest start`"))


def _options(made: argparse.ArgumentParser) -> None:
    for name, value in START.items():
        made.add_argument(f"--{name.replace('_', '-')}", type=type(value), help=f"default: {value}")
    made.add_argument("--connection", help="the account to use: a connection's name or ID")
    starting(made)


def start(options: argparse.Namespace) -> int:
    chosen = {name: getattr(options, name) for name in START if getattr(options, name) is not None}
    named = {"connection": options.connection} if options.connection else {}
    return started(options, "/page-ingestions", {**START, **chosen, **named})


def summary(options: argparse.Namespace) -> None:
    tell(options, client_of(options).get(f"/page-ingestions/{options.id}"), show.facts)


def partitions(options: argparse.Namespace) -> None:
    rows = list(client_of(options).pages(f"/page-ingestions/{options.id}/partitions", "partitions", options.limit))

    def table(found: Sequence[Mapping[str, Any]]) -> None:
        named = [{**row, "price": _name(row), "rows": row["offset"], "error": row["last_error"]} for row in found]
        show.table(named, "price", "status", "rows", "counted", "attempts", "updated_at", "error.message")

    tell(options, rows, table)


def progress(client: Client, run: Mapping[str, Any]) -> show.Bars:
    """What `baton watch` shows below the run's own bar."""
    parts = list(client.pages(f"/page-ingestions/{run['id']}/partitions", "partitions", MOST_BARS))
    bars = [show.Bar(_name(part), _read(part), part["counted"], part["status"]) for part in parts]
    return show.Bars(bars, f"{sum(part['offset'] for part in parts):,} rows read" if parts else "")


def _read(part: Mapping[str, Any]) -> int:
    counted = part["counted"] or 0
    return int(counted if part["status"] == "done" else min(part["offset"], counted))


def _name(part: Mapping[str, Any]) -> str:
    again = "" if part["crawl"] == 1 else f", crawl {part['crawl']}"
    return f"${part['low']:,} \N{EN DASH} ${part['high']:,}{again}"
