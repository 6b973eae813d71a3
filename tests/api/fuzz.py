"""schemathesis against the deployed API: `python -m tests.api.fuzz PATH-TO-SCHEMATHESIS [examples]` (`make fuzz`).

A cloud of its own is started; then every operation of /openapi.json is tried through both doors: by people and machines
of a tenant with runs, a token and a connection in it, and by nobody. schemathesis keeps the ids that it is shown, so it
finds what is there, and can do to itself what an admin can: each has a tenant of his own, leaves out what would lock him
out, and is asked afterwards whether he is still who he was.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.client.http import MACHINES, Client, ask
from infra.client.session import Fixed, Place, initiate
from infra.local.cloud import Address, throwaway_home

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = "openapi.json"
CONFIG = Path(__file__).with_name("schemathesis.toml")
ASKED = {"source": "nivoda", "connection": "main", "low": 200}
ALL, INSIDE, OUTSIDE = "examples,coverage,fuzzing,stateful", "fuzzing,stateful", "coverage,fuzzing"
# Where the ids are that paths ask for: schemathesis walks from these answers to every operation that takes one.
SHOWN = {
    "list_runs": {"run_id": "$response.body#/runs/0/id"},
    "start_page_ingestion": {"run_id": "$response.body#/id"},
    "list_lanes": {"run_id": "$request.path.run_id", "lane_id": "$response.body#/lanes/0/id"},
    "list_connections": {"connection_id": "$response.body#/connections/0/id"},
    "list_tokens": {"token_id": "$response.body#/tokens/0/id"},
    "list_members": {"subject": "$response.body#/members/0/subject"},
}


@dataclass(frozen=True, slots=True)
class Door:
    """`phases`: what is wrong by the schema is wrong for everybody, and need be tried once. `leaves`: operations."""

    name: str
    token: str | None
    phases: str
    path: str = ""
    leaves: tuple[str, ...] = ()


class Town:
    """The cloud, and who lives in it."""

    def __init__(self, home: Path) -> None:
        address, place = Address.read(home), Place.of_cloud(home)
        assert address is not None
        assert place is not None
        self._home, self._place = home, place
        # By path: not every resolver knows that *.localhost is this machine.
        self.api = f"{address.endpoint}/_aws/execute-api/{address.outputs['ApiId']}/$default"

    def document(self) -> Any:
        status, said = ask("GET", f"{self.api}/openapi.json", {})
        assert status == 200, said
        return json.loads(said)

    def client(self, token: str) -> Client:
        return Client(self._place.url, Fixed(token))

    def person(self, role: str, tenant: str) -> str:
        """Somebody's JWT, by his login."""
        email = f"{role}@{tenant}.example.com"
        made = json.loads(_baton(self._home, "user", "add", email, f"--role={role}", f"--tenant={tenant}", "--json"))
        given = {"USERNAME": email, "PASSWORD": made["password"]}
        return initiate(self._place, "USER_PASSWORD_AUTH", given)["AccessToken"]

    def machine(self, admin: str, role: str) -> str:
        return str(self.client(admin).post("/tokens", {"name": "fuzz", "role": role})["token"])

    def furnish(self, admin: str, *owners: str) -> None:
        """A connection, a machine's token, and for each owner a run that ends, one that is paused, one that is canceled."""
        account = {"settings": {"username": "buyer@example.com"}, "secret": {"password": "stand-in-password"}}
        self.client(admin).post("/connections", {"provider": "nivoda", "name": "main", **account})
        self.machine(admin, "viewer")
        for owner in map(self.client, owners):
            owner.post("/page-ingestions", {**ASKED, "high": 1000})
            for act in ("pause", "cancel"):
                run = owner.post("/page-ingestions", {**ASKED, "high": 100_000, "page_size": 4})  # of many steps
                owner.post(f"/runs/{run['id']}/{act}", {})


def main(schemathesis: str, examples: str = "10") -> int:
    with throwaway_home() as home, tempfile.TemporaryDirectory() as work:
        _baton(home, "up", "--ephemeral")
        try:
            town = Town(home)
            (Path(work) / DOCUMENT).write_text(json.dumps(_linked(town.document())))
            results = [_try(town, [schemathesis, examples], Path(work), door) for door in _doors(town)]
        finally:
            _baton(home, "down")
    return max(results)


def _linked(document: Any) -> Any:
    """The API's own document, and from each answer of SHOWN a link to what its ids are for."""
    operations = [each for path in document["paths"].values() for each in path.values()]
    wanted = {each["operationId"]: _ids(each) for each in operations}
    for each in operations:
        shown = SHOWN.get(each["operationId"], {})
        answer = each["responses"][min(each["responses"])]
        answer["links"] = {
            name: {"operationId": name, "parameters": {f"path.{key}": shown[key] for key in ids}}
            for name, ids in wanted.items()
            if ids and ids <= shown.keys()
        }
    assert wanted.keys() >= SHOWN.keys()
    return document


def _ids(operation: Any) -> set[str]:
    return {each["name"] for each in operation.get("parameters", []) if each["in"] == "path"}


def _doors(town: Town) -> list[Door]:
    admin, other, boss = town.person("admin", "acme"), town.person("admin", "globex"), town.person("admin", "initech")
    member = town.person("member", "initech")
    town.furnish(admin, admin)
    town.furnish(other, other)
    town.furnish(boss, boss, member)
    return [
        Door("people: an admin", admin, ALL, leaves=("put_member", "remove_member")),
        Door("people: a member", member, INSIDE),
        Door("machines: an admin", town.machine(other, "admin"), INSIDE, MACHINES, leaves=("revoke_token",)),
        Door("machines: nobody", None, "fuzzing", MACHINES),
        Door("people: nobody", None, OUTSIDE),
    ]


def _try(town: Town, tool: list[str], work: Path, door: Door) -> int:
    print(f"== {door.name}", flush=True)
    schemathesis, examples = tool
    before = None if door.token is None else town.client(door.token).get("/me")
    asked = ["--max-examples", examples, "--phases", door.phases, "--request-timeout", "25"]
    asked += [] if door.token is None else ["-H", f"Authorization: Bearer {door.token}"]
    asked += [word for left in door.leaves for word in ("--exclude-operation-id", left)]
    command = [schemathesis, "--config-file", str(CONFIG), "run", DOCUMENT]
    done = subprocess.run([*command, "--url", town.api + door.path, *asked], cwd=work, check=False)
    if door.token is not None and town.client(door.token).get("/me") != before:
        print(f"{door.name} has locked himself out: what came after that was refused and proves nothing")
        return 1
    return done.returncode


def _baton(home: Path, *command: str) -> str:
    asked = [sys.executable, "-m", "infra.cli", "--home", str(home), *command]
    done = subprocess.run(asked, cwd=ROOT, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
