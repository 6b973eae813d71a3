"""`baton job`, `baton definition` and `baton workers`: add jobs, follow their logs, define what can be run."""

from __future__ import annotations

import argparse
import json
import sys
import uuid
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
    on_all,
    pair,
    short,
    tell,
    with_id,
    with_key,
    with_limit,
)  # fmt: skip
from infra.client.http import Client, Patient, Refusal

STATUSES = ["queued", "running", "succeeded", "failed", "canceled", "dead_letter"]
SOURCES = ["manual", "event", "schedule", "system"]
ENDED = frozenset({"succeeded", "failed", "canceled", "dead_letter"})
REREAD = 10  # looks at a log that seems to be as it was, until all of it is read again
ANCHOR = 1_000  # so many characters tell where a log that is cut at its beginning goes on
LIST = ("id", "definition_key", "status", "attempts", "source", "queued_at", "started_at", "finished_at", "worker")
LESS = ("source", "queued_at", "worker", "started_at")
JOB_ID = "the job's ID"


def add_commands(commands: Commands) -> None:
    jobs = group(commands, "job", "add jobs, follow and fix them")
    made = command(jobs, "add", add, "add a job to its queue")
    made.add_argument("definition", help="the definition's key; list them with `baton definition list`")
    made.add_argument("--arg", action="append", default=[], metavar="NAME=VALUE", help="an argument; may be repeated")
    made.add_argument("--payload", default="{}", help="all arguments as one JSON object")
    made.add_argument("--priority", type=int, help="lower numbers run first (default: 100)")
    made.add_argument("--at", metavar="TIME", help="not before this time, for example 2026-12-24T18:00:00Z")
    made.add_argument("--dedupe-key", help="if a job with this key is queued or running, show that one instead")
    made.add_argument("-f", "--follow", action="store_true", help="follow its log until it ends")
    with_key(made)
    made = with_limit(command(jobs, "list", list_jobs, "list jobs, newest first"))
    made.add_argument("--status", choices=STATUSES)
    made.add_argument("--source", choices=SOURCES)
    made.add_argument("--created-after", metavar="TIME")
    made.add_argument("--created-before", metavar="TIME")
    with_limit(with_id(command(jobs, "show", show_job, "show a job, why it waits, and its attempts"), JOB_ID, "job"))
    made = with_id(command(jobs, "logs", logs, "show what a job printed"), JOB_ID, "job")
    made.add_argument("-f", "--follow", action="store_true", help="go on until the job ends")
    made.add_argument("--attempt", type=int, help="default: the latest")
    for name, text in (("cancel", "cancel a job; a running command is stopped"), ("retry", "run an ended job again")):
        made = with_id(command(jobs, name, act, text), JOB_ID, "job")
        made.add_argument("--reason", default="", help="kept in the timeline and the audit log")
        made.set_defaults(act=name)
        if name == "retry":
            made.add_argument("-f", "--follow", action="store_true", help="follow its log until it ends")
    made = command(jobs, "redrive", redrive, "retry dead letters: shows how many first, then asks")
    made.add_argument("--definition", metavar="KEY", help="only of this definition")
    made.add_argument("--reason", required=True, help="kept in each timeline and the audit log")
    made.add_argument("--yes", action="store_true", help="do not ask")
    command(jobs, "summary", summary, "show how the queue stands: counts, rates, how long jobs wait and run")

    made = command(jobs, "limit", limit, "show or set how many jobs of the tenant may run at once")
    made.add_argument("most", nargs="?", metavar="N|none", help="the new limit, or none; for super admins")
    made.add_argument("--reason", default="", help="kept in the audit log")

    definitions = group(commands, "definition", "define what jobs can run")
    command(definitions, "list", list_definitions, "list job definitions")
    command(definitions, "show", show_definition, "show a definition and the arguments it takes").add_argument(
        "name", metavar="KEY"
    )
    made = command(definitions, "add", add_definition, "define a job; for super admins")
    made.add_argument("name", metavar="KEY")
    made.add_argument("--command", dest="command_key", metavar="KEY", help="the allowed command to run (default: KEY)")
    _settings(made)
    made = command(definitions, "edit", edit_definition, "change a definition; for super admins")
    made.add_argument("name", metavar="KEY")
    _settings(made)
    state = made.add_mutually_exclusive_group()
    state.add_argument("--activate", dest="is_active", action="store_true", default=None, help="let its jobs run")
    state.add_argument("--deactivate", dest="is_active", action="store_false", help="add and start none of its jobs")
    command(commands, "workers", workers, "list workers and whether they respond; for super admins")


