"""Supervised fine-tuning of a model in this process: full weights, fp32 AdamW, one update per call."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whale.engines.local_model import LocalModel
from whale.errors import TrainerError
from whale.trainers import checkpoint
from whale.trainers.loss import backward_padded, backward_piece
from whale.trainers.tree import pack, padded
from whale.types import Policy, TrainRow

MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass(frozen=True)
class Adam:
    """Hyper-parameters of the optimizer; part of the lineage digest.

    lr: the constant rate after ``warmup_steps`` updates of linear warm-up. clip: largest norm of the whole
    gradient; larger ones are scaled down to it.
    """

    lr: float = 2e-5
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    warmup_steps: int = 0
    clip: float = 1.0


class TorchTrainer:
    """``protocols.Trainer`` on the weights of a ``LocalModel``, which an engine in this process may share.

    The optimizer's state lives as long as the trainer, across phases, until ``reset``. Dropout is never applied.
    """

    def __init__(self, model: LocalModel, adam: Adam = Adam(), *, token_budget: int = 768) -> None:
        """token_budget: tokens of one forward and backward pass; sets the memory for activations (about 2 MB per
        token for a 135M model) and never changes the gradient beyond rounding.

        Raises TrainerError if the model's weights are not fp32: small steps would be rounded away.
        """
        if model.dtype is not torch.float32:
            raise TrainerError(f"trainer: weights are {model.dtype}, training needs dtype=float32")
        if token_budget < 1:
            raise TrainerError(f"trainer: token_budget {token_budget} must be at least 1")
        self.model = model
        self.adam = adam
        self.token_budget = token_budget
        self.steps = 0
        self._optimizer = self._fresh_optimizer()

    # --- updating ------------------------------------------------------------------------------------------

    def update(self, rows: Sequence[TrainRow], rollouts: int) -> Mapping[str, float]:
        """See ``protocols.Trainer.update``. Figures also hold ``pieces``, the passes made, and ``clipped`` (0 or 1)."""
        self._check(rows, rollouts)
        try:
            loss, tokens, pieces = self._accumulate(rows, 1.0 / rollouts)
            norm = torch.nn.utils.get_total_norm([p.grad for p in self._parameters() if p.grad is not None]).item()
            if not (math.isfinite(loss) and math.isfinite(norm)):
                found = f"loss {loss} or gradient norm {norm}"
                raise TrainerError(f"update: {found} is not finite; nothing was changed (lower the learning rate)")
            lr = self._step(norm)
        finally:
            self._optimizer.zero_grad(set_to_none=True)
        return {
            "loss": loss,
            "grad_norm": norm,
            "tokens": float(tokens),
            "row_tokens": float(sum(len(row.context) + len(row.sampled) for row in rows)),
            "lr": lr,
            "pieces": float(pieces),
            "clipped": float(norm > self.adam.clip),
        }

    def _accumulate(self, rows: Sequence[TrainRow], scale: float) -> tuple[float, int, int]:
        """Gradient of all rows; returns loss, tokens computed and number of passes."""
        self._optimizer.zero_grad(set_to_none=True)
        loss, tokens = 0.0, 0
        if self.model.full_attention:
            pieces = pack(rows, self.token_budget)
            for piece in pieces:
                loss += backward_piece(self.model, piece, scale)
                tokens += len(piece.tree)
            return loss, tokens, len(pieces)
        batches = padded(rows, self.token_budget)
        for sequences, targets in batches:
            loss += backward_padded(self.model, sequences, targets, scale)
            tokens += len(sequences) * max(map(len, sequences))
        return loss, tokens, len(batches)

    def _step(self, norm: float) -> float:
        if norm > self.adam.clip:
            for parameter in self._parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(self.adam.clip / norm)
        warm = min(1.0, (self.steps + 1) / max(1, self.adam.warmup_steps))
        lr = self.adam.lr * warm
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        self.steps += 1
        self.model.dirty = True
        return lr

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
        if not math.isfinite(row.weight):
            return f"has weight {row.weight}"
        return ""

    def _parameters(self) -> list[Tensor]:
        return list(self.model.weights().values())

    def _fresh_optimizer(self) -> torch.optim.Optimizer:
        a = self.adam
        # fused: one pass over memory and no temporaries as large as the weights
        return torch.optim.AdamW(
            self._parameters(), lr=a.lr, betas=a.betas, eps=a.eps, weight_decay=a.weight_decay, fused=True
        )

    # --- versions ------------------------------------------------------------------------------------------

    def policy(self) -> Policy:
        """The policy published last."""
        return self.model.policy

    def publish(self, note: str) -> Policy:
        """See ``protocols.Trainer.publish``. Engine and trainer share the weights, so this only names them."""
        old = self.model.policy
        settings = json.dumps(dataclasses.asdict(self.adam), sort_keys=True)
        digest = hashlib.blake2b(f"{old.digest}\n{note}\n{settings}".encode(), digest_size=16).hexdigest()
        self.model.policy = Policy(base=old.base, version=old.version + 1, digest=digest)
        self.model.dirty = False
        return self.model.policy

    def reset(self) -> None:
        """Back to version 0: base weights read anew, a fresh optimizer, no steps made."""
        self._optimizer.state.clear()  # before another copy of the weights is in memory
        self.model.reload()
        self.steps = 0
        self._optimizer = self._fresh_optimizer()

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
        }

        def describe(target: Path) -> None:
            self.model.net.config.save_pretrained(target)
            self.model.net.generation_config.save_pretrained(target)
            self.model.tokenizer.save_pretrained(target)

        weights = {name: tensor.detach().contiguous() for name, tensor in self.model.weights().items()}
        checkpoint.write(folder, weights, self._optimizer_tensors(), state, describe)
        if not self.model.dirty:
            self.model.policy = policy

    def load(self, folder: Path) -> None:
        """Restore a checkpoint of the same base model, and serve it. Nothing changes if it is refused.

        Raises TrainerError: half-written, damaged, or of another model.
        """
        weights, moments, state = checkpoint.read(folder)
        own = self.model.weights()
        saved = Policy(**state["policy"])
        if saved.base != self.model.base.base:
            raise TrainerError(f"checkpoint: {folder} is of {saved.base!r}, this run uses {self.model.base.base!r}")
        if {n: t.shape for n, t in weights.items()} != {n: t.shape for n, t in own.items()}:
            raise TrainerError(f"checkpoint: tensors of {folder} have other names or shapes than the model's")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(weights[name])
        self._optimizer = self._fresh_optimizer()
        for name, parameter in own.items():
            found = {key: moments[f"{key}/{name}"] for key in MOMENTS if f"{key}/{name}" in moments}
            if found:
                self._optimizer.state[parameter] = {key: t.to(parameter.device) for key, t in found.items()}
        self.steps = int(state["steps"])
        self.model.policy = dataclasses.replace(saved, path=str(folder))
        self.model.dirty = bool(state["dirty"])

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        tensors: dict[str, Any] = {}
        for name, parameter in self.model.weights().items():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                tensors[f"{key}/{name}"] = torch.as_tensor(value).contiguous()
        return tensors
