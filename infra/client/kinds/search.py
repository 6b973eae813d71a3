"""`baton search`: save searches, see their state and coverage, backfill, resolve what was quarantined, pause clients."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infra.client import show
from infra.client.command import Commands, client_of, command, group, pair, tell, with_id, with_limit

SEARCH = "the search's ID"


def add_commands(commands: Commands) -> None:
    below = group(commands, "search", "saved searches at job boards")
    made = command(below, "add", add, "save a search")
    made.add_argument("name")
    made.add_argument("--client", required=True, choices=["infojobs", "adzuna"], help="the job board")
    made.add_argument("--connection", required=True, help="the account to use: a connection's name or ID")
    made.add_argument("--seed-from", required=True, help="the first day of history to read, for example 2026-10-01")
    made.add_argument("--param", type=pair, action="append", default=[], help="name=value; repeat it for lists")
    made = command(below, "apply", apply, "save every search of a reviewed JSON file that isn't saved yet")
    made.add_argument("file", type=Path)
    with_limit(command(below, "list", list_, "list saved searches with their state"))
    with_id(command(below, "show", show_one, "show the state, coverage and gaps of a search"), SEARCH)
    made = with_id(command(below, "change", change, "change a search's parameters: a clean history"), SEARCH)
    made.add_argument("--param", type=pair, action="append", default=[], help="name=value; repeat it for lists")
    for name, text in (("pause", "pause a search"), ("resume", "resume a paused search")):
        with_id(command(below, name, act, text), SEARCH).set_defaults(action=name)
    with_id(command(below, "delete", delete, "delete a search; its offers stay"), SEARCH)
    made = with_id(command(below, "backfill", backfill, "estimate a backfill, or start it with --yes"), SEARCH)
    made.add_argument("start", help="from here on, for example 2026-10-01T00:00:00Z")
    made.add_argument("end", help="before this")
    made.add_argument("--yes", action="store_true", help="start it")
    with_limit(with_id(command(below, "runs", runs, "list the executions of a search"), SEARCH))
    with_limit(with_id(command(below, "offers", offers, "list the offers that a search has found"), SEARCH))
    with_limit(with_id(command(below, "quarantine", quarantine, "list records that couldn't be read"), SEARCH))
    for name, text in (("replay", "read a quarantined record again"), ("accept", "accept that a record isn't read")):
        made = with_id(command(below, name, resolve, text), SEARCH)
        made.add_argument("record", help="the record's ID")
        made.set_defaults(action=name)
    made = command(below, "sheet", sheet, "keep a Google sheet filled with the companies, once a night")
    made.add_argument("connection", help="the service account: a connection's name or ID")
    for name, text in (
        ("tab", "the tab"),
        ("zone", "the time zone"),
        ("opens", "when its window opens"),
        ("closes", "when it closes"),
    ):
        made.add_argument(f"--{name}", help=text)
    command(below, "sheets", sheets, "list the sheets and what came of their last nights")
    with_id(command(below, "remove-sheet", remove_sheet, "stop keeping a sheet; what is in it stays"), "the sheet's ID")
    made = command(below, "feedback", feedback, "say whether a company is relevant")
    made.add_argument("company", help="the company's ID")
    made.add_argument("feedback", choices=["relevant", "irrelevant", "blocked", "none"])
    command(below, "clients", clients, "list the job boards and whether they are paused")
    for name, text in (("pause-client", "pause a job board"), ("resume-client", "resume a job board")):
        made = command(below, name, client, text)
        made.add_argument("client", choices=["infojobs", "adzuna"])
        made.set_defaults(action=name.removesuffix("-client"))


LISTS = {"infojobs": ("province", "category", "subcategory", "teleworking"), "adzuna": ()}


def _params(client: str, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """What is a list at the board is a list here, however often it is given."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in LISTS[client]:
            found.setdefault(name, []).append(value)
        else:
            found[name] = int(value) if name in ("salary_min", "distance") else value
    return found


def add(options: argparse.Namespace) -> None:
    body = {
        "name": options.name, "client": options.client, "connection": options.connection, "seed_from": options.seed_from,
        "params": _params(options.client, options.param),
    }  # fmt: skip
    tell(options, client_of(options).post("/searches", body), show.facts)


