"""The pieces of the catalogue: what each one changes, why it might help, and with what it does not go together.

Axes: ``form`` (what the policy is asked to write), ``demos``, ``view`` (what is shown of the position), ``moves`` (how
the legal moves are listed), ``system``, ``parse``, ``retry``, ``calls`` (several calls per move), ``memory`` (what is
kept from move to move) and ``stop``. No piece orders, drops or marks moves by what they do on the board. Many pieces
are expected to do nothing or to hurt under some policy: finding out which is the search's work.
"""

from __future__ import annotations

from whale.domains.catalogue import Piece

AXES = ("form", "demos", "view", "moves", "system", "parse", "retry", "calls", "memory", "stop")

BARE_FORMS = ("san", "uci", "number")
"""The reply is the move and nothing else. A piece that requires one brings the first."""

UCI_FORMS = ("", "uci")
"""The policy writes UCI; ``""`` is h0's own form, in tags."""

_NO_MOVE = ("bad_format", "no_move", "limit", "no_answer")

_FORM = (
    Piece(
        "form",
        "san",
        "If the policy copies one move in SAN from the list, fewer replies are unreadable or illegal than with UCI in "
        "tags, and what a move does (takes, checks, mates) stands in what it writes.",
        (*_NO_MOVE, "illegal_move", "wrong_move"),
        prior=4,
    ),
    Piece(
        "form",
        "uci",
        "If the policy writes the bare UCI move without tags, fewer replies are unreadable.",
        _NO_MOVE,
        prior=2,
    ),
    Piece(
        "form",
        "number",
        "If the policy writes the number of a move in the list, illegal moves vanish.",
        (*_NO_MOVE, "illegal_move"),
    ),
)

_DEMOS = (
    Piece(
        "demos",
        "turns",
        "If earlier turns of the chat show invented positions answered in the wanted form, replies keep to that form.",
        (*_NO_MOVE, "illegal_move", "wrong_move"),
        prior=4,
    ),
    Piece(
        "demos",
        "block",
        "If the message opens with invented positions and their moves, replies keep to the wanted form.",
        (*_NO_MOVE, "illegal_move", "wrong_move"),
        prior=2,
    ),
    Piece(
        "demos",
        "single",
        "If one earlier turn shows the wanted form, replies keep to it at a fraction of the context of many.",
        _NO_MOVE,
        prior=2,
    ),
)

_VIEW = (
    Piece(
        "view",
        "list_only",
        "If only the legal moves are shown, a policy that cannot read a board is not distracted by it.",
        (*_NO_MOVE, "illegal_move", "wrong_move"),
        conflicts={"moves": ("hidden",)},
        prior=2,
    ),
    Piece(
        "view",
        "fen",
        "If the position is shown as FEN alone, the shorter message is understood better.",
        ("wrong_move", "limit"),
    ),
    Piece(
        "view",
        "drawing",
        "If the position is shown as a drawing alone, the policy sees lines between pieces better than in FEN.",
        ("wrong_move",),
    ),
    Piece(
        "view",
        "squares",
        "If every piece is named with its square, the policy need not count files and ranks.",
        ("wrong_move", "illegal_move"),
    ),
)

_MOVES = (
    Piece(
        "moves",
        "one_notation",
        "If the legal moves are listed in UCI only, they are copied with fewer slips.",
        ("bad_format", "illegal_move"),
        requires={"form": ("", "uci", "number")},
    ),
    Piece(
        "moves",
        "by_piece",
        "If the legal moves are grouped by the piece that moves, the policy overlooks fewer of them.",
        ("illegal_move", "wrong_move"),
    ),
    Piece(
        "moves",
        "alphabetical",
        "If the legal moves stand in the alphabetical order of their SAN, they are found and copied better.",
        ("illegal_move", "bad_format"),
    ),
    Piece(
        "moves",
        "shuffled",
        "If the legal moves stand in random order, the policy cannot cling to a place in the list.",
        ("wrong_move",),
    ),
    Piece(
        "moves",
        "lines",
        "If each legal move stands on a line of its own, they are told apart better.",
        ("bad_format", "illegal_move"),
    ),
    Piece(
        "moves",
        "hidden",
        "If the legal moves are not listed, the policy thinks about the position instead of picking from a list.",
        ("wrong_move",),
        requires={"form": UCI_FORMS},
    ),
)

