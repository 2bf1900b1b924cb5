"""Looks at held-out tasks, at fixed points of the rollout axis. Only the report reads their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

from whale import stats
from whale.rollout import Attempt
from whale.run import Run
from whale.seeds import derive
from whale.state import Look, RunState
from whale.types import Candidate, Rollout, Split, Task

T = TypeVar("T")


def look_if_due(run: Run, state: RunState) -> RunState:
    """Evaluate on the test split if a multiple of ``eval.every_rollouts`` has been passed since the last look."""
    every = run.config.eval.every_rollouts
    if not every or not state.looks:
        return state
    last = max(look.rollouts for look in state.looks)
    return look(run, state, "between") if state.counters.axis // every > last // every else state


def look(run: Run, state: RunState, when: Literal["start", "between", "end"]) -> RunState:
    """Evaluate the current policy under the current harness on the test split (and ``unseen`` at start and end)."""
    config = run.config.eval
    splits: list[tuple[Split, int]] = [("test", config.between_k or config.k if when == "between" else config.k)]
    if when != "between" and config.unseen and run.tasks.get("unseen"):
        splits.append(("unseen", config.k))
    for split, k in splits:
        state = _look_at(run, state, split, k, when)
    return state


def eval_tasks(run: Run, split: Split, limit: int | None = None) -> list[Task]:
    """The tasks of a split that are evaluated: the first ``limit`` (default: ``eval.tasks``; 0: all), the same ones at
    every look."""
    limit = run.config.eval.tasks if limit is None else limit
    return run.tasks[split][: limit or None]


def evaluate(
    run: Run, harness: Candidate, split: Split, k: int, name: str, limit: int | None = None
) -> tuple[list[str], list[Rollout]]:
    """k rollouts of every task of a split (of the first ``limit``, see ``eval_tasks``), in blocks. Seeds depend on task
    and sample only: looks are paired."""
    keys: list[str] = []
    rollouts: list[Rollout] = []
    for number, tasks in enumerate(blocks(eval_tasks(run, split, limit), run.config.eval.block_tasks)):
        attempts = [
            Attempt(harness, t, s, derive(run.config.seed, "eval", split, t.id, s)) for t in tasks for s in range(k)
        ]
        key, done = run.block(f"{name}-{number:02d}", "eval", attempts)
        keys.append(key)
        rollouts += done
    return keys, rollouts


def blocks(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Consecutive pieces of at most ``size`` items."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def _look_at(run: Run, state: RunState, split: Split, k: int, when: Literal["start", "between", "end"]) -> RunState:
    harness = run.archive.get(state.harness)
    keys, rollouts = evaluate(run, harness, split, k, f"e-{split}-p{state.policy.version:05d}-{harness.id}")
    estimate = stats.mean_at_k(rollouts, k)
    fresh = all(other.blocks != tuple(keys) for other in state.looks)
    counters = state.counters.model_copy(update={
        "eval": state.counters.eval + (len(rollouts) if fresh else 0),
        "sampled_tokens": state.counters.sampled_tokens + (sum(r.sampled_tokens for r in rollouts) if fresh else 0),
    })  # fmt: skip
    seen = Look(
        split=split, rollouts=state.counters.axis, blocks=tuple(keys), policy_version=state.policy.version,
        harness=state.harness, estimate=estimate.to_json(), when=when,
    )  # fmt: skip
    state = state.but(looks=(*state.looks, seen), counters=counters)
    run.log(
        state,
        kind="look",
        split=split,
        when=when,
        harness=state.harness,
        policy=state.policy.version,
        **estimate.to_json(),
    )
    run.progress.look(seen)
    return state
