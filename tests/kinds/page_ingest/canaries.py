"""The ways by which a secret could come into page ingestion."""

from __future__ import annotations

from typing import Any

from shared.kernel.tokens import Tokens
from shared.page_ingest.build import build_ports
from shared.page_ingest.model import KIND
from shared.page_ingest.ports import Ports as IngestPorts
from shared.page_ingest.ports import Upstream
from shared.page_ingest.steps import page_ingest
from shared.page_ingest.store import PageStore
from tests.support.canaries import CANARY, Canaries


def surprise(*_: object) -> Upstream:
    raise RuntimeError(f"cannot log in with password={CANARY}")


def pass_canaries(there: Canaries) -> list[str]:
    """Answers the connections whose secret is one."""
    ask = there.ask
    there.environment.setenv("BATON_NIVODA_BASE_URL", there.echo_url)
    # Through connections, also those that are refused.
    body: dict[str, Any] = {"provider": "nivoda", "name": "main", "settings": {"username": "u"}}
    secret = {"password": f'{CANARY} p"w&d'}
    connection: str = ask("POST", "/connections", {**body, "secret": secret}, **{"Idempotency-Key": "k"})["id"]
    ask("POST", "/connections", {**body, "secret": secret}, **{"Idempotency-Key": "k"})
    ask("POST", "/connections", {**body, "secret": {"password": [CANARY]}})
    ask("POST", "/connections", {**body, "secret": {"password": "p", "pin": CANARY}})
    ask("POST", "/connections", {**body, "secret": CANARY})
    ask("PUT", f"/connections/{connection}", {"name": "main", "settings": {"username": "u"}, "secret": secret})
    ask("GET", f"/connections/{connection}")
    ask("GET", "/connections")

    # Through a surprise, whose traceback is logged.
    params = {"source": "nivoda", "low": 1, "high": 9, "connection": connection}
    broken = IngestPorts(upstream=surprise, tokens=Tokens(there.engine), store=PageStore(there.engine))
    there.take_step(page_ingest(broken), there.start(KIND, params))

    # Through what an upstream says of them in steps; a 429 closes its gate, so it comes last.
    kind = page_ingest(build_ports(there.engine))
    for status in (200, 400, 401, 403, 500, 429):
        there.echo.status = status
        ask("POST", f"/connections/{connection}/check")
        run_id = there.start(KIND, params)
        there.take_step(kind, run_id)
        there.look_at(run_id)

    # Through parameters that are refused.
    ask("POST", "/runs", {"kind": KIND, "params": {**params, "password": CANARY}})
    ask("POST", "/runs", {"kind": KIND, "params": {**params, "connection": f"password={CANARY}"}})
    ask("POST", "/runs", {"kind": KIND, "password": CANARY})
    return [connection]
