"""The bucket of results in memory, as strict as the real one: small parts, unknown uploads and missing keys are refused."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import md5
from itertools import count

from shared.kernel.files import PART, UploadGone


class MemoryFiles:
    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self._numbers = count(1)

    def put(self, key: str, body: bytes) -> None:
        self.held[key] = body

    def get(self, key: str) -> bytes:
        if key not in self.held:
            raise UploadGone("NoSuchKey")
        return self.held[key]

    def delete(self, key: str) -> None:
        self.held.pop(key, None)

    def begin(self, key: str) -> str:
        upload = f"{key}#{next(self._numbers)}"
        self.uploads[upload] = {}
        return upload

    def add(self, key: str, upload: str, number: int, body: bytes) -> str:
        self._parts(key, upload)[number] = body
        return md5(body, usedforsecurity=False).hexdigest()

    def finish(self, key: str, upload: str, parts: Sequence[str], last: bytes) -> None:
        try:
            self.add(key, upload, len(parts) + 1, last)
        except UploadGone:
            self.get(key)
            return
        sent = self.uploads.pop(upload)
        bodies = [sent[number] for number in range(1, len(parts) + 2)]
        assert [md5(body, usedforsecurity=False).hexdigest() for body in bodies[:-1]] == list(parts)
        assert all(len(body) >= PART for body in bodies[:-1]), "only the last part may be small"
        self.held[key] = b"".join(bodies)

    def _parts(self, key: str, upload: str) -> dict[int, bytes]:
        if upload not in self.uploads or not upload.startswith(f"{key}#"):
            raise UploadGone("NoSuchUpload")
        return self.uploads[upload]
