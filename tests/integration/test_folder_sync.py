"""A Dropbox folder, read by the built-in command `sync-dropbox`: everything once, then changes alone, whatever Dropbox does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from infra.local.standins.dropbox import DropboxStandIn, with_photos
from shared.folder_sync.build import asked_of, folder_of
from shared.folder_sync.points import FolderPoint
from shared.folder_sync.ports import Ports
from shared.folder_sync.steps import folder_sync
from shared.kernel import db
from shared.kernel import run as runs
from shared.kernel.clock import Chance
from shared.kernel.errors import Refused
from shared.kernel.handle import handle_baton
from shared.kernel.model import Ending, NewLane, Run
from shared.kernel.points import Point, watch_points
from shared.kernel.ports import Tx
from shared.kernel.settings import Relay
from shared.kernel.store import PgStore
from shared.kernel.tokens import Tokens
from tests.kinds.folder_sync.subject import CONNECT, Apps, connection_of
from tests.support.databases import as_user
from tests.support.rig import FIFO, LEASE_S, TENANT, Rig, RigDatabase

WAITS = """select pid from pg_stat_activity
where application_name = 'taking' and wait_event_type = 'Lock' and datname = current_database()"""


class FolderRig(Rig):
    def __init__(self, worker: sa.Engine, owner: sa.Engine) -> None:
        super().__init__(worker, owner)
        self.box = DropboxStandIn(clock=lambda: self.now, page=50)
        env = {"BATON_DROPBOX_BASE_URL": self.box.start()}
        apps: Any = Apps()
        self.kind = folder_sync(Ports(folder=partial(folder_of, env, apps, Tokens(worker))))
        relay = Relay(step_timeout_s=30, lease_s=LEASE_S, fifo_queue=FIFO)
        self.ports = replace(self.ports, relay=relay, chance=Chance(fraction=lambda: 0.5))

    def sync(self, within_s: float = 600, **payload: str) -> str:
        """As the job's payload says it; answers how the run ended."""
        asked = asked_of({"provider_id": "box", **payload})
        return self.run_to_end(runs.start_run(self.ports, self.kind, TENANT, asked), within_s)

    def here(self) -> dict[str, str | None]:
        return {row["name"]: row["rev"] for row in self.rows("select name, rev from folder_entry")}


@pytest.fixture
def folder(rig_database: RigDatabase) -> Iterator[FolderRig]:
    rig_database.empty("folder", "folder_entry", "account_token", "connection")
    with rig_database.owner.begin() as connection:
        connection.execute(CONNECT, {"id": connection_of(TENANT), "t": TENANT})
    with rig_database.follows(FolderRig(rig_database.worker, rig_database.owner)) as rig:
        yield rig
    rig.box.stop()
    assert not rig.box.surprises


def test_everything_is_read_once_and_then_changes_alone(folder: FolderRig) -> None:
    with_photos(folder.box, 120)
    assert folder.sync() == "succeeded"
    assert folder.here() == folder.box.truth()
    assert folder.box.calls["list"] == 3, "one page of fifty per step"
    folder.box.put("/photos/0007.jpg", 9)
    folder.box.put("/new/a.jpg")
    folder.box.delete("/photos/0008.jpg")
    assert folder.sync() == "succeeded"
    assert folder.here() == folder.box.truth()
    assert folder.box.calls["list"] == 4
    folder.box.delete("/photos")
    assert folder.sync() == "succeeded"
    assert folder.here() == folder.box.truth() == {"/new/a.jpg": folder.here()["/new/a.jpg"]}


