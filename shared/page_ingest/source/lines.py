"""On which line of a TOML text each key stands. `tomllib` reads the values and forgets where they were.

For text that `tomllib` has accepted, so nothing is judged here: strings, comments and brackets are stepped over, and each
key is noted under its whole path. An element of an array has its index as the last part of its path.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator

Path = tuple[str | int, ...]
BARE_ENDS = frozenset(" \t\n.=]},#")
BLANK = frozenset(" \t\n")


def key_lines(text: str) -> dict[Path, int]:
    """The line, from 1, of every key and element. A table that only headers of its children name is on the first of these."""
    return _Scan(text.replace("\r\n", "\n")).whole()


def line_of(lines: dict[Path, int], path: Path) -> int:
    """The line of a key, or else of the nearest table around it: a key that is missing has no line of its own."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


class _Scan:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.line = text, 0, 1
        self.lines: dict[Path, int] = {}
        self.counts: dict[Path, int] = {}  # of each array of tables, how many headers it has had

    def whole(self) -> dict[Path, int]:
        table: Path = ()
        while self._skip():
            if self._peek() == "[":
                table = self._header()
            else:
                self._pair(table)
        return self.lines

    def _header(self) -> Path:
        twice = self.text.startswith("[[", self.at)
        self._step(2 if twice else 1)
        line = self.line
        path = self._within(self._key())
        self._step(2 if twice else 1)
        if twice:
            self._note((), path, line)
            self.counts[path] = self.counts.get(path, 0) + 1
            path = (*path, self.counts[path] - 1)
        self._note((), path, line)
        return path

    def _within(self, key: Path) -> Path:
        """The path of a header, through the latest element of each array of tables it names."""
        path: Path = ()
        for part in key[:-1]:
            path = (*path, part)
            if path in self.counts:
                path = (*path, self.counts[path] - 1)
        return (*path, key[-1])

    def _pair(self, table: Path) -> None:
        line = self.line
        key = self._key()
        self._note(table, (*table, *key), line)
        self._skip()
        self._step(1)  # the =
        self._value((*table, *key))

    def _note(self, above: Path, path: Path, line: int) -> None:
        for end in range(len(above) + 1, len(path) + 1):
            self.lines.setdefault(path[:end], line)

    def _key(self) -> Path:
        parts: list[str] = []
        while True:
            self._skip()
            parts.append(self._word())
            self._skip()
            if self._peek() != ".":
                return tuple(parts)
            self._step(1)

    def _word(self) -> str:
        start = self.at
        if self._peek() in "\"'":
            self._string()
            return str(tomllib.loads(f"x = {self.text[start : self.at]}")["x"])
        while self.at < len(self.text) and self.text[self.at] not in BARE_ENDS:
            self.at += 1
        return self.text[start : self.at]

    def _value(self, path: Path) -> None:
        self._skip()
        match self._peek():
            case "{":
                for _ in self._inside("}"):
                    self._pair(path)
            case "[":
                for index in self._inside("]"):
                    self._note(path, (*path, index), self.line)
                    self._value((*path, index))
            case '"' | "'":
                self._string()
            case _:
                while self.at < len(self.text) and self.text[self.at] not in "\n,]}#":
                    self.at += 1

    def _inside(self, end: str) -> Iterator[int]:
        """Stands at each element in turn, between the brackets."""
        self._step(1)
        index = 0
        while self._skip() and self._peek() != end:
            yield index
            index += 1
            if self._skip() and self._peek() == ",":
                self._step(1)
        self._step(1)

    def _string(self) -> None:
        quote = self.text[self.at]
        triple = self.text.startswith(quote * 3, self.at)
        mark = quote * 3 if triple else quote
        self._step(len(mark))
        while self.at < len(self.text) and not self.text.startswith(mark, self.at):
            self._step(2 if quote == '"' and self._peek() == "\\" else 1)
        self._step(len(mark))
        while triple and self._peek() == quote:  # up to two quotes may stand before the three that end it
            self._step(1)

    def _skip(self) -> bool:
        """Step over blanks and comments; whether anything is left."""
        while self.at < len(self.text):
            if self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif self.text[self.at] in BLANK:
                self._step(1)
            else:
                return True
        return False

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _step(self, characters: int) -> None:
        self.line += self.text.count("\n", self.at, self.at + characters)
        self.at += characters
