"""Clients: built once, pointed where the environment says, never waiting long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shared.kernel import aws


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "one")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "two")
    aws.client.cache_clear()
    yield
    aws.client.cache_clear()


def test_without_an_endpoint_a_client_speaks_to_aws() -> None:
    assert aws.client("sqs").meta.endpoint_url == "https://sqs.eu-west-1.amazonaws.com"


def test_with_an_endpoint_a_client_speaks_to_it_in_the_same_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:4566")

    client = aws.client("sqs")

    assert (client.meta.endpoint_url, client.meta.region_name) == ("http://127.0.0.1:4566", "eu-west-1")


def test_with_an_endpoint_a_client_keeps_the_credentials_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:4566")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "three")

    credentials = aws.client("sqs")._request_signer._credentials

    assert (credentials.access_key, credentials.secret_key, credentials.token) == ("one", "two", "three")


@pytest.mark.parametrize("endpoint", ["", "http://127.0.0.1:4566"])
def test_a_client_gives_up_soon(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)

    config = aws.client("sqs").meta.config

    assert (config.connect_timeout, config.read_timeout, config.tcp_keepalive) == (3, 10, True)
    assert config.retries == {"mode": "standard", "total_max_attempts": 3}


def test_a_named_endpoint_wins_over_the_environment_and_gets_nobodys_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:4566")

    client = aws.client("sqs", endpoint="http://127.0.0.1:9")

    assert client.meta.endpoint_url == "http://127.0.0.1:9"
    assert client._request_signer._credentials.access_key == "test"


def test_a_client_is_built_once() -> None:
    assert aws.client("sqs") is aws.client("sqs")
