"""What every command over the API is made of: its options, its client, its answer as text or JSON."""

from __future__ import annotations

import argparse
import json
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from infra.client import show
from infra.client.http import Client, Refusal
from infra.client.session import connect

Commands = Any  # argparse does not name the type of its subparsers


def command(
    commands: Commands, name: str, do: Callable[..., Any], text: str, *, aliases: tuple[str, ...] = (), api: bool = True
) -> argparse.ArgumentParser:
    """A command, usually one that speaks to the API. `do(options)` does it, and may answer an exit code."""
    made: argparse.ArgumentParser = commands.add_parser(name, help=text, description=_sentence(text), aliases=aliases)
    made.set_defaults(run=do)
    made.add_argument("--json", action="store_true", help="print JSON")
    if not api:
        return made
    made.add_argument("--url", help="a deployed API (BATON_URL); default: the local cloud, then your last login")
    made.add_argument("--as-tenant", metavar="ID", help="which of your tenants (BATON_TENANT)")
    return made


def group(commands: Commands, name: str, text: str) -> Commands:
    """Commands below a word: `baton token add`."""
    return commands.add_parser(name, help=text, description=_sentence(text)).add_subparsers(
        required=True, metavar="COMMAND"
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def with_id(made: argparse.ArgumentParser, text: str = "the run's ID") -> argparse.ArgumentParser:
    made.add_argument("id", type=an_id, help=text)
    return made


def with_limit(made: argparse.ArgumentParser) -> argparse.ArgumentParser:
    made.add_argument("--limit", type=int, default=20, help="maximum number of rows (default: 20)")
    return made


def with_key(made: argparse.ArgumentParser) -> argparse.ArgumentParser:
    made.add_argument("--key", help="an Idempotency-Key: sent twice, it happens once")
    return made


def starting(made: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The options of every command that starts a run."""
    made.add_argument("--label", help="a name to find it by")
    made.add_argument("--watch", action="store_true", help="show progress until it ends")
    return with_key(made)


def an_id(text: str) -> str:
    return str(uuid.UUID(text))


def client_of(options: argparse.Namespace) -> Client:
    return connect(options.home, options.url, options.as_tenant)


def tell(options: argparse.Namespace, found: Any, as_text: Callable[[Any], None]) -> None:
    if options.json:
        print(json.dumps(found))
    else:
        as_text(found)


def started(options: argparse.Namespace, path: str, body: Mapping[str, Any]) -> int:
    """Start a run by a POST, and watch it if that was asked for."""
    client = client_of(options)
    label = {"label": options.label} if options.label else {}
    # If the answer gets lost, the same key can be sent again by hand: one run, not two.
    made = client.post(path, {**body, **label}, options.key or str(uuid.uuid1()))
    if options.watch:
        return watched(client, made["id"])
    print(json.dumps(made) if options.json else made["id"])
    return 0


def watched(client: Client, run_id: str) -> int:
    ended = show.watch(client, run_id)
    print(show.summary(ended), flush=True)
    return 0 if ended["status"] == "succeeded" else 1


def pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise Refusal(f"{text!r} is not NAME=VALUE")
    return name, value
