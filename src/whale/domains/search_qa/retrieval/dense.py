"""Dense retrieval: a sentence encoder and an exact search over all vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from whale.domains.search_qa.retrieval.base import Say
from whale.domains.search_qa.retrieval.corpus import count_rows
from whale.domains.search_qa.retrieval.encoder import (
    Encoder,
    Side,
    Vectors,
    encoder_digest,
    find_encoder,
    is_e5,
    read_dimension,
    weight_bytes,
)
from whale.domains.search_qa.retrieval.local import Hits, LocalOptions, LocalRetriever
from whale.domains.search_qa.retrieval.room import Measure, check_room, measure_room
from whale.domains.search_qa.retrieval.shards import Shards, build_shards
from whale.domains.search_qa.retrieval.store import PassageStore, build_once, write_json

WAY_OUT = (
    "Use a small corpus (the passages of your tasks), kind = 'bm25', dtype = 'float16' for half of it, or "
    "kind = 'http' with the index on a larger machine."
)
_NUMBER_BYTES = {"float32": 4, "float16": 2}


class DenseOptions(LocalOptions):
    """encoder: folder or hub id of a sentence-transformers model. query_prompt, passage_prompt: put before each text
    (default: what the encoder has stored, or E5's prefixes). dtype: of the vectors on disk. shard_rows: passages per
    file. max_length: tokens of a text that the encoder reads (default: its own limit). device: of the encoder
    (default: its own choice). batch: texts encoded at a time."""

    encoder: str
    query_prompt: str | None = None
    passage_prompt: str | None = None
    dtype: Literal["float32", "float16"] = "float32"
    shard_rows: int = Field(default=50_000, ge=1)
    max_length: int | None = Field(default=None, ge=1)
    device: str = ""
    batch: int = Field(default=64, ge=1)


class DenseRetriever(LocalRetriever):
    """Finds the passages nearest in meaning: always ``top_k``, however far, but for a blank query."""

    kind = "dense"
    version = 1

    def __init__(
        self, options: DenseOptions, tokenizer: Path | None, say: Say | None = None, measure: Measure = measure_room
    ) -> None:
        super().__init__(options, tokenizer, say, measure)
        self._options = options

    def settings(self) -> dict[str, Any]:
        """The options that change the vectors, and the digest of the encoder's files."""
        used = self._options.model_dump(exclude={"corpus", "cache", "device", "batch", "encoder"})
        # Of the encoder's name only this counts: the same files under another path make the same vectors.
        own = {"e5": is_e5(self._options.encoder), "files": encoder_digest(find_encoder(self._options.encoder))}
        return {**used, **own}

    def load(self, folder: Path) -> tuple[PassageStore, DenseIndex]:
        """See ``LocalRetriever.load``. The room is checked first."""
        source = find_encoder(self._options.encoder)
        dim = read_dimension(source)
        if dim is not None:
            self._check_room(folder, source, dim)
        store = self.open_store()
        encoder = self._load_encoder(source)
        if encoder.dim != dim:  # the files did not say it, or not rightly
            self._check_room(folder, source, encoder.dim)
        build_once(folder, lambda work: self._build(work, store, encoder), resume=True)
        shards = Shards(folder, store.rows, encoder.dim, self._options.shard_rows, self._options.dtype)
        return store, DenseIndex(encoder, shards)

    def _load_encoder(self, folder: Path) -> Encoder:
        options = self._options
        prompts: dict[Side, str | None] = {"query": options.query_prompt, "passage": options.passage_prompt}
        return Encoder(folder, options.encoder, prompts, options.max_length, options.device, options.batch)

    def _check_room(self, folder: Path, encoder: Path, dim: int) -> None:
        there = folder.is_dir()
        rows = json.loads((folder / "meta.json").read_text())["rows"] if there else count_rows(self.paths)
        vectors = vector_bytes(rows, dim, self._options.dtype)
        what = f"the dense index of {rows:,} passages x {dim} numbers in {self._options.dtype}"
        room = self.measure(self.cache)
        # Memory-mapped vectors could be larger than memory, but then every search would read them all from disk.
        check_room(what, vectors + weight_bytes(encoder), 0 if there else vectors, room, WAY_OUT, self.say)

    def _build(self, folder: Path, store: PassageStore, encoder: Encoder) -> None:
        options = self._options
        self.say(f"prompts: query {encoder.prompts['query']!r}, passage {encoder.prompts['passage']!r}")

        def encode(first: int, last: int) -> Vectors:
            return encoder.encode([options.text(document) for document in store.documents(first, last)], "passage")

        build_shards(folder, store.rows, encoder.dim, options.shard_rows, options.dtype, encode, self.say)
        write_json(folder / "meta.json", {"rows": store.rows, "dim": encoder.dim, "prompts": encoder.prompts})


class DenseIndex:
    """A loaded encoder and its memory-mapped vectors."""

    def __init__(self, encoder: Encoder, shards: Shards) -> None:
        self._encoder = encoder
        self._shards = shards

    def find(self, texts: list[str], top_k: int) -> list[Hits]:
        """See ``local.Index``."""
        scores, rows = self._shards.search(self._encoder.encode(texts, "query"), top_k)
        return [list(zip(map(int, r), map(float, s), strict=True)) for r, s in zip(rows, scores, strict=True)]


def vector_bytes(rows: int, dim: int, dtype: str) -> int:
    """Size of the vectors of an index: 21 million rows of 768 float32 numbers are 64.5 GB."""
    return rows * dim * _NUMBER_BYTES[dtype]
