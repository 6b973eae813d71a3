"""The rules of jobs. Pure: no clock, no database, no process."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal
from uuid import UUID

import orjson

from shared.job_queue.model import (
    FIRST_PRIORITY_OF_MEMBERS,
    LARGEST_PAYLOAD,
    LARGEST_SCHEMA,
    LAST_PRIORITY,
    LONGEST_ON_LAMBDA_S,
    MOST_AHEAD,
    RESOLVES,
    TAIL_BYTES,
    Command,
    Definition,
    Finished,
)
from shared.kernel.errors import Refused
from shared.kernel.model import Ending, Lane, LaneStatus, Problem, Run, RunStatus, Settlement
from shared.kernel.redact import redact_all

NAME = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")
# Patterns are regular expressions that anybody's payload would be run against; references may lead anywhere.
FORBIDDEN = frozenset({"$ref", "$dynamicRef", "$recursiveRef", "$schema", "$id", "pattern", "patternProperties"})
NAMED_SCHEMAS = frozenset({"properties", "dependentSchemas", "$defs", "definitions", "dependencies"})
RESOLVABLE = re.compile(r"connection:[a-z][a-z0-9_-]{0,63}\Z|run\Z")
DEAD_LETTER = "dead_letter"
# Causes that no further attempt can remove. They are told as `failed`: there is nothing to redrive.
HOPELESS = frozenset({"unknown_command", "bad_payload"})
KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----(?!.*-----END )")
KEY_ENDS = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----")
KEY_LINE = re.compile(r"\s*(?:[A-Za-z0-9+/=]{1,100}|(?:Proc-Type|DEK-Info): .{0,100})?\s*")
LONGEST_SECRET = 4_096  # of the first characters of a tail, so many may be the rest of one


def checked_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema for payloads as it may be kept: of an object whose every field is known by name."""
    if not schema:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if len(orjson.dumps(schema)) > LARGEST_SCHEMA:
        raise Refused("bad_schema", f"arg_schema: at most {LARGEST_SCHEMA // 1024} KB.")
    if schema.get("type") != "object" or schema.get("additionalProperties") is not False:
        raise Refused("bad_schema", 'arg_schema: needs "type": "object" and "additionalProperties": false.')
    for word, value in _words(schema):
        if word in FORBIDDEN:
            raise Refused(
                "bad_schema", f"arg_schema: {word} is not supported. Use enum, format, minLength or maxLength."
            )
        if word == RESOLVES and not (isinstance(value, str) and RESOLVABLE.match(value)):
            raise Refused("bad_schema", f'arg_schema: {RESOLVES} must be "run" or "connection:<provider>".')
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping):
        raise Refused("bad_schema", "arg_schema: properties must be an object.")
    # Anywhere else nobody would look it up, and a payload could name what is another tenant's.
    looked_up = sum(isinstance(said, Mapping) and RESOLVES in said for said in properties.values())
    if sum(word == RESOLVES for word, _ in _words(schema)) > looked_up:
        raise Refused("bad_schema", f"arg_schema: {RESOLVES} belongs to an argument itself, not to what is inside it.")
    for name in properties:
        if not NAME.match(name):
            raise Refused("bad_schema", f"arg_schema: {name[:80]!r} cannot be an option. Use a-z, 0-9 and _.")
        if name == "tenant_id":
            raise Refused("bad_schema", "arg_schema: tenant_id always comes from the job itself.")
    return dict(schema)


def _words(schema: Any) -> Iterator[tuple[str, Any]]:
    """Every word of a schema with its value, but for names that somebody gave, whatever they are: behind `dependentSchemas`,
    "enum" is an argument, and what follows is a schema."""
    if isinstance(schema, Mapping):
        for word, value in schema.items():
            if word in NAMED_SCHEMAS and isinstance(value, Mapping):
                for each in value.values():
                    yield from _words(each)
                continue
            yield word, value
            if word not in ("enum", "const", "default", "examples"):
                yield from _words(value)
    elif isinstance(schema, list):
        for each in schema:
            yield from _words(each)


def formats(schema: Mapping[str, Any]) -> set[str]:
    """The formats that a schema asks for."""
    return {value for word, value in _words(schema) if word == "format" and isinstance(value, str)}


