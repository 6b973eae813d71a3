"""Guards `baton reset`: it forgets runs and rows, not what every deployment brings along."""

from __future__ import annotations

import io
import json
from argparse import Namespace
from pathlib import Path
from typing import Any, Self

import pytest

from infra.local import cli
from infra.local.deploy import STACK


def test_what_every_deployment_brings_is_there_after_a_reset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Else `baton smoke` says that the deployment has no such job."""
    done: list[str] = []

    class Runs:
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

        def sql(self, text: str, **_: Any) -> list[dict[str, str]]:
            done.append(text.split(maxsplit=1)[0])
            return [{"tablename": "run"}]

    class Aws:
        def invoke(self, *, FunctionName: str, **_: Any) -> dict[str, Any]:  # noqa: N803 - Lambda's name
            done.append(FunctionName)
            return {"Payload": io.BytesIO(json.dumps({}).encode())}

    monkeypatch.setattr(cli, "_up", lambda _: Namespace(client=lambda _: Aws()))
    monkeypatch.setattr(cli, "Runs", lambda _: Runs())
    monkeypatch.setattr(cli, "purge", lambda _: done.append("purge"))

    cli.reset(Namespace(home=tmp_path))

    assert done == ["select", "truncate", "purge", f"{STACK}-migrate"]
