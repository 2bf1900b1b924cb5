"""Whale's gradient of an update, and the other ways to compute the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from whale.bench.material import Sharing, Update, at_level
from whale.bench.stock import trl_update
from whale.engines.local_model import LocalModel
from whale.trainers.loss import backward
from whale.trainers.passes import passes
from whale.trainers.torch import TorchTrainer
from whale.types import TrainRow

Rows = Sequence[TrainRow]


@dataclass(frozen=True)
class Side:
    """One way to compute a gradient. prepare: makes, for some rows, the call that leaves the gradient of the mean
    loss per sampled token in ``net`` and returns that loss. trials: how its setting was chosen."""

    net: Any
    prepare: Callable[[Rows], Callable[[], float]]
    setting: Mapping[str, int]
    trials: Sequence[Mapping[str, float]] = ()


def rows_of(update: Update, level: Sharing, model: LocalModel) -> list[TrainRow]:
    """The rows of an update at a level of sharing, with one weight for all: TRL weighs tokens, whale rollouts; so
    both compute the mean over tokens."""
    return [TrainRow(row.context, row.sampled) for row in at_level(update, level, model.vocabulary)]


def whale_side(model: LocalModel, budget: int) -> Side:
    """The gradient as ``TorchTrainer.update`` computes it, without the optimizer's step. budget: tokens of a pass."""
    trainer = TorchTrainer(model, token_budget=budget)
    return Side(
        model.net,
        lambda rows: lambda: trainer._accumulate(rows, _scale(rows))[0].loss,
        {"token_budget": budget},
    )


def rows_side(model: LocalModel, budget: int) -> Side:
    """Right-padded rows of similar length, logits only at targets. budget: tokens of a pass, padding included."""

    def prepare(rows: Rows) -> Callable[[], float]:
        def call() -> float:
            model.net.zero_grad(set_to_none=True)
            scale = _scale(rows)
            return sum(backward(model, each, scale).loss for each in passes(model, rows, budget, "rows"))

        return call

    return Side(model.net, prepare, {"token_budget": budget})


def trl_side(net: Any, model: LocalModel, batch: int, free: bool) -> Side:
    """TRL on its own copy of the weights. batch: rows of a pass. free: laid end to end instead of padded."""
    return Side(
        net,
        lambda rows: trl_update(net, model.tokenizer, rows, batch, free),
        {"per_device_train_batch_size": batch, "padding_free": free},
    )


def compare(sides: Mapping[str, Side], rows: Rows) -> dict[str, dict[str, float]]:
    """Loss and gradient of every other side beside whale's on the same rows: relative differences and the cosine."""
    whale = sides["whale"]
    loss = whale.prepare(rows)()
    gradient = {name: p.grad.clone() for name, p in whale.net.named_parameters() if p.grad is not None}
    result = {}
    for name, side in sides.items():
        if side is not whale:
            other = side.prepare(rows)()
            result[name] = {"loss_difference": abs(other - loss) / abs(loss), **_angle(gradient, side.net)}
    for side in sides.values():
        side.net.zero_grad(set_to_none=True)
    return result


def _angle(gradient: Mapping[str, Tensor], net: Any) -> dict[str, float]:
    """In float64, one tensor at a time: a sum of a hundred million squares in fp32 says little of small differences."""
    own = others = both = apart = 0.0
    for name, parameter in net.named_parameters():
        a, b = gradient[name].double(), parameter.grad.double()
        own, others = own + float((a * a).sum()), others + float((b * b).sum())
        both, apart = both + float((a * b).sum()), apart + float(((a - b) ** 2).sum())
    return {"gradient_difference": (apart / own) ** 0.5, "cosine": both / (own * others) ** 0.5}


def _scale(rows: Rows) -> float:
    return 1.0 / sum(len(row.sampled) for row in rows)
