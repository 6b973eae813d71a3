"""Placeholder until the worker endpoints are there."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def work_for(options: argparse.Namespace, queues: Sequence[str]) -> int:
    raise NotImplementedError
