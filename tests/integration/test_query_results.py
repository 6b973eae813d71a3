"""Results as files, and what an account holds that belongs to no run."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import pytest
import sqlalchemy as sa

from infra.local.standins.mce import Target
from shared.kernel import aws
from shared.kernel import run as runs
from shared.kernel.clock import new_id
from shared.kernel.deliver import deliver
from shared.kernel.errors import Permanent, Transient
from shared.kernel.files import S3Files, UploadGone
from shared.kernel.http import AnswerTooLarge
from shared.kernel.model import Continue, Finish, NewLane, Turn
from shared.kernel.tokens import Token
from shared.query_run import export
from shared.query_run.adapters.mce import Mce
from shared.query_run.export import PAGE, aligned, as_csv, export_step
from shared.query_run.model import ExportCursor, QueryParams, Rowset, customer_key, export_key, export_lane
from shared.query_run.ports import QueryMetric
from tests.support.files import MemoryFiles
from tests.support.queries import QueryRig, sql
from tests.support.rig import TENANT

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def wanted(queries: QueryRig, run_id: UUID, **changes: Any) -> None:
    """Somebody asks for the file, as the API does."""
    shown = queries.shown(run_id)
    cursor = ExportCursor(
        target_key=shown["target_key"],
        columns=[column["name"] for column in shown["columns"]],
        rows=shown["row_count"],
        until=shown["results_expire_at"],
    ).but(**changes)
    with queries.ports.store.begin(TENANT) as tx:
        run = tx.lock_run(run_id, TENANT)
        assert run is not None
        lane = NewLane(key=export_lane(run.epoch), cursor=cursor.to_json(), holds_run=False)
        dues = runs.create_lanes(tx, run, [lane], queries.kind, queries.ports)
    deliver(queries.ports, dues)


def read(body: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(body.decode(), newline="")))


@pytest.mark.full
def test_a_result_becomes_a_file_that_leaves_when_it_expires(queries: QueryRig) -> None:
    queries.configure(results_kept_s=600)
    text = sql(seconds=2, rows=2 * PAGE + 7)
    run_id = queries.start(text)
    assert queries.finish(run_id) == "succeeded ready"
    wanted(queries, run_id)
    queries.pass_time(20)

    key = export_key(TENANT, run_id, 1)
    assert read(queries.files.held[key]) == queries.standin.truth(text)
    assert queries.lane(run_id, "export/1")["status"] == "done"
    assert queries.counted[QueryMetric.EXPORTED] == 1
    assert queries.run(run_id)["status"] == "succeeded"
    queries.pass_time(700)
    assert queries.files.held == {}
    assert queries.standin.left() == []


def test_a_file_that_comes_too_late_is_not_written(queries: QueryRig) -> None:
    run_id = queries.start(sql(seconds=2, rows=3))
    assert queries.finish(run_id) == "succeeded ready"
    wanted(queries, run_id, until=NOW - timedelta(days=900))
    queries.pass_time(20)

    lane = queries.lane(run_id, "export/1")
    assert (lane["status"], lane["last_error"]["code"]) == ("failed", "results_expired")
    assert queries.files.held == {}


def test_a_file_is_not_moved_into_the_next_epoch(queries: QueryRig) -> None:
    """Written by an old lane, it would be taken for what the next epoch found, and nobody would remove it."""
    queries.configure(results_kept_s=600)
    run_id = queries.start(sql(seconds=2, rows=3))
    assert queries.finish(run_id) == "succeeded ready"
    wanted(queries, run_id)
    queries.rows("update run set epoch = 2 where id = :id returning id", id=run_id)
    queries.pass_time(20)

    assert list(queries.files.held) == [export_key(TENANT, run_id, 1)]
    queries.pass_time(700)
    assert queries.files.held == {}


# One step at a time


class Exported:
    """A file as steps write it: `say(page, size)` is the remote system."""

    def __init__(self, rows: int, say: Any = None, part: int = 400_000) -> None:
        self.files, self.rows, self.part = MemoryFiles(), rows, part
        self.say = say or (lambda page, size: Rowset(count=rows, rows=self.truth(page, size), mark=""))
        self.run_id, self.steps = new_id(), 0
        self.cursor = ExportCursor(target_key="k", columns=["Id", "Name"], rows=rows, until=NOW + timedelta(hours=1))

    def truth(self, page: int, size: int) -> list[dict[str, str | None]]:
        numbers = range((page - 1) * size, min(page * size, self.rows))
        return [{"id": str(n), "name": f'"{n}", and\r\nmore' + "x" * 40} for n in numbers]

    def step(self, *, again: bool = False) -> bool:
        """Whether it was the last; `again`: what it did is forgotten, as by a process that died before its commit."""
        turn: Any = Turn(
            lane_id=self.run_id, run_id=self.run_id, tenant_id=TENANT, kind="query_run", key="export/1", holds_run=False,
            epoch=1, seq=self.steps, resend_no=0, token=new_id(), cursor={}, params={}, claims=0, attempts=0, steps=0,
            max_steps=9, deadline_at=None, cancel_at=None, run_status=None, run_epoch=1, correlation_id=None, now=NOW,  # type: ignore[arg-type]
        )  # fmt: skip
        decision = export_step(turn, self.cursor, self.say, self.files, part=self.part)
        assert isinstance(decision, Continue | Finish)
        if again:
            return False
        self.steps += 1
        if isinstance(decision, Continue):
            assert decision.cursor is not None
            self.cursor = ExportCursor.read(decision.cursor)
        return isinstance(decision, Finish)

    @property
    def body(self) -> bytes:
        return self.files.held[export_key(TENANT, self.run_id, 1)]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.files.PART", 400_000)


@pytest.mark.full
@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("slow", [False, True], ids=["in time", "a page a step"])
def test_a_large_result_is_written_in_parts_and_every_step_may_happen_twice(
    monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    if slow:
        monkeypatch.setattr(export, "STEP_S", 0.0)
    made = Exported(9 * PAGE + 1)
    while True:
        made.step(again=True)
        if made.step():
            break

    assert made.steps > 2
    found = read(made.body)
    assert [row["Id"] for row in found] == [str(n) for n in range(9 * PAGE + 1)]
    assert found[3]["Name"].startswith('"3", and\r\nmore')


@pytest.mark.usefixtures("small_parts")
def test_an_upload_that_the_bucket_gave_up_begins_anew() -> None:
    made = Exported(5 * PAGE)
    assert not made.step()
    made.files.uploads.clear()
    while not made.step():
        pass

    assert len(read(made.body)) == 5 * PAGE


@pytest.mark.parametrize("most", [1_000, 4])
def test_rows_that_are_too_wide_for_a_page_come_in_smaller_ones(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(export, "STEP_S", 0.0)  # a page per step
    rows = PAGE + 107

    def say(page: int, size: int) -> Rowset:
        if size > most and page > 1:
            raise AnswerTooLarge("The answer has more than 8 MB.")
        return Rowset(count=rows, rows=file.truth(page, size), mark="")

    file = Exported(rows, say)
    while not file.step():
        assert file.cursor.rows_read <= rows
    assert read(file.body) == [{"Id": row["id"], "Name": row["name"]} for row in file.truth(1, rows)]


def test_a_row_that_is_too_wide_for_any_page_is_no_endless_file() -> None:
    def say(page: int, size: int) -> Rowset:
        raise AnswerTooLarge("The answer has more than 8 MB.")

    file = Exported(9, say)
    file.cursor = file.cursor.but(size=4)
    with pytest.raises(AnswerTooLarge):
        file.step()


def test_rows_that_nobody_has_counted_are_counted_for_their_file() -> None:
    """The fast path ends a run with the first row that it sees."""
    file = Exported(PAGE + 7)
    file.cursor = file.cursor.but(rows=None)
    while not file.step():
        pass
    assert len(read(file.body)) == PAGE + 7


def test_no_rows_are_a_file_with_its_header() -> None:
    made = Exported(0)
    assert made.step()
    assert made.body == b"Id,Name\r\n"


def test_a_result_that_changed_is_no_file() -> None:
    with pytest.raises(Permanent):
        Exported(3, lambda page, size: Rowset(count=4, rows=[{}] * 4, mark="")).step()
    with pytest.raises(Transient):
        Exported(3, lambda page, size: Rowset(count=3, rows=[{}] * 2, mark="")).step()


def test_values_are_found_by_their_names_in_any_case() -> None:
    assert aligned(["Id", "E-Mail"], {"e-mail": "a@b", "ID": "1", "other": "x"}) == ["1", "a@b"]
    assert as_csv([["a", None], ["=1+1", "b\nc"]]) == b'a,\r\n=1+1,"b\nc"\r\n'


# What belongs to nobody


def stray(queries: QueryRig, key: str) -> None:
    queries.standin.targets[key] = Target(id=str(new_id()), key=key, columns=["id"])


@pytest.mark.full
def test_what_belongs_to_no_run_is_listed_and_never_removed(queries: QueryRig) -> None:
    queries.configure(results_kept_s=60, look_around_s=3_600)
    stray(queries, "BTN_of_another_deployment")
    stray(queries, "customers")
    queries.standin.keys_a_page = 1
    live = queries.start(sql(seconds=20_000, rows=1))
    run_id = queries.start(sql(seconds=2, rows=1))
    assert queries.finish(run_id) == "succeeded ready"
    queries.pass_time(200)

    (found,) = queries.rows("select kind, key, account from query_stray")
    assert (found["kind"], found["key"]) == ("data_extension", "BTN_of_another_deployment")
    assert {"customers", "BTN_of_another_deployment"} < set(queries.standin.left()), "nobody touched them"
    assert queries.cursor(live)["target_key"] in queries.standin.left()

    looks = queries.standin.calls["find DataExtension"]
    other = queries.start(sql(seconds=2, rows=1))
    assert queries.finish(other) == "succeeded ready"
    queries.pass_time(200)
    assert queries.standin.calls["find DataExtension"] == looks, "an hour has not passed"

    queries.standin.targets.pop("BTN_of_another_deployment")
    queries.pass_time(3_600)
    last = queries.start(sql(seconds=2, rows=1))
    assert queries.finish(last) == "succeeded ready"
    queries.pass_time(200)
    assert queries.rows("select * from query_stray") == [], "it is gone"


@pytest.mark.full
def test_what_belongs_to_no_run_is_found_behind_all_that_does(queries: QueryRig) -> None:
    queries.configure(results_kept_s=60)
    live = queries.start(sql(seconds=20_000, rows=1))
    for epoch in range(2, 600):
        stray(queries, customer_key(live, epoch, "target"))
    stray(queries, "BTN_of_another_deployment")
    with queries.owner.connect() as connection:
        connection.execute(
            sa.text("""insert into remote_call (run_id, epoch, key, tenant_id, kind, leaves_asset, intended_at)
                       select :id, n, 'target', :tenant, 'data_extension', true, pg_catalog.now() from generate_series(2, 599) n"""),
            {"id": live, "tenant": TENANT},
        )
    run_id = queries.start(sql(seconds=2, rows=1))
    assert queries.finish(run_id) == "succeeded ready"
    queries.pass_time(200)

    assert [row["key"] for row in queries.rows("select key from query_stray")] == ["BTN_of_another_deployment"]


@pytest.mark.full
def test_what_comes_and_goes_while_an_account_is_looked_through_is_no_stray(queries: QueryRig) -> None:
    live = queries.start(sql(seconds=20_000, rows=1))
    queries.pass_time(30)
    comes, goes = customer_key(live, 9, "target"), queries.cursor(live)["target_key"]

    class Busy(Mce):
        def keys(self, token: Token, type_: str, prefix: str, most: int) -> list[str]:
            with queries.owner.connect() as connection:  # other steps, meanwhile
                connection.execute(
                    sa.text("update remote_call set cleaned_at = pg_catalog.now() where key = 'target' and epoch = 1")
                )
                connection.execute(
                    sa.text("""insert into remote_call (run_id, epoch, key, tenant_id, kind, leaves_asset, intended_at)
                               values (:id, 9, 'target', :tenant, 'data_extension', true, pg_catalog.now())
                               on conflict do nothing"""),
                    {"id": live, "tenant": TENANT},
                )
            return [*super().keys(token, type_, prefix, most), comes, goes, "BTN_of_another_deployment"]

    def busy(tenant: UUID, params: QueryParams, time_left_s: Callable[[], float]) -> Mce:
        mce = queries.mce(tenant, params, time_left_s)
        mce.__class__ = Busy
        return mce

    queries.use(busy, results_kept_s=60)
    run_id = queries.start(sql(seconds=2, rows=1))
    assert queries.finish(run_id) == "succeeded ready"
    queries.pass_time(200)

    assert {row["key"] for row in queries.rows("select key from query_stray")} == {"BTN_of_another_deployment"}


@pytest.mark.full
def test_an_account_that_cannot_be_looked_through_keeps_what_was_known(queries: QueryRig) -> None:
    queries.configure(results_kept_s=60, look_around_s=60)
    account = QueryParams(sql_text="rows", mid="7281698").token_account
    with queries.owner.connect() as connection:
        for key, of in (("BTN_gone", account), ("BTN_elsewhere", "another")):
            known = (
                "insert into query_stray values (:t, :of, 'data_extension', :key, pg_catalog.now(), pg_catalog.now())"
            )
            connection.execute(sa.text(known), {"t": TENANT, "of": of, "key": key})

    def look_around() -> list[str]:
        run_id = queries.start(sql(seconds=2, rows=1))
        assert queries.finish(run_id) == "succeeded ready"
        queries.pass_time(200)
        assert queries.lane(run_id, "clean/1")["status"] == "done"
        assert queries.standin.left() == []
        return [row["key"] for row in queries.rows("select key from query_stray order by key")]

    queries.standin.misbehave("html", on=["find QueryDefinition"])
    assert look_around() == ["BTN_elsewhere", "BTN_gone"], "half a look says nothing"
    queries.standin.behave()
    assert look_around() == ["BTN_elsewhere"], "what another account holds was not looked for"


def test_a_file_that_is_not_there_is_not_read() -> None:
    with pytest.raises(UploadGone):
        MemoryFiles().get("nothing")


@pytest.mark.full
def test_a_link_is_signed_as_every_region_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links of the old way are refused by newer regions, and by the local cloud."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    aws.client.cache_clear()
    url = S3Files({"BATON_BUCKET": "files"}).link("exports/a b.csv", "a.csv", 60)
    aws.client.cache_clear()

    asked = parse_qs(urlsplit(url).query)
    assert asked["X-Amz-Algorithm"] == ["AWS4-HMAC-SHA256"]
    assert (asked["X-Amz-Expires"], "Signature" in asked) == (["60"], False)
