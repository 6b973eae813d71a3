"""MiniStack behind the guard: it answers every host, every page and everybody, and it runs code. This lets nobody near it
but clients with this cloud's access key, and for what needs none, pages that this cloud itself serves."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable
from typing import Any

from infra.local.origin_guard import (
    FORM_HEAD,
    credential,
    form_credential,
    is_form,
    needs_credentials,
    refusal,
    repeated,
    same,
)

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
READ_OUT = 8 * 1024 * 1024  # of a body that nobody wants
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def guarded(app: App, *, port: int, access_key: str, checks_signatures: bool) -> App:
    """`checks_signatures`: the emulator enforces IAM, so it may see other keys too; it refuses what it does not know."""

    async def ask(scope: Scope, receive: Receive, send: Callable[[Any], Awaitable[None]]) -> None:
        if scope["type"] == "lifespan":
            await app(scope, receive, send)
            return
        if scope["type"] != "http":  # nothing here speaks WebSocket
            await send({"type": "websocket.close", "code": 1008})
            return
        why, receive = await _refused(scope, receive)
        if why is not None:
            await _read_out(receive)
            body = json.dumps({"__type": "AccessDenied", "message": f"Refused by Baton's local cloud: {why}."}).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            return
        await app(scope, receive, send)

    async def _refused(scope: Scope, receive: Receive) -> tuple[str | None, Receive]:
        """Why it is refused, if it is; and where its body comes from, of which this may have read the beginning."""
        fields = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        if (twice := repeated(name for name, _ in fields)) is not None:
            return f"it says {twice} twice", receive
        method, path = scope["method"], scope["path"]
        headers, query = dict(fields), scope["query_string"].decode("latin-1")
        if (why := refusal(headers, own_port=port)) is not None:
            return why, receive
        if not needs_credentials(method, path, headers, query):
            return None, receive
        if is_form(method, path, headers, query):
            head, receive = await _begun(receive)
            return _unknown(*form_credential(head), path), receive
        return _unknown(*credential(headers, query), path), receive

    def _unknown(key: str, token: str, path: str) -> str | None:
        if same(key, access_key) or same(token, access_key):
            return None
        is_root = not key or key == "test" or key.isdecimal()  # keys that the emulator takes for its owner's
        of_its_own = path.startswith("/_")  # the emulator's own controls, where it checks nothing
        if checks_signatures and not is_root and not of_its_own:
            return None
        return "the access key is not this cloud's; `baton env` prints it"

    return ask


async def _begun(receive: Receive) -> tuple[bytes, Receive]:
    """The beginning of a body, and a way to receive all of it."""
    taken: list[Any] = []
    size = 0
    while size < FORM_HEAD:
        taken.append(await receive())
        size += len(taken[-1].get("body", b""))
        if not taken[-1].get("more_body", False):
            break
    left = iter(taken)

    async def again() -> Any:
        return next(left, None) or await receive()

    return b"".join(each.get("body", b"") for each in taken)[:FORM_HEAD], again


async def _read_out(receive: Receive) -> None:
    """Whoever is still sending when the connection closes is told that it was reset, and never reads why."""
    size = 0
    while size < READ_OUT:
        got = await receive()
        size += len(got.get("body", b""))
        if not got.get("more_body", False):  # all of it, or the other side has gone
            return


def main() -> None:
    from ministack import app as emulator  # type: ignore[import-untyped] # noqa: PLC0415 - its environment is read when it is imported

    emulator.app = guarded(
        emulator.app,
        port=int(os.environ["GATEWAY_PORT"]),
        access_key=os.environ["AWS_ACCESS_KEY_ID"],
        checks_signatures=bool(emulator.AUTH),
    )
    emulator.main()


if __name__ == "__main__":
    main()
