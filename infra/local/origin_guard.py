"""Guards every server of the local cloud against web pages: a browser on this machine can reach them, its pages must not.

A page can send a request to any port of its visitor's machine, and with a name that it makes resolve to 127.0.0.1 it can
read the answer too. So every server asks two questions first: were you called by a name of this machine, and if a page
sent this, is it one of ours? What can carry a secret is asked for it as well: the access key of the local AWS.
"""

from __future__ import annotations

import hmac
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qs, urlsplit

LOOPBACK = frozenset({"127.0.0.1", "localhost"})
# Names below `localhost` are this machine's in every browser. An API has one of its own, and the console is behind it.
API_HOST = re.compile(r"[a-f0-9]{8}\.execute-api\.localhost")
# What an API of ours answers. The emulator looks at some paths before it looks at the host.
API_PREFIX = re.compile(
    r"/_aws/execute-api/[a-f0-9]{8}/[^/]+(?=/)"
)  # the same, for clients that cannot choose the Host
API_PATHS = re.compile(r"/|/(health|openapi\.json|docs|console)|/(console|api/v1|machine)/.*")
CREDENTIAL = re.compile(r"Credential=([^/,\s]+)/")
# What people do before they have any credentials, as in AWS: log in, log out.
PUBLIC_TARGETS = frozenset(f"AWSCognitoIdentityProviderService.{name}" for name in ("InitiateAuth", "RevokeToken"))
PUBLIC_GETS = frozenset({"/_ministack/health", "/oauth2/authorize", "/logout"})
PUBLIC_POSTS = frozenset({"/login", "/oauth2/token"})
KEYS_OF_TOKENS = re.compile(r"/[\w-]+/\.well-known/(jwks\.json|openid-configuration)")
BEYOND_BARE = frozenset({"authorization", "x-amz-target", "content-length", "transfer-encoding"})
DECIDING = ("host", "origin", "authorization", "x-amz-target", "x-amz-security-token", "sec-fetch-site")
BUCKET = re.compile(r"/[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/?")
FORM = "multipart/form-data"
FORM_HEAD = 32 * 1024  # the fields of a form that a page sends to a bucket are before its file, and in this many bytes
FORM_FIELD = re.compile(
    rb'form-data; name="(x-amz-credential|x-amz-security-token)"\r\n(?:[\w-]+:[^\r\n]*\r\n)*\r\n([^\r\n]*)\r\n',
    re.IGNORECASE,
)
CALLBACK = re.compile(r"/_ministack/cfn-response/[\w-]{32,}")  # the address is the secret


def is_here(host: str) -> bool:
    """Whether a Host header names this machine, on whatever port."""
    name = host.rpartition(":")[0] if ":" in host else host
    return name in LOOPBACK or API_HOST.fullmatch(name) is not None


def refusal(headers: Mapping[str, str], *, own_port: int | None = None) -> str | None:
    """Why a request is not answered; None: it may be. `headers` by lower-case names.

    `own_port`: pages that this server itself serves, on that port, may call it. Without one no page may.
    """
    if not is_here(headers.get("host", "")):
        return "the Host is not this machine"
    origin = headers.get("origin")
    if origin is not None:
        from_us = urlsplit(origin) if own_port is not None else None
        if from_us is None or from_us.scheme != "http" or not _is_ours(from_us.netloc, own_port):
            return "a page of another origin asks"
    elif headers.get("sec-fetch-site", "none") not in {"none", "same-origin"} and not _navigates(headers):
        return "a page of another site asks"
    return None


def credential(headers: Mapping[str, str], query: str) -> tuple[str, str]:
    """The access key and the session token that a request carries, signed or presigned; empty: none."""
    asked = parse_qs(query)
    found = CREDENTIAL.search(headers.get("authorization", ""))
    key = found[1] if found else asked.get("X-Amz-Credential", [""])[0].partition("/")[0]
    token = headers.get("x-amz-security-token") or asked.get("X-Amz-Security-Token", [""])[0]
    return key, token


def is_form(method: str, path: str, headers: Mapping[str, str], query: str) -> bool:
    """Whether this is a file by a form, as a browser sends one to a bucket: then what was signed is in the form."""
    bare = not query and "authorization" not in headers and "x-amz-target" not in headers
    return (
        method == "POST"
        and bare
        and BUCKET.fullmatch(path) is not None
        and headers.get("content-type", "").startswith(FORM)
    )


def form_credential(head: bytes) -> tuple[str, str]:
    """As `credential`, of a form's first fields. What comes after the field `file` is no field."""
    fields = head.partition(b'name="file"')[0]
    found = {name.lower(): value.decode("latin-1") for name, value in FORM_FIELD.findall(fields)}
    return found.get(b"x-amz-credential", "").partition("/")[0], found.get(b"x-amz-security-token", "")


def needs_credentials(method: str, path: str, headers: Mapping[str, str], query: str = "") -> bool:
    """All but what everybody may ask of AWS too: an API (which asks for tokens itself), a login, the keys of tokens.

    A path alone says little: what the emulator does not know by its path it reads as a call of any service, by an `Action`
    in the query or in the body, by a header, by what it was signed for. A link with the right query would make a stack, and
    a stack runs code. So every path here is one that the emulator always answers itself, or the request must be bare.
    """
    if API_HOST.fullmatch(headers.get("host", "").partition(":")[0]):
        return "x-amz-target" in headers or not API_PATHS.fullmatch(path)
    if (prefix := API_PREFIX.match(path)) is not None:
        return "x-amz-target" in headers or not API_PATHS.fullmatch(path[prefix.end() :])
    if method == "POST" and path == "/" and headers.get("x-amz-target") in PUBLIC_TARGETS:
        return bool(query)
    if method == "GET" and KEYS_OF_TOKENS.fullmatch(path):
        return bool(query) or not BEYOND_BARE.isdisjoint(headers)
    if method == "OPTIONS":  # a preflight, from the console to the pool or to a bucket
        return bool(query) or (path not in {"/", *PUBLIC_POSTS} and BUCKET.fullmatch(path) is None)
    public = {"GET": path in PUBLIC_GETS, "POST": path in PUBLIC_POSTS, "PUT": CALLBACK.fullmatch(path) is not None}
    return not public.get(method, False)


def repeated(names: Iterable[str]) -> str | None:
    """A header that decides and comes twice: the emulator might look at the other one. `names` in lower case."""
    seen = Counter(names)
    return next((name for name in DECIDING if seen[name] > 1), None)


def same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def _is_ours(netloc: str, port: int | None) -> bool:
    name, _, its_port = netloc.partition(":")
    return its_port == str(port) and is_here(name)


def _navigates(headers: Mapping[str, str]) -> bool:
    """Somebody followed a link: the page that had it learns nothing of the answer."""
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
