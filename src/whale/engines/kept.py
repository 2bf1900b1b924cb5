"""Keys and values of finished samples, for the next call of the same rollout.

A harness that passes a reply back gets a context that begins with the last one and everything sampled after it;
only what is new has to be computed then. Entries are found by their ids, so a harness need not ask for it, and one
that rewrites its context simply finds nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass
from typing import Generic, TypeVar

Ids = tuple[int, ...]
T = TypeVar("T")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """ids: every token whose state is kept. state: what the backend made of them. bytes: its memory. shared: what the
    state points at beside that and other entries may point at too, ``shared_bytes`` of memory; counted once."""

    ids: Ids
    state: T
    bytes: int
    shared: object = None
    shared_bytes: int = 0


class Kept(Generic[T]):
    """A store of at most ``budget`` bytes; the oldest entries make room for new ones."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.bytes = 0
        self._sorted: list[Ids] = []
        self._entries: dict[Ids, Entry[T]] = {}  # in order of age
        self._sharing: Counter[int] = Counter()  # entries by the identity of what they share

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Entry[T]) -> None:
        """Keep an entry, unless it alone is over the budget."""
        if entry.bytes + entry.shared_bytes > self.budget or entry.ids in self._entries:
            return
        while self.bytes + self._more(entry) > self.budget:
            self.remove(next(iter(self._entries)))
        self._sorted.insert(bisect_left(self._sorted, entry.ids), entry.ids)
        self._entries[entry.ids] = entry
        self.bytes += self._more(entry)
        self._sharing[id(entry.shared)] += 1

    def remove(self, ids: Ids) -> None:
        """Forget an entry, if it is there."""
        if entry := self._entries.pop(ids, None):
            self._sharing[id(entry.shared)] -= 1
            self.bytes -= self._more(entry)
            del self._sorted[bisect_left(self._sorted, ids)]

    def clear(self) -> None:
        """Forget everything."""
        self._sorted.clear()
        self._entries.clear()
        self._sharing.clear()
        self.bytes = 0

    def find(self, context: Ids) -> Entry[T] | None:
        """The longest entry that ``context`` begins with and goes beyond."""
        end = context[:-1]
        while end:
            place = bisect_right(self._sorted, end) - 1
            if place < 0:
                return None
            ids = self._sorted[place]
            if ids == end[: len(ids)]:
                return self._entries[ids]
            end = end[: _common(ids, end)]  # whatever is a prefix of both sorts before ids
        return None

    def _more(self, entry: Entry[T]) -> int:
        """Bytes by which an entry that is not here would add to those that are."""
        return entry.bytes + (0 if self._sharing[id(entry.shared)] else entry.shared_bytes)


def _common(first: Ids, second: Ids) -> int:
    differing = (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    return next(differing, min(len(first), len(second)))
