"""`python -m infra.sam.settings --page > docs/settings.md`: every setting of the functions, as the code has it. Tests compare the two.

Without `--page`: before a deployment, whether its parameter Settings makes sense.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from functions.catalogue import all_settings
from infra.sam.artifact import ROOT
from infra.sam.quota import overrides
from shared.kernel.settings import LISTED, BadSettings, Settings, check_settings

HEAD = """# Settings

Written from the code by `python -m infra.sam.settings --page > docs/settings.md`. Each has a default that works, so start without any.

| Where | How to set one |
|---|---|
| a deployment | the parameter `Settings`, for all functions: `make deploy ARGS="--parameter-overrides Settings=BATON_ROWS_SLOTS=8,BATON_SEARCH_RETRIES=5"`, or the same pair in `samconfig.toml`. No blanks |
| the local cloud | `baton up --settings BATON_ROWS_SLOTS=8,BATON_SEARCH_RETRIES=5`, or `BATON_SETTINGS` in the environment |
| a worker | `BATON_SETTINGS` with the same text, or each as a variable of its own: `BATON_ROWS_SLOTS=8 baton worker --kinds all` |

A variable of its own wins over `BATON_SETTINGS`. A name that doesn't exist or a value out of range is refused before anything starts,
with the name that you may have meant: by `make deploy` before it uploads, by the deployment itself before any other function changes (the
stack's events say why, and it rolls back), by `baton up` and by `baton worker`. `Settings` may have 2,000 characters, about 50 settings:
Lambda gives 4 KB to all variables of a function.

Addresses, accounts, secrets and time-outs are parameters of their own: [deploying](deploy.md).
"""


def page() -> str:
    lines = [HEAD, "| Setting | Default | Range | What it does |", "|---|---|---|---|"]
    for prefix, group in all_settings():
        lines += [_row(prefix, group, name) for name in group.operators()]
    return "\n".join(lines) + "\n"


def _row(prefix: str, group: type[Settings], name: str) -> str:
    field = group.model_fields[name]
    default = "" if field.default is None else str(field.default).lower()
    allowed = group.allowed(name).removeprefix("a whole number, ")
    return f"| `{prefix}{name.upper()}` | {default} | {allowed} | {field.description} |"


def check(config: str, arguments: str = "", samconfig: Path = ROOT / "samconfig.toml") -> None:
    check_settings({LISTED: overrides(config, arguments, samconfig).get("Settings", "")}, all_settings())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--config", default="default")
    parser.add_argument("--arguments", default="")
    given = parser.parse_args(argv)
    if given.page:
        sys.stdout.write(page())
        return 0
    try:
        check(given.config, given.arguments)
    except BadSettings as error:
        print(f"baton: {error}. Nothing was uploaded.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
