"""A stand-in for an FTP server on its wire protocol (RFC 959, 3659): files in memory, passive transfers, and its faults.

It takes one user, answers 530 to everybody else until he is known, 550 to names that it has not, 502 to what it does not
know. `knows_mlsd = False`: an older one, which lists names and tells sizes one by one, and has none to list if there are no
files. `tells_twice`: each file is listed as it was before, too. `cuts_at`: a transfer breaks there.
`tls`: it speaks to nobody without it, and as most servers it takes a data connection only in the session of its control
connection (RFC 4217): who could read the one need not be who logged in on the other.
"""

from __future__ import annotations

import socket
import socketserver
import ssl
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
    tells_twice: bool = False
    cuts_at: int | None = None
    tls: ssl.SSLContext | None = None
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
        self.is_binary, self.passive, self.is_private = False, None, False

    passive: socket.socket | None

    def say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())

    def handle(self) -> None:
        self.say("220 stand-in")
        while line := self.rfile.readline():
            text = line.decode().rstrip("\r\n")
            self.standin.asked.append(text)
            verb, _, rest = text.partition(" ")
            command = getattr(self, f"do_{verb.lower()}", None)
            if command is None:
                self.say("502 not implemented")
            elif self.standin.tls is not None and not isinstance(self.connection, ssl.SSLSocket) and verb != "AUTH":
                self.say("522 not without TLS")
            elif not self.is_known and verb not in {"AUTH", "USER", "PASS", "QUIT"}:
                self.say("530 log in first")
            elif command(rest) is False:
                return

    def do_auth(self, what: str) -> None:
        if self.standin.tls is None or what != "TLS":
            return self.say("504 no such security")
        self.say("234 go on")
        self.connection = self.standin.tls.wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)
        return None

    def do_pbsz(self, _: str) -> None:
        self.say("200 0")

    def do_prot(self, level: str) -> None:
        self.is_private = level == "P"
        self.say("200 ok")

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
            lines += [line.replace(";size=", ";size=1") for line in lines[1:] if self.standin.tells_twice]
        return self._send("\r\n".join([*lines, ""]).encode("utf-8", "surrogateescape"))

    def do_nlst(self, _: str) -> None:
        if not self.standin.files:
            return self.say("550 no files found")
        return self._send(
            "".join(f"{name}\r\n" for name in self.standin.files if self.cwd == self.standin.directory).encode()
        )

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
        if self.standin.tls is not None:
            if not self.is_private:
                data.close()
                return self.say("522 not in the clear")
            data = self.standin.tls.wrap_socket(data, server_side=True)
            if not data.session_reused:
                data.close()
                return self.say("522 session reuse required")
        with data:
            try:
                data.sendall(content if cut is None else content[:cut])
            except OSError:
                cut = 0
        self.passive.close()
        self.passive = None
        return self.say("226 done" if cut is None else "426 broken off")
