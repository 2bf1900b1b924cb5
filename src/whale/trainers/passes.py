"""How the rows of an update become forward passes: trees of distinct tokens, or padded rows where little is shared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from whale.engines.attention import TreePlan
from whale.engines.local_model import LocalModel
from whale.engines.prefix_tree import RUN_COST, Ints
from whale.trainers.tree import Piece, Targets, pack, padded
from whale.types import TrainRow

Packing = Literal["auto", "tree", "rows"]

TREE_COST = 1.1
"""What a token of a tree costs beside one of padded rows: a tree attends through a mask, rows through a causal kernel
that leaves out half of the products."""


@dataclass(frozen=True)
class Pass:
    """One forward pass. tokens: that are computed, repeated ancestors or padding included. targets: what is to be
    predicted. states: computes the (M, E) last hidden states at the nodes that predict."""

    tokens: int
    targets: Targets
    states: Callable[[], Tensor]


def passes(model: LocalModel, rows: Sequence[TrainRow], budget: int, packing: Packing = "auto") -> list[Pass]:
    """The passes of an update, in a fixed order that does not depend on the order of the rows.

    budget: tokens of a pass (more only for a single row that is longer). packing: ``tree`` only for models with full
    attention in every layer; ``auto`` takes what is less work, and rows where trees would be wrong.
    """
    if packing == "rows" or (packing == "auto" and not model.full_attention):
        return _rows(model, rows, budget)
    trees = _trees(model, rows, budget)
    if packing == "tree":
        return trees
    plain = _rows(model, rows, budget)
    return trees if _work(trees) * TREE_COST < _work(plain) else plain


def _work(of: Sequence[Pass]) -> float:
    return sum(each.tokens + RUN_COST for each in of)


def _trees(model: LocalModel, rows: Sequence[TrainRow], budget: int) -> list[Pass]:
    pieces = pack(rows, budget)
    return [Pass(len(piece.tree), piece.targets, partial(_tree_states, model, piece)) for piece in pieces]


def _rows(model: LocalModel, rows: Sequence[TrainRow], budget: int) -> list[Pass]:
    result = []
    for sequences, targets in padded(rows, budget):
        tokens = len(sequences) * max(map(len, sequences))
        result.append(Pass(tokens, targets, partial(_row_states, model, sequences, targets)))
    return result


def _tree_states(model: LocalModel, piece: Piece) -> Tensor:
    tree, device = piece.tree, model.device
    plan = TreePlan(torch.from_numpy(tree.end).to(device))
    ids, depth = (torch.from_numpy(array).to(device)[None] for array in (tree.ids, tree.depth))
    return model.hidden(ids, depth, plan)[0][torch.from_numpy(piece.targets.nodes).to(device)]


def _row_states(model: LocalModel, sequences: Sequence[Ints], targets: Targets) -> Tensor:
    """Right padding changes nothing before it, as every layer only looks back."""
    width = max(map(len, sequences))
    ids = np.zeros((len(sequences), width), np.int64)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
    batch = torch.from_numpy(ids).to(model.device)
    hidden = model.decoder(input_ids=batch, use_cache=False).last_hidden_state
    return hidden.flatten(0, 1)[torch.from_numpy(targets.nodes).to(model.device)]  # type: ignore[no-any-return]
