"""Guards that the mutants do not rot: each still fits the code and says which proof must notice it."""

from __future__ import annotations

import subprocess

import pytest

from tests.mutants.run import KINDS, ROOT, Mutant, mutants


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
