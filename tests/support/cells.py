"""The cells of the authorization matrix: of each operation who may, on what, and with what. Kinds bring their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tests.support.door import Door, TenantHouse

Named = dict[str, str]
Prepare = Callable[[Door, TenantHouse, UUID], None]
EVERYBODY = frozenset({"viewer", "member", "admin", "worker"})
READERS, STARTERS, ADMINS = EVERYBODY - {"worker"}, frozenset({"member", "admin"}), frozenset({"admin"})
SUPERS: frozenset[str] = frozenset()  # no role of a tenant is enough


@dataclass(frozen=True, kw_only=True)
class Cells:
    """`roles`: who may, said here once more. `target`: what its path names; a kind that has things of its own to name
    says how to `make` one and by which `names` of a path.

    `any_name`: a name that is nobody's is as good as one of another tenant.
    """

    roles: frozenset[str]
    target: str | None = None
    body: Any = None
    ok: int = 200
    prepare: Prepare = lambda *_: None
    any_name: bool = False
    of_all: bool = False  # it belongs to no tenant: who may, may whichever made it
    make: Callable[[Door, TenantHouse], Named] | None = None
    names: Sequence[str] = ()
    query: Mapping[str, Any] = field(default_factory=dict)
