"""Guards that the local cloud is one thing: Postgres, MiniStack and the stand-ins, up together, deployed together, gone together."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import socket
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import urlsplit

import sqlalchemy as sa

from infra.local import private
from infra.local.child import Stops, free_port, is_free
from infra.local.commands import STONES
from infra.local.deploy import ROOT, STAGE, Deployed, deploy
from infra.local.ministack import MiniStack, answers
from infra.local.postgres import Postgres
from shared.kernel import aws, db
from shared.kernel.clock import stopwatch

if TYPE_CHECKING:
    from infra.local.standins.nivoda import NivodaStandIn
    from infra.local.standins.server import StandIn

HOME = ROOT / ".local" / "cloud"
DATABASE = "baton"

STATE = "cloud.json"
PORTS = "ports.json"
PORT_ATTEMPTS = 10

NO_PARAMETERS: Mapping[str, str] = MappingProxyType({})

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where everything is. It is all that another process needs; it is in cloud.json while the cloud is up."""

    pid: int
    endpoint: str
    access_key: str
    database_url: str
    upstreams: Mapping[str, str]
    parameters: Mapping[str, str]
    outputs: Mapping[str, str]
    pids: Mapping[str, int] = field(default_factory=dict)

    def url_as(self, role: str) -> str:
        return private.url_as(self.database_url, role)

    def client(self, service: str) -> Any:
        return aws.client(service, endpoint=self.endpoint, access_key=self.access_key)

    def write(self, home: Path) -> None:
        """All or nothing: whoever reads it never sees half of it."""
        part = home / f"{STATE}.part"
        with private.open_file(part, "w") as file:
            file.write(json.dumps(dataclasses.asdict(self), indent=2) + "\n")
        part.rename(home / STATE)

    @classmethod
    def read(cls, home: Path) -> Self | None:
        try:
            return cls(**json.loads((home / STATE).read_text()))
        except FileNotFoundError:
            return None

    def parts(self) -> dict[str, tuple[str, bool]]:
        """Each part with its address, and whether it answers now."""
        return {
            "postgres": (without_password(self.database_url), _database_answers(self.database_url)),
            "aws": (self.endpoint, answers(f"{self.endpoint}/_ministack/health")),
            **{name: (url, _listens(url)) for name, url in self.upstreams.items()},
        }

    def deploy(self, root: Path = ROOT) -> Deployed:
        return deploy(self.endpoint, self.access_key, self.parameters, root=root)


