"""`baton source`: check a source file, or write a first one. On this machine alone: the API is not asked."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.client.command import Commands, command, group, pair
from infra.client.http import Refusal

if TYPE_CHECKING:
    from shared.page_ingest.source.compile import Compiled


def add_commands(commands: Commands) -> None:
    below = group(commands, "source", "check the files that say how to read an API")
    made = command(below, "check", check, "check a source file, and show how much a run of it could prove", api=False)
    made.add_argument("file", metavar="FILE", help="a TOML file, or - for standard input")
    made.add_argument("--tighten", action="append", default=[], metavar="KEY=VALUE",
                      help="as for a tenant that has pace, RESOURCE.size or RESOURCE.window made tighter; may be repeated")  # fmt: skip
    made = command(below, "new", new, "write a first source file from a few questions", api=False)
    made.add_argument("file", metavar="FILE", help="the file to create; an existing one is left alone")


# --- check ------------------------------------------------------------------------------------------------------------


def check(options: argparse.Namespace) -> int:
    """0: the file is a source; 1: it is not, and each line says where and why."""
    file = "stdin" if options.file == "-" else options.file
    return _judge(options, file, _read(options.file))


def _judge(options: argparse.Namespace, file: str, data: bytes) -> int:
    from shared.page_ingest.source import compile as compiler  # noqa: PLC0415 - only these commands need it
    from shared.page_ingest.source import model, tighten  # noqa: PLC0415 - as above

    try:
        known = compiler.compile_source(file, data)
        wishes = {name: _value(text) for name, text in map(pair, getattr(options, "tighten", []))}
        if wishes:
            known = compiler.compiled(tighten.tightened(known.source, wishes), known.digest)
    except tighten.Widened as error:
        raise Refusal(f"--tighten: {error}") from None
    except model.Refused as refused:
        if options.json:
            faults = [{"file": f.file, "line": f.line, "key": f.key, "message": f.message} for f in refused.faults]
            print(json.dumps({"file": file, "faults": faults}))
        else:
            print(refused)
        return 1
    print(json.dumps({"file": file, "faults": [], **known.to_json()})) if options.json else _show(file, known)
    return 0


def _read(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise Refusal(f"{file} cannot be read: {error.strerror}") from None


def _value(text: str) -> Any:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text


def _show(file: str, known: Compiled) -> None:
    print(f"{file}: source {known.source.name}, {known.digest}")
    for each in known.resources:
        print(f"\n{each.resource.name} (table {each.table})")
        print(f"  best claim   {each.best.claim}: {each.best.reason}.")
        if each.best.better:
            print(f"               {each.best.better}")
        for phase in each.phases:
            print(f"  {phase.name:<12} {phase.does}.")


# --- new --------------------------------------------------------------------------------------------------------------


def new(options: argparse.Namespace) -> int:
    from shared.page_ingest.source import draft  # noqa: PLC0415 - only this command needs it

    file = Path(options.file)
    if file.exists():
        raise Refusal(f"{file} exists. Choose another name, or delete it first")
    answers: dict[str, str] = {}
    while (question := next(draft.questions(answers, file.stem.replace("-", "_")), None)) is not None:
        answers[question.name] = _ask(question)
    text = draft.draft(answers)
    if not options.json:
        print(f"\n{text}", flush=True)
    judged = _judge(options, str(file), text.encode())
    if judged != 0:
        raise Refusal("these answers do not make a source together, so no file was written")
    try:
        with file.open("x", encoding="utf-8") as made:
            made.write(text)
    except OSError as error:
        raise Refusal(f"{file} cannot be written: {error.strerror}") from None
    return 0


def _ask(question: Any) -> str:
    """Again until the answer can be used. Questions go to standard error, so that --json stays JSON."""
    while True:
        hint = f" [{question.default}]" if question.default else ""
        print(f"{question.text}{hint}: ", end="", file=sys.stderr, flush=True)
        said = sys.stdin.readline()
        if not said:
            raise Refusal("the questions were not answered to the end, so no file was written")
        try:
            return str(question.read(said))
        except ValueError as wrong:
            print(f"  This {wrong}", file=sys.stderr)
