"""Guards that a deployment can set what the documents and the code name, and that docs/settings.md is the code's own list."""

from __future__ import annotations

import re

from functions.catalogue import all_settings
from infra.sam import settings
from infra.sam.artifact import ROOT
from tests.support.template import functions, load
from tests.support.variables import read_variables

SETTABLE = {prefix + name.upper() for prefix, group in all_settings() for name in group.operators()}
SET_BY_THE_TEMPLATE = {
    variable
    for function in functions(load(ROOT / "template.yaml")).values()
    for variable in function["Environment"]["Variables"]
}
# Each for a reason of its own: nothing that a deployment would set.
OTHERS = {
    "BATON_TOKEN", "BATON_URL", "BATON_HOME",  # of the command line and of workers that ask the API
    "BATON_JOB_ID", "BATON_ATTEMPT_NO",  # what a command is told
    "BATON_API_URL", "BATON_OWNER_URL", "BATON_PEOPLE_URL", "BATON_WORKER_URL",  # what `baton env` prints
    "BATON_QUEUE",  # of workers without AWS
    "BATON_LOGIN_PASSWORD_URL",  # of a local cloud: made of its address
    "BATON_SOURCES", "BATON_SQS_ENDPOINT",  # for tests, and for trying
}  # fmt: skip


def test_the_page_is_what_the_code_says() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == settings.page(), (
        "python -m infra.sam.settings --page > docs/settings.md"
    )


def test_everything_that_the_documents_name_can_be_set() -> None:
    known = SETTABLE | SET_BY_THE_TEMPLATE | OTHERS
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    for document in documents:
        for name in re.findall(r"\bBATON_[A-Z0-9_]+", document.read_text()):
            prefix = name.endswith("_") and any(each.startswith(name) for each in SETTABLE)
            assert prefix or name in known, f"{document.name} names {name}, which a deployment can't set"


def test_everything_that_the_code_reads_can_be_set() -> None:
    read = {name for name in read_variables() if name.startswith("BATON_")}

    assert len(read) > 80
    assert read - SETTABLE - SET_BY_THE_TEMPLATE - OTHERS == set()


def test_nothing_is_set_in_two_places() -> None:
    assert not SETTABLE & SET_BY_THE_TEMPLATE, "the template's own variable would win over the list"
