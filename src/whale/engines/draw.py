"""Drawing tokens from logits: one uniform number per token, inverse of the cumulative distribution."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whale.types import Sampling


def uniforms(seed: int, count: int) -> NDArray[np.float64]:
    """The random numbers in [0, 1) of one sample: number j decides token j, whatever else runs beside it."""
    return np.random.Generator(np.random.Philox(key=seed % (1 << 128))).random(count)


def draw(logits: Tensor, chance: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """One token per row.

    logits: (B, V). chance: (B,) float64 uniforms. Returns tokens (B,) int64 and their natural log-probabilities
    (B,) fp32 under the full softmax at temperature 1. Order of the cuts: temperature, top-k, top-p.
    """
    logits = logits.float()
    tokens = logits.argmax(-1) if sampling.temperature <= 0 else _pick(logits, chance, sampling)
    chosen = logits.gather(-1, tokens[:, None])[:, 0]
    return tokens, chosen - logits.logsumexp(-1)


def _pick(logits: Tensor, chance: Tensor, sampling: Sampling) -> Tensor:
    size = logits.shape[-1]
    count = min(sampling.top_k, size) if sampling.top_k > 0 else size
    if count < size or sampling.top_p < 1:
        values, order = logits.topk(count, -1)  # descending; a full sort only if top-p asks for it
    else:
        values, order = logits, None
    mass = torch.softmax(values.double() / sampling.temperature, -1)
    if sampling.top_p < 1:
        before = mass.cumsum(-1) - mass
        mass = mass.masked_fill(before >= sampling.top_p, 0)  # the token that crosses the line stays in
    total = mass.cumsum(-1)
    place = torch.searchsorted(total, (chance[:, None] * total[:, -1:]), right=True)
    last = (mass > 0).double().cumsum(-1).argmax(-1, keepdim=True)  # rounding may not reach past the last candidate
    place = torch.minimum(place, last)
    return (place if order is None else order.gather(-1, place))[:, 0]
