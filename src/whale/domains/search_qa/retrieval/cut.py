"""Passages cut to a number of the policy's tokens."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from whale.domains.search_qa.retrieval.base import needs_extra
from whale.errors import ConfigError

WORDS_PER_TOKEN = 0.65
"""Words (runs without space) taken for one token where no tokenizer is given: what English Wikipedia passages have on
average with a vocabulary of 49,152 (0.62 to 0.66); a passage full of names and numbers may have 0.5."""

_WORD = re.compile(r"\S+")
_CACHED = 4096  # cuts kept; a passage that all rollouts of a task find is cut once


class Cutter:
    """Cuts texts to tokens. tokenizer: a ``tokenizer.json`` or the folder that holds it; ``None`` cuts by words.

    Raises ConfigError for a file that is no tokenizer, RetrievalError without the package ``tokenizers``.
    """

    def __init__(self, tokenizer: Path | None) -> None:
        self._tokenizer = _load(tokenizer) if tokenizer is not None else None
        self._cut = lru_cache(maxsize=_CACHED)(self._by_tokens if self._tokenizer is not None else _by_words)

    def cut(self, text: str, max_tokens: int | None) -> str:
        """The longest beginning of ``text`` that ends with a token and encodes to at most ``max_tokens`` (from 1)."""
        return text if max_tokens is None else self._cut(text, max_tokens)

    def count(self, text: str) -> int:
        """Tokens of ``text``, without special ones; without a tokenizer, an estimate from its words."""
        if self._tokenizer is None:
            return round(len(_WORD.findall(text)) / WORDS_PER_TOKEN)
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _by_tokens(self, text: str, max_tokens: int) -> str:
        assert self._tokenizer is not None
        offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
        kept = min(max_tokens, len(offsets))
        if kept == len(offsets):
            return text
        while kept:
            # The smaller of the two: a character that is split over two tokens is left out whole.
            part = text[: min(offsets[kept - 1][1], offsets[kept][0])]
            if self.count(part) <= max_tokens:  # cut inside a word, its beginning may encode to more tokens
                return part
            kept -= 1
        return ""


def _by_words(text: str, max_tokens: int) -> str:
    words = max(1, int(max_tokens * WORDS_PER_TOKEN))
    for number, match in enumerate(_WORD.finditer(text), 1):
        if number == words:
            return text[: match.end()]
    return text


def _load(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise needs_extra("tokenizers", "search") from error
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"tokenizer: there is no file {file}")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for anything it cannot read
        raise ConfigError(f"tokenizer: {file} is not a tokenizer.json ({error})") from error
    tokenizer.no_truncation()  # a stored limit would hide the rest of a text
    tokenizer.no_padding()
    return tokenizer
