"""A measured figure, the table people read and the file machines read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """`value` stands against another value in the same unit; `ratio` is the median of the rounds' own ratios."""

    name: str
    value: float
    unit: str
    against: float | None = None
    ratio: float | None = None
    goal: str = ""
    spread: tuple[float, float] | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "against": self.against,
            "ratio": self.ratio,
        }


def write(figures: Sequence[Figure], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(orjson.dumps([figure.to_json() for figure in figures], option=orjson.OPT_INDENT_2) + b"\n")


def table(figures: Sequence[Figure]) -> str:
    """One line per figure; `quartiles` are those of the ratio over the rounds."""
    head = ("", "value", "against", "unit", "ratio", "quartiles", "goal")
    lines = [head, *(_cells(figure) for figure in figures)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join("  ".join(_aligned(line, widths)).rstrip() for line in lines)


def _cells(figure: Figure) -> tuple[str, ...]:
    return (
        figure.name,
        _number(figure.value),
        _number(figure.against),
        figure.unit,
        "" if figure.ratio is None else f"{figure.ratio:.2f}",
        "" if figure.spread is None else f"{figure.spread[0]:.2f}-{figure.spread[1]:.2f}",
        figure.goal,
    )


def _aligned(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    numbers = {1, 2, 4, 5}
    return [
        cell.rjust(width) if n in numbers else cell.ljust(width)
        for n, (cell, width) in enumerate(zip(line, widths, strict=True))
    ]


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
