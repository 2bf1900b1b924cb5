"""Chess puzzles, played move by move against the scripted replies of their solution."""

from whale.domains.chess.domain import ChessDomain

__all__ = ["ChessDomain"]
