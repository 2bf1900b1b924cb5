"""Retrieval for search QA: BM25, a dense index or a server over HTTP, behind one small interface."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whale.domains.search_qa.retrieval.base import (
    CorpusError,
    Passage,
    RetrievalError,
    Retriever,
    Say,
    nearest,
    read_options,
)
from whale.errors import ConfigError

__all__ = ["KINDS", "CorpusError", "Passage", "RetrievalError", "Retriever", "open_retriever"]

KINDS = ("bm25", "dense", "http")


def open_retriever(options: Mapping[str, Any], tokenizer: Path | None, say: Say | None = None) -> Retriever:
    """The retriever that ``options`` describe: ``kind`` and the options of that kind (docs/retrieval.md).

    tokenizer: the policy's ``tokenizer.json`` (or the folder that holds it), which passages are cut by; ``None`` cuts
    by words. say: called with one line per step of an index build (default: standard error).
    Nothing is read or loaded before ``start``. Raises ConfigError for an unknown kind, option or value.
    """
    given = dict(options)
    kind = given.pop("kind", None)
    if kind not in KINDS:
        known = dict.fromkeys(KINDS)
        found = "is missing" if kind is None else f"{kind!r} is unknown"
        raise ConfigError(f"retriever: the option kind {found}: {nearest(str(kind), known)}")
    where = f"retriever {kind}"
    # Imported here, so that a run over HTTP needs neither an index library nor numpy.
    if kind == "bm25":
        from whale.domains.search_qa.retrieval.bm25 import Bm25Options, Bm25Retriever

        return Bm25Retriever(read_options(Bm25Options, given, where), tokenizer, say)
    if kind == "dense":
        from whale.domains.search_qa.retrieval.dense import DenseOptions, DenseRetriever

        return DenseRetriever(read_options(DenseOptions, given, where), tokenizer, say)
    from whale.domains.search_qa.retrieval.http import HttpOptions, HttpRetriever

    return HttpRetriever(read_options(HttpOptions, given, where), tokenizer)
