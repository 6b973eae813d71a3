"""Remote queries from start to the last asset, against the stand-in."""

from __future__ import annotations

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
