"""Guards that docs/sources.md is true: its commands and code run, its file is what they write, its tables name every key."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.cli import main
from infra.local.standins.sources import SECRET, SourcesStandIn
from shared.page_ingest.reader import wire
from shared.page_ingest.source.compile import compile_source
from shared.page_ingest.source.model import Refused

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "sources.md").read_text()
EXAMPLES = ROOT / "docs" / "example-sources"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCKS if kind == language]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to work in, from which the examples can be reached by the names that the page uses."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "docs").symlink_to(ROOT / "docs")
    with contextlib.chdir(folder):
        yield folder


def test_every_block_is_tried_here() -> None:
    kinds = [kind for kind, _ in BLOCKS]

    assert sorted(kinds) == ["python", "sh", "sh", "sh", "sh", "sh", "sh", "text", "text", "toml", "transcript"]


def test_the_questions_the_file_and_what_it_means(
    desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (transcript,), (written,), (_, command, checks, *_) = blocks("transcript"), blocks("toml"), blocks("sh")
    asked = re.findall(r"^(.*): ?(.*)$", transcript, re.MULTILINE)
    answers = "".join(f"{answer}\n" for _, answer in asked)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(answers.encode())))

    assert main(shlex.split(command)[1:]) == 0

    said = capsys.readouterr()
    assert said.err == "".join(f"{question}: " for question, _ in asked)
    assert said.out == f"\n{written}\n{blocks('text')[0]}"
    assert (desk / "shop.toml").read_text() == written
    for line in checks.splitlines():
        assert main(shlex.split(line)[1:]) == 0


def test_files_are_tried_estimated_and_get_their_tables(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands that are typed after the file is written, against the stand-in that the page names."""
    (written,), (_, _, _, tries, migrations, _) = blocks("toml"), blocks("sh")
    (desk / "shop.toml").write_text(written)
    secret, *commands = tries.splitlines()
    assert json.loads(shlex.split(secret)[1]) == {"token": SECRET}
    (desk / "secret.json").write_text(json.dumps({"token": SECRET}))
    versions = desk / "infra" / "migrations" / "versions"
    versions.mkdir(parents=True)
    (versions / "0121_before.py").touch()
    with SourcesStandIn() as standin:
        url = standin.start()
        for line in commands:
            assert main(shlex.split(line.replace("$standin", url))[1:]) == 0
        wire._own_pool().clear()
    said = capsys.readouterr().out
    assert said.count("Nothing was written.") == 2
    assert "works: 3 partitions, 300 rows, about" in said
    for line in migrations.splitlines():
        assert main(shlex.split(line)[1:]) == 0
    assert sorted(each.name for each in versions.iterdir()) == [
        "0121_before.py", "0122_source_shop.py", "0123_source_shop_columns.py",
    ]  # fmt: skip
    for each in versions.glob("012[23]*"):
        compile(each.read_text(), each.name, "exec")


def test_the_faults_that_are_shown_are_said() -> None:
    changes = {
        "github.toml": ("hosts =", "hots ="),
        "stripe.toml": ('rows = "/data"', 'rows = "/data"\ngone = "unseen"'),
        "hubspot.toml": ("most = 9_000", "most = 20_000"),
    }
    said = []
    for name, (old, new) in changes.items():
        with pytest.raises(Refused) as refused:
            compile_source(name, (EXAMPLES / name).read_text().replace(old, new).encode())
        said += [str(fault) for fault in refused.value.faults]

    assert said == blocks("text")[1].splitlines()


def test_the_examples_claim_what_the_page_says() -> None:
    told = dict(re.findall(r"^\| `(\w+\.toml)` \|.*\| `([\w ]+)` \|$", PAGE, re.MULTILINE))

    assert told == {each.name: compile_source(each.name, each.read_bytes()).claim for each in EXAMPLES.glob("*.toml")}


def test_the_code_runs(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("python")
    names: dict[str, Any] = {}

    exec(compile(code, "docs/sources.md", "exec", dont_inherit=True), names)

    assert capsys.readouterr().out.startswith("through T sha256:")


SMALLEST = """
source = "shop"
hosts = ["api.example.com"]
auth = { bearer = "token" ZZ1 }
rate = { pace = "5/s" ZZ2 }
errors = [{ status = 404, is = "permanent" ZZ3 }]
ZZ0
[resources.items]
get = "/items"
query = { from = "{from}", to = "{to}", since = "{since}" }
page = { link = "next" ZZ5 }
rows = ""
key = ["/id"]
count = { at = "/n" ZZ6 }
split = { window = "P1D" ZZ7 }
since = { field = "/at" ZZ8 }
gone = { flag = "/gone" ZZ9 }
ZZ4
"""
TABLES = ["file", "auth", "rate", "errors", "resource", "page", "count", "split", "since", "gone"]


@pytest.mark.parametrize("number", range(10), ids=TABLES)
def test_the_tables_name_every_key_and_no_other(number: int) -> None:
    """What the compiler knows is what it offers instead of a key that nobody could have meant."""
    odd = "zzzzzzzzzzzz = 1" if number in {0, 4} else ", zzzzzzzzzzzz = 1"
    with pytest.raises(Refused) as refused:
        compile_source("shop.toml", re.sub(r"ZZ\d", "", SMALLEST.replace(f"ZZ{number}", odd)).encode())
    (message,) = [fault.message for fault in refused.value.faults if "Use one of" in fault.message]
    known = set(message.removeprefix("unknown. Use one of: ").rstrip(".").split(", "))

    section = re.split(r"^###? ", PAGE.split("\n## The file\n")[1], flags=re.MULTILINE)[number]
    named = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)

    assert set(named) == known
    assert len(named) == len(known)
