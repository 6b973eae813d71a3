"""Deliveries that were given up are found by whoever looks after a tenant."""

from __future__ import annotations

from infra.migrations.online import index_online

revision = "0207"
down_revision = "0206"
branch_labels = None
depends_on = None


def upgrade() -> None:
    index_online("hearing_given_up", "on hearing (tenant_id, given_up_at) where given_up_at is not null")
