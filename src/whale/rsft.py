"""The weight phase: online rejection-sampling fine-tuning under a fixed harness (paper, section on the weight phase).

A step samples rollouts of a batch of tasks, keeps the verified ones, trains one supervised pass on exactly the
tokens that were sampled, and publishes the new weights to the sampler.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence

from whale import guard, schedule, stats
from whale.config import WeightsConfig
from whale.evaluate import look_if_due
from whale.rollout import Attempt
from whale.run import Run
from whale.seeds import derive, shuffled
from whale.state import Counters, PendingRow, Phase, RunState
from whale.types import Candidate, ModelCall, Rollout, Task, TrainRow

KL_ROLLOUTS = 8
"""Rollouts whose sampled tokens the divergence from the base is measured on."""


def train_weights(run: Run, state: RunState, phase: Phase) -> tuple[RunState, str]:
    """Run a weight phase to its end; returns the state and why it ended."""
    state = _carry_over(run, state)
    while not (ended := schedule.phase_ended(phase, state.values)):
        if schedule.out_of_budget(run.config.schedule, state):
            return state, "rollouts"
        state = weight_step(run, state)
        state = look_if_due(run, state)
        if guard.collapsed(state.values, run.config.weights.guard_drop, run.config.weights.guard_steps):
            return _go_back(run, state), "collapsed"
        if len(state.values) % run.config.store.checkpoint_every == 0:
            state = run.commit(state)
    return state, ended


def weight_step(run: Run, state: RunState) -> RunState:
    """Sample, verify, keep, train, publish: one step."""
    config = run.config.weights
    harness = run.archive.get(state.harness)
    attempts = step_attempts(harness, run.tasks["weights"], config, run.config.seed, state.step)
    key, rollouts = run.block(f"w{state.step:05d}", "train", attempts)
    kept, rejected = accept_rollouts(rollouts, config)
    pending = (*state.pending, *(PendingRow(block=key, index=i) for i in kept))
    counters = _count(state.counters, rollouts, accepted=len(kept))
    figures: dict[str, float] = {}
    if len(pending) >= config.min_accepted:
        figures = _train(run, state, pending)
        counters = counters.model_copy(update={
            "trained": counters.trained + len(pending),
            "trained_tokens": counters.trained_tokens + int(figures.get("row_tokens", 0)),
        })  # fmt: skip
        pending = ()
    empty = 0 if kept else state.empty_steps + 1
    _warn_if_starved(run, empty)
    reward = stats.score(rollouts, harness.hash, state.policy.version).mean or 0.0
    state = state.but(
        step=state.step + 1, values=(*state.values, reward), versions=(*state.versions, state.policy.version),
        counters=counters, pending=pending, empty_steps=empty, policy=run.trainer.policy(),
    )  # fmt: skip
    run.log(
        state, kind="step", step=state.step, reward=reward, accepted=len(kept), accept_rate=len(kept) / len(rollouts),
        pending=len(pending), rejected=rejected, harness=state.harness, policy=state.policy.version,
        **shape(rollouts), **figures,
    )  # fmt: skip
    run.progress.step(state, reward, len(kept), len(rollouts), figures)
    return state


def step_attempts(
    harness: Candidate, tasks: Sequence[Task], config: WeightsConfig, seed: int, step: int
) -> list[Attempt]:
    """The rollouts of step number ``step`` (from 0): consecutive tasks of an order shuffled anew each epoch.

    A pure function of its arguments, so that a resumed run meets the same tasks in the same order.
    """
    size = min(config.tasks_per_step, len(tasks))
    first, last = step * size, (step + 1) * size - 1
    orders = {
        epoch: shuffled(tasks, seed, "epoch", epoch) for epoch in range(first // len(tasks), last // len(tasks) + 1)
    }
    chosen = [orders[position // len(tasks)][position % len(tasks)] for position in range(first, last + 1)]
    return [
        Attempt(harness, task, sample, derive(seed, "train", step, task.id, sample))
        for task in chosen
        for sample in range(config.samples)
    ]


def accept_rollouts(rollouts: Sequence[Rollout], config: WeightsConfig) -> tuple[list[int], dict[str, int]]:
    """Indices of the rollouts to train on, and how many were left out for which reason.

    Reasons: ``reward`` (not above the threshold), ``unknown`` (no reward), ``truncated``, ``duplicate``, ``cap``.
    """
    kept: list[int] = []
    rejected: dict[str, int] = {}
    seen: dict[str, set[tuple[tuple[int, ...], ...]]] = {}
    for index, rollout in enumerate(rollouts):
        of_task = seen.setdefault(rollout.task_id, set())
        tokens = tuple(call.sampled for call in rollout.calls)
        reason = _why_not(rollout, config, tokens, of_task)
        if reason:
            rejected[reason] = rejected.get(reason, 0) + 1
        else:
            kept.append(index)
            of_task.add(tokens if config.deduplicate else (*tokens, (index,)))
    return kept, rejected


def train_rows(rollouts: Iterable[Rollout], which: str, version: int | None = None) -> list[TrainRow]:
    """One row per trained call. A rollout weighs 1, spread evenly over the sampled tokens of its trained calls.

    version: of the policy that the weights still are; its rows carry their log-probabilities, to be compared.
    """
    rows: list[TrainRow] = []
    for rollout in rollouts:
        calls = _trained_calls(rollout, which)
        tokens = sum(len(call.sampled) for call in calls)
        rows += [
            TrainRow(call.context, call.sampled, 1.0 / tokens, call.logprobs if call.version == version else ())
            for call in calls
        ]
    return rows


def shape(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Figures that show a collapse early: reply length, truncation, repetition (share of sampled four-token pieces that
    occurred before in the same reply), how many completions of a task differ, tool calls that could not be read."""
    count = max(1, len(rollouts))
    tasks = {r.task_id for r in rollouts}
    unique = {(r.task_id, tuple(call.sampled for call in r.calls)) for r in rollouts}
    return {
        "tokens_per_rollout": round(sum(r.sampled_tokens for r in rollouts) / count, 2),
        "truncated": round(sum(r.truncated for r in rollouts) / count, 4),
        "repetition": round(_repetition(rollouts), 4),
        "unique": round(len(unique) / count, 4),
        "tool_parse_errors": sum(bool(c.error) for r in rollouts for call in r.calls for c in call.tool_calls),
        "tasks": len(tasks),
        "valid": sum(r.reward is not None for r in rollouts),
    }


