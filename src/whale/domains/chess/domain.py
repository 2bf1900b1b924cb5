"""The chess domain: Lichess puzzles, a board on the host that plays the scripted replies, h0 and its catalogue."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whale.domains.base import SplitTasks, ToolInputError, check_sizes
from whale.domains.chess.catalogue import ChessCatalogue, seed_source
from whale.domains.chess.prepare import SIZES
from whale.domains.chess.rules import Rules
from whale.errors import ConfigError, DomainError
from whale.protocols import Episode
from whale.types import SPLITS, Split, Task, ToolSpec, Verdict

if TYPE_CHECKING:
    from whale.domains.chess.board import ChessEpisode

OBSERVE = ToolSpec(
    name="observe",
    description="Returns the position as JSON: fen, turn, board, last_move, own_moves, legal, status.",
    parameters={"type": "object", "properties": {}},
)
MOVE = ToolSpec(
    name="move",
    description="Plays a move. A right one is answered by the opponent; a wrong one ends the puzzle.",
    parameters={
        "type": "object",
        "properties": {"uci": {"type": "string", "description": "The move in UCI notation, such as e2e4 or e7e8q"}},
        "required": ["uci"],
    },
)


class ChessDomain(SplitTasks):
    """Implements ``whale.protocols.Domain`` and ``Checkable``.

    Tasks come from ``data`` (a folder of ``whale data prepare chess``) or ``puzzles`` (a Lichess file, .csv or
    .csv.zst), the latter with seed, sizes (tasks per split, missing ones as in the paper), themes (at least one of
    these), rating (lowest and highest) and max_plies (moves to find). strict, san, suffixes, retries: see
    ``Rules``. Raises ConfigError for a bad option, DomainError where python-chess is missing.
    """

    name = "chess"
    tool_specs: Mapping[str, ToolSpec] = {"observe": OBSERVE, "move": MOVE}
    allowed_imports: frozenset[str] = frozenset()

    def __init__(
        self,
        data: str | None = None,
        puzzles: str | None = None,
        seed: int = 0,
        sizes: Mapping[str, int] | None = None,
        themes: Sequence[str] = (),
        rating: Sequence[int] | None = None,
        max_plies: int = 9,
        strict: bool = False,
        san: bool = False,
        suffixes: bool = True,
        retries: int = 1,
    ) -> None:
        if data and puzzles:
            raise ConfigError("domain chess: give option data or option puzzles, not both")
        if data and (sizes or themes or rating):
            raise ConfigError("domain chess: sizes, themes and rating belong to option puzzles; prepared data is split")
        self._data = Path(data) if data else None
        self._puzzles = Path(puzzles) if puzzles else None
        self._seed = seed
        self._sizes = _sizes(sizes or {})
        self._filters = (_themes(themes), _rating(rating), _max_plies(max_plies))
        self._rules = Rules(strict, san, suffixes, retries)
        self.version = self._rules.version
        if importlib.util.find_spec("chess") is None:
            raise DomainError("the chess domain needs python-chess: pip install 'whale-learn[chess]'")

    def _load(self) -> Mapping[Split, Sequence[Task]]:
        if self._data is not None:
            from whale.domains.data.prepared import read_prepared

            prepared = read_prepared(self._data, self.name)
            return {split: prepared.get(split, []) for split in SPLITS}
        if self._puzzles is None:
            raise DomainError(
                "domain chess: there are no puzzles; give option puzzles (a Lichess file, .csv or .csv.zst) or option "
                "data (a folder of `whale data prepare chess`)"
            )
        from whale.domains.chess import puzzles_file

        return puzzles_file.read(self._puzzles, self._seed, self._sizes, puzzles_file.Filters(*self._filters))

    def open(self, task: Task) -> ChessEpisode:
        """The puzzle from its start. Raises DomainError for one that cannot be played."""
        from whale.domains.chess.board import ChessEpisode

        return ChessEpisode(task, self._rules)

    def seed_harness(self) -> str:
        """Source of h0."""
        return seed_source()

    def catalogue(self) -> ChessCatalogue:
        """Pieces for the offline search."""
        return ChessCatalogue(self._rules.suffixes)

    def smoke(self) -> tuple[Sequence[Task], Sequence[str]]:
        """Two invented puzzles (one move, two moves) and replies in every form, right, wrong and unreadable."""
        tasks = [
            Task(
                "smoke-1",
                {"fen": "6k1/5ppp/8/8/8/8/5PPP/R5K1 w - - 0 1", "last_move": "h8g8"},
                ["a1a8"],
                "smoke",
            ),
            Task(
                "smoke-2",
                {"fen": "5k2/8/8/8/8/7K/R7/1R6 w - - 0 1", "last_move": "e7f8"},
                ["a2a7", "f8g8", "b1b8"],
                "smoke",
            ),
        ]
        return tasks, _SMOKE_REPLIES

    async def start(self) -> None:
        """There is nothing to start."""

    async def close(self) -> None:
        """There is nothing to stop."""

    # ---- Checkable -----------------------------------------------------------------------------------------------

    def gold(self, task: Task) -> str:
        """The solver's moves, in UCI, separated by spaces."""
        return " ".join(task.reference[::2])

    def junk(self, task: Task) -> Sequence[str]:
        """No move, wrong and illegal ones, other notations, the opponent's moves, the line reversed and cut short."""
        from whale.domains.chess.checks import junk

        return junk(task, self._rules)

    async def submit(self, episode: Episode, answer: str) -> Verdict:
        """Play the moves of ``answer`` in turn and judge; what the board refuses is passed over, as in a rollout."""
        for word in answer.split():
            try:
                await episode.tools["move"](uci=word)
            except ToolInputError:
                continue
        return await episode.score(answer)


_SMOKE_REPLIES = (
    "<move>a1a8</move>",
    "a2a7",
    "Ra7",
    "1",
    "I would play <move>e2e9</move>",
    "",
    "Yes",
    "no\n<move>b1b8</move> or Rb8#",
)


def _sizes(given: Mapping[str, int]) -> dict[Split, int]:
    check_sizes("chess", given, tuple(SIZES))
    return {split: given.get(split, size) for split, size in SIZES.items()}


def _themes(given: Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str) or not all(isinstance(theme, str) for theme in given):
        raise ConfigError(f'domain chess, option themes: a list such as ["mateIn1"] is expected, found {given!r}')
    return tuple(given)


def _rating(given: Sequence[int] | None) -> tuple[int, int] | None:
    if given is None:
        return None
    numbers = [value for value in given if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) != 2 or len(given) != 2 or numbers[0] > numbers[1]:
        raise ConfigError(f"domain chess, option rating: lowest and highest are expected, found {given!r}")
    return (given[0], given[1])


def _max_plies(given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ConfigError(f"domain chess, option max_plies: a number of moves >= 1 is expected, found {given!r}")
    return given
