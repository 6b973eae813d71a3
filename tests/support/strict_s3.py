"""S3 in a bad mood: rights that a deployment has lost, uploads in parts that are gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from botocore.exceptions import ClientError

READS = ("GetObject", "HeadObject", "CopyObject")


@contextmanager
def forbidden(client: Any) -> Iterator[None]:
    """Nothing may be read. A body tells it as AccessDenied, an answer without one as 403."""

    def refuse(model: Any, **_: Any) -> None:
        raise ClientError({"Error": {"Code": "403" if model.name == "HeadObject" else "AccessDenied"}}, model.name)

    for operation in READS:
        client.meta.events.register(f"before-call.s3.{operation}", refuse, unique_id=f"forbidden-{operation}")
    try:
        yield
    finally:
        for operation in READS:
            client.meta.events.unregister(f"before-call.s3.{operation}", unique_id=f"forbidden-{operation}")


@contextmanager
def uploads_gone(client: Any) -> Iterator[None]:
    """No upload in parts is known any more. (moto breaks when it is asked for one.)"""

    def refuse(**_: Any) -> None:
        raise ClientError({"Error": {"Code": "NoSuchUpload"}}, "UploadPart")

    client.meta.events.register("before-call.s3.UploadPart", refuse, unique_id="gone")
    try:
        yield
    finally:
        client.meta.events.unregister("before-call.s3.UploadPart", unique_id="gone")
