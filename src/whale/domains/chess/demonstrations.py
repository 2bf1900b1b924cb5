"""Invented positions as a rendered harness holds them: what its view needs, the legal moves packed into one text."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Collection, Sequence
from typing import Any

from whale.domains.chess.rules import Rules
from whale.domains.chess.wording import Demo

Moves = Sequence[dict[str, str]]


def literal(demos: Sequence[Demo], form: str, fields: Collection[str], by_san: bool, suffixes: bool) -> str:
    """The assignment ``DEMOS = [...]``: one ``(observation, reply)`` each.

    form: of the reply. fields: parts of an observation to keep. by_san: legal moves in the order of their SAN. The
    packed legal moves read ``uci san uci san ...``.
    """
    lines = ["DEMOS = ["]
    for demo in demos:
        seen, legal = _observation(demo, by_san, suffixes)
        lines += ["    (", "        {"]
        lines += [f"            {_quote(name)}: {_quote(seen[name])}," for name in fields if name != "legal"]
        if "legal" in fields:
            packed = textwrap.wrap(" ".join(f"{move['uci']} {move['san']}" for move in legal), 90)
            pieces = [*(line + " " for line in packed[:-1]), packed[-1]]
            lines += [
                '            "legal": (',
                *(f"                {_quote(piece)}" for piece in pieces),
                "            ),",
            ]
        lines += ["        },", f"        {_quote(_reply(demo, form, legal))},", "    ),"]
    return "\n".join([*lines, "]"])


def in_order_of_san(moves: Moves) -> Moves:
    """By the text of the SAN without the ``x`` of captures, which would otherwise put these last."""
    return sorted(moves, key=lambda move: move["san"].replace("x", ""))


def _observation(demo: Demo, by_san: bool, suffixes: bool) -> tuple[dict[str, Any], Moves]:
    import chess

    from whale.domains.chess.board import drawing, legal_moves

    board = chess.Board(demo.fen)
    moves = legal_moves(board, Rules(suffixes=suffixes))
    seen = {
        "turn": chess.COLOR_NAMES[board.turn],
        "fen": demo.fen,
        "board": drawing(board),
        "last_move": demo.last_move,
        "own_moves": [],
    }
    return seen, in_order_of_san(moves) if by_san else moves


def _reply(demo: Demo, form: str, legal: Moves) -> str:
    number, move = next((i, move) for i, move in enumerate(legal, start=1) if move["uci"] == demo.move)
    replies = {"san": move["san"], "uci": move["uci"], "number": str(number)}
    return replies.get(form, f"<move>{move['uci']}</move>")


def _quote(value: Any) -> str:
    return json.dumps(value)
