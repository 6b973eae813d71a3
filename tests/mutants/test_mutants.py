"""Guards that the mutants do not rot: each still fits the code and says which proof must notice it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.mutants.run import KINDS, ROOT, Mutant, mutants, proofs


@pytest.mark.parametrize("mutant", mutants([]), ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_code_and_names_its_proof(mutant: Mutant) -> None:
    fits = subprocess.run(
        ["git", "apply", "--check", str(mutant.path)], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert fits.returncode == 0, fits.stderr
    assert mutant.killer, "a patch that stays here names its proof: the runner need not look for it"
    assert mutant.killer[0] in KINDS
    for path, _, name in (word.partition("::") for word in mutant.killer[1:] if word.startswith("tests/")):
        test = name.partition("[")[0].rpartition("::")[2]
        assert f"def {test}" in (ROOT / path).read_text() if test else (ROOT / path).exists(), f"{path} has no {name}"


def test_a_stranger_is_shown_to_the_tests_that_know_what_it_breaks(tmp_path: Path) -> None:
    """A patch that nobody said anything about: by the mutants beside it, and by what its lines name."""
    file = "shared/kernel/store.py"
    lines = (ROOT / file).read_text().splitlines()
    at = next(n for n, line in enumerate(lines, 1) if "self._line.ahead(sql.ADD_EDGE, params)" in line)
    patch = tmp_path / "a-stranger.patch"
    patch.write_text(
        f"Nobody knows.\n\n--- a/{file}\n+++ b/{file}\n@@ -{at},1 +{at},1 @@\n-{lines[at - 1]}\n+        pass\n"
    )
    stranger = Mutant(patch)

    first, tests = next(iter(proofs(stranger)))

    assert stranger.places == [(file, at)]
    assert first == "tests nearby"
    assert "tests/integration/test_edges.py" in tests
