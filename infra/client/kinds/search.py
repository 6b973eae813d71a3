"""`baton search`: save searches, see their state and coverage, backfill, resolve what was quarantined, pause clients."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from infra.client import show
from infra.client.command import (
    Commands,
    client_of,
    command,
    created,
    did,
    group,
    pair,
    short,
    tell,
    with_id,
    with_limit,
)  # fmt: skip
from infra.client.http import Client, Refusal
from infra.client.ids import an_id, one, whole

SEARCH = "the search's ID"
SETTINGS = {
    "max_pages": "pages that one execution reads at most", "max_offers": "offers that one execution reads at most",
    "every_hours": "how often it is read", "fresh_within_hours": "how old its last success may be",
}  # fmt: skip


def add_commands(commands: Commands) -> None:
    below = group(commands, "search", "saved searches at job boards")
    made = command(below, "add", add, "save a search")
    made.add_argument("name")
    made.add_argument("--client", required=True, choices=["infojobs", "adzuna"], help="the job board")
    made.add_argument("--connection", required=True, help="the account to use: a connection's name or ID")
    made.add_argument("--seed-from", required=True, help="the first day of history to read, for example 2026-10-01")
    made.add_argument("--param", type=pair, action="append", default=[], help="name=value; repeat it for lists")
    made = command(
        below, "apply", apply, "make the saved searches what a reviewed JSON file says; others are left alone"
    )
    made.add_argument("file", type=Path)
    with_limit(command(below, "list", list_, "list saved searches with their state"))
    with_id(command(below, "show", show_one, "show the state, coverage and gaps of a search"), SEARCH, "search")
    made = with_id(
        command(below, "change", change, "change a search; with other parameters its history starts again"),
        SEARCH,
        "search",
    )
    made.add_argument(
        "--param", type=pair, action="append", default=[], help="name=value, all of them; repeat it for lists"
    )
    made.add_argument("--connection", help="the account to use: a connection's name or ID")
    made.add_argument("--seed-from", help="the first day of history to read")
    for name, text in SETTINGS.items():
        made.add_argument(f"--{name.replace('_', '-')}", type=int, help=text)
    for name, text in (("pause", "pause a search"), ("resume", "resume a paused search")):
        with_id(command(below, name, act, text), SEARCH, "search").set_defaults(action=name)
    with_id(command(below, "delete", delete, "delete a search; its offers stay"), SEARCH, "search")
    made = with_id(
        command(below, "backfill", backfill, "estimate a backfill, or start it with --yes"), SEARCH, "search"
    )
    made.add_argument("start", help="from here on, for example 2026-10-01T00:00:00Z")
    made.add_argument("end", help="before this")
    made.add_argument("--yes", action="store_true", help="start it")
    with_limit(with_id(command(below, "runs", runs, "list the executions of a search"), SEARCH, "search"))
    with_limit(with_id(command(below, "offers", offers, "list the offers that a search has found"), SEARCH, "search"))
    with_limit(
        with_id(command(below, "quarantine", quarantine, "list records that couldn't be read"), SEARCH, "search")
    )
    for name, text in (
        ("replay", "read a quarantined record again"),
        ("accept", "go on without a record that can't be read"),
    ):
        made = with_id(command(below, name, resolve, text), SEARCH, "search")
        made.add_argument("record", help="the record's ID, or its first characters")
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
    command(below, "sheets", sheets, "list sheets and how their last nights went")
    with_id(
        command(below, "remove-sheet", remove_sheet, "stop keeping a sheet; what is in it stays"),
        "the sheet's ID",
        "sheet",
    )
    made = command(below, "feedback", feedback, "say whether a company is relevant")
    made.add_argument("company", type=an_id, help="the company's ID, or its first characters")
    made.add_argument("feedback", choices=["relevant", "irrelevant", "blocked", "none"])
    command(below, "clients", clients, "list the job boards and whether they are paused")
    for name, text in (("pause-client", "pause a job board"), ("resume-client", "resume a job board")):
        made = command(below, name, client, text)
        made.add_argument("client", choices=["infojobs", "adzuna"])
        made.set_defaults(action=name.removesuffix("-client"))


NUMBERS = ("salary_min", "distance")  # what is no number here, the API refuses by its name
LISTS = {"infojobs": ("province", "category", "subcategory", "teleworking"), "adzuna": ()}


def _params(client: str, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """What is a list at the board is a list here, however often it is given."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in LISTS[client]:
            found.setdefault(name, []).append(value)
        else:
            found[name] = int(value) if name in NUMBERS and value.isascii() and value.isdigit() else value
    return found


