"""Guards what images tell of themselves, and what every hostile file becomes: each has its code, and little memory."""

from __future__ import annotations

import hashlib
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from random import Random

import pytest

from shared.row_job import images
from shared.row_job.table import BadFile, Row
from tests.support.pictures import jpeg, packed, png, segment

WEBP = {
    "VP8X": b"RIFF\0\0\0\0WEBPVP8X"
    + struct.pack("<L", 10)
    + b"\0\0\0\0"
    + (639).to_bytes(3, "little")
    + (479).to_bytes(3, "little"),
    "VP8L": b"RIFF\0\0\0\0WEBPVP8L" + struct.pack("<L", 5) + b"\x2f" + struct.pack("<L", 639 | 479 << 14),
    "VP8 ": b"RIFF\0\0\0\0WEBPVP8 " + struct.pack("<L", 10) + b"\0\0\0\x9d\x01\x2a" + struct.pack("<2H", 640, 480),
}


def fetch_of(content: bytes) -> images.Fetch:
    return lambda offset, length: content[offset : offset + length]


def rows(content: bytes, name: str = "picture.png") -> list[Row]:
    fetch = fetch_of(content)
    return [images.row_of(n, each, fetch) for n, each in enumerate(images.members(fetch, len(content), name), 1)]


def patched(content: bytes, change: Callable[[bytearray, int], None]) -> bytes:
    """With something else in the first entry of the directory."""
    data = bytearray(content)
    change(data, content.index(b"PK\x01\x02"))
    return bytes(data)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (png(640, 480), ("png", 640, 480)),
        (jpeg(640, 480), ("jpeg", 640, 480)),
        (jpeg(640, 480, segment(0xE1, 60_000) + segment(0xE2, 60_000) + b"\xff"), ("jpeg", 640, 480)),
        (b"GIF89a" + struct.pack("<2H", 640, 480), ("gif", 640, 480)),
        (b"BM" + b"\0" * 12 + struct.pack("<L2l", 40, 640, -480), ("bmp", 640, 480)),
        *((content, ("webp", 640, 480)) for content in WEBP.values()),
    ],
)
def test_the_size_of_an_image_is_in_its_header(content: bytes, told: tuple[str, int, int]) -> None:
    assert images.measure(content) == told


def test_an_image_that_unpacks_to_a_little_more_than_some_pieces_is_whole() -> None:
    """zlib takes in all that was packed and still has some to give."""
    header = b"BM" + b"\0" * 12 + struct.pack("<L2l", 40, 640, -480)
    held = [header + b"\xff" * (2 * images.PIECE - len(header) + beyond) for beyond in range(0, 66, 3)]

    found = [row for content in held for row in rows(packed(("a.bmp", content)))]

    assert [row.problem for row in found] == [None] * len(held)
    assert [row.input["sha256"] for row in found] == [hashlib.sha256(content).hexdigest() for content in held]


