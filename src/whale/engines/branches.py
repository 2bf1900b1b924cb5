"""Keys and values of samples that share prefixes, and how each kind of pass attends to them.

The prefix that all requests of a family share is kept once; its keys and values meet the queries of all rows in one
matrix product. The tails of distinct prompts are computed once as a tree. Only what differs is kept per row: tails,
aligned at their right end, and sampled tokens after them, in buffers that are written in place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from whale.engines.attention import attend_masked, float_mask, tree_mask
from whale.engines.prefix_tree import Ints


class Prefix:
    """Keys and values of the common prefix: per layer (K, C, D). As a plan it is plain causal attention."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    @property
    def bytes(self) -> int:
        """Memory of all of them."""
        return sum(part.nbytes for part in (*self.keys, *self.values))

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
        keys, values = self._append(self._keys[layer], key), self._append(self._values[layer], value)
        return attend_beside(self._prefix, layer, query, keys, values, self._mask(query, keys), scaling)

    def advance(self) -> None:
        """Count the column that ``attend`` wrote in every layer."""
        self.column += 1

    def lengths(self) -> Tensor:
        """(live,) int64: tokens of each row so far, prefix included; the position of its next token."""
        return self._length + self.column - self._start

    def admit(self, states: Sequence[Tensor]) -> None:
        """Append one row per state: (2 * layers, K, T, D) keys, then values, of a tail, as ``take_out`` gives them.
        The caller has made room."""
        if not self._keys:
            self._allocate(list(states[0][: len(states[0]) // 2]))
        for number, state in enumerate(states, self.live):
            for buffer, source in zip((*self._keys, *self._values), state, strict=True):
                buffer[number, :, self.column - state.shape[2] : self.column] = source
        self._start = torch.cat([self._start, self.column - torch.tensor([state.shape[2] for state in states])])
        self.live += len(states)
        self._bias = None

    def take_out(self, row: int) -> Tensor:
        """A copy of a row's tail: (2 * layers, K, T, D) keys, then values."""
        columns = slice(int(self._start[row]), self.column)
        return torch.stack([buffer[row, :, columns] for buffer in (*self._keys, *self._values)])

    def _append(self, buffer: Tensor, fresh: Tensor) -> Tensor:
        """Write one token per row at ``column``; returns the rows' (R, K, column + 1, D)."""
        buffer[: self.live, :, self.column] = fresh[:, :, 0]
        return buffer[: self.live, :, : self.column + 1]

    def _mask(self, query: Tensor, keys: Tensor) -> Tensor:
        """(R * K, 1, column + 1): -inf left of a row's tail. Built once per step and layout, not once per layer."""
        if self._bias is None:
            hidden = torch.arange(self.columns)[None] < self._start[:, None]
            bias = torch.zeros(hidden.shape, dtype=query.dtype).masked_fill_(hidden, float("-inf")).to(query.device)
            self._bias = bias[:, None].repeat_interleave(keys.shape[1], 0)
        return self._bias[:, :, : self.column + 1]

    def _allocate(self, sources: Sequence[Tensor]) -> None:
        for source in sources:
            shape = (self.rows, source.shape[0], self.columns, source.shape[2])
            # Zeros, not empty: places left of a tail are read and masked, and a NaN there would survive the mask.
            self._keys.append(source.new_zeros(shape))
            self._values.append(source.new_zeros(shape))


class Extension:
    """Plan of a pass that feeds the last ``width`` tokens of the newest rows of some branches, whose keys and values
    before these are there. Rows with shorter tails are padded on the left, with tokens that nothing looks at."""

    def __init__(self, branches: Branches, first: int, width: int) -> None:
        """first: the rows from this one on are fed."""
        self._branches, self._rows, self._width = branches, slice(first, branches.live), width
        self._bias: Tensor | None = None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        fed = slice(self._branches.column - self._width, self._branches.column)
        keys, values = (kept[layer][self._rows] for kept in (self._branches._keys, self._branches._values))
        keys[:, :, fed], values[:, :, fed] = key, value
        keys, values = keys[:, :, : self._branches.column], values[:, :, : self._branches.column]
        if self._bias is None:
            self._bias = self._mask(query, key.shape[1])
        return attend_beside(self._branches._prefix, layer, query, keys, values, self._bias, scaling)

    def _mask(self, query: Tensor, kinds: int) -> Tensor:
        """(R * K, G * T, column): a token sees its row's tail up to itself. A pad sees itself, as seeing nothing
        would give numbers that are none."""
        column = self._branches.column
        own = torch.arange(column - self._width, column)[:, None]
        place = torch.arange(column)
        seen = (place <= own) & (place >= self._branches._start[self._rows][:, None, None]) | (place == own)
        bias = float_mask(seen).to(device=query.device, dtype=query.dtype)
        return bias.repeat_interleave(kinds, 0).repeat(1, query.shape[1] // kinds, 1)


def attend_beside(
    prefix: Prefix, layer: int, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, scaling: float
) -> Tensor:
    """Attention of rows to a prefix that they share and to keys and values of their own -> (R, T, H, D).

    query: (R, H, T, D). keys, values: (R, K, C, D). bias: added to the own part's scores, broadcast to
    (R * K, G * T, C). The prefix meets the queries of all rows in one product.
    """
    rows, heads, steps, size = query.shape
    kinds = keys.shape[1]
    query = query.reshape(rows, kinds, -1, size)  # a key/value head's query heads, one below the other
    own = torch.baddbmm(bias, query.flatten(0, 1), keys.flatten(0, 1).transpose(1, 2), alpha=scaling)
    if not prefix.keys:
        out = torch.bmm(own.softmax(-1), values.flatten(0, 1))
    else:
        length = prefix.keys[layer].shape[1]
        together = query.transpose(0, 1).reshape(kinds, -1, size)  # (K, rows * G * T, D)
        shared = torch.bmm(together, prefix.keys[layer].transpose(1, 2)).mul_(scaling)
        shared = shared.view(kinds, rows, -1, length).transpose(0, 1)
        weight = torch.cat([shared, own.view(rows, kinds, *own.shape[1:])], -1).softmax(-1)
        out = torch.bmm(weight[..., length:].flatten(0, 1), values.flatten(0, 1)).view(rows, kinds, -1, size)
        weight = weight[..., :length].transpose(0, 1).reshape(kinds, -1, length)
        out = out + torch.bmm(weight, prefix.values[layer]).view(kinds, rows, -1, size).transpose(0, 1)
    return out.reshape(rows, heads, steps, size).transpose(1, 2)
