"""Guards the environment: every limit has bounds, and what is wrong is named by its variable."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from shared.kernel.settings import RETENTION_DAYS, BadSettings, Relay

BOUNDS = {
    "STEP_TIMEOUT_S": (1, 900),
    "LEASE_S": (2, 1000),
    "TICK_BATCH": (1, 5000),
    "TICK_SECONDS": (1, 600),
    "ASSET_GRACE_S": (0, 30 * 86_400),
}


def test_an_empty_environment_gives_the_defaults() -> None:
    assert Relay.from_env({}) == Relay()


def test_an_empty_variable_is_an_unset_one() -> None:
    assert Relay.from_env({"BATON_LEASE_S": "", "BATON_DELAY_QUEUE": ""}) == Relay()


def test_variables_of_others_are_left_alone() -> None:
    assert Relay.from_env({"PATH": "/bin", "BATON_DB_HOST": "x", "LEASE_S": "1"}) == Relay()


@pytest.mark.parametrize("name", BOUNDS)
def test_a_value_within_its_bounds_is_taken(name: str) -> None:
    least, most = BOUNDS[name]
    lease = {"BATON_LEASE_S": "1000"} if name == "STEP_TIMEOUT_S" else {"BATON_STEP_TIMEOUT_S": "1"}
    for value in (least, most):
        relay = Relay.from_env({**lease, f"BATON_{name}": str(value)})

        assert getattr(relay, name.lower()) == value


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("value", ["below", "above", " ", "many", "1.5", "1e3", "\x00"])
def test_a_value_out_of_bounds_or_no_number_is_named_by_its_variable(name: str, value: str) -> None:
    least, most = BOUNDS[name]
    given = {"below": str(least - 1), "above": str(most + 1)}.get(value, value)

    with pytest.raises(BadSettings, match=f"BATON_{name}"):
        Relay.from_env({f"BATON_{name}": given})


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(BadSettings) as caught:
        Relay.from_env({"BATON_LEASE_S": "x", "BATON_TICK_BATCH": "0"})

    assert "BATON_LEASE_S" in str(caught.value)
    assert "BATON_TICK_BATCH" in str(caught.value)


@pytest.mark.parametrize("lease", [59, 60])
def test_a_lease_that_does_not_outlive_the_function_is_refused(lease: int) -> None:
    with pytest.raises(BadSettings, match=f"lease_s \\({lease}\\) must be longer than step_timeout_s \\(60\\)"):
        Relay.from_env({"BATON_LEASE_S": str(lease)})


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        Relay().lease_s = 5


def test_a_kind_has_a_fifo_queue_of_its_own() -> None:
    assert Relay().queue_of("page_ingest") == "baton-page-ingest.fifo"
    assert Relay.from_env({"BATON_FIFO_QUEUE": "dev-{kind}.fifo"}).queue_of("searches") == "dev-searches.fifo"


def test_what_is_pruned_is_kept_for_a_fortnight_at_least() -> None:
    answered = RETENTION_DAYS["answered"]

    assert set(RETENTION_DAYS) == {"step", "pulse", "repair", "signal", "hearing", "answered", "pace_decision", "run"}
    assert min(days for table, days in RETENTION_DAYS.items() if table != "answered") >= 14
    assert answered >= 2, "whoever repeats a request within a day finds its answer, whenever the sweep comes"
