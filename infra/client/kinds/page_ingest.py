"""`baton ingest`: start a page ingestion, and see its partitions. `baton ingest --watch` is `baton ingest start --watch`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any

from infra.client import show
from infra.client.command import Commands, client_of, command, group, started, starting, tell, with_id, with_limit
from infra.client.http import Client

START = {"source": "nivoda", "low": 200, "high": 20_000, "partition_records": 2_000, "page_size": 30}
MOST_BARS = 200


def add_commands(commands: Commands) -> None:
    below = group(commands, "ingest", "ingest a catalogue page by page", aliases=("page-ingest",))
    _options(command(below, "start", start, "start a page ingestion"))
    with_id(command(below, "show", summary, "show the progress of a page ingestion"))
    with_limit(with_id(command(below, "partitions", partitions, "list the partitions of a page ingestion")))
    made = command(below, "coverage", coverage, "show which prices were read on which day, and where the gaps are")
    made.add_argument("--days", type=int, default=14, help="today and the days before it (default: 14)")


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
    client = client_of(options)
    tell(options, client.get(f"/page-ingestions/{options.id}"), show.facts)


def partitions(options: argparse.Namespace) -> None:
    client = client_of(options)
    found = client.listing(f"/page-ingestions/{options.id}/partitions", "partitions", options.limit)

    def table(told: Mapping[str, Any]) -> None:
        named = [
            {**row, "price": _name(row), "rows": row["offset"], "error": row["last_error"]}
            for row in told["partitions"]
        ]
        columns = ("price", "status", "rows", "counted", "attempts", "updated_at", "error.message")
        show.table(named, *columns, optional=("updated_at",))

    tell(options, found, table)


DAY = {"complete": "#", "read": "+", "running": ">", "failed": "x"}
DAYS = "# complete   + read, not proved complete   > running   x failed   . not read"


def coverage(options: argparse.Namespace) -> None:
    found = client_of(options).get("/page-ingestion-coverage", days=options.days)

    def table(told: Mapping[str, Any]) -> None:
        since, until = (date.fromisoformat(told[name]) for name in ("since", "until"))
        shown = [since + timedelta(days=n) for n in range((until - since).days + 1)]
        rows = []
        for band in told["bands"]:
            states = {each["day"]: DAY.get(each["state"], ".") for each in band["days"]}
            days = "".join(states.get(day.isoformat(), ".") for day in shown)
            rows.append({**band, "price": _dollars(band), "days": days, "run_id": band["latest_run"]})
        show.table(rows, "price", "days", "complete_at", "run_id", optional=["run_id"])
        if rows:
            show.console.print(f"days: {since} to {until}\n{DAYS}")
        for gap in told["gaps"][:5]:
            show.console.print(f"gap: baton ingest --low {gap['low']} --high {gap['high']}")

    tell(options, found, table)


def progress(client: Client, run: Mapping[str, Any]) -> show.Bars:
    """What `baton watch` shows below the run's own bar."""
    if run["params"].get("source") != START["source"]:
        return _lists(client.get(f"/source-runs/{run['id']}")["resources"])
    parts = list(client.pages(f"/page-ingestions/{run['id']}/partitions", "partitions", MOST_BARS))
    bars = [show.Bar(_name(part), _read(part), part["counted"], part["status"]) for part in parts]
    return show.Bars(bars, f"{sum(part['offset'] for part in parts):,} rows read" if parts else "")


def _lists(resources: Sequence[Mapping[str, Any]]) -> show.Bars:
    """The lists of a source. What nobody counts has a bar by its partitions."""
    bars = [
        show.Bar(each["resource"], each["done"], each["partitions"], "done" if each["claim"] else "active")
        for each in resources
    ]
    return show.Bars(bars, f"{sum(each['received'] for each in resources):,} rows read" if resources else "")


def _read(part: Mapping[str, Any]) -> int:
    counted = part["counted"] or 0
    return int(counted if part["status"] == "done" else min(part["offset"], counted))


def _name(part: Mapping[str, Any]) -> str:
    again = "" if part["crawl"] == 1 else f", crawl {part['crawl']}"
    return f"{_dollars(part)}{again}"


def _dollars(part: Mapping[str, Any]) -> str:
    return f"${part['low']:,} \N{EN DASH} ${part['high']:,}"
