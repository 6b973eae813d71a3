"""Jobs over HTTP: definitions for super admins, jobs for tenants, and the logs of their attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.api_gateway import Router
from aws_lambda_powertools.event_handler.openapi.params import Body, Path, Query
from pydantic import Field

from shared.job_queue import decide, store
from shared.job_queue.model import KIND, MOST_AHEAD, USUAL_PRIORITY
from shared.job_queue.steps import jobs_of
from shared.kernel import run as relay
from shared.kernel.api import runs
from shared.kernel.api.desk import Desk
from shared.kernel.api.frame import BY_CURSOR, Problem, creates, desk, operation
from shared.kernel.api.shapes import Asked, Because, Changes, Cursor, Done, Form, Instant, Key, Limit, Short, Told
from shared.kernel.auth import MANAGES, READS, STARTS, SUPERS
from shared.kernel.clock import new_id
from shared.kernel.db import jsonb
from shared.kernel.deliver import deliver
from shared.kernel.direct import Line
from shared.kernel.errors import NotFound, Refused
from shared.kernel.paging import USUAL_PAGE
from shared.kernel.params import parse
from shared.kernel.points import Point, point
from shared.kernel.redact import redact_json

router = Router()  # type: ignore[no-untyped-call]
JobId = Annotated[UUID, Path(description="The job's id")]
# What people call the cause of a job, and what a run says.
SOURCES = {"manual": ["api"], "event": ["event"], "schedule": ["schedule"], "system": ["", "run", "system"]}
Status = Literal["queued", "running", "succeeded", "failed", "canceled", "dead_letter"]
Executor = Literal["lambda", "worker"]
MOST_ADDED = 1_000
DefinitionKey = Annotated[
    str,
    Form(
        r"^[a-z][a-z0-9-]{0,99}$",
        "Use up to 100 small letters, digits and hyphens, and start with a letter, as in nightly-tags.",
    ),
]


class Definition(Told):
    """What may be run, and how. `version` counts its changes; a job keeps the one it was made with."""

    id: UUID
    key: str
    description: str
    command: str
    arg_schema: dict[str, Any]
    timeout_seconds: int
    max_attempts: int
    queue: str
    executor: Executor
    concurrency_limit: int | None
    is_active: bool
    version: int
    created_at: datetime
    updated_at: datetime


class Definitions(Told):
    definitions: list[Definition]


class MakeDefinition(Asked):
    """`command` is a key of the reviewed list of commands; without it, the definition's own key."""

    key: DefinitionKey
    description: Annotated[str, Field(max_length=1000)] = ""
    command: Short | None = None
    arg_schema: dict[str, Any] = Field(default_factory=dict)
    timeout_seconds: Annotated[int, Field(ge=1, le=7 * 86_400)] = 3600
    max_attempts: Annotated[int, Field(ge=1, le=100)] = 3
    queue: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,62}$")] = "default"
    executor: Executor | None = None
    concurrency_limit: Annotated[int, Field(ge=1, le=10_000)] | None = None


class ChangeDefinition(Changes):
    """What is left out stays as it is. `concurrency_limit` null: no limit."""

    emptied = frozenset({"concurrency_limit"})
    description: Annotated[str, Field(max_length=1000)] | None = None
    arg_schema: dict[str, Any] | None = None
    timeout_seconds: Annotated[int, Field(ge=1, le=7 * 86_400)] | None = None
    max_attempts: Annotated[int, Field(ge=1, le=100)] | None = None
    queue: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,62}$")] | None = None
    executor: Executor | None = None
    concurrency_limit: Annotated[int, Field(ge=1, le=10_000)] | None = None
    is_active: bool | None = None


class TenantLimit(Told):
    """`concurrency_limit`: how many jobs of the tenant may run at once; null: as many as there are workers for. `running`: now."""

    concurrency_limit: int | None
    running: int


class PutTenantLimit(Because):
    """`concurrency_limit`: null removes the limit."""

    concurrency_limit: Annotated[int, Field(ge=1, le=10_000)] | None


class AddJob(Asked):
    definition_key: Short
    payload: dict[str, Any] = Field(default_factory=dict)
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = USUAL_PRIORITY
    scheduled_for: Instant | None = None
    dedupe_key: Annotated[str, Field(min_length=1, max_length=200)] | None = None


class AddJobs(Asked):
    """Each as `POST /jobs` takes it. They are judged one by one, so a bad one does not hold up the others."""

    jobs: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MOST_ADDED)]


class StartedJob(Told):
    id: UUID
    tenant_id: UUID
    status: Status
    definition_key: str
    queued_at: datetime


