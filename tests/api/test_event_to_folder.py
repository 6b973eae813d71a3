"""Guards the whole way of an event: accepted at the door, it starts a job, and the job's run reads the folder to its end."""

from __future__ import annotations

from uuid import UUID, uuid5

from functions.catalogue import all_commands
from infra.local.standins.dropbox import DropboxStandIn, with_photos
from shared.job_queue.build import RunStarter, build_ports
from shared.job_queue.steps import job_kind
from shared.kernel.catalogue import Catalogue
from shared.kernel.clock import new_id
from shared.kernel.handle import handle_baton
from shared.kernel.offers import PgOffers
from shared.kernel.ports import Ports
from shared.kernel.queue_memory import QueueSettings
from shared.kernel.settings import Relay
from shared.kernel.step import do_turn
from shared.kernel.store import PgStore
from tests.api.test_triggers_docs import SYNC, define
from tests.kinds.folder_sync.subject import CONNECT, build
from tests.support.door import Door, TenantHouse
from tests.support.house import new_queue
from tests.support.jobs import FakeRunner

FOLDERS, QUEUE = "folders.fifo", "folder-events"
TRIGGER = {
    "label": "a folder has changed", "trigger_type": "event", "event_name": "provider.folder.updated",
    "payload_template": {"provider_id": "{{event.provider_id}}"}, "dedupe_window_seconds": 0,
}  # fmt: skip


class Background:
    """What runs behind the door: a worker that takes jobs, and the function that reads folders."""

    def __init__(self, door: Door, dropbox: str) -> None:
        engine = door._worker
        self.queue = new_queue({FOLDERS: QueueSettings(fifo=True, visibility_s=180)})
        relay = Relay(step_timeout_s=60, lease_s=70, fifo_queue=FOLDERS)
        self.ports = Ports(store=PgStore(engine), queue=self.queue, relay=relay, offers=PgOffers(engine))
        self.folders = build(engine, dropbox, door.url)
        starter = RunStarter(engine, Catalogue(self.folders), self.queue, relay)
        self.jobs = job_kind(build_ports(engine, {}, runner=FakeRunner(), worker_id="w", commands=all_commands(), starter=starter))  # fmt: skip

    def work_off(self) -> None:
        assert self.ports.offers is not None
        for turn in self.ports.offers.take(QUEUE, 10, new_id(), 60, "w"):
            do_turn(turn, self.jobs, self.ports)
        while messages := self.queue.receive(FOLDERS):
            for message in messages:
                assert handle_baton(self.ports, self.folders, message)
                self.queue.delete(FOLDERS, message.receipt)


def test_an_event_that_is_accepted_ends_as_a_folder_that_is_read(door: Door, acme: TenantHouse) -> None:
    account = uuid5(acme.id, "box")
    key = f"sync-{acme.id}"
    define(door, acme, {**SYNC, "key": key, "command": "sync-dropbox", "queue": QUEUE, "executor": "worker"})
    with door.owner.connect() as connection:
        connection.execute(CONNECT, {"id": account, "t": acme.id})
    made = door.call(acme.admin, "POST", "/jobs/triggers", {**TRIGGER, "definition_key": key})
    assert made.status == 201, made

    with DropboxStandIn(page=50) as dropbox:
        with_photos(dropbox, 120)
        background = Background(door, dropbox.start())
        for again in (False, True):  # whoever tells it twice gets one sync
            event = {"id": "change-1", "name": "provider.folder.updated", "payload": {"provider_id": str(account)}}
            told = door.call(acme.member, "POST", "/events", event)
            assert (told.status, told.json()["again"]) == (202, again), told
            background.work_off()
        assert read(door, acme) == dropbox.truth()
        assert dropbox.calls["list"] == 3, "once, and one page of fifty per step"

        dropbox.delete("/photos/0001.jpg")
        dropbox.put("/new/a.jpg")
        assert door.call(acme.member, "POST", "/events", {**event, "id": "change-2"}).status == 202
        background.work_off()
        assert read(door, acme) == dropbox.truth()
        assert not dropbox.surprises

    jobs, syncs = (ended(door, acme, kind) for kind in ("job", "folder_sync"))
    assert [status for _, status, _ in jobs] == [status for _, status, _ in syncs] == ["succeeded", "succeeded"]
    assert [source for _, _, source in syncs] == [str(job) for job, _, _ in jobs], "each sync says whose it is"


def read(door: Door, tenant: TenantHouse) -> dict[str, str | None]:
    rows = door.sql("select name, rev from folder_entry where tenant_id = :t", t=tenant.id)
    return {row["name"]: row["rev"] for row in rows}


def ended(door: Door, tenant: TenantHouse, kind: str) -> list[tuple[UUID, str, str | None]]:
    rows = door.sql(
        "select id, status, source_ref from run where tenant_id = :t and kind = :k order by created_at",
        t=tenant.id,
        k=kind,
    )
    return [(row["id"], row["status"], row["source_ref"]) for row in rows]
