"""Weighted negative log-likelihood of a piece, with logits for a few positions at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whale.engines.attention import TreePlan
from whale.engines.local_model import LocalModel
from whale.engines.prefix_tree import Ints
from whale.trainers.tree import Piece, Targets

CHUNK = 256
"""Positions whose logits exist at the same time: 256 x 49k x 4 bytes = 50 MB, three times over."""


@dataclass(frozen=True)
class Sums:
    """What is added up over the targets of a piece. Only sampled tokens are ever targets, so prompts and tool
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


def backward_piece(model: LocalModel, piece: Piece, scale: float) -> Sums:
    """Add the gradient of ``scale * sum(weight * nll)`` of a piece to the weights.

    Only for models with full attention in every layer.
    """
    return _backward_targets(model, piece_states(model, piece), piece.targets, scale)


def backward_padded(model: LocalModel, sequences: list[Ints], targets: Targets, scale: float) -> Sums:
    """The same for right-padded sequences, one row each: for models whose layers cannot skip between branches.

    Right padding changes nothing before it, as every layer only looks back. ``targets.nodes`` number the positions
    row by row, ``width`` (the longest sequence) to a row.
    """
    return _backward_targets(model, padded_states(model, sequences, targets), targets, scale)


def piece_states(model: LocalModel, piece: Piece) -> Tensor:
    """(M, E) last hidden states at the nodes that predict."""
    tree, device = piece.tree, model.device
    plan = TreePlan(torch.from_numpy(tree.end).to(device))
    ids, depth = (torch.from_numpy(array).to(device)[None] for array in (tree.ids, tree.depth))
    return model.hidden(ids, depth, plan)[0][torch.from_numpy(piece.targets.nodes).to(device)]


def padded_states(model: LocalModel, sequences: list[Ints], targets: Targets) -> Tensor:
    """(M, E) last hidden states at the positions that predict."""
    width = max(map(len, sequences))
    ids = np.zeros((len(sequences), width), np.int64)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
    batch = torch.from_numpy(ids).to(model.device)
    hidden = model.decoder(input_ids=batch, use_cache=False).last_hidden_state
    return hidden.flatten(0, 1)[torch.from_numpy(targets.nodes).to(model.device)]  # type: ignore[no-any-return]


def chunks(targets: Targets) -> Iterator[tuple[slice, slice]]:
    """The nodes of a chunk, and the targets that they predict."""
    for start in range(0, len(targets.nodes), CHUNK):
        low, high = np.searchsorted(targets.at, (start, start + CHUNK))
        yield slice(start, start + CHUNK), slice(int(low), int(high))


def _backward_targets(model: LocalModel, states: Tensor, targets: Targets, scale: float) -> Sums:
    """The head runs forward and backward chunk by chunk on a detached copy of the states; their gradient then goes
    through the body once."""
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
