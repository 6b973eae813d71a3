"""Remote queries from start to the last asset, against the stand-in."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from random import Random
from uuid import UUID

import pytest

from functions.catalogue import all_commands
from infra.local.standins.mce import Asked
from shared.kernel.run import start_run
from shared.query_run.model import QueryParams
from shared.query_run.steps import READ_SIZE
from tests.support.queries import QueryRig, sql
from tests.support.rig import TENANT


@pytest.mark.full
def test_a_query_runs_becomes_ready_and_leaves_nothing(queries: QueryRig) -> None:
    queries.configure(results_kept_s=3_000)
    run_id = queries.start(sql(seconds=12, rows=7))

    assert queries.finish(run_id) == "succeeded ready", queries.run(run_id)["error"]
    shown = queries.shown(run_id)
    assert (shown["status"], shown["row_count"]) == ("ready", 7)
    assert shown["columns"] == [{"name": "id", "type": "Text"}, {"name": "name", "type": "Text"}]
    assert shown["columns_from"] == "select list, as text"
    assert [row["status"] for row in queries.signals("query_run.ready")] == ["ready"]
    queries.pass_time(60)
    assert len(queries.standin.left()) == 1, "the results can be read, the definition is gone"
    queries.pass_time(3_600)
    assert queries.standin.left() == []
    assert queries.standin.wrong == []
    assert len(queries.standin.activities) == 1


@pytest.mark.full
@pytest.mark.parametrize(("tenants", "each"), [(2, 10), pytest.param(10, 50, marks=pytest.mark.long)])
def test_tenants_with_many_queries_get_the_truth_from_a_system_that_lies(
    queries: QueryRig, tenants: int, each: int
) -> None:
    """Everything goes wrong now and then. What is ready is the truth, and the system was not asked too often."""
    standin, chance = queries.standin, Random(5)
    for fault, share in {
        "early_completed": 0.5, "odd_running": 0.05, "not_running": 0.02, "text_running": 0.05, "server_error": 0.03,
        "rate_limited": 0.002, "throttle": 0.002, "reset": 0.01, "truncated": 0.01, "no_status": 0.05, "token_expired": 0.002,
        "odd_status": 0.2, "no_rowset": 0.05,
    }.items():  # fmt: skip
        standin.misbehave(fault, chance=share, retry_after="5", budget=None if share > 0.1 else 400)
    standin.misbehave("slow", chance=0.02, seconds=0.01)
    wanted = {}
    for tenant in range(tenants):
        for number in range(each):
            rows = chance.choice((0, 1, 9, 60))
            text = sql(seconds=chance.choice((1, 20, 90, 400)), rows=rows, n=number)
            wanted[queries.start(text, tenant=UUID(int=0xC0 + tenant))] = (text, rows)
    for _ in range(400):
        queries.pass_time(10)
        if not queries.rows("select 1 from run where status in ('queued', 'running') limit 1"):
            break

    standin.behave()
    outcomes = Counter(row["outcome"] for row in queries.rows("select outcome from run"))
    assert outcomes == {"ready": tenants * each}, outcomes
    asked: dict[str, list[Asked]] = {}
    for question in standin.asked:
        asked.setdefault(question.key, []).append(question)
    client = queries.mce(TENANT, QueryParams(sql_text="rows", mid="7281698"), lambda: 30.0)
    token = client.authenticate()
    for run_id, (text, rows) in wanted.items():
        cursor = queries.cursor(run_id)
        shown = queries.rows("select row_count, target_key from query_run where run_id = :id", id=run_id)[0]
        assert shown["row_count"] == rows
        assert hashed(client.rows(token, shown["target_key"], 1, 100).rows) == hashed(standin.truth(text))
        # What ran and wrote nothing while its answer was lost has left no trace: only that is started again.
        assert standin.performs(cursor["query_key"]) == 1 or not rows
        of_query, of_rows = asked[cursor["query_key"]], asked[shown["target_key"]]
        assert sum(question.what == "status" for question in of_query) <= 120
        reads = [question for question in of_rows if question.what == "rowset" and question.size == READ_SIZE]
        assert len(reads) <= 6
        probes = [question.at for question in of_rows if question.what == "rowset" and question.size == 1]
        probes = probes[len(probes) - cursor["row_probe_attempts"] :]  # the first may have looked for a lost start
        assert all(after - before >= 15 for before, after in pairwise(probes))
    assert standin.wrong == []
    assert max(row["ms"] for row in queries.rows("select ms from step")) < 10_000
    assert queries.rows("select * from query_slot") == []
    assert queries.rows("select * from lane where claim_token is not null") == [], "nothing runs between polls"


def hashed(rows: Sequence[Mapping[str, str | None]]) -> str:
    return hashlib.sha256(json.dumps([dict(row) for row in rows], sort_keys=True).encode()).hexdigest()


def test_a_job_may_run_a_query(queries: QueryRig) -> None:
    """By the command that the kind declares: a job's payload is the run's parameters."""
    (command,) = [each for each in all_commands() if each.key == "query_runs.execute"]
    assert command.kind == queries.kind.name
    payload = command.params({"sql_text": sql(seconds=2, rows=3), "mid": "7281698"})
    run_id = start_run(queries.ports, queries.kind, TENANT, payload)

    assert queries.finish(run_id) == "succeeded ready"
