"""Uploads in S3: where a browser may send one, and its bytes at the version that arrived."""

from __future__ import annotations

from typing import Any

from shared.kernel import aws
from shared.kernel.errors import Permanent, Transient
from shared.kernel.files import why_refused

GONE = frozenset({"NoSuchKey", "NoSuchVersion", "404"})
LARGEST_UPLOAD = 5 * 1024**3
LINK_S = 3600


class S3Files:
    def __init__(self, bucket: str) -> None:
        self._bucket = bucket

    def read(self, key: str, version_id: str | None, offset: int, length: int) -> bytes:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - who reads no file need not import it

        asked: dict[str, Any] = {"Bucket": self._bucket, "Key": key, "Range": f"bytes={offset}-{offset + length - 1}"}
        if version_id is not None:
            asked["VersionId"] = version_id
        try:
            body: bytes = aws.client("s3").get_object(**asked)["Body"].read()
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code in GONE:
                raise Permanent("The uploaded file isn't there any more.", "file_gone") from None
            if code == "InvalidRange":
                return b""
            said = why_refused(code, "read") or f"S3 didn't give the file ({code})."
            raise Transient(said, "no_file_now") from None
        except (BotoCoreError, OSError) as error:
            raise Transient(f"S3 didn't give the file ({type(error).__name__}).", "no_file_now") from None
        return body

    def place(self, key: str, most_bytes: int, content_type: str = "text/csv") -> dict[str, Any]:
        """A form by which a browser may upload one file to this very key, of this type, of this size at most."""
        conditions = [["content-length-range", 1, min(most_bytes, LARGEST_UPLOAD)], {"Content-Type": content_type}]
        given: dict[str, Any] = aws.client("s3").generate_presigned_post(
            self._bucket, key, Fields={"Content-Type": content_type}, Conditions=conditions, ExpiresIn=LINK_S
        )
        return given
