"""Where a step of a cycle can be stopped by a test."""

from __future__ import annotations

from enum import StrEnum


class SearchPoint(StrEnum):
    PICKED = "search.picked"
    FETCHED = "search.fetched"
    SHEET_READ = "sheet.read"
    SHEET_WRITTEN = "sheet.written"
