"""The ways by which a secret could come into remote queries."""

from __future__ import annotations

from typing import Any

from shared.query_run.build import build_ports
from shared.query_run.model import KIND
from shared.query_run.steps import query_run
from tests.support.canaries import CANARY, Canaries

STATUSES = (200, 400, 401, 403, 500, 429)


def pass_canaries(there: Canaries) -> list[str]:
    """Answers the connections whose secret is one."""
    ask = there.ask
    there.environment.setenv("BATON_MCE_BASE_URL", there.echo_url)
    settings = {"subdomain": "mc563885gzs27c5t9", "client_id": "c", "mid": "1"}
    body: dict[str, Any] = {"provider": "mce", "name": "marketing", "settings": settings}
    connection: str = ask("POST", "/connections", {**body, "secret": {"client_secret": f'{CANARY} s"t&d'}})["id"]
    ask("POST", "/connections", {**body, "secret": {"client_secret": [CANARY]}})
    ask("POST", "/connections", {**body, "settings": {**settings, "client_secret": CANARY}, "secret": {}})
    ask("GET", f"/connections/{connection}")

    # Through what an upstream says of them when it is asked for a token; a 429 closes its gate, so it comes last.
    kind = query_run(build_ports(there.engine))
    params = {"sql_text": "select a from b", "mid": "1", "connection": connection}
    for status in STATUSES:
        there.echo.status = status
        ask("POST", f"/connections/{connection}/check")
        run_id = there.start(KIND, params)
        for _ in range(2):  # admitted, then a token is asked for
            there.take_step(kind, run_id)
        there.look_at(run_id)

    # Through parameters that are refused.
    ask("POST", "/query-runs", {**params, "client_secret": CANARY})
    ask("POST", "/query-runs", {**params, "connection": f"client_secret={CANARY}"})
    return [connection]
