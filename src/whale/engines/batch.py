"""Requests that are sampled together: what every way of sampling knows of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from whale.engines.kept import Entry, Kept
from whale.engines.ledger import Ledger
from whale.engines.local_model import LocalModel
from whale.engines.prefix_tree import Ints, common

T = TypeVar("T")


class Batch(Generic[T]):
    """Requests sorted by context, the length of the prefix they share, and what is kept of their samples."""

    def __init__(
        self,
        model: LocalModel,
        ledger: Ledger,
        contexts: Sequence[Ints],
        numbers: Sequence[int],
        kept: Kept[T],
        found: Sequence[Entry[T] | None],
    ) -> None:
        """contexts: of each request, sorted. numbers: of each request, as the ledger knows it. kept: takes what
        finished samples leave. found: what each request goes on from."""
        self._model, self._ledger = model, ledger
        self._contexts, self._numbers = contexts, numbers
        self._length = min(common(contexts[0], contexts[-1]), min(map(len, contexts)) - 1)
        self._kept, self._found = kept, found
        self._order = {number: i for i, number in enumerate(numbers)}

    def _keep(self, number: int, state: T, size: int, shared: object = None, shared_size: int = 0) -> None:
        """Keep what a finished request leaves. size: bytes of ``state`` alone. shared, shared_size: see ``Entry``."""
        # The token drawn last was never fed.
        ids = (*self._contexts[self._order[number]].tolist(), *self._ledger.drawn(number)[:-1])
        self._kept.add(Entry(ids, state, size, shared, shared_size))
