"""What the retrievers that search on this machine share: corpus, cache, search thread, cutting, health."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from pydantic import Field

from whale.cache import cache_folder
from whale.domains.search_qa.retrieval.base import Passage, RetrievalError, RetrieverOptions, Say, check_numbers
from whale.domains.search_qa.retrieval.corpus import Document, corpus_digest
from whale.domains.search_qa.retrieval.cut import Cutter
from whale.domains.search_qa.retrieval.room import Measure, measure_room
from whale.domains.search_qa.retrieval.store import PassageStore, open_store
from whale.domains.search_qa.retrieval.worker import BatchWorker

_MAX_BATCH = 64
_PROBES = 100  # passages tried for the health query; the first may hold no word at all
_PROBE_CHARACTERS = 200

Hits = list[tuple[int, float]]
"""Rows of the corpus and their scores, best first."""


class LocalOptions(RetrieverOptions):
    """corpus: JSONL files, plain or gzipped. title: titles are searched too. cache: folder for the index (default:
    ``retrieval`` in whale's cache)."""

    corpus: list[str] = Field(min_length=1)
    title: bool = True
    cache: str | None = None

    def text(self, document: Document) -> str:
        """What is indexed of a passage."""
        return f"{document.title}\n{document.text}" if self.title and document.title else document.text


class Index(Protocol):
    """A loaded index."""

    def find(self, texts: list[str], top_k: int) -> list[Hits]:
        """At most ``top_k`` hits for each of the texts, none of which is blank. Runs on the search thread."""
        ...


class _Query(NamedTuple):
    text: str
    top_k: int
    max_tokens: int | None


@dataclass(frozen=True)
class _Loaded:
    store: PassageStore
    index: Index
    cutter: Cutter


class LocalRetriever(ABC):
    """Implements ``Retriever`` over an index in the cache. A blank query finds nothing.

    say: called with one line per step of a build (default: standard error). measure: gives the free memory and disk.
    """

    kind: ClassVar[str]
    version: ClassVar[int]

    def __init__(
        self, options: LocalOptions, tokenizer: Path | None, say: Say | None = None, measure: Measure = measure_room
    ) -> None:
        self._common = options
        self.paths = [Path(path).expanduser() for path in options.corpus]
        self.cache = Path(options.cache).expanduser() if options.cache else cache_folder() / "retrieval"
        self.say = say or print_line
        self.measure = measure
        self._tokenizer = tokenizer
        self._digest = ""
        self._key = ""
        self._loaded: _Loaded | None = None
        self._worker: BatchWorker[_Query, list[Passage]] | None = None

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """All that changes what is found, but the corpus."""

    @abstractmethod
    def load(self, folder: Path) -> tuple[PassageStore, Index]:
        """Store and index from ``folder``, built first if it is not there. Raises RetrievalError."""

    @property
    def name(self) -> str:
        """``<kind>-<version>-<digest of the settings>-<digest of the corpus>``; the first time it reads the corpus
        files. Raises CorpusError, RetrievalError."""
        if not self._key:
            self._digest = corpus_digest(self.paths)
            self._key = hashlib.sha256(json.dumps(self.settings(), sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.kind}-{self.version}-{self._key}-{self._digest}"

    async def start(self) -> None:
        """Build or load the index and make one search. Raises RetrievalError, ConfigError (tokenizer)."""
        if self._worker is None:
            self._loaded = await asyncio.to_thread(self._open)
            self._worker = BatchWorker(self._answer, _MAX_BATCH, self.name)

    async def search(self, query: str, top_k: int, max_tokens: int | None) -> list[Passage]:
        """See ``Retriever.search``."""
        check_numbers(top_k, max_tokens)
        if self._worker is None:
            raise RetrievalError(f"the {self.kind} retriever is not running: call start() first")
        return await self._worker.ask(_Query(query, top_k, max_tokens))

    async def close(self) -> None:
        """Stop the search thread and close the files; safe to call twice."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.close()
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            loaded.store.close()

    def open_store(self) -> PassageStore:
        """The passages of the corpus on disk, written first if they are not there."""
        return open_store(self.paths, self.cache, self.say, self._digest)

    def _open(self) -> _Loaded:
        cutter = Cutter(self._tokenizer)
        store, index = self.load(self.cache / self.name)
        for document in store.documents(0, _PROBES):
            probe = self._common.text(document)[:_PROBE_CHARACTERS]
            if probe.strip() and index.find([probe], 1)[0]:
                return _Loaded(store, index, cutter)
        raise RetrievalError(
            f"retriever {self.kind}: searches for the first {_PROBES} passages find nothing; the corpus holds no words "
            f"that it can index, or {self.cache / self.name} is damaged: delete that folder"
        )

    def _answer(self, queries: list[_Query]) -> list[list[Passage]]:
        loaded = self._loaded
        if loaded is None:
            raise RetrievalError(f"the {self.kind} retriever is closed")
        texts = sorted({query.text for query in queries if query.text.strip()})
        found = loaded.index.find(texts, max(query.top_k for query in queries)) if texts else []
        hits = dict(zip(texts, found, strict=True))
        return [[_passage(loaded, *hit, q.max_tokens) for hit in hits.get(q.text, [])[: q.top_k]] for q in queries]


def _passage(loaded: _Loaded, row: int, score: float, max_tokens: int | None) -> Passage:
    document = loaded.store.get(row)
    return Passage(document.id, document.title, loaded.cutter.cut(document.text, max_tokens), score)


def print_line(line: str) -> None:
    """Where progress goes by default."""
    print(line, file=sys.stderr, flush=True)
