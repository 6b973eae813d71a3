"""Short pieces of work that together pass every named point; each says which run must end how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tests.support.subject import Subject, subjects

if TYPE_CHECKING:
    from tests.chaos.matrix import Play

Scenario = Callable[["Play"], None]


def plain_steps(play: Play) -> None:
    play.start("succeeded", lanes=2, target=3)
    play.start("succeeded", tenant=1, lanes=1, target=2)
    play.work()


def delays_short_and_long(play: Play) -> None:
    play.start("succeeded", lanes=2, target=3, delays=[5, 1000])
    play.work()


def a_split_and_a_second_phase(play: Play) -> None:
    play.start("succeeded", lanes=2, target=2, splits=["l1"], final=True)
    play.work()


def an_asset_and_its_clean_up_lane(play: Play) -> None:
    play.start("succeeded", lanes=2, target=2, assets=["l0", "l1"])
    play.work()


def a_leaked_asset_for_the_sweep(play: Play) -> None:
    play.start("succeeded", lanes=2, target=1, assets=["l0", "l1"], leaks=True)
    play.work()
    play.sweep()


def a_throttled_upstream_behind_a_gate(play: Play) -> None:
    play.start("succeeded", lanes=3, target=2, gate="upstream", trouble={"l0": "throttled"})
    play.work()
    play.pass_time(5)
    play.work()


def transient_trouble_and_surprises(play: Play) -> None:
    play.start("succeeded", lanes=2, target=2, trouble={"l0": "transient", "l1": "surprise"})
    play.work()
    play.pass_time(20)
    play.work()


def a_cancel(play: Play) -> None:
    run = play.start("canceled", lanes=2, target=3, delays=[500], assets=["l0"])
    play.work()
    play.act("cancel", run)
    play.work()


def a_pause_and_a_resume(play: Play) -> None:
    run = play.start("succeeded", lanes=2, target=3, delays=[30], time_limit_s=3000)
    play.work()
    play.act("pause", run)
    play.pass_time(40)
    play.work()
    play.tick()
    play.act("resume", run)
    play.work()


def a_retry_after_a_cancel(play: Play) -> None:
    run = play.start("succeeded", lanes=2, target=2, delays=[30], assets=["l1"])
    play.work()
    play.act("cancel", run)
    play.work()
    while not play.was_retried(run):
        play.act("retry", run)
        play.work_for_a_minute()


def a_wake_and_a_restart(play: Play) -> None:
    run = play.start("succeeded", lanes=2, target=2, delays=[30])
    play.work()
    play.act("wake", run)
    play.work()
    play.act("restart", run)
    play.work()


def a_deadline(play: Play) -> None:
    play.start("failed", lanes=2, target=2, delays=[600], time_limit_s=60, assets=["l0"])
    play.work()
    play.pass_time(61)
    play.tick()
    play.work()


def a_run_looked_at_every_hour(play: Play) -> None:
    play.start("succeeded", lanes=1, target=2, delays=[3700])
    play.work()


def lost_messages(play: Play) -> None:
    play.start("succeeded", lanes=3, target=2)
    play.purge()
    play.pass_time(190)
    play.tick()
    play.work()


def a_dead_letter(play: Play) -> None:
    play.start("succeeded", lanes=2, target=1)
    play.wear_out_messages()
    play.work()
    play.pass_time(200)
    play.tick()
    play.work()


def a_worker_that_is_lost_with_what_it_took(play: Play) -> None:
    play.start("succeeded", kind="parcel", stages=2)
    play.start("succeeded", tenant=1, kind="parcel")
    play.lose_a_worker()
    play.tick()
    play.pass_time(5)
    play.work()


def work_that_kills_its_process(play: Play) -> None:
    play.start("failed", lanes=2, target=2, killers=["l0"])
    play.work()


SCENARIOS: Mapping[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        plain_steps,
        delays_short_and_long,
        a_split_and_a_second_phase,
        an_asset_and_its_clean_up_lane,
        a_leaked_asset_for_the_sweep,
        a_throttled_upstream_behind_a_gate,
        transient_trouble_and_surprises,
        a_cancel,
        a_pause_and_a_resume,
        a_retry_after_a_cancel,
        a_wake_and_a_restart,
        a_deadline,
        a_run_looked_at_every_hour,
        lost_messages,
        a_dead_letter,
        a_worker_that_is_lost_with_what_it_took,
        work_that_kills_its_process,
    )
}

# In all others nobody dies but by our hand.
BY_ITSELF = work_that_kills_its_process.__name__


def scenarios() -> Mapping[str, Scenario]:
    """The relay's own, and those of every kind of work that brings some."""
    theirs = {
        f"{subject.name}.{name}": play for subject in subjects().values() for name, play in subject.scenarios.items()
    }
    return {**SCENARIOS, **theirs}


def killed_by_us() -> list[str]:
    return [name for name in scenarios() if name != BY_ITSELF]


def subject_of(scenario: str) -> Subject | None:
    return subjects().get(scenario.partition(".")[0])
