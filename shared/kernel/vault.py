"""The vault in AWS Secrets Manager, under a prefix that the roles of the functions are limited to."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from shared.kernel import aws
from shared.kernel.connections import NoVault
from shared.kernel.log import logger
from shared.kernel.settings import BadSettings

PREFIX = "BATON_SECRETS_PREFIX"
# A secret that is being deleted answers "InvalidRequest"; to us it is gone.
GONE = frozenset({"ResourceNotFoundException", "InvalidRequestException"})
ALREADY = frozenset({"ResourceExistsException"})


class SecretsManager:
    """A `Vault`. Nothing is asked until it is needed."""

    def __init__(self, prefix: Callable[[], str]) -> None:
        self._prefix = prefix

    def put(self, name: str, secret: Mapping[str, str]) -> str:
        where, held = self._prefix() + name, json.dumps(dict(secret))
        client = _client()
        made = _asked(partial(client.create_secret, Name=where, SecretString=held), or_none=ALREADY)
        if made is None:
            made = _asked(partial(client.put_secret_value, SecretId=where, SecretString=held))
        if made is None:  # deleted between the two
            raise NoVault
        return str(made["VersionId"])

    def renew(self, name: str, secret: Mapping[str, str]) -> str:
        where, held = self._prefix() + name, json.dumps(dict(secret))
        made = _asked(partial(_client().put_secret_value, SecretId=where, SecretString=held))
        if made is None:
            raise NoVault
        return str(made["VersionId"])

    def get(self, name: str, version: str) -> dict[str, str] | None:
        where = self._prefix() + name
        found = _asked(partial(_client().get_secret_value, SecretId=where, VersionId=version))
        return None if found is None else dict(json.loads(found["SecretString"]))

    def delete(self, name: str) -> None:
        where = self._prefix() + name
        _asked(partial(_client().delete_secret, SecretId=where, ForceDeleteWithoutRecovery=True))


def live_vault(env: Mapping[str, str] = os.environ) -> SecretsManager:
    def prefix() -> str:
        if not (given := env.get(PREFIX)):
            raise BadSettings(f"{PREFIX} must say where the secrets of connections are")
        return given

    return SecretsManager(prefix)


def _client() -> Any:
    return aws.client("secretsmanager", connect_s=2, read_s=5, attempts=3)


def _asked(call: Callable[[], Any], or_none: frozenset[str] = GONE) -> Any:
    """What the call answers; None for these refusals."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - as boto3 in aws.py

    try:
        return call()
    except ClientError as error:
        code = error.response["Error"]["Code"]
        if code in or_none:
            return None
        logger.error("the vault refused: %s", code)
        raise NoVault from None
    except BotoCoreError as error:
        logger.error("the vault cannot be asked: %s", type(error).__name__)
        raise NoVault from None