def apply(options: argparse.Namespace) -> None:
    """Searches by name: what is there already is left alone."""
    at = client_of(options)
    known = {each["name"] for each in at.pages("/searches", "searches", 10_000)}
    wanted = json.loads(options.file.read_text())
    made = [{**at.post("/searches", each), "name": each["name"]} for each in wanted if each["name"] not in known]
    tell(options, made, lambda rows: show.table(rows, "id", "name"))


def list_(options: argparse.Namespace) -> None:
    rows = list(client_of(options).pages("/searches", "searches", options.limit))
    tell(
        options,
        rows,
        lambda found: show.table(
            found, "id", "name", "client", "status", "fresh", "last_success_at", "problem.message"
        ),
    )


def show_one(options: argparse.Namespace) -> None:
    tell(options, client_of(options).get(f"/searches/{options.id}"), show.facts)


def change(options: argparse.Namespace) -> None:
    at = client_of(options)
    board = at.get(f"/searches/{options.id}")["client"]
    told = at.patch(f"/searches/{options.id}", {"params": _params(board, options.param)})
    tell(options, told["changes"], lambda rows: show.table(rows, "parameter", "before", "after"))


def act(options: argparse.Namespace) -> None:
    tell(options, client_of(options).post(f"/searches/{options.id}/{options.action}", {}), show.facts)


def delete(options: argparse.Namespace) -> None:
    tell(options, client_of(options).delete(f"/searches/{options.id}"), show.facts)


def backfill(options: argparse.Namespace) -> None:
    at, path = client_of(options), f"/searches/{options.id}/backfill"
    asked = {"start": options.start, "end": options.end}
    tell(options, at.post(path, asked) if options.yes else at.get(path, **asked), show.facts)


def runs(options: argparse.Namespace) -> None:
    rows = list(client_of(options).pages(f"/searches/{options.id}/runs", "runs", options.limit))
    tell(
        options,
        rows,
        lambda found: show.table(
            found, "started_at", "purpose", "window_from", "window_to", "stop_reason", "pages_fetched", "offers_fetched"
        ),
    )


def offers(options: argparse.Namespace) -> None:
    rows = list(client_of(options).pages(f"/searches/{options.id}/offers", "offers", options.limit))
    tell(options, rows, lambda found: show.table(found, "external_id", "title", "company", "location", "updated_at"))


def quarantine(options: argparse.Namespace) -> None:
    rows = list(client_of(options).pages(f"/searches/{options.id}/quarantine", "records", options.limit))
    tell(options, rows, lambda found: show.table(found, "id", "key", "problem", "times", "seen_at"))


def resolve(options: argparse.Namespace) -> None:
    path = f"/searches/{options.id}/quarantine/{options.record}/{options.action}"
    tell(options, client_of(options).post(path, {}), show.facts)


def clients(options: argparse.Namespace) -> None:
    rows = client_of(options).get("/search-clients")["clients"]
    tell(options, rows, lambda found: show.table(found, "name", "searches", "paused_until", "reason"))


def client(options: argparse.Namespace) -> None:
    tell(options, client_of(options).post(f"/search-clients/{options.client}/{options.action}", {}), show.facts)


def sheet(options: argparse.Namespace) -> None:
    given = {name: getattr(options, name) for name in ("tab", "zone", "opens", "closes")}
    body = {"connection": options.connection, **{name: value for name, value in given.items() if value is not None}}
    tell(options, client_of(options).post("/search-sheets", body), show.facts)


def sheets(options: argparse.Namespace) -> None:
    found = client_of(options).get("/search-sheets")["sheets"]
    rows = [{"sheet": each["id"], "tab": each["tab"], **night} for each in found for night in each["nights"]]
    names = ("sheet", "tab", "night", "status", "rows_written", "rows_cleared", "feedback_read", "problem.message")
    tell(options, rows, lambda shown: show.table(shown, *names))


def remove_sheet(options: argparse.Namespace) -> None:
    tell(options, client_of(options).delete(f"/search-sheets/{options.id}"), show.facts)


def feedback(options: argparse.Namespace) -> None:
    said = None if options.feedback == "none" else options.feedback
    tell(
        options, client_of(options).put(f"/search-companies/{options.company}/feedback", {"feedback": said}), show.facts
    )
