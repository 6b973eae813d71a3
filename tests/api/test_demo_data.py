"""Guards that what `baton demo-data` asks of the API is what it takes. That its views are full: tests/browser/test_demo_data.py."""

from __future__ import annotations

import pytest

from infra.client.http import Client
from infra.client.session import Fixed, Place, initiate
from infra.local import demo_data
from infra.local.standins.nivoda import NivodaStandIn
from tests.support.door import Door, TenantHouse
from tests.support.gateway import CLIENT_ID, Gateway, served
from tests.support.vaults import mocked_vault

pytestmark = pytest.mark.full


def test_every_request_is_taken(door: Door, acme: TenantHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody works here, so nothing is waited for; and nothing is uploaded, for that goes to a bucket."""
    monkeypatch.setattr(demo_data, "PATIENCE_S", 0)
    monkeypatch.setattr(demo_data._Tenant, "_rows", lambda _: None)
    gateway = Gateway(door)
    gateway.people["sue@example.com"] = ("secret-pass", door.super_admin.subject or "")
    said: list[str] = []
    with mocked_vault(), NivodaStandIn(stones=10) as nivoda, served(gateway) as url:
        upstreams = {"nivoda": nivoda.start()}
        monkeypatch.setenv("BATON_NIVODA_BASE_URL", upstreams["nivoda"])
        login = {"USERNAME": "sue@example.com", "PASSWORD": "secret-pass"}
        token = initiate(Place(url, url, CLIENT_ID), "USER_PASSWORD_AUTH", login)["AccessToken"]
        client = Client(url, Fixed(token), str(acme.id))
        for _ in range(2):  # what is there already is left as it is
            demo_data.fill_one(client, upstreams, said.append)

        runs = client.get("/runs", limit=100)["runs"]
        assert {run["kind"] for run in runs} >= {"page_ingest", "query_run", "job", "folder_sync"}
        assert len(client.get("/searches")["searches"]) == 2
        assert len(client.get("/jobs/triggers")["triggers"]) == 3
    assert [line for line in said if "triggers" in line] == 2 * [
        "  triggers: nightly, by an event that came, switched off"
    ]
