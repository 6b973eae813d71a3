"""The command `baton`. What only speaks to the API does not wait for the libraries of the local cloud."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infra.client.parser import Parser

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / ".local" / "cloud"

# `baton --help`. What is in no section is a short form, or the commands of a kind that is not ours.
SECTIONS = {
    "Start here": ("local", "console", "demo", "demo-data", "overview"),
    "Work": ("run", "ingest", "query", "job", "definition", "trigger", "event", "rows", "search", "source"),
    "Operate": ("rate-limit", "connection", "audit", "system", "smoke", "worker"),
    "People and scripts": ("login", "logout", "me", "invitation", "token", "user"),
    "Shell": ("completion",),
}
SHORT_FORMS = {
    "baton local …": ("up", "down", "status", "logs", "reset", "env", "invoke", "tick"),
    "baton run …": ("start", "watch", "cancel", "pause", "resume", "retry", "why"),
    "baton run list": ("runs",),
    "baton rate-limit list": ("rate-limits",),
    "baton ingest start": ("ingest",),
}


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    ahead, words = _split(given)
    if words[:1] == ["worker"] and words[1:2] != ["list"]:
        # A machine that only works needs neither client nor local cloud.
        from infra.worker import main as worker  # noqa: PLC0415

        return worker(words[1:])
    from infra.client import cli as client  # noqa: PLC0415 - as above
    from infra.client.http import Refusal  # noqa: PLC0415 - as above
    from infra.client.parser import next_words  # noqa: PLC0415 - as above

    parser = make_parser()
    if words[:1] == ["complete"]:  # what the shell's script calls
        print("\n".join(next_words(parser, words[2:])))
        return 0
    if not given:
        parser.print_help()
        return 2
    try:
        options = parser.understood([*ahead, *_full(words)])
    except Refusal as error:
        print(f"baton: {error}", file=sys.stderr)
        return 2
    return client.run(options)


def make_parser() -> Parser:
    """Every command there is."""
    from infra.client import cli as client  # noqa: PLC0415 - as above
    from infra.client.parser import SCRIPTS  # noqa: PLC0415 - as above
    from infra.client.parser import Parser as Below  # noqa: PLC0415 - as above
    from infra.local import commands as local  # noqa: PLC0415 - as above

    class Top(Below):
        def format_help(self) -> str:
            return _help(self)

    parser = Top(prog="baton", description="Run Baton on this machine, and use it here or in AWS.")
    parser.add_argument(
        "--home",
        type=_folder,
        default=os.environ.get("BATON_HOME") or HOME,
        help="folder of the local cloud's state (BATON_HOME; default: .local/cloud)",
    )
    parser.add_argument("--version", action="version", version=f"baton {version()}")
    # Below the top, help is argparse's own.
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Below)
    client.add_commands(commands)
    local.add_commands(commands)
    commands.add_parser("worker", help="take jobs on this machine; `baton worker list` lists all workers")
    made = commands.add_parser("completion", help="print the script that completes commands: bash, zsh or fish",
                               description='Print a script for your shell. For bash: eval "$(baton completion bash)" in ~/.bashrc.')  # fmt: skip
    made.add_argument("shell", choices=list(SCRIPTS))
    made.set_defaults(run=lambda options: print(SCRIPTS[options.shell], end=""), json=False)
    return parser


def version() -> str:
    """Of this folder, or of the wheel that was installed."""
    try:
        found = re.search(r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found:
        return found[1]
    from importlib.metadata import version as installed  # noqa: PLC0415 - slow, and mostly not needed

    return installed("baton")


def _split(given: list[str]) -> tuple[list[str], list[str]]:
    """What comes before the command, and the command."""
    if given[:1] == ["--home"]:
        return given[:2], given[2:]
    if given[:1] and given[0].startswith("--home="):
        return given[:1], given[1:]
    return [], given


def _full(words: list[str]) -> list[str]:
    """Two words that stood for something before they were a group."""
    if words[:2] == ["worker", "list"]:
        return ["workers", *words[2:]]
    if words[:1] == ["ingest"] and (not words[1:] or (words[1].startswith("--") and words[1] != "--help")):
        return ["ingest", "start", *words[1:]]
    return words


def _folder(text: str) -> Path:
    return Path(text).resolve()


def _help(parser: argparse.ArgumentParser) -> str:
    from infra.client.parser import commands_of  # noqa: PLC0415 - as above

    texts = commands_of(parser)
    lines = ["usage: baton [--home FOLDER] COMMAND …", "", "Run Baton on this machine, and use it here or in AWS.", ""]
    known = {name for names in (*SECTIONS.values(), *SHORT_FORMS.values(), ("workers",)) for name in names}
    more = tuple(name for name in texts if name not in known)
    for title, names in (*SECTIONS.items(), ("Kinds of your own", more)):
        if names:
            lines += [f"{title}:", *(f"  {name:<12} {_short(texts[name])}" for name in names if name in texts), ""]
    lines += ["Short forms:", *(f"  {', '.join(names):<50} {full}" for full, names in SHORT_FORMS.items()), ""]
    lines += ["  --home FOLDER   the local cloud's state (BATON_HOME; default: .local/cloud)", "  --version", ""]
    lines += ["`baton COMMAND --help` explains one. The first characters of an ID are enough."]
    return "\n".join(lines) + "\n"


def _short(text: str) -> str:
    return text if len(text) <= 65 else f"{text[:64].rstrip()}…"


if __name__ == "__main__":
    sys.exit(main())
