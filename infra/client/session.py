"""Who asks, and where: a token from the environment, or a login kept in a file that only its owner may read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.client.http import Client, Refusal, ask

STATE = "cloud.json"  # what a local cloud says of itself
KEPT = "session.json"
COGNITO = "AWSCognitoIdentityProviderService"


def user_home() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "baton"


@dataclass(frozen=True, slots=True)
class Place:
    """A deployment: its API, and the user pool where people sign in."""

    url: str
    pool_url: str
    client_id: str

    @classmethod
    def of_cloud(cls, home: Path) -> Place | None:
        """The local cloud, if one is up there."""
        try:
            state = json.loads((home / STATE).read_text())
        except (OSError, ValueError):
            return None
        outputs = state["outputs"]
        return cls(outputs["ApiUrl"], state["endpoint"], outputs.get("UserPoolClientId", ""))


class Fixed:
    """A token that somebody gave us: a machine's, or a JWT of another issuer. `helps`: what to do if it is refused."""

    def __init__(self, token: str, helps: str = "Set another, or unset it to use your login") -> None:
        self._token, self._helps = token, helps

    def token(self) -> str:
        return self._token

    def renew(self) -> bool:
        return False

    @property
    def remedy(self) -> str:
        return f"the token in BATON_TOKEN is wrong, expired or revoked. {self._helps}"

    @property
    def tenant(self) -> None:
        return None


class Login:
    """A login in a file. `first` makes one where that needs no password: in the local cloud."""

    def __init__(self, file: Path, place: Place | None, first: Callable[[], None] | None = None) -> None:
        self._file = file
        self._first = first
        self._kept = read(file)
        if place is not None and self._kept.get("url") != place.url:  # of another cloud, or of one that is gone
            self._kept = {}

    def token(self) -> str:
        if not self._kept and not self._begin():
            raise Refusal("you are not logged in. Run `baton login`")
        return str(self._kept["access_token"])

    def renew(self) -> bool:
        place = Place(self._kept["url"], self._kept["pool_url"], self._kept["client_id"])
        try:
            answer = initiate(place, "REFRESH_TOKEN_AUTH", {"REFRESH_TOKEN": self._kept["refresh_token"]})
        except Refusal:
            return self._begin()
        self._kept = {**self._kept, "access_token": answer["AccessToken"]}
        keep(self._file, self._kept)
        return True

    @property
    def remedy(self) -> str:
        return "you are not logged in, or your login expired. Run `baton login`"

    @property
    def tenant(self) -> str | None:
        """The local cloud's own login may act in every tenant, and means its own."""
        return self._kept.get("tenant")

    def _begin(self) -> bool:
        if self._first is None:
            return False
        self._first()
        self._kept = read(self._file)
        return bool(self._kept)


def connect(home: Path, url: str | None, tenant: str | None) -> Client:
    """The client of the deployment that is meant: the one named, else the local cloud, else the last login."""
    token = os.environ.get("BATON_TOKEN")
    tenant = tenant or os.environ.get("BATON_TENANT")
    url = url or os.environ.get("BATON_URL") or None
    place = None if url else Place.of_cloud(home)
    if url is None and place is None:
        url = read(user_home() / KEPT).get("url")
        if url is None:
            raise Refusal(
                "no local cloud is running and you are not logged in. Run `baton up`, or `baton login --url URL`"
            )
    where = (url or (place.url if place else "")).rstrip("/")
    if token:
        return Client(where, Fixed(token), tenant)
    if place is not None:
        return Client(where, Login(home / KEPT, place, lambda: _first_login(home)), tenant)
    kept = read(user_home() / KEPT)
    if kept.get("url") != where:
        raise Refusal(f"you are not logged in to {where}. Run `baton login --url {where}`")
    return Client(where, Login(user_home() / KEPT, None), tenant)


def log_in(place: Place, file: Path, username: str, password: str) -> None:
    answer = initiate(place, "USER_PASSWORD_AUTH", {"USERNAME": username, "PASSWORD": password})
    keep(
        file,
        {
            "url": place.url,
            "pool_url": place.pool_url,
            "client_id": place.client_id,
            "access_token": answer["AccessToken"],
            "refresh_token": answer["RefreshToken"],
        },
    )


def initiate(place: Place, flow: str, given: Mapping[str, str]) -> dict[str, str]:
    """Ask the user pool for tokens."""
    headers = {"content-type": "application/x-amz-json-1.1", "x-amz-target": f"{COGNITO}.InitiateAuth"}
    body = {"AuthFlow": flow, "ClientId": place.client_id, "AuthParameters": dict(given)}
    status, answer = ask("POST", place.pool_url + "/", headers, body)
    try:
        said: dict[str, Any] = dict(json.loads(answer or b"{}"))
    except (ValueError, TypeError):
        raise Refusal(f"{place.pool_url} did not answer as a user pool does ({status}). Check --region") from None
    if status != 200:
        raise Refusal(f"login failed: {said.get('message') or said.get('Message') or status}")
    if "AuthenticationResult" not in said:
        raise Refusal(
            f"the user pool asks for {said.get('ChallengeName')}. Set a new password (and MFA) there, then log in again"
        )
    return dict(said["AuthenticationResult"])


def revoke(kept: Mapping[str, str]) -> None:
    """Tell the user pool that nobody will come back with this login. It is forgotten here either way."""
    if "refresh_token" not in kept:
        return
    headers = {"content-type": "application/x-amz-json-1.1", "x-amz-target": f"{COGNITO}.RevokeToken"}
    with suppress(Refusal):
        ask(
            "POST",
            kept["pool_url"] + "/",
            headers,
            {"ClientId": kept["client_id"], "Token": kept["refresh_token"]},
            5.0,
        )


def read(file: Path) -> dict[str, str]:
    try:
        return dict(json.loads(file.read_text()))
    except (OSError, ValueError):
        return {}


def keep(file: Path, session: Mapping[str, str]) -> None:
    """Created with mode 0600: at no moment can anyone else read it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as held:
        json.dump(dict(session), held)
    part.rename(file)


def _first_login(home: Path) -> None:
    """In a process of its own: it needs the database and AWS, which nothing else of a client does."""
    told = subprocess.run(
        [sys.executable, "-m", "infra.local.people", str(home)],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    if told.returncode:
        raise Refusal(f"the local cloud couldn't create a login: {told.stderr.strip().splitlines()[-1:]}")
