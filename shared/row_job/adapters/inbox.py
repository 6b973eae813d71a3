"""Files that wait elsewhere and are brought into our bucket: under a tenant's prefix of it, on an FTP server, in a folder.

Names come from whoever put the files there: one that is no plain name is passed over. Nothing here takes a path from a
caller.
"""

from __future__ import annotations

import codecs
import ftplib
import os
import socket
import ssl
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from uuid import UUID

from shared.kernel import aws
from shared.kernel.clock import stopwatch
from shared.kernel.errors import Permanent, Transient
from shared.kernel.files import why_refused
from shared.kernel.http import is_public
from shared.row_job.adapters.s3 import GONE, LARGEST_UPLOAD
from shared.row_job.model import INBOX, type_of
from shared.row_job.ports import Changed, Listed

PART = 8 * 1024 * 1024  # S3 takes no smaller parts than 5 MiB, but for the last
MOST_FILES = 10_000
LONGEST_NAME = 200
TIMEOUT_S = 10.0


def is_plain(name: str) -> bool:
    """A name that is nothing but a name, of a file that can be read."""
    return (
        0 < len(name) <= LONGEST_NAME
        and not name.startswith(".")
        and name.isprintable()
        and not {"/", "\\"} & set(name)
        and type_of(name) is not None
    )


def listed(found: Iterator[Listed]) -> list[Listed]:
    """Those that can be taken, by name. A name that is told twice is one file: the next scan says which it was."""
    kept: dict[str, Listed] = {}
    for file in found:
        if is_plain(file.name) and 0 < file.size <= LARGEST_UPLOAD:
            kept.setdefault(file.name, file)
        if len(kept) > MOST_FILES:
            raise Permanent(
                f"There are more than {MOST_FILES:,} files. Take away those that are done.", "too_many_files"
            )
    return sorted(kept.values(), key=lambda each: each.name)


class S3Inbox:
    """What lies under the tenant's own prefix. A file is its version; it is copied inside S3."""

    def __init__(self, bucket: str, tenant_id: UUID) -> None:
        self._bucket, self._prefix = bucket, INBOX.format(tenant_id=tenant_id)

    def files(self) -> list[Listed]:
        with _asking_s3():
            return listed(self._listed())

    def _listed(self) -> Iterator[Listed]:
        asked: dict[str, Any] = {"Bucket": self._bucket, "Prefix": self._prefix, "Delimiter": "/"}
        while True:
            page = aws.client("s3").list_objects_v2(**asked)
            for each in page.get("Contents", []):
                yield Listed(each["Key"].removeprefix(self._prefix), each["Size"], each["ETag"].strip('"'))
            if not page.get("IsTruncated"):
                return
            asked["ContinuationToken"] = page["NextContinuationToken"]

    def bring(self, file: Listed, key: str, place: dict[str, Any] | None, seconds: float) -> dict[str, Any] | None:  # noqa: ARG002 - it is one call
        with _asking_s3():
            aws.client("s3").copy_object(
                Bucket=self._bucket, Key=key, CopySource={"Bucket": self._bucket, "Key": self._prefix + file.name},
                CopySourceIfMatch=file.stamp, TaggingDirective="REPLACE",
            )  # fmt: skip
        return None


class Pumped:
    """Brings a file in parts, as far as the time lasts; a part that is brought twice is the same part."""

    def __init__(self, bucket: str, source: FtpServer | Folder) -> None:
        self._bucket, self._source = bucket, source

    def files(self) -> list[Listed]:
        with self._source.connected():
            return listed(self._source.listed())

    def bring(self, file: Listed, key: str, place: dict[str, Any] | None, seconds: float) -> dict[str, Any] | None:
        where = {"Bucket": self._bucket, "Key": key}
        with self._source.connected(), _asking_s3():
            if file.size <= PART:
                with self._source.opened(file, 0) as stream:
                    content = _exactly(stream, file.size)
                self._source.confirm(file)
                aws.client("s3").put_object(**where, Body=content)
                return None
            if place is None:
                place = {"upload": aws.client("s3").create_multipart_upload(**where)["UploadId"], "parts": 0}
            return self._bring_on(file, {**where, "UploadId": place["upload"]}, place["parts"], seconds)

    def _bring_on(self, file: Listed, upload: dict[str, Any], parts: int, seconds: float) -> dict[str, Any] | None:
        """If all was made one object and nobody heard of it, the upload is gone and the object is there."""
        from botocore.exceptions import ClientError  # noqa: PLC0415 - as in s3.py

        s3 = aws.client("s3")
        try:
            parts = self._bring_parts(file, upload, parts, seconds)
            if parts * PART < file.size:
                return {"upload": upload["UploadId"], "parts": parts}
            self._source.confirm(file)
            pages = s3.get_paginator("list_parts").paginate(**upload)
            made = [
                {"PartNumber": each["PartNumber"], "ETag": each["ETag"]} for page in pages for each in page["Parts"]
            ]
            s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": made})
        except ClientError as error:
            if _code(error) != "NoSuchUpload":
                raise
            with _asking_s3():
                if s3.head_object(Bucket=upload["Bucket"], Key=upload["Key"])["ContentLength"] != file.size:
                    raise Changed from None
        return None

    def _bring_parts(self, file: Listed, upload: dict[str, Any], parts: int, seconds: float) -> int:
        if parts * PART >= file.size:
            return parts
        elapsed = stopwatch()
        with self._source.opened(file, parts * PART) as stream:
            while parts * PART < file.size:
                content = _exactly(stream, min(PART, file.size - parts * PART))
                aws.client("s3").upload_part(**upload, PartNumber=parts + 1, Body=content)
                parts += 1
                if elapsed() > seconds:
                    break
        return parts


