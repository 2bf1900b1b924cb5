"""Folders that are whole or absent, and the passages of a corpus on disk, ready to be read by row."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from whale.domains.search_qa.retrieval.base import CorpusError, RetrievalError, Say
from whale.domains.search_qa.retrieval.corpus import Document, Dropped, corpus_digest, read_documents

STORE_VERSION = 1
_EVERY = 1_000_000  # passages between two lines of progress


def build_once(target: Path, build: Callable[[Path], None], resume: bool = False) -> None:
    """Make folder ``target`` with ``build(work folder)``, unless it is there.

    The work folder ``<target>.building`` is renamed when ``build`` returns, so a folder that was half built is never
    taken for a whole one. A lock keeps a second process from building the same: it waits and finds the folder.
    resume: keep what a killed build left in the work folder, for a ``build`` that goes on from there.
    """
    if target.is_dir():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_name(target.name + ".lock")):
        if target.is_dir():
            return
        work = target.with_name(target.name + ".building")
        if work.exists() and not resume:
            shutil.rmtree(work)
        work.mkdir(exist_ok=True)
        build(work)
        work.rename(target)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def write_json(path: Path, value: object) -> None:
    """Write ``value`` so that the file is whole or absent."""
    work = path.with_name(path.name + ".tmp")
    with work.open("w", encoding="utf-8") as handle:
        json.dump(value, handle, indent=1)
        handle.flush()
        os.fsync(handle.fileno())
    work.replace(path)


class PassageStore:
    """The passages of a corpus in a folder: ``passages.jsonl`` and the offsets of its lines, both memory-mapped.

    rows: passages. text_bytes: size of ``passages.jsonl``. dropped: rows of the corpus that were left out.
    """

    def __init__(self, folder: Path) -> None:
        try:
            meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
            self._offsets = np.load(folder / "offsets.npy", mmap_mode="r")
            self._file = (folder / "passages.jsonl").open("rb")
            self._bytes = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise RetrievalError(f"corpus store {folder} cannot be read ({error}); delete the folder") from error
        self.rows: int = meta["rows"]
        self.text_bytes = len(self._bytes)
        self.dropped = Dropped(**meta["dropped"])

    def get(self, row: int) -> Document:
        """The passage of a row, from 0."""
        line = self._bytes[int(self._offsets[row]) : int(self._offsets[row + 1])]
        return Document(*json.loads(line))

    def documents(self, first: int = 0, last: int | None = None) -> Iterator[Document]:
        """The passages of the rows ``first`` up to, but not with, ``last`` (default: all)."""
        for row in range(first, self.rows if last is None else min(last, self.rows)):
            yield self.get(row)

    def close(self) -> None:
        """Close the files; safe to call twice."""
        self._bytes.close()
        self._file.close()


def open_store(paths: Sequence[Path], cache: Path, say: Say, digest: str = "") -> PassageStore:
    """The store of a corpus, built in ``cache`` if it is not there. digest: of the corpus, where it is known already.

    Raises CorpusError for files that cannot be used, or without a single passage.
    """
    folder = cache / f"corpus-{STORE_VERSION}-{digest or corpus_digest(paths)}"
    build_once(folder, lambda work: _write(work, paths, say))
    return PassageStore(folder)


def _write(folder: Path, paths: Sequence[Path], say: Say) -> None:
    dropped = Dropped()
    offsets = [0]
    with (folder / "passages.jsonl").open("wb") as out:
        for document in read_documents(paths, dropped):
            line = json.dumps([document.id, document.title, document.text], ensure_ascii=False)
            offsets.append(offsets[-1] + out.write(line.encode() + b"\n"))
            if len(offsets) % _EVERY == 0:
                say(f"corpus: {len(offsets):,} passages read")
    rows = len(offsets) - 1
    if not rows:
        raise CorpusError(f"corpus: no passage in {', '.join(map(str, paths))}")
    np.save(folder / "offsets.npy", np.asarray(offsets, dtype=np.int64))
    write_json(folder / "meta.json", {"rows": rows, "dropped": vars(dropped)})
    say(f"corpus: {rows:,} passages; {dropped.duplicates:,} duplicates and {dropped.empty:,} empty rows left out")
