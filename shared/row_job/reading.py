"""Bytes of an uploaded file, for whoever takes it apart."""

from __future__ import annotations

from shared.kernel.errors import Permanent
from shared.row_job.ports import Ports, Progress


def bytes_of(ports: Ports, job: Progress, offset: int, length: int) -> bytes:
    """At the version that arrived."""
    length = min(length, job.size - offset)
    if length <= 0:
        return b""
    data = ports.files.read(job.key, job.version_id, offset, length)
    if len(data) != length:
        raise Permanent("The file changed while it was read. Upload it again.", "file_changed")
    return data
