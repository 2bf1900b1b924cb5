"""Sampling with shared prefixes, for models with full attention in every layer: who is computed when.

The common prefix is computed once, then the tails of waiting requests, and then one token of every running row at a
time. Rows that finish make room, and waiting requests move in while the others go on. A request whose context goes on
from a sample that was kept begins with that sample's keys and values.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from whale.engines.batch import Batch
from whale.engines.branches import Branches, Extension, Forest, Prefix
from whale.engines.prefix_tree import Ints, PrefixTree, build, cut, overlaps

PREFILL_TOKENS = 512
"""Tokens of one prefill pass: large enough for the matrix products, small enough for its attention mask."""


@dataclass(frozen=True)
class Tail:
    """What is kept of a finished sample. prefix: of its family, ``length`` tokens. state: see ``Branches.take_out``."""

    prefix: Prefix
    length: int
    state: Tensor

    def beyond(self, length: int) -> Tensor:
        """The state without the first ``length`` tokens of the context."""
        if length >= self.length:
            return self.state[:, :, length - self.length :]
        before = torch.stack([part[:, length : self.length] for part in (*self.prefix.keys, *self.prefix.values)])
        return torch.cat([before, self.state], 2)


class Family(Batch[Tail]):
    """Requests of one batch, under a prefix that is computed once."""

    def run(self, limits: Sequence[int], wave_rows: int, wave_bytes: int) -> None:
        """Sample every request to its end. limits: most tokens of each. The rows in flight are bounded by both
        ``wave_rows`` and, through the bytes a row may come to need, ``wave_bytes``."""
        self._prefix = self._make_prefix()
        columns = max(len(c) - self._length + limit for c, limit in zip(self._contexts, limits, strict=True))
        room = max(1, min(len(self._numbers), wave_rows, wave_bytes // (columns * self._model.token_bytes)))
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

    def _make_prefix(self) -> Prefix:
        """The common prefix: a part of an earlier family's, if a sample of it goes on here, else computed."""
        prefix, length = Prefix(), self._length
        if not length:
            return prefix
        for entry in self._found:
            if entry and entry.state.length >= length:
                prefix.keys = [part[:, :length].contiguous() for part in entry.state.prefix.keys]
                prefix.values = [part[:, :length].contiguous() for part in entry.state.prefix.values]
                return prefix
        self._forward(self._contexts[0][:length], np.arange(length), prefix)
        return prefix

    def _step(self, branches: Branches, rows: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Feed one token of every running row and draw the next; returns the rows that go on and their tokens."""
        device = self._model.device
        if branches.column + 1 > branches.columns:
            branches.arrange()
        position = branches.lengths()
        hidden = self._model.hidden(tokens[:, None].to(device), position[:, None].to(device), branches)
        branches.advance()
        tokens, going = self._ledger.take(rows, hidden[:, 0])
        return self._retire(branches, 0, rows, tokens, going)

    def _retire(
        self, branches: Branches, first: int, rows: Tensor, tokens: Tensor, going: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Keep what finished rows leave and drop them. rows, tokens, going: of the branches from ``first`` on."""
        if bool(going.all()):
            return rows, tokens
        if self._kept.budget:
            prefix_bytes = self._prefix.bytes
            for place in torch.nonzero(~going)[:, 0].tolist():
                state = branches.take_out(first + place)
                tail = Tail(self._prefix, self._length, state)
                self._keep(int(rows[place]), tail, state.nbytes, self._prefix, prefix_bytes)
        order = branches.drop(torch.cat([torch.ones(first, dtype=torch.bool), going]))[first:] - first
        return rows[order], tokens[order]

    def _admit(self, branches: Branches, batch: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Compute the tails of waiting requests, draw their first tokens, and give a row to those that go on."""
        branches.arrange(max(len(self._contexts[i]) for i in batch) - self._length)
        going_on = [i for i in batch if (entry := self._found[i]) and len(entry.ids) > self._length]
        fresh = sorted(set(batch) - set(going_on))
        parts = [*self._plant(branches, fresh), *self._extend(branches, going_on)]
        return torch.cat([rows for rows, _ in parts]), torch.cat([tokens for _, tokens in parts])

    def _plant(self, branches: Branches, batch: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
        """Tails of which nothing is known: as trees, each distinct token once."""
        tails = [self._contexts[i][self._length :] for i in batch]
        shared = overlaps(tails)
        for start, stop in cut([len(t) for t in tails], shared, PREFILL_TOKENS):
            tree = build(tails[start:stop], shared[start:stop])
            forest = Forest(self._prefix, self._length, torch.from_numpy(tree.end).to(self._model.device))
            hidden = self._forward(tree.ids, tree.depth + self._length, forest)
            numbers = torch.tensor([self._numbers[i] for i in batch[start:stop]])
            first, going = self._ledger.take(numbers, *_last_states(hidden, tree))
            if bool(going.any()):
                branches.add(forest, [path for path, goes in zip(tree.paths, going.tolist(), strict=True) if goes])
            yield numbers[going], first[going]

    def _extend(self, branches: Branches, batch: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
        """Tails that begin with a kept sample: only what follows it, requests with equally much together."""
        new = {i: len(self._contexts[i]) - len(entry.ids) for i in batch if (entry := self._found[i])}
        queue = deque(sorted(batch, key=lambda i: (new[i], i)))
        while queue:
            part = [queue.popleft()]
            while queue and new[queue[0]] * (len(part) + 1) <= PREFILL_TOKENS:
                part.append(queue.popleft())
            yield self._extend_part(branches, part, new[part[-1]])

    def _extend_part(self, branches: Branches, part: Sequence[int], width: int) -> tuple[Tensor, Tensor]:
        """width: tokens to feed; of samples that kept more than is missing, the last ones are fed once more."""
        states, ids = [], np.zeros((len(part), width), np.int64)
        for row, i in enumerate(part):
            entry, tail = self._found[i], self._contexts[i][self._length :]
            assert entry is not None
            state = entry.state.beyond(self._length)
            states.append(torch.nn.functional.pad(state, (0, 0, 0, len(tail) - state.shape[2])))
            ids[row, width - len(tail[-width:]) :] = tail[-width:]
        first = branches.live
        branches.admit(states)
        device = self._model.device
        positions = branches.lengths()[first:, None] + torch.arange(-width, 0)
        plan = Extension(branches, first, width)
        hidden = self._model.hidden(torch.from_numpy(ids).to(device), positions.clamp(min=0).to(device), plan)
        numbers = torch.tensor([self._numbers[i] for i in part])
        tokens, going = self._ledger.take(numbers, hidden[:, -1])
        return self._retire(branches, first, numbers, tokens, going)

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
