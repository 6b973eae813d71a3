"""The command `baton`: the local cloud, and runs in it. Every error says what to do."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from botocore.exceptions import BotoCoreError, ClientError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from infra.client import cli as client
from infra.local import supervise
from infra.local.binaries import PostgresError
from infra.local.cloud import HOME, STONES, Address, Cloud, without_password
from infra.local.deploy import STACK, DeployError
from infra.local.invoke import InvokeError, invoke
from infra.local.ministack import MiniStackError, credentials
from infra.local.private import ROLES
from infra.local.runs import Runs, configuration_of, functions_of, queues_of
from infra.local.supervise import CloudError
from shared.kernel.aws import DEFAULT_REGION
from shared.kernel.redact import redact

# Not runs: the schema's version, people and tokens, and accounts at upstreams.
KEPT = ("alembic_version", "tenant", "member", "super_admin", "machine_token", "signing_key", "connection")
FOLLOW_EVERY_S = 1.0
KNOWN_ERRORS = (CloudError, DeployError, InvokeError, MiniStackError, PostgresError)

console = Console(highlight=False, soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.run.__module__.startswith("infra.client."):
        return client.run(options)
    try:
        return int(options.run(options) or 0)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _nobody_reads()
        return 0
    except KNOWN_ERRORS as error:
        return _complain(str(error))
    except (ClientError, BotoCoreError) as error:
        where = "AWS" if getattr(options, "stack", None) else "the local AWS"
        return _complain(
            f"{where} refused: {redact(str(error))}. Run `baton status` to see what is running, `baton up` to fix it"
        )


def _complain(text: str) -> int:
    print(f"baton: {text}", file=sys.stderr)
    return 1


# --- the cloud --------------------------------------------------------------------------------------------------------


def up(options: argparse.Namespace) -> None:
    _check_upstreams(options)
    if options.foreground:
        supervise.supervise(options.home, _say, lambda: _start(options), ephemeral=options.ephemeral)
        return
    show: Callable[[str], None] = (lambda _: None) if options.json else _say
    address = supervise.running(options.home)
    if address is not None and not all(alive for _, alive in address.parts().values()):
        dead = ", ".join(name for name, (_, alive) in address.parts().items() if not alive)
        show(f"{dead} is not responding: restarting with the same database")
        supervise.end(options.home)
        address = None
    if address is None:
        address = supervise.spawn(options.home, _passed_on(options), show)
    else:
        moved = [name for name, url in options.upstream.items() if address.upstreams.get(name) != url]
        if moved:
            raise CloudError(f"The cloud is up with another {moved[0]}. Run `baton down`, then `baton up` again.")
        deployed = address.deploy()
        took = f"deployed changes in {deployed.seconds:.1f} s" if deployed.changed else "nothing has changed"
        show(f"already running; {took}")
    _describe(address, options)


def _start(options: argparse.Namespace) -> Cloud:
    return Cloud.start(
        options.home, _say, port=options.port, stones=options.stones, seed=options.seed, upstreams=options.upstream
    )


def _check_upstreams(options: argparse.Namespace) -> None:
    """What was asked for by --upstream makes sense; what the environment seems to ask for is not ignored in silence."""
    from infra.local.standins.all import STANDINS  # noqa: PLC0415 - the other commands need not wait for it
    from shared.kernel.http import safe_base_url  # noqa: PLC0415 - as above

    options.upstream = dict(options.upstream)
    for name, url in options.upstream.items():
        if name not in STANDINS:
            raise CloudError(f"Unknown upstream {name!r}. Available: {', '.join(STANDINS)}.")
        try:
            safe_base_url(url)
        except ValueError as error:
            raise CloudError(f"--upstream {name}: {error}.") from None
    for name, place in STANDINS.items():
        variable = place.address[1]
        if os.environ.get(variable) and name not in options.upstream:
            told = f"warning: {variable} is set, but the local cloud uses its own stand-in for {name}."
            print(f"baton: {told} To use yours: baton up --upstream {name}=${variable}", file=sys.stderr)


def _passed_on(options: argparse.Namespace) -> list[str]:
    given = [f"--stones={options.stones}", f"--seed={options.seed}"]
    given += [f"--port={options.port}"] if options.port else []
    given += [f"--upstream={name}={url}" for name, url in options.upstream.items()]
    return [*given, "--ephemeral"] if options.ephemeral else given


def down(options: argparse.Namespace) -> None:
    _say("stopped" if supervise.end(options.home) else "nothing was running")


def status(options: argparse.Namespace) -> int:
    address = supervise.running(options.home)
    if address is None:
        if options.json:
            print(json.dumps({"up": False}))
        else:
            _say("No local cloud is running. Start one with `baton up`")
        return 1
    parts = address.parts()
    whole = all(alive for _, alive in parts.values())
    queues = _depths(address) if parts["aws"][1] else {}
    if options.json:
        described = {name: {"address": where, "up": alive} for name, (where, alive) in parts.items()}
        print(json.dumps({"up": whole, "pid": address.pid, "parts": described, "queues": queues}))
        return 0 if whole else 1
    for name, (where, alive) in parts.items():
        console.print(f"{name:12} {'[green]up[/]  ' if alive else '[red]dead[/]'} {escape(where)}")
    for name, (ready, in_flight) in queues.items():
        console.print(f"queue        {name}: {ready} waiting, {in_flight} in flight")
    if not whole:
        _say(f"Run `baton up` to restart what is dead. Its last output is in {options.home / supervise.LOG}")
    return 0 if whole else 1


def _depths(address: Address) -> dict[str, tuple[int, int]]:
    sqs = address.client("sqs")
    names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
    found = {}
    for name, url in queues_of(address).items():
        answer = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=list(names))["Attributes"]
        found[name] = (int(answer[names[0]]), int(answer[names[1]]))
    return found


def reset(options: argparse.Namespace) -> None:
    """Runs and rows are forgotten and queues emptied; what is deployed stays, and so do people and their connections."""
    address = _up(options)
    with Runs(address) as runs:
        tables = runs.sql(
            "select tablename from pg_tables where schemaname = 'public' and tablename <> all(:kept)", kept=list(KEPT)
        )
        runs.sql(f"truncate {', '.join(row['tablename'] for row in tables)}")
    purge(address)
    _say("deleted every run and row, emptied every queue")


def purge(address: Address) -> None:
    for url in queues_of(address).values():
        address.client("sqs").purge_queue(QueueUrl=url)


def _describe(address: Address, options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps({"endpoint": address.endpoint, "database_url": address.database_url,
                          "upstreams": address.upstreams, "outputs": address.outputs}))  # fmt: skip
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    command = "baton" if options.home == HOME else f"baton --home {options.home}"
    table.add_row("AWS", f'{address.endpoint}    eval "$({command} env)" points aws, sam and psql at it')
    table.add_row("database", without_password(address.database_url))
    for name, url in address.upstreams.items():
        table.add_row(name, url)
    for name, value in sorted(address.outputs.items()):
        table.add_row(name, escape(value))
    table.add_row("functions", ", ".join(functions_of(address)))
    console.print(table)
    _say(f"start a run: {command} ingest --watch    open the console: {command} console    stop: {command} down")


def env(options: argparse.Namespace) -> None:
    """For `eval`: they hold this cloud's secrets, so they are told to nobody who did not ask."""
    address = _up(options)
    where = sa.make_url(address.database_url)
    told = {
        "AWS_ENDPOINT_URL": address.endpoint, "AWS_DEFAULT_REGION": DEFAULT_REGION, **credentials(address.access_key),
        "PGHOST": where.host, "PGPORT": where.port, "PGDATABASE": where.database, "PGUSER": where.username,
        "PGPASSWORD": where.password, "BATON_OWNER_URL": address.database_url,
        **{f"{name.upper()}_URL": address.url_as(name) for name in ROLES},
    }  # fmt: skip
    for name, value in told.items():
        print(f"export {name}={shlex.quote(str(value))}")


