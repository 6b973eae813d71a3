"""How example_kind joins: the kind with its real ports, and the upstreams that tenants connect to."""

from __future__ import annotations

import sqlalchemy as sa

from shared.example_kind.steps import example_kind
from shared.kernel.catalogue import Kind
from shared.kernel.connections import Provider


def kind(engine: sa.Engine) -> Kind:  # noqa: ARG001 - for ports that read beside the commit
    return example_kind()


def providers() -> list[Provider]:
    return []
