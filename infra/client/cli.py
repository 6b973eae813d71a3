"""The commands of `baton` that speak to the API, local or deployed: over HTTP and nothing else."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from infra.client import show
from infra.client.http import Client, Refusal
from infra.client.session import KEPT, Place, connect, log_in, read, user_home

HOME = Path(__file__).resolve().parents[2] / ".local" / "cloud"
INGEST = {"source": "nivoda", "low": 200, "high": 20_000, "partition_records": 1_000, "page_size": 50}
FILTERS = ("kind", "status", "label", "source", "created_by", "created_from", "created_before", "finished_from",
           "finished_before")  # fmt: skip
ACTS = {
    "cancel": "ask a run to stop",
    "pause": "let a run take no step until it is resumed",
    "resume": "let a paused run go on",
    "retry": "try an ended run again where it stopped",
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="baton", description="Baton over its API.")
    parser.add_argument("--home", type=Path, default=HOME, help="where the local cloud's state is")
    add_commands(parser.add_subparsers(required=True, metavar="COMMAND"))
    options = parser.parse_args(arguments)
    return run(options)


def run(options: argparse.Namespace) -> int:
    """0: done; 1: refused, or the run did not succeed. Whoever watches may leave: the run goes on."""
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
            raise Refusal("say --client-id and --region too: the outputs UserPoolClientId and the region of the stack")
        # An emulator's user pool is where all of its AWS is, as for every other client.
        pool = os.environ.get("AWS_ENDPOINT_URL") or f"https://cognito-idp.{options.region}.amazonaws.com"
        place, file = Place(options.url.rstrip("/"), pool, options.client_id), user_home() / KEPT
    else:
        found = Place.of_cloud(options.home)
        if found is None:
            raise Refusal("nothing is up: `baton up`, or say which deployment: `baton login --url URL`")
        place, file = found, options.home / KEPT
    email = options.email or input("email: ")
    password = sys.stdin.readline().rstrip("\n") if options.password_stdin else getpass.getpass("password: ")
    log_in(place, file, email, password)
    print(f"logged in at {place.url}")


def logout(options: argparse.Namespace) -> None:
    for file in (options.home / KEPT, user_home() / KEPT):
        file.unlink(missing_ok=True)


def web(options: argparse.Namespace) -> None:
    """Where the console is; of the local cloud also who may enter, because it made that user itself."""
    client = _client(options)
    client.get("/me")  # the first command of a local cloud makes that user
    url = f"{client.url}/console/now"
    kept = read(options.home / KEPT)
    known = {name: kept[name] for name in ("email", "password") if name in kept and kept["url"] == client.url}
    if options.json:
        print(json.dumps({"url": url, **known}))
        return
    print(url)
    if known:
        print(f"log in as {known['email']} with the password {known['password']}")


def me(options: argparse.Namespace) -> None:
    _tell(options, _client(options).get("/me"), show.facts)


def runs(options: argparse.Namespace) -> None:
    wanted = {name: getattr(options, name) for name in FILTERS}
    rows = list(_client(options).pages("/runs", "runs", options.limit, **wanted))
    columns = ("id", "kind", "label", "status", "outcome", "created_at", "why.sentence")
    _tell(options, rows, lambda found: show.table(found, *columns))


def run_show(options: argparse.Namespace) -> None:
    client = _client(options)
    shown = client.get(f"/runs/{options.id}")
    if not options.json:
        lanes = list(client.pages(f"/runs/{options.id}/lanes", "lanes", options.limit))
        show.facts({name: value for name, value in shown.items() if name != "why"})
        show.table(lanes, "key", "status", "steps", "attempts", "next_due_at", "why.sentence")
        return
    print(json.dumps(shown))


def history(options: argparse.Namespace) -> None:
    lines = _client(options).get(f"/runs/{options.id}/history")["lines"]
    _tell(options, lines, lambda found: show.table(found, "n", "at", "epoch", "type", "data"))


def start(options: argparse.Namespace) -> int:
    try:
        params = json.loads(options.params)
    except ValueError as error:
        raise Refusal(f"--params is not JSON: {error}") from None
    body = {"kind": options.kind, "params": params, **({"label": options.label} if options.label else {})}
    return _started(options, "/runs", body)


def ingest(options: argparse.Namespace) -> int:
    chosen = {name: getattr(options, name) for name in INGEST if getattr(options, name, None) is not None}
    named = {"connection": options.connection} if options.connection else {}
    return _started(options, "/page-ingestions", {**INGEST, **chosen, **named})


def _started(options: argparse.Namespace, path: str, body: dict[str, Any]) -> int:
    client = _client(options)
    # Should the answer be lost, the same key may be sent again by hand: one run, not two.
    made = client.post(path, body, options.key or str(uuid.uuid1()))
    if options.watch:
        return _watched(client, made["id"])
    print(json.dumps(made) if options.json else made["id"])
    return 0


def watch(options: argparse.Namespace) -> int:
    client = _client(options)
    run_id = options.id
    if run_id is None:
        newest = client.get("/runs", limit=1)["runs"]
        if not newest:
            raise Refusal("there is no run yet: `baton ingest --watch` starts one")
        run_id = newest[0]["id"]
    if options.json:
        print(json.dumps(client.get(f"/runs/{run_id}")))
        return 0
    return _watched(client, run_id)


def _watched(client: Client, run_id: str) -> int:
    ended = show.watch(client, run_id)
    print(show.summary(ended), flush=True)
    return 0 if ended["status"] == "succeeded" else 1


def act(options: argparse.Namespace) -> int:
    client = _client(options)
    done = client.post(f"/runs/{options.id}/{options.act}", {"reason": options.reason})
    if getattr(options, "watch", False):
        return _watched(client, options.id)
    if options.json:
        print(json.dumps(done))
    return 0


def why(options: argparse.Namespace) -> None:
    found = _client(options).get(f"/runs/{options.id}/why")

    def tell(said: Any) -> None:
        print(f"{said['status']}; {said['moving']} lanes move")
        if said["reasons"]:
            show.table(said["reasons"], "lanes", "sentence", "until", "held_by", "action")

    _tell(options, found, tell)


def gates(options: argparse.Namespace) -> None:
    rows = list(_client(options).pages("/gates", "gates", options.limit))
    _tell(options, rows, lambda found: show.table(found, "key", "state", "until", "reason", "is_shared"))


def audit(options: argparse.Namespace) -> None:
    rows = list(_client(options).pages("/audit", "lines", options.limit))
    _tell(options, rows, lambda found: show.table(found, "at", "actor", "action", "target", "after", "reason"))


def now(options: argparse.Namespace) -> None:
    _tell(options, _client(options).get("/now"), show.now)


def system(options: argparse.Namespace) -> None:
    _tell(options, _client(options).get("/system"), show.system)


def connection_list(options: argparse.Namespace) -> None:
    rows = list(_client(options).pages("/connections", "connections", options.limit))
    _tell(options, rows, lambda found: show.table(found, "id", "provider", "name", "settings", "works", "check_says"))


def connection_add(options: argparse.Namespace) -> None:
    settings = dict(_pair(text) for text in options.set)
    body = {"provider": options.provider, "name": options.name, "settings": settings, "secret": _secret(options.secret)}
    made = _client(options).post("/connections", body, options.key or str(uuid.uuid1()))
    print(json.dumps(made) if options.json else made["id"])


def connection_check(options: argparse.Namespace) -> int:
    client = _client(options)
    told = client.post(f"/connections/{_connection(client, options.connection)}/check")
    _tell(options, told, lambda said: print(said["says"]))
    return 0 if told["works"] else 1


def connection_delete(options: argparse.Namespace) -> None:
    client = _client(options)
    client.delete(f"/connections/{_connection(client, options.connection)}")


def token_add(options: argparse.Namespace) -> None:
    body = {"name": options.name, "role": options.role}
    body |= {"expires_in_days": options.days} if options.days else {}
    made = _client(options).post("/tokens", body)
    print(json.dumps(made) if options.json else made["token"])


def token_list(options: argparse.Namespace) -> None:
    rows = list(_client(options).pages("/tokens", "tokens", options.limit))
    columns = ("id", "name", "role", "created_at", "expires_at", "revoked_at", "last_used_at")
    _tell(options, rows, lambda found: show.table(found, *columns))


def token_revoke(options: argparse.Namespace) -> None:
    _client(options).delete(f"/tokens/{options.id}")


def _connection(client: Client, wanted: str) -> str:
    rows = client.pages("/connections", "connections", 1000)
    found = [row["id"] for row in rows if wanted in (row["id"], row["name"], f"{row['provider']}/{row['name']}")]
    if len(found) != 1:
        many = "is more than one: say PROVIDER/NAME or its id" if found else "is none"
        raise Refusal(f"of the name {wanted} there {many}; `baton connection list`")
    return str(found[0])


def _secret(names: Sequence[str]) -> dict[str, str]:
    """Never from the command line, where everybody on the machine could read it."""
    if sys.stdin.isatty():
        return {name: getpass.getpass(f"{name}: ") for name in names}
    try:
        given = json.load(sys.stdin)
    except ValueError as error:
        raise Refusal(f'standard input must hold the secret as JSON, as {{"password": "…"}}: {error}') from None
    return dict(given)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise Refusal(f"--set takes NAME=VALUE, not {text}")
    return name, value


def _client(options: argparse.Namespace) -> Client:
    return connect(options.home, options.url, options.as_tenant)


def _tell(options: argparse.Namespace, found: Any, tell: Callable[[Any], None]) -> None:
    if options.json:
        print(json.dumps(found))
    else:
        tell(found)


# --- the words --------------------------------------------------------------------------------------------------------

Commands = Any  # argparse does not name the type of its subparsers


def add_commands(commands: Commands) -> None:
    made = _command(commands, "login", login, "log in to the local cloud, or to a deployment with --url")
    made.add_argument("email", nargs="?")
    made.add_argument("--client-id", help="with --url: the output UserPoolClientId")
    made.add_argument("--region", default=os.environ.get("AWS_REGION"), help="with --url: where the user pool is")
    made.add_argument("--password-stdin", action="store_true", help="read the password from standard input")
    _command(commands, "logout", logout, "forget the logins")
    _command(commands, "me", me, "who I am, and the tenants where I may act")

    _command(commands, "now", now, "what is late, what fails, what waits and for what")
    _command(commands, "system", system, "whether the machinery is well: tick, sweep, unsent, dead letters, repairs")

    made = _command(commands, "runs", runs, "runs, newest first, and why they wait")
    for name in FILTERS:
        made.add_argument(f"--{name.replace('_', '-')}")
    _most(made)
    _command(commands, "console", web, "where the web console is, and how to enter that of the local cloud")
    below = commands.add_parser("run", help="one run").add_subparsers(required=True, metavar="COMMAND")
    _most(_with_id(_command(below, "show", run_show, "a run and its lanes as they are now")))
    _with_id(_command(below, "history", history, "what happened to a run, line by line"))
    made = _command(commands, "start", start, "start a run of any kind")
    made.add_argument("kind")
    made.add_argument("--params", default="{}", help="JSON")
    made.add_argument("--label")
    _starting(made)
    made = _command(commands, "ingest", ingest, "start a page ingestion")
    for name, value in INGEST.items():
        made.add_argument(f"--{name.replace('_', '-')}", type=type(value), help=f"default: {value}")
    made.add_argument("--connection", help="by whose account: a connection's name or id")
    _starting(made)
    made = _command(commands, "watch", watch, "how far a run is, until it ends")
    made.add_argument("id", nargs="?", type=_id, help="default: the newest")
    for name, text in ACTS.items():
        made = _with_id(_command(commands, name, act, text))
        made.add_argument("--reason", default="", help="kept in the history and the audit")
        made.set_defaults(act=name)
        if name == "retry":
            made.add_argument("--watch", action="store_true", help="show it until it ends")
    _with_id(_command(commands, "why", why, "why a run waits, until when, and what frees it"))
    _most(_command(commands, "gates", gates, "which upstreams are closed, and until when"))
    _most(_command(commands, "audit", audit, "who did what, newest first"))

    below = commands.add_parser("connection", help="accounts at upstreams").add_subparsers(
        required=True, metavar="COMMAND"
    )
    made = _command(below, "add", connection_add, "connect by an account; its secret is asked for, or read as JSON")
    made.add_argument("provider")
    made.add_argument("name")
    made.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting")
    made.add_argument("--secret", action="append", default=[], metavar="NAME", help="a secret to ask for")
    _key(made)
    _most(_command(below, "list", connection_list, "all of the tenant's"))
    for name, do, text in (
        ("check", connection_check, "ask the upstream whether it lets the account in"),
        ("delete", connection_delete, "delete it and its secret"),
    ):
        _command(below, name, do, text).add_argument("connection", help="its name or id")

    below = commands.add_parser("token", help="tokens of machines").add_subparsers(required=True, metavar="COMMAND")
    made = _command(below, "add", token_add, "make a token for a machine (BATON_TOKEN); it is shown this once")
    made.add_argument("name")
    made.add_argument("--role", choices=["admin", "member", "viewer", "worker"], default="member")
    made.add_argument("--days", type=int, help="how long it lives (default: until it is revoked)")
    _most(_command(below, "list", token_list, "all of the tenant's, also those that are over"))
    _with_id(_command(below, "revoke", token_revoke, "let a token in no more"))


def _command(commands: Commands, name: str, do: Callable[..., Any], text: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    made.set_defaults(run=do)
    made.add_argument("--json", action="store_true", help="answer in JSON")
    made.add_argument("--url", help="a deployed API (BATON_URL); default: the local cloud, else the last login")
    made.add_argument("--as-tenant", metavar="ID", help="which of my tenants (BATON_TENANT)")
    return made


def _starting(made: argparse.ArgumentParser) -> None:
    made.add_argument("--watch", action="store_true", help="show it until it ends")
    _key(made)


def _key(made: argparse.ArgumentParser) -> None:
    made.add_argument("--key", help="an Idempotency-Key: sent again, it does nothing twice")


def _with_id(made: argparse.ArgumentParser) -> argparse.ArgumentParser:
    made.add_argument("id", type=_id)
    return made


def _most(made: argparse.ArgumentParser) -> None:
    made.add_argument("--limit", type=int, default=20, help="how many at most (default: 20)")


def _id(text: str) -> str:
    return str(uuid.UUID(text))


COMMANDS = frozenset(
    {
        "login",
        "logout",
        "me",
        "now",
        "system",
        "runs",
        "run",
        "start",
        "ingest",
        "watch",
        *ACTS,
        "why",
        "gates",
        "audit",
        "connection",
        "token",
    }
)
