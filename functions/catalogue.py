"""Every kind of work by name. A kind joins by one line here; it is imported when it is first needed.

By convention `shared/<kind>/build.py` (or the folder that `FOLDERS` names) has `kind(engine)`, which builds it with its real ports, and `providers()`, the
upstreams that a tenant may have an account of its own at. It may have `commands()` and `settings()`.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import sqlalchemy as sa

from shared.kernel.catalogue import Catalogue, Kind
from shared.kernel.connections import Provider
from shared.kernel.live import PREFIX as DATABASE
from shared.kernel.live import Database
from shared.kernel.model import RunCommand
from shared.kernel.settings import Groups, Relay

KINDS = (
    "page_ingest",
    "query_run",
    "job",
    "search",
    "row_job",
    "folder_sync",
)  # fmt: skip

FOLDERS = {"job": "job_queue"}


def all_kinds(engine: sa.Engine) -> Catalogue:
    return Catalogue(**{name: partial(one_kind, name, engine) for name in KINDS})


def one_kind(name: str, engine: sa.Engine) -> Kind:
    module = _joins(name)
    if hasattr(module, "kind_with"):  # it starts runs of the others
        kind: Kind = module.kind_with(engine, all_commands(), all_kinds(engine))
    else:
        kind = module.kind(engine)
    return kind


def all_commands() -> list[RunCommand]:
    """What jobs may start: each kind declares its own in `commands()`, if it has any."""
    return [command for name in KINDS for command in getattr(_joins(name), "commands", list)()]


def all_settings() -> Groups:
    """What an operator may set, in groups: the relay's, the database's, and each kind's."""
    kinds = [group for name in KINDS for group in getattr(_joins(name), "settings", list)()]
    return [("BATON_", Relay), (DATABASE, Database), *kinds]


def all_providers() -> list[Provider]:
    return [provider for name in KINDS for provider in _joins(name).providers()]


def kind_asking(provider: str) -> str:
    """Which kind of work reads this upstream."""
    (name,) = (name for name in KINDS if provider in {each.name for each in _joins(name).providers()})
    return name


def all_routers() -> list[Any]:
    """The routes of each kind that has some."""
    modules = [f"shared.{_folder(name)}.{part}" for name in KINDS for part in ("api", "worker_api", "rows_api")]
    return [import_module(module).router for module in modules if find_spec(module)]


def _joins(name: str) -> Any:
    return import_module(f"shared.{_folder(name)}.build")


def _folder(name: str) -> str:
    return FOLDERS.get(name, name)
