"""Guards sources over HTTP: what is deployed, trying and estimating with a tenant's account, claims, rows and the quarantine."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from infra.cli import main
from infra.client import session
from infra.local.standins.sources import APIS, SECRET, SourcesStandIn, stock
from shared.kernel.auth import Role
from shared.kernel.baton import Baton
from shared.kernel.step import take_turn
from shared.kernel.vault import live_vault
from shared.page_ingest.build import kind
from shared.page_ingest.reader import providers, wire
from tests.kinds.page_ingest.cells import source_rows, sourced
from tests.support.door import Door, TenantHouse
from tests.support.gateway import Gateway, served
from tests.support.vaults import mocked_vault

SPAN = {"from": "2025-01-01", "to": "2025-03-02"}


@pytest.fixture(scope="module")
def standin() -> Iterator[SourcesStandIn]:
    with (
        SourcesStandIn(apis={"openalex": APIS["openalex"](rows=stock(250))}) as made,
        pytest.MonkeyPatch.context() as environment,
    ):
        environment.setenv("BATON_SOURCES_STANDIN", made.start())
        with mocked_vault():
            yield made
        wire._own_pool().clear()


@pytest.fixture
def tenant(door: Door) -> TenantHouse:
    return door.new_tenant()


def test_what_is_deployed_says_how_much_it_can_prove(door: Door, tenant: TenantHouse) -> None:
    (found,) = door.call(tenant.viewer, "GET", "/sources").json()["sources"]
    assert (found["name"], found["claim"], found["needs_connection"]) == ("openalex", "complete", False)
    (works,) = found["resources"]
    assert works["reason"] == "each partition is counted before and after, and has exactly as many different rows"
    assert (works["table"], works["windows"], works["columns"]) == (
        "openalex_works",
        True,
        ["title", "published", "cited_by"],
    )


@pytest.mark.usefixtures("standin")
def test_three_pages_are_read_and_nothing_is_written(door: Door, tenant: TenantHouse) -> None:
    answer = door.call(tenant.member, "POST", "/sources/try", {"source": "openalex", "from": "2025-01-01"})
    assert answer.status == 200, answer.body
    found = answer.json()
    assert len(found["pages"]) <= 3
    assert found["requests"] <= 3
    assert door.value("select count(*) from openalex_works where tenant_id = :t", t=tenant.id) == 0
    assert door.value("select count(*) from run where tenant_id = :t", t=tenant.id) == 0


@pytest.mark.usefixtures("standin")
def test_an_estimate_names_partitions_requests_and_minutes(door: Door, tenant: TenantHouse) -> None:
    found = door.call(tenant.member, "POST", "/sources/estimate", {"source": "openalex", **SPAN}).json()
    (works,) = found["resources"]
    assert (works["partitions"], works["rows"], works["exact"]) == (3, 250, True)
    assert found["requests"] == works["requests"] > 2
    assert found["minutes"] >= 0


@pytest.mark.usefixtures("standin")
@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"source": "nothing"}, 404, ""), ({"source": "openalex", "resource": "x"}, 400, "resource: x is unknown"),
        ({"source": "openalex", "connection": "mine"}, 400, "no connection to openalex"),
        ({"source": "openalex", "tighten": {"works.size": 500}, **SPAN}, 400, "can only be smaller"),
        ({"source": "openalex", "from": "soon"}, 422, "from"), ({"source": "openalex", "from": "2025-13-01"}, 422, "from"),
        ({"source": "openalex", "from": "0001-01-01T00:00+01:00"}, 422, "from"),
        ({"source": "openalex", "from": "0999-01-01"}, 400, "more than 5,000 windows"), ({"source": "openalex", "file": "x"}, 422, "file"),
    ],
)  # fmt: skip
def test_what_cannot_be_tried_says_why(
    door: Door, tenant: TenantHouse, body: dict[str, Any], status: int, said: str
) -> None:
    for way in ("try", "estimate"):
        answer = door.call(tenant.member, "POST", f"/sources/{way}", body)
        assert answer.status == status, way
        assert said in answer.body


def test_what_an_upstream_refuses_is_said_without_its_secret(
    door: Door, tenant: TenantHouse, standin: SourcesStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = Path(__file__).parents[2] / "docs" / "example-sources" / "github.toml"
    (tmp_path / "github.toml").write_text(example.read_text())
    monkeypatch.setenv("BATON_SOURCES", str(tmp_path))
    standin.apis["github"] = APIS["github"](rows=stock(5))
    provider = providers.provider(providers.deployed(tmp_path).all()["github"])
    assert set(provider.settings.model_fields) == {"repo"}
    for token, status in ((SECRET, 200), ("wrong-token-1", 400), ("\N{LEFT DOUBLE QUOTATION MARK}pasted", 400)):
        client = door.sql(
            """insert into connection (id, tenant_id, provider, name, settings, secret_ref, created_by)
               values (gen_random_uuid(), :t, 'github', :name, '{"repo": "acme/shop"}', 'v', 'x') returning id""",
            t=tenant.id, name=token,
        )[0]["id"]  # fmt: skip
        vault = live_vault()
        version = vault.put(f"{tenant.id}/{client}", {"token": token})
        door.sql("update connection set secret_ref = :v where id = :id", v=version, id=client)
        answer = door.call(tenant.member, "POST", "/sources/try", {"source": "github", "connection": token})
        assert answer.status == status, answer.body
        assert answer.body.count(token) == 0
    assert vault.renew(f"{tenant.id}/{client}", {"token": "x"}) != version


def test_a_run_shows_its_lists_with_claim_and_reason(door: Door, tenant: TenantHouse) -> None:
    run_id = door.start(tenant)
    sourced(door, tenant, run_id)
    door.sql(
        """insert into lane (id, run_id, tenant_id, kind, key, holds_run, status, cursor, next_due_at, check_at, max_steps)
           values (gen_random_uuid(), :r, :t, 'page_ingest', 'consolidate/1/works', true, 'done',
                   '{"resource": "works", "claim": "through T", "reason": "why", "t": "2026-01-01T00:00:00Z", "fuse": null}', now(), now(), 9)""",
        r=run_id, t=tenant.id,
    )  # fmt: skip
    found = door.call(tenant.viewer, "GET", f"/source-runs/{run_id}").json()
    (works,) = found["resources"]
    assert (works["claim"], works["reason"], works["through"], works["received"]) == (
        "through T",
        "why",
        "2026-01-01T00:00:00Z",
        2,
    )
    assert door.call(tenant.viewer, "GET", f"/page-ingestions/{run_id}").status == 404


LANE = """insert into lane (id, run_id, tenant_id, kind, key, holds_run, status, cursor, next_due_at, check_at, max_steps)
          values (gen_random_uuid(), :r, :t, 'page_ingest', :key, true, :status, cast(:cursor as jsonb), now(), now(), 9)"""


def test_a_run_is_summed_up_by_the_last_reading_of_each_partition(door: Door, tenant: TenantHouse) -> None:
    run_id = door.start(tenant)
    sourced(door, tenant, run_id)
    door.sql("delete from lane where run_id = :r", r=run_id)
    readings = [("a", 1, "done", 5), ("a#2", 2, "done", 7), ("a#10", 10, "failed", 1), ("b", 1, "done", 3)]
    for key, crawl, status, received in readings:
        cursor = {
            "part": {"resource": "works"}, "crawl": crawl, "pages": 1, "received": received, "received_before": 100, "counted": 9,
            "quarantined": 2, "clean": True,
        }  # fmt: skip
        door.sql(LANE, r=run_id, t=tenant.id, key=f"part/works/{key}", status=status, cursor=json.dumps(cursor))

    (works,) = door.call(tenant.viewer, "GET", f"/source-runs/{run_id}").json()["resources"]
    parts = door.call(tenant.viewer, "GET", f"/source-runs/{run_id}/partitions").json()["partitions"]

    told = {
        name: works[name] for name in ("partitions", "done", "failed", "received", "counted", "quarantined", "reread")
    }
    assert told == {
        "partitions": 2,
        "done": 1,
        "failed": 1,
        "received": 204,
        "counted": 18,
        "quarantined": 4,
        "reread": 9,
    }
    assert sorted(part["received"] for part in parts) == [101, 103, 105, 107]


def test_a_member_sees_the_rows_of_their_own_runs(door: Door, tenant: TenantHouse) -> None:
    source_rows(door, tenant)
    lists: list[tuple[str, dict[str, Any]]] = [("/source-rows", {"resource": "works"}), ("/source-quarantine", {})]
    for path, query in lists:
        seen = [
            len(door.call(who, "GET", path, source="openalex", **query).json()["rows"])
            for who in (tenant.member, tenant.viewer, tenant.admin)
        ]
        assert seen == [0, 2, 2], path


def test_rows_come_with_their_lineage_and_a_run_can_be_started(door: Door, tenant: TenantHouse) -> None:
    source_rows(door, tenant)
    rows = door.call(tenant.viewer, "GET", "/source-rows", source="openalex", resource="works").json()["rows"]
    assert [(row["key"], row["partition"], row["page"], row["run_id"]) for row in rows] == [
        ("a", "p", 1, str(tenant.id)),
        ("b", "p", 1, str(tenant.id)),
    ]
    bad = door.call(tenant.viewer, "GET", "/source-quarantine", source="openalex").json()["rows"]
    assert [row["key"] for row in bad] == ["b", "a"]
    assert door.call(tenant.viewer, "GET", "/source-rows", source="openalex", resource="run").status == 404


@pytest.mark.full
def test_pages_of_large_rows_end_before_they_are_too_large_to_be_answered(door: Door, tenant: TenantHouse) -> None:
    """A row may have 256 KiB, a page 200 rows, and a function's answer 6 MB, in which the body is a string."""
    door.sql(
        """insert into openalex_works (tenant_id, connection, source_key, rest, hash, run_id, partition, page, said_by, said_at)
           select :t, '', n::text, jsonb_build_array(repeat('"', 90000)), 'h', :t, 'p', 1, :t, now() from generate_series(101, 130) n""",
        t=tenant.id,
    )  # fmt: skip
    door.sql(
        """insert into source_quarantine (tenant_id, source, connection, resource, key, run_id, partition, page, why, payload, at)
           select :t, 'openalex', '', 'works', n::text, :t, 'p', 1, 'w', to_jsonb(repeat('é', 90000)), now() from generate_series(101, 130) n""",
        t=tenant.id,
    )  # fmt: skip
    lists: list[tuple[str, dict[str, Any]]] = [("/source-rows", {"resource": "works"}), ("/source-quarantine", {})]
    for path, query in lists:
        keys = list[str]()
        while True:
            answer = door.call(tenant.viewer, "GET", path, source="openalex", limit=200, **query)
            assert len(json.dumps(answer.body, ensure_ascii=False).encode()) < 6_000_000
            keys += [row["key"] for row in answer.json()["rows"]]
            if answer.json()["next"] is None:
                break
            query["cursor"] = answer.json()["next"]
        assert sorted(keys) == [str(n) for n in range(101, 131)]


