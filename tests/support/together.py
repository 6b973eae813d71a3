"""Guards that tests end turns together as a worker does: each is done by itself, then all are handed in in one flight."""

from __future__ import annotations

from collections.abc import Sequence

from shared.kernel.catalogue import Kind
from shared.kernel.model import Taking, Turn
from shared.kernel.ports import Ports
from shared.kernel.step import Looked, Outcome, commit_together, look


def do_together(turns: Sequence[Turn], kind: Kind, ports: Ports, taking: Taking | None = None) -> list[Outcome]:
    looked = [look(turn, kind, ports) for turn in turns]
    return commit_together([each for each in looked if isinstance(each, Looked)], ports, taking)
