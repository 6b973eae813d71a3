"""The commands of `baton` that speak to the API, local or deployed: over HTTP and nothing else."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import sys
import uuid
import warnings
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from infra.client import discover, show
from infra.client.command import (
    Commands,
    client_of,
    command,
    created,
    did,
    group,
    on_all,
    pair,
    short,
    started,
    starting,
    tell,
    watched,
    with_id,
    with_key,
    with_limit,
    with_reason,
)  # fmt: skip
from infra.client.http import Client, Refusal
from infra.client.ids import LEAST, an_id, one
from infra.client.session import KEPT, Place, log_in, read, revoke, user_home

MOST_LANES, MOST_GATES = 5_000, 1_000
FILTERS = {
    "kind": "runs of this kind, for example job", "status": "queued, running, paused, succeeded, failed or canceled",
    "label": "runs with exactly this label", "source": "what started them: api, event or schedule", "created_by": "who started them, as the list shows it",
    "created_from": "started at or after this time, for example 2026-11-17T00:00:00Z", "created_before": "started before this time",
    "finished_from": "ended at or after this time", "finished_before": "ended before this time",
}  # fmt: skip
SEARCHES = {
    "q": "a part of the label or ID",
    "state": "what they are doing now: retrying, throttled, waiting, stalled…",
}
# What it does, and what is said when it is done.
ACTIONS = {
    "cancel": ("cancel a run", "Canceling {}. It stops at its next step."),
    "pause": ("pause a run until it is resumed", "Paused {}. Continue it with `baton resume {}`."),
    "resume": ("resume a paused run", "Resumed {}."),
    "retry": ("resume failed or canceled work from its last step", "Retrying {}. Follow it with `baton watch {}`."),
}
LANE_ACTIONS = {
    "wake": ("run the next step of a waiting lane now", "The next step of {} is due now."),
    "restart": ("restart one lane: fresh attempts, earlier messages no longer count", "Restarted {}."),
}


def run(options: argparse.Namespace) -> int:
    """0: done; 1: refused, or the run did not succeed. Ctrl-C stops watching; the run goes on."""
    try:
        code = int(options.run(options) or 0)
        sys.stdout.flush()  # here, where somebody notices that nobody reads it
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `baton runs | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except EOFError:
        print("\nbaton: the input ended before the question was answered; nothing was done", file=sys.stderr)
        return 1
    except Refusal as error:
        print(json.dumps(error.problem) if options.json else f"baton: {error}", file=sys.stderr)
        return 1
    return code


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
    password = sys.stdin.readline().rstrip("\n") if options.password_stdin else _typed_password()
    log_in(place, file, email, password)
    print(f"Logged in to {place.url} as {email}.")


def _typed_password() -> str:
    """At the terminal, wherever standard input comes from."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", getpass.GetPassWarning)  # it would show what is typed
        try:
            return getpass.getpass("password: ")
        except getpass.GetPassWarning:
            raise Refusal(
                "there is no terminal to ask for the password on. Give it on standard input, with --password-stdin"
            ) from None


def logout(options: argparse.Namespace) -> None:
    for file in (options.home / KEPT, user_home() / KEPT):
        revoke(read(file))
        file.unlink(missing_ok=True)
    print("Logged out.")


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
    def as_text(told: Mapping[str, Any]) -> None:
        show.facts({name: value for name, value in told.items() if name in {"actor", "is_super_admin", "invitations"}})
        show.console.print()
        show.table(told["tenants"], "id", "name", "role")
        if told["more_tenants"]:
            show.console.print("There are more tenants.")

    tell(options, client_of(options).get("/me"), as_text)


def runs(options: argparse.Namespace) -> None:
    client = client_of(options)
    wanted = {name: getattr(options, name) for name in (*FILTERS, *SEARCHES)}
    found = client.listing("/runs", "runs", options.limit, **wanted)
    if options.kind and not found["runs"]:  # only then: a kind that is no longer deployed may have runs
        _known_kind(client, options.kind)
    columns = ("id", "kind", "state", "label", "created_at", "progress", "why.sentence", "outcome")

    def table(told: Mapping[str, Any]) -> None:
        rows = [{**run, "progress": show.how_far(run["progress"])} for run in told["runs"]]
        show.table(rows, *columns, optional=("progress", "outcome"), below="why.sentence")

    tell(options, found, table)


