"""One puzzle on the host: the board, what may be seen of it, and its irrevocable end.

All of chess is done here, by python-chess. No harness computes a legal move, and none can take a move back.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import chess

from whale.domains.base import ToolInputError
from whale.domains.chess.rules import Rules
from whale.errors import DomainError
from whale.types import Json, Task, Verdict

Status = Literal["playing", "solved", "failed"]

_UCI = re.compile(r"[a-h][1-8][a-h][1-8][qrbn]?")
_SHOWN = 24  # characters of an unreadable move that the message about it repeats


class ChessEpisode:
    """Implements ``whale.protocols.Episode``: a puzzle that is played once.

    Tools: ``observe()`` returns the position as JSON text, ``move(uci)`` plays a move and returns the next one. A right
    move is answered by the scripted reply. A legal wrong move ends the puzzle. A text that is no move, or no legal one,
    leaves the position as it is and raises ToolInputError; after ``rules.retries`` of a kind at one position the next
    of that kind ends the puzzle too. Raises DomainError for a task that cannot be played.
    """

    def __init__(self, task: Task, rules: Rules) -> None:
        self._rules = rules
        self._board, self._line = _playable(task)
        self._last_move = str(task.inputs["last_move"])
        self._place = 0  # in the line: of the solver's next move
        self._own: list[dict[str, str]] = []
        self._bad: Counter[str] = Counter()  # at this position
        self._status: Status = "playing"
        self._reason = "no_move"
        self._closed = False
        self._seen: str | None = None
        self.tools = {"observe": self.observe, "move": self.move}

    async def observe(self, **arguments: Any) -> str:
        """The position as JSON text: fen, turn, board (a drawing), last_move (the opponent's), own_moves, legal (both
        lists of ``{"uci", "san"}``, legal ones by the text of their UCI, none at the end) and status."""
        if arguments:
            raise ToolInputError("observe takes no arguments")
        if self._seen is None:
            self._seen = json.dumps(self._observation())
        return self._seen

    async def move(self, **arguments: Any) -> str:
        """Play ``uci`` and return what ``observe`` then returns. Raises ToolInputError (see the class)."""
        text = arguments.pop("uci", None)
        if arguments or not isinstance(text, str):
            raise ToolInputError("move takes one argument, uci: the move as text")
        if self._closed or self._status != "playing":
            state = "is closed" if self._status == "playing" else f"has ended ({self._status})"
            raise ToolInputError(f"over: the puzzle {state}; no further move counts")
        self._play(self._read(text))
        return await self.observe()

    async def score(self, answer: str) -> Verdict:
        """What the board says; the answer's text counts for nothing. No move counts after this."""
        self._closed = True
        return Verdict(1.0 if self._status == "solved" else 0.0, self._reason)

    # ---- reading a move ------------------------------------------------------------------------------------------

    def _read(self, text: str) -> chess.Move:
        """The legal move that ``text`` names. Castling may be written as the king taking its own rook."""
        word = text.strip()
        try:
            if _UCI.fullmatch(word.lower()):
                move = self._board.parse_uci(word.lower())
            elif self._rules.san:
                move = self._board.parse_san(word)
            else:
                raise self._refusal(
                    "bad_format", f"not_uci: {_short(word)} is not a move in UCI notation (e2e4, e7e8q)"
                )
        except (chess.IllegalMoveError, chess.AmbiguousMoveError):
            raise self._refusal("illegal_move", f"illegal: {word} is not a legal move here{self._hint(word)}") from None
        except chess.InvalidMoveError:
            message = f"not_uci: {_short(word)} is a move neither in UCI nor in SAN (e2e4, Nf3)"
            raise self._refusal("bad_format", message) from None
        if not move:  # SAN has a notation for passing
            raise self._refusal("illegal_move", "illegal: passing is not a legal move")
        return move

    def _hint(self, word: str) -> str:
        promotes = any(move.uci()[:4] == word.lower() and move.promotion for move in self._board.legal_moves)
        return f"; say what the pawn becomes, such as {word.lower()}q" if promotes else ""

    def _refusal(self, reason: str, message: str) -> ToolInputError:
        """The error to raise; what it counts for is already done."""
        self._bad[reason] += 1
        self._reason = reason
        if self._bad[reason] <= self._rules.retries:
            return ToolInputError(message)
        self._end("failed", reason)
        return ToolInputError(f"{message}. The puzzle is lost.")

    # ---- playing it ----------------------------------------------------------------------------------------------

    def _play(self, move: chess.Move) -> None:
        listed = move == self._line[self._place]
        self._own.append({"uci": move.uci(), "san": self._rules.shown(self._board.san(move))})
        self._board.push(move)
        self._seen = None
        self._bad.clear()
        mates = self._board.is_checkmate() and not self._rules.strict
        if not (listed or mates):
            self._end("failed", "wrong_move")
        elif mates or self._place + 1 == len(self._line):
            self._end("solved", "right")
        else:
            reply = self._line[self._place + 1]
            self._board.push(reply)
            self._last_move = reply.uci()
            self._place += 2
            self._reason = "unfinished"

    def _end(self, status: Status, reason: str) -> None:
        self._status, self._reason, self._seen = status, reason, None

    def _observation(self) -> dict[str, Json]:
        return {
            "fen": self._board.fen(),
            "turn": chess.COLOR_NAMES[self._board.turn],
            "board": drawing(self._board),
            "last_move": self._last_move,
            "own_moves": self._own,
            "legal": legal_moves(self._board, self._rules) if self._status == "playing" else [],
            "status": self._status,
        }


def legal_moves(board: chess.Board, rules: Rules) -> list[dict[str, str]]:
    """Every legal move as ``{"uci", "san"}``, ordered by the text of its UCI and by nothing else."""
    found = [{"uci": move.uci(), "san": rules.shown(board.san(move))} for move in board.legal_moves]
    return sorted(found, key=lambda move: move["uci"])


def drawing(board: chess.Board) -> str:
    """Nine lines of text: ranks 8 to 1 with their numbers, then the letters of the files. White is at the bottom."""
    ranks = [f"{8 - i} {row}" for i, row in enumerate(str(board).splitlines())]
    return "\n".join([*ranks, "  a b c d e f g h"])


def play_out(board: chess.Board, moves: Sequence[str]) -> list[chess.Move]:
    """Play the moves (UCI) on ``board`` and return them as the board understands them. Raises ValueError naming the
    first that cannot be played."""
    played = []
    for number, text in enumerate(moves, start=1):
        try:
            move = board.parse_uci(text)
        except ValueError:
            raise ValueError(f"move {number} ({text}) is not legal") from None
        if not move:
            raise ValueError(f"move {number} ({text}) is not legal")
        board.push(move)
        played.append(move)
    return played


def _playable(task: Task) -> tuple[chess.Board, list[chess.Move]]:
    """The board at the start, and the line as moves. Raises DomainError."""
    line = task.reference
    if not isinstance(line, Sequence) or isinstance(line, str) or len(line) % 2 == 0:
        raise DomainError(f"puzzle {task.id}: its line must be a list of moves that ends with the solver's: {line!r}")
    try:
        board = chess.Board(task.inputs["fen"])
        return board, play_out(board.copy(), line)
    except (KeyError, ValueError) as error:
        raise DomainError(f"puzzle {task.id} cannot be played: {error}") from None


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
