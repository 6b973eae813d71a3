"""Folder sync as a subject: a folder that changes while it is read in the simulation, a stand-in for processes that are killed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import sqlalchemy as sa

from infra.local.standins.dropbox import APP_KEY, APP_SECRET, REFRESH_TOKEN, DropboxStandIn
from shared.folder_sync.build import folder_of
from shared.folder_sync.model import KIND, PROVIDER, Entry, Page
from shared.folder_sync.points import FolderPoint
from shared.folder_sync.ports import CursorReset, Ports
from shared.folder_sync.steps import folder_sync
from shared.kernel.catalogue import Kind
from shared.kernel.connections import Account, Provider
from shared.kernel.decide import Limits
from shared.kernel.errors import Throttled, Transient
from shared.kernel.model import account_name
from shared.kernel.retry import Backoff
from shared.kernel.tokens import Tokens
from tests.simulation.invariants import require
from tests.simulation.world import TENANTS
from tests.support.subject import OpenOutside, Simulated, Subject

if TYPE_CHECKING:
    from tests.chaos.matrix import Play
    from tests.simulation.subjects import SubjectWorld

CONNECT = sa.text("""
insert into connection (id, tenant_id, name, provider, settings, secret_ref, created_by)
values (:id, :t, 'box', 'dropbox', '{"app_key": "a"}', '1', 'user:x') on conflict do nothing""")
RULES = {
    "nobody keeps a folder that he does not read": """
        select f.path from folder f join run r on r.id = f.run_id where r.finished_at is not null""",
    "what was read to its end is not half listed": "select path from folder where synced_at is not null and cursor is null",
}
SIZE = 2


def connection_of(tenant: UUID) -> UUID:
    return UUID(int=tenant.int * 32 + 7)


class Box:
    """What a tenant's folder holds. Changes are numbered; a cursor is how many of them its holder knows."""

    def __init__(self, world: SubjectWorld) -> None:
        self.world = world
        self.files = {f"/p/{n}": "0" for n in range(world.rng.randrange(7))}
        self.journal: list[tuple[str, str | None]] = []
        self.pages = 0

    def change(self) -> None:
        """Something happens between two pages, for a while."""
        rng = self.world.rng
        if self.pages < 12 and rng.random() < 0.3:
            name = f"/p/{rng.randrange(9)}"
            rev = None if name in self.files and rng.random() < 0.5 else str(len(self.journal) + 1)
            self.journal.append((name, rev))
            if rev is None:
                self.files.pop(name, None)
            else:
                self.files[name] = rev

    def first(self, path: str) -> Page:
        return self._asked("first", lambda: self._listed(sorted(self.files), len(self.journal)))

    def following(self, cursor: str) -> Page:
        kind, known_text, rest = cursor.split("|", 2)
        known = int(known_text)

        def effect() -> Page:
            if kind == "list" and rest:
                return self._listed(rest.split(","), known)
            told = self.journal[known : known + SIZE]
            at = known + len(told)
            entries = [Entry(tag="deleted" if rev is None else "file", path=name, rev=rev) for name, rev in told]
            return Page(entries=entries, cursor=f"delta|{at}|", has_more=at < len(self.journal))

        return self._asked("following", effect)

    def _listed(self, names: list[str], known: int) -> Page:
        """As they are now: a listing is no snapshot, and changes since its beginning follow it."""
        here = [Entry(tag="file", path=name, rev=self.files[name]) for name in names[:SIZE] if name in self.files]
        rest = names[SIZE:]
        more = bool(rest) or known < len(self.journal)
        return Page(entries=here, cursor=f"list|{known}|{','.join(rest)}", has_more=more)

    def _asked(self, name: str, effect: Any) -> Page:
        self.pages += 1
        self.change()
        page: Page = self.world.call(f"box.{name}", effect, error=lambda: Transient("no answer"))
        if self.world.rng.random() < self.world.scenario.upstream_trouble / 2:
            self.world.last_fault_at = self.world.now
            match self.world.rng.choice(("transient", "throttled", "reset")):
                case "throttled":
                    raise Throttled(account_name(PROVIDER, str(connection_of(TENANTS[0]))), 30.0)
                case "reset" if name == "following":
                    self.world.seen["box reset"] += 1
                    raise CursorReset("forgotten")
            raise Transient("no answer")
        return page


