"""Where a step of a folder sync can be stopped by a test."""

from __future__ import annotations

from enum import StrEnum


class FolderPoint(StrEnum):
    LISTED = "folder.listed"
