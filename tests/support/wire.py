"""Guards claims about the network: a relay before Postgres that counts turns of the line, dribbles answers or cuts them."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Wire:
    server_port: int
    tls: ssl.SSLContext | None = None
    dribble: bool = False
    cut_after: int | None = None  # bytes of answers still let through, once set
    turns: int = 0  # how often the client spoke after the server had spoken
    port: int = 0

    def relay(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
            with self._secured(client) as near, socket.create_connection(("127.0.0.1", self.server_port)) as far:
                self._pump(near, far)
        except OSError:
            return  # a client that refuses our certificate, or either side hanging up, ends the relay

    def _secured(self, client: socket.socket) -> socket.socket:
        if self.tls is None:
            return client
        client.recv(8)  # the SSLRequest
        client.sendall(b"S")
        return self.tls.wrap_socket(client, server_side=True)

    def _pump(self, near: socket.socket, far: socket.socket) -> None:
        server_spoke = True
        while True:
            pending = isinstance(near, ssl.SSLSocket) and near.pending()
            ready = [near] if pending else select.select([near, far], [], [])[0]
            if near in ready:
                self.turns += server_spoke
                server_spoke = False
                if not self._pass(near, far, near.recv(65536)):
                    return
            if far in ready:
                server_spoke = True
                if not self._answer(near, far):
                    return

    def _answer(self, near: socket.socket, far: socket.socket) -> bool:
        data = far.recv(65536)
        if self.cut_after is not None:
            near.sendall(data[: self.cut_after])
            return False
        if not self.dribble:
            return self._pass(far, near, data)
        return bool(data) and all(self._pass(far, near, data[i : i + 3]) for i in range(0, len(data), 3))

    @staticmethod
    def _pass(_from: socket.socket, to: socket.socket, data: bytes) -> bool:
        to.sendall(data)
        return bool(data)


@contextmanager
def wire(server_port: int, *, tls: ssl.SSLContext | None = None, dribble: bool = False) -> Iterator[Wire]:
    """Relay one connection to the server; closing the client ends it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        line = Wire(server_port, tls=tls, dribble=dribble, port=listener.getsockname()[1])
        thread = threading.Thread(target=line.relay, args=(listener,), daemon=True)
        thread.start()
        yield line
        thread.join(timeout=60)
