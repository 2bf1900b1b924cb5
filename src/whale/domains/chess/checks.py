"""Answers that look like a solution and are none, for the check of the verifier."""

from __future__ import annotations

from collections.abc import Sequence

import chess

from whale.domains.chess.rules import Rules
from whale.types import Task


def junk(task: Task, rules: Rules) -> Sequence[str]:
    """Answers for ``ChessDomain.submit`` that must score 0 under ``rules``."""
    board, line = chess.Board(task.inputs["fen"]), list(task.reference)
    own, replies = line[::2], line[1::2]
    first = board.parse_uci(line[0])
    answers = ["", "O-O-O-O", "a1a9", " ".join([task.inputs["last_move"], *replies]), "the best move"]
    if not rules.san:
        answers.append(board.san(first))
    wrong = [move for move in board.legal_moves if move != first and (rules.strict or not _mates(board, move))]
    if wrong:
        least = min(move.uci() for move in wrong)
        answers += [least, " ".join([least, *own])]
    if len(own) > 1:
        answers.append(" ".join(own[:-1]))
        # Where a later move would already be right, the reversed line is no junk.
        if all(board.parse_uci(move) in wrong for move in own[1:] if chess.Move.from_uci(move) in board.legal_moves):
            answers.append(" ".join(reversed(own)))
    return answers


def _mates(board: chess.Board, move: chess.Move) -> bool:
    board.push(move)
    mates = board.is_checkmate()
    board.pop()
    return mates
