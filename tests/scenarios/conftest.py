"""Guards that scenarios meet the deployed template: one local cloud for a session's tests, each with a tenant of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.scene import Scene, local_cloud


@pytest.fixture(scope="session")
def shared_scene() -> Iterator[Scene]:
    with local_cloud() as scene:
        yield scene


@pytest.fixture
def scene(shared_scene: Scene) -> Scene:
    shared_scene.begin()
    return shared_scene
