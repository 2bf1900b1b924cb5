"""What a domain says of its public sources, and what it makes of one row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from whale.types import Split, Task


class RowError(ValueError):
    """A row cannot become a task. The message says why in a few words; rows are counted and listed by it."""


@dataclass(frozen=True)
class HubFile:
    """Where a source lies on the Hugging Face hub, as ``datasets.load_dataset`` takes it."""

    path: str
    config: str | None = None
    split: str = "train"
    revision: str | None = None
    files: Sequence[str] = ()


@dataclass(frozen=True)
class Source:
    """A public set of rows.

    name: short, unique in the domain; rows of local files belong to the source whose name their file name begins
    with. splits: what its rows may become: a source with only ``test`` goes there whole; one with several gives each
    other split its size first and the rest to ``weights``. hub: where it is downloaded from (``None``: local files
    only). rows: how many the public set has; another count is an error for the hub and a note for local files.
    default: whether ``--source hub`` takes it where no source is named.
    """

    name: str
    splits: tuple[Split, ...]
    hub: HubFile | None = None
    rows: int | None = None
    default: bool = True


class Preparer(Protocol):
    """A domain's side of ``whale data prepare``."""

    domain: str
    version: str
    """Goes into the manifest; changes when the same rows would become other tasks."""
    sources: Sequence[Source]
    sizes: Mapping[Split, int | None]
    """Tasks per split by default; ``None`` takes all there are."""

    def task(self, source: Source, number: int, row: Mapping[str, Any]) -> Task:
        """The task of row ``number`` (from 0) of a source, its public columns as they are. Its id is unique over all
        sources, its family names the set it is reported under. Raises RowError."""
        ...


class Keyed(Protocol):
    """What a preparer may add: what makes two of its tasks the same question, where that is less than their inputs
    (a chess position without its move counters). Without it all inputs count, case, spacing and punctuation folded."""

    def content(self, task: Task) -> str:
        """Equal for tasks that ask the same."""
        ...
