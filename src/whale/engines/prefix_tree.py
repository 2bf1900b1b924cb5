"""Token sequences as a prefix tree in depth-first order: each distinct token once. Plain numpy, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

RUN_COST = 16
"""What one more run costs, in tokens: a pass over the weights that is the same for one token and for many."""


@dataclass(frozen=True)
class PrefixTree:
    """N nodes, parents before children.

    ids: (N,) token of each node. depth: (N,) its position in every sequence through it. end: (N,) one past its
    last descendant, so that node q has ancestor k exactly when ``k <= q < end[k]``. paths: for each sequence the
    nodes it runs through, in the order given.
    """

    ids: Ints
    depth: Ints
    end: Ints
    paths: list[Ints]

    def __len__(self) -> int:
        return len(self.ids)


def common(first: Ints, second: Ints) -> int:
    """Length of the common prefix of two id arrays."""
    size = min(len(first), len(second))
    differs = np.flatnonzero(first[:size] != second[:size])
    return int(differs[0]) if len(differs) else size


def overlaps(sequences: Sequence[Ints]) -> list[int]:
    """For each sequence the length of the prefix it shares with the one before it (0 for the first)."""
    return [0, *(common(a, b) for a, b in pairwise(sequences))][: len(sequences)]


def build(sequences: Sequence[Ints], shared: Sequence[int] | None = None) -> PrefixTree:
    """The tree of sequences that are sorted (as tuples). shared: ``overlaps(sequences)``, if known already.

    Sorting puts sequences with a common prefix side by side, so each one only adds the nodes past its overlap
    with the one before, and the nodes come out in depth-first order without a dictionary.
    """
    shared = overlaps(sequences) if shared is None else shared
    parts: list[Ints] = []
    depths: list[Ints] = []
    paths: list[Ints] = []
    ends: list[tuple[Ints, int]] = []
    size, path = 0, np.empty(0, np.int64)
    for row, (sequence, overlap) in enumerate(zip(sequences, shared, strict=True)):
        overlap = overlap if row else 0
        ends.append((path[overlap:], size))
        fresh = len(sequence) - overlap
        parts.append(sequence[overlap:])
        depths.append(np.arange(overlap, len(sequence)))
        path = np.concatenate([path[:overlap], np.arange(size, size + fresh)])
        paths.append(path)
        size += fresh
    ends.append((path, size))
    end = np.empty(size, np.int64)
    for nodes, stop in ends:
        end[nodes] = stop
    return PrefixTree(np.concatenate(parts), np.concatenate(depths), end, paths)


def cut(lengths: Sequence[int], shared: Sequence[int], budget: int) -> list[tuple[int, int]]:
    """Split sorted sequences into runs ``[start, stop)`` of at most ``budget`` distinct tokens each, so that the
    prefixes repeated at the cuts are as few tokens as possible. A sequence longer than the budget stands alone.

    lengths: tokens of each sequence. shared: its overlap with the one before.
    """
    best = [0.0] * (len(lengths) + 1)  # least cost of cutting the first n sequences
    start_of = [0] * (len(lengths) + 1)
    for stop in range(1, len(lengths) + 1):
        best[stop] = float("inf")
        below = 0  # distinct tokens of the run without the first sequence's own overlap
        for start in range(stop - 1, -1, -1):
            if below + lengths[start] > budget and start < stop - 1:
                if below > budget:
                    break  # it only grows from here
            elif best[start] + shared[start] + RUN_COST < best[stop]:
                best[stop], start_of[stop] = best[start] + shared[start] + RUN_COST, start
            below += lengths[start] - shared[start]
    runs, stop = [], len(lengths)
    while stop:
        runs.append((start_of[stop], stop))
        stop = start_of[stop]
    return runs[::-1]


FAMILY_ROWS = 32
FAMILY_GAIN = 64


def families(shared: Sequence[int]) -> list[tuple[int, int]]:
    """Split sorted sequences into runs ``[start, stop)`` that are worth sampling apart: each of at least
    ``FAMILY_ROWS`` sequences and with a common prefix ``FAMILY_GAIN`` tokens longer than that of all together.

    shared: overlap of each sequence with the one before it.
    """
    if not shared:
        return []
    runs, todo = [], [(0, len(shared))]
    while todo:
        start, stop = todo.pop()
        parts = _parts(shared, start, stop)
        if len(parts) > 1:
            todo.extend(reversed(parts))
        else:
            runs.append((start, stop))
    return runs


def _parts(shared: Sequence[int], start: int, stop: int) -> list[tuple[int, int]]:
    least = min(shared[start + 1 : stop], default=0)
    edges = [start, *(i for i in range(start + 1, stop) if shared[i] == least), stop]
    parts = list(pairwise(edges))
    for a, b in parts:
        if b - a < FAMILY_ROWS or min(shared[a + 1 : b], default=0) < least + FAMILY_GAIN:
            return [(start, stop)]
    return parts
