"""Figures with their uncertainty: mean@k, pass@k, paired differences, coverage. Pure functions.

The task is the unit of sampling: rollouts of one task are not independent draws of the population the reader
cares about, so every interval is over tasks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from whale.types import Rollout, Score

# Two-sided 95 % quantiles of Student's t for 1..30 degrees of freedom; beyond, an expansion in 1/df is exact to 1e-3.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
        2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045,
        2.042)  # fmt: skip


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval over tasks. mean, low and high are ``None`` when nothing was valid.

    k: rollouts asked per task. tasks: tasks with at least one valid rollout. coverage: valid / attempted rollouts.
    """

    mean: float | None
    low: float | None
    high: float | None
    k: int
    tasks: int
    coverage: float

    def to_json(self) -> dict[str, Any]:
        """Plain dict of the fields."""
        return asdict(self)


def t95(df: int) -> float:
    """Two-sided 95 % quantile of Student's t with ``df`` >= 1 degrees of freedom."""
    if df <= len(_T95):
        return _T95[df - 1]
    return 1.95996 + 2.3723 / df + 2.8225 / df**2


def task_means(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Mean reward of each task over its valid rollouts; tasks without any are left out."""
    rewards: dict[str, list[float]] = {}
    for rollout in rollouts:
        if rollout.reward is not None:
            rewards.setdefault(rollout.task_id, []).append(rollout.reward)
    return {task: sum(values) / len(values) for task, values in rewards.items()}


def interval(values: Sequence[float], lower: float = -math.inf, upper: float = math.inf) -> tuple[float, float, float]:
    """Mean and 95 % t-interval of independent values (at least one), cut to [lower, upper].

    One value, or values all alike, say nothing about spread; the interval then is the Wilson-like bound for
    shares in [0, 1] (3 / n at a side), or unbounded otherwise.
    """
    n = len(values)
    mean = sum(values) / n
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1)) if n > 1 else 0.0
    half = t95(n - 1) * spread / math.sqrt(n) if spread > 0 else (3.0 / n if n > 1 else math.inf)
    return mean, max(lower, mean - half), min(upper, mean + half)


def mean_at_k(rollouts: Sequence[Rollout], k: int) -> Estimate:
    """mean@k: per task the mean reward of its rollouts, then the mean over tasks."""
    means = list(task_means(rollouts).values())
    valid = sum(r.reward is not None for r in rollouts)
    coverage = valid / len(rollouts) if rollouts else 0.0
    if not means:
        return Estimate(None, None, None, k, 0, coverage)
    mean, low, high = interval(means, 0.0, 1.0)
    return Estimate(mean, low, high, k, len(means), coverage)


def by_family(rollouts: Sequence[Rollout], k: int) -> dict[str, Estimate]:
    """mean@k of each family (a test set, a kind of task) in the order of first appearance."""
    families: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        families.setdefault(rollout.family, []).append(rollout)
    return {family: mean_at_k(members, k) for family, members in families.items()}


def mean_of_all(means: Sequence[float | None]) -> float | None:
    """Plain mean, each counting alike; ``None`` if there are none or one of them is unknown."""
    known = [mean for mean in means if mean is not None]
    return sum(known) / len(known) if known and len(known) == len(means) else None


def pass_at_k(rollouts: Sequence[Rollout], threshold: float = 0.5) -> float | None:
    """Share of tasks with at least one rollout whose reward is above ``threshold``."""
    best: dict[str, float] = {}
    for rollout in rollouts:
        if rollout.reward is not None:
            best[rollout.task_id] = max(best.get(rollout.task_id, 0.0), rollout.reward)
    return sum(value > threshold for value in best.values()) / len(best) if best else None


def paired(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float | int | None]:
    """Mean of after - before over the tasks both have, with its 95 % interval. Keys: mean, low, high, tasks."""
    common = [after[task] - before[task] for task in before if task in after]
    if not common:
        return {"mean": None, "low": None, "high": None, "tasks": 0}
    mean, low, high = interval(common, -1.0, 1.0)
    return {"mean": mean, "low": low, "high": high, "tasks": len(common)}


def score(rollouts: Sequence[Rollout], harness: str, policy_version: int) -> Score:
    """Score of a harness from its rollouts: plain mean over valid rollouts, mean turns and tokens, failure reasons."""
    valid = [r for r in rollouts if r.reward is not None]
    reasons: dict[str, int] = {}
    for rollout in rollouts:
        if rollout.reward is None or rollout.reward < 1.0:
            reason = rollout.reason if rollout.outcome == "scored" and rollout.reason else str(rollout.outcome)
            reasons[reason] = reasons.get(reason, 0) + 1
    return Score(
        harness=harness,
        policy_version=policy_version,
        mean=sum(r.reward or 0.0 for r in valid) / len(valid) if valid else None,
        valid=len(valid),
        total=len(rollouts),
        turns=sum(r.turns for r in valid) / len(valid) if valid else 0.0,
        tokens=sum(r.sampled_tokens for r in valid) / len(valid) if valid else 0.0,
        reasons=dict(sorted(reasons.items())),
    )


def moving_averages(values: Sequence[float], window: int) -> list[float]:
    """Mean of the last ``window`` values (or of as many as there are) at each value."""
    return [sum(values[max(0, i - window) : i]) / min(i, window) for i in range(1, len(values) + 1)]