# --- functions --------------------------------------------------------------------------------------------------------


def logs(options: argparse.Namespace) -> None:
    address = _up(options)
    names = [_function(address, options.function)] if options.function else functions_of(address)
    seen: set[tuple[int, str, str, str]] = set()
    while True:
        lines = {line for name in names for line in _lines(address, name)} - seen
        for at, name, _, message in sorted(lines):
            if _wanted(message):
                clock = datetime.fromtimestamp(at / 1000, UTC).strftime("%H:%M:%S")
                print(f"{clock} {name}  {message}", flush=True)
        seen |= lines
        if not options.follow:
            return
        time.sleep(FOLLOW_EVERY_S)


def _lines(address: Address, function: str) -> list[tuple[int, str, str, str]]:
    client = address.client("logs")
    try:
        pages = client.get_paginator("filter_log_events").paginate(logGroupName=f"/aws/lambda/{STACK}-{function}")
        events = [event for page in pages for event in page["events"]]
    except client.exceptions.ResourceNotFoundException:
        return []
    return [(event["timestamp"], function, event["logStreamName"], event["message"].rstrip()) for event in events]


def _wanted(message: str) -> bool:
    """Lambda's own lines about an invocation, and the counts for CloudWatch, say little to a reader."""
    return not re.match(r"(START|END|REPORT) RequestId|\{\"_aws\"", message)


def invoke_function(options: argparse.Namespace) -> None:
    address = _up(options)
    name = _function(address, options.function)
    event = sys.stdin.read() if options.event == "-" else _read(Path(options.event))
    print(invoke(configuration_of(address, name), address.endpoint, address.access_key, event))


def _read(path: Path) -> str:
    try:
        text = path.read_text()
        json.loads(text)
    except OSError as error:
        raise CloudError(
            f"can't read {path}: {error.strerror}. The folder events/ has an event for every function"
        ) from None
    except ValueError as error:
        raise CloudError(f"{path} is not valid JSON: {error}") from None
    return text


def tick(options: argparse.Namespace) -> None:
    print(json.dumps(fire_tick(_up(options))))


