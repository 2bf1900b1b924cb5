"""Sampling with shared prefixes for models with full attention in every layer.

The prefix that all requests of a family share is computed and kept once; its keys and values meet the queries of
all rows in one matrix product. The tails of distinct prompts are computed once as a tree. Only what differs is kept
per row: tails, aligned at their right end, and sampled tokens after them, in buffers that are written in place.
Rows that finish make room, and waiting requests move in while the others go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from whale.engines.attention import attend_masked, float_mask, tree_mask
from whale.engines.ledger import Ledger
from whale.engines.local_model import LocalModel
from whale.engines.prefix_tree import Ints, PrefixTree, build, common, cut, overlaps

PREFILL_TOKENS = 512
"""Tokens of one prefill pass: large enough for the matrix products, small enough for its attention mask."""


class Prefix:
    """Keys and values of the common prefix: per layer (K, C, D). As a plan it is plain causal attention."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        self.keys.append(key[0].contiguous())
        self.values.append(value[0].contiguous())
        return attend_masked(query, key, value, None, scaling)


class Forest:
    """Plan of a tree of tails: every node sees the whole prefix, its ancestors and itself. Keeps keys and values."""

    def __init__(self, prefix: Prefix, length: int, end: Tensor) -> None:
        """length: of the prefix. end: (N,) int64, see ``attention.tree_mask``."""
        self._prefix = prefix
        self._length = length
        self._mask = float_mask(tree_mask(end, length))
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        self.keys.append(key[0])
        self.values.append(value[0])
        if self._length:
            key = torch.cat([self._prefix.keys[layer][None], key], 2)
            value = torch.cat([self._prefix.values[layer][None], value], 2)
        return attend_masked(query, key, value, self._mask.to(query.dtype), scaling)


