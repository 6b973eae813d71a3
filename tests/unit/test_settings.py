"""Guards the environment: every limit has bounds, and what is wrong is named by its variable."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from functions.catalogue import all_settings
from shared.kernel.settings import RETENTION_DAYS, BadSettings, Relay, check_settings
from shared.query_run.model import PollConfig
from shared.row_job.model import RowSettings

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
    with pytest.raises(
        BadSettings, match=f"BATON_LEASE_S \\({lease}\\) must be longer than BATON_STEP_TIMEOUT_S \\(60\\)"
    ):
        Relay.from_env({"BATON_LEASE_S": str(lease)})


def test_what_is_listed_holds_unless_a_variable_says_otherwise() -> None:
    env = {"BATON_SETTINGS": "BATON_ROWS_SLOTS=8,BATON_ROWS_SAFETY_FACTOR=0.5,\n BATON_QUERY_FAST_PATH=true"}

    assert RowSettings.from_env(env, "BATON_ROWS_") == RowSettings(slots=8, safety_factor=0.5)
    assert RowSettings.from_env({**env, "BATON_ROWS_SLOTS": "9"}, "BATON_ROWS_").slots == 9
    assert PollConfig.from_env(env, "BATON_QUERY_").fast_path
    check_settings(env, all_settings())


def test_what_the_template_sets_is_not_taken_from_the_list() -> None:
    assert Relay.from_env({"BATON_SETTINGS": "BATON_LEASE_S=900"}) == Relay()


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ("BATON_ROWS_SLOT=8", "unknown setting BATON_ROWS_SLOT (did you mean BATON_ROWS_SLOTS?)"),
        ("ROWS_SLOTS=8", "unknown setting ROWS_SLOTS (did you mean BATON_ROWS_SLOTS?)"),
        ("X=8", "unknown setting X (see docs/settings.md)"),
        ("BATON_LEASE_S=900", "BATON_LEASE_S can't be set there, a parameter of the template sets it"),
        ("BATON_ROWS_SLOTS", "BATON_ROWS_SLOTS has no value; write NAME=value"),
        ("BATON_ROWS_SLOTS=1,BATON_ROWS_SLOTS=2", "a name is there twice: BATON_ROWS_SLOTS, BATON_ROWS_SLOTS"),
        ("BATON_ROWS_SLOTS=65", "BATON_ROWS_SLOTS=65: must be a whole number, 1 to 64"),
        ("BATON_ROWS_MAX_ATTEMPTS_NOT_FOUND=x", "BATON_ROWS_MAX_ATTEMPTS_NOT_FOUND=x: must be a whole number, 1 to 50"),
        ("BATON_ROWS_SAFETY_FACTOR=nan", "BATON_ROWS_SAFETY_FACTOR=nan: must be above 0 to 1"),
        ("BATON_QUERY_FAST_PATH=perhaps", "BATON_QUERY_FAST_PATH=perhaps: must be true or false"),
        ("BATON_DB_POOL=many", "BATON_DB_POOL=many: must be one or none"),
        ("BATON_ROWS_CLAIM_MIN=600", "BATON_ROWS_CLAIM_MIN (600) is above BATON_ROWS_CLAIM_MAX (500)"),
        (
            "BATON_QUERY_INITIAL_DELAY_MS=60000",
            "BATON_QUERY_INITIAL_DELAY_MS (60000) is above BATON_QUERY_MAX_DELAY_MS (30000)",
        ),
    ],
)
def test_a_list_that_makes_no_sense_is_refused_by_name_value_and_range(listed: str, said: str) -> None:
    with pytest.raises(BadSettings) as caught:
        check_settings({"BATON_SETTINGS": listed}, all_settings())

    assert said in str(caught.value)


def test_every_number_that_an_operator_may_set_has_two_bounds() -> None:
    for prefix, group in all_settings():
        for name in group.operators():
            assert group.allowed(name), prefix + name  # it knows no number without bounds


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
