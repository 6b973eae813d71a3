"""Hops through the local cloud: queue, mapping, function process, Postgres, stand-in, queue; and how much of it is our own code."""

from __future__ import annotations

from tests.bench.figures import Figure
from tests.support.scene import PATIENCE_S, Scene, local_cloud

CHAIN, MANY = 402, 5_000


def measure(*, quick: bool) -> list[Figure]:
    with local_cloud() as scene:
        _run(scene, 20, page_size=50, partition_records=10_000)  # the processes are warm
        one = _run(scene, 40 if quick else CHAIN, page_size=4, partition_records=10_000)
        many = _run(scene, 200 if quick else MANY - 100, page_size=50, partition_records=40 if quick else 600)
    return [
        Figure(name="hops through the local cloud, one lane", value=one[0], unit="hops/s"),
        Figure(name="hops through the local cloud, several lanes", value=many[0], unit="hops/s"),
        Figure(
            name="hops through the local cloud: share of the step itself (claim, look, commit)", value=one[1], unit="%"
        ),
    ]


def _run(scene: Scene, stones: int, *, page_size: int, partition_records: int) -> tuple[float, float]:
    """Hops per second, and how much of that time steps were at work."""
    scene.begin()
    run_id = scene.start(stones, page_size=page_size, partition_records=partition_records)
    scene.wait(run_id, seconds=10 * PATIENCE_S)
    (found,) = scene.runs.sql(
        """select count(*) as steps, sum(s.ms) as ms, extract(epoch from max(s.at) - min(s.at))::double precision as seconds
           from step s join lane l on l.id = s.lane_id where l.run_id = :id""",
        id=run_id,
    )
    return found["steps"] / found["seconds"], 100 * float(found["ms"]) / 1000 / found["seconds"]
