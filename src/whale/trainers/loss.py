"""Weighted negative log-likelihood of a pass, with logits for a few positions at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whale.engines.local_model import LocalModel
from whale.trainers.passes import Pass
from whale.trainers.tree import Targets

CHUNK = 256
"""Positions whose logits exist at the same time: 256 x 49k x 4 bytes = 50 MB, three times over."""


@dataclass(frozen=True)
class Sums:
    """What is added up over the targets of a pass. Only sampled tokens are ever targets, so prompts and tool
    results are in none of it.

    loss: of the scaled, weighted negative log-likelihood. entropy: of the next-token distributions, in nats, over
    ``tokens`` sampled tokens. gap: absolute differences between the log-probabilities here and the sampler's, over
    the ``compared`` tokens that have both.
    """

    loss: float = 0.0
    entropy: float = 0.0
    tokens: int = 0
    gap: float = 0.0
    compared: int = 0

    def __add__(self, other: Sums) -> Sums:
        return Sums(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))


def chunks(targets: Targets) -> Iterator[tuple[slice, slice]]:
    """The nodes of a chunk, and the targets that they predict."""
    for start in range(0, len(targets.nodes), CHUNK):
        low, high = np.searchsorted(targets.at, (start, start + CHUNK))
        yield slice(start, start + CHUNK), slice(int(low), int(high))


def backward(model: LocalModel, of: Pass, scale: float) -> Sums:
    """Add the gradient of ``scale * sum(weight * nll)`` of a pass to the weights.

    The head runs forward and backward chunk by chunk on a detached copy of the states; their gradient then goes
    through the body once.
    """
    states, targets = of.states(), of.targets
    leaf = states.detach().requires_grad_()
    weights = torch.from_numpy(targets.weights * scale).to(device=model.device, dtype=torch.float32)
    at, tokens = (torch.from_numpy(array).to(model.device) for array in (targets.at, targets.tokens))
    sums = Sums()
    for nodes, which in chunks(targets):
        logits = model.head(leaf[nodes]).float()
        total = logits.logsumexp(-1)
        here = at[which] - nodes.start
        nll = total[here] - logits[here, tokens[which]]
        loss = (nll * weights[which]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        sums += _figures(logits.detach(), total.detach(), nll.detach(), here, targets, which, loss.item())
    states.backward(leaf.grad)  # type: ignore[no-untyped-call]
    return sums


def _figures(
    logits: Tensor, total: Tensor, nll: Tensor, here: Tensor, targets: Targets, which: slice, loss: float
) -> Sums:
    counts: Any = targets.counts[which]
    entropy = total - (torch.softmax(logits, -1) * logits).sum(-1)
    gap = np.abs(nll.cpu().numpy() + targets.logprobs[which])
    known = ~np.isnan(gap)
    return Sums(
        loss,
        float((entropy[here].double().cpu().numpy() * counts).sum()),
        int(counts.sum()),
        float((gap * counts)[known].sum()),
        int(counts[known].sum()),
    )
