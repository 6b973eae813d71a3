"""What a run is asked for, at the door: parsed into the kind's own model, or refused by the name of the field.

wanted = parse(MyParams, params)
wanted = with_connection(tx, tenant_id, wanted, provider="example")
"""

from __future__ import annotations

from typing import Protocol, Self, TypeVar
from uuid import UUID

from pydantic import BaseModel, ValidationError

from shared.kernel.errors import Refused
from shared.kernel.model import Json
from shared.kernel.wrong import in_words

ParamsT = TypeVar("ParamsT", bound=BaseModel)


class FindsConnections(Protocol):
    """The one question of a transaction that is asked here."""

    def find_connection(self, tenant_id: UUID, provider: str, wanted: str) -> UUID | None: ...


class Connected(Protocol):
    """Parameters that may name one of the tenant's connections, by its id or name."""

    @property
    def connection(self) -> str | None: ...

    def model_copy(self, *, update: dict[str, object]) -> Self: ...


ConnectedT = TypeVar("ConnectedT", bound=Connected)


def parse(model: type[ParamsT], params: Json) -> ParamsT:
    """The parameters as the kind knows them; `Refused` names each field that is wrong, and why."""
    try:
        return model.model_validate(dict(params))
    except ValidationError as error:
        raise Refused("bad_params", in_words(error, model)) from None


def with_connection(tx: FindsConnections, tenant_id: UUID, params: ConnectedT, provider: str) -> ConnectedT:
    """The same with the connection's id, whatever it was named by: a name may belong to another one tomorrow."""
    if params.connection is None:
        return params
    found = tx.find_connection(tenant_id, provider, params.connection)
    if found is None:
        raise Refused("unknown_connection", f"connection: no connection to {provider} has this name or id.")
    return params.model_copy(update={"connection": str(found)})
