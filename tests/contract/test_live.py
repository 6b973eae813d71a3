"""Guards that a function finds its database and its queues, or says which variable keeps it from them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
import sqlalchemy as sa
from moto import mock_aws

from shared.kernel import live
from shared.kernel.live import live_engine, live_ports
from shared.kernel.queue import Outgoing
from shared.kernel.settings import BadSettings

SOMEWHERE = {"BATON_DB_HOST": "db.example", "BATON_DB_USER": "baton_worker", "BATON_DB_NAME": "baton"}


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    with mock_aws():
        yield


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({}, ["DATABASE_URL", "BATON_DB_SECRET_ARN", "BATON_DB_IAM"]),
        ({"DATABASE_URL": ""}, ["DATABASE_URL"]),
        ({"BATON_DB_IAM": "true"}, ["BATON_DB_HOST", "BATON_DB_USER", "BATON_DB_NAME"]),
        ({"BATON_DB_IAM": "true", **SOMEWHERE, "BATON_DB_NAME": ""}, ["BATON_DB_NAME"]),
        ({"BATON_DB_IAM": "perhaps"}, ["BATON_DB_IAM"]),
        ({"BATON_DB_PORT": "99999", "DATABASE_URL": "postgresql://h/d"}, ["BATON_DB_PORT"]),
        ({"BATON_DB_POOL": "many", "DATABASE_URL": "postgresql://h/d"}, ["BATON_DB_POOL"]),
    ],
)
def test_what_is_missing_or_wrong_is_named(aws: None, env: dict[str, str], named: list[str]) -> None:
    with pytest.raises(BadSettings) as caught:
        live_engine(env)

    for name in named:
        assert name in str(caught.value)


def test_a_setting_of_the_relay_that_makes_no_sense_is_named(aws: None) -> None:
    with pytest.raises(BadSettings, match="BATON_LEASE_S"):
        live_ports({"DATABASE_URL": "postgresql://h/d", "BATON_LEASE_S": "soon"})


def test_a_url_is_enough(aws: None, url_as: Callable[[str], str]) -> None:
    ports = live_ports({"DATABASE_URL": url_as("baton_worker"), "BATON_TICK_BATCH": "7"})

    assert ports.store.due_runs(1) == []
    assert ports.relay.tick_batch == 7
    assert ports.pause is time.sleep, "a function's time is this machine's"


def test_somebody_else_may_enter_by_the_same_url(aws: None, url_as: Callable[[str], str]) -> None:
    shared = sa.make_url(url_as("baton_api")).set(username="baton_worker").render_as_string(hide_password=False)

    assert _who({"DATABASE_URL": shared, "BATON_DB_USER": "baton_api"}) == "baton_api"
    assert _who({"DATABASE_URL": url_as("baton_worker"), "BATON_DB_USER": ""}) == "baton_worker"


def test_ports_are_built_without_calling_anyone(aws: None) -> None:
    live_ports({"DATABASE_URL": "postgresql://baton_worker@203.0.113.1/baton"})


@pytest.mark.full
def test_messages_go_through_sqs(aws: None, url_as: Callable[[str], str]) -> None:
    url = boto3.client("sqs").create_queue(QueueName="baton-delay")["QueueUrl"]
    ports = live_ports({"DATABASE_URL": url_as("baton_worker")})

    assert ports.queue.send("baton-delay", [Outgoing(body="hello", group="tenant")]) == []

    (message,) = boto3.client("sqs").receive_message(QueueUrl=url)["Messages"]
    assert message["Body"] == "hello"


def test_a_secret_may_name_everything(aws: None, url_as: Callable[[str], str]) -> None:
    where = sa.make_url(url_as("baton_worker"))
    arn = _secret(
        host=where.host, port=where.port, dbname=where.database, username="baton_worker", password=where.password
    )

    assert _who({"BATON_DB_SECRET_ARN": arn}) == "baton_worker"


def test_the_environment_wins_over_the_secret(aws: None, url_as: Callable[[str], str]) -> None:
    where = sa.make_url(url_as("baton_api"))
    arn = _secret(username="somebody", password=where.password)  # as RDS writes it: neither host nor database
    place = {"BATON_DB_HOST": where.host, "BATON_DB_PORT": str(where.port), "BATON_DB_NAME": where.database}

    assert _who({"BATON_DB_SECRET_ARN": arn, **place, "BATON_DB_USER": "baton_api"}) == "baton_api"


def test_a_secret_that_does_not_say_where_is_named_by_what_is_missing(aws: None) -> None:
    arn = _secret(username="baton_worker", password="x")

    with pytest.raises(BadSettings, match="BATON_DB_HOST, BATON_DB_NAME must be set"):
        live_engine({"BATON_DB_SECRET_ARN": arn})


def test_a_rotated_password_is_used_by_the_next_connection(aws: None) -> None:
    arn = _secret(password="old")
    settings = live.Database.from_env({"BATON_DB_SECRET_ARN": arn, **SOMEWHERE}, live.PREFIX)
    url, password = live._by_secret(settings, arn)

    assert password() == "old"
    boto3.client("secretsmanager").put_secret_value(SecretId=arn, SecretString=json.dumps({"password": "new"}))

    assert password() == "new"
    assert "new" not in url


def test_an_iam_token_is_made_anew_for_every_connection(aws: None) -> None:
    settings = live.Database.from_env({"BATON_DB_IAM": "true", **SOMEWHERE}, live.PREFIX)
    url, token = live._by_iam(settings)

    assert url == "postgresql://baton_worker@db.example:5432/baton"
    assert token().startswith("db.example:5432/?Action=connect&DBUser=baton_worker")


def test_a_bundle_of_certificates_can_be_named(aws: None) -> None:
    settings = live.Database.from_env(
        {"BATON_DB_IAM": "true", **SOMEWHERE, "BATON_DB_CA_FILE": "/etc/rds.pem"}, live.PREFIX
    )

    assert sa.make_url(live._by_iam(settings)[0]).query == {"sslrootcert": "/etc/rds.pem"}


def _secret(**values: Any) -> str:
    client = boto3.client("secretsmanager")
    return str(client.create_secret(Name="baton/db", SecretString=json.dumps(values))["ARN"])


def _who(env: dict[str, Any]) -> str:
    engine = live_engine(env)
    with engine.connect() as connection:
        user = str(connection.scalar(sa.text("select current_user")))
    engine.dispose()
    return user
