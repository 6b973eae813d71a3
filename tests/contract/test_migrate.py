"""Guards that a deployment migrates first, that CloudFormation always gets an answer, and that a stack can always leave."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest
import sqlalchemy as sa
from alembic.config import Config
from alembic.script import ScriptDirectory
from moto import mock_aws

from infra.local.private import give_passwords
from infra.migrations.at_deploy import bring_up_to_date
from infra.migrations.head import newest_revision
from infra.migrations.run import HERE
from shared.job_queue.adapters.commands import read_commands
from shared.kernel import db
from shared.kernel.custom_resource import custom_resource_handler
from shared.kernel.live import live_engine
from shared.kernel.log_json import FunctionFailed
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


def must_not_run(_: float) -> dict[str, str]:
    raise AssertionError("nothing was to be done")


def fail(_: float) -> dict[str, str]:
    raise RuntimeError("the database said no to password=canary")


def request(cloudformation: CloudFormation, kind: str, head: str = "0003", old: str | None = None) -> dict[str, Any]:
    event = {**EVENT, "RequestType": kind, "ResponseURL": cloudformation.url, "ResourceProperties": {"Head": head}}
    return event if old is None else {**event, "PhysicalResourceId": "Schema", "OldResourceProperties": {"Head": old}}


@pytest.mark.parametrize(("kind", "old"), [("Create", None), ("Update", "0002"), ("Update", "0003")])
def test_a_deployment_does_the_work_and_says_so(cloudformation: CloudFormation, kind: str, old: str | None) -> None:
    handler = custom_resource_handler(lambda _: {"Revision": "0003"})

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


@pytest.mark.full
def test_an_answer_that_is_not_taken_is_sent_again(cloudformation: CloudFormation) -> None:
    cloudformation.failures = 2

    custom_resource_handler(lambda _: {})(request(cloudformation, "Create"), FakeContext())

    assert [answer["Status"] for answer in cloudformation.answers] == ["SUCCESS"]


def test_by_hand_the_result_is_the_answer_and_a_failure_raises() -> None:
    assert custom_resource_handler(lambda _: {"Revision": "0003"})(EVENT, FakeContext()) == {
        "Data": {"Revision": "0003"}
    }
    with pytest.raises(FunctionFailed):
        custom_resource_handler(fail)(EVENT, FakeContext())


@pytest.mark.full
def test_an_empty_database_is_brought_up_and_then_left_alone(empty: str) -> None:
    assert [bring_up_to_date(env={"DATABASE_URL": empty}) for _ in range(2)] == [{"Revision": newest_revision()}] * 2


def test_settings_that_make_no_sense_are_refused_before_the_schema_is_touched(empty: str) -> None:
    with pytest.raises(BadSettings, match="did you mean BATON_ROWS_SLOTS"):
        bring_up_to_date(env={"DATABASE_URL": empty, "BATON_SETTINGS": "BATON_ROWS_SLOT=8"})

    engine = db.connect_engine(empty, pool="none")
    with engine.connect() as connection:
        assert connection.scalar(sa.text("select to_regclass('alembic_version')")) is None


def test_a_deployment_defines_the_smoke_job_once_and_leaves_no_super_admin_behind(database_url: str) -> None:
    engine = db.connect_engine(database_url, pool="none")
    for _ in range(2):
        bring_up_to_date(env={"DATABASE_URL": database_url})

    with engine.connect() as connection:
        (row,) = connection.execute(sa.text("select key, command, executor, version from job_definitions")).all()
        queues = connection.execute(sa.text("select name from pull_queue")).scalars().all()
        assert connection.scalar(sa.text("select count(*) from super_admin")) == 0
    assert tuple(row) == ("smoke", "smoke", "lambda", 1)
    assert queues == ["default@lambda"]
    assert "smoke" in read_commands({})


def test_the_newest_revision_is_the_one_that_alembic_finds() -> None:
    config = Config()
    config.set_main_option("script_location", str(HERE))

    assert ScriptDirectory.from_config(config).get_current_head() == newest_revision()


def test_a_database_that_is_not_rds_cannot_be_entered_by_iam(database_url: str) -> None:
    with pytest.raises(BadSettings, match="rds_iam"):
        bring_up_to_date(env={"DATABASE_URL": database_url, "BATON_ROLES_IAM": "true"})


@pytest.fixture
def secrets_manager(monkeypatch: pytest.MonkeyPatch, database_url: str) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    with mock_aws():
        yield boto3.client("secretsmanager")
    give_passwords(database_url)  # the server is shared by the session's tests


def may_enter(database_url: str, role: str, password: str) -> bool:
    url = sa.make_url(database_url).set(username=role, password=password).render_as_string(hide_password=False)
    engine = db.connect_engine(url, pool="none")
    try:
        with engine.connect():
            return True
    except sa.exc.DatabaseError as error:
        if db.sqlstate(error) != "28P01":
            raise
        return False


@pytest.mark.full
def test_roles_get_the_passwords_of_their_secrets(database_url: str, secrets_manager: Any) -> None:
    secret = secrets_manager.create_secret(Name="w", SecretString='{"password": "it\'s ünique"}')

    bring_up_to_date(env={"DATABASE_URL": database_url, "BATON_WORKER_SECRET_ARN": secret["ARN"]})

    assert may_enter(database_url, "baton_worker", "it's ünique")
    assert not may_enter(database_url, "baton_api", "it's ünique")


def test_a_rotated_secret_takes_effect_without_a_migration(database_url: str, secrets_manager: Any) -> None:
    """The same schema, the same stack: the function is called again, and connections made from now on use the new one."""
    secret = secrets_manager.create_secret(Name="w", SecretString='{"username": "baton_worker", "password": "first-1"}')
    deployed = {"DATABASE_URL": database_url, "BATON_WORKER_SECRET_ARN": secret["ARN"]}
    bring_up_to_date(env=deployed)
    where = sa.make_url(database_url)
    worker = live_engine({"BATON_DB_SECRET_ARN": secret["ARN"], "BATON_DB_HOST": str(where.host), "BATON_DB_POOL": "none",
                          "BATON_DB_PORT": str(where.port), "BATON_DB_NAME": str(where.database)})  # fmt: skip
    with worker.connect():
        pass

    secrets_manager.put_secret_value(
        SecretId=secret["ARN"], SecretString='{"username": "baton_worker", "password": "second-2"}'
    )
    bring_up_to_date(env=deployed)

    with worker.connect() as connection:
        assert connection.scalar(sa.text("select current_user")) == "baton_worker"
    assert not may_enter(database_url, "baton_worker", "first-1")


def test_a_swapped_secret_is_work_to_do_though_the_schema_is_the_same(cloudformation: CloudFormation) -> None:
    done: list[str] = []
    properties = {"Head": newest_revision(), "WorkerSecret": "arn:aws:secretsmanager:x:y:secret:old"}
    event = {
        **EVENT, "RequestType": "Update", "ResponseURL": cloudformation.url, "StackId": "s", "RequestId": "r",
        "LogicalResourceId": "Schema", "OldResourceProperties": properties,
        "ResourceProperties": {**properties, "WorkerSecret": "arn:aws:secretsmanager:x:y:secret:new"},
    }  # fmt: skip

    def work(_: float) -> dict[str, str]:
        done.append("work")
        return {"Revision": newest_revision()}

    custom_resource_handler(work)(event, FakeContext())

    assert done == ["work"]
