"""Row jobs as a subject: files that are made from their ids, and a provider that writes down every call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

import sqlalchemy as sa

from shared.kernel.catalogue import Kind
from shared.kernel.clock import Chance
from shared.kernel.control import Paces
from shared.kernel.decide import Limits
from shared.kernel.errors import Transient
from shared.kernel.model import Already, Effect, NewRun, Starting, Statement
from shared.kernel.ports import Tx
from shared.kernel.retry import Backoff
from shared.row_job.decide import Answered
from shared.row_job.export import is_export
from shared.row_job.model import KIND, Item, RowSettings, Strategy, WayPoint
from shared.row_job.ports import Listed, Ports
from shared.row_job.scan import is_scan
from shared.row_job.steps import RowPoint, row_job
from shared.row_job.store import RowStore
from tests.simulation.invariants import require
from tests.support.files import MemoryFiles
from tests.support.pictures import packed, png
from tests.support.rows import InlineHands, found
from tests.support.subject import Simulated, Subject

if TYPE_CHECKING:
    from tests.chaos.matrix import Play
    from tests.simulation.subjects import SubjectWorld

SETTINGS = RowSettings(
    slots=2, provider_first_rate=50.0, ingest_min_rows=2, ingest_max_rows=4, claim_min=2, claim_max=6
)
IN_THE_MATRIX = SETTINGS.model_copy(update={"slots": 1})
LIMITS = Limits(max_attempts=10, backoff=Backoff(first_s=0.5, most_s=2.0))
# The tests' workers issue the upload of a run themselves.
ISSUE = Statement(
    "test.issue",
    """insert into files (id, tenant_id, name, size, arrived_at) values (:id, :tenant_id, 'rows.csv', :size, now())
       on conflict do nothing""",
)


MARK = 0xFFFFFF  # how the ids of files end that are alike, so that every run of a scenario passes the same points


IMAGES = 0xFFFFFE  # and those of archives of images


def rows_of(file_id: UUID) -> list[str]:
    """Good rows and a few that must be set aside, the same ones for the same file."""
    if file_id.int & MARK == IMAGES:
        return ["Product 1", "only a brand", "Product 3"]
    if file_id.int & MARK == MARK:
        return ["Product 1", "Product 2", "only a brand", "Product 4", "Product 5"]
    rng = Random(file_id.int)
    return ["only a brand" if rng.random() < 0.1 else f"Product {n}" for n in range(1, rng.choice((1, 2, 5, 9)) + 1)]


def content_of(file_id: UUID) -> bytes:
    if file_id.int & MARK == IMAGES:
        return packed(
            *(("../out.png" if each == "only a brand" else f"{each}.png", png(1, 1)) for each in rows_of(file_id))
        )
    lines = [",Acme" if each == "only a brand" else f"{each},Acme" for each in rows_of(file_id)]
    return "\n".join(["title,brand", *lines]).encode()


@dataclass(frozen=True, slots=True)
class Contents:
    """The bucket: a file's bytes follow from its id."""

    ask: Callable[[str, Callable[[], bytes]], bytes] = lambda what, effect: effect()

    def read(self, key: str, version_id: str | None, offset: int, length: int) -> bytes:
        return self.ask("read", lambda: content_of(UUID(key.rsplit("/", 1)[1]))[offset : offset + length])


@dataclass(frozen=True, slots=True)
class Waiting:
    """Two files that never change, brought in two steps."""

    ask: Callable[[str, Callable[[], Any]], Any] = lambda what, effect: effect()

    def files(self) -> list[Listed]:
        return list(self.ask("list", lambda: [Listed("a.csv", 10, "1"), Listed("b.csv", 20, "1")]))

    def bring(self, file: Listed, key: str, place: dict[str, Any] | None, seconds: float) -> dict[str, Any] | None:
        next_place: dict[str, Any] | None = self.ask("bring", lambda: {"half": True} if place is None else None)
        return next_place


def with_uploads(kind: Kind, mark: int = 0) -> Kind:
    """A start that finds its upload: the run's own id names it."""

    def start(tx: Tx, starting: Starting) -> NewRun | Already:
        if is_scan(starting.params) or is_export(starting.params):
            return kind.start(tx, starting)
        is_images = starting.params.get("job_type") == "image"
        file_id = UUID(int=starting.run_id.int & ~MARK | IMAGES if is_images else starting.run_id.int | mark)
        issued = {"id": file_id, "tenant_id": starting.tenant_id, "size": len(content_of(file_id))}
        tx.apply(Effect(ISSUE, issued))
        return kind.start(tx, replace(starting, params={**starting.params, "file_id": str(file_id)}))

    return replace(kind, start=start)


