"""Secrets Manager as moto knows it, under the prefix that the API is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pytest
from moto import mock_aws

STAGE_PREFIX = "baton/test/connections/"


@contextmanager
def mocked_vault() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as environment:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            environment.setenv(name, "testing")
        environment.setenv("AWS_DEFAULT_REGION", "eu-central-1")
        environment.setenv("BATON_SECRETS_PREFIX", STAGE_PREFIX)
        environment.delenv("AWS_ENDPOINT_URL", raising=False)
        with mock_aws():
            yield boto3.client("secretsmanager")