def checked_payload(payload: Mapping[str, Any]) -> None:
    """What holds for every payload, whatever its schema says: it becomes the options of a command."""
    if len(orjson.dumps(payload)) > LARGEST_PAYLOAD:
        raise Refused("payload_too_large", f"payload: at most {LARGEST_PAYLOAD // 1024} KB.")
    for name, value in payload.items():
        if not NAME.match(name):
            raise Refused("bad_payload", f"payload: {name[:80]!r} is not a known argument.")
        if name == "tenant_id":
            raise Refused("bad_payload", "payload: tenant_id always comes from the job itself.")
        for text in _texts(value):
            if text.startswith("-"):
                raise Refused("bad_payload", f"payload.{name}: a value cannot start with '-'.")
            if "\x00" in text:
                raise Refused("bad_payload", f"payload.{name}: a value cannot contain a null character.")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _texts(name)
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def references(schema: Mapping[str, Any], payload: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What a payload names of its tenant's things: the argument, what it is, and which."""
    return [
        (name, str(said[RESOLVES]), str(payload[name]))
        for name, said in schema.get("properties", {}).items()
        if isinstance(said, Mapping) and RESOLVES in said and name in payload
    ]


def argv(command: Command, tenant_id: UUID, payload: Mapping[str, Any]) -> list[str]:
    """The exact arguments: no shell reads them, and each is one word whatever it contains."""
    checked_payload(payload)
    given = [f"--{name.replace('_', '-')}={_said(value)}" for name, value in payload.items()]
    return [*command.argv, f"--tenant-id={tenant_id}", *given]


def _said(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def executor(
    timeout_seconds: int,
    asked: Literal["lambda", "worker"] | None,
    longest_s: int = LONGEST_ON_LAMBDA_S,
    *,
    starts: bool = False,
) -> Literal["lambda", "worker"]:
    """`starts`: the command only starts a run, which takes no time of anybody's, whatever its time-out says."""
    if starts:
        return asked or "lambda"
    if asked == "lambda" and timeout_seconds > longest_s:
        raise Refused(
            "too_long_for_lambda",
            f"timeout_seconds: a command can run for at most {longest_s} seconds on Lambda. "
            "Use executor worker, or a shorter timeout.",
        )
    return asked or ("worker" if timeout_seconds > longest_s else "lambda")


def checked_priority(priority: int, *, manages: bool) -> int:
    first = 0 if manages else FIRST_PRIORITY_OF_MEMBERS
    if not first <= priority <= LAST_PRIORITY:
        raise Refused(
            "bad_priority", f"priority: your role can use {first} to {LAST_PRIORITY}; lower numbers run first."
        )
    return priority


def snapshot(definition: Definition, payload: Mapping[str, Any]) -> dict[str, Any]:
    """What a job keeps of its definition: it runs as it was made, whatever is changed later."""
    return {
        "definition_key": definition.key,
        "definition_id": str(definition.id),
        "version": definition.version,
        "command": definition.command,
        "arg_schema": dict(definition.arg_schema),
        "timeout_seconds": definition.timeout_seconds,
        "max_attempts": definition.max_attempts,
        "payload": dict(payload),
    }


def problem_of(ended: Finished, timeout_seconds: int, had_s: float | None = None) -> Problem:
    """`had_s`: how long it could run here. A function has less time than a job may have from when workers ran it."""
    if ended.timed_out and had_s is not None and had_s < timeout_seconds:
        return Problem(
            "timeout",
            f"The command was stopped after {had_s:.0f} seconds: its function had no more time. The job may take "
            f"{timeout_seconds} seconds; run it on a worker.",
        )
    if ended.timed_out:
        return Problem("timeout", f"The command was stopped after {timeout_seconds} seconds.")
    code = ended.exit_code
    last = next((line for line in reversed(ended.stderr.splitlines()) if line.strip()), "")
    how = f"was ended by signal {-code}" if code is not None and code < 0 else f"exited with code {code}"
    return Problem("exit_code", f"The command {how}." + (f" Last error line: {last[:500]}" if last else ""))


def ending(status: LaneStatus, problem: Mapping[str, Any] | None) -> Ending:
    """What the end of its one lane means for a job. `dead_letter`: its attempts are used up."""
    if status is LaneStatus.DONE:
        return Ending(RunStatus.SUCCEEDED, "done")
    if status is LaneStatus.CANCELED:
        return Ending(RunStatus.CANCELED, "canceled")
    told = None if problem is None else Problem(str(problem["code"]), str(problem["message"]))
    hopeless = told is not None and told.code in HOPELESS
    return Ending(RunStatus.FAILED, "failed" if hopeless else DEAD_LETTER, told)


def settle(run: Run, lanes: Sequence[Lane]) -> Settlement:  # noqa: ARG001 - the shape of a settlement
    (lane,) = lanes
    return ending(lane.status, lane.last_error)


WhyCode = Literal[
    "at_work", "canceling", "worker_lost", "paused", "inactive", "retrying", "scheduled", "no_worker", "definition_cap",
    "tenant_cap", "next", "in_line",
]  # fmt: skip


def why(facts: Mapping[str, Any]) -> tuple[WhyCode, str]:
    """Why a job has not ended: a word for programs, and a sentence. The first thing that would have to change."""
    if facts["taken_at"] is not None:
        if facts["canceling"]:
            return "canceling", "Canceling: the command is stopped at its worker's next heartbeat."
        if facts["lost"]:
            return "worker_lost", f"Worker {facts['worker']} stopped responding. The job is retried automatically."
        return "at_work", f"Running on {facts['worker']}."
    if facts["paused"]:
        return "paused", "Paused until someone resumes it."
    if not facts["is_open"]:
        return "inactive", "On hold: its definition is inactive. It can start when a super admin activates it."
    if not facts["due"]:
        if facts["attempts"]:
            return "retrying", f"Attempt {facts['attempts']} failed: {facts['last_error'] or 'unknown'}"
        return "scheduled", "Scheduled for later."
    if facts["workers"] == 0 and not facts["wakes"]:
        return (
            "no_worker",
            f"No worker is running for the queue {facts['queue']}. Start one: baton worker --queues {facts['queue']}",
        )
    if facts["definition_full"]:
        return (
            "definition_cap",
            f"As many jobs of this definition are running as may run at once: {facts['definition_cap']}.",
        )
    if facts["tenant_full"]:
        return "tenant_cap", f"As many of this tenant's jobs are running as may run at once: {facts['tenant_cap']}."
    ahead = facts["ahead"]
    if ahead == 0:
        return "next", f"Next in line: it starts when a {'function' if facts['wakes'] else 'worker'} is free."
    more = "more than " if ahead > MOST_AHEAD else ""
    return (
        "in_line",
        f"{more}{min(ahead, MOST_AHEAD):,} {'job is' if ahead == 1 else 'jobs are'} ahead of it.".capitalize(),
    )


def tail(raw: bytes, *, cut: bool) -> str:
    """The last of what a command printed, as it may be kept: text that Postgres takes, and no secrets.

    `cut`: something came before it. The first line is then part of one, perhaps of a secret, and left out; of a long one,
    as much as may be of a secret.
    """
    text = _masked(raw.decode("utf-8", "replace"))
    if cut:
        line_ends = text.find("\n", 0, LONGEST_SECRET)
        text = text[LONGEST_SECRET:] if line_ends < 0 else text[line_ends + 1 :]
    return last_of(text)


def _masked(text: str) -> str:
    """Line by line: a quote that is left open swallows no more than its own."""
    return "\n".join(redact_all(line) for line in _without_keys(text.split("\n")))


def _without_keys(lines: Sequence[str]) -> list[str]:
    """A private key has many lines, and only the first says so. Its end may be still to come, or its beginning cut off."""
    kept: list[str] = []
    inside = False
    for line in lines:
        ends = None if KEY_BEGINS.search(line) else KEY_ENDS.search(line)
        if inside and ends is None and KEY_LINE.fullmatch(line):
            continue
        if ends is not None and not inside:
            while kept and KEY_LINE.fullmatch(kept[-1]):
                kept.pop()
            kept.append("***")
        kept += [line] if ends is None else [rest] if (rest := line[ends.end() :]).strip() else []
        inside = KEY_BEGINS.search(line) is not None
    return kept


def told_tail(text: str) -> str:
    """The same of what a worker elsewhere says that a command printed."""
    return last_of(_masked(text))


def last_of(text: str) -> str:
    encoded = text.encode()
    return text if len(encoded) <= TAIL_BYTES else encoded[-TAIL_BYTES:].decode("utf-8", "ignore")
