"""The command `baton`. What only speaks to the API does not wait for the libraries of the local cloud."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    words = (
        given[2:] if given[:1] == ["--home"] else given[1:] if given[:1] and given[0].startswith("--home=") else given
    )
    if words[:1] == ["worker"] and words[1:2] != [
        "list"
    ]:  # a machine that only works needs neither client nor local cloud
        from infra.worker import main as worker  # noqa: PLC0415

        return worker(words[1:])
    from infra.client import cli as client  # noqa: PLC0415 - as above

    if words[:2] == ["worker", "list"]:
        return client.main([*given[: len(given) - len(words)], "workers", *words[2:]])
    if words and words[0] in client.words():
        return client.main(given)
    from infra.local.cli import main as local  # noqa: PLC0415 - as above

    return local(given)


if __name__ == "__main__":
    sys.exit(main())
