"""Guards the tables of sources: what their migrations make on a real Postgres, now and when a file has changed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from infra.migrations.head import VERSIONS, newest_revision
from infra.migrations.run import migrate
from shared.page_ingest.reader.files import Files
from shared.page_ingest.source.compile import compile_source
from shared.page_ingest.source.migration import OWN, migration
from tests.support.databases import ServerAdmin
from tests.support.sources import simple

COLUMNS = """
select column_name from information_schema.columns where table_schema = 'public' and table_name = :table and column_name in ('a', 'b')
"""
# Who reads what of a table: a member only the rows of their own runs, a step those of its tenant.
WALLS = """
select roles[1]::text as role, qual like '%%owns_run(run_id)%%' as of_run from pg_policies
where schemaname = 'public' and tablename = :table and with_check like '%%app.tenant%%' order by 1
"""
BEHIND_WALLS = [("baton_api", True), ("baton_worker", False)]
# As the migrations of sources were written before 0201.
BEFORE = """
create table shop_items ({own});
alter table shop_items enable row level security;
alter table shop_items force row level security;
create policy owner_all on shop_items to baton_owner using (true) with check (true);
create policy tenant_only on shop_items to baton_worker, baton_api
    using (tenant_id = (select nullif(current_setting('app.tenant', true), '')::uuid));
grant select, insert, update on shop_items to baton_worker;
grant select on shop_items to baton_api
"""
ROW = """
insert into shop_items (tenant_id, connection, source_key, rest, hash, run_id, partition, page, said_by, said_at)
values (gen_random_uuid(), '', 'k', '{}', 'h', gen_random_uuid(), 'p', 1, gen_random_uuid(), now())
"""


@pytest.fixture
def database(postgres_server: ServerAdmin, template: str) -> Iterator[sa.Engine]:
    """One that has all migrations so far."""
    name = postgres_server.create_from_template(template)
    engine = sa.create_engine(postgres_server.url(name), poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    yield engine
    postgres_server.drop(name)


@pytest.fixture
def versions(tmp_path: Path) -> Path:
    folder = tmp_path / "versions"
    shutil.copytree(VERSIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def asked(engine: sa.Engine, statement: str, **params: object) -> list[tuple[object, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(sa.text(statement), params)]


def written(versions: Path, text: str, *, again: bool) -> None:
    """The next migration, as `baton source migration` writes it."""
    before = max(path.name[:4] for path in versions.glob("[0-9]*.py"))
    number = f"{int(before) + 1:04d}"
    compiled = compile_source("shop.toml", text.encode())
    (versions / f"{number}_source_shop.py").write_text(migration(compiled, number, before, again=again))


def shop(*columns: str, lists: tuple[str, ...] = ("items",)) -> str:
    named = ", ".join(f'{name} = "int /{name}"' for name in columns)
    text = simple('link = "next"', f"columns = {{ {named} }}").replace('"any"', '"shop"')
    head, own = text.split("[resources.items]")
    return head + "".join(f"[resources.{name}]{own}\n" for name in lists)


@pytest.mark.full
def test_a_file_that_has_grown_gets_its_new_columns_and_lists_and_keeps_its_rows(
    database: sa.Engine, versions: Path
) -> None:
    url = database.url.render_as_string(hide_password=False)
    written(versions, shop("a"), again=False)
    migrate(url, versions)
    with database.connect() as connection:
        connection.exec_driver_sql(ROW)

    written(versions, shop("a", "b", lists=("items", "refunds")), again=True)
    migrate(url, versions)

    for table in ("shop_items", "shop_refunds"):
        assert asked(database, COLUMNS, table=table) == [("a",), ("b",)]
        assert asked(database, WALLS, table=table) == BEHIND_WALLS
    assert asked(database, "select source_key, a, b from shop_items") == [("k", None, None)]


def test_a_table_of_somebody_else_is_not_taken_for_one_of_a_source(database: sa.Engine, versions: Path) -> None:
    text = shop("a").replace('source = "shop"', 'source = "job"')
    written(versions, text, again=True)  # job_items is a table of the product

    with pytest.raises(sa.exc.DatabaseError, match="source_key"):
        migrate(database.url.render_as_string(hide_password=False), versions)

    assert asked(database, COLUMNS, table="job_items") == []


def test_two_sources_never_share_a_table(tmp_path: Path) -> None:
    """`a_b` with a list `c`, and `a` with a list `b_c`: what one does not see would be gone for the other."""
    for name, resource in (("a", "b_c"), ("a_b", "c"), ("z", "c")):
        text = simple('link = "next"').replace('"any"', f'"{name}"').replace("resources.items", f"resources.{resource}")
        (tmp_path / f"{name}.toml").write_text(text)

    assert list(Files(tmp_path).all()) == ["a", "z"]


@pytest.mark.full
def test_tables_that_were_made_before_get_the_walls_of_today(postgres_server: ServerAdmin, versions: Path) -> None:
    (walls,) = versions.glob("*_rows_of_sources.py")
    for file in list(versions.glob("[0-9]*.py")):
        if file.name >= walls.name:
            file.unlink()
    name = postgres_server.create_from_template("template0")
    engine = sa.create_engine(postgres_server.url(name), poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    try:
        migrate(postgres_server.url(name), versions)
        with engine.connect() as connection:
            connection.exec_driver_sql("set role baton_owner; " + BEFORE.format(own=OWN.replace("{columns}", "")))

        migrate(postgres_server.url(name))

        assert asked(engine, "select version_num from alembic_version") == [(newest_revision(),)]
        for table in ("shop_items", "openalex_works", "source_quarantine", "source_raw", "source_mark"):
            assert asked(engine, WALLS, table=table) == BEHIND_WALLS
    finally:
        postgres_server.drop(name)
