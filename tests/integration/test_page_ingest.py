"""Page ingestion from its start to its end: real statements, the real adapter, an upstream that behaves or does not."""

from __future__ import annotations

from tests.support.ingest import IngestRig, ids


def test_a_plain_catalogue_is_ingested_once_and_exactly(ingest: IngestRig) -> None:
    standin = ingest.stock(800)
    run_id = ingest.start()

    assert ingest.finish(run_id) == "succeeded complete"

    assert sorted(ingest.seen(run_id)) == sorted(ids(standin))
    assert ingest.diamonds() == ids(standin)
    assert ingest.terminal_lines(run_id) == [(1, "succeeded")]
    assert len(ingest.lanes(run_id, "consolidate:")) == 1
    assert len(ingest.lanes(run_id)) >= 8
    assert standin.calls["authenticate"] == 1
    assert not standin.surprises
