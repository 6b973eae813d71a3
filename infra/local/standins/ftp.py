"""A stand-in for an FTP server on its wire protocol (RFC 959, 3659): files in memory, passive transfers, and its faults.

It takes one user, answers 530 to everybody else until he is known, 550 to names that it has not, 502 to what it does not
know. `knows_mlsd = False`: an older one, which lists names and tells sizes one by one. `cuts_at`: a transfer breaks there.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from dataclasses import dataclass, field
from typing import Any, Self

USER, PASSWORD = "supplier", "stand-in-password"  # they open nothing


@dataclass(slots=True)
class Held:
    content: bytes
    modified: str = "20261117010000"
    is_folder: bool = False


@dataclass(slots=True)
class FtpStandIn:
    """`with FtpStandIn() as server:` it listens on `server.port` of loopback. `asked`: every command that it was sent."""

    files: dict[str, Held] = field(default_factory=dict)
    directory: str = "/out"
    knows_mlsd: bool = True
    cuts_at: int | None = None
    asked: list[str] = field(default_factory=list)
    _server: Any = None

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def put(self, name: str, content: bytes, modified: str = "20261117010000") -> None:
        self.files[name] = Held(content, modified)

    def __enter__(self) -> Self:
        session = type("Session", (_Session,), {"standin": self})
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), session)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Session(socketserver.StreamRequestHandler):
    standin: FtpStandIn

    def setup(self) -> None:
        super().setup()
        self.user, self.is_known, self.cwd, self.rest = "", False, "/", 0
        self.is_binary, self.passive = False, None

    passive: socket.socket | None

    def say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())

    def handle(self) -> None:
        self.say("220 stand-in")
        for line in self.rfile:
            text = line.decode().rstrip("\r\n")
            self.standin.asked.append(text)
            verb, _, rest = text.partition(" ")
            command = getattr(self, f"do_{verb.lower()}", None)
            if command is None:
                self.say("502 not implemented")
            elif not self.is_known and verb not in {"USER", "PASS", "QUIT"}:
                self.say("530 log in first")
            elif command(rest) is False:
                return

    def do_user(self, name: str) -> None:
        self.user = name
        self.say("331 password")

    def do_pass(self, password: str) -> None:
        self.is_known = (self.user, password) == (USER, PASSWORD)
        self.say("230 hello" if self.is_known else "530 who are you?")

    def do_type(self, what: str) -> None:
        self.is_binary = what == "I"
        self.say("200 ok" if what in {"I", "A"} else "504 neither text nor binary")

    def do_cwd(self, folder: str) -> None:
        known = folder == self.standin.directory
        self.cwd = folder if known else self.cwd
        self.say("250 there" if known else "550 no such folder")

    def do_pasv(self, _: str) -> None:
        self._listen()
        assert self.passive is not None
        port = self.passive.getsockname()[1]
        self.say(f"227 entering passive mode (10,255,255,1,{port >> 8},{port & 255})")  # a lie, as behind a NAT

    def do_epsv(self, _: str) -> None:
        self._listen()
        assert self.passive is not None
        self.say(f"229 entering extended passive mode (|||{self.passive.getsockname()[1]}|)")

    def _listen(self) -> None:
        self.passive = socket.create_server(("127.0.0.1", 0))
        self.passive.settimeout(5)

    def do_rest(self, offset: str) -> None:
        self.rest = int(offset)
        self.say("350 from there")

    def do_size(self, name: str) -> None:
        held = self._held(name)
        self.say(f"213 {len(held.content)}" if held and not held.is_folder else "550 no such file")

    def do_mdtm(self, name: str) -> None:
        held = self._held(name)
        self.say(f"213 {held.modified}" if held else "550 no such file")

    def do_opts(self, _: str) -> None:
        self.say("200 ok")

    def do_mlsd(self, _: str) -> None:
        if not self.standin.knows_mlsd:
            return self.say("502 not implemented")
        lines = [f"type=cdir;modify={Held(b'').modified}; ."]
        if self.cwd == self.standin.directory:
            lines += [
                f"type={'dir' if each.is_folder else 'file'};size={len(each.content)};modify={each.modified}; {name}"
                for name, each in self.standin.files.items()
            ]
        return self._send("\r\n".join([*lines, ""]).encode())

    def do_nlst(self, _: str) -> None:
        self._send("".join(f"{name}\r\n" for name in self.standin.files if self.cwd == self.standin.directory).encode())

    def do_retr(self, name: str) -> None:
        held = self._held(name)
        if held is None or held.is_folder:
            return self.say("550 no such file")
        if not self.is_binary:  # what is sent as text is not what the file holds
            return self.say("504 ask for it in binary")
        content, self.rest = held.content[self.rest :], 0
        return self._send(content, self.standin.cuts_at)

    def do_quit(self, _: str) -> bool:
        self.say("221 bye")
        return False

    def _held(self, name: str) -> Held | None:
        return self.standin.files.get(name) if self.cwd == self.standin.directory else None

    def _send(self, content: bytes, cut: int | None = None) -> None:
        if self.passive is None:
            return self.say("425 say PASV first")
        self.say("150 here it comes")
        data, _ = self.passive.accept()
        with data:
            try:
                data.sendall(content if cut is None else content[:cut])
            except OSError:
                cut = 0
        self.passive.close()
        self.passive = None
        return self.say("226 done" if cut is None else "426 broken off")