class AddedJob(Told):
    """In place of a job that was asked for. `found`: one with the same dedupe key is not over yet, and this is its id.
    Without an id nothing was added: `code` and `detail` say why."""

    id: UUID | None = None
    found: bool = False
    code: str | None = None
    detail: str | None = None


class AddedJobs(Told):
    jobs: list[AddedJob]


class Job(Told):
    id: UUID
    tenant_id: UUID
    definition_id: UUID
    definition_key: str
    version: int
    source: Literal["manual", "event", "schedule", "system"]
    source_ref: str | None
    status: Status
    priority: int
    payload: dict[str, Any]
    dedupe_key: str | None
    scheduled_for: datetime
    queued_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    attempt_count: int
    max_attempts: int
    claimed_by_worker: str | None
    last_error: str | None
    created_by: str | None
    cancel_requested_at: datetime | None
    correlation_id: str | None


class JobWhy(Told):
    """Why it has not ended. `ahead`: jobs of its tenant that are taken before it; `more`: at least so many. `workers`: that
    were seen in the last minute for its queue."""

    code: decide.WhyCode
    sentence: str
    until: datetime | None
    queue: str
    workers: int
    ahead: int | None
    more: bool


class JobDetail(Job):
    """`why`: null once it has ended."""

    why: JobWhy | None


class Jobs(Told):
    jobs: list[Job]
    next: str | None


class Attempt(Told):
    """In a list the last 2,000 characters of its logs; alone the last 64 KB."""

    attempt_no: int
    worker_id: str
    pid: int | None
    started_at: datetime
    finished_at: datetime | None
    exit_code: int | None
    status: Literal["running", "succeeded", "failed", "timeout", "canceled"]
    stdout_tail: str | None
    stderr_tail: str | None
    error_text: str | None


class Attempts(Told):
    attempts: list[Attempt]
    next: str | None


class Percentiles(Told):
    """In seconds."""

    p50: float
    p95: float


class Rates(Told):
    """Per minute, over the last hour, or over the newest 500 jobs if there were more. Those but for `enqueued` are of jobs
    that have ended. `failed` and `retried` count attempts: one that failed, and one that was not the first."""

    enqueued: float
    succeeded: float
    failed: float
    retried: float
    dead_letter: float


class DepthOfTenant(Told):
    """`more`: at least so many are queued. `scheduled`: for later, or for their next attempt."""

    tenant_id: UUID
    tenant: str | None
    queued: int
    more: bool
    scheduled: int
    running: int
    oldest_queued_age_s: float | None


class DepthOfQueue(Told):
    """`workers`: seen in the last minute."""

    name: str
    executor: Executor
    definitions: int
    queued: int
    more: bool
    scheduled: int
    running: int
    workers: int
    oldest_queued_age_s: float | None


class JobsEverywhere(Told):
    """Of all tenants: the hundred that have waited longest, and the queues."""

    tenants: list[DepthOfTenant]
    queues: list[DepthOfQueue]


class Summary(Told):
    """How many jobs there are by status; `more`: these were counted up to 10,000. `queue_latency`: from due to started, and
    `run_time`: of the last attempts of jobs that ended within the hour. `everywhere` is for super admins."""

    queued: int
    running: int
    succeeded: int
    failed: int
    dead_letter: int
    canceled: int
    more: list[Status]
    oldest_queued_age_s: float | None
    per_minute: Rates
    queue_latency: Percentiles | None
    run_time: Percentiles | None
    everywhere: JobsEverywhere | None


class Worker(Told):
    """`stale`: not heard of for a minute."""

    worker_id: str
    hostname: str
    version: str
    queues: list[str]
    started_at: datetime
    last_seen_at: datetime
    running_count: int
    stale: bool


class Workers(Told):
    workers: list[Worker]


@operation(router, "GET", "/admin/jobs/definitions", READS, tag="jobs")
def list_definitions() -> Definitions:
    """The jobs that can be run, by key."""
    return Definitions(definitions=[Definition(**row) for row in desk(router).all(store.LIST_DEFINITIONS)])


@operation(router, "POST", "/admin/jobs/definitions", SUPERS, tag="jobs", answers=creates(runs.Started), refuses=[409])
def make_definition(asked: Annotated[MakeDefinition, Body()], idempotency_key: Key = None) -> Response[str]:
    """Define a job: a command of the reviewed list, with the arguments it takes and its limits."""
    here, request = desk(router), b"definition:" + asked.model_dump_json().encode()
    row = {
        **asked.model_dump(),
        "id": str(new_id()),
        "command": asked.command or asked.key,
        "is_active": True,
        "version": 1,
    }
    row, body = _checked(here, row, asked.executor), jsonb({"id": row["id"]})
    with here.begin() as (line, tx):
        if (kept := here.once(line, idempotency_key, request)) is not None:
            return Response(kept.status, "application/json", kept.body)
        if not _written(here, line, row):
            raise Problem(
                409, "key_taken", f"A job definition with the key {asked.key!r} exists. Change that one instead."
            )
        here.audit(tx, "definition.create", f"definition:{row['id']}", after=row)
        here.keep(line, idempotency_key, 201, body)
    return Response(201, "application/json", body)


