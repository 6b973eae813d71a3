"""Guards that page ingestion finds its upstream's account, or fails the lane with the name of what is missing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import boto3
import pytest
import sqlalchemy as sa
from moto import mock_aws

from shared.kernel.errors import Permanent
from shared.page_ingest.adapters.nivoda import Nivoda
from shared.page_ingest.build import build_ports
from tests.support.ingest import a_turn

ACCOUNT = {
    "BATON_NIVODA_BASE_URL": "https://upstream.example",
    "BATON_NIVODA_USERNAME": "buyer",
    "BATON_NIVODA_PASSWORD": "canary-password",
}
NOWHERE = sa.create_engine("postgresql+pg8000://baton_worker@203.0.113.1/baton")


def test_the_account_comes_from_the_environment() -> None:
    upstream = build_ports(NOWHERE, ACCOUNT).upstream("nivoda", a_turn(1), lambda: 30.0)

    assert isinstance(upstream, Nivoda)


@pytest.mark.parametrize("missing", sorted(ACCOUNT))
def test_what_is_missing_is_named_and_nobody_tries_again(missing: str) -> None:
    ports = build_ports(NOWHERE, {name: value for name, value in ACCOUNT.items() if name != missing})

    with pytest.raises(Permanent) as caught:
        ports.upstream("nivoda", a_turn(1), lambda: 30.0)

    assert caught.value.code == "bad_settings"
    assert missing in caught.value.message
    assert "canary" not in caught.value.message


@pytest.mark.parametrize(
    "address", ["", "ftp://upstream.example", "http://upstream.example", "https://u:canary@h.example"]
)
def test_an_address_that_makes_no_sense_is_named(address: str) -> None:
    with pytest.raises(Permanent, match="BATON_NIVODA_BASE_URL") as caught:
        build_ports(NOWHERE, {**ACCOUNT, "BATON_NIVODA_BASE_URL": address}).upstream("nivoda", a_turn(1), lambda: 30.0)

    assert "canary" not in caught.value.message


def test_there_is_no_other_source() -> None:
    with pytest.raises(Permanent, match="unknown source elsewhere"):
        build_ports(NOWHERE, ACCOUNT).upstream("elsewhere", a_turn(1), lambda: 30.0)


@pytest.fixture
def secret_arn(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    with mock_aws():
        client = boto3.client("secretsmanager")
        yield client.create_secret(Name="nivoda", SecretString='{"username": "buyer", "password": "canary-1"}')["ARN"]


def test_the_account_may_be_a_secret_that_is_not_asked_for_at_every_page(secret_arn: str) -> None:
    env = {"BATON_NIVODA_BASE_URL": "https://upstream.example", "BATON_NIVODA_SECRET_ARN": secret_arn}
    ports = build_ports(NOWHERE, env)
    assert isinstance(ports.upstream("nivoda", a_turn(1), lambda: 30.0), Nivoda)

    boto3.client("secretsmanager").put_secret_value(SecretId=secret_arn, SecretString="{}")

    assert isinstance(ports.upstream("nivoda", a_turn(2), lambda: 30.0), Nivoda)


def test_what_a_secret_lacks_is_named(secret_arn: str) -> None:
    boto3.client("secretsmanager").put_secret_value(SecretId=secret_arn, SecretString='{"username": "buyer"}')
    env = {"BATON_NIVODA_BASE_URL": "https://upstream.example", "BATON_NIVODA_SECRET_ARN": secret_arn}

    with pytest.raises(Permanent, match="BATON_NIVODA_PASSWORD"):
        build_ports(NOWHERE, env).upstream("nivoda", a_turn(1), lambda: 30.0)


@pytest.mark.full
def test_who_asks_no_upstream_does_not_import_its_adapter() -> None:
    wanted = "import sys, functions.catalogue as c; c.all_providers(); print([m for m in sys.modules if 'page_ingest.adapters' in m or m == 'shared.kernel.http'])"

    done = subprocess.run([sys.executable, "-c", wanted], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


@pytest.mark.full
def test_the_api_starts_without_the_compiler_of_sources() -> None:
    """Whoever asks for a run waits for every import of a cold start."""
    wanted = (
        "import sys, functions.routes; print([m for m in sys.modules if m.startswith('shared.page_ingest.source')])"
    )

    done = subprocess.run([sys.executable, "-c", wanted], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