def _settings(made: argparse.ArgumentParser) -> None:
    made.add_argument("--description")
    made.add_argument("--schema", metavar="FILE", help="JSON Schema of the arguments: a file, or - for standard input")
    made.add_argument("--timeout", dest="timeout_seconds", type=int, metavar="SECONDS", help="default: 3600")
    made.add_argument("--max-attempts", type=int, help="default: 3")
    made.add_argument("--queue", help="default: default")
    made.add_argument("--executor", choices=["lambda", "worker"], help="default: lambda up to 14 minutes, else worker")
    made.add_argument("--limit", dest="concurrency_limit", type=int, help="how many may run at once, over all tenants")


# --- jobs -------------------------------------------------------------------------------------------------------------


def add(options: argparse.Namespace) -> int:
    client = client_of(options)
    body = {"definition_key": options.definition, "payload": _payload(client, options)}
    chosen = {"priority": options.priority, "scheduled_for": options.at, "dedupe_key": options.dedupe_key}
    body |= {name: value for name, value in chosen.items() if value is not None}
    made = client.post("/jobs", body, options.key or str(uuid.uuid1()))
    if options.follow:
        print(made["id"], file=sys.stderr)
        return _follow(client, made["id"])
    created(options, made, f"Queued. Follow its log with `baton job logs {short(made['id'])} -f`.")
    return 0


def _payload(client: Client, options: argparse.Namespace) -> dict[str, Any]:
    try:
        payload = json.loads(options.payload)
    except ValueError as error:
        raise Refusal(f"--payload is not valid JSON: {error}") from None
    if not isinstance(payload, dict):
        raise Refusal('--payload must be a JSON object, for example \'{"model": "siglip"}\'')
    if not options.arg:
        return payload
    wanted = _definition(client, options.definition)["arg_schema"].get("properties", {})
    for name, text in map(pair, options.arg):
        known = name.replace("-", "_")
        if known not in wanted:
            takes = ", ".join(sorted(wanted)) or "none"
            raise Refusal(f"{options.definition} has no argument {name!r}. Available: {takes}")
        payload[known] = _value(text, wanted[known])
    return payload


def _value(text: str, schema: Any) -> Any:
    """What the schema calls a string is text; anything else is JSON, or else text, and the API says what is wrong with it."""
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def list_jobs(options: argparse.Namespace) -> None:
    wanted = {name: getattr(options, name) for name in ("status", "source", "created_after", "created_before")}
    found = client_of(options).listing("/jobs", "jobs", options.limit, **wanted)
    tell(options, found, lambda told: show.table([_row(job) for job in told["jobs"]], *LIST, optional=LESS))


def _row(job: Mapping[str, Any]) -> dict[str, Any]:
    allowed = max(job["max_attempts"], job["attempt_count"])  # a retry has fresh ones, and they are numbered on
    return {**job, "attempts": f"{job['attempt_count']}/{allowed}", "worker": job["claimed_by_worker"]}


def show_job(options: argparse.Namespace) -> None:
    client = client_of(options)
    job = client.get(f"/jobs/{options.id}")
    if options.json:
        print(json.dumps(job))
        return
    show.facts({name: value for name, value in job.items() if name != "why"})
    if job["why"]:
        until = f" ({show.cell(job['why']['until'], 'until')})" if job["why"]["until"] else ""
        show.console.print(f"\n{show.cell(job['why']['sentence'])}{until}")
    attempts = [{**each, "attempt": each["attempt_no"]} for each in
                client.pages(f"/jobs/{options.id}/attempts", "attempts", options.limit)]  # fmt: skip
    if attempts:
        show.console.print()
        columns = ("attempt", "status", "exit_code", "started_at", "finished_at", "error_text", "worker_id")
        show.table(attempts, *columns, optional=("finished_at", "worker_id"))


def act(options: argparse.Namespace) -> int:
    client = client_of(options)
    answer = client.post(f"/jobs/{options.id}/{options.act}", {"reason": options.reason})
    if getattr(options, "follow", False):
        return _follow(client, options.id)
    name = short(options.id)
    said = (
        f"Canceled {name}."
        if options.act == "cancel"
        else f"Queued {name} again. Follow it: `baton job logs {name} -f`."
    )
    did(options, answer, said)
    return 0


def logs(options: argparse.Namespace) -> int:
    client = client_of(options)
    if options.follow and not options.json:
        if options.attempt is not None:
            raise Refusal("--follow shows the latest attempt. Leave out --attempt")
        return _follow(client, options.id)
    number = options.attempt
    if number is None:
        newest = client.get(f"/jobs/{options.id}/attempts", limit=1)["attempts"]
        if not newest:
            why = client.get(f"/jobs/{options.id}")["why"]
            raise Refusal(
                f"the job has not been started yet. {why['sentence']}" if why else "the job was never started"
            )
        number = newest[0]["attempt_no"]
    attempt = client.get(f"/jobs/{options.id}/attempts/{number}")
    tell(options, attempt, lambda told: _print(told["stdout_tail"], told["stderr_tail"]))
    return 0