def simulate(world: SubjectWorld) -> Simulated:
    boxes = {tenant: Box(world) for tenant in TENANTS}
    with world.owner.connect() as connection:
        for tenant in TENANTS:
            connection.execute(CONNECT, {"id": connection_of(tenant), "t": tenant})

    def params(asked: Mapping[str, Any]) -> dict[str, Any]:
        return {"connection": "box"}

    def judge() -> None:
        for rule, breaks_it in RULES.items():
            broken = world.rows(breaks_it)
            require(not broken, rule, broken)
        for tenant, box in boxes.items():
            rows = world.rows("select name, rev from folder_entry where tenant_id = :t", t=tenant)
            (row,) = world.rows("select * from folder where tenant_id = :t", t=tenant) or [None]
            if row is None or row["listing"] or row["cursor"] is None:
                continue
            _, known, left = row["cursor"].split("|", 2)
            if not left and int(known) == len(box.journal):
                world.seen["a whole folder"] += 1
                require(
                    {each["name"]: each["rev"] for each in rows} == box.files, "what is here is what is there", rows
                )

    kind = folder_sync(Ports(folder=lambda turn, cursor, left: boxes[turn.tenant_id]), Limits(max_attempts=12))
    return Simulated(kind=kind, params=params, at_the_end=judge)


class Apps:
    """The connections of every tenant: the one app that the stand-in knows."""

    def of(self, tenant_id: UUID, provider: Provider, connection: str) -> Account:
        return provider.account({"app_key": APP_KEY}, {"app_secret": APP_SECRET, "refresh_token": REFRESH_TOKEN})


@contextmanager
def outside() -> Iterator[OpenOutside]:
    """One answer breaks off, and once the cursor is forgotten."""
    with DropboxStandIn(page=2) as standin:
        for n in range(5):
            standin.put(f"/p/{n}")
        standin.misbehave("truncated", on=["list"], after=1, budget=1)
        standin.misbehave("reset", on=["list"], after=2, budget=1)
        yield OpenOutside(standin.start(), lambda connection: differences(standin, connection))


def differences(standin: DropboxStandIn, connection: sa.Connection) -> list[str]:
    found = [f"the stand-in was surprised: {standin.surprises[:3]}"] if standin.surprises else []
    if connection.execute(sa.text("select 1 from folder where synced_at is not null")).first() is None:
        return found
    here = {row.name: row.rev for row in connection.execute(sa.text("select name, rev from folder_entry"))}
    return found if here == standin.truth() else [*found, f"{here} where {standin.truth()} is true"]


def build(engine: sa.Engine, address: Any, outside_url: str) -> Kind:
    folder = partial(folder_of, {"BATON_DROPBOX_BASE_URL": address}, Apps(), Tokens(engine))  # type: ignore[arg-type]
    return folder_sync(Ports(folder=folder), Limits(max_attempts=10, backoff=Backoff(first_s=0.5, most_s=2.0)))


def a_folder(play: Play) -> None:
    from tests.chaos.worker import TENANTS as THERE

    with play._stage.connect() as connection:
        connection.execute(CONNECT, {"id": connection_of(THERE[0]), "t": THERE[0]})
    play.start("succeeded", kind=KIND, connection="box")
    for wait_s in (5, 5, 60):
        play.work()
        play.pass_time(wait_s)
    play.tick()
    play.work()


SUBJECT = Subject(
    name=KIND,
    simulate=simulate,
    build=build,
    outside=outside,
    tables=("folder", "folder_entry", "account_token"),
    rules=RULES,
    scenarios={each.__name__: each for each in (a_folder,)},
    points=frozenset(FolderPoint),
)