RULES = {
    "a job that is done has every row of its file": "",  # asked by `wrong_rows`, which knows the file
    "a row of a job that is done has ended": """
        select i.run_id, i.row_no from job_items i join run r on r.id = i.run_id
        where r.status = 'succeeded' and i.status in ('PENDING', 'PROCESSING')""",
    "a row is found once": """
        select run_id, row_no from search_events where status = 'found' group by 1, 2 having count(*) > 1""",
    "an attempt of a row is answered once": """
        select run_id, row_no, attempt from search_events where status not in ('throttled', 'refused')
        group by 1, 2, 3 having count(*) > 1""",
    "only an answer moves a row to its next way": """
        select i.run_id, i.row_no from job_items i where i.turned <> (
            select count(*) from search_events e where e.run_id = i.run_id and e.row_no = i.row_no and e.status = 'not_found')""",
    "what is not found was looked for in every way": """
        select i.run_id, i.row_no from job_items i where i.status = 'NOT_FOUND' and (
            select count(distinct e.strategy) from search_events e where e.run_id = i.run_id and e.row_no = i.row_no
              and e.status = 'not_found') < 2 + (i.normalized_json ? 'brand')::int + (i.normalized_json ? 'sku')::int""",
    "what was found is in its row": """
        select i.run_id, i.row_no from job_items i where i.status = 'DONE'
          and i.result_json #>> '{offers,0,title}' is distinct from i.normalized_json ->> 'title'""",
    "a row belongs to the tenant of its run": """
        select i.run_id from job_items i join run r on r.id = i.run_id where r.tenant_id <> i.tenant_id""",
    "a file is taken by another scan than the one that saw it first": """
        select s.name from scanned_files s join lane l on l.key = 'take:' || s.file_id and l.run_id = s.first_run""",
    "a file that was taken was issued, once": """
        select s.name from scanned_files s left join files f on f.id = s.file_id
        where s.file_id is not null and f.id is null
        union all select name from files where name <> 'rows.csv' group by tenant_id, name having count(*) > 1""",
    "what two scans saw is taken": """
        select s.name from scanned_files s where s.file_id is null and 2 <= (
            select count(*) from run r where r.tenant_id = s.tenant_id and r.params ? 'scan' and r.status = 'succeeded')
          and not exists (select from run r where r.tenant_id = s.tenant_id and r.params ? 'scan' and r.status <> 'succeeded')""",
    "no row is held when nobody works": """
        select i.run_id, i.row_no from job_items i join run r on r.id = i.run_id
        where r.status = 'succeeded' and i.locked_by is not null""",
    "an export that is done has every row once, and keeps none": """
        select e.run_id from row_exports e join run r on r.id = e.run_id
        where r.status = 'succeeded' and (e.open or e.written is distinct from e.upto or jsonb_array_length(e.files) <> 1)""",
    "an end is said once": """
        select payload ->> 'run_id', payload ->> 'epoch' from signal where name in ('row_job.done', 'row_job.failed')
        group by 1, 2 having count(*) > 1""",
}
ASKED = {name: sql for name, sql in RULES.items() if sql}
KEPT = sa.text("""
select r.id, cast(r.params ->> 'file_id' as uuid) as file_id, array(select i.row_no from job_items i where i.run_id = r.id order by 1) as numbers,
       array(select i.row_no from job_items i where i.run_id = r.id and i.status = 'SKIPPED' order by 1) as aside
from run r where r.kind = 'row_job' and r.status = 'succeeded' and not r.params ? 'scan' and not r.params ? 'export'
""")


def wrong_rows(kept: Sequence[Mapping[str, Any]]) -> list[str]:
    wrong: list[str] = []
    for job in kept:
        truth = rows_of(job["file_id"])
        if list(job["numbers"]) != list(range(1, len(truth) + 1)):
            wrong.append(f"{job['id']} has rows {job['numbers']} of {len(truth)}")
        if list(job["aside"]) != [n for n, each in enumerate(truth, 1) if each == "only a brand"]:
            wrong.append(f"{job['id']} set {job['aside']} aside")
    return wrong


@dataclass(slots=True)
class Provider:
    """Asks through the world, where answers are lost and processes die."""

    world: SubjectWorld
    made_at: dict[str, float] = field(default_factory=dict)
    excused: set[str] = field(default_factory=set)

    def find(self, item: Item, strategy: Strategy, retailers: Sequence[str], idempotency_key: str) -> Answered:
        world = self.world

        def effect() -> Answered:
            attempt = idempotency_key.rpartition("-")[0]  # in whichever turn it is made
            if world.current is not None and world.current.stalled:  # it sleeps, and another one took its rows
                self.excused.add(attempt)
            made_at = self.made_at.get(attempt)
            again = made_at is not None and attempt not in self.excused and world.last_fault_at < made_at
            require(not again, "an attempt is made again only if its answer may be lost", idempotency_key)
            self.made_at[attempt] = world.now
            trouble = world.rng.random()
            if trouble < world.scenario.upstream_trouble / 6:
                world.last_fault_at = world.now
                self.excused.add(attempt)  # told to wait, it is made again
                return Answered(what="throttled", ms=20, retry_after_s=world.rng.choice((0.0, 2.0)))
            if trouble < world.scenario.upstream_trouble / 3:
                world.last_fault_at = world.now
                return Answered(what=world.rng.choice(("failed", "not_found", "slow")), ms=50, message="trouble")
            return found(str(item.normalized["title"]))

        try:
            return world.call("upstream.find", effect, error=lambda: Transient("no answer"))
        except Transient:
            return Answered(what="failed", ms=50, message="no answer")


