"""`baton demo-data`: two tenants with runs of all kinds in all states, so that every view can be seen full.

Everything is real: it goes through the API, the deployed queues and functions, and stand-ins that misbehave for a while. So nothing
here can be a state that the product never has, and what waits or retries goes on as it would.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import urllib3

from infra.client.http import Client, Refusal
from infra.client.session import Fixed, Place, connect, initiate
from infra.local.cloud import Address
from infra.local.people import LOCAL_TENANT, let_in, pool_user
from infra.local.standins import boards, dropbox, mce, nivoda, product_search
from infra.local.supervise import CloudError
from shared.kernel.auth import Role

Say = Callable[[str], None]
TENANT, PERSON = "acme", "ann@acme.test"
PATIENCE_S = 90.0
LOOK_EVERY_S = 0.5
ENDED = frozenset({"succeeded", "failed", "canceled"})
TAGS = {
    "type": "object", "additionalProperties": False,
    "properties": {"path_prefix": {"type": "string"}, "seconds": {"type": "number"}, "fail": {"type": "string", "enum": ["true", "false"]}},
}  # fmt: skip
# Of its own: one that somebody has made may take other arguments, or be switched off.
DEFINITIONS: Mapping[str, Mapping[str, Any]] = {
    "photo-tags": {"command": "recompute-trained-tags", "description": "Recompute the tags of a tenant's photos", "timeout_seconds": 60, "max_attempts": 2, "arg_schema": TAGS},
    "photo-models": {"command": "train-keyword-models", "description": "Train the models; on a worker of yours", "timeout_seconds": 7_200, "max_attempts": 3, "executor": "worker"},
    "photo-sync": {
        "command": "sync-dropbox", "description": "Read a Dropbox folder, then its changes", "timeout_seconds": 300,
        "arg_schema": {"type": "object", "additionalProperties": False, "required": ["provider_id"],
                       "properties": {"provider_id": {"type": "string"}, "path_prefix": {"type": "string"}}},
    },
}  # fmt: skip
ACCOUNTS: tuple[tuple[str, str, Mapping[str, str], Mapping[str, str]], ...] = (
    ("nivoda", "main", {"username": nivoda.USERNAME}, {"password": nivoda.PASSWORD}),
    ("nivoda", "second", {"username": nivoda.USERNAME}, {"password": nivoda.PASSWORD}),
    ("nivoda", "old", {"username": nivoda.USERNAME}, {"password": "changed-last-week"}),
    ("mce", "main", {"subdomain": "mc563885gzs27c5t9", "client_id": mce.CLIENT_ID, "mid": "7281698"}, {"client_secret": mce.CLIENT_SECRET}),
    ("infojobs", "main", {"client_id": boards.CLIENT_ID}, {"client_secret": boards.CLIENT_SECRET}),
    ("product_search", "search", {"account": "main"}, {"api_key": product_search.API_KEY}),
    ("dropbox", "photos", {"app_key": dropbox.APP_KEY}, {"app_secret": dropbox.APP_SECRET, "refresh_token": dropbox.REFRESH_TOKEN}),
)  # fmt: skip


def fill(home: Path, say: Say) -> None:
    """Both tenants, the first with everything."""
    address = Address.read(home)
    place = Place.of_cloud(home)
    if address is None or place is None:
        raise CloudError("no local cloud is running. Start one with `baton up`")
    yours = connect(home, None, None)
    say("tenant local: about a minute")
    fill_one(yours, address.upstreams, say)
    password = secrets.token_urlsafe(9) + "aA1-"
    subject = pool_user(address.client("cognito-idp"), address.outputs["UserPoolId"], PERSON, password)
    let_in(address.database_url, subject, Role.ADMIN, TENANT, PERSON)
    token = initiate(place, "USER_PASSWORD_AUTH", {"USERNAME": PERSON, "PASSWORD": password})["AccessToken"]
    say(f"tenant {TENANT}")
    _Tenant(Client(place.url, Fixed(token)), address.upstreams, say).a_little()
    say(f"\nlocal  you@baton.local, as before\n{TENANT}   {PERSON}  {password}")
    mine = next(each["id"] for each in yours.get("/me")["tenants"] if each["name"] == LOCAL_TENANT)
    say(f"The console has all of it: {place.url}/console/overview?tenant={mine}")
    say(
        "What is throttled waits for an hour, and what is retrying recovers in a few minutes. `baton reset` removes the runs."
    )


def fill_one(client: Client, upstreams: Mapping[str, str], say: Say) -> None:
    """Everything, for the tenant of a super admin; `upstreams` by name, so that they can be told to misbehave."""
    _Tenant(client, upstreams, say).everything()


class _Tenant:
    def __init__(self, client: Client, upstreams: Mapping[str, str], say: Say) -> None:
        self._client, self._upstreams, self._say = client, upstreams, say

    def everything(self) -> None:
        self._accounts(ACCOUNTS)
        self._definitions()
        self._done_and_failed()
        self._queries()
        self._rows()
        self._jobs()
        self._triggers()
        self._searches()
        self._in_trouble()
        self._by_hand()

    def a_little(self) -> None:
        """Enough to see that it is somebody else's."""
        self._accounts(ACCOUNTS[:1])
        run = self._ingest("weekly catalogue", "main", 200, 3_000)
        self._job("photo-tags", {"path_prefix": "/acme"})
        self._until([run], ENDED)
        self._did("an ingestion and a job")

    # --- what a tenant has

    def _accounts(self, accounts: Iterable[tuple[str, str, Mapping[str, str], Mapping[str, str]]]) -> None:
        known = {(row["provider"], row["name"]) for row in self._client.pages("/connections", "connections", 200)}
        for provider, name, settings, secret in accounts:
            if (provider, name) in known:
                continue
            body = {"provider": provider, "name": name, "settings": settings, "secret": secret}
            made = self._client.post("/connections", body)
            self._client.post(f"/connections/{made['id']}/check")
        self._did("connections, one of them with an old password")

    def _definitions(self) -> None:
        known = {row["key"] for row in self._client.get("/admin/jobs/definitions")["definitions"]}
        for key, body in DEFINITIONS.items():
            if key not in known:
                self._client.post("/admin/jobs/definitions", {"key": key, **body})

    # --- runs that end

    def _done_and_failed(self) -> None:
        first = self._ingest("catalogue up to $3,000", "main", 200, 3_000)
        refused = self._ingest("with an old password", "old", 200, 3_000)
        folder = self._start("folder_sync", {"connection": "photos", "path": "/photos"}, "photos")
        self._until([first, refused, folder], ENDED)
        again = self._ingest("catalogue up to $3,000", "main", 200, 3_000)
        self._until([again], ENDED)
        self._did("ingestions that succeeded and failed, a folder sync")

    def _queries(self) -> None:
        ready = self._query("people of Madrid", "select id, name from people /* seconds=1; rows=40 */")
        broken = self._query("a typo", "selekt id from people")
        self._query("a slow one", "select id, name from people /* seconds=3000; rows=900 */")
        self._until([ready, broken], ENDED)
        self._did("queries: ready, rejected, running")

    def _rows(self) -> None:
        titles = ["missing lamp", "late chair", "vague thing"]
        rows = [f"{titles[n % 3] if n % 7 == 6 else 'Product'} {n},brand {n % 5},sku-{n}" for n in range(60)]
        content = ("title,brand,sku\n" + "\n".join(rows) + "\n").encode()
        whole = self._upload("products.csv", content, {"connection": "search"})
        self._upload("new-products.csv", content, {"connection": "search", "canary": 5})
        self._until([whole], {"waiting", *ENDED})
        self._did("row jobs: one with rows to try again, one waiting after its first five rows")

    def _jobs(self) -> None:
        done = self._job("photo-tags", {"path_prefix": "/photos"})
        dead = self._job("photo-tags", {"path_prefix": "/broken", "fail": "true"})
        canceled = self._job("photo-tags", {}, scheduled_for=_soon(hours=2))
        self._client.post(f"/jobs/{canceled}/cancel", {"reason": "not needed any more"})
        self._job("photo-tags", {"path_prefix": "/tomorrow"}, scheduled_for=_soon(days=1))
        self._job("photo-models", {})  # no worker runs
        self._until([done, dead], ENDED)
        self._did("jobs: succeeded, dead letter, canceled, scheduled, waiting for a worker")

    def _triggers(self) -> None:
        nightly = {
            "label": "Nightly tags",
            "trigger_type": "schedule",
            "cron_expr": "0 2 * * *",
            "timezone": "Europe/Madrid",
        }
        often = {
            "label": "Every five minutes",
            "trigger_type": "schedule",
            "cron_expr": "*/5 * * * *",
            "timezone": "UTC",
        }
        changed = {
            "label": "Resync on folder change", "trigger_type": "event", "event_name": "provider.folder.updated",
            "payload_template": {"provider_id": "photos", "path_prefix": "{{event.folder_path}}"},
        }  # fmt: skip
        known = {row["label"] for row in self._client.pages("/jobs/triggers", "triggers", 200)}
        for body, key in (
            (nightly, "photo-tags"),
            (often, "photo-tags"),
            (changed, "photo-sync"),
        ):
            if body["label"] not in known:
                made = self._client.post("/jobs/triggers", {**body, "definition_key": key})
                if body is often:
                    self._client.patch(f"/jobs/triggers/{made['id']}", {"is_enabled": False})
        event = {"name": "provider.folder.updated", "payload": {"folder_path": "/photos"}}
        self._client.post("/events", event)
        self._did("triggers: nightly, by an event that came, switched off")

    def _searches(self) -> None:
        known = {row["name"] for row in self._client.pages("/searches", "searches", 200)}
        since = _soon(days=-21)[:10]
        for name, params in (
            ("python in barcelona", {"q": "python", "province": ["barcelona"]}),
            ("java in madrid", {"q": "java"}),
        ):
            if name not in known:
                body = {"name": name, "client": "infojobs", "connection": "main", "params": params, "seed_from": since}
                self._client.post("/searches", body)
        self._did("saved searches with three weeks of history")

    # --- runs that go on

    def _in_trouble(self) -> None:
        """The upstream misbehaves just long enough for these runs to meet it."""
        self._control("nivoda", {"misbehave": {"fault": "throttle", "retry_after": "3600", "on": ["count", "page"]}})
        throttled = self._ingest("throttled by the upstream", "second", 200, 20_000)
        self._until([throttled], {"throttled", *ENDED})
        self._control("nivoda", {"behave": None})
        self._control(
            "nivoda", {"misbehave": {"fault": "server_error", "status": 503, "on": ["page"], "after": 2, "budget": 150}}
        )
        retrying = self._ingest("the upstream answers 503", "main", 200, 20_000)
        self._until([retrying], {"retrying", *ENDED})
        self._did("ingestions: throttled, retrying")

    def _by_hand(self) -> None:
        paused = self._ingest("paused before the release", "main", 200, 9_000)
        self._client.post(f"/runs/{paused}/pause", {"reason": "the catalogue is being moved"})
        canceled = self._ingest("wrong price range", "main", 200, 9_000)
        self._client.post(f"/runs/{canceled}/cancel", {"reason": "wrong range"})
        self._until([canceled], ENDED)
        self._did("ingestions: paused, canceled")

    # --- how

    def _ingest(self, label: str, connection: str, low: int, high: int) -> str:
        body = {"source": "nivoda", "low": low, "high": high, "partition_records": 500}
        return str(self._client.post("/page-ingestions", {**body, "connection": connection, "label": label})["id"])

    def _start(self, kind: str, params: Mapping[str, Any], label: str) -> str:
        return str(self._client.post("/runs", {"kind": kind, "params": params, "label": label})["id"])

    def _query(self, name: str, sql: str) -> str:
        body = {"sql_text": sql, "mid": "7281698", "connection": "main", "snippet_name": name}
        return str(self._client.post("/query-runs", body)["id"])

    def _job(self, key: str, payload: Mapping[str, Any], **more: Any) -> str:
        return str(self._client.post("/jobs", {"definition_key": key, "payload": payload, **more})["id"])

    def _upload(self, name: str, content: bytes, chosen: Mapping[str, Any]) -> str:
        asked = {"name": name, "size": len(content), "hold": True, **chosen}
        place = self._client.post("/row-jobs/uploads", asked)
        form = [*place["fields"].items(), ("file", (name, content))]
        urllib3.request("POST", place["url"], fields=form, retries=False, timeout=10)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._client.get(f"/row-jobs/uploads/{place['file_id']}/preview")
                break
            except Refusal as error:
                if error.problem.get("code") != "not_uploaded" or time.monotonic() > deadline:
                    raise
            time.sleep(LOOK_EVERY_S)
        return str(self._client.post("/row-jobs", {"file_id": place["file_id"], **chosen})["id"])

    def _control(self, upstream: str, orders: Mapping[str, Any]) -> None:
        urllib3.request("POST", f"{self._upstreams[upstream]}/_control", json=orders, retries=False, timeout=5)

    def _until(self, runs: list[str], states: Iterable[str]) -> None:
        """Wait for runs, but not forever: a state that never comes is said, and the rest goes on."""
        wanted, deadline = set(states), time.monotonic() + PATIENCE_S
        for run in runs:
            while (state := self._client.get(f"/runs/{run}")["state"]) not in wanted:
                if time.monotonic() > deadline:
                    self._say(f"  {run} is still {state}")
                    break
                time.sleep(LOOK_EVERY_S)

    def _did(self, what: str) -> None:
        self._say(f"  {what}")


def _soon(**offset: int) -> str:
    return (datetime.now(UTC) + timedelta(**offset)).isoformat()  # noqa: TID251 - a time for people
