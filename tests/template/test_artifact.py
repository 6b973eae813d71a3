"""Guards the artifact: for Lambda's platform whatever this machine is, only what is shipped, the same bytes every time."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from infra.sam import artifact
from tests.support.template import ROOT, functions, load


def digest(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_same_sources_give_the_same_bytes_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "_install", lambda target, architecture: None)
    monkeypatch.setattr(artifact, "CERTIFICATES", tmp_path / "none")
    for name in ("one", "two"):
        artifact.build(tmp_path / name / "artifact", "here")

    one, two = digest(tmp_path / "one" / "artifact"), digest(tmp_path / "two" / "artifact")

    assert one == two
    assert {Path(name).suffix for name in one} == {".py", ".pyc"}
    assert {name.split("/")[0] for name in one} == {"functions", "shared", "infra"}
    assert {Path(*Path(name).parts[:2]) for name in one if name.startswith("infra")} == {Path("infra/migrations")}
    for function in functions(load(ROOT / "template.yaml")).values():
        assert f"{function['Handler'].removesuffix('.handler').replace('.', '/')}.py" in one


def test_bytecode_does_not_depend_on_where_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "_install", lambda target, architecture: None)
    artifact.build(tmp_path / "artifact", "here")

    compiled = list((tmp_path / "artifact").rglob("*.pyc"))

    assert compiled
    assert [path for path in compiled if str(tmp_path).encode() in path.read_bytes()] == []


def test_a_build_that_fails_leaves_the_last_one_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "_install", lambda target, architecture: None)
    artifact.build(tmp_path / "artifact", "here")
    before = digest(tmp_path / "artifact")

    def fail(target: Path, architecture: str) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(artifact, "_install", fail)
    with pytest.raises(OSError, match="no space left"):
        artifact.build(tmp_path / "artifact", "here")

    assert digest(tmp_path / "artifact") == before


def test_dependencies_are_those_of_the_lock_for_lambdas_platform(tmp_path: Path) -> None:
    artifact._install(tmp_path, "arm64")

    libraries = [path.name for path in tmp_path.rglob("*.so")]
    assert libraries
    assert [
        name for name in libraries if "x86_64" in name or ("cpython-31" in name and "cpython-313-" not in name)
    ] == []
    assert any("cpython-313-aarch64-linux-gnu" in name for name in libraries)
    assert not (tmp_path / "bin").exists()
    assert (tmp_path / "boto3").is_dir()