def test_a_file_where_a_folder_was_takes_its_place_and_all_below_it(folder: FolderRig) -> None:
    """Dropbox tells of the file alone."""
    folder.box.put("/a", folder=True)
    folder.box.put("/a/b", folder=True)
    folder.box.put("/a/b/1.jpg")
    folder.box.put("/ab/2.jpg")
    assert folder.sync() == "succeeded"
    folder.box.put("/a")
    folder.box.put("/c/3.jpg")
    folder.box.put("/c")
    assert folder.sync() == "succeeded"
    assert folder.here() == folder.box.truth()
    assert sorted(folder.here()) == ["/a", "/ab/2.jpg", "/c"]
    folder.box.delete("/a")
    folder.box.put("/a", folder=True)
    folder.box.put("/a/4.jpg")
    assert folder.sync() == "succeeded"
    assert folder.here() == folder.box.truth()


def test_a_folder_that_was_deleted_and_made_anew_holds_nothing_from_before(folder: FolderRig) -> None:
    """All of it on one page: the folder's own last word is that it is there, and nothing else says what it lost."""
    for name in ("/a", "/b"):
        folder.box.put(name, folder=True)
        folder.box.put(f"{name}/old.jpg")
    assert folder.sync() == "succeeded"
    folder.box.delete("/a")
    folder.box.put("/a", folder=True)
    folder.box.put("/a/new.jpg")
    folder.box.put("/b")
    folder.box.delete("/b")
    folder.box.put("/b", folder=True)
    assert folder.sync() == "succeeded"
    assert folder.here() == folder.box.truth()
    assert sorted(folder.here()) == ["/a", "/a/new.jpg", "/b"]


@pytest.mark.full
def test_a_cursor_that_leads_nowhere_is_not_followed_for_ever(folder: FolderRig) -> None:
    with_photos(folder.box, 60)
    folder.box.misbehave("same_cursor", on=["list"], after=1, budget=30)
    assert folder.sync(100_000) == "failed"
    assert folder.box.calls["list"] <= 12, "an answer that cannot be is asked for again, ten times"
    folder.box.behave()
    assert folder.sync() == "succeeded"
    assert folder.here() == folder.box.truth()


def test_a_cursor_that_was_forgotten_is_replaced_and_what_is_gone_leaves(folder: FolderRig) -> None:
    with_photos(folder.box, 120)
    assert folder.sync() == "succeeded"
    folder.box.delete("/photos/0001.jpg")
    folder.box.misbehave("reset", on=["list"], budget=1)
    assert folder.sync() == "succeeded"
    assert folder.here() == folder.box.truth()
    assert folder.rows("select generation from folder")[0]["generation"] == 2


def test_a_cursor_that_is_always_forgotten_ends_the_run(folder: FolderRig) -> None:
    with_photos(folder.box, 120)
    folder.box.misbehave("reset", on=["list"])
    assert folder.sync() == "failed"
    assert folder.box.calls["list"] == 8, "the beginning and a page, four times"


def test_a_429_closes_the_gate_of_the_account(folder: FolderRig) -> None:
    with_photos(folder.box, 60)
    folder.box.misbehave("too_many", on=["list"], budget=1)
    began = folder.now
    assert folder.sync(2_000) == "succeeded"
    assert folder.now - began >= 300
    assert folder.box.calls["list"] == 3, "one refusal, two pages"
    (gate,) = folder.rows("select key from gate")
    assert gate["key"] == f"dropbox:{connection_of(TENANT)}"


@pytest.mark.parametrize("trouble", ["empty_page", "expired", "truncated", "server_error"])
def test_trouble_on_the_way_leaves_the_same_folder(folder: FolderRig, trouble: str) -> None:
    with_photos(folder.box, 120)
    folder.box.misbehave(trouble, on=["list"], after=1, budget=2)
    assert folder.sync(3_000) == "succeeded"
    assert folder.here() == folder.box.truth()


def test_a_folder_is_read_by_one_run_at_a_time(folder: FolderRig) -> None:
    asked = asked_of({"provider_id": "box", "path_prefix": "/Photos/"})
    with_photos(folder.box, 10)
    first: UUID = runs.start_run(folder.ports, folder.kind, TENANT, asked)
    assert runs.start_run(folder.ports, folder.kind, TENANT, asked) == first
    assert folder.run_to_end(first, 600) == "succeeded"
    assert runs.start_run(folder.ports, folder.kind, TENANT, asked) != first
    assert folder.rows("select path from folder")[0]["path"] == "/photos"