def work_off(door: Door, run_id: UUID) -> None:
    """What the queue and the function do, as fast as the upstream's pace allows."""
    made = kind(door._worker)
    for _ in range(400):
        lanes = door.sql(
            "select id, kind, epoch, seq, resend_no from lane where run_id = :id and status = 'active'", id=run_id
        )
        if not lanes:
            return
        door.sql("update lane set next_due_at = now() where run_id = :id and status = 'active'", id=run_id)
        for lane in lanes:
            baton = Baton(kind=lane.kind, lane_id=lane.id, epoch=lane.epoch, seq=lane.seq, resend_no=lane.resend_no)
            take_turn(baton, made, door.worker_ports)
    raise AssertionError("no end")


@pytest.mark.full
@pytest.mark.usefixtures("standin")
def test_the_commands_of_the_guide_run_in_their_order(
    door: Door, tenant: TenantHouse, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/sources.md, from what is deployed to a run with its claim."""
    page = (Path(__file__).parents[2] / "docs" / "sources.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    (block,) = [each for each in blocks if "baton source run" in each]
    monkeypatch.setenv("BATON_TOKEN", tenant.machines[Role.ADMIN].token or "")
    said, run_id = [], ""
    with served(Gateway(door)) as url:
        state = {"endpoint": url, "outputs": {"ApiUrl": url, "UserPoolClientId": "x"}}
        (tmp_path / session.STATE).write_text(json.dumps(state))
        for line in block.splitlines():
            if line.startswith("baton watch"):
                continue  # nobody works here but this test, as below
            words = shlex.split(re.sub(r"^run=\$\((.*)\)$", r"\1", line).replace("$run", run_id))
            assert main(["--home", str(tmp_path), *(each for each in words[1:] if each != "--watch")]) == 0, (
                capsys.readouterr().err
            )
            said.append(capsys.readouterr().out)
            if words[:3] == ["baton", "source", "run"]:
                run_id = said[-1].strip()
                work_off(door, UUID(run_id))
    assert not [
        row["error"]
        for row in door.sql("select error from run where tenant_id = :t and error is not null", t=tenant.id)
    ]
    assert "openalex" in said[0]
    assert "succeeded, complete" in said[2]
    outcomes = [
        row["outcome"]
        for row in door.sql("select outcome from run where tenant_id = :t order by created_at", t=tenant.id)
    ]
    assert outcomes == ["complete", "complete", "replayed"]
    assert door.value("select count(*) from openalex_works where tenant_id = :t", t=tenant.id) > 50