def fire_tick(address: Address) -> Any:
    """What the schedule does every minute, now, and its report."""
    answer = address.client("lambda").invoke(FunctionName=f"{STACK}-tick", Payload=b"{}")
    report = json.load(answer["Payload"])
    if "FunctionError" in answer:
        raise CloudError(f"the tick failed: {report}. See `baton logs tick`")
    return report


def _function(address: Address, name: str) -> str:
    known = functions_of(address)
    wanted = name.removeprefix(f"{STACK}-")
    if wanted not in known:
        raise CloudError(f"unknown function {name!r}. Available: {', '.join(known)}")
    return wanted


# --- people and the rest ----------------------------------------------------------------------------------------------


def user_add(options: argparse.Namespace) -> None:
    from infra.local.people import add_user  # noqa: PLC0415 - the other commands need not wait for it

    add_user(options, lambda: _up(options))


def run_demo(options: argparse.Namespace) -> int:
    from infra.local.demo import demo  # noqa: PLC0415 - the other commands need not wait for it

    if options.worker:
        from infra.local.worker_demo import worker_demo  # noqa: PLC0415 - as above

        return worker_demo(console, stones=options.stones, seed=options.seed)
    return demo(console, stones=options.stones, seed=options.seed)


def _up(options: argparse.Namespace) -> Address:
    address = supervise.running(options.home)
    if address is None:
        raise CloudError("no local cloud is running. Start one with `baton up`")
    return address


def _say(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:
        _nobody_reads()


def _nobody_reads() -> None:
    """Whoever read what we say has left (`baton up | head -1`): that is no reason to stop."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="baton", description="Run Baton on this machine, and use it here or in AWS.")
    parser.add_argument(
        "--home", type=_folder, default=HOME, help="folder of the local cloud's state (default: .local/cloud)"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, run: Callable[..., Any], text: str, *, answers_json: bool = False
    ) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=f"{text[:1].upper()}{text[1:]}.")
        made.set_defaults(run=run, json=False)
        if answers_json:
            made.add_argument("--json", action="store_true", help="print JSON")
        return made

    made = command("up", up, "start the local cloud, or deploy changes to it", answers_json=True)
    made.add_argument("--foreground", action="store_true", help="stay in the foreground; Ctrl-C stops everything")
    made.add_argument("--ephemeral", action="store_true", help="delete the database at the end")
    made.add_argument("--port", type=int, help="the port of AWS (default: a free one)")
    made.add_argument(
        "--upstream", type=_named_url, action="append", default=[], metavar="NAME=URL",
        help="use this server instead of the stand-in of that name; its account is read from the environment",
    )  # fmt: skip
    _add_catalogue(made, STONES)
    command("down", down, "stop the local cloud; the database's files stay")
    command("status", status, "show what is running, and queue depths", answers_json=True)
    command("env", env, 'print shell variables for aws, sam and psql: eval "$(baton env)"')
    command("reset", reset, "delete every run and row, empty every queue")

    made = command("logs", logs, "show the logs of functions")
    made.add_argument("function", nargs="?", help="default: all")
    made.add_argument("-f", "--follow", action="store_true")
    made = command(
        "invoke", invoke_function, "call a function with an event, in a fresh process with the code of this folder"
    )
    made.add_argument("function")
    made.add_argument("-e", "--event", default="-", help="a file (events/ has one for each); default: standard input")
    command("tick", tick, "run the scheduler's next tick now")

    client.add_commands(commands)
    below = commands.add_parser("user", help="manage people").add_subparsers(required=True, metavar="COMMAND")
    made = below.add_parser("add", help="add a person to a tenant, with the rights of whoever deploys")
    made.set_defaults(run=user_add)
    made.add_argument("--json", action="store_true", help="print JSON")
    _add_user_arguments(made)

    made = command("demo", run_demo, "ingest a catalogue in a throwaway cloud while a function is killed")
    _add_catalogue(made, 10_000)
    made.add_argument("--worker", action="store_true", help="on Postgres alone, with two workers instead of functions")
    return parser


def _named_url(text: str) -> tuple[str, str]:
    name, is_there, url = text.partition("=")
    if not is_there or not url:
        raise argparse.ArgumentTypeError(f"expected NAME=URL, not {text!r}")
    return name, url


def _folder(text: str) -> Path:
    return Path(text).resolve()


def _add_user_arguments(made: argparse.ArgumentParser) -> None:
    made.add_argument("email")
    made.add_argument("--role", choices=["admin", "member", "viewer", "worker"], default="member")
    made.add_argument("--tenant", required=True, help="its name; created if it doesn't exist")
    made.add_argument("--super-admin", action="store_true", help="may act in every tenant")
    made.add_argument("--password-stdin", action="store_true", help="read the password from standard input")
    made.add_argument("--subject", help="`sub` at another issuer than the user pool: no user is created")
    made.add_argument(
        "--stack", help="a deployed stack, with the AWS credentials of this shell (default: the local cloud)"
    )


def _add_catalogue(parser: argparse.ArgumentParser, stones: int) -> None:
    parser.add_argument(
        "--stones",
        type=int,
        default=stones,
        help=f"number of records in the stand-in's catalogue (default: {stones:,})",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the stand-in's catalogue")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
