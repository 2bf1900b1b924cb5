"""Drawing tokens from logits: one uniform number per token, inverse of the cumulative distribution."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whale.types import Sampling

BLOCK = 256
"""Tokens whose masses are added up before the running total is taken."""


def uniforms(seed: int, count: int) -> NDArray[np.float64]:
    """The random numbers in [0, 1) of one sample: number j decides token j, whatever else runs beside it."""
    return np.random.Generator(np.random.Philox(key=seed % (1 << 128))).random(count)


def draw(logits: Tensor, chance: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """One token per row.

    logits: (B, V). chance: (B,) float64 uniforms. Returns tokens (B,) int64 and their natural log-probabilities
    (B,) fp32 under the full softmax at temperature 1. Order of the cuts: temperature, top-k, top-p.
    """
    logits = logits.float()
    top = logits.amax(-1, keepdim=True)
    mass = (logits - top).exp_()
    if sampling.temperature <= 0:
        tokens = logits.argmax(-1)
    elif 0 < sampling.top_k < logits.shape[-1] or sampling.top_p < 1:
        tokens = _pick_sorted(logits, chance, sampling)
    else:
        warm = mass if sampling.temperature == 1 else ((logits - top) / sampling.temperature).exp_()
        tokens = pick(warm, chance)
    return tokens, (logits.gather(-1, tokens[:, None]) - top - mass.sum(-1, keepdim=True).log())[:, 0]


def pick(mass: Tensor, chance: Tensor) -> Tensor:
    """The place in each row where the running total of its masses passes ``chance`` of the whole.

    mass: (B, V) fp32, not negative, not all 0. chance: (B,) float64 in [0, 1). Never a place of mass 0. Totals of
    blocks first, then inside one block: a running total over a whole vocabulary would cost as much as its logits.
    """
    blocks = torch.nn.functional.pad(mass, (0, -mass.shape[-1] % BLOCK)).view(len(mass), -1, BLOCK)
    totals = blocks.sum(-1).double().cumsum(-1)
    aim = chance[:, None] * totals[:, -1:]
    block = _first_above(totals, aim)
    before = torch.where(block > 0, totals.gather(-1, (block - 1).clamp(min=0)), 0.0)
    inside = blocks.gather(1, block[..., None].expand(-1, -1, BLOCK))[:, 0].double().cumsum(-1)
    return (block * BLOCK + _first_above(inside, aim - before))[:, 0]


def _first_above(totals: Tensor, aim: Tensor) -> Tensor:
    """(B, 1): the first place where non-decreasing ``totals`` (B, N) exceed ``aim`` (B, 1), or the last place where
    they grow if rounding keeps them below."""
    place = torch.searchsorted(totals, aim, right=True)
    last = torch.searchsorted(totals, totals[:, -1:].contiguous())
    return torch.minimum(place, last).clamp(max=totals.shape[-1] - 1)  # nothing else holds if there are NaNs


def _pick_sorted(logits: Tensor, chance: Tensor, sampling: Sampling) -> Tensor:
    """With top-k or top-p, over the most likely tokens in descending order."""
    count = min(sampling.top_k, logits.shape[-1]) if sampling.top_k > 0 else logits.shape[-1]
    values, order = logits.topk(count, -1)
    mass = torch.softmax(values.double() / sampling.temperature, -1)
    before = mass.cumsum(-1) - mass
    mass = mass.masked_fill(before >= sampling.top_p, 0)  # the token that crosses the line stays in
    total = mass.cumsum(-1)
    return order.gather(-1, _first_above(total, chance[:, None] * total[:, -1:]))[:, 0]
