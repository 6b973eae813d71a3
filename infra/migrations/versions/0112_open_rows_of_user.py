"""What is open of a person, as `0111` has it of a tenant."""

from __future__ import annotations

from infra.migrations.online import index_online

revision = "0112"
down_revision = "0111"
branch_labels = None
depends_on = None


def upgrade() -> None:
    on = "(tenant_id, user_id, job_type, status, updated_at, run_id, row_no) where status in ('PENDING', 'PROCESSING')"
    index_online("job_items_open_of_user", f"on job_items {on}")
