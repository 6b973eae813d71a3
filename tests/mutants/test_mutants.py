"""Guards that the mutants do not rot: each still fits the code and names a proof that exists."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.mutants.data import ROOT, BadMutant, Mutant, apply, from_patch, load, places
from tests.mutants.run import KINDS, choose, killer, mutated, ours, part, proofs


def test_every_mutant_finds_its_text_once_in_the_code() -> None:
    assert [problem for mutant in choose([]) if (problem := _problem(mutant))] == []


def _problem(mutant: Mutant) -> str:
    try:
        apply(mutant, ROOT)
    except BadMutant as error:
        return str(error)
    return ""


def test_every_mutant_names_its_broken_rule_once_in_plain_words() -> None:
    names = Counter(mutant.name for mutant in choose([]))

    assert [name for name, count in names.items() if count > 1] == []
    assert [name for name in names if not re.fullmatch(r"[a-z]+(-[a-z0-9]+){1,11}", name) or len(name) > 64] == []
    assert [name for name in names if re.search(r"-\d[a-z]\b", name)] == [], "codes of a list that readers don't have"
    assert [mutant.name for mutant in choose([]) if not mutant.because.endswith(".")] == []


def test_no_mutant_is_there_twice() -> None:
    changes = Counter(mutant.changes for mutant in choose([]))

    assert [mutant.name for mutant in choose([]) if changes[mutant.changes] > 1] == []


def test_every_mutant_names_a_proof_that_exists() -> None:
    assert [f"{m.name}: {missing}" for m in choose([]) if (missing := _missing(m))] == []


def _missing(mutant: Mutant) -> str:
    kind, *arguments = killer(mutant) or [""]
    if kind not in KINDS:
        return f"noticed_by starts with one of {', '.join(KINDS)}"
    if odd := [
        word for word in arguments if kind == "tests" and not word.startswith("tests/") and "-k" not in arguments
    ]:
        return f"not a test: {odd[0]}"
    for path, _, name in (word.partition("::") for word in arguments if word.startswith("tests/")):
        test = name.partition("[")[0].rpartition("::")[2]
        if test and f"def {test}(" not in _text(path):
            return f"{path} has no {test}"
    return ""


@cache
def _text(path: str) -> str:
    return (ROOT / path).read_text()


def test_mutants_are_chosen_by_name_by_module_and_by_the_file_they_break() -> None:
    one = ours()["kernel/decide"][0]

    assert choose([one.name]) == [one]
    assert choose(["kernel/decide", one.name]) == ours()["kernel/decide"]
    assert one in choose(["shared/kernel/decide.py"])
    with pytest.raises(BadMutant, match="'nonsense'"):
        choose(["nonsense"])


def test_parts_are_all_of_them_and_each_is_in_one() -> None:
    every = choose([])

    parts = [part(every, f"{n}/3") for n in (1, 2, 3)]

    assert sorted(m.name for each in parts for m in each) == sorted(m.name for m in every)
    for wrong in ("0/3", "4/3", "half", "1/0"):
        with pytest.raises(BadMutant):
            part(every, wrong)


def test_a_stranger_comes_as_toml_or_as_a_patch_and_makes_the_same_change(tmp_path: Path) -> None:
    toml, patch = _strangers(tmp_path)

    (by_text,), (by_patch,) = choose([str(toml)]), choose([str(patch)])

    assert apply(by_text, ROOT) == apply(by_patch, ROOT)
    assert places(by_text, ROOT) == places(by_patch, ROOT)
    assert (by_patch.name, by_patch.noticed_by) == ("stranger", "")


def test_a_stranger_is_shown_to_the_tests_that_know_what_it_breaks(tmp_path: Path) -> None:
    """Nobody said anything about it: by the mutants beside it, and by what its lines name."""
    for stranger in map(str, _strangers(tmp_path)):
        first, tests = next(iter(proofs(choose([stranger])[0])))

        assert first == "tests nearby"
        assert "tests/integration/test_edges.py" in tests


def _strangers(tmp_path: Path) -> tuple[Path, Path]:
    """The same wrong change in both forms. The patch's number is off, as of somebody who wrote it a week ago."""
    file, line = "shared/kernel/store.py", "self._line.ahead(sql.ADD_EDGE, params)"
    lines = (ROOT / file).read_text().splitlines()
    at = next(n for n, each in enumerate(lines) if line in each)
    toml, patch = tmp_path / "strangers.toml", tmp_path / "stranger.patch"
    toml.write_text(f"[[mutant]]\nname = 'x'\nfile = '{file}'\nold = '{line}'\nnew = 'pass'\n")
    changed = [f" {lines[at - 1]}", f"-{lines[at]}", f"+{lines[at].replace(line, 'pass')}", f" {lines[at + 1]}"]
    patch.write_text(f"--- a/{file}\n+++ b/{file}\n@@ -{at + 7},3 +{at + 7},3 @@\n" + "\n".join(changed) + "\n")
    return toml, patch


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[[mutant]]\nname = 'x'\nfile = 'README.md'\nold = 'no such text'\nnew = ''", "0 times"),
        ("[[mutant]]\nname = 'x'\nfile = 'README.md'\nold = 'the'\nnew = ''", "times"),
        ("[[mutant]]\nname = 'x'\nfile = 'nowhere.py'\nold = 'a'\nnew = 'b'", "nowhere.py"),
        (
            "[[mutant]]\nname = 'x'\nfile = 'README.md'\nold = '# Baton\\n'\nnew = '# Baton\\n'".replace("\\n", ""),
            "same",
        ),
        ("[[mutant]]\nname = 'x'\nold = 'a'\nnew = 'b'", "'file' is missing"),
        ("[[mutant]]\nname = 'x'\nwhy = 'y'\nfile = 'a'\nold = 'a'\nnew = 'b'", "unknown why"),
        ("[mutant]\nname = 'x'", r"\[\[mutant\]\]"),
        ("name = ", "stranger.toml"),
    ],
)
def test_a_mutant_that_does_not_fit_says_which_and_why(text: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "stranger.toml").write_text(text)

    with pytest.raises(BadMutant, match=complaint):
        apply(load(tmp_path / "stranger.toml")[0], ROOT)


def test_a_patch_that_does_not_fit_says_so(tmp_path: Path) -> None:
    patch = tmp_path / "stranger.patch"
    patch.write_text("--- a/README.md\n+++ b/README.md\n@@ -1,1 +1,1 @@\n-no such line\n+another\n")

    with pytest.raises(BadMutant, match=r"stranger\.patch: .*README"):
        from_patch(patch, ROOT)


def test_a_copy_is_as_it_was_once_a_mutant_was_judged(tmp_path: Path) -> None:
    mutant = ours()["kernel/decide"][0]
    file = tmp_path / "shared/kernel/decide.py"
    file.parent.mkdir(parents=True)
    file.write_bytes((ROOT / "shared/kernel/decide.py").read_bytes())

    with mutated(mutant, tmp_path):
        assert mutant.changes[0].new in file.read_text()

    assert file.read_text() == (ROOT / "shared/kernel/decide.py").read_text()
    assert file.stat().st_mtime == (ROOT / "shared/kernel/decide.py").stat().st_mtime, "or its bytecode would be stale"
