"""Keeps the secrets of connections over a restart: the emulator forgets them, and the database would name what is gone.

They lie in the cloud's own folder, in a file that only its owner may read, beside the database and its password.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from infra.local import private
from infra.local.deploy import STAGE

FILE = "secrets.json"
OURS = f"baton/{STAGE}/connections/"


def save(client: Any, home: Path) -> None:
    """What there is now. Written only if it has changed."""
    pages = client.get_paginator("list_secrets").paginate()
    names = sorted(each["Name"] for page in pages for each in page["SecretList"] if each["Name"].startswith(OURS))
    held = {}
    for name in names:
        found = client.get_secret_value(SecretId=name)
        held[name] = {"version": found["VersionId"], "value": found["SecretString"]}
    text = json.dumps(held, indent=2)
    file = home / FILE
    if held or file.exists():
        if file.exists() and file.read_text() == text:
            return
        part = file.with_suffix(".part")
        with private.open_file(part, "w") as opened:
            opened.write(text)
        part.rename(file)


def restore(client: Any, home: Path) -> int:
    """Under the versions that the database names. How many."""
    try:
        held = json.loads((home / FILE).read_text())
    except (OSError, ValueError):
        return 0
    for name, each in held.items():
        # MiniStack gives a new secret a version of its own, and the next one the version that was asked for.
        client.create_secret(Name=name, SecretString=each["value"])
        client.put_secret_value(SecretId=name, SecretString=each["value"], ClientRequestToken=each["version"])
    return len(held)
