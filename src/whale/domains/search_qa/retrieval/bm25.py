"""BM25 over a corpus on disk: words in common, no model. The default for small and middle-sized corpora."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from whale.domains.search_qa.retrieval.base import RetrievalError, Say, needs_extra
from whale.domains.search_qa.retrieval.local import Hits, LocalOptions, LocalRetriever
from whale.domains.search_qa.retrieval.room import Measure, check_room, measure_room
from whale.domains.search_qa.retrieval.store import PassageStore, build_once

BUILD_MEMORY = 8
"""Bytes of memory that a build takes at its peak per byte of passages (measured: 6; see docs/retrieval.md)."""
_ACCENTS = re.compile("[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+")  # marks that combine
WAY_OUT = "Use a smaller corpus, or kind = 'http' with the index on a larger machine."


class Bm25Options(LocalOptions):
    """k1, b: of BM25 (Lucene's form). stopwords: leave out English function words. stemmer: ``none`` or ``english``
    (needs PyStemmer)."""

    k1: float = Field(default=1.5, ge=0)
    b: float = Field(default=0.75, ge=0, le=1)
    stopwords: bool = True
    stemmer: Literal["none", "english"] = "none"


class Bm25Retriever(LocalRetriever):
    """Finds passages that share words with the query: fewer than ``top_k`` where fewer do."""

    kind = "bm25"
    version = 1

    def __init__(
        self, options: Bm25Options, tokenizer: Path | None, say: Say | None = None, measure: Measure = measure_room
    ) -> None:
        super().__init__(options, tokenizer, say, measure)
        self._options = options

    def settings(self) -> dict[str, Any]:
        """All options but the paths."""
        return self._options.model_dump(exclude={"corpus", "cache"})

    def load(self, folder: Path) -> tuple[PassageStore, Bm25Index]:
        """See ``LocalRetriever.load``."""
        bm25s = _bm25s()
        store = self.open_store()
        build_once(folder, lambda work: self._build(work, store))
        try:
            index = bm25s.BM25.load(folder, mmap=True)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RetrievalError(f"BM25 index {folder} cannot be read ({error}); delete the folder") from error
        if index.scores["num_docs"] != store.rows:
            raise RetrievalError(f"BM25 index {folder} does not fit its corpus; delete the folder")
        return store, Bm25Index(index, self._options)

    def _build(self, folder: Path, store: PassageStore) -> None:
        room = self.measure(self.cache)
        check_room("BM25 build", BUILD_MEMORY * store.text_bytes, store.text_bytes, room, WAY_OUT, self.say)
        tokens = tokenize((self._options.text(document) for document in store.documents()), self._options)
        if not tokens.vocab:
            raise RetrievalError("BM25: the corpus holds no word that could be indexed; use kind = 'dense'")
        index = _bm25s().BM25(k1=self._options.k1, b=self._options.b, method="lucene", backend="numpy")
        index.index(tokens, show_progress=False)
        index.save(folder, show_progress=False)
        self.say(f"BM25 index of {store.rows:,} passages and {len(tokens.vocab):,} words built")


class Bm25Index:
    """A loaded index of bm25s, memory-mapped."""

    def __init__(self, index: Any, options: Bm25Options) -> None:
        self._index = index
        self._options = options

    def find(self, texts: list[str], top_k: int) -> list[Hits]:
        """See ``local.Index``. A text without a known word has no hits."""
        found = []
        for words in tokenize(texts, self._options, ids=False):
            ids = self._index.get_tokens_ids(words)
            scores = self._index.get_scores_from_ids(ids)
            found.append([(int(row), float(scores[row])) for row in best_rows(scores, top_k)])
        return found


def best_rows(scores: NDArray[np.float32], top_k: int) -> NDArray[np.int64]:
    """Rows with the ``top_k`` highest scores above 0, best first; of equal scores the first rows."""
    rows = np.flatnonzero(scores > 0)
    if top_k < len(rows):
        least = np.partition(scores[rows], -top_k)[-top_k]
        rows = rows[scores[rows] >= least]
    order = np.argsort(-scores[rows], kind="stable")
    return rows[order[:top_k]]


def tokenize(texts: Iterable[str], options: Bm25Options, ids: bool = True) -> Any:
    """bm25s' tokens of the texts (words of two signs and more, lower case): with ``ids`` as numbers and a vocabulary,
    else as lists of words."""
    return _bm25s().tokenize(
        (fold(text) for text in texts),
        stopwords="english" if options.stopwords else [],
        stemmer=_stemmer() if options.stemmer == "english" else None,
        return_ids=ids,
        show_progress=False,
    )


def fold(text: str) -> str:
    """``text`` with accents taken off and compatibility forms unified: José is found as Jose."""
    if text.isascii():
        return text
    return _ACCENTS.sub("", unicodedata.normalize("NFKD", text))


def _bm25s() -> Any:
    try:
        import bm25s
    except ImportError as error:
        raise needs_extra("bm25s", "search") from error
    return bm25s


def _stemmer() -> Any:
    try:
        import Stemmer  # type: ignore[import-not-found]
    except ImportError as error:
        raise RetrievalError("retriever bm25: stemmer = 'english' needs PyStemmer: pip install PyStemmer") from error
    return Stemmer.Stemmer("english")
