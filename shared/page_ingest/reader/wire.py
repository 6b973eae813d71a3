"""The wire to a source's hosts: HTTPS to names that the file lists, at addresses of the internet, and nowhere else.

In the local cloud BATON_SOURCES_STANDIN names a server on this machine that plays every host: `https://api.example.com/v1`
is asked as `http://127.0.0.1:PORT/api.example.com/v1`. Only an address of this machine is taken there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from urllib.parse import urlsplit

from shared.kernel.errors import Permanent, StepError, Throttled
from shared.kernel.http import Answer, Http, Pool, is_loopback, new_pool, safe_base_url


class HttpWire:
    """A `Wire`. It is cheap to make: all share the connections of one pool."""

    def __init__(
        self, name: str, hosts: Sequence[str], *, gate: str, time_left_s: Callable[[], float], secrets: Iterable[str] = (),
        standin: str | None = None, pool: Pool | None = None,
    ) -> None:  # fmt: skip
        pool = pool or (_public_pool() if standin is None else _own_pool())
        spelt = tuple(secrets)

        def to(host: str) -> Http:
            base = f"https://{host}" if standin is None else f"{door(standin)}/{host}"
            return Http(base, name=name, gate=gate, time_left_s=time_left_s, secrets=spelt, pool=pool)

        self._hosts = {host: to(host) for host in hosts}
        self._any = next(iter(self._hosts.values()))

    def send(
        self,
        host: str,
        method: str,
        target: str,
        *,
        query: Mapping[str, str],
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> Answer:
        if host not in self._hosts:
            raise Permanent(f"{host} is not one of the hosts of this source: it was not asked.", "foreign_host")
        return self._hosts[host].send(method, target, query=query, body=body, headers=headers)

    def refusal(self, answer: Answer, said: str) -> StepError:
        return self._any.refusal(answer, said)

    def throttled(self, headers: Mapping[str, str], said: str) -> Throttled:
        return self._any.throttled(headers, said)

    def quote(self, text: str, *secrets: str) -> str:
        return self._any.quote(text, *secrets)


def door(standin: str) -> str:
    """The stand-in's address; a ValueError if it is not on this machine."""
    if not is_loopback(urlsplit(standin).hostname or ""):
        raise ValueError("BATON_SOURCES_STANDIN must be on this machine")
    return safe_base_url(standin)


@lru_cache(maxsize=1)
def _public_pool() -> Pool:
    return new_pool(public=True)


@lru_cache(maxsize=1)
def _own_pool() -> Pool:
    return new_pool()
