"""Guards that the database of a test is its own and is gone afterwards, on whichever server it was made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.support.databases import ServerAdmin, as_user, server_admin


def execute(url: str, sql: str) -> list[tuple[object, ...]]:
    engine = sa.create_engine(url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        result = connection.exec_driver_sql(sql)
        return [tuple(row) for row in result] if result.returns_rows else []


def names_on(url: str) -> set[object]:
    return {name for (name,) in execute(url, "select datname from pg_database")}


@pytest.mark.parametrize("turn", ["first", "second"])
def test_no_test_sees_what_another_wrote(database_url: str, turn: str) -> None:
    execute(database_url, "create table only_mine (id int)")


def test_a_database_can_be_entered_as_another_role(database_url: str, url_as: Callable[[str], str]) -> None:
    as_worker = execute(url_as("baton_worker"), "select current_user, current_database()")

    assert as_worker == [("baton_worker", sa.make_url(database_url).database)]


def test_another_role_does_not_get_the_password_of_the_superuser() -> None:
    url = as_user("postgresql+pg8000://postgres:secret@db:5432/x", "baton_api")

    assert "secret" not in url
    assert sa.make_url(url).password not in (None, sa.make_url(as_user(url, "baton_worker")).password)
    assert as_user("postgresql+pg8000://postgres@db:5432/x", "baton_api") == "postgresql+pg8000://baton_api@db:5432/x"


def test_a_template_cannot_be_entered_so_it_can_always_be_copied(postgres_server: ServerAdmin, template: str) -> None:
    with pytest.raises(sa.exc.DBAPIError, match="not currently accepting connections"):
        execute(postgres_server.url(template), "select 1")


@pytest.mark.full
def test_a_database_that_is_still_in_use_is_dropped(postgres_server: ServerAdmin, template: str) -> None:
    name = postgres_server.create_from_template(template)
    engine = sa.create_engine(postgres_server.url(name), poolclass=sa.NullPool)
    with engine.connect() as forgotten:
        postgres_server.drop(name)
        forgotten.invalidate()

    assert name not in names_on(postgres_server.url("postgres"))


@pytest.mark.full
def test_a_named_server_loses_what_was_made_on_it_and_nothing_else(
    postgres_server: ServerAdmin, template: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = postgres_server.url("postgres")
    monkeypatch.setenv("DATABASE_URL", url.replace("postgresql+pg8000:", "postgresql:"))

    with server_admin() as admin:
        made = {admin.create_template(tmp_path), admin.create_from_template("template0")}
        assert made | {template} <= names_on(url)

    assert names_on(url) & (made | {template}) == {template}
