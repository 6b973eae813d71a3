"""Guards that the key of a service account is taken in each way in which people paste it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from shared.kernel.errors import Permanent
from shared.search.adapters.google_sheets import signed

NOW = datetime(2026, 11, 17, tzinfo=UTC)


@pytest.fixture(scope="module")
def key() -> str:
    made = rsa.generate_private_key(65537, 2048)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return made.private_bytes(*form).decode()


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\\n", ""])
def test_a_key_is_one_however_it_was_copied(key: str, line_end: str) -> None:
    """From a file, from the JSON of the service account, through a field of one line."""
    assert signed("a@b", key.replace("\n", line_end), NOW) == signed("a@b", key, NOW)


def test_what_is_no_key_is_called_so() -> None:
    with pytest.raises(Permanent, match="not a private key"):
        signed("a@b", "\\n", NOW)