def add(options: argparse.Namespace) -> None:
    body = {
        "name": options.name, "client": options.client, "connection": options.connection, "seed_from": options.seed_from,
        "params": _params(options.client, options.param),
    }  # fmt: skip
    answer = client_of(options).post("/searches", body)
    see = f"see `baton search show {short(answer['id'])}`"
    created(options, answer, f"Saved. It is read with the next cycle, at most a quarter of an hour from now; {see}.")


def apply(options: argparse.Namespace) -> None:
    """Searches by name: what is there already is changed where the file says otherwise."""
    at = client_of(options)
    known = {each["name"]: each for each in at.pages("/searches", "searches", 10_000)}
    try:
        wanted = json.loads(options.file.read_text())
    except OSError as error:
        raise Refusal(f"{options.file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise Refusal(f"{options.file} is not valid JSON: {error}") from None
    if not isinstance(wanted, list) or not all(isinstance(each, dict) and "name" in each for each in wanted):
        raise Refusal(f"{options.file} must be a JSON list of searches, each with a name")
    done = [_applied(at, each, known.get(each["name"])) for each in wanted]
    tell(options, done, lambda rows: show.table(rows, "id", "name", "what"))


def _applied(at: Client, wanted: Mapping[str, Any], known: Mapping[str, Any] | None) -> dict[str, Any]:
    if known is None:
        return {**at.post("/searches", wanted), "name": wanted["name"], "what": "saved"}
    if wanted.get("client", known["client"]) != known["client"]:
        raise Refusal(f"{wanted['name']}: a search stays with its job board, {known['client']}. Delete it first")
    told = at.patch(
        f"/searches/{known['id']}", {name: value for name, value in wanted.items() if name not in ("name", "client")}
    )
    changed = ", ".join(each["parameter"] for each in told["changes"])
    return {
        **told,
        "id": known["id"],
        "name": wanted["name"],
        "what": f"changed: {changed}" if changed else "as it was",
    }


def list_(options: argparse.Namespace) -> None:
    found = client_of(options).listing("/searches", "searches", options.limit)
    columns = ("id", "name", "client", "status", "fresh", "last_success_at", "held_until", "reason")
    less = ("last_success_at", "held_until")

    def as_text(told: Mapping[str, Any]) -> None:
        """What stops an account stops all its searches; only one of them met it."""
        rows = [
            {**each, "reason": each["held_because"] or (each["problem"] or {}).get("message", "")}
            for each in told["searches"]
        ]
        show.table(rows, *columns, optional=less, below="reason")

    tell(options, found, as_text)


def show_one(options: argparse.Namespace) -> None:
    tell(options, client_of(options).get(f"/searches/{options.id}"), show.facts)


def change(options: argparse.Namespace) -> None:
    at = client_of(options)
    asked = {name: getattr(options, name) for name in ("connection", "seed_from", *SETTINGS)}
    asked = {name: value for name, value in asked.items() if value is not None}
    if options.param:
        asked["params"] = _params(at.get(f"/searches/{options.id}")["client"], options.param)
    if not asked:
        raise Refusal(
            "say what to change: --param, --connection, --seed-from, --max-pages, --max-offers, --every-hours or --fresh-within-hours"
        )
    told = at.patch(f"/searches/{options.id}", asked)

    def as_text(found: Mapping[str, Any]) -> None:
        if not found["changes"]:
            print("Nothing was changed: it is as you say.")
            return
        show.table(found["changes"], "parameter", "before", "after")
        if found["is_another_query"]:
            print("Its history starts again.")

    tell(options, told, as_text)


def act(options: argparse.Namespace) -> None:
    answer = client_of(options).post(f"/searches/{options.id}/{options.action}", {})
    did(options, answer, f"{'Paused' if options.action == 'pause' else 'Resumed'} {short(options.id)}.")


def delete(options: argparse.Namespace) -> None:
    did(options, client_of(options).delete(f"/searches/{options.id}"), f"Deleted {short(options.id)}. Its offers stay.")


def backfill(options: argparse.Namespace) -> None:
    at, path = client_of(options), f"/searches/{options.id}/backfill"
    asked = {"start": options.start, "end": options.end}
    tell(options, at.post(path, asked) if options.yes else at.get(path, **asked), show.facts)


def runs(options: argparse.Namespace) -> None:
    found = client_of(options).listing(f"/searches/{options.id}/runs", "runs", options.limit)
    names = ("started_at", "purpose", "window_from", "window_to", "stop_reason", "pages_fetched", "offers_fetched")
    tell(options, found, lambda told: show.table(told["runs"], *names, optional=("pages_fetched", "purpose")))


def offers(options: argparse.Namespace) -> None:
    found = client_of(options).listing(f"/searches/{options.id}/offers", "offers", options.limit)
    columns = ("external_id", "title", "company", "location", "updated_at")
    tell(options, found, lambda told: show.table(told["offers"], *columns, optional=("updated_at",)))


def quarantine(options: argparse.Namespace) -> None:
    found = client_of(options).listing(f"/searches/{options.id}/quarantine", "records", options.limit)
    tell(options, found, lambda told: show.table(told["records"], "id", "key", "times", "seen_at", "problem"))


def resolve(options: argparse.Namespace) -> None:
    at = client_of(options)
    records = [row["id"] for row in at.pages(f"/searches/{options.id}/quarantine", "records", 1_000)]
    record = one([each for each in records if each.startswith(options.record)], options.record, "quarantined record")
    answer = at.post(f"/searches/{options.id}/quarantine/{record}/{options.action}", {})
    did(options, answer, "Read again with the next cycle." if options.action == "replay" else "Accepted as it is.")


def clients(options: argparse.Namespace) -> None:
    found = client_of(options).get("/search-clients")
    tell(options, found, lambda told: show.table(told["clients"], "name", "searches", "paused_until", "reason"))


def client(options: argparse.Namespace) -> None:
    answer = client_of(options).post(f"/search-clients/{options.client}/{options.action}", {})
    did(options, answer, f"{'Paused' if options.action == 'pause' else 'Resumed'} {options.client}.")


def sheet(options: argparse.Namespace) -> None:
    given = {name: getattr(options, name) for name in ("tab", "zone", "opens", "closes")}
    body = {"connection": options.connection, **{name: value for name, value in given.items() if value is not None}}
    tell(options, client_of(options).post("/search-sheets", body), show.facts)


def sheets(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/search-sheets")
    names = ("sheet_id", "tab", "night", "status", "rows_written", "rows_cleared", "feedback_read", "problem.message")

    def table(told: Mapping[str, Any]) -> None:
        rows = [
            {"sheet_id": each["id"], "tab": each["tab"], **night} for each in told["sheets"] for night in each["nights"]
        ]
        show.table(rows, *names, optional=("tab", "rows_cleared", "feedback_read"))

    tell(options, answer, table)


def remove_sheet(options: argparse.Namespace) -> None:
    answer = client_of(options).delete(f"/search-sheets/{options.id}")
    did(options, answer, f"Baton no longer writes to {short(options.id)}. What is in the sheet stays.")


def feedback(options: argparse.Namespace) -> None:
    at, said = client_of(options), None if options.feedback == "none" else options.feedback
    company = whole(at, options.company, "company")
    answer = at.put(f"/search-companies/{company}/feedback", {"feedback": said})
    did(options, answer, f"Noted: {options.feedback}.")
