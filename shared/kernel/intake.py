"""Events from outside become signals: an uploaded object, or what somebody put on our bus. Each is read strictly.

Both are delivered at least once, so a signal's id is made from what the event is about: an object's version, or the
event's own id. What cannot be read is refused for good: to deliver it again would not make it readable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import UUID, uuid5

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shared.kernel.catalogue import Catalogue
from shared.kernel.entry import Answer, Context, Event, Handler, invocation
from shared.kernel.log import logger
from shared.kernel.log_json import logged
from shared.kernel.metrics import Metric
from shared.kernel.model import Json
from shared.kernel.ports import Ports
from shared.kernel.redact import redact
from shared.kernel.signals import OURS, announced, reserved
from shared.kernel.storable import unstorable
from shared.kernel.wrong import in_words

NAMESPACE = UUID("7d4c9f0e-52a1-5d8e-9a3b-5d3f0c6b1e27")
UPLOADS = "uploads/"  # then the tenant's id: uploads/<tenant>/<anything>
LARGEST_PAYLOAD = 64 * 1024
DEEPEST_PAYLOAD = 32


class Unreadable(Exception):
    """An event that is none of those we know; the message says why, without what it carried."""


@dataclass(frozen=True, slots=True)
class Heard:
    """One signal, as it will be written."""

    event_id: UUID
    tenant_id: UUID
    name: str
    payload: Json


class _FromAws(BaseModel):
    model_config = ConfigDict(extra="ignore")  # AWS adds fields as it likes


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Bucket(_FromAws):
    name: str


class _Object(_FromAws):
    key: Annotated[str, Field(min_length=1, max_length=1024)]
    size: Annotated[int, Field(ge=0)]
    etag: str = ""
    sequencer: str = ""
    version_id: Annotated[str, Field(alias="version-id")] = ""


class _Created(_FromAws):
    bucket: _Bucket
    object: _Object


class _ObjectCreated(_FromAws):
    source: Literal["aws.s3"]
    detail_type: Annotated[Literal["Object Created"], Field(alias="detail-type")]
    detail: _Created


class _Said(_Strict):
    tenant_id: Annotated[UUID, Field(strict=False)]
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.-]{0,99}$")]
    payload: dict[str, Any] = {}


class _Signal(_FromAws):
    id: Annotated[str, Field(min_length=1, max_length=100)]
    source: Annotated[str, Field(min_length=1, max_length=256)]
    detail_type: Annotated[Literal["Baton Signal"], Field(alias="detail-type")]
    detail: _Said


def intake_handler(ports: Ports, bucket: str | None, kinds: Catalogue) -> Handler:
    """Turns an event from outside into one signal. What it cannot read it refuses: to try again would not help."""
    ports = announced(ports, kinds)

    def handler(event: Event, context: Context) -> Answer:
        with invocation(ports, context) as now:
            return take_in(now, event, bucket, reserved(kinds))

    return logged(handler)


def take_in(ports: Ports, event: Mapping[str, Any], bucket: str | None, ours: tuple[str, ...] = OURS) -> dict[str, Any]:
    """Write the event's signal, once. A database that is away raises: then the event must come again."""
    try:
        heard = read_event(event, bucket, ours)
    except Unreadable as error:
        ports.meter.count(Metric.EVENT, outcome="refused")
        logger.warning("an event was refused", extra={"reason": str(error), "event_id": redact(str(event.get("id")))})
        return {"outcome": "refused", "reason": str(error)}
    fresh = ports.store.add_signal_once(heard.event_id, heard.tenant_id, heard.name, heard.payload)
    outcome = "taken" if fresh else "again"
    ports.meter.count(Metric.EVENT, outcome=outcome)
    logger.info("an event came", extra={"outcome": outcome, "signal": heard.name, "tenant": str(heard.tenant_id)})
    ports.announce(ports)
    return {"outcome": outcome, "event_id": str(heard.event_id)}


def read_event(event: Mapping[str, Any], bucket: str | None, ours: tuple[str, ...] = OURS) -> Heard:
    """What an event says, or Unreadable. `ours`: how names begin that nobody outside may say."""
    try:
        if event.get("source") == "aws.s3":
            return _uploaded(_ObjectCreated.model_validate(event).detail, bucket)
        return _said(_Signal.model_validate(event), ours)
    except ValidationError as error:
        shape = _ObjectCreated if event.get("source") == "aws.s3" else _Signal
        raise Unreadable(in_words(error, shape, whole="The event")) from None


def _uploaded(created: _Created, bucket: str | None) -> Heard:
    if created.bucket.name != bucket:
        raise Unreadable("detail.bucket.name: not our bucket")
    found = created.object
    tenant, _, rest = found.key.removeprefix(UPLOADS).partition("/")
    if not found.key.startswith(UPLOADS) or not rest:
        raise Unreadable(f"detail.object.key: not {UPLOADS}<tenant>/<name>")
    try:
        tenant_id = UUID(tenant)
    except ValueError:
        raise Unreadable("detail.object.key: the tenant is no id") from None
    which = found.version_id or found.sequencer or found.etag
    payload: Json = {"bucket": bucket, "key": found.key, "version_id": found.version_id or None}
    payload = {**payload, "size": found.size, "etag": found.etag or None}
    if problem := unstorable(payload, DEEPEST_PAYLOAD):  # S3 takes names that Postgres does not
        raise Unreadable(f"detail.object.{problem}")
    return Heard(uuid5(NAMESPACE, f"s3\n{bucket}\n{found.key}\n{which}"), tenant_id, "object.created", payload)


def _said(signal: _Signal, ours: tuple[str, ...]) -> Heard:
    said = signal.detail
    if said.name.startswith(ours):
        raise Unreadable(f"detail.name: names that start with {', '.join(ours)} are Baton's own; choose another")
    if problem := unstorable(said.payload, DEEPEST_PAYLOAD):
        raise Unreadable(f"detail.payload: {problem}")
    if len(orjson.dumps(said.payload)) > LARGEST_PAYLOAD:
        raise Unreadable(f"detail.payload: more than {LARGEST_PAYLOAD} bytes; store it and send its place")
    event_id = uuid5(NAMESPACE, f"bus\n{signal.source}\n{signal.id}")
    return Heard(event_id, said.tenant_id, said.name, said.payload)
