"""How many workers a tenant has is asked whenever one comes: by an index, however many others have."""

from __future__ import annotations

from infra.migrations.online import index_online

revision = "0199"
down_revision = "0198"
branch_labels = None
depends_on = None


def upgrade() -> None:
    index_online("job_workers_of_tenant", "on job_workers (tenant_id)")
