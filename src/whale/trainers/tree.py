"""The rows of one update as prefix trees: each distinct token of a piece is computed once.

Rows of one harness share its instructions, rows of one task share the question, and identical rows share
everything; their gradients are sums, so computing a shared token once and letting every target pull at it gives
the same gradient as computing it in each row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whale.engines.prefix_tree import Ints, PrefixTree, build, cut, overlaps
from whale.types import TrainRow


@dataclass(frozen=True)
class Targets:
    """What is to be predicted where.

    nodes: (M,) distinct nodes that predict. at: (T,) index into ``nodes``, non-decreasing. tokens: (T,) the token to
    predict. weights: (T,) what its negative log-likelihood counts; equal targets are merged, their weights added.
    counts: (T,) how many sampled tokens it stands for. logprobs: (T,) mean log-probability that the sampler gave
    them, NaN if it is not to be compared.
    """

    nodes: Ints
    at: Ints
    tokens: Ints
    weights: NDArray[np.float64]
    counts: Ints
    logprobs: NDArray[np.float64]


@dataclass(frozen=True)
class Piece:
    """A part of the update that is one forward and one backward pass."""

    tree: PrefixTree
    targets: Targets


def pack(rows: Sequence[TrainRow], budget: int) -> list[Piece]:
    """Pieces of at most ``budget`` distinct tokens each (more only for a single row that is longer), in a fixed
    order that does not depend on the order of the rows. Subtrees that are cut off repeat their ancestors.

    The last sampled token of a row is only ever predicted, so it is no node. Rows have to be valid (not empty).
    """
    ordered = sorted(rows, key=lambda row: (row.context + row.sampled[:-1], row.sampled[-1], row.weights))
    sequences = [np.array(row.context + row.sampled[:-1], np.int64) for row in ordered]
    shared = overlaps(sequences)
    runs = cut([len(s) for s in sequences], shared, budget)
    return [_piece(ordered[a:b], sequences[a:b], shared[a:b]) for a, b in runs]


def _piece(rows: Sequence[TrainRow], sequences: Sequence[Ints], shared: Sequence[int]) -> Piece:
    tree = build(sequences, shared)
    return Piece(tree, _targets(rows, tree.paths))


def _targets(rows: Sequence[TrainRow], paths: Sequence[Ints]) -> Targets:
    """paths: for each row the node of each token of its context and of all but its last sampled token."""
    nodes = np.concatenate([path[len(row.context) - 1 :] for row, path in zip(rows, paths, strict=True)])
    tokens = np.concatenate([np.array(row.sampled, np.int64) for row in rows])
    pairs, where = np.unique(np.stack([nodes, tokens]), axis=1, return_inverse=True)
    distinct, at = np.unique(pairs[0], return_inverse=True)
    counts = np.bincount(where.ravel())

    def total(values: list[tuple[float, ...]]) -> NDArray[np.float64]:
        return np.bincount(where.ravel(), weights=np.concatenate([np.array(v) for v in values])).astype(np.float64)

    weights = total([row.weights for row in rows])
    logprobs = total([row.logprobs or (math.nan,) * len(row.sampled) for row in rows]) / counts
    return Targets(distinct, at.astype(np.int64).ravel(), pairs[1], weights, counts, logprobs)


def padded(rows: Sequence[TrainRow], budget: int) -> list[tuple[list[Ints], Targets]]:
    """Batches of rows of similar length, at most ``budget`` tokens each with padding (or one row): for models that
    cannot share prefixes. ``nodes`` number the positions of a batch row by row, its longest row to a line."""
    ordered = sorted(rows, key=lambda row: (len(row.context) + len(row.sampled), row.context, row.sampled))
    batches: list[list[TrainRow]] = []
    for row in ordered:
        width = len(row.context) + len(row.sampled) - 1
        if not batches or (len(batches[-1]) + 1) * width > budget:
            batches.append([])
        batches[-1].append(row)
    return [_batch(batch) for batch in batches]


def _batch(rows: Sequence[TrainRow]) -> tuple[list[Ints], Targets]:
    sequences = [np.array(row.context + row.sampled[:-1], np.int64) for row in rows]
    width = max(map(len, sequences))
    lines = [number * width + np.arange(len(sequence)) for number, sequence in enumerate(sequences)]
    return sequences, _targets(rows, lines)
