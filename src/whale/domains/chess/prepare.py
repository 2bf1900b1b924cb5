"""The chess domain's side of ``whale data prepare``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from whale.domains.data.source import HubFile, Source
from whale.types import Split, Task

SIZES: dict[Split, int] = {"weights": 16_384, "search": 256, "test": 1_024}
"""Tasks per split in the paper."""


class ChessPreparer:
    """Implements ``whale.domains.data.source.Preparer`` for the Lichess puzzle database (CC0).

    max_plies: puzzles with more moves to find are left out.
    """

    domain = "chess"
    sources: Sequence[Source] = (
        Source("lichess", ("weights", "search", "test"), HubFile("Lichess/chess-puzzles")),
    )  # its rows grow month by month
    sizes: Mapping[Split, int | None] = SIZES

    def __init__(self, max_plies: int = 9) -> None:
        self._max_plies = max_plies
        self.version = f"chess-1-plies{max_plies}"

    def task(self, source: Source, number: int, row: Mapping[str, Any]) -> Task:
        """The puzzle of a row, every move of its line checked. Raises RowError."""
        from whale.domains.chess import rows

        return rows.task(row, self._max_plies)

    def content(self, task: Task) -> str:
        """Two puzzles are the same question if their positions differ in nothing but the move counters."""
        from whale.domains.chess import rows

        return rows.position(str(task.inputs["fen"]))
