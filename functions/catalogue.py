"""Every kind of work by name. A kind joins by one line here; it is imported when it is first needed.

By convention `shared/<kind>/build.py` has `kind(engine)`, which builds it with its real ports, and `providers()`, the
upstreams that a tenant may have an account of its own at.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import sqlalchemy as sa

from shared.kernel.catalogue import Catalogue, Kind
from shared.kernel.connections import Provider

KINDS = (
    "page_ingest",
    "query_run",
    "row_job",
)  # fmt: skip


def all_kinds(engine: sa.Engine) -> Catalogue:
    return Catalogue(**{name: partial(one_kind, name, engine) for name in KINDS})


def one_kind(name: str, engine: sa.Engine) -> Kind:
    kind: Kind = _joins(name).kind(engine)
    return kind


def all_providers() -> list[Provider]:
    return [provider for name in KINDS for provider in _joins(name).providers()]


def all_routers() -> list[Any]:
    """The routes of each kind that has some."""
    return [import_module(f"shared.{name}.api").router for name in KINDS if find_spec(f"shared.{name}.api")]


def _joins(name: str) -> Any:
    return import_module(f"shared.{name}.build")