_SYSTEM = (
    Piece(
        "system",
        "none",
        "If there is no system prompt and the instruction stands in the first message, it is followed more often.",
        _NO_MOVE,
    ),
    Piece(
        "system",
        "forcing",
        "If the system prompt advises to look at forcing moves and the enemy king first, more moves are right.",
        ("wrong_move",),
    ),
    Piece(
        "system",
        "legend",
        "If the system prompt explains the signs of SAN, the policy reads from the list what each move does.",
        ("wrong_move",),
    ),
    Piece(
        "system",
        "terse",
        "If the system prompt forbids explanations, fewer replies are cut or stray.",
        _NO_MOVE,
    ),
)

_PARSE = (
    Piece(
        "parse",
        "first_word",
        "If the first word that names a move of the list is read, talk around it does no harm.",
        ("bad_format", "illegal_move"),
        requires={"form": BARE_FORMS},
    ),
    Piece(
        "parse",
        "last_word",
        "If the last word that names a move of the list is read, a policy that thinks aloud is understood.",
        ("bad_format", "illegal_move"),
        requires={"form": BARE_FORMS},
        conflicts={"stop": ("one_line",)},
    ),
    Piece(
        "parse",
        "untagged",
        "If the last word that looks like a UCI move is read where the tags are missing, fewer replies are lost.",
        ("bad_format", "no_move"),
        requires={"form": ("",)},
        prior=2,
    ),
)

_RETRY = (
    Piece(
        "retry",
        "show_moves",
        "If the legal moves are listed again after a slip, the next reply is one of them.",
        ("illegal_move", "bad_format"),
    ),
    Piece(
        "retry",
        "explain",
        "If the policy is told what was wrong with its move, the next reply is better.",
        ("illegal_move", "bad_format"),
        requires={"form": UCI_FORMS},  # the board explains in UCI
    ),
    Piece(
        "retry",
        "again",
        "If a slip is thrown away and the same question asked again, the policy is not led on by its own mistake.",
        ("illegal_move", "bad_format"),
    ),
    Piece(
        "retry",
        "patient",
        "If a reply that names no move of the list is sent back before it is played, fewer puzzles end by a slip.",
        ("illegal_move", "bad_format"),
        defaults={"times": 3},
        prior=2,
    ),
)

_CALLS = (
    Piece(
        "calls",
        "vote",
        "If the move named most often in three independent replies is played, chance mistakes cancel out.",
        ("wrong_move", "illegal_move"),
        defaults={"attempts": 3},
    ),
    Piece(
        "calls",
        "plan",
        "If the policy first says in a sentence what the move has to do, more moves are right.",
        ("wrong_move",),
    ),
    Piece(
        "calls",
        "shortlist",
        "If the policy first names a few candidate moves and then chooses, more moves are right.",
        ("wrong_move",),
    ),
    Piece(
        "calls",
        "confirm",
        "If the policy is asked whether its move is the best and may choose again after a no, more moves are right.",
        ("wrong_move",),
    ),
)

_MEMORY = (
    Piece(
        "memory",
        "fresh",
        "If each position is a conversation of its own, old positions and lists do not confuse the policy.",
        ("unfinished", "limit", "illegal_move"),
    ),
    Piece(
        "memory",
        "notes",
        "If each position is a conversation of its own with one line of the moves so far, the plan is kept at little "
        "cost.",
        ("unfinished", "limit", "wrong_move"),
    ),
)

_STOP = (
    Piece(
        "stop",
        "one_line",
        "If a reply ends with its first line, no budget and no reading is lost on what comes after.",
        _NO_MOVE,
        requires={"form": BARE_FORMS},
        prior=2,
    ),
    Piece(
        "stop",
        "closing_tag",
        "If a reply ends with the closing tag, no budget is lost on what comes after.",
        ("limit", "no_answer"),
        requires={"form": ("",)},
    ),
    Piece(
        "stop",
        "short",
        "If a reply may only have few tokens, the policy's straying costs little and does no harm.",
        ("limit", "no_answer"),
        requires={"form": BARE_FORMS},
        defaults={"max_tokens": 16},
    ),
    Piece(
        "stop",
        "more_turns",
        "If more replies than one per move are allowed, long puzzles survive a slip.",
        ("unfinished", "limit"),
        defaults={"turns": 18},
    ),
)

PIECES: tuple[Piece, ...] = (
    *_FORM, *_DEMOS, *_VIEW, *_MOVES, *_SYSTEM, *_PARSE, *_RETRY, *_CALLS, *_MEMORY, *_STOP,
)  # fmt: skip
