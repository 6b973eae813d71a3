"""schemathesis against the deployed API: `python -m tests.api.fuzz PATH-TO-SCHEMATHESIS [examples]` (`make fuzz`).

A cloud of its own is started; then every operation of /openapi.json is tried through the machines' door with a token,
through it without one, and through the people's door without one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from infra.local.cloud import Address, throwaway_home

ROOT = Path(__file__).resolve().parents[2]
CONFIG = Path(__file__).with_name("schemathesis.toml")


def main(schemathesis: str, examples: str = "15") -> int:
    with throwaway_home() as home, tempfile.TemporaryDirectory() as work:
        _baton(home, "up", "--ephemeral")
        try:
            address = Address.read(home)
            assert address is not None
            # By path: not every resolver knows that *.localhost is this machine.
            api = f"{address.endpoint}/_aws/execute-api/{address.outputs['ApiId']}/$default"
            token = json.loads(_baton(home, "token", "add", "fuzz", "--role", "admin", "--json"))["token"]
            doors = [
                ("machines, with a token", f"{api}/machine", ["-H", f"Authorization: Bearer {token}"]),
                ("machines, without", f"{api}/machine", []),
                ("people, without", api, []),
            ]
            return max(_try(schemathesis, examples, api, Path(work), *door) for door in doors)
        finally:
            _baton(home, "down")


def _try(schemathesis: str, examples: str, api: str, work: Path, door: str, url: str, headers: list[str]) -> int:
    print(f"== {door}", flush=True)
    command = [schemathesis, "--config-file", str(CONFIG), "run", f"{api}/openapi.json", "--url", url, *headers]
    asked = ["--max-examples", examples, "--phases", "coverage,fuzzing", "--request-timeout", "25"]
    done = subprocess.run([*command, *asked], cwd=work, check=False)
    return done.returncode


def _baton(home: Path, *command: str) -> str:
    asked = [sys.executable, "-m", "infra.cli", "--home", str(home), *command]
    return subprocess.run(asked, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
