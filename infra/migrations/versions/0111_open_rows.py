"""What is open of a tenant: each status and type is a stretch of its own in the order of the list, so that several are merged and
none is searched for."""

from __future__ import annotations

from infra.migrations.online import index_online

revision = "0111"
down_revision = "0110"
branch_labels = None
depends_on = None


def upgrade() -> None:
    on = "(tenant_id, job_type, status, updated_at, run_id, row_no) where status in ('PENDING', 'PROCESSING')"
    index_online("job_items_open_of_tenant", f"on job_items {on}")
