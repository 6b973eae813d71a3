"""Images as rows: one for each image, or for each member of a ZIP archive, with what is known of it.

Nothing is decoded. An image's size is read from its header, and its bytes pass by once, for their hash. An archive is read by
its directory alone and unpacked in small pieces that are counted, so what claims to be small and is not is noticed when it
grows. No name of an archive is ever a path here. Pure but for `fetch`, which answers bytes of the file.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from shared.row_job.table import BadFile, Row

Fetch = Callable[[int, int], bytes]  # offset, length; fewer only at the end

MOST_IMAGES = 10_000
MOST_PIXELS = 50_000_000
MOST_IMAGE_BYTES = 64 * 1024 * 1024
MOST_UNPACKED = 4 * 1024**3
MOST_RATIO = 100  # of all that an archive holds, and of one member that is larger than a little
SMALL = 1024 * 1024
SLACK = 64 * 1024  # of what is packed and does not shrink
MOST_DIRECTORY = 8 * 1024 * 1024
HEAD = 512 * 1024  # of an image: its size is in there
PIECE = 256 * 1024
ARCHIVES = (b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b", b"7z\xbc\xaf", b"Rar!", b"BZh", b"\xfd7zXZ")
STORED, DEFLATED = 0, 8


class BadImage(Exception):
    """A member that is no row to work on: a code, and the reason as people read it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """An image as its archive announces it; of a file that is an image itself, all of it."""

    name: str
    size: int
    packed: int
    at: int  # of its own header, or of the image
    method: int = STORED
    crc: int | None = None
    is_locked: bool = False
    is_whole: bool = False


# --- what a file holds


def members(fetch: Fetch, size: int, name: str) -> list[Member]:
    """The images of a file, in their order. What is wrong with all of it is a BadFile."""
    if size == 0:
        raise BadFile("empty_file", "The file is empty.")
    if not fetch(0, 4).startswith(b"PK"):
        return [Member(name=name, size=size, packed=size, at=0, is_whole=True)]
    found = list(entries(fetch, size))
    _refuse_bombs(found, size)
    images = [each for each in found if not _is_passed_over(each.name)]
    if not images:
        raise BadFile("no_rows", "The archive holds no images.")
    return images


def entries(fetch: Fetch, size: int) -> Iterator[Member]:
    tail_at = max(0, size - 65_557)
    tail = fetch(tail_at, size - tail_at)
    end = tail.rfind(b"PK\x05\x06")
    if end < 0 or len(tail) < end + 22:
        raise BadFile("bad_zip", "The archive has no directory: it is damaged, or not all of it was uploaded.")
    disk, disk_of, here, count, length, at = struct.unpack_from("<4H2L", tail, end + 4)
    if count > MOST_IMAGES or count == 0xFFFF:
        raise BadFile("too_many_images", f"The archive holds more than {MOST_IMAGES:,} files.")
    if disk or disk_of or here != count or at + length > tail_at + end or length > MOST_DIRECTORY:
        raise BadFile("bad_zip", "The archive's directory can't be read.")
    directory, place = fetch(at, length), 0
    for _ in range(count):
        if directory[place : place + 4] != b"PK\x01\x02" or len(directory) < place + 46:
            raise BadFile("bad_zip", "The archive's directory can't be read.")
        flags, method, _, _, crc, packed, unpacked, named, extra, noted, _, _, _, starts = struct.unpack_from(
            "<2H2H3L5H2L", directory, place + 8
        )
        raw = directory[place + 46 : place + 46 + named]
        name = raw.decode("utf-8" if flags & 0x800 else "cp437", "replace")
        yield Member(
            name=name, size=unpacked, packed=packed, at=starts, method=method, crc=crc, is_locked=bool(flags & 1)
        )
        place += 46 + named + extra + noted
    if place != length:
        raise BadFile("bad_zip", "The archive's directory holds more than it says.")


