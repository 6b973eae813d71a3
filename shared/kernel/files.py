"""The bucket as a place for results: a file in one piece, or in parts that several steps write.

What is less than a part waits in a file of its own between two steps, because a bucket takes no smaller parts but the last.
Every write may happen twice, and late: a part has a number and a tag, the rest a name that only one process knows. The file is there when it is whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from shared.kernel import aws
from shared.kernel.errors import Permanent, Transient
from shared.kernel.model import Json
from shared.kernel.ports import Beside, at_once

T = TypeVar("T")
BUCKET: Final = "BATON_BUCKET"
CSV: Final = "text/csv; charset=utf-8"
TYPES: Final = {"csv": CSV, "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"}
PART: Final = 5 * 2**20  # the least that S3 takes
# A part that somebody who was overtaken sent once more is not the one that we were told of.
GONE: Final = frozenset({"NoSuchUpload", "NoSuchKey", "InvalidPart", "404"})
# S3 tells that a key is not there only to whoever may list the bucket, which every function may that reads files: what is forbidden
# to it is a right that the deployment lacks. (A right to list one prefix alone does not help: it holds for listings, not for a key.)
FORBIDDEN: Final = frozenset({"AccessDenied", "403"})


@dataclass(eq=False)
class UploadGone(Transient):
    """What was written of a file is not there any more: it is written from its beginning."""

    code: str = "upload_gone"


class Files(Protocol):
    """Where results are written for people to download, by key. All of it may be done twice."""

    def put(self, key: str, body: bytes) -> None: ...
    def get(self, key: str) -> bytes: ...
    def delete(self, key: str) -> None: ...
    def begin(self, key: str) -> str: ...
    def add(self, key: str, upload: str, number: int, body: bytes) -> str: ...
    def finish(self, key: str, upload: str, parts: Sequence[str], last: bytes) -> None: ...


class Parted:
    """A file that one step after the other writes on. What a step leaves is told to the next by `rest`.

    A part is sent when more comes than fits into it, so that something is always left for the last one. With `beside` it is
    sent while the next one is being made.
    """

    def __init__(
        self,
        files: Files,
        key: str,
        upload: str | None = None,
        parts: Sequence[str] = (),
        tail: str | None = None,
        *,
        part: int = PART,
        beside: Beside = at_once,
    ) -> None:
        self._files, self._key, self._upload, self._parts = files, key, upload, list(parts)
        self._part, self._beside = part, beside
        self._sending: Callable[[], str] | None = None
        self._body = bytearray(b"" if tail is None else files.get(tail))
        self.bytes = 0  # that were written here

    @property
    def waiting(self) -> int:
        """Bytes that are not sent yet."""
        return len(self._body)

    def write(self, data: bytes) -> None:
        if len(self._body) >= self._part:
            self._send()
        self._body += data
        self.bytes += len(data)

    def rest(self, name: str) -> Json:
        """Leave the file for another step. `name` must be this process's own: one that was overtaken may still write its rest."""
        tail = None
        if len(self._body) >= self._part:
            self._send()
        elif self._body:
            tail = name
            self._files.put(tail, bytes(self._body))
        self._sent()
        return {"upload": self._upload, "parts": self._parts, "tail": tail}

    def finish(self) -> None:
        self._sent()
        if self._upload is None:
            self._files.put(self._key, bytes(self._body))
        else:
            self._files.finish(self._key, self._upload, self._parts, bytes(self._body))

    def _send(self) -> None:
        self._sent()
        upload = self._upload = self._upload or self._files.begin(self._key)
        body, number = bytes(self._body), len(self._parts) + 1
        self._body.clear()
        self._sending = self._beside(lambda: self._files.add(self._key, upload, number, body))

    def _sent(self) -> None:
        sending, self._sending = self._sending, None
        if sending is not None:
            self._parts.append(sending())


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
        self._asked(lambda s3: s3.put_object(Bucket=self._bucket, Key=key, Body=body, ContentType=type_of(key)))

    def get(self, key: str) -> bytes:
        return bytes(self._asked(lambda s3: s3.get_object(Bucket=self._bucket, Key=key)["Body"].read()))

    def delete(self, key: str) -> None:
        """What is not there is gone."""
        self._asked(lambda s3: s3.delete_object(Bucket=self._bucket, Key=key))

    def begin(self, key: str) -> str:
        """An upload in parts; one that is never finished is removed by the bucket after a day."""
        made = self._asked(
            lambda s3: s3.create_multipart_upload(Bucket=self._bucket, Key=key, ContentType=type_of(key))
        )
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
            "ResponseContentType": type_of(key),
        }
        return str(self._asked(lambda s3: s3.generate_presigned_url("get_object", Params=wanted, ExpiresIn=seconds)))

    def _asked(self, call: Callable[[Any], T]) -> T:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - only who exports needs it

        try:
            return call(aws.client("s3"))
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code in GONE:
                raise UploadGone(f"A part of the file is not there any more ({code}).") from None
            raise Transient(why_refused(code) or f"The bucket refuses a file ({code}).", "no_storage") from None
        except BotoCoreError as error:
            raise Transient(f"The bucket does not answer ({type(error).__name__}).", "no_storage") from None


def why_refused(code: str, action: str = "use") -> str | None:
    """What an operator has to mend; None: S3 refuses it for another reason."""
    if code not in FORBIDDEN:
        return None
    return f"This deployment isn't allowed to {action} the file in its bucket ({code}). Check the function's role and the bucket's policy."


def type_of(key: str) -> str:
    return TYPES.get(key.rpartition(".")[2], CSV)
