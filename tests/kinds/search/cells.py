"""Who may do what with saved searches."""

from __future__ import annotations

from typing import Any

from shared.kernel.clock import new_id
from tests.support.cells import ADMINS, READERS, Cells, Named
from tests.support.door import Door, TenantHouse

RANGE = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"}


def connected(door: Door, tenant: TenantHouse) -> str:
    """The one connection of a tenant's searches: it may have only so many."""
    door.sql(
        """insert into connection (id, tenant_id, name, provider, settings, secret_ref, created_by)
           select :id, :t, 'for-searches', 'infojobs', '{"client_id": "a"}', '1', 'user:x'
           where not exists (select from connection where tenant_id = :t and name = 'for-searches')""",
        id=new_id(), t=tenant.id,
    )  # fmt: skip
    return "for-searches"


def a_search(door: Door, tenant: TenantHouse) -> Named:
    asked = {
        "name": f"s-{new_id()}", "client": "infojobs", "connection": connected(door, tenant), "seed_from": "2026-01-01",
        "params": {"q": str(new_id())},
    }  # fmt: skip
    made = door.call(tenant.admin, "POST", "/searches", asked)
    assert made.status == 201, made
    return {"search_id": made.json()["id"]}


def a_record(door: Door, tenant: TenantHouse) -> Named:
    search, record = a_search(door, tenant), new_id()
    door.sql(
        """insert into search_quarantine (id, tenant_id, client, key, search_id, query_key, window_from, window_to, problem, payload)
           select :id, :t, 'infojobs', cast(:id as text), id, query_key, now(), now(), 'p', '{}' from saved_search
           where id = cast(:s as uuid)""",
        id=record, t=tenant.id, s=search["search_id"],
    )  # fmt: skip
    return {**search, "record_id": str(record)}


def a_full_search(door: Door, tenant: TenantHouse) -> Named:
    """Two searches; the last has run twice, found two offers of two companies, and put two records aside."""
    a_search(door, tenant)
    named = a_search(door, tenant)
    for n in range(2):
        one = {"id": new_id(), "t": tenant.id, "s": named["search_id"], "n": f"{n}-{new_id()}"}
        door.sql(
            """insert into search_quarantine (id, tenant_id, client, key, search_id, query_key, window_from, window_to, problem, payload)
               select :id, :t, 'infojobs', :n, id, query_key, now(), now(), 'p', '{}' from saved_search
               where id = cast(:s as uuid)""", **one,
        )  # fmt: skip
        door.sql(
            """insert into ingestion_runs (id, tenant_id, run_id, search_id, query_key, client, purpose, window_from, window_to)
               values (:id, :t, :id, cast(:s as uuid), 'q', 'infojobs', 'head', now(), now())""", **one,
        )  # fmt: skip
        door.sql(
            """insert into companies (tenant_id, id, client, external_id, name) values (:t, :id, 'infojobs', :n, 'n')""",
            **one,
        )
        door.sql(
            """insert into offers (tenant_id, client, external_id, company_id, title, updated_at, fingerprint, found_by, hash, payload)
               select :t, 'infojobs', :n, :id, 't', now(), 'f', array[query_key], 'h', '{}'
               from saved_search where id = cast(:s as uuid)""", **one,
        )  # fmt: skip
    return named


def a_company(door: Door, tenant: TenantHouse) -> Named:
    company = new_id()
    door.sql(
        """insert into companies (tenant_id, id, client, external_id, name) values (:t, :id, 'infojobs', cast(:id as text), 'n')""",
        t=tenant.id, id=company,
    )  # fmt: skip
    return {"company_id": str(company)}


def a_sheet(door: Door, tenant: TenantHouse) -> Named:
    sheet = new_id()
    door.sql(
        """insert into search_sheet (id, tenant_id, connection, tab, zone, opens, closes)
           values (:id, :t, :id, 'Companies', 'UTC', '03:00', '06:00')""",
        t=tenant.id, id=sheet,
    )  # fmt: skip
    return {"sheet_id": str(sheet)}


SHEET: dict[str, Any] = {"target": "sheet", "make": a_sheet, "names": ["sheet_id"]}
COMPANY: dict[str, Any] = {"target": "company", "make": a_company, "names": ["company_id"]}
SEARCH: dict[str, Any] = {"target": "search", "make": a_search, "names": ["search_id"]}
FULL: dict[str, Any] = {**SEARCH, "make": a_full_search}
RECORD: dict[str, Any] = {"target": "record", "make": a_record, "names": ["search_id", "record_id"]}
CELLS = {
    "save_search": Cells(
        roles=ADMINS, ok=422,
        body=lambda: {"name": f"s-{new_id()}", "client": "infojobs", "connection": "none", "seed_from": "2026-01-01"},
    ),
    "list_searches": Cells(roles=READERS, make=a_full_search),
    "get_search": Cells(roles=READERS, **SEARCH),
    "change_search": Cells(roles=ADMINS, body=lambda: {"params": {"q": str(new_id())}}, **SEARCH),
    "pause_search": Cells(roles=ADMINS, body={}, **SEARCH),
    "resume_search": Cells(roles=ADMINS, body={}, **SEARCH),
    "delete_search": Cells(roles=ADMINS, **SEARCH),
    "estimate_backfill": Cells(roles=READERS, query=RANGE, **SEARCH),
    "start_backfill": Cells(roles=ADMINS, body=RANGE, ok=201, **SEARCH),
    "list_search_runs": Cells(roles=READERS, **FULL),
    "list_quarantine": Cells(roles=READERS, **FULL),
    "list_search_offers": Cells(roles=READERS, **FULL),
    "replay_record": Cells(roles=ADMINS, body={}, **RECORD),
    "accept_record": Cells(roles=ADMINS, body={}, **RECORD),
    "list_companies": Cells(roles=READERS, make=a_full_search),
    "set_company_feedback": Cells(roles=ADMINS, body={"feedback": "blocked"}, **COMPANY),
    "add_sheet": Cells(roles=ADMINS, ok=422, body={"connection": "none"}),
    "list_sheets": Cells(roles=READERS, make=a_sheet),
    "remove_sheet": Cells(roles=ADMINS, **SHEET),
    "list_search_clients": Cells(roles=READERS),
    "pause_search_client": Cells(roles=ADMINS, body={}, target="client", make=lambda *_: {"client": "infojobs"}, names=["client"], of_all=True),
    "resume_search_client": Cells(roles=ADMINS, body={}, target="client", make=lambda *_: {"client": "infojobs"}, names=["client"], of_all=True),
}  # fmt: skip
