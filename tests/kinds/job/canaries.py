"""The ways by which a secret could come into jobs and their triggers."""

from __future__ import annotations

from typing import Any

from tests.kinds.job.cells import KEY, defined
from tests.support.canaries import CANARY, Canaries

EVENT = "canary.came"


def pass_canaries(there: Canaries) -> list[str]:
    """A job's payload is refused where it has a secret's name; what is refused is repeated nowhere."""
    ask = there.ask
    defined(there.door, there.tenant)
    ask("POST", "/jobs", {"definition_key": KEY, "payload": {"password": CANARY}})
    ask("POST", "/jobs", {"definition_key": KEY, "password": CANARY})
    ask("POST", "/jobs", {"definition_key": f"token={CANARY}"})

    trigger: dict[str, Any] = {"label": "canary", "trigger_type": "event", "event_name": EVENT, "definition_key": KEY}
    made = ask("POST", "/jobs/triggers", {**trigger, "payload_template": {}})
    ask("POST", "/jobs/triggers", {**trigger, "password": CANARY})
    ask("POST", "/jobs/triggers", {**trigger, "payload_template": {"password": CANARY}})
    ask("POST", "/jobs/triggers", {**trigger, "trigger_type": "schedule", "cron_expr": f"password={CANARY}"})
    ask("POST", f"/jobs/triggers/{made['id']}/test", {"event": {"password": CANARY}})
    ask("POST", "/events", {"id": "e", "name": f"token={CANARY}", "payload": {}})
    ask("POST", "/events", {"id": "e", "name": EVENT, "secret": CANARY})
    ask("GET", f"/jobs/triggers/{made['id']}/firings")
    return []
