"""What is measured on: accepted rows and evaluation prompts of a finished run, and three levels of shared prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from whale.config import RunConfig
from whale.errors import ConfigError, WhaleError
from whale.rsft import accept_rollouts, train_rows
from whale.seeds import shuffled
from whale.state import RunState
from whale.store import Store
from whale.types import GenerationRequest, Rollout, TrainRow

if TYPE_CHECKING:
    from whale.engines.local_model import LocalModel

Sharing = Literal["none", "task", "harness"]

SHARING: tuple[Sharing, ...] = ("none", "task", "harness")
"""Which rows may begin alike: none, those of one task, all (the rows as the run made them)."""


@dataclass(frozen=True)
class Example:
    """A row with the task it was sampled for."""

    row: TrainRow
    task: str


Update = list[Example]
"""The rows of one optimizer update."""


@dataclass(frozen=True)
class Material:
    """A finished run as the benchmark needs it.

    model: folder or name of the weights to measure with. base: the base model asked for in place of the run's policy,
    if any. updates: newest first. requests: the first model call of every rollout of the last look at the test split.
    rollouts: of that look.
    """

    store: Store
    config: RunConfig
    state: RunState
    model: str
    base: str
    updates: list[Update]
    requests: list[GenerationRequest]
    rollouts: list[Rollout]


def load(folder: Path, model: str = "") -> Material:
    """Read a run folder. model: measure with this base model instead of the run's last policy.

    Raises ConfigError if the folder holds no finished run with accepted rollouts and a test evaluation.
    """
    store = Store(folder)
    try:
        config, state = store.read_config(), store.read_state()
    except WhaleError as error:
        raise _unusable(folder, str(error)) from None
    if state is None or not state.finished:
        raise _unusable(folder, "the run has not ended")
    updates = _updates(store, config)
    if not updates:
        raise _unusable(folder, "it has no accepted rollouts to train on")
    rollouts = _last_look(store, state)
    if not rollouts:
        raise _unusable(folder, "it has no evaluation of the test split")
    checkpoint = store.policy_folder(state.policy.version)
    whole = (checkpoint / "config.json").exists()  # an adapter's checkpoint is no model
    limit = min(config.limits.call_tokens, config.limits.assistant_tokens)
    requests = [GenerationRequest(r.calls[0].context, limit, r.calls[0].seed) for r in rollouts]
    weights = model or (str(checkpoint) if whole else config.model)
    return Material(store, config, state, weights, model, updates, requests, rollouts)


def must_fit(model: LocalModel, sequences: Sequence[Sequence[int]], room: int = 0) -> None:
    """Raise ConfigError if ids or lengths (with ``room`` more tokens to sample) are beyond what a model takes."""
    longest = max(map(len, sequences)) + room
    highest = max(max(sequence) for sequence in sequences)
    if longest > model.context_limit or highest >= model.vocabulary:
        raise ConfigError(
            f"--model {model.name}: the run's sequences of up to {longest} tokens with ids up to {highest} do not fit "
            f"it ({model.context_limit} tokens, {model.vocabulary} ids); use a model with the run's tokenizer"
        )


def at_level(update: Update, level: Sharing, vocabulary: int) -> list[TrainRow]:
    """The rows of an update with no more shared prefixes than ``level`` allows, lengths unchanged.

    The ids of a row are shifted by a constant modulo ``vocabulary``, so that rows which must not share differ in
    their first token already. Raises ConfigError if there are too few ids for that.
    """
    if level == "harness":
        return [example.row for example in update]
    keys = [example.task if level == "task" else str(number) for number, example in enumerate(update)]
    shift = _shifts([example.row.context[0] for example in update], keys, vocabulary)
    return [_shifted(example.row, shift[key], vocabulary) for example, key in zip(update, keys, strict=True)]


def _shifts(firsts: Sequence[int], keys: Sequence[str], vocabulary: int) -> dict[str, int]:
    """A shift for each key, such that no two keys have a first token in common."""
    used: set[int] = set()
    shifts: dict[str, int] = {}
    for key in dict.fromkeys(keys):
        own = {first for first, other in zip(firsts, keys, strict=True) if other == key}
        for shift in range(len(shifts), vocabulary):
            fresh = {(first + shift) % vocabulary for first in own}
            if not fresh & used:
                break
        else:
            raise ConfigError(f"{len(set(keys))} groups of rows need as many first tokens, the model has {vocabulary}")
        used |= fresh
        shifts[key] = shift
    return shifts


def _shifted(row: TrainRow, shift: int, vocabulary: int) -> TrainRow:
    context, sampled = (tuple((i + shift) % vocabulary for i in ids) for ids in (row.context, row.sampled))
    return replace(row, context=context, sampled=sampled)


def _updates(store: Store, config: RunConfig) -> list[Update]:
    """Mini-batches of accepted rollouts, drawn as the weight phase draws them; only full ones if there are any."""
    found: list[Update] = []
    parts: list[Update] = []
    size = config.weights.minibatch
    for path in sorted((store.folder / "rollouts").glob("w*.jsonl"), reverse=True):
        rollouts = store.read_block(path.stem) or []
        kept = [rollouts[i] for i in accept_rollouts(rollouts, config.weights)[0]]
        order = shuffled(kept, config.seed, "minibatch", int(path.stem[1:].split("-")[0]), 0)
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            examples = [Example(row, r.task_id) for r in batch for row in train_rows([r], config.weights.train_calls)]
            if examples:
                (found if len(batch) == size else parts).append(examples)
    return found or parts


def _last_look(store: Store, state: RunState) -> list[Rollout]:
    looks = [look for look in state.looks if look.split == "test"]
    blocks = looks[-1].blocks if looks else ()
    return [rollout for key in blocks for rollout in store.read_block(key) or [] if rollout.calls]


def _unusable(folder: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{folder} cannot be measured on: {why}. Make a finished run with: make quickstart; or name one with --run"
    )
