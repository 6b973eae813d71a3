"""`baton row-job`: start one without writing JSON."""

from __future__ import annotations

import argparse

from infra.client.command import Commands, command, group, started, starting

KIND = "row_job"


def add_commands(commands: Commands) -> None:
    below = group(commands, "row-job", "write a text down several times")
    made = command(below, "start", start, "start writing")
    made.add_argument("text", help="what to write down")
    made.add_argument("--times", type=int, default=3, help="how often (default: 3)")
    made.add_argument("--every-s", type=int, default=60, help="seconds between two notes (default: 60)")
    starting(made)


def start(options: argparse.Namespace) -> int:
    params = {"text": options.text, "times": options.times, "every_s": options.every_s}
    return started(options, "/runs", {"kind": KIND, "params": params})
