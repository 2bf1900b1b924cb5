"""Sampling through transformers' own cache, for models whose layers keep more than keys and values.

Layers with a recurrent state or a sliding window cannot look past a pad, so only requests whose contexts have the same
length run together. What they share at the start is computed once and branched, and a request whose context goes on
from a sample that was kept begins with that sample's cache.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from whale.engines.batch import Batch


class CachedFamily(Batch[Any]):
    """Requests of one batch, each with rows of a cache."""

    _prefix: Any = None

    def run(self, limits: Sequence[int], wave_rows: int, wave_bytes: int) -> None:
        """Sample every request to its end. See ``family.Family.run`` for the bounds."""
        order = sorted(range(len(limits)), key=lambda i: len(self._contexts[i]))  # stable: still sorted within
        while order:
            size = len(self._contexts[order[0]])
            alike = [i for i in order if len(self._contexts[i]) == size]
            row_bytes = self._model.token_bytes * (size + max(limits[i] for i in alike))
            wave = alike[: max(1, min(wave_rows, wave_bytes // row_bytes))]
            order = order[len(wave) :]
            self._run_wave(wave)

    def _run_wave(self, wave: Sequence[int]) -> None:
        """wave: requests with contexts of equal length, sorted by context."""
        known = sorted((len(entry.ids), i) for i in wave if (entry := self._found[i]))
        parts = [self._extend([i for _, i in part]) for _, part in groupby(known, key=lambda item: item[0])]
        if fresh := [i for i in wave if not self._found[i]]:
            parts.append(self._plant(fresh))
        parts = [part for part in parts if len(part[1])]
        if not parts:
            return
        cache = join([cache for cache, _, _ in parts])
        rows, tokens = torch.cat([rows for _, rows, _ in parts]), torch.cat([tokens for _, _, tokens in parts])
        while len(rows):
            hidden = self._forward(cache, tokens[:, None])
            rows, tokens = self._take(cache, rows, hidden, torch.arange(len(rows)))

    def _plant(self, batch: Sequence[int]) -> tuple[Any, Tensor, Tensor]:
        """Caches, rows and first tokens of requests of which only the common prefix is known."""
        tails = np.stack([self._contexts[i][self._length :] for i in batch])
        distinct, which = np.unique(tails, axis=0, return_inverse=True)
        cache = copy.deepcopy(self._common_prefix())
        if cache.get_seq_length():
            cache.reorder_cache(torch.zeros(len(distinct), dtype=torch.int64))
        hidden = self._forward(cache, torch.from_numpy(distinct))
        return cache, *self._take(cache, self._rows(batch), hidden, torch.from_numpy(which.ravel()))

    def _extend(self, batch: Sequence[int]) -> tuple[Any, Tensor, Tensor]:
        """The same for requests that go on from samples of one length."""
        entries = [entry for i in batch if (entry := self._found[i])]
        cache = join([entry.state for entry in entries])
        new = np.stack([self._contexts[i][len(entries[0].ids) :] for i in batch])
        hidden = self._forward(cache, torch.from_numpy(new))
        return cache, *self._take(cache, self._rows(batch), hidden, torch.arange(len(batch)))

    def _take(self, cache: Any, rows: Tensor, hidden: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        """Draw the next tokens of ``rows``, which lie at ``which`` in the cache; keep what the finished ones leave and
        bring the cache to the order of those that go on."""
        tokens, going = self._ledger.take(rows, hidden, which)
        if self._kept.budget:
            for place in torch.nonzero(~going)[:, 0].tolist():
                state = row_of(cache, int(which[place]))
                self._keep(int(rows[place]), state, sum(part.nbytes for part in tensors(state)))
        keep = torch.nonzero(going)[:, 0]
        if len(keep) < len(rows) or len(hidden) != len(rows):
            cache.reorder_cache(which[keep])
        return rows[keep], tokens[keep]

    def _rows(self, batch: Sequence[int]) -> Tensor:
        return torch.tensor([self._numbers[i] for i in batch])

    def _common_prefix(self) -> Any:
        if self._prefix is None:
            self._prefix = DynamicCache(config=self._model.net.config)
            if self._length:
                self._forward(self._prefix, torch.from_numpy(self._contexts[0][None, : self._length]))
        return self._prefix

    def _forward(self, cache: Any, ids: Tensor) -> Tensor:
        """Last position's hidden states (B, E) after ids (B, T), which the cache then holds."""
        model = self._model
        output = model.decoder(input_ids=ids.to(model.device), use_cache=True, **{model.cache_argument: cache})
        return output.last_hidden_state[:, -1]  # type: ignore[no-any-return]


def row_of(cache: Any, place: int) -> Any:
    """A copy of one row of a cache, as a cache of its own."""
    return over_tensors(cache, lambda parts: parts[0][place : place + 1].clone())


def join(caches: Sequence[Any]) -> Any:
    """One cache with the rows of several that hold equally many tokens."""
    return over_tensors(caches[0], lambda parts: torch.cat(list(parts)), caches[1:])


def over_tensors(cache: Any, change: Callable[[Sequence[Tensor]], Tensor], others: Sequence[Any] = ()) -> Any:
    """A copy of a cache whose tensors with a batch dimension are ``change`` of those at the same place in ``cache`` and
    ``others``. Everything else a layer notes (lengths, flags) is the same in caches of equally many tokens."""
    result = copy.copy(cache)
    result.layers = [copy.copy(layer) for layer in cache.layers]
    for number, layer in enumerate(result.layers):
        notes = [vars(one.layers[number]) for one in (cache, *others)]
        for name, value in notes[0].items():
            if _has_rows(value):
                setattr(layer, name, change([note[name] for note in notes]))
            elif isinstance(value, dict):
                changed = {k: change([n[name][k] for n in notes]) if _has_rows(v) else v for k, v in value.items()}
                setattr(layer, name, changed)
    return result


def tensors(cache: Any) -> list[Tensor]:
    """Every tensor of a cache that has a batch dimension."""
    values = [value for layer in cache.layers for value in vars(layer).values()]
    values += [part for value in values if isinstance(value, dict) for part in value.values()]
    return [value for value in values if _has_rows(value)]


def _has_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 1
