"""Guards that every test is in one ring, that every kind has tests of its own, and that rings leave out only what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rings import WORDS, belongs_to, company, in_ring, leaves_out, place

TESTS = Path(__file__).parents[1]
FILES = sorted(TESTS.rglob("test_*.py"))
FOR_TESTS_ALONE = {"errand", "parcel"}


@pytest.mark.parametrize("kind", sorted(WORDS))
def test_a_kind_has_tests_of_every_sort(kind: str) -> None:
    folders = {path.parent.name for path in FILES if belongs_to(kind, f"tests/{path.relative_to(TESTS)}::test_x")}

    assert {"unit", "integration", "api"} & folders
    assert len(folders) >= 3 or kind == "folder_sync"


def test_every_kind_with_a_subject_can_be_chosen() -> None:
    named = {path.parent.name for path in TESTS.glob("kinds/*/subject.py")} - FOR_TESTS_ALONE

    assert named <= set(WORDS)


def test_a_test_belongs_to_the_kind_in_its_file_or_in_its_parameters() -> None:
    assert belongs_to("search", "tests/flaws/test_search_flaws.py::test_a")
    assert belongs_to("search", "tests/simulation/test_subjects.py::test_a[search-0]")
    assert not belongs_to("search", "tests/simulation/test_subjects.py::test_a[research-0]")
    assert not belongs_to("job", "tests/integration/test_row_exports.py::test_a")
    assert belongs_to("job", "tests/kinds/job/test_x.py::test_a")


def test_what_shares_a_cloud_shares_a_process() -> None:
    assert company("tests/browser/test_a.py::test_x") == company("tests/browser/test_b.py::test_y")
    assert company("tests/api/test_a.py::test_x") == company("tests/api/test_a.py::test_y")
    assert company("tests/simulation/test_a.py::test_x[0]") != company("tests/simulation/test_a.py::test_x[1]")
    assert place("tests/browser/test_a.py::test_x") < place("tests/unit/test_a.py::test_x")


def test_a_test_is_in_one_of_the_two_rings() -> None:
    for marks in ([], ["full"], ["parametrize", "full"]):
        assert in_ring("test", marks) != in_ring("full", marks)
        assert in_ring("all", marks)


def test_a_module_is_left_out_only_if_no_test_of_it_is_in_the_ring() -> None:
    for path in FILES:
        text = path.read_text()
        assert not (leaves_out("test", text) and leaves_out("full", text)), path