def _exactly(stream: IO[bytes], size: int) -> bytes:
    content = stream.read(size)
    if len(content) != size:
        raise Changed
    return content


class _Data(ssl.SSLSocket):
    """Many servers hang up without the closing words of TLS. Whether all was sent they say on the control connection."""

    def unwrap(self) -> socket.socket:
        try:
            return super().unwrap()
        except (OSError, ValueError):
            return self


class _AsItIs(codecs.BufferedIncrementalDecoder):
    """Names and words of a server that may know no UTF-8: what is none becomes lone surrogates, and such a name is not plain."""

    def _buffer_decode(self, data: Any, errors: str, final: bool) -> tuple[str, int]:  # noqa: ARG002 - as codecs call it
        return codecs.utf_8_decode(data, "surrogateescape", final)


AS_IT_IS = "baton_ftp"
_CODEC = codecs.CodecInfo(
    name=AS_IT_IS,
    encode=lambda text, _="": codecs.utf_8_encode(text, "surrogateescape"),
    decode=lambda data, _="": codecs.utf_8_decode(data, "surrogateescape", True),
    incrementaldecoder=_AsItIs,
)
codecs.register(lambda name: _CODEC if name == AS_IT_IS else None)


class _FtpOverTls(ftplib.FTP_TLS):
    """Data comes in the session of the log-in: most servers take no other data connection."""

    def ntransfercmd(self, cmd: str, rest: int | str | None = None) -> tuple[socket.socket, int | None]:
        data, size = ftplib.FTP.ntransfercmd(self, cmd, rest)  # noqa: S321 - what follows is the encryption
        control = self.sock
        assert isinstance(control, ssl.SSLSocket)
        return self.context.wrap_socket(data, server_hostname=self.host, session=control.session), size


def _context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.sslsocket_class = _Data
    return context


