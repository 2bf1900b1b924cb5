"""Bookkeeping of the samples of one ``generate`` call: what was drawn, who is done and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whale.engines.draw import draw, uniforms
from whale.errors import EngineError
from whale.types import Completion, Finish, GenerationRequest, Sampling

HEAD_ROWS = 128
"""Rows whose logits exist at the same time."""


class Ledger:
    """Holds every request's tokens so far. Rows are request numbers; backends decide which run together and when.

    A backend calls ``take`` with the states that predict the next token of some rows, feeds the returned tokens of
    the rows that go on, and forgets the others. Nothing here loops over rows in Python, except over those that
    asked for stop strings or have just finished.
    """

    def __init__(
        self,
        requests: Sequence[GenerationRequest],
        limits: Sequence[int],
        sampling: Sampling,
        end_ids: Sequence[int],
        head: Callable[[Tensor], Tensor],
        tokenizer: Any,
    ) -> None:
        """limits: most tokens of each request, at least 1."""
        self._sampling, self._head, self._tokenizer = sampling, head, tokenizer
        self._ends = torch.tensor(sorted(end_ids))
        self._limit = torch.tensor(limits)
        self._count = torch.zeros(len(requests), dtype=torch.int64)
        shape = (len(requests), max(limits))
        self._tokens = torch.zeros(shape, dtype=torch.int64)
        self._logprobs = torch.zeros(shape, dtype=torch.float32)
        self._chance = torch.zeros(shape, dtype=torch.float64)
        if sampling.temperature > 0:
            for row, (request, limit) in enumerate(zip(requests, limits, strict=True)):
                self._chance[row, :limit] = torch.from_numpy(uniforms(request.seed, limit))
        self._finish: list[Finish] = ["length"] * len(requests)
        self._stops = [request.stop for request in requests]
        self._has_stop = torch.tensor([bool(request.stop) for request in requests])
        # Enough tokens to hold the longest stop string, as every token is at least a byte, and some to spare.
        self._window = [max((len(s.encode()) for s in request.stop), default=0) + 4 for request in requests]

    def take(self, rows: Tensor, states: Tensor, which: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Draw the next token of ``rows``.

        rows: (B,) int64 request numbers. states: (S, E) last hidden states; row i is predicted by ``states[i]``, or
        by ``states[which[i]]`` where several rows share one. Returns tokens (B,) and going (B,) bool: who goes on.
        """
        count = self._count[rows]
        tokens, logprobs = self._draw(states, self._chance[rows, count], which)
        self._tokens[rows, count] = tokens
        self._logprobs[rows, count] = logprobs
        self._count[rows] = count + 1
        ended = torch.isin(tokens, self._ends)
        stopped = self._stopped(rows, ~ended & self._has_stop[rows])
        for row in rows[ended].tolist():
            self._finish[row] = "stop"
        return tokens, ~(ended | stopped | (count + 1 >= self._limit[rows]))

    def drawn(self, row: int) -> list[int]:
        """Tokens of a request so far."""
        return self._tokens[row, : int(self._count[row])].tolist()  # type: ignore[no-any-return]

    def completions(self, version: int) -> list[Completion]:
        """What was drawn, in the order of the requests."""
        result = []
        for row, size in enumerate(self._count.tolist()):
            ids, logprobs = self._tokens[row, :size].tolist(), self._logprobs[row, :size].tolist()
            result.append(Completion(tuple(ids), tuple(logprobs), self._finish[row], version))
        return result

    def _draw(self, states: Tensor, chance: Tensor, which: Tensor | None) -> tuple[Tensor, Tensor]:
        parts = []
        for start in range(0, len(chance), HEAD_ROWS):
            part = slice(start, start + HEAD_ROWS)
            if which is None:
                logits = self._head(states[part])
            else:
                distinct, index = torch.unique(which[part], return_inverse=True)
                logits = self._head(states[distinct.to(states.device)])[index.to(states.device)]
            parts.append(draw(logits, chance[part].to(logits.device), self._sampling))
        tokens, logprobs = zip(*parts, strict=True)
        drawn = torch.cat(logprobs).cpu()
        if drawn.isnan().any():
            raise EngineError("logits are not finite: the weights or the model's code are broken, nothing was sampled")
        return torch.cat(tokens).cpu(), drawn

    def _stopped(self, rows: Tensor, asking: Tensor) -> Tensor:
        """(B,) bool: rows whose text now holds one of their stop strings."""
        stopped = torch.zeros_like(asking)
        places = torch.nonzero(asking)[:, 0]
        numbers = rows[places].tolist()
        sizes = self._count[rows[places]].tolist()
        windows = [
            self._tokens[row, max(0, size - self._window[row]) : size].tolist()
            for row, size in zip(numbers, sizes, strict=True)
        ]
        if not windows:
            return stopped
        texts = self._tokenizer.batch_decode(windows, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        hits = np.array([any(s in text for s in self._stops[row]) for row, text in zip(numbers, texts, strict=True)])
        for row in np.array(numbers)[hits].tolist():
            self._finish[row] = "stop_string"
        stopped[places[torch.from_numpy(hits)]] = True
        return stopped
