"""Guards that a deployment migrates first, that CloudFormation always gets an answer, and that a stack can always leave."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest
import sqlalchemy as sa
from alembic.config import Config
from alembic.script import ScriptDirectory
from moto import mock_aws

from infra.migrations.at_deploy import bring_up_to_date, scram_verifier
from infra.migrations.head import newest_revision
from infra.migrations.run import HERE
from shared.kernel.custom_resource import custom_resource_handler
from shared.kernel.settings import BadSettings
from tests.support.databases import ServerAdmin
from tests.support.lambda_calls import FakeContext

EVENT: dict[str, Any] = json.loads((Path(__file__).parents[2] / "events" / "migrate.json").read_text())


class CloudFormation:
    """Takes answers where a custom resource sends them; the first ones may fail."""

    def __init__(self) -> None:
        self.answers: list[dict[str, Any]] = []
        self.failures = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if outer.failures:
                    outer.failures -= 1
                    self.send_response(503)
                else:
                    assert self.headers["Content-Type"] == ""
                    outer.answers.append(json.loads(body))
                    self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/answer?signature=x"


@pytest.fixture
def cloudformation() -> Iterator[CloudFormation]:
    place = CloudFormation()
    thread = threading.Thread(target=place.server.serve_forever)
    thread.start()
    yield place
    place.server.shutdown()
    thread.join()
    place.server.server_close()


@pytest.fixture
def empty(postgres_server: ServerAdmin) -> Iterator[str]:
    name = postgres_server.create_from_template("template0")
    yield postgres_server.url(name)
    postgres_server.drop(name)


def must_not_run() -> dict[str, str]:
    raise AssertionError("nothing was to be done")


def fail() -> dict[str, str]:
    raise RuntimeError("the database said no to password=canary")


def request(cloudformation: CloudFormation, kind: str, head: str = "0003", old: str | None = None) -> dict[str, Any]:
    event = {**EVENT, "RequestType": kind, "ResponseURL": cloudformation.url, "ResourceProperties": {"Head": head}}
    return event if old is None else {**event, "PhysicalResourceId": "Schema", "OldResourceProperties": {"Head": old}}


@pytest.mark.parametrize(("kind", "old"), [("Create", None), ("Update", "0002"), ("Update", "0003")])
def test_a_deployment_does_the_work_and_says_so(cloudformation: CloudFormation, kind: str, old: str | None) -> None:
    handler = custom_resource_handler(lambda: {"Revision": "0003"})

    handler(request(cloudformation, kind, old=old), FakeContext())

    (answer,) = cloudformation.answers
    assert (answer["Status"], answer["Data"], answer["PhysicalResourceId"]) == (
        "SUCCESS",
        {"Revision": "0003"},
        "Schema",
    )
    assert {answer[name] == EVENT[name] for name in ("StackId", "RequestId", "LogicalResourceId")} == {True}


def test_a_failure_is_told_without_secrets(cloudformation: CloudFormation) -> None:
    custom_resource_handler(fail)(request(cloudformation, "Create"), FakeContext())

    (answer,) = cloudformation.answers
    assert answer["Status"] == "FAILED"
    assert "the database said no" in answer["Reason"]
    assert "canary" not in answer["Reason"]


@pytest.mark.parametrize(("kind", "head", "old"), [("Delete", "0003", None), ("Update", "0002", "0003")])
def test_a_stack_can_leave_and_go_back(cloudformation: CloudFormation, kind: str, head: str, old: str | None) -> None:
    custom_resource_handler(must_not_run)(request(cloudformation, kind, head, old), FakeContext())

    assert [answer["Status"] for answer in cloudformation.answers] == ["SUCCESS"]


def test_an_answer_that_is_not_taken_is_sent_again(cloudformation: CloudFormation) -> None:
    cloudformation.failures = 2

    custom_resource_handler(dict)(request(cloudformation, "Create"), FakeContext())

    assert [answer["Status"] for answer in cloudformation.answers] == ["SUCCESS"]


def test_by_hand_the_result_is_the_answer_and_a_failure_raises() -> None:
    assert custom_resource_handler(lambda: {"Revision": "0003"})(EVENT, FakeContext()) == {"Data": {"Revision": "0003"}}
    with pytest.raises(RuntimeError):
        custom_resource_handler(fail)(EVENT, FakeContext())


def test_an_empty_database_is_brought_up_and_then_left_alone(empty: str) -> None:
    assert [bring_up_to_date({"DATABASE_URL": empty}) for _ in range(2)] == [{"Revision": newest_revision()}] * 2


def test_the_newest_revision_is_the_one_that_alembic_finds() -> None:
    config = Config()
    config.set_main_option("script_location", str(HERE))

    assert ScriptDirectory.from_config(config).get_current_head() == newest_revision()


def test_a_database_that_is_not_rds_cannot_be_entered_by_iam(database_url: str) -> None:
    with pytest.raises(BadSettings, match="rds_iam"):
        bring_up_to_date({"DATABASE_URL": database_url, "BATON_ROLES_IAM": "true"})


def test_roles_get_the_passwords_of_their_secrets(
    database_url: str, url_as: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    with mock_aws():
        secret = boto3.client("secretsmanager").create_secret(Name="w", SecretString='{"password": "it\'s ünique"}')
        bring_up_to_date({"DATABASE_URL": database_url, "BATON_WORKER_SECRET_ARN": secret["ARN"]})

    with engine.begin() as connection:
        kept = connection.exec_driver_sql(
            "select rolpassword from pg_authid where rolname = 'baton_worker'"
        ).scalar_one()
        connection.exec_driver_sql(
            "alter role baton_worker password null"
        )  # the server is shared by the session's tests
    salt = kept.split("$")[1].split(":")[1]
    assert kept == scram_verifier("it's ünique", salt=salt)
