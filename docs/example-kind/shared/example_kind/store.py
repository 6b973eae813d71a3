"""The SQL of example_kind. What a step writes selects from `turn`: a step that lost its turn writes nothing."""

from __future__ import annotations

from shared.kernel.model import Statement

WRITE_NOTE = Statement(
    "example_kind.write_note",
    """insert into example_kind_note (tenant_id, run_id, n, body)
       select tenant_id, run_id, cast(:n as integer), cast(:body as text) from turn""",
)

# A batch of a run that is past its retention.
PRUNE = Statement(
    "example_kind.prune",
    """delete from example_kind_note where ctid = any(array(
           select ctid from example_kind_note where run_id = :run_id order by n limit :most))""",
)
