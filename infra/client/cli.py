"""The commands of `baton` that speak to the API, local or deployed: over HTTP and nothing else."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infra.client import discover, show
from infra.client.command import (
    Commands,
    an_id,
    client_of,
    command,
    group,
    pair,
    started,
    starting,
    tell,
    watched,
    with_id,
    with_key,
    with_limit,
)  # fmt: skip
from infra.client.http import Client, Refusal
from infra.client.session import KEPT, Place, log_in, read, user_home

HOME = Path(__file__).resolve().parents[2] / ".local" / "cloud"
FILTERS = ("kind", "status", "label", "source", "created_by", "created_from", "created_before", "finished_from",
           "finished_before")  # fmt: skip
ACTIONS = {
    "cancel": "cancel a run",
    "pause": "pause a run until it is resumed",
    "resume": "resume a paused run",
    "retry": "resume failed or canceled work from its last step",
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="baton", description="Baton over its API.")
    parser.add_argument("--home", type=Path, default=HOME, help="folder of the local cloud's state")
    add_commands(parser.add_subparsers(required=True, metavar="COMMAND"))
    options = parser.parse_args(arguments)
    return run(options)


def run(options: argparse.Namespace) -> int:
    """0: done; 1: refused, or the run did not succeed. Ctrl-C stops watching; the run goes on."""
    try:
        return int(options.run(options) or 0)
    except KeyboardInterrupt:
        return 130
    except Refusal as error:
        print(json.dumps(error.problem) if options.json else f"baton: {error}", file=sys.stderr)
        return 1


# --- commands ---------------------------------------------------------------------------------------------------------


def login(options: argparse.Namespace) -> None:
    if options.url:
        if not options.client_id or not options.region:
            raise Refusal("--url also needs --client-id (the stack's output UserPoolClientId) and --region")
        # An emulator's user pool is where all of its AWS is, as for every other client.
        pool = os.environ.get("AWS_ENDPOINT_URL") or f"https://cognito-idp.{options.region}.amazonaws.com"
        place, file = Place(options.url.rstrip("/"), pool, options.client_id), user_home() / KEPT
    else:
        found = Place.of_cloud(options.home)
        if found is None:
            raise Refusal(
                "no local cloud is running. Start one with `baton up`, or name a deployment with `baton login --url URL`"
            )
        place, file = found, options.home / KEPT
    email = options.email or input("email: ")
    password = sys.stdin.readline().rstrip("\n") if options.password_stdin else getpass.getpass("password: ")
    log_in(place, file, email, password)
    print(f"logged in to {place.url}")


def logout(options: argparse.Namespace) -> None:
    for file in (options.home / KEPT, user_home() / KEPT):
        file.unlink(missing_ok=True)


def web(options: argparse.Namespace) -> None:
    """The address of the console; for the local cloud also the login, because it created that user itself."""
    client = client_of(options)
    client.get("/me")  # the first command of a local cloud creates that user
    url = f"{client.url}/console/overview"
    kept = read(options.home / KEPT)
    known = {name: kept[name] for name in ("email", "password") if name in kept and kept["url"] == client.url}
    if options.json:
        print(json.dumps({"url": url, **known}))
        return
    print(url)
    if known:
        print(f"email: {known['email']}\npassword: {known['password']}")


def me(options: argparse.Namespace) -> None:
    tell(options, client_of(options).get("/me"), show.facts)


def runs(options: argparse.Namespace) -> None:
    wanted = {name: getattr(options, name) for name in FILTERS}
    rows = list(client_of(options).pages("/runs", "runs", options.limit, **wanted))
    columns = ("id", "kind", "label", "state", "outcome", "created_at", "why.sentence")
    tell(options, rows, lambda found: show.table(found, *columns))


def run_show(options: argparse.Namespace) -> None:
    client = client_of(options)
    shown = client.get(f"/runs/{options.id}")
    if not options.json:
        lanes = list(client.pages(f"/runs/{options.id}/lanes", "lanes", options.limit))
        show.facts({name: value for name, value in shown.items() if name != "why"})
        show.table(lanes, "key", "status", "steps", "attempts", "next_due_at", "why.sentence")
        return
    print(json.dumps(shown))


def history(options: argparse.Namespace) -> None:
    lines = client_of(options).get(f"/runs/{options.id}/history")["lines"]
    tell(options, lines, lambda found: show.table(found, "n", "at", "epoch", "type", "data"))


def start(options: argparse.Namespace) -> int:
    try:
        params = json.loads(options.params)
    except ValueError as error:
        raise Refusal(f"--params is not valid JSON: {error}") from None
    if not isinstance(params, dict):
        raise Refusal("--params must be a JSON object, for example '{\"low\": 200}'")
    params |= {name: _value(text) for name, text in map(pair, options.param)}
    return started(options, "/runs", {"kind": options.kind, "params": params})


def _value(text: str) -> Any:
    """Numbers, true, false, null and what is in brackets or quotes is JSON; anything else is text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def watch(options: argparse.Namespace) -> int:
    client = client_of(options)
    run_id = options.id
    if run_id is None:
        newest = client.get("/runs", limit=1)["runs"]
        if not newest:
            raise Refusal("there are no runs yet. Start one with `baton run start KIND`")
        run_id = newest[0]["id"]
    if options.json:
        print(json.dumps(client.get(f"/runs/{run_id}")))
        return 0
    return watched(client, run_id)


