"""How much arithmetic is needed, and how fast this machine multiplies matrices: the limit of any implementation.

Counted in floating-point operations (a multiply-add is two). Only what cannot be left out counts: each distinct token
of a prefix tree once, the output layer only where something is predicted or drawn. A backward pass is two forwards.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from whale.engines.local_model import LocalModel
from whale.engines.prefix_tree import build
from whale.trainers.tree import pack
from whale.types import TrainRow

BACKWARD = 3
"""Forward and backward pass together, in forward passes."""

TRIES = 5


@dataclass(frozen=True)
class Shape:
    """Sizes of a model. body: parameters without embedding and output layer. attention: width of all query heads of
    all layers. width: of the residual stream. inner: of the feed-forward layers."""

    body: int
    attention: int
    width: int
    inner: int
    vocabulary: int


def shape_of(model: LocalModel) -> Shape:
    """Sizes of a loaded model."""
    config = model.net.config.get_text_config(decoder=True)
    ends = {id(model.head.weight), id(model.net.get_input_embeddings().weight)}
    body = sum(tensor.numel() for tensor in model.weights().values() if id(tensor) not in ends)
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    return Shape(body, config.num_hidden_layers * heads * size, config.hidden_size, inner, model.vocabulary)


def train_flops(shape: Shape, rows: Sequence[TrainRow]) -> float:
    """Operations of the gradient of an update."""
    (piece,) = pack(rows, sum(len(row.context) + len(row.sampled) for row in rows))
    tree = piece.tree
    return BACKWARD * (_body(shape, len(tree), int((tree.depth + 1).sum())) + _head(shape, len(piece.targets.nodes)))


def sample_flops(shape: Shape, contexts: Sequence[Sequence[int]], lengths: Sequence[int]) -> float:
    """Operations of sampling ``lengths[i]`` tokens after ``contexts[i]``; the last token is drawn and never fed."""
    tree = build([np.array(context, np.int64) for context in sorted(map(tuple, contexts))])
    fed = sum(lengths) - len(lengths)
    seen = sum(
        (length - 1) * len(context) + length * (length - 1) // 2
        for context, length in zip(contexts, lengths, strict=True)
    )
    drawn_from = len(set(map(tuple, contexts))) + fed
    return _body(shape, len(tree) + fed, int((tree.depth + 1).sum()) + seen) + _head(shape, drawn_from)


def matmul_rate(shape: Shape, tokens: int) -> float:
    """Operations per second of the fastest of some fp32 matrix products: the model's own shapes at ``tokens`` rows, and
    a square one."""
    shapes = [
        (tokens, shape.width, shape.inner),
        (tokens, shape.inner, shape.width),
        (tokens, shape.width, shape.vocabulary),
        (1024, 1024, 1024),
    ]
    return max(_rate(*size) for size in shapes)


def _rate(rows: int, inner: int, columns: int) -> float:
    a, b, out = torch.randn(rows, inner), torch.randn(inner, columns), torch.empty(rows, columns)
    best = float("inf")
    for _ in range(TRIES):
        began = time.perf_counter()
        torch.mm(a, b, out=out)
        best = min(best, time.perf_counter() - began)
    return 2.0 * rows * inner * columns / best


def _body(shape: Shape, tokens: int, seen: int) -> float:
    """seen: tokens that each token attends to, itself included, summed over tokens."""
    return 2.0 * shape.body * tokens + 4.0 * shape.attention * seen


def _head(shape: Shape, tokens: int) -> float:
    return 2.0 * shape.width * shape.vocabulary * tokens