def test_an_image_is_one_row_with_what_is_known_of_it() -> None:
    content = png(640, 480, b"x" * 1_000)

    (row,) = rows(content, "shop/acme-x200_front.png")

    assert row.normalized == {"title": "acme x200 front"}
    assert row.input == {
        "name": "shop/acme-x200_front.png", "format": "png", "width": 640, "height": 480, "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }  # fmt: skip


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_archive_is_a_row_for_each_of_its_images_in_their_order(method: int) -> None:
    held = [
        ("b.png", png(3, 4)),
        ("folder/", b""),
        ("folder/a.jpg", jpeg(5, 6)),
        ("__MACOSX/._b.png", b"x"),
        (".DS_Store", b"x"),
    ]

    found = rows(packed(*held, method=method))

    assert [(row.row_no, row.input["name"], row.input["width"]) for row in found] == [
        (1, "b.png", 3),
        (2, "folder/a.jpg", 5),
    ]
    assert found[0].input["sha256"] == hashlib.sha256(png(3, 4)).hexdigest()


def lying_size(data: bytearray, at: int) -> None:
    struct.pack_into("<L", data, at + 24, 100)


def many_entries(data: bytearray, at: int) -> None:
    struct.pack_into("<2H", data, data.rindex(b"PK\x05\x06") + 8, 65_000, 65_000)


def overlapping(data: bytearray, at: int) -> None:
    second = data.index(b"PK\x01\x02", at + 4)
    struct.pack_into("<L", data, second + 42, 0)


def encrypted(data: bytearray, at: int) -> None:
    struct.pack_into("<H", data, at + 8, 1)


def another_method(data: bytearray, at: int) -> None:
    struct.pack_into("<H", data, at + 10, 14)


def another_crc(data: bytearray, at: int) -> None:
    struct.pack_into("<L", data, at + 16, 1)


def far_away(data: bytearray, at: int) -> None:
    struct.pack_into("<L", data, data.rindex(b"PK\x05\x06") + 16, 1 << 30)


ZEROS = png(1, 1, b"\0" * 3_000_000)
# Of a whole file: the job fails.
FILES = {
    "an empty file": (b"", "empty_file"),
    "an archive that would grow a thousand times": (packed(("a.png", b"\0" * 40_000_000)), "zip_bomb"),
    "an archive whose members are the same bytes": (
        patched(packed(("a.png", png(1, 1)), ("b.png", png(1, 1))), overlapping),
        "zip_bomb",
    ),
    "an archive of 65,000 files": (patched(packed(("a.png", png(1, 1))), many_entries), "too_many_images"),
    "half an archive": (packed(("a.png", png(1, 1, b"x" * 1000)))[:-30], "bad_zip"),
    "a directory that is elsewhere": (patched(packed(("a.png", png(1, 1))), far_away), "bad_zip"),
    "an archive without images": (packed(("folder/", b"")), "no_rows"),
}
# Of one image: its row is skipped, and the others are read.
MEMBERS = {
    "a name that leads out": (packed(("../../etc/passwd.png", png(1, 1))), "bad_name"),
    "a name that leads out on another machine": (packed(("..\\x.png", png(1, 1))), "bad_name"),
    "a name from the root": (packed(("/etc/x.png", png(1, 1))), "bad_name"),
    "a name with a drive": (packed(("C:x.png", png(1, 1))), "bad_name"),
    "a pixel bomb": (packed(("a.png", png(60_000, 60_000))), "pixel_bomb"),
    "a pixel bomb of its own": (jpeg(65_535, 65_535), "pixel_bomb"),
    "an archive in the archive": (packed(("a.zip", packed(("b.png", png(1, 1))))), "nested"),
    "an archive in the archive under another name": (packed(("a.png", packed(("b.png", png(1, 1))))), "nested"),
    "an image that is larger than it says": (patched(packed(("a.png", png(1, 1, b"x" * 500))), lying_size), "zip_bomb"),
    "one image that would grow a thousand times": (packed(("a.png", ZEROS), ("b.bin", Random(1).randbytes(50_000)), ("c.png", png(2, 2))), "zip_bomb"),
    "an encrypted image": (patched(packed(("a.png", png(1, 1))), encrypted), "locked"),
    "an unknown way to pack": (patched(packed(("a.png", png(1, 1))), another_method), "bad_method"),
    "bytes that are not those that were packed": (patched(packed(("a.png", png(1, 1))), another_crc), "damaged"),
    "text": (b"title,brand\nTV,Acme\n", "not_an_image"),
    "an image without a size": (b"\xff\xd8" + segment(0xE0, 10) + b"\xff\xda", "not_an_image"),
    "an image of no width": (png(0, 10), "not_an_image"),
    "the beginning of an image": (png(5, 5)[:18], "not_an_image"),
    "an empty image": (packed(("a.png", b"")), "empty"),
}  # fmt: skip


@pytest.mark.parametrize("what", FILES)
def test_a_hostile_file_fails_its_job_with_its_code(what: str) -> None:
    content, code = FILES[what]

    with pytest.raises(BadFile) as told:
        rows(content)

    assert told.value.code == code


@pytest.mark.parametrize(
    ("size", "before", "extra"), [(4_000_000, b"", 3_000_000), (10, b"\0\0\0\xff\xff" * 600_000, 0)]
)
def test_bytes_that_say_nothing_are_neither_read_nor_kept(size: int, before: bytes, extra: int) -> None:
    """As many as the archive likes, up to all of it: behind the end of an image, where zlib keeps and copies them, or as
    empty blocks before it."""
    content = png(2, 2, Random(3).randbytes(size))
    data = before + zlib.compress(content, wbits=-15)
    whole = packed(("a.png", b""))[:30] + b"a.png" + data
    asked = [0]

    def fetch(offset: int, length: int) -> bytes:
        asked[0] += length
        return whole[offset : offset + length].ljust(length, b"\0")

    member = images.Member(name="a.png", size=len(content), packed=len(data) + extra, at=0, method=images.DEFLATED)
    row = images.row_of(1, member, fetch)

    assert row.input.get("problem") == "damaged"
    assert asked[0] < 2 * (size + images.PIECE)


@pytest.mark.parametrize("what", MEMBERS)
def test_a_hostile_image_is_skipped_with_its_code(what: str) -> None:
    content, code = MEMBERS[what]

    first, *rest = rows(content)

    assert (first.input["problem"], first.normalized) == (code, None)
    assert first.problem
    assert all(row.normalized for row in rest if row.input["name"].endswith(".png")), "the others are read"


def test_ten_thousand_images_are_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MOST_IMAGES", 3)

    assert len(rows(packed(*((f"{n}.png", png(1, 1)) for n in range(3))))) == 3
    with pytest.raises(BadFile, match="more than 3 files"):
        rows(packed(*((f"{n}.png", png(1, 1)) for n in range(4))))


HUNGRY = """
import zlib
from shared.row_job import images

def peak_mb():  # of this program alone; what `resource` tells begins with that of whoever started it
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024

before = peak_mb()
deflate = zlib.compressobj(wbits=-15)
content = b"PK\\x03\\x04" + b"\\0" * 26 + b"".join(deflate.compress(b"\\0" * 1_000_000) for _ in range(200)) + deflate.flush()
images.MOST_RATIO = 10**9
member = images.Member(name="a.png", size=60_000_000, packed=len(content) - 30, at=0, method=8)
row = images.row_of(1, member, lambda offset, length: content[offset : offset + length])
assert row.input["problem"] == "zip_bomb", row
print(peak_mb() - before, peak_mb())
"""


@pytest.mark.full
def test_an_image_that_keeps_growing_is_noticed_in_little_memory() -> None:
    told = subprocess.run([sys.executable, "-c", HUNGRY], capture_output=True, text=True, check=True, timeout=60)

    grown, in_all = map(int, told.stdout.split())
    assert grown < 40
    assert in_all < 256