def _repetition(rollouts: Sequence[Rollout], size: int = 4) -> float:
    total = distinct = 0
    for call in (call for rollout in rollouts for call in rollout.calls):
        pieces = [call.sampled[i : i + size] for i in range(len(call.sampled) - size + 1)]
        total, distinct = total + len(pieces), distinct + len(set(pieces))
    return 1 - distinct / total if total else 0.0


def _train(run: Run, state: RunState, pending: Sequence[PendingRow]) -> dict[str, float]:
    config = run.config.weights
    rollouts = run.store.read_rows(pending)
    updates: list[Mapping[str, float]] = []
    for epoch in range(config.epochs):
        order = shuffled(rollouts, run.config.seed, "minibatch", state.step, epoch)
        for start in range(0, len(order), config.minibatch):
            batch = order[start : start + config.minibatch]
            # Only the first update meets the very weights that the rollouts were sampled from.
            if rows := train_rows(batch, config.train_calls, None if updates else state.policy.version):
                updates.append(run.trainer.update(rows, len(batch)))
    if updates:
        note = json.dumps([state.step, [row.model_dump() for row in pending]])
        run.trainer.publish(hashlib.blake2b(note.encode(), digest_size=8).hexdigest())
    figures = _over_updates(updates)
    due = config.kl_every and (state.step + 1) % config.kl_every == 0
    if due and (rows := train_rows(rollouts[:KL_ROLLOUTS], config.train_calls)):
        figures["kl_base"] = run.trainer.drift(rows)
    return figures


