"""`baton invitation`: tenants that have added you. None counts before you accept it."""

from __future__ import annotations

import argparse

from infra.client import show
from infra.client.command import Commands, client_of, command, did, group, tell, with_id


def add_commands(commands: Commands) -> None:
    below = group(commands, "invitation", "accept or decline invitations to tenants")
    command(below, "list", invited, "list your invitations")
    for name, text in (("accept", "become a member of the tenant"), ("decline", "turn an invitation down")):
        made = with_id(command(below, name, answer, text), "the tenant's ID", "invitation")
        made.set_defaults(accept=name == "accept")


def invited(options: argparse.Namespace) -> None:
    found = client_of(options).get("/me")
    tell(options, found, lambda told: show.table(told["invitations"], "id", "name", "role", "invited_by"))


def answer(options: argparse.Namespace) -> None:
    client = client_of(options)
    told = client.post("/me/invitations", {"tenant_id": options.id, "accept": options.accept})
    did(options, told, "Accepted. You are a member now." if options.accept else "Declined.")