def _known_kind(client: Client, kind: str) -> None:
    known = [each["name"] for each in client.get("/kinds")["kinds"]]
    if kind not in known:
        raise Refusal(f"unknown kind {kind!r}. Available: {', '.join(known)}")


def run_show(options: argparse.Namespace) -> None:
    client = client_of(options)
    shown = client.get(f"/runs/{options.id}")
    if options.json:
        print(json.dumps(shown))
        return
    far = {"progress": show.how_far(shown["progress"]), "error": _problem(shown["error"])}
    show.facts({name: value for name, value in {**shown, **far}.items() if name not in {"why", "fix"}})
    if shown["why"]:
        show.facts({"why": shown["why"]["sentence"]})
    show.console.print()
    _lanes(client.listing(f"/runs/{options.id}/lanes", "lanes", options.limit))


def _problem(error: Mapping[str, Any] | None) -> str | None:
    """Its sentence and its code; of a run that failed of its lanes, the code of what stopped them."""
    return f"{error.get('message')} ({(error.get('cause') or error).get('code')})" if error else None


def lanes(options: argparse.Namespace) -> None:
    client = client_of(options)
    tell(options, client.listing(f"/runs/{options.id}/lanes", "lanes", options.limit), _lanes)


def _lanes(found: Mapping[str, Any]) -> None:
    columns = ("key", "id", "status", "steps", "attempts", "next_due_at", "why.sentence")
    # When a lane that has ended was last due tells nobody anything.
    rows = [
        {**lane, "next_due_at": lane["next_due_at"] if lane["status"] == "active" else None} for lane in found["lanes"]
    ]
    show.table(rows, *columns, optional=("next_due_at", "steps", "id"))


def history(options: argparse.Namespace) -> None:
    client = client_of(options)
    found = client.get(f"/runs/{options.id}/history")
    while found["next"] is not None:  # the number of the last line is the place to go on from
        more = client.get(f"/runs/{options.id}/history", after=found["next"])
        found = {**more, "lines": [*found["lines"], *more["lines"]]}
    tell(options, found, lambda told: show.table(told["lines"], "n", "at", "epoch", "type", "data"))


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
    return watched(client, run_id, as_json=options.json)


def act(options: argparse.Namespace) -> int:
    client = client_of(options)
    answer = client.post(f"/runs/{options.id}/{options.act}", {"reason": options.reason})
    if getattr(options, "watch", False):
        return watched(client, options.id, as_json=options.json)
    did(options, answer, ACTIONS[options.act][1].replace("{}", short(options.id)))
    return 0


def lane_act(options: argparse.Namespace) -> None:
    client = client_of(options)
    if options.lane is None:
        woken = client.post(f"/runs/{options.id}/wake", {"reason": options.reason})
        count = woken["lanes"]
        said = f"The next step of {count:,} lane{'' if count == 1 else 's'} is due now."
        did(options, woken, said if count else "No lane of this run is waiting.")
        return
    lanes = list(client.pages(f"/runs/{options.id}/lanes", "lanes", MOST_LANES))
    exact = [lane for lane in lanes if options.lane in (lane["key"], lane["id"])]
    found = exact or [
        lane for lane in lanes if lane["key"].startswith(options.lane) or lane["id"].startswith(options.lane)
    ]
    key = one([lane["key"] for lane in found], options.lane, "lane")
    (lane,) = (lane for lane in found if lane["key"] == key)
    from_start = options.act == "restart" and options.from_start
    body = {"reason": options.reason, **({"from_start": True, "dry_run": not options.yes} if from_start else {})}
    answer = client.post(f"/runs/{options.id}/lanes/{lane['id']}/{options.act}", body)
    if from_start:
        said = f"{answer['again']} of {key} {'are' if answer['restarted'] else 'would be'} read again."
        did(options, answer, said if answer["restarted"] else f"{said} Add --yes to do it.")
        return
    did(options, answer, LANE_ACTIONS[options.act][1].format(key))