class Branches:
    """Keys and values of the running rows: per layer (R, K, T, D), rows ``[0, live)`` and columns up to ``column`` in
    use. As a plan it is one decoding step of all of them."""

    def __init__(self, prefix: Prefix, length: int, rows: int, columns: int) -> None:
        """length: of the prefix. rows, columns: the most that is ever needed."""
        self._prefix, self._length = prefix, length
        self.rows, self.columns = rows, columns
        self.live, self.column = 0, 0
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._start = torch.zeros(0, dtype=torch.int64)
        self._bias: Tensor | None = None

    def add(self, forest: Forest, paths: Sequence[Ints]) -> None:
        """Append one row per path, a path being the nodes of ``forest`` that make up its tail. The caller has made
        room: ``arrange`` with the longest tail of all the rows to be added."""
        width = max(map(len, paths))
        index = np.zeros((len(paths), width), np.int64)
        for row, path in enumerate(paths):
            index[row, width - len(path) :] = path
        slots = slice(self.live, self.live + len(paths))
        nodes = torch.from_numpy(index).to(forest.keys[0].device)
        if not self._keys:
            self._allocate(forest.keys)
        for buffers, sources in ((self._keys, forest.keys), (self._values, forest.values)):
            for buffer, source in zip(buffers, sources, strict=True):
                buffer[slots, :, self.column - width : self.column] = source[:, nodes].transpose(0, 1)
        self._start = torch.cat([self._start, self.column - torch.tensor([len(path) for path in paths])])
        self.live += len(paths)
        self._bias = None

    def arrange(self, need: int = 0) -> None:
        """Drop the columns on the left that no row uses, and have at least ``need`` columns left of the next one."""
        low = int(self._start.min()) if self.live else self.column
        width = self.column - low
        column = max(width, need)
        if width and column != self.column:
            for buffer in (*self._keys, *self._values):
                buffer[: self.live, :, column - width : column] = buffer[: self.live, :, low : self.column].clone()
        self._start = self._start - low + column - width
        self.column, self._bias = column, None

    def drop(self, going: Tensor) -> Tensor:
        """Drop the rows that are not ``going`` (live,) bool, by moving rows from the end into their places: what is
        copied is as much as what ends. Returns which old row each remaining one is."""
        remain = int(going.sum())
        order = torch.arange(self.live)
        holes, movers = torch.nonzero(~going[:remain])[:, 0], torch.nonzero(going[remain:])[:, 0] + remain
        order[holes] = movers
        if len(holes):
            into, source = holes.to(self._keys[0].device), movers.to(self._keys[0].device)
            for buffer in (*self._keys, *self._values):
                buffer[into, :, : self.column] = buffer[source, :, : self.column]
        order = order[:remain]
        self._start, self.live, self._bias = self._start[order], remain, None
        return order

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        rows, heads, _, size = query.shape
        kinds = key.shape[1]
        keys, values = self._append(self._keys[layer], key), self._append(self._values[layer], value)
        query = query.reshape(rows, kinds, heads // kinds, size)
        flat = query.flatten(0, 1)  # (rows * K, G, D)
        own = torch.baddbmm(self._mask(flat), flat, keys.transpose(1, 2), alpha=scaling)
        if not self._length:
            return torch.bmm(own.softmax(-1), values).view(rows, 1, heads, size)
        together = query.transpose(0, 1).reshape(kinds, -1, size)  # (K, rows * G, D): one product for all rows
        shared = torch.bmm(together, self._prefix.keys[layer].transpose(1, 2)).mul_(scaling)
        shared = shared.view(kinds, rows, -1, self._length).transpose(0, 1)
        weight = torch.cat([shared, own.view(rows, kinds, -1, self.column + 1)], -1).softmax(-1)
        mine = torch.bmm(weight[..., self._length :].flatten(0, 1), values).view(rows, kinds, -1, size)
        weight = weight[..., : self._length].transpose(0, 1).reshape(kinds, -1, self._length)
        common_part = torch.bmm(weight, self._prefix.values[layer]).view(kinds, rows, -1, size).transpose(0, 1)
        return (mine + common_part).view(rows, 1, heads, size)

    def advance(self) -> None:
        """Count the column that ``attend`` wrote in every layer."""
        self.column += 1

    def lengths(self) -> Tensor:
        """(live,) int64: tokens of each row so far, prefix included; the position of its next token."""
        return self._length + self.column - self._start

    def _append(self, buffer: Tensor, fresh: Tensor) -> Tensor:
        """Write one token per row at ``column``; returns the rows' (rows * K, column + 1, D)."""
        buffer[: self.live, :, self.column] = fresh[:, :, 0]
        return buffer[: self.live].flatten(0, 1)[:, : self.column + 1]

    def _mask(self, like: Tensor) -> Tensor:
        """(rows * K, 1, column + 1): -inf left of a row's tail. Built once per step and layout, not once per layer."""
        if self._bias is None:
            hidden = torch.arange(self.columns)[None] < self._start[:, None]
            bias = torch.zeros(hidden.shape, dtype=like.dtype).masked_fill_(hidden, float("-inf")).to(like.device)
            self._bias = bias[:, None].repeat_interleave(len(like) // self.live, 0)
        return self._bias[:, :, : self.column + 1]

    def _allocate(self, sources: Sequence[Tensor]) -> None:
        for source in sources:
            shape = (self.rows, source.shape[0], self.columns, source.shape[2])
            # Zeros, not empty: places left of a tail are read and masked, and a NaN there would survive the mask.
            self._keys.append(source.new_zeros(shape))
            self._values.append(source.new_zeros(shape))


class Family:
    """Requests that are sampled together, sorted by context."""

    def __init__(self, model: LocalModel, ledger: Ledger, contexts: Sequence[Ints], numbers: Sequence[int]) -> None:
        """contexts: of each request, sorted. numbers: of each request, as the ledger knows it."""
        self._model, self._ledger = model, ledger
        self._contexts, self._numbers = contexts, numbers
        self._length = min(common(contexts[0], contexts[-1]), min(map(len, contexts)) - 1)
        self._prefix = Prefix()

    def run(self, limits: Sequence[int], wave_rows: int, wave_bytes: int) -> None:
        """Sample every request to its end. limits: most tokens of each. The rows in flight are bounded by both
        ``wave_rows`` and, through the bytes a row may come to need, ``wave_bytes``."""
        columns = max(len(c) - self._length + limit for c, limit in zip(self._contexts, limits, strict=True))
        room = max(1, min(len(self._numbers), wave_rows, wave_bytes // (columns * self._model.token_bytes)))
        if self._length:
            self._forward(self._contexts[0][: self._length], np.arange(self._length), self._prefix)
        branches = Branches(self._prefix, self._length, room, columns)
        waiting = deque(range(len(self._numbers)))
        rows = tokens = torch.zeros(0, dtype=torch.int64)
        while waiting or len(rows):
            # Moving in is a pass of its own, so wait until it is worth one.
            if waiting and (room - len(rows) >= max(1, room // 4)):
                batch = [waiting.popleft() for _ in range(min(room - len(rows), len(waiting)))]
                fresh, first = self._admit(branches, batch)
                rows, tokens = torch.cat([rows, fresh]), torch.cat([tokens, first])
            if len(rows):
                rows, tokens = self._step(branches, rows, tokens)

    def _step(self, branches: Branches, rows: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Feed one token of every running row and draw the next; returns the rows that go on and their tokens."""
        device = self._model.device
        if branches.column + 1 > branches.columns:
            branches.arrange()
        position = branches.lengths()
        hidden = self._model.hidden(tokens[:, None].to(device), position[:, None].to(device), branches)
        branches.advance()
        tokens, going = self._ledger.take(rows, hidden[:, 0])
        if bool(going.all()):
            return rows, tokens
        order = branches.drop(going)
        return rows[order], tokens[order]

    def _admit(self, branches: Branches, batch: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Compute the tails of waiting requests, draw their first tokens, and give a row to those that go on."""
        tails = [self._contexts[i][self._length :] for i in batch]
        branches.arrange(max(map(len, tails)))
        shared = overlaps(tails)
        rows, tokens = [], []
        for start, stop in cut([len(t) for t in tails], shared, PREFILL_TOKENS):
            tree = build(tails[start:stop], shared[start:stop])
            forest = Forest(self._prefix, self._length, torch.from_numpy(tree.end).to(self._model.device))
            hidden = self._forward(tree.ids, tree.depth + self._length, forest)
            numbers = torch.tensor([self._numbers[i] for i in batch[start:stop]])
            first, going = self._ledger.take(numbers, *_last_states(hidden, tree))
            if bool(going.any()):
                branches.add(forest, [path for path, goes in zip(tree.paths, going.tolist(), strict=True) if goes])
            rows.append(numbers[going])
            tokens.append(first[going])
        return torch.cat(rows), torch.cat(tokens)

    def _forward(self, ids: Ints, positions: Ints, plan: Prefix | Forest) -> Tensor:
        """(T, E) last hidden states of one sequence or tree."""
        device = self._model.device
        return self._model.hidden(
            torch.from_numpy(ids).to(device)[None], torch.from_numpy(positions).to(device)[None], plan
        )[0]


def _last_states(hidden: Tensor, tree: PrefixTree) -> tuple[Tensor, Tensor]:
    """States at the ends of the distinct paths, and which of them each path ends in."""
    nodes, which = torch.unique(torch.tensor([path[-1] for path in tree.paths]), return_inverse=True)
    return hidden[nodes.to(hidden.device)], which
