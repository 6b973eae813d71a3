"""S3 as a function of ours sees it: it may read keys and not list the bucket, so a key that is not there is told as forbidden."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from botocore.exceptions import ClientError

MISSING = frozenset({"NoSuchKey", "NoSuchVersion", "404"})


def hide_missing_keys(client: Any) -> Any:
    """For whoever stands in for S3 and asks for no rights. A body tells it as AccessDenied, an answer without one as 403."""

    def forbid(http_response: Any, parsed: dict[str, Any], **_: Any) -> None:
        code = parsed.get("Error", {}).get("Code")
        if code in MISSING:
            http_response.status_code = 403
            parsed["Error"]["Code"] = "403" if code == "404" else "AccessDenied"

    for operation in ("GetObject", "HeadObject", "CopyObject"):
        client.meta.events.register(f"after-call.s3.{operation}", forbid, unique_id=f"hidden-{operation}")
    return client


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
