"""One switch for the architecture: `make build ARCHITECTURE=` decides what is compiled and what the functions are called.

The artifact carries a mark. `stamp` writes it into the template that `sam build` made, so that `sam deploy` and `sam local
invoke` know no other; `check` refuses to upload code for one machine to functions that are declared for another.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path

from infra.sam.artifact import MARK, ROOT

BUILT = ROOT / ".aws-sam" / "build"
PARAMETER = re.compile(
    r"(?m)^(  Architecture:\n    Type: String\n    Default: )(\w+)\n(    AllowedValues:\n)((?:    - \w+\n)+)"
)
OVERRIDE = re.compile(r"\bArchitecture=[\"']?(\w+)")


class Mismatch(Exception):
    """The code and the functions are for different machines; the message says what to do."""


def artifact(built: Path = BUILT) -> str:
    """What the built functions were compiled for."""
    found = {mark.read_text().strip() for mark in built.glob(f"*/{MARK}")}
    if len(found) != 1:
        raise Mismatch(f"{built} holds code for {sorted(found) or 'nothing'}: run `make build` again.")
    return found.pop()


def stamp(built: Path = BUILT) -> None:
    """Let the built template have the artifact's architecture, and refuse any other."""
    template = built / "template.yaml"
    text, found = PARAMETER.subn(rf"\g<1>{artifact(built)}\n\g<3>    - {artifact(built)}\n", template.read_text())
    if found != 1:
        raise Mismatch(f"{template} has no parameter Architecture as sam writes it: was it built by another version?")
    template.write_text(text)


def check(config: str, arguments: str = "", built: Path = BUILT, samconfig: Path = ROOT / "samconfig.toml") -> None:
    """Before an upload: the stage and the command line say the architecture of the artifact, or nothing of it."""
    made, stage = artifact(built), tomllib.loads(samconfig.read_text()).get(config, {})
    said = stage.get("deploy", {}).get("parameters", {}).get("parameter_overrides", [])
    default = PARAMETER.search((built / "template.yaml").read_text())
    wanted = [
        ("the command line", OVERRIDE.search(arguments)),
        (f"{samconfig.name} ({config})", OVERRIDE.search(" ".join(said) if isinstance(said, list) else str(said))),
    ]
    named = [(who, found[1]) for who, found in wanted if found] or [
        ("the built template", default[2] if default else "?")
    ]
    for who, architecture in named:
        if architecture != made:
            raise Mismatch(
                f"The code was built for {made}, but {who} says Architecture={architecture}. Nothing was uploaded. "
                f"Run `make deploy ARCHITECTURE={architecture}`, or take Architecture= out there."
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["stamp", "check"])
    parser.add_argument("--config", default="default")
    parser.add_argument("--arguments", default="")
    given = parser.parse_args()
    try:
        stamp() if given.what == "stamp" else check(given.config, given.arguments)
    except Mismatch as error:
        print(f"baton: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
