"""The open work lanes of a tenant's row jobs are counted, up to a limit, with every claim: by an index of their own."""

from __future__ import annotations

from infra.migrations.online import index_online

revision = "0131"
down_revision = "0130"
branch_labels = None
depends_on = None


def upgrade() -> None:
    index_online("lane_work", "on lane (tenant_id, kind) where status = 'active' and key like 'work:%'")
