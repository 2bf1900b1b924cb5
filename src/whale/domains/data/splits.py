"""Tasks are shared out among the splits: disjoint by content, by the seed alone, with everything left out listed."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from whale.domains.base import check_disjoint, content_key
from whale.domains.data.parts import Part
from whale.errors import DomainError
from whale.seeds import derive
from whale.types import SPLITS, Split, Task

ORDER: tuple[Split, ...] = ("test", "unseen", "search", "weights")
"""Who gets a question that several splits could have: what is only reported comes first."""

HELD_OUT: tuple[Split, ...] = ("test", "unseen")

REPEATED_ID = "repeated id"

Counts = dict[str, int]

Dropped = Callable[[str, int, str | None, str], None]
"""Is told of a row that was left out: source, row number, id if it has one, reason."""


@dataclass(frozen=True)
class Sizes:
    """Tasks per split. ``None``: all there are, without drawing on sources that other splits share. ``exact``: splits
    whose size also cuts held-out sources, which are otherwise taken whole."""

    wanted: Mapping[Split, int | None]
    exact: frozenset[Split] = frozenset()


@dataclass
class Index:
    """What sharing out needs of every task, in columns: a public set may have millions.

    order: position by the seed and the task's id. content: of the inputs, case, spacing and punctuation folded.
    source, offset: where its line stands. declared: number of the split it must go to, or -1.
    """

    parts: Sequence[Part]
    source: array[int] = field(default_factory=lambda: array("H"))
    offset: array[int] = field(default_factory=lambda: array("Q"))
    order: array[int] = field(default_factory=lambda: array("Q"))
    content: array[int] = field(default_factory=lambda: array("Q"))
    family: array[int] = field(default_factory=lambda: array("L"))
    declared: array[int] = field(default_factory=lambda: array("b"))
    families: list[str] = field(default_factory=list)
    dropped: list[Counts] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.order)

    def lines(self, numbers: Iterable[int]) -> Iterator[dict[str, Any]]:
        """The lines of tasks in their parts."""
        with ExitStack() as stack:
            files = [stack.enter_context(part.path.open("rb")) for part in self.parts]
            for number in numbers:
                file = files[self.source[number]]
                file.seek(self.offset[number])
                yield json.loads(file.readline())


@dataclass(frozen=True)
class Drop:
    """A task left out: why, and the task that has its place."""

    number: int
    reason: str
    other: int


@dataclass
class Shares:
    """Task numbers by split, in their final order; what was dropped; how many of each source no split needed."""

    splits: dict[Split, list[int]]
    drops: list[Drop]
    unused: list[int]


def part_lines(part: Part) -> Iterator[tuple[int, dict[str, Any]]]:
    """Offset and content of every line of a part."""
    offset = 0
    with part.path.open("rb") as file:
        for line in file:
            yield offset, json.loads(line)
            offset += len(line)


def build_index(
    parts: Sequence[Part], seed: int, dropped: Dropped, content: Callable[[Task], str] = content_key
) -> Index:
    """Index all tasks of ``parts``; rows that were none are passed to ``dropped``. content: equal for tasks that ask
    the same.

    Raises DomainError if tasks that name their split overlap, and for a source without a single task.
    """
    index = Index(parts)
    numbers: dict[str, int] = {}
    fixed: dict[Split, list[Task]] = {split: [] for split in SPLITS}
    for source, part in enumerate(parts):
        reasons: Counts = defaultdict(int)
        before = len(index)
        for offset, line in part_lines(part):
            if "dropped" in line:
                reasons[line["dropped"]] += 1
                dropped(part.source.name, line["row"], line["id"], line["dropped"])
                continue
            task = to_task(line["task"])
            if line["split"]:
                fixed[line["split"]].append(task)
            index.source.append(source)
            index.offset.append(offset)
            index.order.append(derive(seed, "data", task.id))
            index.content.append(_digest(content(task)))
            index.family.append(numbers.setdefault(task.family, len(numbers)))
            index.declared.append(SPLITS.index(line["split"]) if line["split"] else -1)
        if len(index) == before:
            raise DomainError(f"source {part.source.name}: none of {part.rows} rows became a task{_said(reasons)}")
        index.dropped.append(dict(reasons))
    index.families = list(numbers)
    check_disjoint(fixed)
    return index


def share_out(index: Index, sizes: Sizes) -> Shares:
    """Who gets what. Raises DomainError for a split that its sources allow and that ends up empty."""
    return _Sharing(index, sizes).shares()


def to_task(fields: Mapping[str, Any]) -> Task:
    """A task from its JSON form."""
    return Task(fields["id"], fields["inputs"], fields["reference"], fields["family"])


def interleaved(groups: Iterable[Sequence[int]]) -> list[int]:
    """One of each group in turn until all are used up."""
    left = [iter(group) for group in groups]
    result: list[int] = []
    while left:
        running = []
        for group in left:
            item = next(group, None)
            if item is not None:
                result.append(item)
                running.append(group)
        left = running
    return result


class _Sharing:
    def __init__(self, index: Index, sizes: Sizes) -> None:
        self.index = index
        self.sizes = sizes
        self.allowed = [part.source.splits for part in index.parts]
        self.owner: dict[int, tuple[int, Split]] = {}  # content -> who has it, in which split
        self.drops: list[Drop] = []
        self.free: list[int] = []

    def shares(self) -> Shares:
        self.free = self._without_repeated_ids()
        splits = {split: self._fill(split) for split in ORDER}
        unused = [0] * len(self.index.parts)
        for number in self.free:
            # Also what no split had room for is compared, so that the list shows every overlap of the sources.
            if not self._drop_if_known(number):
                unused[self.index.source[number]] += 1
        self._refuse_empty(splits)
        return Shares(splits, self.drops, unused)

    def _without_repeated_ids(self) -> list[int]:
        """All tasks in the order of the seed. Equal ids have equal places in it, so they are neighbours."""
        order = self.index.order
        kept: list[int] = []
        for number in sorted(range(len(self.index)), key=order.__getitem__):
            if kept and order[kept[-1]] == order[number]:
                self.drops.append(Drop(number, REPEATED_ID, kept[-1]))
            else:
                kept.append(number)
        return kept

    def _fill(self, split: Split) -> list[int]:
        own = self._accept(split, [n for n in self.free if self._is_own(n, split)], None)
        size = self.sizes.wanted.get(split)
        if size is not None and split in self.sizes.exact and len(own) > size:
            own = self._cut(split, own, size)
        if size is None and split != "weights":
            more = None if self._only_source_kind(split) else 0
        else:
            more = None if size is None else max(size - len(own), 0)
        shared = [n for n in self.free if self._may_take(n, split)] if more != 0 else []
        chosen = sorted(own + self._accept(split, shared, more), key=self.index.order.__getitem__)
        return self._by_family(chosen) if split in HELD_OUT else chosen

    def _is_own(self, number: int, split: Split) -> bool:
        """True for tasks that belong to the split and no other: they named it, or their source is held out whole."""
        declared = self.index.declared[number]
        if declared >= 0:
            return SPLITS[declared] == split
        return split in HELD_OUT and self.allowed[self.index.source[number]] == (split,)

    def _may_take(self, number: int, split: Split) -> bool:
        return self.index.declared[number] < 0 and split in self.allowed[self.index.source[number]]

    def _only_source_kind(self, split: Split) -> bool:
        """True if no source that has this split has another one."""
        return all(len(allowed) == 1 for allowed in self.allowed if split in allowed)

    def _accept(self, split: Split, numbers: Sequence[int], most: int | None) -> list[int]:
        """Take up to ``most`` of ``numbers``, each content once; what was looked at is free no more."""
        taken: list[int] = []
        seen: set[int] = set()
        for number in numbers:
            if most is not None and len(taken) >= most:
                break
            seen.add(number)
            if not self._drop_if_known(number):
                self.owner[self.index.content[number]] = (number, split)
                taken.append(number)
        self.free = [number for number in self.free if number not in seen]
        return taken

    def _drop_if_known(self, number: int) -> bool:
        owner = self.owner.get(self.index.content[number])
        if owner is not None:
            self.drops.append(Drop(number, f"same question in {owner[1]}", owner[0]))
        return owner is not None

    def _cut(self, split: Split, own: list[int], size: int) -> list[int]:
        """The first ``size``, families balanced; the rest is free again, but of no use to another split."""
        ordered = self._by_family(own)
        for number in ordered[size:]:
            del self.owner[self.index.content[number]]
        self.free += ordered[size:]
        return ordered[:size]

    def _by_family(self, numbers: Sequence[int]) -> list[int]:
        groups: dict[str, list[int]] = defaultdict(list)
        for number in numbers:
            groups[self.index.families[self.index.family[number]]].append(number)
        return interleaved(groups[name] for name in sorted(groups))

    def _refuse_empty(self, splits: Mapping[Split, Sequence[int]]) -> None:
        for split in ORDER:
            if (
                not splits[split]
                and self.sizes.wanted.get(split) != 0
                and any(split in allowed for allowed in self.allowed)
            ):
                counts = ", ".join(f"{name} {len(splits[name])}" for name in ORDER)
                raise DomainError(
                    f"split {split} is left empty ({counts}; {len(self.drops)} dropped): its sources are shared, so "
                    f"give it a size with --size {split}=N, or less to the others"
                )


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _said(reasons: Mapping[str, int]) -> str:
    return ": " + ", ".join(f"{reason} ({count})" for reason, count in reasons.items()) if reasons else ""
