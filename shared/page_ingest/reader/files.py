"""The source files that are deployed: `sources/*.toml` beside the code, each compiled once in a process."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import AfterValidator, Field, SecretStr, create_model

from shared.kernel.connections import Strict
from shared.kernel.errors import Permanent
from shared.kernel.log import logger
from shared.page_ingest.reader.model import SourceParams
from shared.page_ingest.source.compile import Compiled, compile_source, compiled
from shared.page_ingest.source.model import Refused, Source
from shared.page_ingest.source.tighten import Widened, tightened

FOLDER = Path(__file__).resolve().parents[3] / "sources"
SEGMENT = r"[A-Za-z0-9_~-][A-Za-z0-9_.~-]{0,199}"


@dataclass(slots=True)
class Files:
    """Every deployed source by its name. A file that is not a source is left out, and named in the log."""

    folder: Path = FOLDER
    _known: dict[str, Compiled] | None = field(default=None)

    def all(self) -> Mapping[str, Compiled]:
        if self._known is None:
            self._known = {}
            for path in sorted(self.folder.glob("*.toml")):
                try:
                    found = compile_source(path.name, path.read_bytes())
                except Refused as refused:
                    logger.error(
                        "a source file cannot be used", extra={"file": path.name, "faults": str(refused)[:2_000]}
                    )
                    continue
                if found.source.name in self._known:
                    logger.error("two files are one source", extra={"file": path.name, "source": found.source.name})
                    continue
                taken = {each.table for known in self._known.values() for each in known.resources}
                if shared := sorted(taken & {each.table for each in found.resources}):  # a_b and c, a and b_c
                    logger.error("two sources have one table", extra={"file": path.name, "tables": shared})
                    continue
                self._known[found.source.name] = found
        return self._known

    def pinned(self, params: SourceParams) -> Compiled:
        """The file of a run as it was when the run began, with what its tenant has made tighter."""
        found = self.all().get(params.source)
        if found is None:
            raise Permanent(
                f"Source {params.source} is not deployed anymore. Deploy its file again, then retry.", "unknown_source"
            )
        if params.digest is not None and params.digest != found.digest:
            said = f"The file of {params.source} has changed since this run started. Start a new run."
            raise Permanent(said, "source_changed")
        if not params.tighten:
            return found
        try:
            return compiled(tightened(found.source, params.tighten), found.digest)
        except Widened as error:
            raise Permanent(f"tighten: {error}", "bad_params") from None


def folder_of(env: Mapping[str, str] = os.environ) -> Path:
    """BATON_SOURCES: another folder, for tests and for trying."""
    return Path(env["BATON_SOURCES"]) if env.get("BATON_SOURCES") else FOLDER


def scope_of(digest: str, settings: Mapping[str, Any]) -> str:
    """Which file with which settings. What was read under another scope is no watermark here."""
    return sha256(digest.encode() + orjson.dumps(dict(settings), option=orjson.OPT_SORT_KEYS)).hexdigest()[:24]


# --- what a connection to a source needs ------------------------------------------------------------------------------


def settings_model(source: Source) -> type[Strict]:
    fields: dict[str, Any] = {name: (_setting(shape), ...) for name, shape in source.settings.items()}
    return create_model("Settings", __base__=Strict, **fields)


def secret_model(source: Source) -> type[Strict]:
    fits = _in_a_header if source.auth.way in {"bearer", "header"} else _printable
    key = Annotated[SecretStr, Field(min_length=1, max_length=4096), AfterValidator(fits)]
    fields: dict[str, Any] = dict.fromkeys(source.auth.fields, (key, ...))
    return create_model("Secret", __base__=Strict, **fields)


def _printable(secret: SecretStr) -> SecretStr:
    """A line break in a key would be a header of its own."""
    if not secret.get_secret_value().isprintable():
        raise ValueError("must be one line of printable characters")
    return secret


def _in_a_header(secret: SecretStr) -> SecretStr:
    """What a text editor made of a quote or a dash is no part of any key, and no header could carry it."""
    try:
        _printable(secret).get_secret_value().encode("latin-1")
    except UnicodeEncodeError:
        raise ValueError("has characters that cannot be sent in a header") from None
    return secret


def _setting(shape: str) -> Any:
    if shape == "int":
        return Annotated[int, Field(ge=0, le=2**53)]
    patterns = {"label": r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "date": r"\d{4}-\d\d-\d\d"}
    pattern = patterns.get(shape) or "/".join([SEGMENT] * (shape.count("/") + 1))
    return Annotated[str, AfterValidator(_matching(pattern, shape)), Field(max_length=800)]


def _matching(pattern: str, shape: str) -> Any:
    known = re.compile(pattern, re.ASCII)

    def check(value: str) -> str:
        if not known.fullmatch(value):
            raise ValueError(f"must be a {shape}")
        return value

    return check
