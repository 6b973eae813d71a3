"""A wire between workers and Postgres that now and then loses an answer after the server has done the work."""

from __future__ import annotations

import re
import select
import socket
import threading
from contextlib import suppress
from random import Random

from tests.chaos.hub import Line

WRITES = re.compile(rb"\b(update (lane|run|gate|remote_call) |insert into|delete from)")
READY = b"Z\x00\x00\x00\x05"
IDLE, ERROR = ord("I"), ord("E")


class Conversation:
    """One connection: it knows when an answer is complete and whether its transaction wrote."""

    def __init__(self, client: socket.socket, server: socket.socket, line: Line, rate: float, rng: Random) -> None:
        self._client, self._server, self._line, self._rate, self._rng = client, server, line, rate, rng
        self._wrote = False
        self._greeted = False
        self._fate = "relay"
        self._asking = False
        self._swallowed = self._tail = b""

    def relay(self) -> None:
        while True:
            ready, _, _ = select.select([self._client, self._server], [], [])
            if self._client in ready and not self._request():
                return
            if self._server in ready and not self._answer():
                return

    def _request(self) -> bool:
        data = self._client.recv(65536)
        if not data:
            return False
        if not self._asking:
            self._asking = True
            self._fate = self._draw()
        self._wrote = self._wrote or WRITES.search(data) is not None
        if self._fate == "lose the request":
            self._line.add({"cut requests": 1})
            return False
        self._server.sendall(data)
        return True

    def _draw(self) -> str:
        if not self._greeted or self._rng.random() >= self._rate:
            return "relay"
        return self._rng.choice(("lose the request", "lose the answer", "lose the answer", "lose half of the answer"))

    def _answer(self) -> bool:
        data = self._server.recv(65536)
        if not data:
            return False
        self._tail = (self._tail + data)[-6:]
        complete = self._tail[:-1] == READY
        if self._fate == "relay":
            self._client.sendall(data)
        else:
            self._swallowed += data
        if complete and self._fate != "relay":
            self._cut()
            return False
        if complete:
            self._greeted, self._asking = True, False
            self._wrote = self._wrote and data[-1] != IDLE
        return True

    def _cut(self) -> None:
        answer = self._swallowed
        if self._fate == "lose half of the answer":
            self._client.sendall(answer[: len(answer) // 2])
        committed = self._wrote and answer[-1] == IDLE and ERROR not in kinds_of_messages(answer)
        self._line.add({"cut answers": 1, "cut answers after a commit that wrote": int(committed)})


def kinds_of_messages(answer: bytes) -> set[int]:
    """The type byte of each message in a complete answer of the server."""
    kinds, at = set(), 0
    while at < len(answer):
        kinds.add(answer[at])
        at += 1 + int.from_bytes(answer[at + 1 : at + 5])
    return kinds


def run_proxy(line: Line, server_port: int, rate: float, rng: Random) -> None:
    """Accept for ever; a thread per connection, because each waits for its own two ends."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        line.proxy_listens(listener.getsockname()[1])
        while True:
            client, _ = listener.accept()
            each = Random(rng.random())
            threading.Thread(target=_serve, args=(client, server_port, line, rate, each), daemon=True).start()


def _serve(client: socket.socket, server_port: int, line: Line, rate: float, rng: Random) -> None:
    with client, suppress(OSError), socket.create_connection(("127.0.0.1", server_port)) as server:
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        Conversation(client, server, line, rate, rng).relay()