def _refuse_bombs(found: Sequence[Member], size: int) -> None:
    unpacked = sum(each.size for each in found)
    if unpacked > MOST_UNPACKED or unpacked > SMALL + MOST_RATIO * size:
        raise BadFile(
            "zip_bomb", f"The archive would grow to {unpacked:,} bytes, {unpacked // max(1, size):,} times its size."
        )
    end = 0
    for each in sorted(found, key=lambda each: each.at):
        if each.at < end or each.at + 30 + each.packed > size:
            raise BadFile("zip_bomb", "Members of the archive share the same bytes.")
        end = each.at + 30 + each.packed


def _is_passed_over(name: str) -> bool:
    """Folders, and what machines leave behind: nobody means them."""
    return (
        name.endswith("/") or name.startswith("__MACOSX/") or name.rpartition("/")[2] in ("", ".DS_Store", "Thumbs.db")
    )


# --- one image


def row_of(row_no: int, member: Member, fetch: Fetch) -> Row:
    shown = _shown(member.name)
    try:
        known = _known(member, fetch)
    except BadImage as error:
        return Row(
            row_no=row_no, input={"name": shown, "bytes": member.size, "problem": error.code}, problem=error.message
        )
    return Row(row_no=row_no, input={"name": shown, **known}, normalized={"title": title_of(shown)})


def announced(row_no: int, member: Member) -> Row:
    """As far as it is known without reading it."""
    shown = _shown(member.name)
    try:
        _refuse_announced(member)
    except BadImage as error:
        return Row(
            row_no=row_no, input={"name": shown, "bytes": member.size, "problem": error.code}, problem=error.message
        )
    return Row(row_no=row_no, input={"name": shown, "bytes": member.size}, normalized={"title": title_of(shown)})


def title_of(name: str) -> str:
    """What an image shows, by its name: `shop/acme-x200_front.jpg` is "acme x200 front"."""
    stem = re.split(r"[/\\]", name)[-1].rpartition(".")[0]
    return " ".join(re.sub(r"[\W_]+", " ", stem).split())[:500] or name[:500]


def _shown(name: str) -> str:
    return "".join(each if each.isprintable() else "\ufffd" for each in name)[:500]


def _refuse_announced(member: Member) -> None:
    parts = re.split(r"[/\\]", member.name)
    if (
        ".." in parts
        or member.name.startswith(("/", "\\"))
        or re.match(r"[A-Za-z]:", member.name)
        or "\x00" in member.name
    ):
        raise BadImage("bad_name", "The name leads out of the archive.")
    if member.is_locked:
        raise BadImage("locked", "The image is encrypted.")
    if member.method not in (STORED, DEFLATED):
        raise BadImage("bad_method", "The image is packed in a way that isn't known here.")
    if member.size == 0:
        raise BadImage("empty", "The image is empty.")
    if member.size > MOST_IMAGE_BYTES:
        raise BadImage("too_large", f"The image has {member.size:,} bytes; {MOST_IMAGE_BYTES:,} are the most.")
    if member.packed > 2 * member.size + SLACK:  # all of it would be read for next to nothing
        raise BadImage("damaged", "The image takes far more bytes packed than unpacked.")
    if member.size > SMALL and member.size > MOST_RATIO * max(1, member.packed):
        raise BadImage("zip_bomb", f"The image would grow {member.size // max(1, member.packed):,} times.")


def _known(member: Member, fetch: Fetch) -> dict[str, object]:
    _refuse_announced(member)
    digest, crc, size, head = hashlib.sha256(), 0, 0, b""
    for piece in content(member, fetch):
        size += len(piece)
        if size > member.size:
            raise BadImage("zip_bomb", "The image is larger than the archive says.")
        digest.update(piece)
        crc = zlib.crc32(piece, crc)
        if len(head) < HEAD:
            head += piece[: HEAD - len(head)]
    if size != member.size or (member.crc is not None and crc != member.crc):
        raise BadImage("damaged", "The image is damaged: its bytes aren't those that were packed.")
    kind, width, height = measure(head)
    if width * height > MOST_PIXELS:
        raise BadImage("pixel_bomb", f"The image has {width:,} by {height:,} pixels; {MOST_PIXELS:,} are the most.")
    return {"format": kind, "width": width, "height": height, "bytes": size, "sha256": digest.hexdigest()}


