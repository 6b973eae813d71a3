"""The bucket as a place for results: a file in one piece, or in parts that several steps write."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from shared.kernel import aws
from shared.kernel.errors import Permanent, Transient
from shared.query_run.ports import UploadGone

T = TypeVar("T")
BUCKET: Final = "BATON_BUCKET"
CSV: Final = "text/csv; charset=utf-8"


class S3Files:
    """Nothing is asked of AWS, and nothing of it is imported, before a file is."""

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        self._env = env

    @property
    def _bucket(self) -> str:
        if not (name := self._env.get(BUCKET)):
            raise Permanent(f"{BUCKET} must name the bucket for results.", "bad_settings")
        return name

    def put(self, key: str, body: bytes) -> None:
        self._asked(lambda s3: s3.put_object(Bucket=self._bucket, Key=key, Body=body, ContentType=CSV))

    def get(self, key: str) -> bytes:
        return bytes(self._asked(lambda s3: s3.get_object(Bucket=self._bucket, Key=key)["Body"].read()))

    def delete(self, key: str) -> None:
        """What is not there is gone."""
        self._asked(lambda s3: s3.delete_object(Bucket=self._bucket, Key=key))

    def begin(self, key: str) -> str:
        """An upload in parts; one that is never finished is removed by the bucket after a day."""
        made = self._asked(lambda s3: s3.create_multipart_upload(Bucket=self._bucket, Key=key, ContentType=CSV))
        return str(made["UploadId"])

    def add(self, key: str, upload: str, number: int, body: bytes) -> str:
        """Part `number` from 1; sent twice, the second takes the first one's place."""
        where = {"Bucket": self._bucket, "Key": key, "UploadId": upload}
        return str(self._asked(lambda s3: s3.upload_part(**where, PartNumber=number, Body=body))["ETag"])

    def finish(self, key: str, upload: str, parts: Sequence[str], last: bytes) -> None:
        """With the last part, of any size. Finished twice it is finished once: whoever finds the upload gone looks whether
        the file is there."""
        where = {"Bucket": self._bucket, "Key": key}
        try:
            tags = [*parts, self.add(key, upload, len(parts) + 1, last)]
            listed = {"Parts": [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]}
            self._asked(lambda s3: s3.complete_multipart_upload(**where, UploadId=upload, MultipartUpload=listed))
        except UploadGone:
            self._asked(lambda s3: s3.head_object(**where))

    def link(self, key: str, name: str, seconds: int) -> str:
        """An address that anybody can download the file from, for so long."""
        wanted = {
            "Bucket": self._bucket,
            "Key": key,
            "ResponseContentDisposition": f'attachment; filename="{name}"',
            "ResponseContentType": CSV,
        }
        return str(self._asked(lambda s3: s3.generate_presigned_url("get_object", Params=wanted, ExpiresIn=seconds)))

    def _asked(self, call: Callable[[Any], T]) -> T:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - only who exports needs it

        try:
            return call(aws.client("s3"))
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code in ("NoSuchUpload", "NoSuchKey", "404"):
                raise UploadGone(f"A part of the file is not there any more ({code}).") from None
            raise Transient(f"The bucket refuses a file ({code}).", "no_storage") from None
        except BotoCoreError as error:
            raise Transient(f"The bucket does not answer ({type(error).__name__}).", "no_storage") from None