@operation(router, "PATCH", "/admin/jobs/definitions/<definition_id>", SUPERS, tag="jobs", refuses=[409])
def change_definition(
    definition_id: Annotated[UUID, Path(description="The definition's id")], asked: Annotated[ChangeDefinition, Body()]
) -> Done:
    """Change a definition. Jobs that are waiting keep the version they were made with; switching it off holds them."""
    here = desk(router)
    with here.begin() as (line, tx):
        found = line.one(store.ONE_DEFINITION, {"id": definition_id})
        if found is None:
            raise NotFound
        before = {**found, "id": str(found["id"])}
        given = asked.model_dump(exclude_unset=True)
        row = {**before, **given, "version": found["version"] + 1}
        row = _checked(here, row, given.get("executor") or found["executor"], changes_schema="arg_schema" in given)
        if not _written(here, line, row):
            raise Problem(
                409, "changed_meanwhile", "Somebody else changed this definition at the same time. Look again."
            )
        here.audit(tx, "definition.change", f"definition:{definition_id}", before=before, after=row)
    return Done()


def _written(here: Desk, line: Line, row: Mapping[str, Any]) -> bool:
    """The database asks again whether it is a super admin."""
    subject = here.principal.actor.removeprefix("user:")
    (answer,) = line.all(store.PUT_DEFINITION, {"subject": subject, "definition": jsonb(row)})
    return bool(answer["written"])


def _checked(
    here: Desk, row: Mapping[str, Any], executor: Executor | None, *, changes_schema: bool = True
) -> dict[str, Any]:
    """A schema that stays as it is was checked by the rules of its day: nobody must mend it to switch its definition off."""
    from shared.job_queue.adapters.schemas import check_schema  # noqa: PLC0415 - no other route needs jsonschema

    ports = jobs_of(here.kinds).ports
    if row["command"] not in ports.commands:
        known = ", ".join(sorted(ports.commands))
        raise Problem(422, "unknown_command", f"command: {row['command']!r} is not on the list. Available: {known}.")
    schema = row["arg_schema"]
    if changes_schema:
        schema = decide.checked_schema(schema)
        check_schema(schema)
    starts = ports.commands[row["command"]].starts is not None
    chosen = decide.executor(row["timeout_seconds"], executor, ports.longest_on_lambda_s, starts=starts)
    return {**row, "arg_schema": schema, "executor": chosen}


@operation(router, "GET", "/admin/jobs/limit", MANAGES, tag="jobs")
def get_job_limit() -> TenantLimit:
    """How many jobs of the tenant may run at once, and how many do."""
    row = desk(router).one(store.LIMIT)
    assert row is not None
    return TenantLimit(**row)


@operation(router, "PUT", "/admin/jobs/limit", SUPERS, tag="jobs")
def put_job_limit(asked: Annotated[PutTenantLimit, Body()]) -> Done:
    """Limit how many jobs of the tenant run at once. What is running goes on."""
    here, after = desk(router), {"concurrency_limit": asked.concurrency_limit}
    with here.begin() as (line, tx):
        before = line.one(store.LIMIT, {"tenant_id": here.tenant_id})
        assert before is not None
        params = {"subject": here.principal.actor.removeprefix("user:"), "most": asked.concurrency_limit}
        (answer,) = line.all(store.PUT_LIMIT, params)  # the database asks again whether it is a super admin
        if not answer["written"]:
            raise Problem(403, "not_allowed", "Only super admins can change this limit.")
        was = {"concurrency_limit": before["concurrency_limit"]}
        here.audit(tx, "job_limit.put", f"tenant:{here.tenant_id}", before=was, after=after, reason=asked.reason)
    return Done()


@operation(router, "POST", "/jobs", STARTS, tag="jobs", answers=creates(StartedJob, or_finds=True))
def add_job(asked: Annotated[AddJob, Body()], idempotency_key: Key = None) -> Response[str]:
    """Add a job to its queue. With the dedupe key of a job that is not over yet, that one is answered with 200."""
    here = desk(router)
    params, request = asked.model_dump(mode="json", exclude_none=True), b"job:" + asked.model_dump_json().encode()
    return runs.start(here, KIND, params, None, idempotency_key, request, store.ADDED)


