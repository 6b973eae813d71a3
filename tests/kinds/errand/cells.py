"""Who may do what with errands."""

from __future__ import annotations

from shared.kernel import run as runs
from shared.kernel.clock import new_id
from shared.kernel.model import By
from tests.kinds.errand.kind import NAME
from tests.support.cells import READERS, Cells, Named
from tests.support.door import Door, TenantHouse


def an_errand(door: Door, tenant: TenantHouse) -> Named:
    actor = By(f"user:{tenant.member.subject}")
    run_id = runs.start_run(door.ports, door.kinds[NAME], tenant.id, {"ticket": f"t-{new_id()}"}, actor)
    return {"run_id": str(run_id)}


CELLS = {"get_errand": Cells(roles=READERS, target="run", make=an_errand)}
