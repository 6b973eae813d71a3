"""Guards the vault: every version stays readable until the secret goes, and its failures tell nothing of what it holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from shared.kernel.connections import NoVault
from shared.kernel.settings import BadSettings
from shared.kernel.vault import SecretsManager, live_vault
from tests.support.vaults import STAGE_PREFIX, mocked_vault


@pytest.fixture
def manager() -> Iterator[Any]:
    with mocked_vault() as client:
        yield client


def test_a_version_is_read_by_its_name_whatever_came_after(manager: Any) -> None:
    vault = live_vault()
    first, second = vault.put("t/c", {"password": "one"}), vault.put("t/c", {"password": "two"})

    assert vault.get("t/c", first) == {"password": "one"}
    assert vault.get("t/c", second) == {"password": "two"}
    assert [each["Name"] for each in manager.list_secrets()["SecretList"]] == [f"{STAGE_PREFIX}t/c"]


def test_what_is_gone_is_gone_at_once_and_may_be_deleted_again(manager: Any) -> None:
    vault = live_vault()
    version = vault.put("t/c", {"password": "one"})

    vault.delete("t/c")
    vault.delete("t/c")

    assert vault.get("t/c", version) is None
    assert vault.get("t/never", version) is None
    assert vault.put("t/c", {"password": "two"}) != version
    assert vault.get("t/c", version) is None


def test_a_vault_that_refuses_is_away_and_repeats_nothing(
    manager: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # nobody listens there

    with pytest.raises(NoVault) as caught:
        SecretsManager(lambda: "x" * 600).put("t/c", {"password": "canary"})

    assert "canary" not in str(caught.value) + caplog.text
    assert "the vault" in caplog.text


def test_without_a_prefix_there_is_no_vault() -> None:
    with pytest.raises(BadSettings, match="BATON_SECRETS_PREFIX"):
        live_vault({}).get("t/c", "1")
