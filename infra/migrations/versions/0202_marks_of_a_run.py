"""Watermarks of sources leave with the run that wrote them: found by it, however many there are."""

from __future__ import annotations

from infra.migrations.online import index_online

revision = "0202"
down_revision = "0201"
branch_labels = None
depends_on = None


def upgrade() -> None:
    index_online("source_mark_run", "on source_mark (run_id)")
