"""Images as small as their headers, and archives of them."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib


def png(width: int, height: int, content: bytes = b"") -> bytes:
    header = struct.pack(">2L5B", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">L", 13) + chunk + struct.pack(">L", zlib.crc32(chunk)) + content


def jpeg(width: int, height: int, before: bytes = b"") -> bytes:
    return b"\xff\xd8" + before + b"\xff\xc2" + struct.pack(">HB2HB", 11, 8, height, width, 1) + b"\x01\x11\x00\xff\xd9"


def segment(marker: int, size: int) -> bytes:
    return bytes((0xFF, marker)) + struct.pack(">H", size + 2) + b"x" * size


def packed(*held: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in held:
            archive.writestr(name, content)
    return buffer.getvalue()
