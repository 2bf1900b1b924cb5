"""Seeing a weight phase collapse, and where to go back to: pure functions of its training rewards."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from whale.stats import moving_averages


def collapsed(values: Sequence[float], drop: float, window: int) -> bool:
    """Whether the average over the last ``window`` steps is more than ``drop`` below the best such average before.

    values: training reward of each step of the phase. drop: 0 switches it off.
    """
    full = moving_averages(values, window)[window - 1 :]
    return bool(drop) and len(full) > 1 and full[-1] < max(full) - drop


def best_version(values: Sequence[float], versions: Sequence[int], window: int, saved: Collection[int]) -> int | None:
    """The policy version in ``saved`` at whose first step the average was highest (the later one of equals).

    versions: the policy that each value was sampled from. ``None`` if no saved version has a value.
    """
    first = {version: step for step, version in reversed(list(enumerate(versions)))}
    means = moving_averages(values, window)
    known = [version for version in first if version in saved]
    return max(known, key=lambda version: (means[first[version]], version), default=None)
