"""Guards the artifact: for Lambda's platform whatever this machine is, only what is shipped, the same bytes every time."""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from infra.local.deploy import package
from infra.sam import artifact
from shared.kernel.api.console import Console, Login
from tests.support.template import ROOT, functions, load


def digest(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.full
def test_the_same_sources_give_the_same_bytes_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "_install", lambda target, architecture: None)
    monkeypatch.setattr(artifact, "CERTIFICATES", tmp_path / "none")
    for name in ("one", "two"):
        artifact.build(tmp_path / name / "artifact", "here")

    one, two = digest(tmp_path / "one" / "artifact"), digest(tmp_path / "two" / "artifact")

    assert one == two
    assert {Path(name) for name in one if not name.endswith(".pyc")} == {*artifact.shipped(), Path(artifact.MARK)}
    assert {name.split("/")[0] for name in one} == {"functions", "shared", "sources", "infra", artifact.MARK}
    assert {Path(*Path(name).parts[:2]) for name in one if name.startswith("infra")} == {Path("infra/migrations")}
    for function in functions(load(ROOT / "template.yaml")).values():
        assert f"{function['Handler'].removesuffix('.handler').replace('.', '/')}.py" in one


def test_the_local_cloud_runs_no_file_that_does_not_ship() -> None:
    with zipfile.ZipFile(io.BytesIO(package())) as zipped:
        local = {name for name in zipped.namelist() if not name.endswith(".pyc")}

    assert local == {str(path) for path in artifact.shipped()}


def test_a_changed_file_of_any_kind_is_built_again() -> None:
    """The makefile's own list decides whether there is anything to build."""
    seen = subprocess.run(["make", "-s", "shipped"], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert {str(path) for path in artifact.shipped()} - set(seen.splitlines()) == set()


@pytest.mark.parametrize("leftover", ["app.pyc", "__pycache__/app.cpython-313.pyc", ".DS_Store", ".env", ".idea/x.xml"])
def test_what_an_editor_left_behind_is_not_shipped(tmp_path: Path, leftover: str) -> None:
    for name in ("functions/api/app.py", "functions/api/console/page.html", f"functions/api/{leftover}"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    assert artifact.shipped(tmp_path) == [Path("functions/api/app.py"), Path("functions/api/console/page.html")]


def test_the_artifact_has_the_console_and_every_asset_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact, "_install", lambda target, architecture: None)
    artifact.build(tmp_path / "artifact", "here")
    console = Console(tmp_path / "artifact" / "functions" / "api" / "console", Login())

    def get(path: str) -> dict[str, Any]:
        return console.answer({"rawPath": path, "headers": {}, "requestContext": {"http": {"method": "GET"}}})

    page = get("/console/now")
    named = re.findall(r'(?:href|src)="(assets/[^"]+)"', page["body"])
    modules = {name for name in console.files if name.endswith((".js", ".css"))}

    assert page["statusCode"] == 200
    assert {Path(name).suffix for name in named} >= {".js", ".css"}
    assert len(modules) > 5
    assert {get(f"/console/{name}")["statusCode"] for name in named} == {200}
    assert {get(f"/console/assets/{console.version}/{name}")["statusCode"] for name in modules} == {200}


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


@pytest.mark.full
def test_dependencies_are_those_of_the_lock_for_lambdas_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the folder it is built in says: an override there must not ask for another version than the lock has."""
    (tmp_path / "pyproject.toml").write_text('[tool.uv]\noverride-dependencies = ["botocore<1"]\n')
    monkeypatch.chdir(tmp_path)
    tmp_path /= "target"
    artifact._install(tmp_path, "arm64")

    libraries = [path.name for path in tmp_path.rglob("*.so")]
    assert libraries
    assert [
        name for name in libraries if "x86_64" in name or ("cpython-31" in name and "cpython-313-" not in name)
    ] == []
    assert any("cpython-313-aarch64-linux-gnu" in name for name in libraries)
    assert not (tmp_path / "bin").exists()
    assert (tmp_path / "boto3").is_dir()
    locked = re.search(r"^botocore==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert locked is not None
    assert (tmp_path / f"botocore-{locked[1]}.dist-info").is_dir()
