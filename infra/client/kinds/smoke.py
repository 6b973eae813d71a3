"""`baton smoke`: after a deployment, is it well? Asks what everybody may see, who you are, and runs one tiny job to its end."""

from __future__ import annotations

import argparse
import json
import re
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from infra.client.command import Commands, client_of, command
from infra.client.http import Client, Refusal, ask

DEFINITION = "smoke"
ENDED = frozenset({"succeeded", "failed", "canceled", "dead_letter"})
ASSET = re.compile(r'(?:src|href)="(assets/[^"]+)"')
EVERY_S = 1.0
NO_DEFINITION = (
    f"There is no job definition `{DEFINITION}`. The function migrate creates it: aws lambda invoke --function-name "
    "baton-<stage>-migrate answer.json"
)

Check = Callable[[Client, argparse.Namespace], str]


def add_commands(commands: Commands) -> None:
    made = command(commands, "smoke", smoke, "check a deployment: health, console, login and one job")
    made.add_argument(
        "--within", type=int, default=180, metavar="SECONDS", help="how long the job may take (default: 180)"
    )
    made.add_argument("--run", dest="kind", metavar="KIND", help="start a run of this kind instead of the job")
    made.add_argument("--params", default="{}", help="with --run: its parameters as JSON")


def smoke(options: argparse.Namespace) -> int:
    client = client_of(options)
    found = list(_checked(client, options))
    if options.json:
        print(json.dumps({"url": client.url, "ok": all(ok for _, ok, _ in found), "checks": [
            {"name": name, "ok": ok, "says": says} for name, ok, says in found
        ]}))  # fmt: skip
    return 0 if all(ok for _, ok, _ in found) else 1


def _checked(client: Client, options: argparse.Namespace) -> Iterator[tuple[str, bool, str]]:
    """Every check, also after one that failed: together they say where the fault is. Only who is logged in runs anything."""
    logged_in = True
    for name, check in CHECKS.items():
        if name == "run" and not logged_in:
            continue
        try:
            ok, says = True, check(client, options)
        except Refusal as error:
            ok, says = False, str(error)
        logged_in = ok if name == "login" else logged_in
        if not options.json:
            print(f"{'ok  ' if ok else 'FAIL'}  {name:8} {says}", flush=True)
        yield name, ok, says


def _health(client: Client, _: argparse.Namespace) -> str:
    status, answer = ask("GET", f"{client.url}/health", {"accept": "application/json"})
    try:
        report = json.loads(answer)
    except ValueError:
        report = {}
    if not isinstance(report, dict) or "expected_schema" not in report:
        if (urlsplit(client.url).hostname or "").endswith(".localhost"):
            return "not asked: an emulator answers this path itself"
        raise Refusal(f"/health answered {status}, and not as Baton does. Is {client.url} the stack's output ApiUrl?")
    if report.get("database") != "reachable":
        raise Refusal(
            "The database is unreachable. Check its host, network and login; the log of the function api says why."
        )
    if report.get("schema") is None or report["schema"] < report["expected_schema"]:
        raise Refusal(
            f"The schema is {report.get('schema')}, the code expects {report['expected_schema']}. The log of the function "
            "migrate says why; deploy again."
        )
    if report.get("tick_age_s") is None:
        raise Refusal(
            "The scheduler has not run yet. It runs every minute: wait for two, then look at the schedule, the throttles "
            "and the log of the function tick."
        )
    if not report.get("ok"):
        raise Refusal(
            f"The scheduler has stopped: the last tick ended {report.get('tick_age_s')} s ago. Look at the schedule, the "
            "throttles and the log of the function tick."
        )
    return f"schema {report['schema']}, last tick {report['tick_age_s']} s ago"


def _console(client: Client, _: argparse.Namespace) -> str:
    page = _file(client, "/console/now")
    assets = ASSET.findall(page)
    if not assets:
        raise Refusal("/console/now is not the console: it names no asset. Was the artifact built with `make build`?")
    _file(client, f"/console/{assets[0]}")
    return f"/console/now and {assets[0]}"


def _file(client: Client, path: str) -> str:
    status, content = ask("GET", f"{client.url}{path}", {"accept": "*/*"})
    if status != 200 or not content:
        raise Refusal(f"{path} answered {status}. The function api serves it; its log says why.")
    return content.decode(errors="replace")


def _login(client: Client, _: argparse.Namespace) -> str:
    me = client.get("/me")
    if not me["tenants"]:
        raise Refusal(f"{me['actor']} is logged in but belongs to no tenant. Add them: baton user add --stack …")
    roles = [f"{each['role']} of {each['name']}" for each in me["tenants"][:3]]
    return f"{me['actor']}, {', '.join(roles)}"


def _run(client: Client, options: argparse.Namespace) -> str:
    if options.kind:
        return _ended(client, "/runs", {"kind": options.kind, "params": _params(options.params)}, options.within)
    try:
        return _ended(client, "/jobs", {"definition_key": DEFINITION, "payload": {}}, options.within)
    except Refusal as error:
        if error.problem.get("code") == "unknown_definition":
            raise Refusal(NO_DEFINITION) from None
        raise


def _ended(client: Client, path: str, body: dict[str, Any], within_s: int) -> str:
    began = time.monotonic()
    made = client.post(path, body, str(uuid.uuid1()))
    while (seen := client.get(f"{path}/{made['id']}"))["status"] not in ENDED:
        if time.monotonic() - began > within_s:
            why = (seen.get("why") or {}).get(
                "sentence"
            ) or "nobody took it: look at its queue and at the function's throttles"
            raise Refusal(f"{path[1:-1]} {made['id']} is {seen['status']} after {within_s} s: {why}")
        time.sleep(EVERY_S)
    if seen["status"] != "succeeded":
        said = seen.get("error") or seen.get("last_error") or {}
        told = said.get("message") if isinstance(said, dict) else said
        raise Refusal(
            f"{path[1:-1]} {made['id']} ended as {seen['status']}: {told or 'see its timeline in the console'}"
        )
    return f"{path[1:-1]} {made['id']} succeeded after {time.monotonic() - began:.0f} s"


def _params(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Refusal(f"--params is not valid JSON: {error}") from None


CHECKS: dict[str, Check] = {"health": _health, "console": _console, "login": _login, "run": _run}
