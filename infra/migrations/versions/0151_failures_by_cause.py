"""Failures are found by their cause: an index on runs, built while they run."""

from __future__ import annotations

from infra.migrations.online import index_online

revision = "0151"
down_revision = "0150"
branch_labels = None
depends_on = None


def upgrade() -> None:
    index_online("run_cause", "on run (tenant_id, cause, created_at, id) where status = 'failed'")
