"""What every command over the API is made of: its options, its client, its answer as text or JSON."""

from __future__ import annotations

import argparse
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from infra.client import show
from infra.client.http import Client, Refusal
from infra.client.ids import an_id, whole
from infra.client.session import connect

Commands = Any  # argparse does not name the type of its subparsers


def command(
    commands: Commands, name: str, do: Callable[..., Any], text: str, *, aliases: tuple[str, ...] = (), api: bool = True
) -> argparse.ArgumentParser:
    """A command, usually one that speaks to the API. `do(options)` does it, and may answer an exit code."""
    made: argparse.ArgumentParser = commands.add_parser(name, help=text, description=sentence(text), aliases=aliases)
    made.set_defaults(run=do)
    made.add_argument("--json", action="store_true", help="print what the API answered" if api else "print JSON")
    if not api:
        return made
    made.add_argument("--url", help="a deployed API (BATON_URL); default: the local cloud, then your last login")
    made.add_argument("--as-tenant", metavar="TENANT", help="which of your tenants: its name or ID (BATON_TENANT)")
    return made


def group(commands: Commands, name: str, text: str, *, aliases: tuple[str, ...] = ()) -> Commands:
    """Commands below a word: `baton token add`. The word alone prints its help."""
    made: argparse.ArgumentParser = commands.add_parser(name, help=text, description=sentence(text), aliases=aliases)

    def help_(_: argparse.Namespace) -> int:
        made.print_help()
        return 2

    made.set_defaults(run=help_, json=False)
    return made.add_subparsers(metavar="COMMAND")


def sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def with_id(made: argparse.ArgumentParser, text: str = "the run's ID", of: str = "run") -> argparse.ArgumentParser:
    """Whole, or as much of its beginning as no other has; `client_of` makes it whole."""
    made.add_argument("id", type=an_id, help=f"{text}, or its first characters")
    made.set_defaults(id_of=of)
    return made


def with_limit(made: argparse.ArgumentParser) -> argparse.ArgumentParser:
    made.add_argument("--limit", type=int, default=20, help="maximum number of rows (default: 20)")
    return made


def with_key(made: argparse.ArgumentParser) -> argparse.ArgumentParser:
    made.add_argument("--key", help="an Idempotency-Key: sent twice, it happens once")
    return made


def with_reason(made: argparse.ArgumentParser) -> argparse.ArgumentParser:
    made.add_argument("--reason", default="", help="kept in the timeline and the audit log")
    return made


def starting(made: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The options of every command that starts a run."""
    made.add_argument("--label", help="a name to find it by")
    made.add_argument("--watch", action="store_true", help="show progress until it ends")
    return with_key(made)


def client_of(options: argparse.Namespace) -> Client:
    client = _in_tenant(connect(options.home, options.url, options.as_tenant))
    if getattr(options, "id_of", None) and getattr(options, "id", None):
        options.id = whole(client, options.id, options.id_of)
    return client


def _in_tenant(client: Client) -> Client:
    """A tenant can be named as `baton me` shows it; the API knows it by its ID."""
    if client.tenant is None or show.UUID.fullmatch(client.tenant.lower()):
        return client
    mine = replace(client, tenant=None).get("/me")["tenants"]
    found = [each["id"] for each in mine if each["name"] == client.tenant]
    if len(found) != 1:
        what = "several of your tenants are" if found else "none of your tenants is"
        raise Refusal(f"{what} named {client.tenant!r}. List them with `baton me`, and use the ID")
    return replace(client, tenant=found[0])


def tell(options: argparse.Namespace, found: Any, as_text: Callable[[Any], None]) -> None:
    """With --json what the API answered, and nothing else."""
    if options.json:
        print(json.dumps(found))
    else:
        as_text(found)


def did(options: argparse.Namespace, answer: Any, text: str) -> None:
    """One line about what was done."""
    tell(options, answer, lambda _: print(text))


def created(options: argparse.Namespace, answer: Mapping[str, Any], text: str, shown: str = "id") -> None:
    """What was made: in a pipe its ID alone, for `id=$(baton …)`; for a person also a line about it."""
    if options.json:
        print(json.dumps(answer))
        return
    print(answer[shown])
    if show.console.is_terminal:
        print(text)


def short(full_id: str) -> str:
    """As much of an ID as tables show."""
    return full_id[: show.PREFIX_OF_TIME]


def started(options: argparse.Namespace, path: str, body: Mapping[str, Any]) -> int:
    """Start a run by a POST, and watch it if that was asked for."""
    client = client_of(options)
    label = {"label": options.label} if options.label else {}
    # If the answer gets lost, the same key can be sent again by hand: one run, not two.
    answer = client.post(path, {**body, **label}, options.key or str(uuid.uuid1()))
    if options.watch:
        return watched(client, answer["id"], as_json=options.json)
    created(options, answer, f"Started. Follow it with `baton watch {short(answer['id'])}`.")
    return 0


def watched(client: Client, run_id: str, *, as_json: bool = False) -> int:
    """Show a run until it ends. As JSON: only what the API says of it then."""
    try:
        ended = show.watch(client, run_id, show.Nothing() if as_json else None)
    except KeyboardInterrupt:
        if not as_json:
            print(
                f"\nIt goes on. Follow it with `baton watch {short(run_id)}`, or end it with `baton cancel {short(run_id)}`."
            )
        raise
    print(json.dumps(ended) if as_json else show.summary(ended), flush=True)
    return 0 if ended["status"] == "succeeded" else 1


def on_all(options: argparse.Namespace, action: str, wanted: Mapping[str, Any], what: str = "run") -> int:
    """An action on every run of a filter: counted first, asked about, then done in batches."""
    client = client_of(options)
    asked = {"action": action, "filter": wanted, "reason": options.reason}
    preview = client.post("/runs/bulk", {**asked, "mode": "preview", "token": None})
    count = preview["count"]
    if options.json and not options.yes and count:
        raise Refusal(
            f"{count:,} {what}{'' if count == 1 else 's'} would be {PAST[action]}. Nothing is asked with --json: add --yes to do it"
        )
    if not options.yes and not options.json:
        print(f"{count:,} {what}{'' if count == 1 else 's'} would be {PAST[action]}", flush=True)
        if count == 0 or input(f"{action} {'it' if count == 1 else 'them'}? [y/N] ").strip().lower() not in {
            "y",
            "yes",
        }:
            return 0 if count == 0 else 1
    total, token = 0, preview["next"]
    while token is not None:
        answer = client.post("/runs/bulk", {**asked, "mode": "apply", "token": token})
        total, token = total + answer["done"], answer["next"]
    print(json.dumps({"done": total}) if options.json else f"{total:,} {PAST[action]}")
    return 0


PAST = {"cancel": "canceled", "pause": "paused", "resume": "resumed", "retry": "retried"}


def pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise Refusal(f"{text!r} is not NAME=VALUE")
    return name, value