def bulk(options: argparse.Namespace) -> int:
    """The preview counts what the same filter then changes; what comes to match meanwhile is left alone."""
    wanted = {name: value for name in (*FILTERS, "outcome") if (value := getattr(options, name)) is not None}
    return on_all(options, options.action, wanted)


def why(options: argparse.Namespace) -> None:
    client = client_of(options)
    found = client.get(f"/runs/{options.id}/why")

    def as_text(said: Any) -> None:
        if said["status"] in show.ENDED:  # it waits for nothing; what it ended with is the answer
            print(show.summary(client.get(f"/runs/{options.id}")))
        else:
            print(f"{said['status']}; {said['moving']:,} lane{'' if said['moving'] == 1 else 's'} free to run")
        if said["reasons"]:
            columns = ("lanes", "until", "sentence", "action", "held_by")
            show.table(said["reasons"], *columns, optional=("held_by",), below="sentence")

    tell(options, found, as_text)


def gates(options: argparse.Namespace) -> None:
    found = client_of(options).listing("/gates", "gates", options.limit)
    columns = ("key", "state", "until", "reason", "is_shared")
    tell(options, found, lambda told: show.table(told["gates"], *columns, optional=("is_shared",), below="reason"))


def gate_act(options: argparse.Namespace) -> None:
    client = client_of(options)
    keys = [row["key"] for row in client.pages("/gates", "gates", MOST_GATES)]
    known = [key for key in keys if key == options.name] or [key for key in keys if key.startswith(options.name)]
    # One that no step has met yet can still be closed.
    key = options.name if options.act == "close" and not known else one(known, options.name, "rate limit")
    body = {"reason": options.reason} | ({"for_s": options.for_s} if options.act == "close" else {})
    answer = client.post(f"/gates/{quote(key, safe='')}/{options.act}", body)
    said = "Opened {}. What waited for it is due now." if options.act == "open" else "Closed {}."
    if not known:
        said += " No step has met it so far: if that is a typo, open it again."
    did(options, answer, said.format(key))


def audit(options: argparse.Namespace) -> None:
    found = client_of(options).listing("/audit", "lines", options.limit)
    columns = ("at", "action", "target", "actor", "reason", "after")
    tell(options, found, lambda told: show.table(told["lines"], *columns, optional=("after",)))


def now(options: argparse.Namespace) -> None:
    tell(options, client_of(options).get("/now"), show.now)


def system(options: argparse.Namespace) -> None:
    tell(options, client_of(options).get("/system"), show.system)


def connection_list(options: argparse.Namespace) -> None:
    found = client_of(options).listing("/connections", "connections", options.limit)
    columns = ("id", "provider", "name", "works", "check_says", "settings")
    tell(options, found, lambda told: show.table(told["connections"], *columns, optional=("settings",)))


def connection_add(options: argparse.Namespace) -> None:
    client, settings = client_of(options), dict(map(pair, options.set))
    secret = _secret(client, options.provider, options.secret)
    body = {"provider": options.provider, "name": options.name, "settings": settings, "secret": secret}
    answer = client.post("/connections", body, options.key or str(uuid.uuid1()))
    created(options, answer, f"Added. Check it with `baton connection check {options.provider}/{options.name}`.")


def connection_change(options: argparse.Namespace) -> None:
    client = client_of(options)
    known = client.get(f"/connections/{_connection(client, options.connection)}")
    settings = {**known["settings"], **dict(map(pair, options.set))}
    body = {"name": options.name or known["name"], "settings": settings}
    if options.new_secret or options.secret:
        body["secret"] = _secret(client, known["provider"], options.secret)
    answer = client.put(f"/connections/{known['id']}", body)
    did(options, answer, f"Changed. Check it with `baton connection check {known['provider']}/{body['name']}`.")


def connection_check(options: argparse.Namespace) -> int:
    client = client_of(options)
    told = client.post(f"/connections/{_connection(client, options.connection)}/check")
    tell(options, told, lambda said: print(said["says"]))
    return 0 if told["works"] else 1


def connection_delete(options: argparse.Namespace) -> None:
    client = client_of(options)
    answer = client.delete(f"/connections/{_connection(client, options.connection)}")
    did(options, answer, f"Deleted {options.connection} and its secret.")


