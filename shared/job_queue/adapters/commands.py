"""The reviewed file of commands: what it does not name cannot be run."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from shared.job_queue.model import Command
from shared.kernel.settings import BadSettings, Settings

FILE = Path(__file__).parents[1] / "commands.toml"
PREFIX = "BATON_JOB_"


class CommandFile(Settings):
    commands: Annotated[
        str | None, Field(description="The file of commands that jobs may run; without it, the product's own")
    ] = None


def read_commands(env: Mapping[str, str]) -> dict[str, Command]:
    path = Path(CommandFile.from_env(env, PREFIX).commands or FILE)
    try:
        said = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise BadSettings(f"BATON_JOB_COMMANDS: {path} cannot be read: {error}") from None
    return {key: _command(path, key, each) for key, each in said.items()}


def _command(path: Path, key: str, said: Any) -> Command:
    unknown = set(said) - {"argv", "env"} if isinstance(said, dict) else {"it"}
    if unknown or not _are_texts(said.get("argv")) or not said["argv"] or not _are_texts(said.get("env", [])):
        raise BadSettings(f"{path}: [{key}] needs argv, a list of texts, and may have env, a list of names")
    here = str(path.resolve().parent)
    argv = [word.replace("{python}", sys.executable).replace("{here}", here) for word in said["argv"]]
    if not Path(argv[0]).is_absolute():
        raise BadSettings(f"{path}: [{key}] argv must start with an absolute path or {{python}}")
    return Command(key, argv, said.get("env", []))


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)