def act(options: argparse.Namespace) -> int:
    client = client_of(options)
    done = client.post(f"/runs/{options.id}/{options.act}", {"reason": options.reason})
    if getattr(options, "watch", False):
        return watched(client, options.id)
    if options.json:
        print(json.dumps(done))
    return 0


def why(options: argparse.Namespace) -> None:
    found = client_of(options).get(f"/runs/{options.id}/why")

    def as_text(said: Any) -> None:
        print(f"{said['status']}; {said['moving']} lanes free to run")
        if said["reasons"]:
            show.table(said["reasons"], "lanes", "sentence", "until", "held_by", "action")

    tell(options, found, as_text)


def gates(options: argparse.Namespace) -> None:
    rows = list(client_of(options).pages("/gates", "gates", options.limit))
    tell(options, rows, lambda found: show.table(found, "key", "state", "until", "reason", "is_shared"))


def audit(options: argparse.Namespace) -> None:
    rows = list(client_of(options).pages("/audit", "lines", options.limit))
    tell(options, rows, lambda found: show.table(found, "at", "actor", "action", "target", "after", "reason"))


def now(options: argparse.Namespace) -> None:
    tell(options, client_of(options).get("/now"), show.now)


def system(options: argparse.Namespace) -> None:
    tell(options, client_of(options).get("/system"), show.system)


def connection_list(options: argparse.Namespace) -> None:
    rows = list(client_of(options).pages("/connections", "connections", options.limit))
    tell(options, rows, lambda found: show.table(found, "id", "provider", "name", "settings", "works", "check_says"))


def connection_add(options: argparse.Namespace) -> None:
    settings = dict(map(pair, options.set))
    body = {"provider": options.provider, "name": options.name, "settings": settings, "secret": _secret(options.secret)}
    made = client_of(options).post("/connections", body, options.key or str(uuid.uuid1()))
    print(json.dumps(made) if options.json else made["id"])


def connection_check(options: argparse.Namespace) -> int:
    client = client_of(options)
    told = client.post(f"/connections/{_connection(client, options.connection)}/check")
    tell(options, told, lambda said: print(said["says"]))
    return 0 if told["works"] else 1


def connection_delete(options: argparse.Namespace) -> None:
    client = client_of(options)
    client.delete(f"/connections/{_connection(client, options.connection)}")


def token_add(options: argparse.Namespace) -> None:
    body = {"name": options.name, "role": options.role}
    body |= {"expires_in_days": options.days} if options.days else {}
    made = client_of(options).post("/tokens", body)
    print(json.dumps(made) if options.json else made["token"])


def token_list(options: argparse.Namespace) -> None:
    rows = list(client_of(options).pages("/tokens", "tokens", options.limit))
    columns = ("id", "name", "role", "created_at", "expires_at", "revoked_at", "last_used_at")
    tell(options, rows, lambda found: show.table(found, *columns))


def token_revoke(options: argparse.Namespace) -> None:
    client_of(options).delete(f"/tokens/{options.id}")


def _connection(client: Client, wanted: str) -> str:
    rows = client.pages("/connections", "connections", 1000)
    found = [row["id"] for row in rows if wanted in (row["id"], row["name"], f"{row['provider']}/{row['name']}")]
    if len(found) != 1:
        if found:
            raise Refusal(
                f"several connections are named {wanted!r}. Use PROVIDER/NAME or the ID: `baton connection list`"
            )
        raise Refusal(f"connection {wanted!r} not found. List them with `baton connection list`")
    return str(found[0])


