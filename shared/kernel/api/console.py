"""The web console's files: one page for every view, and its modules and styles under a path that names their content.

The page says which kinds of work are deployed and which of them have a view of their own (`kinds/<kind>.js`): a new kind
appears in the console by being deployed. Nothing here asks the database or knows who asks: the console gets everything
else through the API, with the visitor's own token.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import Field

from shared.kernel.settings import Settings

CONSOLE = "/console"
FIRST = f"{CONSOLE}/overview"
ASSETS = "assets"
KINDS = "kinds"
PAGE = "index.html"
ON_DEMAND = ("views/", f"{KINDS}/")
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
Url = Annotated[str, Field(pattern=r"^(https?://[\w.:/-]+)?$")]  # they go into a header
A_YEAR = "public, max-age=31536000, immutable"


class Login(Settings):
    """How people sign in. `password_url`: the user pool takes an email and a password there, as a local cloud's does;
    otherwise the issuer's own page asks for them. `audience`: the audience a token must have. `origins`: other origins of
    that issuer, for the policy."""

    issuer: Url = ""
    client_id: str = ""
    audience: str = ""
    scopes: str = "openid email"
    password_url: Url = ""
    origins: Annotated[str, Field(pattern=r"^[\w:/.* -]*$")] = ""

    def spoken_to(self) -> list[str]:
        return [self.password_url or self.issuer, *self.origins.split()]


def live_login(env: Mapping[str, str]) -> Login:
    """A local cloud's user pool has no page of its own: it takes a password, where all of its AWS is."""
    endpoint = env.get("AWS_ENDPOINT_URL", "") if env.get("BATON_STAGE") == "local" else ""
    return Login.from_env({"BATON_LOGIN_PASSWORD_URL": endpoint, **env}, "BATON_LOGIN_")


class Uploads(Settings):
    """`url`: where a browser puts files by a form that the API signed."""

    url: Url = ""


def live_uploads(env: Mapping[str, str]) -> str:
    """The bucket's own address, or where all of a local cloud's AWS is."""
    endpoint = env.get("AWS_ENDPOINT_URL", "") if env.get("BATON_STAGE") == "local" else ""
    return endpoint or Uploads.from_env(env, "BATON_UPLOADS_").url


@dataclass(frozen=True, slots=True)
class File:
    content: bytes
    packed: bytes
    content_type: str


@dataclass(frozen=True)
class Console:
    """`kinds`: the kinds of work that are deployed, by name. `uploads`: where the page may put files. `off`: the pages that this
    deployment has turned off (`<kind>/<path>`), and what the API answers there: no tab leads to them, and a kept link says why."""

    folder: Path
    login: Login
    kinds: Sequence[str] = ()
    uploads: str = ""
    off: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def serves(event: Mapping[str, Any]) -> bool:
        path: str = event["rawPath"]
        is_ours: bool = path in {"/", CONSOLE} or path.startswith(CONSOLE + "/")
        return is_ours and event["requestContext"]["http"]["method"] == "GET"

    def answer(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """To a GET of `/console` or anything below it: a file by its name, else the page, which knows its views."""
        if event["rawPath"].rstrip("/") in {"", CONSOLE}:  # gateways differ in what they make of a last slash
            return {"statusCode": 302, "headers": {"Location": FIRST}, "body": "", "isBase64Encoded": False}
        headers = {str(name).lower(): str(value) for name, value in (event.get("headers") or {}).items()}
        packs = "gzip" in headers.get("accept-encoding", "")
        path = event["rawPath"].removeprefix(CONSOLE)
        asset = path.removeprefix(f"/{ASSETS}/")
        if asset == path:
            return _told(self._page(path), packs, {"Cache-Control": "no-cache", **self.guards})
        version, _, name = asset.partition("/")
        file = self.files.get(name)
        if file is None or version != self.version:  # of another version: its page must be loaded again
            return _told(File(b"Not here.\n", b"", "text/plain"), False, {"Cache-Control": "no-store"}, 404)
        return _told(file, packs, {"Cache-Control": A_YEAR, "X-Content-Type-Options": "nosniff"})

    @cached_property
    def files(self) -> dict[str, File]:
        """Everything in the folder. What is not in it cannot be asked for, however the path is written."""
        return {
            str(path.relative_to(self.folder)): _read(path)
            for path in sorted(self.folder.rglob("*"))
            if path.suffix in TYPES
        }

    @cached_property
    def version(self) -> str:
        digest = hashlib.sha256()
        for name, file in self.files.items():
            digest.update(name.encode() + b"\0" + file.content)
        return digest.hexdigest()[:16]

    @cached_property
    def kind_files(self) -> dict[str, str | None]:
        """Each deployed kind and the file of its view; None: it has none, and gets the general one."""
        files = {kind: f"{KINDS}/{kind}.js" for kind in self.kinds}
        return {kind: file if file in self.files else None for kind, file in files.items()}

    @cached_property
    def guards(self) -> dict[str, str]:
        """What a browser must not let this page do, whatever gets into it."""
        policy = (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; base-uri 'self'; "
            f"connect-src 'self' {self._spoken_to()}; form-action 'none'; frame-ancestors 'none'; "
            "require-trusted-types-for 'script'; trusted-types 'none'"
        )
        return {
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
            "Strict-Transport-Security": "max-age=31536000",
        }

    def _spoken_to(self) -> str:
        """The origins that the page may send requests to, besides its own."""
        urls = [*self.login.spoken_to(), self.uploads]
        return " ".join(dict.fromkeys(_origin(url) for url in urls if url))

    def _page(self, path: str) -> File:
        """Its base leads back to `/console/` from any view, below whatever prefix a gateway takes off."""
        base = "../" * (path.count("/") - 1) or "./"
        ahead = "".join(
            f'<link rel="modulepreload" href="{ASSETS}/{self.version}/{name}">'
            for name in self.files
            if name.endswith(".js") and (not name.startswith(ON_DEMAND) or name in self.kind_files.values())
        )
        login = self.login.model_dump(exclude={"origins"})
        text = self.files[PAGE].content.decode()
        for mark, said in {
            "{{base}}": base, "{{assets}}": f"{ASSETS}/{self.version}", "{{login}}": _attribute(login),
            "{{kinds}}": _attribute(self.kind_files), "{{off}}": _attribute(self.off), "{{ahead}}": ahead,
        }.items():  # fmt: skip
            text = text.replace(mark, said)
        return _file(text.encode(), TYPES[".html"])


def _attribute(value: Any) -> str:
    return html.escape(orjson.dumps(value).decode())


def _read(path: Path) -> File:
    return _file(path.read_bytes(), TYPES[path.suffix])


def _file(content: bytes, content_type: str) -> File:
    return File(content, gzip.compress(content, mtime=0), content_type)


def _told(file: File, packs: bool, headers: Mapping[str, str], status: int = 200) -> dict[str, Any]:
    told = {"Content-Type": file.content_type, "Vary": "Accept-Encoding", **headers}
    if not packs:
        return {"statusCode": status, "headers": told, "body": file.content.decode(), "isBase64Encoded": False}
    told["Content-Encoding"] = "gzip"
    return {
        "statusCode": status,
        "headers": told,
        "body": base64.b64encode(file.packed).decode(),
        "isBase64Encoded": True,
    }


def _origin(url: str) -> str:
    return "/".join(url.split("/")[:3])
