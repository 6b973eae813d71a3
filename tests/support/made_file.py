"""A CSV file of any size that is nowhere: its bytes follow from their place."""

from __future__ import annotations

from dataclasses import dataclass

HEADER = b"title,brand,sku,price,description\n"
WORDS = b"some words about the thing that is sold here "


@dataclass(frozen=True, slots=True)
class MadeFile:
    """`rows` rows of the same width, so that any part of it can be made alone."""

    rows: int
    width: int = 180

    @property
    def size(self) -> int:
        return len(HEADER) + self.rows * self.width

    def row(self, number: int) -> bytes:
        text = b"Product %08d of the catalogue,Acme,SKU-%08d,12.90," % (number, number)
        room = self.width - len(text) - 1
        return text + (WORDS * (room // len(WORDS) + 1))[:room] + b"\n"

    def read(self, key: str, version_id: str | None, offset: int, length: int) -> bytes:
        end = min(offset + length, self.size)
        if offset >= end:
            return b""
        first = max(0, offset - len(HEADER)) // self.width
        last = max(0, end - 1 - len(HEADER)) // self.width
        made = b"".join(self.row(number + 1) for number in range(first, last + 1))
        begin = len(HEADER) + first * self.width
        whole = made if offset >= len(HEADER) else HEADER + made
        start = offset - begin if offset >= len(HEADER) else offset
        return whole[start : start + end - offset]