def _secret(names: Sequence[str]) -> dict[str, str]:
    """Never from the command line, where everyone on the machine could read it."""
    if sys.stdin.isatty():
        return {name: getpass.getpass(f"{name}: ") for name in names}
    try:
        given = json.load(sys.stdin)
    except ValueError as error:
        raise Refusal(f'pass the secret as JSON on standard input, for example {{"password": "…"}}: {error}') from None
    return dict(given)


# --- the words --------------------------------------------------------------------------------------------------------


def add_commands(commands: Commands) -> None:
    made = command(commands, "login", login, "log in to the local cloud, or to a deployment with --url")
    made.add_argument("email", nargs="?")
    made.add_argument("--client-id", help="with --url: the stack's output UserPoolClientId")
    made.add_argument("--region", default=os.environ.get("AWS_REGION"), help="with --url: the user pool's region")
    made.add_argument("--password-stdin", action="store_true", help="read the password from standard input")
    command(commands, "logout", logout, "forget all logins")
    command(commands, "me", me, "show who you are and your tenants")
    command(commands, "console", web, "show the address of the web console, and the login for the local cloud")

    command(commands, "overview", now, "show what is overdue, failing or waiting, and why", aliases=("now",))
    command(
        commands, "system", system, "show system health: scheduler, cleanup, unsent messages, dead letters, repairs"
    )

    made = with_limit(command(commands, "runs", runs, "list runs, newest first, and why they wait"))
    for name in FILTERS:
        made.add_argument(f"--{name.replace('_', '-')}")
    below = group(commands, "run", "start and inspect runs")
    _start(command(below, "start", start, "start a run of any kind"))
    with_limit(with_id(command(below, "show", run_show, "show a run and its lanes")))
    with_id(command(below, "history", history, "show the timeline of a run"))
    _start(command(commands, "start", start, "short for `baton run start`"))
    made = command(commands, "watch", watch, "show the progress of a run until it ends")
    made.add_argument("id", nargs="?", type=an_id, help="default: the newest run")
    for name, text in ACTIONS.items():
        made = with_id(command(commands, name, act, text))
        made.add_argument("--reason", default="", help="kept in the timeline and the audit log")
        made.set_defaults(act=name)
        if name == "retry":
            made.add_argument("--watch", action="store_true", help="show progress until it ends")
    with_id(command(commands, "why", why, "show why a run waits, until when, and which action frees it"))
    with_limit(command(commands, "rate-limits", gates, "list rate limits and when they open", aliases=("gates",)))
    with_limit(command(commands, "audit", audit, "show the audit log, newest first"))

    below = group(commands, "connection", "manage accounts at upstreams")
    made = command(below, "add", connection_add, "add a connection; its secret is prompted for, or read as JSON")
    made.add_argument("provider")
    made.add_argument("name")
    made.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting")
    made.add_argument("--secret", action="append", default=[], metavar="NAME", help="a secret to prompt for")
    with_key(made)
    with_limit(command(below, "list", connection_list, "list connections"))
    for name, do, text in (
        ("check", connection_check, "check that a connection works"),
        ("delete", connection_delete, "delete a connection and its secret"),
    ):
        command(below, name, do, text).add_argument("connection", help="its name or ID")

    below = group(commands, "token", "manage tokens for scripts and servers")
    made = command(below, "add", token_add, "create a token (for BATON_TOKEN); it is shown once")
    made.add_argument("name")
    made.add_argument("--role", choices=["admin", "member", "viewer", "worker"], default="member")
    made.add_argument("--days", type=int, help="days until it expires (default: never)")
    with_limit(command(below, "list", token_list, "list tokens, including revoked and expired ones"))
    with_id(command(below, "revoke", token_revoke, "revoke a token"), "the token's ID")

    for kind in discover.found().values():
        kind.add_commands(commands)


def _start(made: argparse.ArgumentParser) -> None:
    made.add_argument("kind")
    made.add_argument("--param", action="append", default=[], metavar="NAME=VALUE",
                      help="a parameter: JSON, or else text; may be repeated")  # fmt: skip
    made.add_argument("--params", default="{}", help="all parameters as one JSON object")
    starting(made)


def words() -> frozenset[str]:
    """The first words of all commands here: what can do without the libraries of the local cloud."""
    commands = argparse.ArgumentParser().add_subparsers()
    add_commands(commands)
    return frozenset(commands.choices)
