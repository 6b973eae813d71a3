"""Builds the one artifact that every function runs from: dependencies, `functions`, `shared`, `sources` and the migrations.

No Docker and no interpreter of Lambda's version are needed: uv takes wheels of the target platform by the lock's hashes.
Where such an interpreter is at hand the artifact ships bytecode too, because /var/task is read-only and every cold start
would compile again. The same sources give the same bytes, so that `sam deploy` uploads one file for all functions.
The architecture `here` is this machine and this interpreter: for a local cloud that runs functions as plain processes.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAMBDA = "3.13"
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
PLATFORMS = {"arm64": "aarch64-manylinux_2_28", "x86_64": "x86_64-manylinux_2_28"}
SOURCES = ("functions", "shared", "sources", "infra/migrations")
MARK = "ARCHITECTURE"  # which one the artifact is for: `make deploy` reads it before it uploads anything
CERTIFICATES = ROOT / ".local" / "certificates"
SAME_DAY = 315_532_800  # 1980-01-01, the oldest time that a zip file can say


def build(target: Path, architecture: str) -> None:
    """Make `target` from nothing, or leave it as it was: a build that fails halfway is never shipped."""
    fresh = target.with_name(target.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    _install(fresh, architecture)
    for path in shipped():
        (fresh / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, fresh / path)
    (fresh / MARK).write_text(f"{machine(architecture)}\n")
    if CERTIFICATES.is_dir():
        shutil.copytree(CERTIFICATES, fresh / "certificates")
    version = HERE if architecture == "here" else LAMBDA
    compiled = _compile(fresh, version)
    for path in fresh.rglob("*"):
        os.utime(path, (SAME_DAY, SAME_DAY))
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)
    files = [path.stat().st_size for path in target.rglob("*") if path.is_file()]
    bytecode = "with bytecode" if compiled else f"WITHOUT bytecode (no Python {version} found; BUILD_PYTHON= names one)"
    roots = "RDS certificates inside" if CERTIFICATES.is_dir() else "no RDS certificates (`make certificates`)"
    print(f"artifact for {architecture}: {sum(files) / 1e6:.1f} MB in {len(files)} files, {bytecode}, {roots}")


def shipped(root: Path = ROOT) -> list[Path]:
    """Every file of ours that a function runs from, below `root`: the one list, for AWS and for the local cloud."""
    found = (path for source in SOURCES for path in (root / source).rglob("*") if path.is_file())
    return sorted(path.relative_to(root) for path in found if not _is_leftover(path.relative_to(root)))


def _is_leftover(path: Path) -> bool:
    """What interpreters, editors and systems leave in a folder."""
    return "__pycache__" in path.parts or path.suffix == ".pyc" or any(part.startswith(".") for part in path.parts)


def machine(architecture: str) -> str:
    """What Lambda calls an architecture; `here` is this machine's."""
    if architecture != "here":
        return architecture
    return {"aarch64": "arm64", "arm64": "arm64"}.get(platform.machine(), "x86_64")


def _install(target: Path, architecture: str) -> None:
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "pip", "install", "--quiet", "--target", str(target.resolve()), "--link-mode", "copy"]
    if architecture in PLATFORMS:
        command += ["--python-version", LAMBDA, "--python-platform", PLATFORMS[architecture]]
    # Built here it would be built for this machine, so only wheels; localstack-client is pure and published as source.
    command += ["--only-binary", ":all:", "--no-binary", "localstack-client", "--require-hashes"]
    # Exactly the lock. In the project's folder uv would lay `override-dependencies` over it, which are wider: the day after a
    # release of botocore its newest version would be wanted, and the lock has no hash of that.
    command += ["--no-deps", "--requirements", str(ROOT / "requirements.lock")]
    subprocess.run(command, check=True, cwd=tempfile.gettempdir())
    # What uv leaves beside the packages: scripts that name this machine's interpreter, and its own lock.
    shutil.rmtree(target / "bin", ignore_errors=True)
    (target / ".lock").unlink(missing_ok=True)


def _compile(target: Path, version: str) -> bool:
    """Compile with an interpreter of the function's version; `unchecked-hash`, because a zip file changes every time stamp."""
    python = next((each for each in _interpreters(version) if _version(each) == version), None)
    if python is None:
        return False
    command = [python, "-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash"]
    command += ["-s", str(target), "-p", "/var/task", str(target)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": "0"})
    return True


def _interpreters(version: str) -> Iterator[str]:
    yield from filter(None, (os.environ.get("BUILD_PYTHON"), sys.executable, shutil.which(f"python{version}")))
    for home in sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")):
        yield str(home)


def _version(python: str) -> str:
    say = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        return subprocess.run([python, "-c", say], check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # a pyenv shim without its version, a path that is gone
        return ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("--architecture", choices=[*PLATFORMS, "here"], default="arm64")
    given = parser.parse_args()
    build(given.target, given.architecture)
