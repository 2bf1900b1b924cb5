"""Sampling through transformers' own cache, for models whose layers keep more than keys and values.

Layers with a recurrent state or a sliding window cannot look past a pad, so only requests whose contexts have the
same length run together; what they share at the start is computed once and branched with ``reorder_cache``, which
every kind of cache layer knows.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from whale.engines.ledger import Ledger
from whale.engines.local_model import LocalModel
from whale.engines.prefix_tree import Ints, common


def run_cached(
    model: LocalModel,
    ledger: Ledger,
    contexts: Sequence[Ints],
    numbers: Sequence[int],
    limits: Sequence[int],
    wave_rows: int,
    wave_bytes: int,
) -> None:
    """Sample every request of a family to its end. contexts: sorted. numbers: as the ledger knows them. limits: most
    tokens of each. See ``branches.Family.run`` for the bounds."""
    length = min(common(contexts[0], contexts[-1]), min(map(len, contexts)) - 1)
    prefix = DynamicCache(config=model.net.config)
    if length:
        _forward(model, prefix, torch.from_numpy(contexts[0][None, :length]))
    order = sorted(range(len(numbers)), key=lambda i: len(contexts[i]))  # stable: still sorted by context within
    while order:
        size = len(contexts[order[0]])
        alike = [i for i in order if len(contexts[i]) == size]
        row_bytes = model.token_bytes * (size + max(limits[i] for i in alike))
        wave = alike[: max(1, min(wave_rows, wave_bytes // row_bytes))]
        order = order[len(wave) :]
        _run_wave(model, ledger, prefix, [contexts[i][length:] for i in wave], torch.tensor([numbers[i] for i in wave]))


def _run_wave(model: LocalModel, ledger: Ledger, prefix: Any, tails: Sequence[Ints], rows: Tensor) -> None:
    """tails: of equal length, equal ones side by side."""
    distinct, which = np.unique(np.stack(tails), axis=0, return_inverse=True)
    index = torch.from_numpy(which.ravel())
    cache = copy.deepcopy(prefix)
    if cache.get_seq_length():
        cache.reorder_cache(torch.zeros(len(distinct), dtype=torch.int64))
    hidden = _forward(model, cache, torch.from_numpy(distinct))
    tokens, going = ledger.take(rows, hidden, index)
    keep = torch.nonzero(going)[:, 0]
    cache.reorder_cache(index[keep])
    rows, tokens = rows[keep], tokens[keep]
    while len(rows):
        hidden = _forward(model, cache, tokens[:, None])
        tokens, going = ledger.take(rows, hidden)
        if not bool(going.all()):
            keep = torch.nonzero(going)[:, 0]
            cache.reorder_cache(keep)
            rows, tokens = rows[keep], tokens[keep]


def _forward(model: LocalModel, cache: Any, ids: Tensor) -> Tensor:
    """Last position's hidden states (B, E) after ids (B, T), which the cache then holds."""
    output = model.decoder(input_ids=ids.to(model.device), use_cache=True, **{model.cache_argument: cache})
    return output.last_hidden_state[:, -1]  # type: ignore[no-any-return]
