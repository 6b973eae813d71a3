"""Guards that code for one machine is never deployed as another's: one switch decides both, and what differs is not uploaded."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from infra.sam import architecture
from infra.sam.architecture import Mismatch, check, stamp
from infra.sam.artifact import MARK, machine
from tests.support.template import ROOT, load

# The template as `sam build` writes it.
AS_SAM_WRITES = (
    "import sys; from samcli.yamlhelper import yaml_dump, yaml_parse; print(yaml_dump(yaml_parse(sys.stdin.read())))"
)


@pytest.fixture(scope="module")
def template(sam: Path) -> str:
    source = (ROOT / "template.yaml").read_text()
    command = [str(sam / "python"), "-c", AS_SAM_WRITES]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def built(tmp_path: Path, template: str) -> Path:
    """What `sam build` leaves, with code for x86_64."""
    (tmp_path / "template.yaml").write_text(template)
    for function in ("ApiFunction", "TickFunction"):
        (tmp_path / function).mkdir()
        (tmp_path / function / MARK).write_text("x86_64\n")
    return tmp_path


@pytest.fixture
def samconfig(tmp_path: Path) -> Path:
    (tmp_path / "samconfig.toml").write_text('[default.deploy.parameters]\nparameter_overrides = ["Stage=dev"]\n')
    return tmp_path / "samconfig.toml"


def test_code_for_one_machine_is_not_uploaded_for_functions_of_another(built: Path, samconfig: Path) -> None:
    with pytest.raises(Mismatch, match="built for x86_64, but the built template says Architecture=arm64"):
        check("default", built=built, samconfig=samconfig)


@pytest.mark.full
def test_a_built_template_calls_its_functions_what_the_code_was_built_for(built: Path, samconfig: Path) -> None:
    stamp(built)

    assert load(built / "template.yaml")["Parameters"]["Architecture"]["Default"] == "x86_64"
    assert load(built / "template.yaml")["Parameters"]["Architecture"]["AllowedValues"] == ["x86_64"]
    check("default", built=built, samconfig=samconfig)


@pytest.mark.parametrize("by", ["samconfig", "arguments"])
def test_a_stage_that_wants_another_machine_is_refused(built: Path, samconfig: Path, by: str) -> None:
    stamp(built)
    arguments = ""
    if by == "samconfig":
        samconfig.write_text(samconfig.read_text().replace('"Stage=dev"', '"Stage=dev", "Architecture=arm64"'))
    else:
        arguments = "--parameter-overrides Stage=dev Architecture=arm64"

    with pytest.raises(Mismatch, match="Nothing was uploaded"):
        check("default", arguments, built=built, samconfig=samconfig)


def test_functions_of_different_builds_are_not_mixed(built: Path) -> None:
    (built / "TickFunction" / MARK).write_text("arm64\n")

    with pytest.raises(Mismatch, match="run `make build` again"):
        stamp(built)


def test_make_asks_before_it_uploads() -> None:
    told = subprocess.run(
        ["make", "-n", "deploy", "ARCHITECTURE=x86_64"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    steps = re.findall(r"infra\.sam\.architecture \w+|infra\.sam\.quota|sam build|sam deploy", told.stdout)

    assert steps == [
        "sam build",
        "infra.sam.architecture stamp",
        "infra.sam.architecture check",
        "infra.sam.quota",
        "sam deploy",
    ]


def test_this_machine_is_called_as_lambda_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, told in (("x86_64", "x86_64"), ("aarch64", "arm64"), ("arm64", "arm64"), ("AMD64", "x86_64")):
        monkeypatch.setattr("platform.machine", lambda name=name: name)
        assert machine("here") == told
    assert machine("arm64") == "arm64"
    assert architecture.BUILT == ROOT / ".aws-sam" / "build"
