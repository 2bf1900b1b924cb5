"""Weighted negative log-likelihood of a piece, with logits for a few positions at a time."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from whale.engines.attention import TreePlan
from whale.engines.local_model import LocalModel
from whale.engines.prefix_tree import Ints
from whale.trainers.tree import Piece, Targets

CHUNK = 256
"""Positions whose logits exist at the same time: 256 x 49k x 4 bytes = 50 MB, three times over."""


def backward_piece(model: LocalModel, piece: Piece, scale: float) -> float:
    """Add the gradient of ``scale * sum(weight * nll)`` of a piece to the weights; returns that loss.

    Only for models with full attention in every layer.
    """
    tree, device = piece.tree, model.device
    plan = TreePlan(torch.from_numpy(tree.end).to(device))
    ids, depth = (torch.from_numpy(array).to(device)[None] for array in (tree.ids, tree.depth))
    return _backward_targets(model, model.hidden(ids, depth, plan)[0], piece.targets, scale)


def backward_padded(model: LocalModel, sequences: list[Ints], targets: Targets, scale: float) -> float:
    """The same for right-padded sequences, one row each: for models whose layers cannot skip between branches.

    Right padding changes nothing before it, as every layer only looks back. ``targets.nodes`` number the positions
    row by row, ``width`` (the longest sequence) to a row.
    """
    width = max(map(len, sequences))
    ids = np.zeros((len(sequences), width), np.int64)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
    batch = torch.from_numpy(ids).to(model.device)
    hidden = model.decoder(input_ids=batch, use_cache=False).last_hidden_state
    return _backward_targets(model, hidden.flatten(0, 1), targets, scale)


def _backward_targets(model: LocalModel, hidden: Tensor, targets: Targets, scale: float) -> float:
    """hidden: (N, E). The head runs forward and backward chunk by chunk on a detached copy of the states at the
    targets; their gradient then goes through the body once."""
    device = hidden.device
    states = hidden[torch.from_numpy(targets.nodes).to(device)]
    leaf = states.detach().requires_grad_()
    weights = torch.from_numpy(targets.weights * scale).to(device=device, dtype=torch.float32)
    tokens, at = torch.from_numpy(targets.tokens).to(device), torch.from_numpy(targets.at).to(device)
    loss = 0.0
    for start in range(0, len(leaf), CHUNK):
        low, high = np.searchsorted(targets.at, (start, start + CHUNK))
        logits = model.head(leaf[start : start + CHUNK]).float()
        nll = logits.logsumexp(-1)[at[low:high] - start] - logits[at[low:high] - start, tokens[low:high]]
        part = (nll * weights[low:high]).sum()
        part.backward()  # type: ignore[no-untyped-call]
        loss += part.item()
    states.backward(leaf.grad)  # type: ignore[no-untyped-call]
    return loss
