"""AdamW over the trainable tensors of a model, with fp32 master copies of those that are not fp32 themselves."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

MOMENTS = ("exp_avg", "exp_avg_sq", "step")
MASTER = "master"


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


class Optimizer:
    """Steps, gradients and moments are fp32. A bf16 weight has a master: its gradient is added to the master's after
    each backward pass, the step changes the master, and the weight becomes its rounded copy. Steps too small for
    bf16 so add up instead of being lost."""

    def __init__(self, weights: Mapping[str, Tensor], adam: Adam) -> None:
        """weights: the trainable tensors by name; they stay the same objects for as long as this one lives."""
        self._adam, self._weights = adam, dict(weights)
        self._masters = {name: _master(weight) for name, weight in self._weights.items()}
        for name, weight in self._weights.items():
            if weight is not self._masters[name]:
                hook = weight.register_post_accumulate_grad_hook(_gather(self._masters[name]))  # type: ignore[no-untyped-call]
                weakref.finalize(self, hook.remove)  # a later optimizer of this weight gets the gradients then
        # fused: one pass over memory and no temporaries as large as the weights
        self._adamw = torch.optim.AdamW(
            list(self._masters.values()), lr=adam.lr, betas=adam.betas, eps=adam.eps,
            weight_decay=adam.weight_decay, fused=True,
        )  # fmt: skip

    def zero_grad(self) -> None:
        """Forget all gradients and give their memory back."""
        for tensor in (*self._weights.values(), *self._masters.values()):
            tensor.grad = None

    def gradients(self) -> dict[str, Tensor]:
        """The fp32 gradients gathered since ``zero_grad``, by name; tensors without one are left out."""
        return {name: tensor.grad for name, tensor in self._masters.items() if tensor.grad is not None}

    def norm(self) -> float:
        """Norm of the whole gradient."""
        return torch.nn.utils.get_total_norm(list(self.gradients().values())).item()

    def weight_norm(self) -> float:
        """Norm of all trainable weights together."""
        return torch.nn.utils.get_total_norm([master.detach() for master in self._masters.values()]).item()

    def step(self, norm: float, number: int) -> float:
        """One update. norm: of the gradient. number: updates made before. Returns the learning rate."""
        if norm > self._adam.clip:
            for gradient in self.gradients().values():
                gradient.mul_(self._adam.clip / norm)
        lr = self._adam.lr * min(1.0, (number + 1) / max(1, self._adam.warmup_steps))
        for group in self._adamw.param_groups:
            group["lr"] = lr
        self._adamw.step()
        self._copy_down()
        return lr

    def forget(self) -> None:
        """Drop the moments."""
        self._adamw.state.clear()

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint has to hold beside the weights: moments, and masters where they are not the weights."""
        found: dict[str, Tensor] = {}
        for name, master in self._masters.items():
            for key, value in self._adamw.state.get(master, {}).items():
                found[f"{key}/{name}"] = torch.as_tensor(value).contiguous()
            if master is not self._weights[name]:
                found[f"{MASTER}/{name}"] = master.detach().contiguous()
        return found

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what ``tensors`` gave; what is missing starts fresh, a master as the weight it belongs to."""
        self.forget()
        for name, master in self._masters.items():
            if master is not self._weights[name]:
                master.copy_(tensors.get(f"{MASTER}/{name}", self._weights[name]))
            moments = {key: tensors[f"{key}/{name}"] for key in MOMENTS if f"{key}/{name}" in tensors}
            if moments:
                self._adamw.state[master] = {key: value.to(master.device) for key, value in moments.items()}

    @torch.no_grad()
    def _copy_down(self) -> None:
        for name, master in self._masters.items():
            if master is not self._weights[name]:
                self._weights[name].copy_(master)


def _master(weight: Tensor) -> Tensor:
    return weight if weight.dtype is torch.float32 else weight.detach().float().requires_grad_()


def _gather(master: Tensor) -> Callable[[Tensor], None]:
    def hook(weight: Tensor) -> None:
        if weight.grad is not None:
            master.grad = weight.grad.float() if master.grad is None else master.grad.add_(weight.grad)
            weight.grad = None

    return hook