def _over_updates(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Figures of a step: tokens are summed over its updates, everything else is averaged."""
    figures: dict[str, float] = {"updates": len(updates)} if updates else {}
    for name in updates[0] if updates else ():
        values = [update[name] for update in updates if name in update]
        figures[name] = sum(values) if name in ("tokens", "row_tokens") else sum(values) / len(values)
    return figures


def _trained_calls(rollout: Rollout, which: str) -> list[ModelCall]:
    if which == "last":
        return list(rollout.calls[-1:])
    return [call for call in rollout.calls if which == "all" or call.marked]


def _why_not(
    rollout: Rollout,
    config: WeightsConfig,
    tokens: tuple[tuple[int, ...], ...],
    of_task: set[tuple[tuple[int, ...], ...]],
) -> str:
    if rollout.reward is None:
        return "unknown"
    if not rollout.reward > config.accept_above or not any(tokens):
        return "reward"
    if rollout.truncated and not config.accept_truncated:
        return "truncated"
    if config.deduplicate and tokens in of_task:
        return "duplicate"
    if config.max_accepted_per_task and len(of_task) >= config.max_accepted_per_task:
        return "cap"
    return ""


def _go_back(run: Run, state: RunState) -> RunState:
    """Give the next phase the weights of the best checkpoint of this one, under a version number of their own."""
    saved = {0, *run.store.saved_versions()}  # the base is never lost
    best = guard.best_version(state.values, state.versions, run.config.weights.guard_steps, saved)
    if best is None:
        return state
    if best:
        run.trainer.load(run.store.policy_folder(best))
    else:
        run.trainer.reset()
    policy = run.trainer.publish(f"back to {best}", state.policy.version + 1)
    run.store.event("collapsed", best=best, last=state.policy.version, restored_as=policy.version)
    run.progress.warn(
        f"the training reward has fallen by more than weights.guard_drop: going on from policy {best}, the best "
        f"checkpoint of this phase, as version {policy.version}. A lower trainer.lr is the usual remedy"
    )
    counters = state.counters.model_copy(update={"discarded": state.counters.discarded + len(state.pending)})
    return state.but(policy=policy, pending=(), counters=counters)


def _carry_over(run: Run, state: RunState) -> RunState:
    """Drop waiting rollouts of another harness: their contexts are not what the policy meets now."""
    if not state.pending or state.values or run.config.weights.carry_across_harnesses:
        return state
    wanted = run.archive.get(state.harness).hash
    kept = tuple(
        row
        for row, rollout in zip(state.pending, run.store.read_rows(state.pending), strict=True)
        if rollout.harness == wanted
    )
    dropped = len(state.pending) - len(kept)
    if dropped:
        run.store.event("discarded", rollouts=dropped, reason="harness_changed")
    counters = state.counters.model_copy(update={"discarded": state.counters.discarded + dropped})
    return state.but(pending=kept, counters=counters)


def _count(counters: Counters, rollouts: Sequence[Rollout], accepted: int) -> Counters:
    return counters.model_copy(update={
        "train": counters.train + len(rollouts),
        "accepted": counters.accepted + accepted,
        "sampled_tokens": counters.sampled_tokens + sum(r.sampled_tokens for r in rollouts),
    })  # fmt: skip


def _warn_if_starved(run: Run, empty: int) -> None:
    config = run.config.weights
    if empty and empty % config.warn_after == 0:
        run.progress.warn(
            f"{empty} weight steps in a row without an accepted rollout: the weights cannot learn under this harness. "
            "Search first (a smaller schedule.steps), easier tasks, more samples, or a larger limits.call_tokens"
        )