def token_add(options: argparse.Namespace) -> None:
    body = {"name": options.name, "role": options.role}
    body |= {} if options.days is None else {"expires_in_days": options.days}
    answer = client_of(options).post("/tokens", body)
    created(options, answer, "Keep it now: it is not shown again. Use it as BATON_TOKEN.", "token")


def token_list(options: argparse.Namespace) -> None:
    found = client_of(options).listing("/tokens", "tokens", options.limit)
    columns = ("id", "name", "role", "created_at", "expires_at", "revoked_at", "last_used_at")
    tell(options, found, lambda told: show.table(told["tokens"], *columns, optional=("created_at", "last_used_at")))


def token_revoke(options: argparse.Namespace) -> None:
    client = client_of(options)
    did(options, client.delete(f"/tokens/{options.id}"), f"Revoked {short(options.id)}.")


def _connection(client: Client, wanted: str) -> str:
    rows = list(client.pages("/connections", "connections", 1000))
    found = [row["id"] for row in rows if wanted in (row["id"], row["name"], f"{row['provider']}/{row['name']}")]
    found = found or [row["id"] for row in rows if len(wanted) >= LEAST and row["id"].startswith(wanted)]
    if len(found) != 1:
        if found:
            raise Refusal(
                f"several connections are named {wanted!r}. Use PROVIDER/NAME or the ID: `baton connection list`"
            )
        raise Refusal(f"connection {wanted!r} not found. List them with `baton connection list`")
    return str(found[0])


def _secret(client: Client, provider: str, names: Sequence[str]) -> dict[str, str]:
    """Never from the command line, where everyone on the machine could read it."""
    if sys.stdin.isatty():
        return {name: getpass.getpass(f"{name}: ") for name in names or _parts_of_secret(client, provider)}
    try:
        given = json.load(sys.stdin)
    except ValueError as error:
        raise Refusal(f"{HOW_TO_PASS}: {error}") from None
    if not isinstance(given, dict):
        raise Refusal(HOW_TO_PASS)
    return given


HOW_TO_PASS = 'pass the secret as a JSON object on standard input, for example {"password": "…"}'  # noqa: S105 - a sentence


def _parts_of_secret(client: Client, provider: str) -> list[str]:
    """What the upstream's secret must have; what it may have is asked for by --secret."""
    known = {each["name"]: each["secret"] for each in client.get("/providers")["providers"]}
    if provider not in known:
        raise Refusal(f"unknown provider {provider!r}. Available: {', '.join(known)}")
    return list(known[provider].get("required", ()))


# --- the words --------------------------------------------------------------------------------------------------------


