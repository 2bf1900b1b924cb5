"""The texts of rendered harnesses: instructions per form, system prompts, nudges and invented demonstrations."""

from __future__ import annotations

from typing import NamedTuple

INSTRUCTIONS = {
    "": "Reply with one legal move in UCI notation, as <move>uci</move>.",
    "uci": "Reply with one legal move in UCI notation and nothing else.",
    "san": "Reply with one move copied from the list of legal moves and nothing else.",
    "number": "Reply with the number of one move of the list and nothing else.",
}

SYSTEM = {
    "": "You solve chess puzzles. Find the best move for the side to move.",
    "forcing": "You solve chess puzzles. Look at checks, captures and threats and at the enemy king before you choose.",
    "legend": "You solve chess puzzles. In a list of moves x takes, = promotes, + gives check and # gives mate.",
    "terse": "You solve chess puzzles. You name moves and never explain.",
}

THOUGHTS = {
    "plan": ("Say in one short sentence what the best move has to do. Do not name it yet.", "Idea"),
    "shortlist": ("Name two or three candidate moves, separated by commas.", "Candidates"),
}
"""What the policy is asked before it moves, and what its reply is then called."""


class Demo(NamedTuple):
    """An invented position, the opponent's last move in it, and the move to show."""

    fen: str
    last_move: str
    move: str


# Put together by hand to show a form: positions of no game, each with exactly one mate, so that the best move is beyond
# doubt. A test plays them, and holds their positions against real puzzles.
DEMOS = (
    Demo("6k1/5ppp/n7/1p6/1P6/P4N2/5PPP/3R2K1 w - - 0 28", "b8a6", "d1d8"),
    Demo("6k1/p4ppp/3q4/1p6/6n1/P3P3/1Q3PP1/5RK1 b - - 0 30", "c2b2", "d6h2"),
    Demo("6rk/pp4pp/2n5/6N1/8/2P5/PP3PP1/3R2K1 w - - 0 34", "f8g8", "g5f7"),
    Demo("r4rk1/p4ppp/1p6/8/6Q1/1P2P3/1B1n1PPP/6K1 w - - 0 27", "e4d2", "g4g7"),
    Demo("4k3/7p/1r6/5p2/5N1P/3P2P1/r7/6K1 b - - 0 31", "e2f4", "b6b1"),
)