def content(member: Member, fetch: Fetch) -> Iterator[bytes]:
    at = member.at if member.is_whole else _content_at(member, fetch)
    left, inflate = member.packed, zlib.decompressobj(-15)
    while left > 0:
        packed = fetch(at, min(PIECE, left))
        if not packed:
            raise BadImage("damaged", "The archive ends within the image.")
        at, left = at + len(packed), left - len(packed)
        if member.method == STORED:
            yield packed
            continue
        try:
            # A piece that is full may have left some behind: in zlib itself, also when all that was packed is taken in.
            piece = inflate.decompress(packed, PIECE)
            yield piece
            while inflate.unconsumed_tail or len(piece) == PIECE:
                piece = inflate.decompress(inflate.unconsumed_tail, PIECE)
                yield piece
            if inflate.eof and (left or inflate.unused_data):  # zlib would keep it all, and copy it with each piece
                raise BadImage("damaged", "The image ends before its bytes do.")
        except zlib.error:
            raise BadImage("damaged", "The image can't be unpacked.") from None


def _content_at(member: Member, fetch: Fetch) -> int:
    header = fetch(member.at, 30)
    if header[:4] != b"PK\x03\x04" or len(header) < 30:
        raise BadImage("damaged", "The archive doesn't hold the image where it says.")
    named, extra = struct.unpack_from("<2H", header, 26)
    return int(member.at + 30 + named + extra)


# --- headers


def measure(head: bytes) -> tuple[str, int, int]:
    """Format, width and height, of an image's first bytes."""
    if head.startswith(ARCHIVES):
        raise BadImage("nested", "An archive within the archive isn't opened.")
    try:
        found = _png(head) or _jpeg(head) or _gif(head) or _webp(head) or _bmp(head)
    except (struct.error, IndexError):
        found = None
    if found is None or found[1] <= 0 or found[2] <= 0:
        raise BadImage("not_an_image", "This isn't an image that is known here (PNG, JPEG, GIF, WebP, BMP).")
    return found


def _png(head: bytes) -> tuple[str, int, int] | None:
    if head[:8] != b"\x89PNG\r\n\x1a\n" or head[12:16] != b"IHDR":
        return None
    return ("png", *struct.unpack_from(">2L", head, 16))


def _jpeg(head: bytes) -> tuple[str, int, int] | None:
    if head[:3] != b"\xff\xd8\xff":
        return None
    place = 2
    while True:
        if head[place] != 0xFF:
            return None
        marker = head[place + 1]
        if marker == 0xFF:  # filling
            place += 1
            continue
        if marker in range(0xC0, 0xD0) and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">2H", head, place + 5)
            return ("jpeg", width, height)
        if marker in (0xD9, 0xDA):  # the image begins, and nobody has said how large it is
            return None
        (length,) = struct.unpack_from(">H", head, place + 2)
        place += 2 + max(2, length) if marker not in range(0xD0, 0xD8) else 2


def _gif(head: bytes) -> tuple[str, int, int] | None:
    return ("gif", *struct.unpack_from("<2H", head, 6)) if head[:6] in (b"GIF87a", b"GIF89a") else None


def _webp(head: bytes) -> tuple[str, int, int] | None:
    if head[:4] != b"RIFF" or head[8:12] != b"WEBP":
        return None
    if head[12:16] == b"VP8X":
        width, height = (int.from_bytes(head[at : at + 3], "little") + 1 for at in (24, 27))
        return ("webp", width, height) if len(head) >= 30 else None
    if head[12:16] == b"VP8L" and head[20] == 0x2F:
        (bits,) = struct.unpack_from("<L", head, 21)
        return ("webp", (bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1)
    if head[12:16] == b"VP8 " and head[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<2H", head, 26)
        return ("webp", width & 0x3FFF, height & 0x3FFF)
    return None


def _bmp(head: bytes) -> tuple[str, int, int] | None:
    if head[:2] != b"BM" or struct.unpack_from("<L", head, 14)[0] < 40:
        return None
    width, height = struct.unpack_from("<2l", head, 18)
    return ("bmp", width, abs(height))
