"""How far the policy has moved from its base: Kullback-Leibler divergence at sampled tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from whale.engines import adapters
from whale.engines.local_model import LocalModel, load_net
from whale.trainers.loss import chunks
from whale.trainers.passes import passes
from whale.trainers.tree import Targets
from whale.types import TrainRow


@torch.no_grad()
def kl_to_base(model: LocalModel, rows: Sequence[TrainRow], budget: int) -> float:
    """Mean KL(policy || base) in nats over the sampled tokens of ``rows``: of the whole next-token distributions, so
    never negative beyond rounding. budget: tokens of one pass.

    The base of a full policy is read from its folder one layer at a time and is never in memory as a whole (unless
    the files name their tensors otherwise than the model does); that of an adapter is the model without it.
    """
    tensors = None if model.adapter else base_tensors(model)
    total, tokens = 0.0, 0
    for each in passes(model, rows, budget):
        own = each.states()
        with base_weights(model, tensors):
            base = each.states()
        total += _divergence(model, tensors, own, base, each.targets)
        tokens += int(each.targets.counts.sum())
    return total / tokens


def _divergence(
    model: LocalModel, tensors: Mapping[str, Any] | None, own: Tensor, base: Tensor, targets: Targets
) -> float:
    """Sum over sampled tokens. own, base: (M, E) states under the policy and under the base."""
    counts = np.bincount(targets.at, weights=targets.counts)
    total = 0.0
    for nodes, _ in chunks(targets):
        policy = model.head(own[nodes]).float().log_softmax(-1)
        with base_weights(model, tensors):
            other = model.head(base[nodes]).float().log_softmax(-1)
        divergence = (policy.exp() * (policy - other)).sum(-1).double().cpu().numpy()
        total += float((divergence * counts[nodes]).sum())
    return total


@contextmanager
def base_weights(model: LocalModel, tensors: Mapping[str, Any] | None) -> Iterator[None]:
    """Inside, the model computes with its base's weights. tensors: from ``base_tensors``, ``None`` for an adapter."""
    if tensors is None:
        with adapters.disabled(model.net):
            yield
        return
    names = {id(parameter): name for name, parameter in model.net.named_parameters()}
    with ExitStack() as stack:
        for unit in _units(model):
            owned = [(p, names[id(p)]) for p in unit.parameters()]
            for handle in _swap(unit, owned, tensors):
                stack.callback(handle.remove)
        yield


def _units(model: LocalModel) -> list[nn.Module]:
    """Parts that run one after the other: each layer, and what stands before and after them. Not smaller parts, as
    some layers reach into their children's weights without calling them."""
    units: list[nn.Module] = [model.net.get_output_embeddings()]
    for child in model.decoder.children():
        units += list(child) if isinstance(child, nn.ModuleList) else [child]
    return units


def _swap(unit: nn.Module, owned: Sequence[tuple[Tensor, str]], tensors: Mapping[str, Any]) -> list[Any]:
    """Hooks that put the base's weights into a part while it runs."""
    kept: list[Tensor] = []

    def enter(*_: Any) -> None:
        kept.extend(parameter.data for parameter, _name in owned)
        for parameter, name in owned:
            parameter.data = tensors[name].to(device=parameter.device, dtype=parameter.dtype)

    def leave(*_: Any) -> None:
        for (parameter, _name), data in zip(owned, kept, strict=True):
            parameter.data = data
        kept.clear()

    return [unit.register_forward_pre_hook(enter), unit.register_forward_hook(leave, always_call=True)]


class _Files(Mapping[str, Tensor]):
    """Tensors of a folder's safetensors files, each read when it is asked for."""

    def __init__(self, folder: Path) -> None:
        from safetensors import safe_open

        self._files = [safe_open(path, "pt") for path in sorted(folder.glob("*.safetensors"))]
        self._where = {name: file for file in self._files for name in file.keys()}  # type: ignore[no-untyped-call]  # noqa: SIM118

    def __getitem__(self, name: str) -> Tensor:
        return self._where[name].get_tensor(name)  # type: ignore[no-any-return,no-untyped-call]

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)


def base_tensors(model: LocalModel) -> Mapping[str, Tensor]:
    """The base's weights by the names they have in the model."""
    files = _Files(model.folder)
    if all(name in files for name, _ in model.net.named_parameters()):
        return files
    return dict(load_net(model.folder, "cpu", model.dtype, tokenizer=False)[0].named_parameters())
