"""The chess domain's offline source of candidates."""

from __future__ import annotations

from functools import partial

from whale.domains.catalogue import PieceCatalogue
from whale.domains.chess.pieces import AXES, PIECES
from whale.domains.chess.template import render, seed_source

__all__ = ["ChessCatalogue", "seed_source"]


class ChessCatalogue(PieceCatalogue):
    """The pieces of ``pieces.py`` under the template of ``template.py``.

    suffixes: demonstrations show SAN with ``+`` and ``#``, as the board does.
    """

    def __init__(self, suffixes: bool = True) -> None:
        super().__init__(AXES, PIECES, partial(render, suffixes=suffixes))
