"""The engine for one machine: samples from a ``LocalModel`` with shared prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from whale.engines.cached import CachedFamily
from whale.engines.family import Family
from whale.engines.kept import Kept
from whale.engines.ledger import Ledger
from whale.engines.local_model import LocalModel
from whale.engines.prefix_tree import families, overlaps
from whale.errors import EngineError, StaleWeightsError
from whale.protocols import Renderer
from whale.renderers import for_tokenizer
from whale.types import Completion, GenerationRequest, Sampling


class TransformersEngine:
    """``protocols.Engine`` on a model in this process.

    Requests are sorted by context, so the order they come in changes nothing but the order of the results. Each
    sample's random numbers come from its seed alone; which requests run side by side can only change logits by
    rounding.
    """

    renderer: Renderer

    def __init__(
        self,
        model: LocalModel,
        *,
        renderer: Renderer | None = None,
        wave_rows: int = 384,
        wave_bytes: int = 1 << 30,
        keep_bytes: int = 1 << 29,
    ) -> None:
        """renderer: chosen by the tokenizer's template if ``None``. wave_rows: samples in flight at most. wave_bytes:
        memory their keys and values may come to need, counting every sample at its full ``max_tokens``. keep_bytes:
        memory for keys and values of finished samples, so that the next call of a rollout only computes what is new
        in its context; they are kept until ``forget`` or another policy version.

        Raises EngineError if the template is of no known family.
        """
        if wave_rows < 1 or wave_bytes < 1:
            raise EngineError(f"engine: wave_rows {wave_rows} and wave_bytes {wave_bytes} must be at least 1")
        self.model = model
        self.renderer = renderer or for_tokenizer(model.tokenizer)
        self.wave_rows = wave_rows
        self.wave_bytes = wave_bytes
        self._kept: Kept[Any] = Kept(keep_bytes)
        self._kept_version = self.version

    @property
    def version(self) -> int:
        """Version of the policy that the next completion is drawn from."""
        return self.model.policy.version

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return self.model.vocabulary

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens shown."""
        tokenizer = self.model.tokenizer
        return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    @torch.no_grad()
    def generate(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[Completion]:
        """See ``protocols.Engine.generate``. A reply is cut (``length``) where the model's context is full.

        Raises StaleWeightsError if the weights were changed but not published, EngineError for a request that
        cannot be sampled (it is named by its number).
        """
        if self.model.dirty:
            raise StaleWeightsError(f"engine: weights were changed after version {self.version}; publish them first")
        if not requests:
            return []
        if self._kept_version != self.version:
            self.forget()
        limits = [self._limit(number, request) for number, request in enumerate(requests)]
        model = self.model
        ledger = Ledger(requests, limits, sampling, model.end_ids, model.head, model.tokenizer)
        order = sorted(range(len(requests)), key=lambda i: (requests[i].context, requests[i].seed, limits[i]))
        found = [self._kept.find(requests[i].context) for i in order]
        contexts = [np.array(requests[i].context, np.int64) for i in order]
        for start, stop in families(overlaps(contexts)):
            part, numbers = contexts[start:stop], order[start:stop]
            cuts = [limits[i] for i in numbers]
            kind = Family if model.full_attention else CachedFamily
            family = kind(model, ledger, part, numbers, self._kept, found[start:stop])
            family.run(cuts, self.wave_rows, self.wave_bytes)
        for entry in found:  # what went on from it is longer and has been kept in its place
            if entry:
                self._kept.remove(entry.ids)
        return ledger.completions(self.version)

    def forget(self) -> None:
        """See ``protocols.Engine.forget``."""
        self._kept.clear()
        self._kept_version = self.version

    def _limit(self, number: int, request: GenerationRequest) -> int:
        """Most tokens of a request; raises EngineError if it cannot be sampled."""
        size, most = len(request.context), self.model.context_limit
        if not size or request.max_tokens < 1:
            got = f"context of {size} ids, max_tokens {request.max_tokens}"
            raise EngineError(f"request {number}: {got}; both must be at least 1")
        if size >= most:
            raise EngineError(f"request {number}: context of {size} ids leaves no room in the model's {most}")
        low, high = min(request.context), max(request.context)
        if low < 0 or high >= self.vocabulary:
            wrong = low if low < 0 else high
            raise EngineError(f"request {number}: token id {wrong}, ids are 0 to {self.vocabulary - 1}")
        return min(request.max_tokens, most - size)
