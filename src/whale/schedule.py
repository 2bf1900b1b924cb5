"""When to train weights, when to search harnesses, when to stop: pure functions of the history (paper, section on
schedules). A schedule proposes the next phase; ``phase_ended`` says whether the current one is over."""

from __future__ import annotations

from collections.abc import Sequence

from whale.config import ScheduleConfig
from whale.state import Phase, RunState
from whale.stats import moving_averages


def next_phase(config: ScheduleConfig, state: RunState) -> Phase | None:
    """The phase that follows the finished ones, or ``None`` when the run is over.

    The last phase of an alternating run is a weight phase; a harness phase is only started if weight budget remains.
    """
    if out_of_budget(config, state):
        return None
    index = len(state.history)
    left = config.total_steps - state.step if config.total_steps else None
    last = state.history[-1].phase.kind if state.history else None
    weights_next = last != "weights"
    if config.kind == "weight_only":
        return _weights(config, index, left) if index == 0 else None
    if config.kind == "harness_only":
        return Phase(kind="harness", index=index, limit=config.total_rounds) if index == 0 else None
    if config.kind == "sequential":
        if index == 0:
            return _weights(config, index, left)
        return Phase(kind="harness", index=index, limit=config.total_rounds) if index == 1 else None
    if left is not None and left <= 0:
        return None
    return _weights(config, index, left) if weights_next else _harness(config, index)


def phase_ended(phase: Phase, values: Sequence[float]) -> str | None:
    """Why the phase is over after units with these values, or ``None``.

    values: for weights one training reward per step; for harness the best search score so far, starting with the
    incoming harness's own (so a round adds one value and ``len(values) - 1`` rounds are done).
    """
    units = len(values) if phase.kind == "weights" else len(values) - 1
    if phase.limit and units >= phase.limit:
        return "budget"
    if phase.kind == "harness" and values and values[-1] >= 1.0:
        return "solved"
    if phase.patience and units >= phase.minimum and units_without_best(phase, values) >= phase.patience:
        return "patience"
    return None


def units_without_best(phase: Phase, values: Sequence[float]) -> int:
    """Units since the sliding average (weights) or the best score (harness) last made a new best."""
    window = phase.window if phase.kind == "weights" else 1
    if len(values) < window:
        return 0
    averages = moving_averages(values, window)[window - 1 :]
    best = max(averages)
    return len(averages) - 1 - averages.index(best)


def out_of_budget(config: ScheduleConfig, state: RunState) -> bool:
    """True once training and search have used ``max_rollouts``."""
    return bool(config.max_rollouts) and state.counters.axis >= config.max_rollouts


def _weights(config: ScheduleConfig, index: int, left: int | None) -> Phase:
    if config.kind == "patience":
        return Phase(kind="weights", index=index, limit=left or 0, minimum=config.min_steps,
                     patience=config.patience_steps, window=config.window_steps)  # fmt: skip
    if config.kind == "fixed":
        return Phase(kind="weights", index=index, limit=min(config.steps, left) if left is not None else config.steps)
    return Phase(kind="weights", index=index, limit=left or 0)


def _harness(config: ScheduleConfig, index: int) -> Phase:
    if config.kind == "patience":
        return Phase(kind="harness", index=index, limit=config.max_rounds, minimum=config.min_rounds,
                     patience=config.patience_rounds)  # fmt: skip
    return Phase(kind="harness", index=index, limit=config.rounds)