def test_a_change_while_the_last_page_is_on_its_way_is_read_by_one_more(folder: FolderRig) -> None:
    """The run that reads has its page already. Whoever says that something has changed is not told that it will see it."""
    asked = asked_of({"provider_id": "box"})
    with_photos(folder.box, 10)
    first = runs.start_run(folder.ports, folder.kind, TENANT, asked)
    others: list[UUID] = []

    def change(reached: str) -> None:
        if reached == FolderPoint.LISTED and not others:
            folder.box.put("/photos/late.jpg")
            others.extend(runs.start_run(folder.ports, folder.kind, TENANT, asked) for _ in range(3))

    watch_points(change)
    try:
        assert folder.run_to_end(first, 600) == "succeeded"
    finally:
        watch_points(None)
    (one_more,) = set(others)
    assert one_more != first
    assert folder.run_to_end(one_more, 600) == "succeeded"
    assert folder.here() == folder.box.truth()
    assert folder.box.calls["list"] == 2


def test_one_more_run_of_a_folder_waits_until_the_first_has_ended(folder: FolderRig) -> None:
    asked = asked_of({"provider_id": "box"})
    with_photos(folder.box, 120)
    first = runs.start_run(folder.ports, folder.kind, TENANT, asked)
    folder.work_off(1)
    one_more = runs.start_run(folder.ports, folder.kind, TENANT, asked)
    assert (runs.start_run(folder.ports, folder.kind, TENANT, asked), one_more != first) == (one_more, True)
    assert folder.run_to_end(one_more, 600) == "succeeded"
    assert folder.run(first)["status"] == "succeeded"
    assert folder.here() == folder.box.truth()
    assert folder.box.calls["list"] == 4, "three pages, and what has changed since"
    assert folder.rows("select run_id from folder")[0]["run_id"] is None


@pytest.mark.full
def test_a_folder_whose_run_ended_without_leaving_it_is_taken_over(folder: FolderRig) -> None:
    """`on_end` never succeeded. Whoever comes next looks whether the run that has the folder still goes on."""
    with_photos(folder.box, 10)
    whole = folder.kind
    folder.kind = replace(whole, on_end=broken)
    assert folder.sync(6 * 3_600) == "failed"
    folder.kind = whole
    assert folder.rows("select run_id from folder")[0]["run_id"] is not None

    assert folder.sync() == "succeeded"
    assert folder.here() == folder.box.truth()
    assert folder.rows("select run_id from folder")[0]["run_id"] is None


def left_behind(folder: FolderRig) -> UUID:
    """A run that failed after its first page and ended without leaving its folder."""
    with_photos(folder.box, 220)
    folder.box.misbehave("same_cursor", on=["list"], after=1, budget=30)
    whole, folder.kind = folder.kind, replace(folder.kind, on_end=broken)
    run_id = runs.start_run(folder.ports, folder.kind, TENANT, asked_of({"provider_id": "box"}))
    assert folder.run_to_end(run_id, 100_000) == "failed"
    folder.kind = whole
    folder.box.behave()
    assert folder.rows("select run_id from folder")[0]["run_id"] == run_id
    return run_id


def owner_of(folder: FolderRig) -> UUID | None:
    found: UUID | None = folder.rows("select run_id from folder")[0]["run_id"]
    return found