def add_commands(commands: Commands) -> None:
    made = command(commands, "login", login, "log in to the local cloud, or to a deployment with --url")
    made.add_argument("email", nargs="?")
    made.add_argument("--client-id", help="with --url: the stack's output UserPoolClientId")
    made.add_argument("--region", default=os.environ.get("AWS_REGION"), help="with --url: the user pool's region")
    made.add_argument("--password-stdin", action="store_true", help="read the password from standard input")
    command(commands, "logout", logout, "forget all logins")
    command(commands, "me", me, "show who you are and your tenants")
    command(commands, "console", web, "show the console's address; for the local cloud also the login")

    command(commands, "overview", now, "show what is overdue, failing or waiting, and why", aliases=("now",))
    command(commands, "system", system, "show system health: scheduler, cleanup, messages, repairs")

    below = group(commands, "run", "start, list, inspect and fix runs of any kind")
    _start(command(below, "start", start, "start a run of any kind"))
    _searches(with_limit(command(below, "list", runs, "list runs, newest first, and why they wait")))
    with_limit(with_id(command(below, "show", run_show, "show a run and its lanes")))
    with_limit(with_id(command(below, "lanes", lanes, "list the lanes of a run, and what each waits for")))
    with_id(command(below, "history", history, "show the timeline of a run"))
    _run_commands(below)
    for name, (text, _) in LANE_ACTIONS.items():
        made = with_id(command(below, name, lane_act, text))
        made.add_argument(
            "lane", nargs="?" if name == "wake" else None,
            help=f"its key as `baton run lanes` shows it, or the beginning of it{' (default: all that wait)' * (name == 'wake')}",
        )  # fmt: skip
        if name == "restart":
            made.add_argument(
                "--from-start", action="store_true", help="from its first page: what it did before doesn't count"
            )
            made.add_argument(
                "--yes", action="store_true", help="with --from-start: do it, don't just say what would be done"
            )
        with_reason(made).set_defaults(act=name)
    made = command(below, "bulk", bulk, "one action on every run that matches: counts them first, then asks")
    made.add_argument("action", choices=["cancel", "pause", "resume", "retry"])
    made.add_argument("--outcome")
    _filters(made)
    _asking(made)
    # Short forms.
    _start(command(commands, "start", start, "short for `baton run start`"))
    _searches(with_limit(command(commands, "runs", runs, "short for `baton run list`")))
    _run_commands(commands)

    below = group(commands, "rate-limit", "see, open and close rate limits")
    with_limit(command(below, "list", gates, "list rate limits and when they open"))
    for name, text in (("open", "open a rate limit: what waits for it is due now"), ("close", "close a rate limit")):
        made = command(below, name, gate_act, text)
        made.add_argument(
            "name", metavar="KEY", help="its key as `baton rate-limit list` shows it, or the beginning of it"
        )
        made.add_argument("--reason", required=True, help="kept in the audit log")
        made.set_defaults(act=name)
        if name == "close":
            made.add_argument("--for", dest="for_s", type=int, default=3600, metavar="SECONDS", help="default: 3600")
    with_limit(command(commands, "rate-limits", gates, "short for `baton rate-limit list`", aliases=("gates",)))
    with_limit(command(commands, "audit", audit, "show the audit log, newest first"))

    below = group(commands, "connection", "manage accounts at upstreams")
    made = command(below, "add", connection_add, "add a connection; its secret is prompted for, or read as JSON")
    made.add_argument("provider")
    made.add_argument("name")
    made.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting")
    made.add_argument("--secret", action="append", default=[], metavar="NAME", help="a secret to prompt for")
    with_key(made)
    with_limit(command(below, "list", connection_list, "list connections"))
    made = command(below, "change", connection_change, "change a connection: its settings, its name or its secret")
    made.add_argument("connection", help="its name or ID")
    made.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting; the others stay")
    made.add_argument("--name", help="a new name")
    made.add_argument("--new-secret", action="store_true", help="prompt for a new secret, or read it as JSON")
    made.add_argument("--secret", action="append", default=[], metavar="NAME", help="a secret to prompt for")
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
    with_id(command(below, "revoke", token_revoke, "revoke a token"), "the token's ID", "token")

    for kind in discover.found().values():
        kind.add_commands(commands)


def _run_commands(commands: Commands) -> None:
    """The same below `baton run` and as words of their own."""
    made = command(commands, "watch", watch, "show the progress of a run until it ends")
    made.add_argument("id", nargs="?", type=an_id, help="its ID, or its first characters (default: the newest run)")
    made.set_defaults(id_of="run")
    for name, (text, _) in ACTIONS.items():
        made = with_reason(with_id(command(commands, name, act, text)))
        made.set_defaults(act=name)
        if name == "retry":
            made.add_argument("--watch", action="store_true", help="show progress until it ends")
    with_id(command(commands, "why", why, "show why a run waits or failed, until when, and which action frees it"))


def _filters(made: argparse.ArgumentParser) -> None:
    for name, text in FILTERS.items():
        made.add_argument(f"--{name.replace('_', '-')}", help=text)


def _searches(made: argparse.ArgumentParser) -> None:
    made.add_argument("--search", dest="q", metavar="TEXT", help=SEARCHES["q"])
    made.add_argument("--state", help=SEARCHES["state"])
    _filters(made)


def _asking(made: argparse.ArgumentParser) -> None:
    made.add_argument("--reason", required=True, help="kept in each timeline and the audit log")
    made.add_argument("--yes", action="store_true", help="do not ask")


def _start(made: argparse.ArgumentParser) -> None:
    made.add_argument("kind")
    made.add_argument("--param", action="append", default=[], metavar="NAME=VALUE",
                      help="a parameter: JSON, or else text; may be repeated")  # fmt: skip
    made.add_argument("--params", default="{}", help="all parameters as one JSON object")
    starting(made)