def _print(stdout: str | None, stderr: str | None) -> None:
    for text, stream in ((stdout, sys.stdout), (stderr, sys.stderr)):
        if text:
            stream.write(text)
            stream.flush()


def _follow(client: Client, job_id: str) -> int:
    """The log of the latest attempt, and of those that come after it, until the job ends. 0: it succeeded."""
    seen, told, said, same = 0, ("", ""), "", 0
    listed: Any = None
    client = Patient.like(client, lambda text: print(f"--- {text}", file=sys.stderr))
    while True:
        job = client.get(f"/jobs/{job_id}")
        newest = client.get(f"/jobs/{job_id}/attempts", limit=1)["attempts"]
        number = newest[0]["attempt_no"] if newest else 0
        same, listed = same + 1 if newest == listed else 0, newest
        # The list has the end of the log: where that is as it was, the whole of it is read now and then.
        whole = range(max(seen, number - 1 if seen == 0 else seen, 1), number + 1) if same % REREAD == 0 else ()
        for each in whole:
            attempt = client.get(f"/jobs/{job_id}/attempts/{each}")
            if each != seen:
                seen, told = each, ("", "")
                print(f"--- attempt {each} on {attempt['worker_id']}", file=sys.stderr)
            now = (attempt["stdout_tail"] or "", attempt["stderr_tail"] or "")
            _print(*(added(before, after) for before, after in zip(told, now, strict=True)))
            told = now
            if attempt["finished_at"] and attempt["error_text"] and each < number:
                print(f"--- {attempt['error_text']}", file=sys.stderr)
        if job["status"] in ENDED:
            error = f": {job['last_error']}" if job["last_error"] and job["status"] != "succeeded" else ""
            print(f"--- {job['status'].replace('_', ' ')}{error}", file=sys.stderr)
            return 0 if job["status"] == "succeeded" else 1
        why = job["why"]["sentence"] if job["why"] and job["status"] == "queued" else ""
        if why and why != said:
            print(f"--- {why}", file=sys.stderr)
        said = why
        show.pause()


def added(before: str, after: str) -> str:
    """What is new in the last part of a log, whose beginning may have gone meanwhile."""
    if after.startswith(before):
        return after[len(before) :]
    anchor = before[-ANCHOR:]
    place = after.find(anchor)
    return after[place + len(anchor) :] if place >= 0 else f"\n[some output was skipped]\n{after}"


def limit(options: argparse.Namespace) -> None:
    client, path = client_of(options), "/admin/jobs/limit"
    if options.most is None:
        tell(options, client.get(path), show.facts)
        return
    if options.most != "none" and not options.most.isdecimal():
        raise Refusal(f"{options.most!r} is neither a number nor none")
    most = None if options.most == "none" else int(options.most)
    answer = client.put(path, {"concurrency_limit": most, "reason": options.reason})
    did(
        options, answer, "Removed the limit." if most is None else f"At most {most} jobs of the tenant run at once now."
    )


def redrive(options: argparse.Namespace) -> int:
    """The preview counts what the same filter then changes; what dies meanwhile is left alone."""
    wanted = {"kind": "job", "outcome": "dead_letter"} | ({"label": options.definition} if options.definition else {})
    return on_all(options, "retry", wanted, "dead letter")


def summary(options: argparse.Namespace) -> None:
    tell(options, client_of(options).get("/jobs/summary"), _summary)


def _summary(told: Mapping[str, Any]) -> None:
    def counted(name: str) -> str:
        return f"{told[name]:,}{'+' if name in told['more'] else ''} {name.replace('_', ' ')}"

    print(", ".join(map(counted, ("queued", "running", "succeeded", "failed", "dead_letter", "canceled"))))
    oldest = told["oldest_queued_age_s"]
    print("nothing is waiting to run" if oldest is None else f"the oldest queued job has waited for {oldest:,.0f} s")
    rates = told["per_minute"]
    print("per minute, in the last hour:")
    print("  " + ", ".join(f"{name.replace('_', ' ')} {rate:,.2f}" for name, rate in rates.items()))
    for name, title in (("queue_latency", "from due to started"), ("run_time", "run time")):
        if told[name]:
            print(f"{title}: p50 {told[name]['p50']:,.1f} s, p95 {told[name]['p95']:,.1f} s")
    if told["everywhere"]:
        print("\nall tenants")
        depth, everywhere = ("queued", "scheduled", "running", "oldest"), told["everywhere"]
        show.table(_aged(everywhere["tenants"]), "tenant", "tenant_id", *depth, optional=("scheduled",))
        print("\nqueues")
        columns = ("name", "executor", "definitions", "workers", *depth)
        show.table(_aged(everywhere["queues"]), *columns, optional=("definitions", "scheduled"))


