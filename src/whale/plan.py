"""What a recipe will spend, before anything is spent. Pure arithmetic on the configuration."""

from __future__ import annotations

from typing import Any

from whale.config import RunConfig

_ROW_BYTES = 4_000
"""Rough size of a recorded rollout on disk."""


def plan(config: RunConfig, parameters: int | None = None, flops: float | None = None) -> dict[str, Any]:
    """Rollouts, tokens, disk and time a run may use at most, when nothing stops early.

    parameters: of the base policy; flops: multiply-adds times two per second that this machine reaches. Without
    both, disk leaves checkpoints out and time is ``None``. Every figure is an upper bound except ``seconds``,
    which assumes that replies use half their token limit.
    """
    steps, phases, rounds = _phases(config)
    train = steps * config.weights.tasks_per_step * config.weights.samples
    search = (phases + rounds * config.search.candidates) * config.search.tasks * config.search.samples
    if config.schedule.max_rollouts:
        # A unit that has begun is finished, so the limit can be passed by one step or one round.
        slack = max(config.weights.tasks_per_step * config.weights.samples,
                    config.search.candidates * config.search.tasks * config.search.samples)  # fmt: skip
        limit = config.schedule.max_rollouts + slack
        train, search = min(train, limit) if steps else 0, min(search, limit)
    looks = 2 + ((train + search) // config.eval.every_rollouts if config.eval.every_rollouts else 0)
    between = (looks - 2) * (config.eval.between_k or config.eval.k)
    evaluation = config.eval.tasks * (2 * config.eval.k + between) if config.eval.tasks else None
    rollouts = train + search + (evaluation or 0)
    tokens = rollouts * min(config.limits.assistant_tokens, config.limits.turns * config.limits.call_tokens)
    return {
        "rollouts": {"train": train, "search": search, "eval": evaluation, "axis": train + search},
        "weight_steps": steps,
        "harness_phases": phases,
        "proposal_rounds": rounds,
        "looks": looks,
        "sampled_tokens": tokens,
        "disk_bytes": _disk(config, rollouts, parameters),
        "seconds": _seconds(config, tokens, train, parameters, flops),
    }


def _phases(config: RunConfig) -> tuple[int, int, int]:
    """Most weight steps, harness phases and proposal rounds."""
    schedule = config.schedule
    steps = schedule.total_steps
    if schedule.kind == "weight_only":
        return steps, 0, 0
    if schedule.kind == "harness_only":
        return 0, 1, schedule.total_rounds
    if schedule.kind == "sequential":
        return steps, 1, schedule.total_rounds
    shortest = schedule.steps if schedule.kind == "fixed" else schedule.min_steps
    phases = max(0, -(-steps // shortest) - 1)
    return steps, phases, phases * (schedule.rounds if schedule.kind == "fixed" else schedule.max_rounds)


def _disk(config: RunConfig, rollouts: int, parameters: int | None) -> int:
    # A checkpoint holds the weights and both AdamW moments in fp32. Beside the last ones there are the best of the
    # phase and, while it is written, a new one.
    size = 0 if config.trainer.lora_rank else 12 * (parameters or 0)  # adapters are small
    return rollouts * _ROW_BYTES + (config.store.keep_last + 2) * size


def _seconds(config: RunConfig, tokens: int, train: int, parameters: int | None, flops: float | None) -> float | None:
    if not parameters or not flops:
        return None
    sampled = tokens / 2
    trained = train * min(config.limits.assistant_tokens, config.limits.call_tokens) / 2
    # 2 per parameter and token forward, 6 for a training token; half the machine's rate is reached in practice.
    return (2 * sampled + 6 * trained) * parameters / (0.5 * flops)
