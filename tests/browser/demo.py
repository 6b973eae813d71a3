"""What `baton demo-data` makes, for a person of a test, and where it is."""

from __future__ import annotations

from typing import Any

from infra.client.http import Client
from infra.client.session import Fixed, Place, initiate
from infra.local.demo_data import fill_one
from tests.support.browser import PASSWORD, Person
from tests.support.scene import Scene

LABELS = {
    "ingestion": "catalogue up to $3,000", "refused": "with an old password", "retrying": "the upstream answers 503",
    "throttled": "throttled by the upstream", "rows": "products.csv", "canary": "new-products.csv", "query": "people of Madrid",
    "folder": "folder_sync", "cycle": "search",
}  # fmt: skip


def client_of(scene: Scene, person: Person) -> Client:
    address = scene.address
    place = Place(address.outputs["ApiUrl"], address.endpoint, address.outputs["UserPoolClientId"])
    token = initiate(place, "USER_PASSWORD_AUTH", {"USERNAME": person.email, "PASSWORD": PASSWORD})["AccessToken"]
    return Client(place.url, Fixed(token), str(person.tenant_id))


def demo(scene: Scene, person: Person) -> dict[str, Any]:
    """The ids that views name."""
    client = client_of(scene, person)
    fill_one(client, scene.address.upstreams, print)
    newest: dict[str, str] = {}
    for run in client.pages("/runs", "runs", 200):
        newest.setdefault(run["label"] or run["kind"], run["id"])
        newest.setdefault(run["kind"], run["id"])
    dead = client.get("/jobs", status="dead_letter")["jobs"][0]["id"]
    search = client.get("/searches")["searches"][0]["id"]
    return {
        **{f"demo_{name}": newest[label] for name, label in LABELS.items()},
        "dead": dead,
        "search": search,
        "shop": person.tenant_id,
    }
