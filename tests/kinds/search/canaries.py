"""The ways by which a secret could come into saved searches and their sheet."""

from __future__ import annotations

from typing import Any

from shared.search.build import build_ports
from shared.search.model import KIND
from shared.search.steps import search
from tests.support.canaries import CANARY, Canaries

BOARDS: dict[str, tuple[dict[str, str], str]] = {
    "infojobs": ({"client_id": "a"}, "client_secret"),
    "adzuna": ({"app_id": "a"}, "app_key"),
}


def pass_canaries(there: Canaries) -> list[str]:
    """Answers the connections whose secret is one."""
    ask, kept = there.ask, []
    for name in ("INFOJOBS", "ADZUNA", "GOOGLE_SHEETS"):
        there.environment.setenv(f"BATON_{name}_BASE_URL", there.echo_url)
    for client, (settings, secret) in BOARDS.items():
        body: dict[str, Any] = {"provider": client, "name": client, "settings": settings}
        kept.append(ask("POST", "/connections", {**body, "secret": {secret: f'{CANARY} k"y&'}})["id"])
        ask("POST", "/connections", {**body, "secret": {secret: [CANARY]}})
        for status in (200, 400, 401, 403, 429, 500):
            there.echo.status = status
            ask("POST", f"/connections/{kept[-1]}/check")
        asked = {"name": client, "client": client, "connection": client, "seed_from": "2026-01-01"}
        ask("POST", "/searches", {**asked, "params": {"password": CANARY}})
        ask("POST", "/searches", asked)

    # Through what a board says in a step; then the search says why it failed.
    there.echo.status = 400
    kind = search(build_ports(there.engine))
    run_id = there.start(KIND, {})
    for _ in range(6):
        there.take_step(kind, run_id)
    there.look_at(run_id)
    for each in ask("GET", "/searches")["searches"]:
        assert each["status"] == "ERROR", each
        ask("GET", f"/searches/{each['id']}/runs")

    # Through the key of a service account, which is none.
    account: dict[str, Any] = {"client_email": "a@b.example", "spreadsheet_id": "s"}
    body = {"provider": "google_sheets", "name": "sheet", "settings": account}
    kept.append(ask("POST", "/connections", {**body, "secret": {"private_key": f"-----BEGIN {CANARY}"}})["id"])
    ask("POST", "/connections", {**body, "settings": {**account, "private_key": CANARY}, "secret": {}})
    ask("POST", f"/connections/{kept[-1]}/check")
    added = ask("POST", "/search-sheets", {"connection": "sheet", "opens": "00:00", "closes": "00:00"})
    there.take_step(kind, added["run_id"])
    there.look_at(added["run_id"])
    ask("GET", "/search-sheets")
    return kept
