"""The search QA domain's offline source of candidates."""

from __future__ import annotations

from whale.domains.catalogue import PieceCatalogue
from whale.domains.search_qa.pieces import AXES, PIECES
from whale.domains.search_qa.template import render


class SearchQaCatalogue(PieceCatalogue):
    """The pieces of ``pieces.py`` under the template of ``template.py``."""

    def __init__(self) -> None:
        super().__init__(AXES, PIECES, render)
