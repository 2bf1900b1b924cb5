"""A matrix of unit vectors in shards on disk: built so that a kill loses one shard, searched in blocks.

Each shard is a plain ``.npy`` file that is memory-mapped and handed to faiss block by block. A faiss index file was
the other choice: its flat index is copied into memory when it is read, keeps float16 under another index type, and is
written in one piece, so that a killed build starts again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whale.domains.search_qa.retrieval.base import RetrievalError, Say, needs_extra

Scores = NDArray[np.float32]
Rows = NDArray[np.int64]
EncodeRows = Callable[[int, int], NDArray[np.float32]]
"""Vectors of the rows from ``first`` up to, but not with, ``last``."""

_PIECE = 512  # rows encoded between two lines of progress
_BLOCK = 65_536  # rows compared at once: 200 MB of float32 with 768 numbers each


def shard_path(folder: Path, number: int) -> Path:
    """File of shard ``number``, from 0."""
    return folder / f"shard-{number:05d}.npy"


def build_shards(folder: Path, rows: int, dim: int, shard_rows: int, dtype: str, encode: EncodeRows, say: Say) -> None:
    """Write the shards that are missing. A file appears under its name only when it is whole and on disk."""
    done = 0
    started = time.monotonic()
    for number, first in enumerate(range(0, rows, shard_rows)):
        last = min(first + shard_rows, rows)
        path = shard_path(folder, number)
        if path.exists():
            continue
        vectors = np.empty((last - first, dim), dtype=dtype)
        for start in range(first, last, _PIECE):
            stop = min(start + _PIECE, last)
            vectors[start - first : stop - first] = encode(start, stop)
            done += stop - start
            rate = done / max(time.monotonic() - started, 1e-9)
            say(f"dense index: {stop:,} of {rows:,} passages, {rate:,.0f} a second")
        _save(path, vectors)


def _save(path: Path, vectors: NDArray[Any]) -> None:
    work = path.with_suffix(".tmp")
    with work.open("wb") as handle:
        np.save(handle, vectors)
        handle.flush()
        os.fsync(handle.fileno())
    work.replace(path)


class Shards:
    """The shards of a folder, memory-mapped. Raises RetrievalError if one is missing or has another shape."""

    def __init__(self, folder: Path, rows: int, dim: int, shard_rows: int, dtype: str) -> None:
        self.rows = rows
        self._parts: list[tuple[int, NDArray[Any]]] = []
        for number, first in enumerate(range(0, rows, shard_rows)):
            path = shard_path(folder, number)
            try:
                part = np.load(path, mmap_mode="r")
            except (OSError, ValueError) as error:
                raise RetrievalError(f"dense index: {path} cannot be read ({error}); delete the folder") from error
            expected = (min(shard_rows, rows - first), dim)
            if part.shape != expected or part.dtype != np.dtype(dtype):
                found = f"{part.shape} of {part.dtype}, expected {expected} of {dtype}"
                raise RetrievalError(f"dense index: {path} holds {found}; delete the folder")
            self._parts.append((first, part))

    def search(self, queries: NDArray[np.float32], top_k: int) -> tuple[Scores, Rows]:
        """Inner products and rows of the best ``min(top_k, rows)`` for each query, best first; of equal scores the
        first row. queries: (n, dim), C order. Each row is read once, however many queries there are."""
        faiss = _faiss()
        count = min(top_k, self.rows)
        scores = np.empty((len(queries), 0), dtype=np.float32)
        rows = np.empty((len(queries), 0), dtype=np.int64)
        for first, block in self._blocks():
            near = min(count, len(block))
            new_scores, new_rows = faiss.knn(queries, block, near, metric=faiss.METRIC_INNER_PRODUCT)
            scores = np.concatenate([scores, new_scores], axis=1)
            rows = np.concatenate([rows, new_rows.astype(np.int64) + first], axis=1)
            order = np.lexsort((rows, -scores), axis=1)[:, :count]
            scores, rows = np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)
        return scores, rows

    def _blocks(self) -> Iterator[tuple[int, NDArray[np.float32]]]:
        for first, part in self._parts:
            for start in range(0, len(part), _BLOCK):
                block = part[start : start + _BLOCK]
                yield first + start, np.ascontiguousarray(block, dtype=np.float32)  # float32: no copy


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise needs_extra("faiss-cpu", "dense") from error
    return faiss