def _aged(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """`oldest`: how long the one at the front has waited."""
    ages = [(row, row["oldest_queued_age_s"]) for row in rows]
    return [{**row, "oldest": "" if age is None else f"{age:,.0f} s"} for row, age in ages]


# --- definitions and workers ------------------------------------------------------------------------------------------


def list_definitions(options: argparse.Namespace) -> None:
    found = client_of(options).get("/admin/jobs/definitions")
    columns = ("key", "description", "queue", "executor", "timeout_seconds", "max_attempts", "is_active", "version")
    less = ("queue", "version", "max_attempts", "timeout_seconds")
    tell(options, found, lambda told: show.table(told["definitions"], *columns, optional=less))


def show_definition(options: argparse.Namespace) -> None:
    def as_text(found: Mapping[str, Any]) -> None:
        show.facts({name: value for name, value in found.items() if name != "arg_schema"})
        schema = found["arg_schema"]
        needed = schema.get("required", [])
        rows = [_argument(name, said, name in needed) for name, said in schema.get("properties", {}).items()]
        print()
        show.table(rows, "argument", "type", "needed", "description") if rows else print("takes no arguments")

    tell(options, _definition(client_of(options), options.name), as_text)


def _argument(name: str, said: Any, needed: bool) -> dict[str, Any]:
    said = said if isinstance(said, dict) else {}
    kind = (
        "one of " + ", ".join(map(str, said["enum"])) if "enum" in said else said.get("format") or said.get("type", "")
    )
    return {
        "argument": name,
        "type": kind,
        "needed": "yes" if needed else "",
        "description": said.get("description", ""),
    }


def add_definition(options: argparse.Namespace) -> None:
    body = {"key": options.name, **_given(options)}
    body |= {"command": options.command_key} if options.command_key else {}
    made = client_of(options).post("/admin/jobs/definitions", body)
    created(options, made, f"Defined {options.name}. Add a job with `baton job add {options.name}`.")


def edit_definition(options: argparse.Namespace) -> None:
    client = client_of(options)
    body = _given(options)
    body |= {} if options.is_active is None else {"is_active": options.is_active}
    if not body:
        raise Refusal("nothing to change. See `baton definition edit --help` for what can be changed")
    answer = client.patch(f"/admin/jobs/definitions/{_definition(client, options.name)['id']}", body)
    did(options, answer, f"Changed {options.name}. Jobs that are queued keep the version they were added with.")


def _given(options: argparse.Namespace) -> dict[str, Any]:
    names = ("description", "timeout_seconds", "max_attempts", "queue", "executor", "concurrency_limit")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    return given | ({"arg_schema": _schema(options.schema)} if options.schema else {})


def _schema(file: str) -> Any:
    try:
        return json.loads(sys.stdin.read() if file == "-" else Path(file).read_text())
    except OSError as error:
        raise Refusal(f"--schema: {file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise Refusal(f"--schema: {file} is not valid JSON: {error}") from None


def _definition(client: Client, key: str) -> Any:
    found: Sequence[Any] = client.get("/admin/jobs/definitions")["definitions"]
    for each in found:
        if key in (each["key"], each["id"]):
            return each
    known = ", ".join(each["key"] for each in found) or "none yet. A super admin can add one: `baton definition add`"
    raise Refusal(f"job definition {key!r} not found. Available: {known}")


def workers(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/admin/jobs/workers")

    def as_text(told: Mapping[str, Any]) -> None:
        found: Sequence[Mapping[str, Any]] = told["workers"]
        if not found:
            print("no worker was seen in the last week. Start one: `baton worker`")
            return
        shown = [{**each, "state": "stale" if each["stale"] else "responding"} for each in found]
        columns = ("worker_id", "state", "queues", "running_count", "last_seen_at", "started_at", "version")
        show.table(shown, *columns, optional=("started_at", "version"))
        if stale := sum(each["stale"] for each in found):
            print(f"\n{stale} not seen for over a minute: check the machine.")
            print("Its jobs are retried when their lease expires.")

    tell(options, answer, as_text)


def progress(client: Client, run: Mapping[str, Any]) -> show.Bars:
    """What `baton watch` shows of a job: its attempts, and why it waits."""
    job = client.get(f"/jobs/{run['id']}")
    why = f", {job['why']['sentence']}" if job["why"] else ""
    return show.Bars(line=f"attempt {job['attempt_count']} of {job['max_attempts']}{why}")