@pytest.mark.full
def test_a_run_that_is_retried_after_its_folder_was_taken_over_leaves_it_alone(folder: FolderRig) -> None:
    old = left_behind(folder)
    new = runs.start_run(folder.ports, folder.kind, TENANT, asked_of({"provider_id": "box"}))
    folder.work_off(1)
    assert owner_of(folder) == new

    runs.retry_run(folder.ports, folder.kind, TENANT, old)

    assert (folder.run_to_end(old, 600), folder.run_to_end(new, 600)) == ("succeeded", "succeeded")
    assert folder.here() == folder.box.truth()
    assert owner_of(folder) is None


@pytest.mark.full
def test_a_run_that_is_retried_while_its_folder_is_taken_over_writes_nothing_more(
    folder: FolderRig, rig_database: RigDatabase
) -> None:
    """The new run has looked, and found the old one ended. Before it takes the folder, the old one is retried, and reads on."""
    old = left_behind(folder)
    new = runs.start_run(folder.ports, folder.kind, TENANT, asked_of({"provider_id": "box"}))
    message = folder.expect()
    other = db.connect_engine(as_user(rig_database.url, "baton_worker"), application_name="taking")
    sa.event.listen(other, "checkout", folder.tell_the_time)
    holder = db.connect_engine(rig_database.url)
    with holder.connect() as held:

        def hold_up(reached: str) -> None:
            """Its statement begins, and sees no more than there is now; then it waits for its own lane."""
            if reached == Point.STEP_CLAIMED and threading.current_thread() is taking:
                held.execute(sa.text("select from lane where run_id = :id for update"), {"id": new})

        def take() -> None:
            handle_baton(replace(folder.ports, store=PgStore(other)), folder.kind, message)
            folder.queue.delete(FIFO, message.receipt)

        taking = threading.Thread(target=take)
        watch_points(hold_up)
        try:
            taking.start()
            until = time.monotonic() + 60
            while not folder.rows(WAITS):
                assert time.monotonic() < until, "it waits for nobody"
                time.sleep(0.01)
            runs.retry_run(folder.ports, folder.kind, TENANT, old)
            folder.work_off(1)
            assert owner_of(folder) == old
            held.rollback()
            taking.join(60)
        finally:
            watch_points(None)
    assert owner_of(folder) == new, "the last one has it"

    folder.work_off(2)  # a page of each

    (lane,) = folder.rows("select status, last_error from lane where run_id = :id", id=old)
    assert (lane["status"], lane["last_error"]["code"]) == ("failed", "folder_taken_over")
    assert (folder.run(old)["status"], owner_of(folder)) == ("failed", new)
    assert folder.run_to_end(new, 600) == "succeeded"
    assert folder.here() == folder.box.truth()
    for engine in (other, holder):
        engine.dispose()


def test_a_page_of_a_folder_that_was_taken_over_meanwhile_is_not_written(folder: FolderRig) -> None:
    """Between the last look and the commit: whoever has the folder now reads that page, too."""
    with_photos(folder.box, 10)
    run_id = runs.start_run(folder.ports, folder.kind, TENANT, asked_of({"provider_id": "box"}))

    def take_over(reached: str) -> None:
        if reached == Point.STEP_WROTE:
            folder.rows("update folder set run_id = :id returning run_id", id=UUID(int=7))

    watch_points(take_over)
    try:
        folder.work_off(1)
    finally:
        watch_points(None)
    (row,) = folder.rows("select run_id, cursor, synced_at from folder")
    assert (row["run_id"], row["cursor"], row["synced_at"], folder.here()) == (UUID(int=7), None, None, {})
    assert folder.run(run_id)["finished_at"] is not None


def broken(tx: Tx, run: Run, ending: Ending) -> Sequence[NewLane]:
    raise RuntimeError("cannot be ended")


def test_what_makes_no_sense_is_refused(folder: FolderRig) -> None:
    for payload in ({}, {"provider_id": "other"}, {"provider_id": "box", "path_prefix": "no/slash"}):
        with pytest.raises(Refused):
            runs.start_run(folder.ports, folder.kind, TENANT, asked_of(payload))
    assert folder.sync(path_prefix="/nowhere") == "failed"
