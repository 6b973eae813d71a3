"""What folder sync needs from outside: the folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from shared.folder_sync.model import FolderCursor, Page
from shared.kernel.errors import Transient
from shared.kernel.model import Turn


class CursorReset(Transient):
    """The provider has forgotten the place."""


class Folder(Protocol):
    def first(self, path: str) -> Page: ...
    def following(self, cursor: str) -> Page: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """`folder` makes the provider's client for one step, bounded by the time that the step has left."""

    folder: Callable[[Turn, FolderCursor, Callable[[], float]], Folder]
