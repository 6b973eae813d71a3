"""The one place that makes AWS clients: it guards every caller against long waits and against the wrong cloud."""

from __future__ import annotations

import functools
import json
import os
from typing import Any

CONNECT_TIMEOUT_S = 3
READ_TIMEOUT_S = 10
ATTEMPTS = 3
DEFAULT_REGION = "us-east-1"
BUCKET_HOSTS = {"addressing_style": "virtual", "us_east_1_regional_endpoint": "regional"}


@functools.cache
def client(
    service: str,
    *,
    endpoint: str | None = None,
    access_key: str = "test",
    connect_s: int = CONNECT_TIMEOUT_S,
    read_s: int = READ_TIMEOUT_S,
    attempts: int = ATTEMPTS,
) -> Any:
    """Build the client of a service once per process; AWS_ENDPOINT_URL points it at a local cloud.

    `endpoint` names a local cloud whatever the environment says; no credentials but its own `access_key` are sent there.
    """
    is_local = bool(os.environ.get("AWS_ENDPOINT_URL", "").strip())
    config = _config(service, connect_s, read_s, attempts, in_aws=endpoint is None and not is_local)
    if endpoint is not None:
        return _client_at(endpoint, access_key, service, config)
    if is_local:
        return _local_client(service, config)
    import boto3  # noqa: PLC0415 - 100 ms that a function without AWS calls need not pay

    return boto3.client(service, config=config)


class LaterClient:
    """A client that is built when it is first asked: a request that sends nothing need not wait for it."""

    def __init__(self, service: str, **limits: int) -> None:
        import boto3  # noqa: F401, PLC0415 - imported while the function starts, when it has the most processor

        self._service, self._limits = service, limits

    def __getattr__(self, name: str) -> Any:
        return getattr(client(self._service, **self._limits), name)


def secret(arn: str) -> dict[str, Any]:
    """What a secret holds now. Asked each time: it may have been rotated since."""
    held: dict[str, Any] = json.loads(client("secretsmanager").get_secret_value(SecretId=arn)["SecretString"])
    return held


def _local_client(service: str, config: Any) -> Any:
    from localstack_client.session import Session  # noqa: PLC0415 - never imported in AWS

    session = Session(
        aws_access_key_id=os.environ.get("AWS_ACCESS_KEY_ID", "test"),
        aws_secret_access_key=os.environ.get("AWS_SECRET_ACCESS_KEY", "test"),
        region_name=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or DEFAULT_REGION,
    )
    # The session keeps its token to itself, so temporary credentials must be handed over here.
    return session.client(service, config=config, aws_session_token=os.environ.get("AWS_SESSION_TOKEN"))


def _client_at(endpoint: str, access_key: str, service: str, config: Any) -> Any:
    import boto3  # noqa: PLC0415 - as above

    return boto3.client(
        service,
        endpoint_url=endpoint,
        region_name=DEFAULT_REGION,
        aws_access_key_id=access_key,
        aws_secret_access_key=access_key,
        config=config,
    )


def _config(service: str, connect_s: int, read_s: int, attempts: int, *, in_aws: bool) -> Any:
    from botocore.config import Config  # noqa: PLC0415 - as boto3

    return Config(
        connect_timeout=connect_s,
        read_timeout=read_s,
        retries={"mode": "standard", "total_max_attempts": attempts},
        tcp_keepalive=True,
        # Without it some links to S3 would be signed in the old way, which newer regions do not take.
        signature_version="s3v4" if service == "s3" else None,
        # Links name the bucket's own host in its region: no redirect, which a browser would not follow with a form, and one
        # origin for the console's policy.
        s3=BUCKET_HOSTS if service == "s3" and in_aws else None,
    )
