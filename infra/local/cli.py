"""The command `baton`: the local cloud, and runs in it. Every error says what to do."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from botocore.exceptions import BotoCoreError, ClientError
from rich.console import Console
from rich.markup import escape

from infra.client.session import KEPT as KEPT_LOGIN
from infra.client.session import read
from infra.local import supervise
from infra.local.binaries import PostgresError
from infra.local.cloud import HOME, Address, Cloud, stage_parameters
from infra.local.deploy import STACK, DeployError
from infra.local.invoke import InvokeError, invoke
from infra.local.ministack import MiniStackError, credentials, workers
from infra.local.people import add_user, first_login
from infra.local.private import ROLES
from infra.local.runs import TENANT, Runs, configuration_of, functions_of, queues_of
from infra.local.supervise import CloudError
from shared.kernel.aws import DEFAULT_REGION
from shared.kernel.redact import redact

# Not runs: the schema's version, people and tokens, and accounts at upstreams.
KEPT = ("alembic_version", "tenant", "member", "super_admin", "machine_token", "signing_key", "connection")
FOLLOW_EVERY_S = 1.0
KNOWN_ERRORS = (CloudError, DeployError, InvokeError, MiniStackError, PostgresError)

console = Console(highlight=False, soft_wrap=True)


def run(name: str, options: argparse.Namespace) -> int:
    """One of the commands in `infra/local/commands.py`."""
    do: Callable[[argparse.Namespace], Any] = globals()[name]
    try:
        return int(do(options) or 0)
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
    _check_settings(options)
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
        first_login(options.home)
    else:
        moved = [name for name, url in options.upstream.items() if address.upstreams.get(name) != url]
        if moved:
            raise CloudError(f"The cloud is up with another {moved[0]}. Run `baton down`, then `baton up` again.")
        if options.settings and options.settings != address.parameters.get("Settings"):
            raise CloudError("The cloud is up with other settings. Run `baton down`, then `baton up` again.")
        deployed = address.deploy()
        took = f"deployed changes in {deployed.seconds:.1f} s" if deployed.changed else "nothing has changed"
        show(f"Already running; {took}.")
    _describe(address, options)


def _start(options: argparse.Namespace) -> Cloud:
    return Cloud.start(
        options.home, _say, port=options.port, stones=options.stones, seed=options.seed, upstreams=options.upstream,
        parameters={"Settings": options.settings} if options.settings else {},
    )  # fmt: skip


def _check_settings(options: argparse.Namespace) -> None:
    """Before anything starts: the deployment would refuse them too, a minute later."""
    listed = options.settings or stage_parameters().get("Settings")
    if not listed:
        return
    from functions.catalogue import all_settings  # noqa: PLC0415 - the other commands need not wait for it
    from shared.kernel.settings import LISTED, BadSettings, check_settings  # noqa: PLC0415 - as above

    try:
        check_settings({LISTED: listed}, all_settings())
    except BadSettings as error:
        raise CloudError(f"{error}.") from None


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
    given += [f"--settings={options.settings}"] if options.settings else []
    return [*given, "--ephemeral"] if options.ephemeral else given


def down(options: argparse.Namespace) -> None:
    _say("Stopped. The database is kept." if supervise.end(options.home) else "Nothing was running.")


def status(options: argparse.Namespace) -> int:
    address = supervise.running(options.home)
    if address is None:
        if options.json:
            print(json.dumps({"up": False}))
        else:
            _say("No local cloud is running. Start one with `baton up`.")
        return 1
    if options.pid or options.address:
        return _one(address, options)
    parts = address.parts()
    whole = all(alive for _, alive in parts.values())
    queues = _depths(address) if parts["aws"][1] else {}
    functions = _pids(address) if parts["aws"][1] else {}
    api = address.outputs["ApiUrl"]
    if options.json:
        described = {
            name: {"address": where, "up": alive, "pid": address.pids.get(name)}
            for name, (where, alive) in parts.items()
        }
        told = {"up": whole, "pid": address.pid, "api": api, "console": _console(address), "parts": described}
        print(json.dumps({**told, "functions": functions, "queues": queues}))
        return 0 if whole else 1
    console.print(f"{'console':16} {_console(address)}\n{'api':16} {api}")
    for name, (where, alive) in parts.items():
        pid = f"pid {address.pids[name]:<8}" if name in address.pids else " " * 12
        console.print(f"{name:16} {'[green]up[/]  ' if alive else '[red]dead[/]'} {pid} {escape(where)}")
    console.print(f"{'supervisor':16} up   pid {address.pid}")
    for name, pids in functions.items():
        if pids:
            console.print(f"{name:16} runs pid {', '.join(map(str, pids))}")
    busy = {name: depth for name, depth in queues.items() if any(depth)}
    for name, (ready, in_flight) in busy.items():
        console.print(f"queue {name}: {ready} waiting, {in_flight} in flight")
    if queues:
        console.print(f"{len(queues) - len(busy)} queues are empty")
    if not whole:
        _say(f"Run `baton up` to restart what is dead. Its last output is in {options.home / supervise.LOG}")
    return 0 if whole else 1


def _one(address: Address, options: argparse.Namespace) -> int:
    """One pid or address and nothing else, for a command line."""
    if options.address:
        known = {
            "api": address.outputs["ApiUrl"],
            "console": _console(address),
            "aws": address.endpoint,
            **address.upstreams,
        }
        if options.address not in known:
            raise CloudError(f"unknown part {options.address!r}. Available: {', '.join(known)}")
        _say(known[options.address])
        return 0
    functions = _pids(address)
    pids = {"supervisor": [address.pid], **{name: [pid] for name, pid in address.pids.items()}, **functions}
    if options.pid not in pids:
        raise CloudError(f"unknown part {options.pid!r}. Available: {', '.join(pids)}")
    if not pids[options.pid]:
        raise CloudError(f"no process runs {options.pid} now: it starts with the next message")
    _say("\n".join(map(str, pids[options.pid])))
    return 0


def _pids(address: Address) -> dict[str, list[int]]:
    return {name: workers(address.pids.get("aws"), f"{STACK}-{name}") for name in functions_of(address)}


def _console(address: Address) -> str:
    return f"{address.outputs['ApiUrl']}/console/overview"


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
    _call(address, "migrate")  # what every deployment brings along, such as the job of `baton smoke`
    _say("Deleted every run and row, and emptied every queue. People and connections are still there.")


def purge(address: Address) -> None:
    for url in queues_of(address).values():
        address.client("sqs").purge_queue(QueueUrl=url)


def _describe(address: Address, options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps({"endpoint": address.endpoint, "database_url": address.database_url,
                          "upstreams": address.upstreams, "outputs": address.outputs}))  # fmt: skip
        return
    kept = read(options.home / KEPT_LOGIN)
    login = f"   login {kept['email']}  {kept['password']}" if "password" in kept else ""
    _say(f"\nConsole  {_console(address)}{login}")
    _say(f"API      {address.outputs['ApiUrl']}/api/v1   described at {address.outputs['ApiUrl']}/docs")
    _say(f"Next     {_command(options)} ingest --watch")


def _command(options: argparse.Namespace) -> str:
    """As it can be typed in this shell."""
    on_path = shutil.which("baton")
    ours = Path(sys.executable).parent / "baton"
    name = "baton" if on_path and Path(on_path).resolve() == ours.resolve() else os.path.relpath(ours)
    return name if options.home == HOME else f"{name} --home {options.home}"


def env(options: argparse.Namespace) -> None:
    """For `eval`: they hold this cloud's secrets, so they are told to nobody who did not ask."""
    address = _up(options)
    where = sa.make_url(address.database_url)
    told = {
        "AWS_ENDPOINT_URL": address.endpoint, "AWS_DEFAULT_REGION": DEFAULT_REGION, **credentials(address.access_key),
        "PGHOST": where.host, "PGPORT": where.port, "PGDATABASE": where.database, "PGUSER": where.username,
        "PGPASSWORD": where.password, "PGOPTIONS": f"-c app.tenant={options.tenant or TENANT}",
        "BATON_OWNER_URL": address.database_url,
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
            if _wanted(message) and (options.of_run is None or _is_of(message, options.of_run)):
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


def _is_of(message: str, run: str) -> bool:
    try:
        said = json.loads(message)
    except ValueError:
        return False
    return isinstance(said, dict) and str(said.get("run", "")).startswith(run.lower())


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
    return _call(address, "tick")


def _call(address: Address, function: str) -> Any:
    answer = address.client("lambda").invoke(FunctionName=f"{STACK}-{function}", Payload=b"{}")
    report = json.load(answer["Payload"])
    if "FunctionError" in answer:
        raise CloudError(f"the function {function} failed: {report}. See `baton logs {function}`")
    return report


def _function(address: Address, name: str) -> str:
    known = functions_of(address)
    wanted = name.removeprefix(f"{STACK}-")
    if wanted not in known:
        raise CloudError(f"unknown function {name!r}. Available: {', '.join(known)}")
    return wanted


# --- people and the rest ----------------------------------------------------------------------------------------------


def user_add(options: argparse.Namespace) -> None:
    add_user(options, lambda: _up(options))


def run_demo(options: argparse.Namespace) -> int:
    from infra.local.demo import demo  # noqa: PLC0415 - the other commands need not wait for it

    if options.worker:
        from infra.local.worker_demo import worker_demo  # noqa: PLC0415 - as above

        return worker_demo(console, stones=options.stones, seed=options.seed)
    return demo(console, stones=options.stones, seed=options.seed)


def demo_data(options: argparse.Namespace) -> int:
    from infra.client.http import Refusal  # noqa: PLC0415 - the other commands need not wait for it
    from infra.client.session import connect  # noqa: PLC0415 - as above
    from infra.local.demo_data import fill  # noqa: PLC0415 - as above

    _up(options)
    try:
        if not options.yes and connect(options.home, None, None).get("/runs", limit=1)["runs"]:
            _say("There are runs already. To add to them: `baton demo-data --yes`; to start over: `baton reset` first.")
            return 1
        fill(options.home, _say)
    except Refusal as error:
        return _complain(str(error))
    return 0


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


if __name__ == "__main__":
    from infra.cli import main

    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