class FtpServer:
    """An FTP server, over TLS unless its connection says otherwise. Only one that everybody could reach, but in a local cloud:
    nobody looks into our network through us."""

    def __init__(
        self, *, host: str, port: int, user: str, password: str, directory: str, tls: bool, private: bool = False
    ) -> None:
        self._host, self._port, self._user, self._password = host, port, user, password
        self._directory, self._tls, self._private = directory, tls, private
        self._ftp: ftplib.FTP | None = None

    @contextmanager
    def connected(self) -> Iterator[None]:
        try:
            self._ftp = self._connect()
            yield
        except ftplib.error_perm as error:
            if str(error)[:3] == "530":
                raise Permanent("The FTP server doesn't accept this user and password.", "ftp_login") from None
            if str(error)[:3] == "550":
                raise Changed from None
            raise Permanent(f"The FTP server refuses it ({str(error)[:3]}).", "ftp_refused") from None
        except (ftplib.Error, OSError, EOFError) as error:
            raise Transient(f"The FTP server didn't answer properly ({type(error).__name__}).", "no_ftp_now") from None
        finally:
            if self._ftp is not None:
                self._ftp.close()
            self._ftp = None

    def _connect(self) -> ftplib.FTP:
        address = self._address()
        ftp = _FtpOverTls(context=_context()) if self._tls else ftplib.FTP()  # noqa: S321 - the tenant says so
        ftp.encoding = AS_IT_IS
        try:
            ftp.connect(address, self._port, timeout=TIMEOUT_S)
            ftp.host = self._host  # whose certificate it must be
            ftp.login(self._user, self._password)
            if isinstance(ftp, ftplib.FTP_TLS):
                ftp.prot_p()
            self._enter(ftp)
        except BaseException:
            ftp.close()
            raise
        return ftp

    def _enter(self, ftp: ftplib.FTP) -> None:
        try:
            if self._directory:
                ftp.cwd(self._directory)
        except ftplib.error_perm as error:
            if str(error)[:3] != "550":
                raise
            raise Permanent("The FTP server doesn't have the connection's directory.", "ftp_directory") from None

    def _address(self) -> str:
        """The address that was looked at is the one that is called."""
        found = [str(each[4][0]) for each in socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)]
        if not self._private and not all(map(is_public, found)):
            raise Permanent("The FTP server must have a public address.", "ftp_private")
        return found[0]

    def listed(self) -> Iterator[Listed]:
        ftp = self._open()
        try:
            found = list(ftp.mlsd(facts=["type", "size", "modify"]))
        except ftplib.error_perm as error:
            if str(error)[:3] not in ("500", "501", "502", "504"):
                raise
            found = [(name, self._facts(name)) for name in self._names()[: MOST_FILES + 1] if is_plain(name)]
        for name, facts in found:
            size = facts.get("size", "")
            if facts.get("type", "").lower() == "file" and size.isdecimal() and len(size) < 20:
                yield Listed(name, int(size), facts.get("modify", ""))

    def _names(self) -> list[str]:
        try:
            return self._open().nlst()
        except ftplib.error_perm as error:
            if str(error)[:3] != "550":
                raise
            return []  # so many say that there are no files

    def _facts(self, name: str) -> dict[str, str]:
        """As an older server tells them, one by one. What has no size is no file."""
        ftp = self._open()
        try:
            ftp.voidcmd("TYPE I")
            size, time = ftp.size(name), ftp.voidcmd(f"MDTM {name}")[4:].strip()
        except ftplib.error_perm:
            return {}
        return {} if size is None else {"type": "file", "size": str(size), "modify": time}

    @contextmanager
    def opened(self, file: Listed, offset: int) -> Iterator[IO[bytes]]:
        ftp = self._open()
        ftp.voidcmd("TYPE I")  # a list was sent as text
        data = ftp.transfercmd(f"RETR {file.name}", rest=offset or None)
        data.settimeout(TIMEOUT_S)
        with data, data.makefile("rb") as stream:
            yield stream

    def confirm(self, file: Listed) -> None:
        """It is still as it was when it was listed. Asked anew: what was sent last may not have been all."""
        if self._ftp is not None:
            self._ftp.close()
        self._ftp = self._connect()
        if file not in self.listed():
            raise Changed

    def _open(self) -> ftplib.FTP:
        assert self._ftp is not None
        return self._ftp


class Folder:
    """Files of a folder on this machine, for local runs. No link is followed, and nothing below is looked at."""

    def __init__(self, folder: Path, tenant_id: UUID) -> None:
        self._folder = folder / str(tenant_id)

    @contextmanager
    def connected(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise Changed from None
        except OSError as error:
            raise Transient(f"The folder can't be read ({type(error).__name__}).", "no_folder_now") from None

    def listed(self) -> Iterator[Listed]:
        if not self._folder.is_dir():
            return
        with os.scandir(self._folder) as found:
            for each in found:
                if each.is_file(follow_symlinks=False):
                    yield _as_listed(each.name, each.stat(follow_symlinks=False))

    @contextmanager
    def opened(self, file: Listed, offset: int) -> Iterator[IO[bytes]]:
        if not is_plain(file.name):
            raise Changed
        place = os.open(self._folder / file.name, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(place, "rb") as stream:
            if not stat.S_ISREG(os.fstat(place).st_mode):
                raise Changed
            stream.seek(offset)
            yield stream

    def confirm(self, file: Listed) -> None:
        if _as_listed(file.name, (self._folder / file.name).lstat()) != file:
            raise Changed


def _as_listed(name: str, facts: os.stat_result) -> Listed:
    return Listed(name, facts.st_size, str(facts.st_mtime_ns))


@contextmanager
def _asking_s3() -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - as in s3.py

    try:
        yield
    except ClientError as error:
        if _code(error) in {*GONE, "PreconditionFailed", "412"}:
            raise Changed from None
        said = why_refused(_code(error)) or f"S3 didn't do it ({_code(error)})."
        raise Transient(said, "no_file_now") from None
    except BotoCoreError as error:
        raise Transient(f"S3 didn't do it ({type(error).__name__}).", "no_file_now") from None


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
