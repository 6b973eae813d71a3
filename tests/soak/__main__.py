"""`python -m tests.soak [--days 120 --runs 120]`: prints how tables, indexes and costs went; ends non-zero if any grew."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from tests.soak.soak import MOST, Plan, soak_on
from tests.support.databases import server_admin


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--days", type=int, default=120, help="virtual days that are measured, after those of the warm-up"
    )
    parser.add_argument("--runs", type=int, default=120, help="runs a day, each of about eight steps")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began, plan = time.monotonic(), Plan(days=args.days, runs_a_day=args.runs)
    with server_admin() as admin, soak_on(admin, plan) as soak:
        figures = soak.run(lambda line: print(line, file=sys.stderr, flush=True))
    took = time.monotonic() - began
    print(
        f"{plan.days} virtual days of {plan.runs_a_day} runs in {took:.0f} s; medians of the first and the last tenth:"
    )
    print(f"{'':13s} {'':12s} {'first':>12s} {'last':>12s} {'ratio':>7s}")
    for figure in figures:
        mark = "" if figure.is_flat else f"  more than {MOST}"
        print(
            f"{figure.what:13s} {figure.unit:12s} {figure.first:12,.0f} {figure.last:12,.0f} {figure.ratio:7.2f}{mark}"
        )
    grown = [figure for figure in figures if not figure.is_flat]
    print(f"{len(figures) - len(grown)} of {len(figures)} figures are flat within {MOST}")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
