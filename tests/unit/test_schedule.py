"""Schedules against hand-written histories."""

import pytest

from whale import schedule
from whale.config import ScheduleConfig
from whale.state import Counters, Phase, PhaseRecord, RunState
from whale.types import Policy


def state(step=0, kinds=(), axis=0):
    history = tuple(
        PhaseRecord(
            phase=Phase(kind=kind, index=i), units=1, values=(0.0,), harness_before="h0", harness_after="h0",
            policy_before=0, policy_after=0, rollouts_before=0, rollouts_after=0, ended="budget",
        )
        for i, kind in enumerate(kinds)
    )  # fmt: skip
    return RunState(policy=Policy("b", 0, "d"), step=step, history=history, counters=Counters(train=axis))


def walk(config):
    """The phases a run goes through when every phase uses its whole limit."""
    phases, current = [], state()
    while (phase := schedule.next_phase(config, current)) is not None:
        phases.append((phase.kind, phase.limit))
        step = current.step + (phase.limit if phase.kind == "weights" else 0)
        current = state(step, [kind for kind, _ in phases])
    return phases


def test_fixed_alternates_and_ends_with_weights():
    config = ScheduleConfig(kind="fixed", total_steps=10, steps=4, rounds=5)
    assert walk(config) == [("weights", 4), ("harness", 5), ("weights", 4), ("harness", 5), ("weights", 2)]


def test_paper_main_setting_of_search_qa():
    # 4 epochs of 74 steps, E = 0.6 epoch = 44 steps, I = 6 = 5 proposal rounds
    phases = walk(ScheduleConfig(kind="fixed", total_steps=296, steps=44, rounds=5))
    assert sum(limit for kind, limit in phases if kind == "weights") == 296
    assert [kind for kind, _ in phases].count("harness") == 6
    assert phases[-1] == ("weights", 296 - 6 * 44)


def test_baselines():
    assert walk(ScheduleConfig(kind="weight_only", total_steps=7)) == [("weights", 7)]
    assert walk(ScheduleConfig(kind="harness_only", total_rounds=9)) == [("harness", 9)]
    assert walk(ScheduleConfig(kind="sequential", total_steps=7, total_rounds=9)) == [("weights", 7), ("harness", 9)]


def test_rollout_limit_ends_the_run():
    config = ScheduleConfig(kind="fixed", total_steps=10, max_rollouts=100)
    assert schedule.next_phase(config, state(2, ["weights"], axis=99)) is not None
    assert schedule.next_phase(config, state(2, ["weights"], axis=100)) is None


WEIGHTS = Phase(kind="weights", index=0, limit=50, minimum=3, patience=3, window=2)
HARNESS = Phase(kind="harness", index=1, limit=15, minimum=5, patience=2)


@pytest.mark.parametrize(
    ("values", "ended"),
    [
        ([0.1, 0.2], None),
        ([0.1, 0.2, 0.3, 0.4, 0.5], None),
        ([0.5, 0.5, 0.1, 0.1], None),  # averages .5 .3 .1: two units since the best
        ([0.5, 0.5, 0.1, 0.1, 0.1], "patience"),  # averages .5 .3 .1 .1: three
        ([0.3, 0.3, 0.3, 0.3, 0.3], "patience"),  # equal is no new best
        ([0.1] * 49 + [0.2] * 1, "budget"),
    ],
)
def test_patience_of_weights(values, ended):
    assert schedule.phase_ended(WEIGHTS, values) == ended


@pytest.mark.parametrize(
    ("values", "ended"),
    [
        ([0.3], None),
        ([0.3, 0.3, 0.3, 0.3], None),  # below the minimum of 5 rounds
        ([0.3, 0.3, 0.3, 0.3, 0.3, 0.3], "patience"),
        ([0.3, 0.3, 0.3, 0.3, 0.4, 0.4], None),
        ([0.3, 0.3, 0.3, 0.3, 0.4, 0.4, 0.4], "patience"),
        ([0.3, 1.0], "solved"),
        ([i / 100 for i in range(16)], "budget"),
    ],
)
def test_patience_of_harness(values, ended):
    assert schedule.phase_ended(HARNESS, values) == ended


def test_steps_are_needed_where_weights_are_trained():
    with pytest.raises(ValueError, match="total_steps"):
        ScheduleConfig(kind="fixed", total_steps=0)
