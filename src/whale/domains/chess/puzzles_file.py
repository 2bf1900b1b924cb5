"""Tasks straight from a Lichess puzzle file: filtered, drawn by a seed, split without a position in common."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whale.domains.chess import rows
from whale.domains.data.files import read_rows
from whale.domains.data.source import RowError
from whale.errors import DomainError
from whale.types import SPLITS, Split, Task

# Test first: its tasks then stay the same when another split grows.
_ORDER: tuple[Split, ...] = ("test", "search", "weights")
_SPARE = 1.05  # more rows than tasks are kept, since some share a position
_NAMED = 5  # ids in a message


@dataclass(frozen=True)
class Filters:
    """Which rows are wanted. themes: at least one of these (empty: any). rating: lowest and highest, both included.
    max_plies: moves asked of the solver at most."""

    themes: tuple[str, ...] = ()
    rating: tuple[int, int] | None = None
    max_plies: int = rows.MAX_PLIES

    @property
    def columns(self) -> list[str]:
        """Columns the file must have."""
        extra = ["Themes"] * bool(self.themes) + ["Rating"] * (self.rating is not None)
        return ["PuzzleId", "FEN", "Moves", *extra]

    def wants(self, row: Mapping[str, Any]) -> bool:
        """True if the row passes. Raises RowError for a column of another kind."""
        if self.themes and not set(self.themes) & set(rows.words(row, "Themes")):
            return False
        if self.rating is not None and not self.rating[0] <= _rating(row) <= self.rating[1]:
            return False
        return len(rows.words(row, "Moves")) // 2 <= self.max_plies


def read(path: Path, seed: int, sizes: Mapping[Split, int], filters: Filters) -> dict[Split, list[Task]]:
    """Tasks by split; which rows go where depends on seed and puzzle ids only, not on the order of the file.

    Raises DomainError naming the file and, where it applies, the puzzles that cannot be played or the sizes that fit.
    """
    wanted = sum(sizes[split] for split in _ORDER)
    # One pass that keeps only what may be needed: the whole database has millions of rows.
    picked = heapq.nsmallest(int(wanted * _SPARE) + 64, _passing(path, filters), key=lambda row: _priority(seed, row))
    tasks = _distinct(picked, wanted, path, filters)
    if len(tasks) < wanted:
        raise DomainError(_too_small(path, sizes, len(tasks)))
    splits: dict[Split, list[Task]] = {split: [] for split in SPLITS}
    for split in _ORDER:
        splits[split] = tasks[: sizes[split]]
        tasks = tasks[sizes[split] :]
    return splits


def _passing(path: Path, filters: Filters) -> Iterator[Mapping[str, Any]]:
    columns = filters.columns
    for number, row in enumerate(read_rows(path), start=1):
        if isinstance(row, RowError):
            raise DomainError(f"{path}, puzzle {number}: {row}")
        missing = [name for name in columns if name not in row]
        if missing:
            raise DomainError(f"{path}, puzzle {number}: column {missing[0]} is missing; there are {', '.join(row)}")
        try:
            wanted = filters.wants(row)
        except RowError as error:
            raise DomainError(f"{path}, puzzle {number} ({row['PuzzleId']}): {error}") from None
        if wanted:
            yield {name: row[name] for name in columns}


def _priority(seed: int, row: Mapping[str, Any]) -> bytes:
    return hashlib.sha256(f"{seed}/{row['PuzzleId']}".encode()).digest()


def _rating(row: Mapping[str, Any]) -> int:
    try:
        return round(float(row["Rating"]))
    except (TypeError, ValueError):
        raise RowError(f"column Rating: a number is expected, found {row['Rating']!r}") from None


def _distinct(picked: Sequence[Mapping[str, Any]], wanted: int, path: Path, filters: Filters) -> list[Task]:
    """The first ``wanted`` tasks of different positions, in order."""
    tasks: dict[str, Task] = {}
    broken: list[str] = []
    for row in picked:
        try:
            task = rows.task(row, filters.max_plies)
        except RowError as error:
            broken.append(f"{row['PuzzleId']} ({error})")
            continue
        tasks.setdefault(rows.position(task.inputs["fen"]), task)
        if len(tasks) == wanted:
            break
    if broken:
        more = ", ..." if len(broken) > _NAMED else ""
        raise DomainError(
            f"{path}: {len(broken)} puzzles cannot be played: {', '.join(broken[:_NAMED])}{more}; remove them, or let "
            "`whale data prepare chess` drop them"
        )
    return list(tasks.values())


def _too_small(path: Path, sizes: Mapping[Split, int], there: int) -> str:
    asked = ", ".join(f"{split} {sizes[split]}" for split in reversed(_ORDER))
    message = (
        f"domain chess, option sizes: {asked} puzzles are asked for, but {path} holds only {there} different ones that "
        "pass the filters (themes, rating, max_plies)"
    )
    held_back = sizes["test"] + sizes["search"]
    if there > held_back:
        fits = f"weights = {there - held_back}, search = {sizes['search']}, test = {sizes['test']}"
    else:
        part = there // 4
        fits = f"weights = {there - 2 * part}, search = {part}, test = {part}"
    return f"{message}; what fits is sizes = {{ {fits} }}"
