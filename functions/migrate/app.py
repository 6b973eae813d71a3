"""Lambda entry point: at every deployment, before any other function changes, the schema is brought up to date."""

from __future__ import annotations

from infra.migrations.at_deploy import bring_up_to_date
from shared.kernel.custom_resource import custom_resource_handler

handler = custom_resource_handler(bring_up_to_date)
