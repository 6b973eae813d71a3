"""A terminal of a given width around a command that runs in this process: a real pty, as a person has."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import sys
import termios
import threading
from collections.abc import Callable

import pytest

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Terminal:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, columns: int = 80, lines: int = 40) -> None:
        self._monkeypatch, self._size = monkeypatch, (lines, columns)

    def __call__(self, do: Callable[[], object]) -> str:
        """What a person sees, without colours."""
        main, side = os.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", *self._size, 0, 0))
        seen: list[bytes] = []
        reader = threading.Thread(target=_read, args=(main, seen))
        reader.start()
        try:
            with self._monkeypatch.context() as patch, os.fdopen(side, "w") as screen:
                patch.setattr(sys, "stdout", screen)
                do()
        finally:
            reader.join()
            os.close(main)
        return ANSI.sub("", b"".join(seen).decode().replace("\r\n", "\n"))


def _read(main: int, seen: list[bytes]) -> None:
    while True:
        try:
            part = os.read(main, 65_536)
        except OSError:  # how Linux says that the other side is closed
            return
        if not part:
            return
        seen.append(part)
