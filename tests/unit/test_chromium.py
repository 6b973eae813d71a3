"""Which Chromium is taken, and what is tried when there is none: with a machine made of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tests.browser.chromium import NAMED_BY, Machine, NoChromium, find, find_or_install


class Box:
    """A machine with these programs. A command in `gives` comes to a good end and leaves that program behind."""

    def __init__(
        self,
        *programs: str,
        downloaded: str | None = None,
        gives: Mapping[str, str] | None = None,
        is_root: bool = False,
        named: str = "",
    ) -> None:
        self.programs = {*programs}
        self.downloaded = downloaded
        self.gives = gives or {}
        self.ran: list[str] = []
        self.said: list[str] = []
        self.machine = Machine({NAMED_BY: named}, self.which, lambda: self.downloaded, self.runs, is_root)

    def which(self, name: str) -> str | None:
        found = (each for each in sorted(self.programs) if name in (each, each.rpartition("/")[2]))
        return next(found, None)

    def runs(self, command: Sequence[str]) -> bool:
        self.ran.append(" ".join(word for word in command if not word.startswith(("-", "/")))[:40])
        for beginning, program in self.gives.items():
            if self.ran[-1].startswith(beginning):
                if beginning.startswith("playwright"):
                    self.downloaded = program
                else:
                    self.programs.add(program)
                return True
        return False

    def installed(self) -> str:
        return find_or_install(self.machine, self.said.append)


def test_the_one_that_is_named_comes_first() -> None:
    box = Box("/usr/bin/chromium", "/opt/mine", downloaded="/cache/chrome", named="/opt/mine")

    assert find(box.machine) == "/opt/mine"


def test_one_that_is_named_and_not_there_is_a_mistake() -> None:
    box = Box("/usr/bin/chromium", is_root=True, named="/opt/mine")

    with pytest.raises(NoChromium, match=r"CHROMIUM_PATH is /opt/mine, .* unset it"):
        box.installed()
    assert box.ran == []


def test_the_system_s_comes_before_playwright_s() -> None:
    assert find(Box("/usr/bin/google-chrome", downloaded="/cache/chrome").machine) == "/usr/bin/google-chrome"
    assert find(Box("/bin/google-chrome", "/bin/chromium").machine) == "/bin/chromium"
    assert find(Box(downloaded="/cache/chrome").machine) == "/cache/chrome"
    assert find(Box().machine) is None


def test_nothing_is_installed_where_there_is_one() -> None:
    box = Box("/usr/bin/chromium", "/usr/bin/apt-get", is_root=True)

    assert box.installed() == "/usr/bin/chromium"
    assert box.ran == box.said == []


DEBIAN = {"apt-get update": "", "apt-get install": "/usr/bin/chromium"}
DOWNLOAD = {"playwright install": "/cache/chrome"}


def test_root_on_debian_installs_the_package() -> None:
    box = Box("/usr/bin/apt-get", gives=DEBIAN, is_root=True)

    assert box.installed() == "/usr/bin/chromium"
    assert [line.partition(":")[2].partition(",")[0] for line in box.said] == [" Debian's package"]


@pytest.mark.parametrize(
    "box",
    [
        Box("/usr/bin/apt-get", gives=DEBIAN | DOWNLOAD),
        Box(gives=DEBIAN | DOWNLOAD, is_root=True),
        Box("/usr/bin/apt-get", gives=DOWNLOAD, is_root=True),
    ],
    ids=["not root", "not Debian", "no package"],
)
def test_everybody_else_downloads_playwright_s(box: Box) -> None:
    assert box.installed() == "/cache/chrome"


def test_with_none_to_be_had_it_is_said_what_to_do() -> None:
    box = Box("/usr/bin/apt-get", is_root=True)

    with pytest.raises(NoChromium, match=r"apt-get install chromium.*CHROMIUM_PATH"):
        box.installed()
    assert box.ran == ["apt-get update", "playwright install chromium"]
