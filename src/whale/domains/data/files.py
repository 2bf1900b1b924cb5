"""Rows of local files, one at a time: JSON lines, CSV and Parquet, plain or compressed."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from whale.domains.data.source import RowError
from whale.errors import ConfigError, DomainError

Row = Mapping[str, Any] | RowError
"""A row by its columns, or why the line is none. Values of CSV files are texts."""

FORMATS = (".jsonl", ".csv", ".parquet")
COMPRESSIONS = (".gz", ".zst")  # of the two text formats
EXTRA = "pip install 'whale-learn[data]'"

_CHUNK = 1 << 20
_BATCH_ROWS = 1024  # of a Parquet file held at once
_FIELD_BYTES = 1 << 30  # of a CSV field; Python's default of 128 KiB is less than a long text
_READ_ERRORS = (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error)


def is_data_file(path: Path) -> bool:
    """True if ``read_rows`` knows the format by the file's name."""
    return _format(path) is not None


def read_rows(path: Path) -> Iterator[Row]:
    """Every row of a file in its order. Raises DomainError naming file and row, ConfigError for a missing package."""
    kind = _format(path)
    if kind is None:
        raise DomainError(
            f"{path}: unknown format; known are {', '.join(FORMATS)}, "
            f"the first two also with {' or '.join(COMPRESSIONS)}"
        )
    number = 0
    try:
        for row in _READERS[kind](path):
            yield row
            number += 1
    except _READ_ERRORS as error:
        raise DomainError(f"{path}, row {number}: cannot be read: {error or type(error).__name__}") from error


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes. Raises DomainError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DomainError(f"{path}: cannot be read: {error.strerror or error}") from error


def _format(path: Path) -> str | None:
    name = path.name.lower()
    for ending in COMPRESSIONS:
        if name.endswith(ending):
            name = name.removesuffix(ending)
            return next((kind for kind in FORMATS[:2] if name.endswith(kind)), None)
    return next((kind for kind in FORMATS if name.endswith(kind)), None)


def _json_rows(path: Path) -> Iterator[Row]:
    with _text(path) as file:
        for line in file:
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:
                yield RowError("not JSON")
                continue
            yield row if isinstance(row, dict) else RowError("not a JSON object")


def _csv_rows(path: Path) -> Iterator[Row]:
    csv.field_size_limit(_FIELD_BYTES)
    with _text(path) as file:
        reader = csv.DictReader(file)
        for row in reader:
            if None in row:
                yield RowError("more fields than columns")
            elif None in row.values():
                yield RowError("fewer fields than columns")
            else:
                yield row


def _parquet_rows(path: Path) -> Iterator[Row]:
    try:
        from pyarrow import ArrowException  # type: ignore[import-untyped]
        from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigError(f"{path}: Parquet files need another package: {EXTRA}") from error
    try:
        with ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                yield from batch.to_pylist()
    except ArrowException as error:
        raise DomainError(f"{path}: cannot be read: {error}") from error


_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _json_rows,
    ".csv": _csv_rows,
    ".parquet": _parquet_rows,
}


def _text(path: Path) -> IO[str]:
    """The file as text; a byte order mark at its beginning is no part of it."""
    binary: Any
    name = path.name.lower()
    if name.endswith(".gz"):
        binary = gzip.open(path, "rb")  # noqa: SIM115  closed with the text around it
    elif name.endswith(".zst"):
        binary = io.BufferedReader(_Zstd(path), _CHUNK)
    else:
        binary = path.open("rb")
    return io.TextIOWrapper(binary, encoding="utf-8-sig", newline="")


class _Zstd(io.RawIOBase):
    """The content of a zstandard file of any number of frames; unlike the library's own reader it notices an end
    that comes too early, as after a download that was cut."""

    def __init__(self, path: Path) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise ConfigError(f"{path}: .zst files need another package: {EXTRA}") from error
        self._new = zstandard.ZstdDecompressor().decompressobj
        self._error = zstandard.ZstdError
        self._frame = self._new()
        self._fresh = True
        self._file = path.open("rb")
        self._ready = memoryview(b"")
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            data = self._left or self._file.read(_CHUNK)
            if not data:
                if not self._fresh:
                    raise EOFError("the file ends in the middle of its compressed data")
                return 0
            self._feed(data)
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _feed(self, data: bytes) -> None:
        try:
            self._ready = memoryview(self._frame.decompress(data))
        except self._error as error:
            raise OSError(str(error)) from error
        self._fresh, self._left = False, b""
        if self._frame.eof:
            self._left = self._frame.unused_data
            self._frame, self._fresh = self._new(), True

    def close(self) -> None:
        self._file.close()
        super().close()
