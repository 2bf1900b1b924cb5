"""From a row of the Lichess puzzle database to a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import chess

from whale.domains.chess.board import play_out
from whale.domains.data.source import RowError
from whale.types import Task

MAX_PLIES = 9
"""Moves asked of the solver at most, as in the paper."""


def task(row: Mapping[str, Any], max_plies: int = MAX_PLIES) -> Task:
    """The task of a row with ``PuzzleId``, ``FEN`` and ``Moves`` (UCI, the opponent's first).

    The position is the one after the opponent's first move; the reference is the line from there. Raises RowError
    naming what cannot be used: a field, the position, a move, or a line with more than ``max_plies`` moves to find.
    """
    name, fen = _text(row, "PuzzleId"), _text(row, "FEN")
    moves = words(row, "Moves")
    if len(moves) < 2 or len(moves) % 2:
        raise RowError("the line does not end with a move of the solver")
    if len(moves) // 2 > max_plies:
        raise RowError(f"more than {max_plies} moves to find")
    try:
        board = chess.Board(fen)
    except ValueError:
        raise RowError("the FEN cannot be read") from None
    if not board.is_valid():
        raise RowError("the position is impossible")
    try:
        first = play_out(board, moves[:1])
        start = board.fen()
        line = play_out(board, moves[1:])
    except ValueError:
        raise RowError("a move of the line is not legal") from None
    inputs = {"fen": start, "last_move": first[0].uci()}
    return Task(name, inputs, [move.uci() for move in line], family(len(line), board))


def family(plies: int, end: chess.Board) -> str:
    """``mate_in_1``, ``mate_in_2``, ``mate`` (longer) or ``other``, from the line (plies, both sides) and its end."""
    if not end.is_checkmate():
        return "other"
    return f"mate_in_{(plies + 1) // 2}" if plies <= 3 else "mate"


def position(fen: str) -> str:
    """What makes two puzzles the same question: the FEN without its move counters."""
    return " ".join(fen.split()[:4])


def _text(row: Mapping[str, Any], field: str) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value.strip():
        raise RowError(f"field {field} is missing or empty")
    return value.strip()


def words(row: Mapping[str, Any], field: str) -> Sequence[str]:
    """The words of a column that is one text in Lichess's file and a list in other copies. Raises RowError."""
    value = row.get(field)
    if isinstance(value, str):
        return value.split()
    if isinstance(value, Sequence) and all(isinstance(word, str) for word in value):
        return value
    raise RowError(f"field {field} is missing or no text")