def simulate(world: SubjectWorld) -> Simulated:
    provider, numbers = Provider(world), count()
    # Most schedules are about one lane and its rows, and cheaper; the others are about two lanes beside each other.
    settings = SETTINGS if world.rng.random() < 0.3 else IN_THE_MATRIX
    ports = Ports(
        files=Contents(
            lambda what, effect: world.call(f"files.{what}", effect, error=lambda: Transient("no file now"))
        ),
        search=lambda tenant, params, left: provider,
        hands=InlineHands,
        pace=world.faulty(Paces(world.worker)),
        reads=world.faulty(RowStore(world.worker)),
        settings=settings,
        chance=Chance(fraction=world.rng.random),
        inbox=lambda tenant, scan: Waiting(
            lambda what, effect: world.call(f"inbox.{what}", effect, error=lambda: Transient("no inbox now"))
        ),
    )

    def judge() -> None:
        for rule, sql in ASKED.items():
            broken = world.rows(sql)
            require(not broken, rule, broken)
        kept = world.rows(KEPT.text)
        require(not wrong_rows(kept), "a job that is done has every row of its file", wrong_rows(kept))

    kind = with_uploads(row_job(ports, Limits(max_attempts=12)))
    return Simulated(
        kind=kind, params=lambda _: ({}, {"job_type": "image"}, {"scan": "s3"})[next(numbers) % 3], at_the_end=judge
    )


class Finds:
    def find(self, item: Item, strategy: Strategy, retailers: Sequence[str], idempotency_key: str) -> Answered:
        return found(str(item.normalized["title"]))


def build(engine: sa.Engine, address: Any, outside_url: str) -> Kind:
    """The kind in a process that is killed."""
    ports = Ports(
        files=Contents(), search=lambda tenant, params, left: Finds(), hands=InlineHands, pace=Paces(engine),
        reads=RowStore(engine), settings=IN_THE_MATRIX, chance=Chance(fraction=lambda: 0.5),
        inbox=lambda tenant, scan: Waiting(), results=MemoryFiles(),
    )  # fmt: skip
    return with_uploads(row_job(ports, LIMITS), MARK)


def a_file(play: Play) -> None:
    """Read, worked on, paused and resumed on its way."""
    run = play.start("succeeded", kind=KIND)
    play.work()
    play.act("pause", run)
    play.act("resume", run)
    for _ in range(2):
        play.pass_time(16)
        play.work()


def a_canceled_file(play: Play) -> None:
    run = play.start("canceled", kind=KIND)
    play.act("cancel", run)
    play.work()


def an_archive(play: Play) -> None:
    play.start("succeeded", kind=KIND, job_type="image")
    play.work()
    for _ in range(2):
        play.pass_time(16)
        play.work()


def an_export(play: Play) -> None:
    """Of a job that is canceled, which can be exported too."""
    job = play.start("canceled", kind=KIND)
    play.act("cancel", job)
    play.work()
    play.start("succeeded", kind=KIND, export=str(job))
    play.work()


def two_scans(play: Play) -> None:
    for _ in range(2):
        play.start("succeeded", kind=KIND, scan="s3")
        play.work()


def order(rng: Random) -> dict[str, Any]:
    return {}


SUBJECT = Subject(
    name=KIND,
    simulate=simulate,
    build=build,
    tables=(
        "export_kept",
        "row_exports",
        "row_fixes",
        "search_events",
        "job_items",
        "file_jobs",
        "files",
        "pace",
        "pace_share",
        "pace_decision",
        "scanned_files",
    ),
    clocks=(
        "update job_items set due_at = due_at - {by}, locked_at = locked_at - {by}",
        "update pace set opened_at = opened_at - {by}, next_slot_at = next_slot_at - {by}, closed_until = closed_until - {by}",
    ),
    rules=ASKED,
    scenarios={each.__name__: each for each in (a_file, a_canceled_file, an_archive, an_export, two_scans)},
    points=frozenset({*RowPoint, *WayPoint}),
    order=order,
)
