"""The words of folder sync: what a run is asked for, what a lane remembers, entries of a folder. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field

from shared.kernel.model import Json

KIND = "folder_sync"
LANE = "pages"
PROVIDER = "dropbox"
BEHIND_S = 15.0  # until a run that waits for another looks whether the folder is free
MOST_RESETS = 3  # of one run; then something is wrong that reading again does not mend


class FolderParams(BaseModel):
    """`connection`: its name or id. `path`: of the folder, as `/photos`; empty: everything."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    connection: Annotated[str, Field(min_length=1, max_length=200)]
    path: Annotated[str, Field(max_length=1_000, pattern=r"^(/[^/\x00]+)*/?$")] = ""

    @property
    def folder(self) -> str:
        """As the provider spells it: in small letters, without a last slash."""
        return self.path.rstrip("/").lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderCursor:
    """`at`: where the provider goes on; None: from the beginning. `generation`: of what is being listed from there on.
    `behind`: another run reads the folder, and this one follows it."""

    connection: str
    path: str
    at: str | None = None
    generation: int = 1
    listing: bool = True
    resets: int = 0
    epoch: int = 1
    behind: bool = False

    @classmethod
    def read(cls, told: Json) -> Self:
        return cls(**told)

    def to_json(self) -> Json:
        return asdict(self)

    def but(self, **new: Any) -> Self:
        return replace(self, **new)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """`tag`: file, folder or deleted. What is deleted takes all below it along."""

    tag: str
    path: str
    id: str | None = None
    rev: str | None = None
    size: int | None = None
    hash: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """It may be empty although more follows."""

    entries: Sequence[Entry]
    cursor: str
    has_more: bool
