"""Guards that broken SQL is not taken for a broken rule."""

from __future__ import annotations

from shared.kernel import db

DENIED = "42501"  # row level security and missing grants are rules at work


def is_no_sql(error: BaseException) -> bool:
    """Whether Postgres did not understand the statement: syntax, names, types, parameters. No rule was tried then."""
    state = db.sqlstate(error) or ""
    return (state.startswith("42") and state != DENIED) or state.startswith("0A") or state == "08P01"
