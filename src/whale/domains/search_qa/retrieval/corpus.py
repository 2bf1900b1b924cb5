"""Corpora: any JSONL file, plain or gzipped, read line by line."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from whale.domains.search_qa.retrieval.base import CorpusError

_BLOCK = 1 << 20  # bytes read at once for the digest


@dataclass(frozen=True)
class Document:
    """A passage as the corpus has it, whole. text is never empty, title may be."""

    id: str
    title: str
    text: str


@dataclass
class Dropped:
    """Rows that were left out: ``duplicates`` of an earlier title and text, and rows with an ``empty`` text."""

    duplicates: int = 0
    empty: int = 0


@dataclass
class _Seen:
    """What was read already. Eight-byte hashes: two of 21 million passages collide with a chance of 1 in 80,000."""

    ids: set[bytes] = field(default_factory=set)
    contents: set[bytes] = field(default_factory=set)


def read_documents(paths: Sequence[Path], dropped: Dropped) -> Iterator[Document]:
    """Every passage of the files in order, without rows that repeat an earlier title and text.

    Rows have ``id`` (text or number), ``title`` and ``text``; or ``id`` and ``contents``, whose first line is the
    title (quotes around it are taken off). An id that another file used before becomes ``<file name>:<id>``; one that
    repeats within its file is an error, unless the row repeats the passage too. dropped: counted up while reading.
    Raises CorpusError with file and line.
    """
    seen = _Seen()
    for path in paths:
        in_file: set[bytes] = set()
        for number, line in _lines(path):
            if not line.strip():
                continue
            document = _document(line, path, number)
            if not document.text:
                dropped.empty += 1
                continue
            content = _hash(f"{document.title}\0{document.text}")
            if content in seen.contents:
                dropped.duplicates += 1
                continue
            seen.contents.add(content)
            yield _with_own_id(document, path, number, seen, in_file)


def corpus_digest(paths: Sequence[Path]) -> str:
    """12 hex digits over the unpacked bytes and the names (without endings) of the files, in order.

    A gzipped file and its plain copy have the same digest. Raises CorpusError.
    """
    total = hashlib.sha256()
    for path in paths:
        digest = hashlib.sha256()
        try:
            with _open(path) as handle:
                while block := handle.read(_BLOCK):
                    digest.update(block)
        except (OSError, EOFError, zlib.error) as error:
            raise _unreadable(path, error) from error
        total.update(f"{_stem(path)}\0{digest.hexdigest()}\n".encode())
    return total.hexdigest()[:12]


def count_rows(paths: Sequence[Path]) -> int:
    """Lines of the files that are not blank: the passages of the corpus at most. Raises CorpusError."""
    return sum(1 for path in paths for _, line in _lines(path) if line.strip())


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".jsonl")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        with _open(path) as handle:
            for number, line in enumerate(handle, 1):
                yield number, line
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error, number) from error


def _unreadable(path: Path, error: Exception, line: int = 0) -> CorpusError:
    if isinstance(error, FileNotFoundError):
        return CorpusError(f"corpus: there is no file {path}")
    after = f" after line {line}" if line else ""
    return CorpusError(f"corpus: {path} cannot be read{after}: {error}; fetch or pack the file again")


def _document(line: bytes, path: Path, number: int) -> Document:
    where = f"corpus: {path}, line {number}"
    try:
        row: Any = json.loads(line)
    except ValueError as error:
        raise CorpusError(f"{where}: not JSON in UTF-8 ({error}); one object per line is expected") from error
    if not isinstance(row, dict):
        raise CorpusError(f"{where}: an object is expected, found {type(row).__name__}")
    name = row.get("id")
    if isinstance(name, bool) or not isinstance(name, str | int) or not str(name).strip():
        raise CorpusError(f"{where}: id must be a text or a number, found {name!r}")
    if "text" in row or "contents" not in row:
        title = row.get("title")
        title = "" if title is None else title
        text = row.get("text")
    else:
        title, text = split_contents(_text(row["contents"], "contents", where))
    return Document(
        _text(str(name), "id", where), _text(title, "title", where).strip(), _text(text, "text", where).strip()
    )


def _text(value: object, field_name: str, where: str) -> str:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # a lone surrogate has no place in any tokenizer
    raise CorpusError(f"{where}: {field_name} must be a text, found {value!r:.80}")


def split_contents(contents: str) -> tuple[str, str]:
    """Title and text of the one-field layout: the first line is the title, often in double quotes. A single line is
    a text without a title."""
    title, newline, text = contents.partition("\n")
    if not newline:
        return "", contents
    title = title.strip()
    if len(title) > 1 and title[0] == title[-1] == '"':
        title = title[1:-1]
    return title, text


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def _with_own_id(document: Document, path: Path, number: int, seen: _Seen, in_file: set[bytes]) -> Document:
    key = _hash(document.id)
    if key in in_file:
        raise CorpusError(f"corpus: {path}, line {number}: id {document.id!r} names an earlier, different passage")
    in_file.add(key)
    if key not in seen.ids:
        seen.ids.add(key)
        return document
    name = f"{_stem(path)}:{document.id}"
    own = _hash(name)
    if own in seen.ids:
        raise CorpusError(f"corpus: {path}, line {number}: id {name!r} is taken by a file of the same name; rename it")
    seen.ids.add(own)
    return Document(name, document.title, document.text)
