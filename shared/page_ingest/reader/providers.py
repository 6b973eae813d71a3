"""Deployed sources as upstreams that tenants may have an account at. Who only lists them needs nothing that speaks HTTP."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

from shared.kernel.connections import Account, Provider
from shared.kernel.settings import Settings
from shared.page_ingest.reader.files import Files, folder_of, secret_model, settings_model
from shared.page_ingest.source.compile import Compiled

PREFIX = "BATON_SOURCES_"


class Place(Settings):
    standin: str | None = None


@lru_cache(maxsize=4)
def deployed(folder: Path) -> Files:
    return Files(folder)


def source_providers(env: Mapping[str, str] = os.environ) -> list[Provider]:
    return [provider(each, env) for each in deployed(folder_of(env)).all().values()]


def provider(compiled: Compiled, env: Mapping[str, str] = os.environ) -> Provider:
    def ask(account: Account, time_left_s: Callable[[], float]) -> str:
        from shared.page_ingest.reader.build import check  # noqa: PLC0415 - only who asks needs it

        return check(compiled, Place.from_env(env, PREFIX).standin, account, time_left_s)

    source = compiled.source
    return Provider(name=source.name, settings=settings_model(source), secret=secret_model(source), check=ask)
