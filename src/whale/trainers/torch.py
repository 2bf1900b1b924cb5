"""Supervised fine-tuning of a model in this process: its weights or an adapter, fp32 AdamW, one update per call."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from whale.engines.adapters import file_name
from whale.engines.local_model import LocalModel
from whale.errors import StaleWeightsError, TrainerError
from whale.trainers import checkpoint
from whale.trainers.drift import kl_to_base
from whale.trainers.loss import Sums, backward
from whale.trainers.optimizer import Adam, Optimizer
from whale.trainers.passes import Packing, passes
from whale.types import Policy, TrainRow

__all__ = ["Adam", "TorchTrainer"]


class TorchTrainer:
    """``protocols.Trainer`` on the weights (or the adapter) of a ``LocalModel``, which an engine in this process may
    share.

    The optimizer's state lives as long as the trainer, across phases, until ``reset``. Dropout is never applied.
    """

    def __init__(
        self,
        model: LocalModel,
        adam: Adam | None = None,
        *,
        token_budget: int = 768,
        max_logprob_gap: float = 0.05,
        packing: Packing = "auto",
    ) -> None:
        """token_budget: tokens of one forward and backward pass; sets the memory for activations (about 2 MB per
        token for a 135M model) and never changes the gradient beyond rounding.

        max_logprob_gap: largest mean difference (nats) between a sampled token's log-probability in the sampler and
        here, see ``TrainRow.logprobs``.

        packing: ``tree`` computes each distinct token once and needs full attention in every layer; ``rows`` pads
        rows on the right; ``auto`` takes the cheaper of the two for each update, and rows where the model does not
        allow trees.

        Raises TrainerError for float16 (gradients would underflow) and for ``tree`` on a model that does not allow it.
        """
        if model.dtype not in (torch.float32, torch.bfloat16):
            raise TrainerError(f"trainer: weights are {model.dtype}; train with engine.dtype=float32 or bfloat16")
        if token_budget < 1:
            raise TrainerError(f"trainer: token_budget {token_budget} must be at least 1")
        if packing == "tree" and model.branch_fault:
            raise TrainerError(
                f"trainer.packing: 'tree' needs full attention in every layer, {model.name!r} has "
                f'{model.branch_fault}; use packing="rows". (Packing rows of such a model without padding would need '
                "kernels that know where a row ends, such as flash-linear-attention and causal-conv1d, which whale "
                "does not use.)"
            )
        self.model = model
        self.adam = adam or Adam()
        self.token_budget = token_budget
        self.max_logprob_gap = max_logprob_gap
        self._packing = packing
        self.steps = 0
        self._optimizer = Optimizer(model.weights(), self.adam)

    # --- updating ------------------------------------------------------------------------------------------

    def update(self, rows: Sequence[TrainRow], rollouts: int) -> Mapping[str, float]:
        """See ``protocols.Trainer.update``. Figures also hold ``pieces``, the passes made, and ``clipped`` (0 or 1)."""
        self._check(rows, rollouts)
        try:
            sums, tokens, pieces = self._accumulate(rows, 1.0 / rollouts)
            self._check_gap(sums)
            norm = self._optimizer.norm()
            if not (math.isfinite(sums.loss) and math.isfinite(norm)):
                found = f"loss {sums.loss} or gradient norm {norm}"
                raise TrainerError(f"update: {found} is not finite; nothing was changed (lower the learning rate)")
            lr = self._optimizer.step(norm, self.steps)
            self.steps += 1
            self.model.dirty = True
        finally:
            self._optimizer.zero_grad()
        return {
            "loss": sums.loss,
            "entropy": sums.entropy / sums.tokens,
            **({"logprob_gap": sums.gap / sums.compared} if sums.compared else {}),
            "grad_norm": norm,
            "weight_norm": self._optimizer.weight_norm(),
            "tokens": float(tokens),
            "row_tokens": float(sum(len(row.context) + len(row.sampled) for row in rows)),
            "lr": lr,
            "pieces": float(pieces),
            "clipped": float(norm > self.adam.clip),
        }

    def _accumulate(self, rows: Sequence[TrainRow], scale: float) -> tuple[Sums, int, int]:
        """Gradient of all rows; returns what was added up, tokens computed and number of passes."""
        self._optimizer.zero_grad()
        sums = Sums()
        made = passes(self.model, rows, self.token_budget, self._packing)
        for each in made:
            sums += backward(self.model, each, scale)
        return sums, sum(each.tokens for each in made), len(made)

    def _check_gap(self, sums: Sums) -> None:
        """Raises StaleWeightsError if the sampler's log-probabilities are not those of these weights."""
        gap = sums.gap / max(1, sums.compared)
        if gap > self.max_logprob_gap:
            raise StaleWeightsError(
                f"update: log-probabilities of sampled tokens differ by {gap:.4f} between sampler and trainer on "
                f"average, trainer.max_logprob_gap is {self.max_logprob_gap}: the sampler did not use these weights, "
                "or computes them too coarsely. Nothing was changed"
            )

    def _check(self, rows: Sequence[TrainRow], rollouts: int) -> None:
        if not rows or rollouts < 1:
            raise TrainerError(f"update: {len(rows)} rows of {rollouts} rollouts, both must be at least 1")
        for number, row in enumerate(rows):
            fault = self._fault(row)
            if fault:
                raise TrainerError(f"update: row {number} {fault}")

    def _fault(self, row: TrainRow) -> str:
        size, limit = len(row.context) + len(row.sampled), self.model.context_limit
        if not row.sampled:
            return "has no sampled tokens"
        if not row.context:
            return "has an empty context"
        if size > limit:
            return f"has {size} tokens, the model's context is {limit}"
        low, high = min(min(row.context), min(row.sampled)), max(max(row.context), max(row.sampled))
        if low < 0 or high >= self.model.vocabulary:
            return f"has token id {low if low < 0 else high}, ids are 0 to {self.model.vocabulary - 1}"
        for name, values in (("weights", row.weights), ("logprobs", row.logprobs or row.weights)):
            if len(values) != len(row.sampled):
                return f"has {len(values)} {name} for {len(row.sampled)} sampled tokens"
        if wrong := [weight for weight in row.weights if not math.isfinite(weight)]:
            return f"has weight {wrong[0]}"
        return ""

    def drift(self, rows: Sequence[TrainRow]) -> float:
        """See ``protocols.Trainer.drift`` and ``drift.kl_to_base``. Raises TrainerError for rows as ``update`` does."""
        self._check(rows, len(rows))
        return kl_to_base(self.model, rows, self.token_budget)

    # --- versions ------------------------------------------------------------------------------------------

    def policy(self) -> Policy:
        """The policy published last."""
        return self.model.policy

    def publish(self, note: str, version: int | None = None) -> Policy:
        """See ``protocols.Trainer.publish``. Engine and trainer share the weights, so this only names them."""
        old = self.model.policy
        settings = json.dumps(self._settings(), sort_keys=True)
        digest = hashlib.blake2b(f"{old.digest}\n{note}\n{settings}".encode(), digest_size=16).hexdigest()
        self.model.policy = dataclasses.replace(
            old, version=old.version + 1 if version is None else version, digest=digest, path=None
        )
        self.model.dirty = False
        return self.model.policy

    def reset(self) -> None:
        """Back to version 0: base weights read anew or a fresh adapter, a fresh optimizer, no steps made."""
        self._optimizer.forget()  # before another copy of the weights is in memory
        self.model.reload()
        self.steps = 0
        self._optimizer.restore({})

    def _settings(self) -> dict[str, Any]:
        """What beside the rows decides the next weights."""
        settings = dataclasses.asdict(self.adam)
        if self.model.adapter is not None:
            settings["adapter"] = dataclasses.asdict(self.model.adapter)
        if self.model.dtype is not torch.float32:
            settings["dtype"] = str(self.model.dtype)
        return settings

    # --- checkpoints ---------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write a checkpoint, see ``whale.trainers.checkpoint``; the policy's ``path`` is the folder from then on.

        Raises TrainerError if the folder cannot be written.
        """
        policy = dataclasses.replace(self.model.policy, path=str(folder))
        state = {
            "policy": dataclasses.asdict(policy),
            "dirty": self.model.dirty,
            "steps": self.steps,
            "adam": dataclasses.asdict(self.adam),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "adapter": dataclasses.asdict(self.model.adapter) if self.model.adapter else None,
        }
        weights = {file_name(name): tensor.detach().contiguous() for name, tensor in self.model.weights().items()}
        checkpoint.write(folder, self._kind(), weights, self._optimizer.tensors(), state, self.model.describe)
        if not self.model.dirty:
            self.model.policy = policy

    def load(self, folder: Path) -> None:
        """Restore a checkpoint of the same base model, and serve it. Nothing changes if it is refused.

        Raises TrainerError: half-written, damaged, of another model, or not of what this run trains.
        """
        weights, tensors, state = checkpoint.read(folder, self._kind())
        checkpoint.install(self.model, folder, weights, state)
        self._optimizer.restore(tensors)
        self.steps = int(state["steps"])

    def _kind(self) -> Literal["full", "adapter"]:
        return "adapter" if self.model.adapter is not None else "full"
