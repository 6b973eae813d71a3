"""Property tests take the time they take: a shared machine must not fail them."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("baton", deadline=None, max_examples=150, print_blob=True)
settings.load_profile("baton")
