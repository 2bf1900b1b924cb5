"""Waves: model calls are answered together, when every live rollout waits for one.

What a wave holds therefore depends on the harness and the tokens alone, never on timing.
"""

from __future__ import annotations

import asyncio

from whale.errors import EngineError, NoIdsError, StaleWeightsError
from whale.protocols import Engine
from whale.types import Completion, GenerationRequest, Sampling

_REACTION_SECONDS = 0.05


class Waves:
    """Collects model calls until every live rollout waits for one, then has the engine answer all of them."""

    def __init__(self, engine: Engine, sampling: Sampling, version: int) -> None:
        self.engine = engine
        self.sampling = sampling
        self.version = version
        self._live = 0
        self._busy: dict[int, int] = {}
        self._waiting: dict[tuple[int, int], tuple[GenerationRequest, asyncio.Future[Completion]]] = {}

    def enter(self, count: int) -> None:
        """``count`` rollouts become live: no wave starts before each of them waits or has left."""
        self._live += count

    def leave(self, order: int, replaced: bool = False) -> None:
        """The rollout has ended; ``replaced`` if another one takes its place."""
        self._busy.pop(order, None)
        if not replaced:
            self._live -= 1
            self._start_if_all_wait()

    def busy(self, order: int, change: int) -> None:
        """A tool call of the rollout begins (+1) or ends (-1): it may ask for the model soon, so waves wait for it."""
        self._busy[order] = self._busy.get(order, 0) + change
        if change < 0:
            # Only matters to a rollout with a tool and a model call under way at once: it gets a moment to react.
            asyncio.get_running_loop().call_later(_REACTION_SECONDS, self._start_if_all_wait)

    async def generate(self, order: int, call: int, request: GenerationRequest) -> Completion:
        """Answer one call with the next wave. Raises EngineError, NoIdsError for a completion without ids, or
        StaleWeightsError for another policy version."""
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting[order, call] = (request, future)
        # Not at once: calls a harness makes together (asyncio.gather) arrive together and belong in one wave.
        asyncio.get_running_loop().call_soon(self._start_if_all_wait)
        completion = await future
        if not completion.ids or len(completion.logprobs) != len(completion.ids):
            got = f"{len(completion.ids)} ids and {len(completion.logprobs)} log-probabilities"
            raise NoIdsError(f"the engine returned {got} for call {call} of rollout {order}")
        if completion.version != self.version:
            raise StaleWeightsError(
                f"asked for policy {self.version}, the engine sampled from {completion.version}; "
                "publish before rolling out"
            )
        return completion

    def _start_if_all_wait(self) -> None:
        waiting = {order for order, _ in self._waiting}
        if not waiting or len(waiting) < self._live or any(self._busy.get(order) for order in waiting):
            return
        wave = sorted(self._waiting.items())
        self._waiting = {}
        try:
            completions = self.engine.generate([request for _, (request, _) in wave], self.sampling)
        except EngineError as error:
            for _, (_, future) in wave:
                future.set_exception(error)
            return
        for (_, (_, future)), completion in zip(wave, completions, strict=True):
            if not future.done():
                future.set_result(completion)
