"""How closely calls follow a provider's limit that moves, on the virtual clock, and a picture of it.

`python -m tests.bench.paths.pace` writes the picture that docs/rows.md shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from tests.bench.figures import Figure
from tests.support.pace import STEPS, PaceWorld, plateaus, stepping

SHOWN = Path("docs/images/pace.svg")
OUT = Path(".local/pace.svg")
SEED, MODES = 0, ("plain", "retry_after", "slow")
LEFT, TOP, WIDTH, HEIGHT, LEGEND = 44, 14, 880, 260, 44
END_S, MOST = STEPS[-1][0], 80.0
COLOURS = {
    "grow": "#2e7d32", "recover": "#2e7d32", "paying": "#8d6e00", "throttled": "#c62828", "shut": "#c62828",
    "failing": "#c62828", "slow": "#6a1b9a",
}  # fmt: skip
OTHER = "#78909c"


def measure(*, seeds: int) -> list[Figure]:
    figures = []
    for mode in MODES:
        worlds = [stepping(seed, mode) for seed in range(SEED, SEED + seeds)]
        worst = min(min(plateaus(world)) for world in worlds)
        rejected = max(world.rejected_share() for world in worlds)
        figures += [
            Figure(name=f"calls on the worst plateau, {mode}: share of the limit", value=worst, unit="", against=1.0, ratio=worst, goal=">= 0.8"),
            Figure(name=f"rejected calls of the worst run, {mode}: share", value=max(rejected, 1e-6), unit="", against=0.05, ratio=rejected / 0.05, goal="<= 1"),
        ]  # fmt: skip
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(picture())
    return figures


def picture() -> str:
    world = stepping(SEED, "plain")
    world.run(END_S)
    seconds = range(0, END_S, 5)
    done = [(at, world.ok_between(at, at + 5) / 5) for at in seconds]
    limit = [(at, rate) for (begin, rate), (end, _) in pairwise(STEPS) for at in (begin, end)]
    parts = [
        *_axes(),
        f'<polyline points="{_points(limit)}" fill="none" stroke="#263238" stroke-width="2" stroke-dasharray="6 4"/>',
        f'<polyline points="{_points(done)}" fill="none" stroke="#90a4ae" stroke-width="1.5"/>',
        *_decisions(world),
        *_rejected(world),
        *_legend(),
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 10} {TOP + HEIGHT + LEGEND}" '
        'font-family="system-ui, sans-serif" font-size="12" role="img" '
        'aria-label="The rate follows a limit that steps from 20 to 5, 60 and 20 calls a second">'
    )
    return "\n".join([head, '<rect width="100%" height="100%" fill="#ffffff"/>', *parts, "</svg>", ""])


def _x(at: float) -> float:
    return LEFT + WIDTH * at / END_S


def _y(rate: float) -> float:
    return TOP + HEIGHT * (1 - min(rate, MOST) / MOST)


def _points(line: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{_x(at):.1f},{_y(rate):.1f}" for at, rate in line)


def _axes() -> list[str]:
    lines = []
    for rate in (0, 20, 40, 60, 80):
        y = _y(rate)
        lines += [
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + WIDTH}" y2="{y:.1f}" stroke="#eceff1"/>',
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#455a64">{rate}</text>',
        ]
    for at in range(0, END_S + 1, 60):
        where = f'x="{_x(at):.1f}" y="{TOP + HEIGHT + 16}"'
        lines.append(f'<text {where} text-anchor="middle" fill="#455a64">{at} s</text>')
    return lines


def _decisions(world: PaceWorld) -> list[str]:
    """The rate as steps, each in the colour of its reason."""
    lines, at_before, rate_before = [], 0.0, world.bounds.first
    for at, _, rate, reason, _ in world.pace.decisions:
        colour = COLOURS.get(reason, OTHER)
        points = _points([(at_before, rate_before), (at, rate_before), (at, rate)])
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        at_before, rate_before = at, rate
    return lines


def _rejected(world: PaceWorld) -> list[str]:
    bottom, ticks = TOP + HEIGHT, [at for at, status in world.provider.calls if status == 429]
    return [
        f'<line x1="{_x(at):.1f}" y1="{bottom}" x2="{_x(at):.1f}" y2="{bottom - 8}" stroke="#c62828"/>' for at in ticks
    ]


def _legend() -> list[str]:
    words = [
        ("#263238", "the provider's limit (calls a second)"), ("#90a4ae", "answered"), ("#2e7d32", "rate: grow, recover"),
        ("#8d6e00", "paying"), ("#c62828", "throttled, rejected calls"), (OTHER, "unused and others"),
    ]  # fmt: skip
    y, x, lines = TOP + HEIGHT + 36, float(LEFT), []
    for colour, word in words:
        lines.append(f'<rect x="{x:.0f}" y="{y - 9}" width="12" height="4" fill="{colour}"/>')
        lines.append(f'<text x="{x + 16:.0f}" y="{y - 3}" fill="#37474f">{word}</text>')
        x += 26 + 6.2 * len(word)
    return lines


if __name__ == "__main__":
    SHOWN.write_text(picture())
