"""The commands of the local cloud. What they need (Postgres, AWS, the stand-ins) is imported when one of them runs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from uuid import UUID

from infra.client.command import Commands, group, sentence

STONES = 5_000
DEMO_STONES = 10_000
ROLES = ["admin", "member", "viewer", "worker"]


def _later(name: str) -> Callable[[argparse.Namespace], int]:
    def run(options: argparse.Namespace) -> int:
        from infra.local import cli  # noqa: PLC0415 - see above

        return cli.run(name, options)

    return run


def _command(
    commands: Commands, name: str, run: str, text: str, *, answers_json: bool = False
) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(name, help=text, description=sentence(text))
    made.set_defaults(run=_later(run), json=False)
    if answers_json:
        made.add_argument("--json", action="store_true", help="print JSON")
    return made


def add_commands(commands: Commands) -> None:
    _cloud(group(commands, "local", "run all of Baton on this machine"))
    _cloud(commands)  # the same as short forms

    people = group(commands, "user", "add people")
    made = _command(
        people, "add", "user_add", "add a person to a tenant; needs the rights of whoever deploys", answers_json=True
    )
    made.add_argument("email")
    made.add_argument("--role", choices=ROLES, default="member")
    made.add_argument("--tenant", required=True, help="its name; created if it doesn't exist")
    made.add_argument("--super-admin", action="store_true", help="an admin of every tenant")
    made.add_argument("--password-stdin", action="store_true", help="read the password from standard input")
    made.add_argument("--subject", help="`sub` at another issuer than the user pool: no user is created")
    made.add_argument(
        "--stack", help="a deployed stack, with the AWS credentials of this shell (default: the local cloud)"
    )

    made = _command(commands, "demo", "run_demo", "ingest a catalogue while a function is killed; check every row")
    _catalogue(made, DEMO_STONES)
    made.add_argument("--worker", action="store_true", help="on Postgres alone, with two workers instead of functions")
    made = _command(commands, "demo-data", "demo_data", "fill the local cloud with runs of all kinds in all states")
    made.add_argument("--yes", action="store_true", help="add to the runs that are there")


def _cloud(commands: Commands) -> None:
    made = _command(commands, "up", "up", "start the local cloud, or deploy changes to it", answers_json=True)
    made.add_argument("--foreground", action="store_true", help="stay in the foreground; Ctrl-C stops everything")
    made.add_argument("--ephemeral", action="store_true", help="delete the database at the end")
    made.add_argument("--port", type=int, help="the port of AWS (default: the last one, or a free one)")
    made.add_argument(
        "--upstream", type=_named_url, action="append", default=[], metavar="NAME=URL",
        help="use this server instead of the stand-in of that name; its account is read from the environment",
    )  # fmt: skip
    made.add_argument(
        "--settings", default=os.environ.get("BATON_SETTINGS", ""), metavar="NAME=VALUE,…",
        help="settings of the functions, separated by commas (BATON_SETTINGS); docs/settings.md lists them",
    )  # fmt: skip
    _catalogue(made, STONES)
    _command(commands, "down", "down", "stop the local cloud; the database's files stay")
    made = _command(
        commands, "status", "status", "show what is running: addresses, pids, queue depths", answers_json=True
    )
    made.add_argument("--pid", metavar="NAME", help="print the pid of one part or function, for `kill`")
    made.add_argument("--address", metavar="NAME", help="print the address of one part, for `curl`")
    made = _command(commands, "env", "env", 'print shell variables for aws, sam and psql: eval "$(baton env)"')
    made.add_argument("--tenant", type=UUID, metavar="ID", help="whose rows the views show; default: your own tenant")
    _command(commands, "reset", "reset", "delete every run and row, empty every queue; people and connections stay")
    made = _command(commands, "logs", "logs", "show the logs of functions")
    made.add_argument("function", nargs="?", help="default: all")
    made.add_argument(
        "--run", dest="of_run", metavar="ID", help="only what steps of this run say: its ID, or the beginning of it"
    )
    made.add_argument("-f", "--follow", action="store_true")
    made = _command(
        commands,
        "invoke",
        "invoke_function",
        "call a function with an event, in a fresh process with the code of this folder",
    )
    made.add_argument("function")
    made.add_argument("-e", "--event", default="-", help="a file (events/ has one for each); default: standard input")
    _command(commands, "tick", "tick", "run the scheduler's next tick now")


def _named_url(text: str) -> tuple[str, str]:
    name, is_there, url = text.partition("=")
    if not is_there or not url:
        raise argparse.ArgumentTypeError(f"expected NAME=URL, not {text!r}")
    return name, url


def _catalogue(parser: argparse.ArgumentParser, stones: int) -> None:
    parser.add_argument(
        "--stones",
        type=int,
        default=stones,
        help=f"number of records in the stand-in's catalogue (default: {stones:,})",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the stand-in's catalogue")