class Cloud(Stops):
    """The parts while they run. `home` keeps the database; what AWS knew is made anew by the next deployment."""

    def __init__(
        self,
        home: Path,
        postgres: Postgres,
        ministack: MiniStack,
        standins: Mapping[str, StandIn],
        elsewhere: Mapping[str, str],
        ports: Mapping[str, int],
    ) -> None:
        self.home = home
        self.postgres = postgres
        self.ministack = ministack
        self.standins = standins
        self._upstreams = {
            **{name: _listen(standin, ports.get(name)) for name, standin in standins.items()},
            **elsewhere,
        }
        self._parameters: dict[str, str] = {}

    @property
    def nivoda(self) -> NivodaStandIn:
        found: Any = self.standins["nivoda"]
        return cast("NivodaStandIn", found)

    @classmethod
    def start(
        cls,
        home: Path,
        say: Say,
        *,
        port: int | None = None,
        stones: int = STONES,
        seed: int = 0,
        enforce_iam: bool = False,
        upstreams: Mapping[str, str] = NO_PARAMETERS,
        parameters: Mapping[str, str] = NO_PARAMETERS,
    ) -> Self:
        """Everything up and migrated, nothing deployed yet. `upstreams`: other servers in the place of stand-ins."""
        # Only who starts a cloud pays for these imports; who asks it something should not wait.
        from infra.local.standins.all import STANDINS  # noqa: PLC0415
        from infra.migrations.run import migrate  # noqa: PLC0415

        private.home(home)
        with ExitStack() as parts:
            elapsed = stopwatch()
            ports = last_ports(home)
            postgres = parts.enter_context(Postgres.start(home / "postgres", port=ports.get("postgres")))
            say(f"Postgres     {without_password(postgres.url(DATABASE))}  ({elapsed():.1f} s)")
            elapsed = stopwatch()
            create_database(postgres.url())
            newer = migrate(postgres.url(DATABASE))
            private.give_passwords(postgres.url(DATABASE))
            say(f"migrated     {DATABASE}  ({elapsed():.1f} s)")
            if newer:
                say(f"             its schema {newer} is newer than this code, and stays")
            elapsed = stopwatch()
            _clear(home / "aws")
            port = port or ports.get("aws")
            ministack = parts.enter_context(MiniStack.start(home / "aws", port=port, enforce_iam=enforce_iam))
            say(f"AWS          {ministack.url}  ({elapsed():.1f} s)")
            standins = {name: place.make(seed, stones) for name, place in STANDINS.items() if name not in upstreams}
            cloud = cls(home, postgres, ministack, standins, upstreams, ports)
            parts.pop_all()  # from here on they are the cloud's to stop
        cloud._keep_ports()
        places: dict[str, str] = {}
        for name, place in STANDINS.items():
            own, url = name in standins, cloud._upstreams[name]
            places |= place.parameters(url, os.environ, own=own)
            if not own:
                say(f"{name:12} {url}  (instead of the stand-in)")
        say(f"stand-ins    {', '.join(standins)}")
        cloud._parameters = {**stage_parameters(), **cloud._places(), **places, **parameters}
        return cloud

    def address(self, pid: int, outputs: Mapping[str, str]) -> Address:
        aws_pid = self.ministack.pid
        return Address(
            pid=pid,
            endpoint=self.ministack.url,
            access_key=self.ministack.access_key,
            database_url=self.postgres.url(DATABASE),
            upstreams=self._upstreams,
            parameters=self._parameters,
            outputs=outputs,
            pids={"postgres": self.postgres.pid, **({} if aws_pid is None else {"aws": aws_pid})},
        )

    def _keep_ports(self) -> None:
        """The next start takes the same ones: addresses that people noted down still work."""
        standins = {name: urlsplit(self._upstreams[name]).port for name in self.standins}
        ports: dict[str, int | None] = {"postgres": self.postgres.port, "aws": self.ministack.port, **standins}
        with private.open_file(self.home / PORTS, "w") as file:
            file.write(json.dumps(ports, indent=2) + "\n")

    def deploy(self, say: Say = lambda _: None, *, root: Path = ROOT) -> Deployed:
        deployed = deploy(self.ministack.url, self.ministack.access_key, self._parameters, root=root, say=say)
        say(f"deployed     template.yaml  ({deployed.seconds:.1f} s)")
        return deployed

    def dead_parts(self) -> dict[str, str]:
        """Servers that have ended by themselves, with their last words."""
        servers: dict[str, Postgres | MiniStack] = {"postgres": self.postgres, "aws": self.ministack}
        return {name: server.log_tail() for name, server in servers.items() if not server.running}

    def stop(self) -> None:
        for standin in self.standins.values():
            standin.stop()
        self.ministack.stop()
        self.postgres.stop()
        (self.home / STATE).unlink(missing_ok=True)

    def _places(self) -> dict[str, str]:
        return {
            "DatabaseUrl": self.postgres.url(DATABASE, "baton_worker"),
            "ApiDatabaseUrl": self.postgres.url(DATABASE, "baton_api"),
            "PeopleDatabaseUrl": self.postgres.url(DATABASE, "baton_people"),
            "OwnerDatabaseUrl": self.postgres.url(DATABASE),
            "ScanFolder": str(private.folder(self.home / "inbox")),
            "PendingDashboardEnabled": "true",
        }


def last_ports(home: Path) -> dict[str, int]:
    """Where each part listened the last time, if nobody else listens there now."""
    try:
        kept = json.loads((home / PORTS).read_text())
    except (OSError, ValueError):
        return {}
    return {name: port for name, port in kept.items() if is_free(port)}


def _listen(standin: StandIn, port: int | None) -> str:
    for attempts_left in reversed(range(PORT_ATTEMPTS)):
        try:
            return standin.start(port or free_port())
        except OSError:
            if not attempts_left:
                raise
            port = None
    raise AssertionError


def without_password(url: str) -> str:
    """For a screen or a log."""
    where = sa.make_url(url)
    return sa.URL.create("postgresql", where.username, None, where.host, where.port, where.database).render_as_string()


def stage_parameters(root: Path = ROOT) -> dict[str, str]:
    """What samconfig.toml says of the stage: `sam deploy --config-env local` and we deploy the same."""
    config = tomllib.loads((root / "samconfig.toml").read_text())
    return dict(pair.split("=", 1) for pair in config[STAGE]["deploy"]["parameters"]["parameter_overrides"])


@contextmanager
def throwaway_home() -> Iterator[Path]:
    """A folder that is gone at the end; the account of the database may pass through it."""
    home = Path(tempfile.mkdtemp(prefix="baton-cloud-"))
    home.chmod(0o711)
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _clear(folder: Path) -> None:
    """What a killed MiniStack left in its temporary folder."""
    for name in ("tmp", "s3", "state"):
        shutil.rmtree(folder / name, ignore_errors=True)


def create_database(superuser_url: str) -> None:
    engine = db.connect_engine(superuser_url, pool="none")
    with db.autocommit(engine).connect() as connection:
        if not connection.scalar(sa.text("select 1 from pg_database where datname = :name"), {"name": DATABASE}):
            connection.exec_driver_sql(f"create database {DATABASE}")
    engine.dispose()


def _listens(url: str) -> bool:
    """Whether anything takes a connection there: what it would answer is its own business."""
    parts = urlsplit(url)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 443), timeout=2):
            return True
    except OSError:
        return False


def _database_answers(url: str) -> bool:
    engine = db.connect_engine(url, pool="none", connect_seconds=2)
    try:
        with engine.connect() as connection:
            return bool(connection.scalar(sa.text("select true")))
    except (sa.exc.SQLAlchemyError, OSError):
        return False
    finally:
        engine.dispose()