@operation(router, "POST", "/jobs/batch", STARTS, tag="jobs")
def add_jobs(asked: Annotated[AddJobs, Body()], idempotency_key: Key = None) -> AddedJobs:
    """Add up to 1,000 jobs at once. The answer has one entry for each, in the same order: its ID, or why it was refused."""
    here = desk(router)
    request, read = b"jobs:" + asked.model_dump_json().encode(), [_read(each) for each in asked.jobs]
    return runs.looking_twice(lambda: _add_jobs(here, read, idempotency_key, request))


def _add_jobs(here: Desk, read: Sequence[dict[str, Any] | Refused], key: str | None, request: bytes) -> AddedJobs:
    good = [each for each in read if not isinstance(each, Refused)]
    with here.begin() as (line, tx):
        kept = here.once(line, key, request)
        if kept is not None:
            return AddedJobs.model_validate_json(kept.body)
        wanted = [(each, here.by()) for each in good]
        started, dues = (
            relay.create_runs(tx, here.ports, here.kinds[KIND], here.tenant_id, wanted) if wanted else ([], ())
        )
        of_good = iter(started)
        answer = AddedJobs(jobs=[_added(each if isinstance(each, Refused) else next(of_good)) for each in read])
        here.keep(line, key, 200, answer.model_dump_json())
        point(Point.START_WRITTEN)
    point(Point.START_COMMITTED)
    deliver(here.ports, dues)
    return answer


def _read(asked: dict[str, Any]) -> dict[str, Any] | Refused:
    try:
        return parse(AddJob, asked).model_dump(mode="json", exclude_none=True)
    except Refused as refused:
        return refused


def _added(started: relay.Started | Refused) -> AddedJob:
    if isinstance(started, Refused):
        return AddedJob(code=started.code, detail=started.message)
    return AddedJob(id=started.run_id, found=started.already)


@operation(router, "GET", "/jobs", READS, tag="jobs", elsewhere={"offset": BY_CURSOR})
def list_jobs(
    status: Annotated[Status | None, Query()] = None,
    source: Annotated[Literal["manual", "event", "schedule", "system"] | None, Query()] = None,
    created_after: Annotated[Instant | None, Query()] = None,
    created_before: Annotated[Instant | None, Query()] = None,
    limit: Limit = USUAL_PAGE,
    cursor: Cursor = None,
) -> Jobs:
    """Jobs, newest first."""
    here = desk(router)
    wanted = {"status": status, "source": source, "after": created_after, "before": created_before}
    pager = here.pager("jobs", wanted)
    place = pager.place(cursor)
    params: dict[str, Any] = {"most": limit + 1, **here.own()}
    params |= {} if source is None else {"sources": SOURCES[source]}
    params |= {} if created_after is None else {"created_after": created_after}
    params |= {} if created_before is None else {"created_before": created_before}
    params |= {} if place is None else {"after_at": place[0], "after_id": place[1]}
    statement = store.list_jobs(
        status, own=bool(here.own()), source=source is not None, since=created_after is not None, until=created_before is not None,
        after=place is not None,
    )  # fmt: skip
    rows = here.all(statement, **params)
    last = rows[limit - 1] if len(rows) > limit else None
    return Jobs(
        jobs=[_job(row) for row in rows[:limit]],
        next=None if last is None else pager.cursor([last["queued_at"].isoformat(), str(last["id"])]),
    )


@operation(router, "GET", "/jobs/summary", READS, tag="jobs")
def summarize_jobs() -> Summary:
    """How many jobs there are by status, how long they wait and run, and how many come and end per minute."""
    here = desk(router)
    subject = here.principal.actor.removeprefix("user:") if here.principal.is_super else None
    row = here.one(store.summary(own=bool(here.own())), subject=subject, **here.own())
    assert row is not None
    counts, ended = row["counts"], row["ended"]
    found: dict[Status, int] = {
        "queued": max(0, counts["queued"] + counts["running"] - row["taken"]),
        "running": row["taken"],
        "succeeded": counts["succeeded"],
        "failed": counts["failed"] - counts["dead_letter"],
        "dead_letter": counts["dead_letter"],
        "canceled": counts["canceled"],
    }
    told = {str(name): min(n, store.MOST_COUNTED) for name, n in found.items()}
    more: list[Status] = [name for name, n in found.items() if n > store.MOST_COUNTED]
    if counts["failed"] > store.MOST_COUNTED:  # of which some are dead letters: there may be more of both
        more = [*(name for name in more if name != "dead_letter"), "failed", "dead_letter"]
    minutes = row["ended_window_s"] / 60
    rates = {name: ended[name] / minutes for name in ("succeeded", "failed", "retried", "dead_letter")}
    return Summary(
        **told,
        more=more,
        oldest_queued_age_s=row["oldest_s"],
        per_minute=Rates(enqueued=row["made"]["enqueued"] / (row["made"]["window_s"] / 60), **rates),
        queue_latency=_percentiles(ended["queue_s"]),
        run_time=_percentiles(ended["run_s"]),
        everywhere=row["everywhere"],
    )


