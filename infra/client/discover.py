"""The commands that kinds of work bring: one file each, `infra/client/kinds/<kind>.py`, found by being there.

Such a file has

    add_commands(commands)     its commands, made with `infra.client.command`; by custom below one word, `baton <kind> …`
    progress(client, run)      optional: the bars that `baton watch` shows for a run of this kind, as `show.Bars`

and speaks to the API over HTTP and nothing else. A kind without a file is started by `baton run start <kind>`.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from typing import Any

from infra.client import kinds


@cache
def found() -> dict[str, Any]:
    """The modules, by the name of their kind."""
    names = sorted(module.name for module in pkgutil.iter_modules(kinds.__path__))
    return {name: import_module(f"{kinds.__name__}.{name}") for name in names}
