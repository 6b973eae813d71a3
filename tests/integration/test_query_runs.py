"""Remote queries from start to the last asset, against the stand-in."""

from __future__ import annotations

from collections import Counter
from random import Random
from uuid import UUID

import pytest

from tests.support.queries import QueryRig, sql


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


@pytest.mark.parametrize(("tenants", "each"), [(2, 10), pytest.param(10, 50, marks=pytest.mark.long)])
def test_tenants_with_many_queries_get_the_truth_from_a_system_that_lies(
    queries: QueryRig, tenants: int, each: int
) -> None:
    """Latency is the rig's clock; everything else goes wrong now and then."""
    standin, chance = queries.standin, Random(5)
    for fault, share in {
        "early_completed": 0.5, "odd_running": 0.05, "not_running": 0.02, "text_running": 0.05, "server_error": 0.03,
        "rate_limited": 0.002, "throttle": 0.002, "reset": 0.01, "truncated": 0.01, "no_status": 0.05, "token_expired": 0.002,
        "odd_status": 0.2, "no_rowset": 0.05,
    }.items():  # fmt: skip
        standin.misbehave(fault, chance=share, retry_after="5", budget=None if share > 0.1 else 400)
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
    for run_id, (text, rows) in wanted.items():
        cursor = queries.cursor(run_id)
        row = queries.rows("select row_count, target_key from query_run where run_id = :id", id=run_id)[0]
        assert (row["row_count"], standin._visible(standin.targets[row["target_key"]])) == (rows, standin.truth(text))
        # What ran and wrote nothing while its answer was lost has left no trace: only that is started again.
        assert standin.performs(cursor["query_key"]) == 1 or not rows
        asked = standin.questions(cursor["query_key"])
        assert asked["status"] <= 120
        assert cursor["rowset_ready_attempts"] <= 6
        probes = cursor["row_probe_attempts"]
        reads = standin.questions(row["target_key"])["rowset"]
        assert reads <= probes + cursor["rowset_ready_attempts"] + 2 * standin.questions(cursor["query_key"])["perform"]
        assert probes <= 1 + (queries.now + 15) / 15
    assert standin.wrong == []
    assert max(row["ms"] for row in queries.rows("select ms from step")) < 10_000
    assert queries.rows("select * from query_slot") == []