def _percentiles(found: Sequence[float] | None) -> Percentiles | None:
    return None if found is None or found[0] is None else Percentiles(p50=found[0], p95=found[1])


@operation(router, "GET", "/jobs/<job_id>", READS, tag="jobs")
def get_job(job_id: JobId) -> JobDetail:
    """A job as it is now, and why it waits."""
    here = desk(router)
    job, facts = _found(here, job_id), here.one(store.WHY, job_id=job_id)
    return JobDetail(**{**job, "payload": redact_json(job["payload"])}, why=None if facts is None else _why(facts))


def _why(facts: Mapping[str, Any]) -> JobWhy:
    code, sentence = decide.why(facts)
    waits = facts["taken_at"] is None and facts["due"]
    return JobWhy(
        code=code,
        sentence=sentence,
        until=facts["scheduled_for"] if code in {"retrying", "scheduled"} else None,
        queue=facts["queue"].partition("@")[0],
        workers=facts["workers"],
        ahead=min(facts["ahead"], MOST_AHEAD) if waits else None,
        more=facts["ahead"] > MOST_AHEAD,
    )


@operation(router, "POST", "/jobs/<job_id>/cancel", STARTS, tag="jobs", refuses=[409])
def cancel_job(job_id: JobId, because: Annotated[Because, Body()]) -> Done:
    """Cancel a job. One that nobody is running ends at once; a running command is stopped at its next heartbeat."""
    here = desk(router)
    _found(here, job_id)
    relay.cancel_run(here.ports, here.kinds[KIND], here.tenant_id, job_id, here.by(because.reason))
    return Done()


@operation(router, "POST", "/jobs/<job_id>/retry", STARTS, tag="jobs", refuses=[409])
def retry_job(job_id: JobId, because: Annotated[Because, Body()]) -> Done:
    """Run a job that has ended once more, with a fresh budget of attempts. They are numbered on."""
    here = desk(router)
    _found(here, job_id)
    relay.retry_run(here.ports, here.kinds[KIND], here.tenant_id, job_id, here.by(because.reason))
    return Done()


@operation(router, "GET", "/jobs/<job_id>/attempts", READS, tag="jobs")
def list_attempts(job_id: JobId, limit: Limit = USUAL_PAGE, cursor: Cursor = None) -> Attempts:
    """The attempts of a job, newest first, with the end of what each printed. A running one is up to date."""
    here = desk(router)
    _found(here, job_id)
    pager = here.pager("attempts", {"job_id": job_id})
    place = pager.place(cursor)
    rows = here.all(store.ATTEMPTS, job_id=job_id, before=2**31 - 1 if place is None else place[0], most=limit + 1)
    page = [Attempt(**row) for row in rows[:limit]]
    return Attempts(attempts=page, next=pager.cursor([page[-1].attempt_no]) if len(rows) > limit else None)


@operation(router, "GET", "/jobs/<job_id>/attempts/<attempt_no>", READS, tag="jobs")
def get_attempt(
    job_id: JobId, attempt_no: Annotated[int, Path(ge=1, le=2**31 - 1, description="Counted from 1")]
) -> Attempt:
    """One attempt, with the last 64 KB of what it printed. A running one is up to date."""
    row = desk(router).one(store.ATTEMPT, job_id=job_id, attempt_no=attempt_no)
    if row is None:
        raise NotFound
    return Attempt(**row)


@operation(router, "GET", "/admin/jobs/workers", SUPERS, tag="jobs")
def list_workers() -> Workers:
    """The workers that were seen in the last week, newest first."""
    here = desk(router)
    subject = here.principal.actor.removeprefix("user:")
    return Workers(workers=[Worker(**row) for row in here.all(store.WORKERS, subject=subject)])


def _found(here: Desk, job_id: UUID) -> Mapping[str, Any]:
    row = here.one(store.ONE_JOB, job_id=job_id)
    if row is None:
        raise NotFound
    return row


def _job(row: Mapping[str, Any]) -> Job:
    return Job(**{**row, "payload": redact_json(row["payload"])})
