"""Guards that a schedule starts runs of other kinds through the built-in commands: once for each due time, of its own tenant."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from functions.catalogue import all_commands, all_kinds
from shared.job_queue.build import RunStarter, build_ports
from shared.job_queue.steps import job_kind
from shared.kernel import run as relay
from shared.kernel.catalogue import Kind
from shared.kernel.step import do_turn
from shared.kernel.tick import tick
from tests.kinds.folder_sync.subject import CONNECT, connection_of
from tests.support.databases import ServerAdmin
from tests.support.house import ALICE, BOB
from tests.support.jobs import FakeRunner
from tests.support.triggers import TriggerOffice, trigger_office

ANY: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"provider_id": {"type": "string"}},
}
STARTED = "select id, kind, tenant_id, source, source_ref from run where kind <> 'job' order by created_at"


class BuiltIn(TriggerOffice):
    """Every kind as it is deployed, and the commands that they declare."""

    @property
    def job(self) -> Kind:
        engine = self.store._engine
        starter = RunStarter(engine, all_kinds(engine), self.queue, self.relay)
        return job_kind(
            build_ports(engine, {}, runner=FakeRunner(), worker_id="w1", commands=all_commands(), starter=starter)
        )

    def daily(self, tenant: UUID, definition: UUID, payload: dict[str, str]) -> UUID:
        """A schedule whose time of today was five minutes ago."""
        at = (self.now() - timedelta(minutes=5)).replace(second=0, microsecond=0)
        cron = f"{at.minute} {at.hour} * * *"
        trigger = self.trigger(tenant, cron_expr=cron, definition_id=definition, payload_template=payload)
        self.due_since(trigger, at)
        return trigger

    def work_off(self) -> None:
        while turns := self.take(10):
            for turn in turns:
                do_turn(turn, self.job, self.ports)


@pytest.fixture(scope="module")
def office(postgres_server: ServerAdmin, template: str) -> Iterator[BuiltIn]:
    with trigger_office(postgres_server, template, BuiltIn) as made:
        assert isinstance(made, BuiltIn)
        with made._own_engines[0].begin() as connection:
            connection.execute(CONNECT, {"id": connection_of(ALICE), "t": ALICE})
        yield made


@pytest.mark.parametrize(
    ("command", "kind", "payload"),
    [("searches.cycle", "search", {}), ("sync-dropbox", "folder_sync", {"provider_id": "box"})],
)
def test_a_schedule_starts_a_run_of_another_kind(
    office: BuiltIn, command: str, kind: str, payload: dict[str, str]
) -> None:
    office.sql("delete from run")
    definition = office.define(command, command=command, arg_schema=ANY)
    trigger = office.daily(ALICE, definition, payload)
    for _ in range(2):  # two ticks, one due time
        office.ticks()
        office.work_off()
    (job,) = office.jobs()
    (run,) = office.sql(STARTED)
    assert (run.kind, run.tenant_id, run.source, run.source_ref) == (kind, ALICE, "job", str(job.id))
    assert office.statuses(trigger) == ["started"]


def test_what_another_tenant_has_is_not_found(office: BuiltIn) -> None:
    """The connection is Alice's: Bob's schedule starts a job, which fails and says why."""
    office.sql("delete from run")
    definition: UUID = office.define("bobs", command="sync-dropbox", arg_schema=ANY, max_attempts=1)
    office.daily(BOB, definition, {"provider_id": "box"})
    office.ticks()
    office.work_off()
    (job,) = office.jobs()
    assert (job.status, office.sql(STARTED)) == ("failed", [])
    assert "no connection to dropbox" in office.attempts(job.id)[0].error_text


def test_an_end_that_its_kind_says_itself_is_heard_once(office: BuiltIn) -> None:
    """`query_run.failed` is what the kind says, and what the relay's `run.failed` of such a run is called as well."""
    office.sql("delete from run")
    office.sql(
        """insert into connection (id, tenant_id, provider, name, settings, secret_ref, created_by)
           values (gen_random_uuid(), :t, 'mce', 'main', '{}', 'x', 'x')""",
        t=ALICE,
    )
    kinds = all_kinds(office.store._engine)
    template = {"what": "{{event.label}}"}
    by_name = [
        office.trigger(event_name=name, payload_template=template, dedupe_window_seconds=0)
        for name in ("query_run.failed", "run.failed")
    ]
    asked = {"sql_text": "select a from b", "mid": "1", "connection": "main", "snippet_name": "people"}
    run_id = relay.start_run(office.ports, kinds["query_run"], ALICE, asked)
    office.sql("update run set deadline_at = now() - interval '1 s', check_at = now() where id = :id", id=run_id)
    tick(office.ports, kinds)
    assert len(office.sql("select id from signal where payload ->> 'run_id' = :id", id=str(run_id))) == 2
    assert [office.statuses(trigger) for trigger in by_name] == [["started"], ["started"]]
    assert [job.payload for job in office.jobs()] == [{"what": "people"}] * 2
