"""Low-rank adapters (LoRA) inside a model, through peft.

They stay apart from the base weights for as long as a run goes on: training, sampling and scoring compute with the
same numbers. Only an export merges them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from whale.errors import EngineError

NAME = "default"
"""Name that peft knows the adapter by; it is part of parameter names in memory, not of those in files."""

PREFIX = "base_model.model."
"""What peft puts before every tensor name in ``adapter_model.safetensors``."""


@dataclass(frozen=True)
class Adapter:
    """What is added to a model: to each linear layer W of ``targets`` the product ``alpha / rank * B A``.

    targets: last parts of layer names, or ``all-linear``: every linear layer but the output layer. seed: of the
    random A; B starts at zero, so the fresh adapter changes nothing. There is no dropout.
    """

    rank: int
    alpha: int = 16
    targets: tuple[str, ...] | Literal["all-linear"] = "all-linear"
    seed: int = 0


def inject(net: Any, adapter: Adapter) -> None:
    """Put a fresh adapter into a transformers model in place and freeze everything else. Adapter weights are fp32
    whatever the base is: their steps are too small for less. Leaves the global random state as it was.

    Raises EngineError for a rank or alpha below 1 and for targets that the model has not.
    """
    from peft import inject_adapter_in_model

    if adapter.rank < 1 or adapter.alpha < 1:
        found = f"lora_rank {adapter.rank}, lora_alpha {adapter.alpha}"
        raise EngineError(f"trainer: {found}; an adapter needs both to be at least 1 (lora_rank 0 trains all weights)")
    devices = [net.device] if net.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        inject_adapter_in_model(_peft_config(net, adapter), net, adapter_name=NAME)
    for name, parameter in net.named_parameters():
        if ".lora_" in name:
            parameter.data = parameter.data.float()
    net.eval()
    initialise({name: p for name, p in net.named_parameters() if p.requires_grad}, adapter.seed)


@torch.no_grad()
def initialise(weights: Mapping[str, Tensor], seed: int) -> None:
    """Fresh values: A uniform within ``1 / sqrt(inputs)`` (peft's own choice) from ``seed`` alone, B zero."""
    generator = torch.Generator().manual_seed(seed)
    for name in sorted(weights):
        tensor = weights[name]
        if ".lora_A." in name:
            bound = tensor.shape[1] ** -0.5
            tensor.copy_(torch.empty(tensor.shape).uniform_(-bound, bound, generator=generator))
        else:
            tensor.zero_()


def file_name(name: str) -> str:
    """A tensor's name in a checkpoint: peft's for adapter tensors, its own for all others."""
    return PREFIX + name.replace(f".{NAME}.", ".") if ".lora_" in name else name


def describe(net: Any, adapter: Adapter, base: str, folder: Path) -> None:
    """Write peft's ``adapter_config.json``. base: name or folder of the model that the adapter belongs to."""
    config = _peft_config(net, adapter)
    config.base_model_name_or_path = base
    config.inference_mode = True
    config.save_pretrained(str(folder))


def merged(net: Any) -> dict[str, Tensor]:
    """The weights that a model without adapters needs to compute the same: names of the plain model, changed
    tensors in fp32, the others as they are. Works on a model without adapters, too."""
    layers = {name: module for name, module in net.named_modules() if hasattr(module, "base_layer")}
    tensors = {}
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            owner = name.rpartition(".base_layer.weight")[0]
            if owner in layers:
                tensors[f"{owner}.weight"] = parameter.float() + layers[owner].get_delta_weight(NAME).float()
            elif ".lora_" not in name:
                tensors[name.replace(".base_layer.", ".")] = parameter.detach()
    return tensors


def _peft_config(net: Any, adapter: Adapter) -> Any:
    from peft import LoraConfig, TaskType

    return LoraConfig(
        r=adapter.rank, lora_alpha=adapter.alpha, lora_dropout=0.0, target_modules=_targets(net, adapter),
        task_type=TaskType.CAUSAL_LM,
    )  # fmt: skip


def _targets(net: Any, adapter: Adapter) -> list[str]:
    """Last parts of the names of the layers to adapt."""
    output = net.get_output_embeddings()
    linear = {
        name.removesuffix(".base_layer").rpartition(".")[2]
        for name, module in net.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not output and ".lora_" not in name
    }
    if adapter.targets == "all-linear":
        return sorted(linear)
    unknown = sorted(set(adapter.targets) - linear)
    if unknown or not adapter.targets:
        raise EngineError(
            f"trainer.lora_targets: {', '.join(unknown) or 'an empty list'} names no linear layer that can take an "
            f"adapter; choose from {', '.join(sorted(linear))} or 'all-linear'"
        )
    return sorted(adapter.targets)


@contextmanager
def disabled(net: Any) -> Iterator[None]:
    """Inside, the model computes without its adapter: as its base."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [module for module in net.modules() if isinstance(module, BaseTunerLayer)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
