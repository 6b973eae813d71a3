"""The Chromium that browser tests and pictures use: the one that is named, the system's, Playwright's; else one is installed.

`python -m tests.browser.chromium` finds or installs one and says which.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

NAMED_BY = "CHROMIUM_PATH"
NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "microsoft-edge",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
NONE_TO_BE_HAD = (
    "No Chromium, so nothing is tested in a browser. Install one (Debian: `apt-get install chromium`), or name one in "
    f"{NAMED_BY}; `python -m tests.browser.chromium` tries again to install one."
)
# Quiet, and with nothing of its own on the network: what a test sees is what the console asked for.
ARGUMENTS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class NoChromium(Exception):
    """There is none, and none can be had; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What is asked of the machine. `runs`: whether a command came to a good end; `downloaded`: Playwright's own."""

    environment: Mapping[str, str]
    which: Callable[[str], str | None]
    downloaded: Callable[[], str | None]
    runs: Callable[[Sequence[str]], bool]
    is_root: bool


def find(machine: Machine) -> str | None:
    """The program, if there is one. One that is named and not there is a mistake, not a reason to take another."""
    if named := machine.environment.get(NAMED_BY):
        if (path := machine.which(named)) is None:
            raise NoChromium(f"{NAMED_BY} is {named}, and no program is there: name another, or unset it.")
        return path
    return next((path for name in NAMES if (path := machine.which(name))), None) or machine.downloaded()


def find_or_install(machine: Machine, say: Callable[[str], None]) -> str:
    if (path := find(machine)) is not None:
        return path
    if machine.is_root and machine.which("apt-get"):
        say("Installing Chromium for the browser tests: Debian's package, about 100 MB.")
        install = ["apt-get", "install", "--yes", "--no-install-recommends", "chromium", "fonts-liberation"]
        if machine.runs(["apt-get", "update"]) and machine.runs(install) and (path := find(machine)):
            return path
    say("Installing Chromium for the browser tests: Playwright's download, about 180 MB.")
    if machine.runs([sys.executable, "-m", "playwright", "install", "chromium"]) and (path := find(machine)):
        return path
    raise NoChromium(NONE_TO_BE_HAD)


def this_machine() -> Machine:
    return Machine(os.environ, shutil.which, _downloaded, _runs, os.geteuid() == 0)


@contextmanager
def browser(path: str) -> Iterator[Browser]:
    """Headless, with a profile of its own that is gone at the end. As root Chromium has no sandbox to offer."""
    with sync_playwright() as playwright:
        arguments = [*ARGUMENTS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        chromium = playwright.chromium.launch(executable_path=path, headless=True, args=arguments)
        try:
            yield chromium
        finally:
            chromium.close()


def _downloaded() -> str | None:
    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


def _runs(command: Sequence[str]) -> bool:
    """Quietly; if it fails, with the line that says why."""
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    told = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
    if told.returncode != 0:
        lines = [line.strip() for line in f"{told.stdout}\n{told.stderr}".splitlines() if line.strip()]
        why = next((line for line in lines if "error" in line.lower() or line.startswith("E:")), "".join(lines[-1:]))
        print(f"  that failed: {why[:200]}", flush=True)
    return told.returncode == 0


def main() -> int:
    try:
        print(find_or_install(this_machine(), lambda line: print(line, flush=True)))
    except NoChromium as none:
        print(none)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
