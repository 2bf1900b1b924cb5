"""Rows become tasks, one source at a time, in a file that can be continued after a kill at any byte.

Every raw row gives one line: a task, or why it is none. So the last whole line says how many rows were read, and
nothing has to be kept beside the file but what it was read from.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whale.domains.data.files import Row
from whale.domains.data.hub import Retry, with_retries
from whale.domains.data.inputs import Input
from whale.domains.data.source import Preparer, RowError, Source
from whale.errors import DomainError
from whale.types import SPLITS

_FLUSH_SECONDS = 1.0  # so much work is lost at most when the process is killed


class Watch:
    """Sees how a preparation goes. This one looks away; the command line shows it."""

    def note(self, text: str) -> None:
        """One line that a person should read."""

    def rows(self, source: str, read: int, total: int | None, per_second: float) -> None:
        """``read`` rows of a source are done (``total`` if known), lately so many a second."""


@dataclass(frozen=True)
class Part:
    """The file of one source. ``rows``: raw rows read, each a line."""

    source: Source
    path: Path
    rows: int


def fill(
    folder: Path, preparer: Preparer, given: Input, identity: Mapping[str, Any], watch: Watch, retry: Retry
) -> Part:
    """Read a source to its end, continuing what is there. ``identity``: what the rows are decided by.

    Raises DomainError with the differences if the part belongs to something else, and for whatever keeps the source
    from being read; a part that was begun stays and is continued by the next call.
    """
    source = given.source
    path, marker = folder / f"{source.name}.jsonl", folder / f"{source.name}.done.json"
    _claim(folder / f"{source.name}.source.json", {"preparer": preparer.version, **identity})
    done = _read_json(marker)
    if done is not None and path.exists() and path.stat().st_size == done["bytes"]:
        return Part(source, path, done["rows"])
    start = _cut_broken_end(path)
    if start:
        watch.note(f"{source.name}: going on after {start:,} rows")
    rows = _append(path, preparer, given, start, watch, retry)
    _check_count(given, rows, watch)
    write_json(marker, {"rows": rows, "bytes": path.stat().st_size})
    return Part(source, path, rows)


def discard(folder: Path, name: str) -> None:
    """Remove a source's part."""
    for ending in (".done.json", ".source.json", ".jsonl"):
        (folder / f"{name}{ending}").unlink(missing_ok=True)


def same_part(folder: Path, name: str, version: str, identity: Mapping[str, Any]) -> bool:
    """True unless a part of this source is there that was read from something else."""
    known = _read_json(folder / f"{name}.source.json")
    return known is None or known == {"preparer": version, **identity}


def write_json(path: Path, value: Any) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _claim(path: Path, identity: Mapping[str, Any]) -> None:
    known = _read_json(path)
    if known is None:
        write_json(path, identity)
    elif known != identity:
        changed = [key for key in {**known, **identity} if known.get(key) != identity.get(key)]
        raise DomainError(
            f"{path.parent} holds rows of {path.name.removesuffix('.source.json')} from another source or preparer "
            f"({', '.join(changed)} differ); give another --out, or --force to read them again"
        )


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DomainError(f"{path}: cannot be read: {error}; --force starts anew") from error
    return value if isinstance(value, dict) else None


def _cut_broken_end(path: Path) -> int:
    """Cut off what a kill left half written; returns the rows that are done."""
    if not path.exists():
        return 0
    with path.open("r+b") as file:
        end = last = 0
        for line in file:
            if not line.endswith(b"\n"):
                break
            last, end = end, end + len(line)
        file.truncate(end)
        file.seek(last)
        line = file.read()
    if not line:
        return 0
    try:
        return int(json.loads(line)["row"]) + 1
    except (ValueError, KeyError, TypeError):
        # A power cut can leave a whole line of nonsense; the line before it was written earlier.
        os.truncate(path, last)
        return _cut_broken_end(path)


def _append(path: Path, preparer: Preparer, given: Input, start: int, watch: Watch, retry: Retry) -> int:
    source, number = given.source, start
    rows = with_retries(source.name, given.rows, start, retry, watch.note)
    with path.open("ab") as file:
        then, before = time.monotonic(), start
        for row in rows:
            file.write(_line(preparer, source, number, row) + b"\n")
            number += 1
            now = time.monotonic()
            if now - then >= _FLUSH_SECONDS:
                file.flush()
                watch.rows(source.name, number, source.rows, (number - before) / (now - then))
                then, before = now, number
        file.flush()
        os.fsync(file.fileno())
        watch.rows(source.name, number, source.rows, (number - before) / max(time.monotonic() - then, 1e-9))
    return number


def _line(preparer: Preparer, source: Source, number: int, row: Row) -> bytes:
    try:
        if isinstance(row, RowError):
            raise row
        split = _declared(source, row)
        task = preparer.task(source, number, row)
        fields = {"id": task.id, "inputs": dict(task.inputs), "reference": task.reference, "family": task.family}
        return json.dumps({"row": number, "split": split, "task": fields}, ensure_ascii=False).encode()
    except (RowError, UnicodeEncodeError) as error:
        known = row.get("id") if isinstance(row, Mapping) else None
        reason = str(error) if isinstance(error, RowError) else "broken Unicode"
        line = {"row": number, "id": None if known is None else str(known), "dropped": reason}
        return json.dumps(line).encode()
    except Exception as error:  # the preparer's own fault, or a file with other columns than it expects
        columns = ", ".join(map(str, row)) if isinstance(row, Mapping) else ""
        raise DomainError(
            f"source {source.name}, row {number}: the preparer of {preparer.domain} failed with "
            f"{type(error).__name__}: {error}; the row's columns are {columns}"
        ) from error


def _declared(source: Source, row: Mapping[str, Any]) -> str | None:
    split = row.get("split")
    if split not in SPLITS:
        return None  # public sets use the word for their own parts, such as train and dev
    if split not in source.splits:
        raise RowError(f"its split {split} is not one of the source's")
    return str(split)


def _check_count(given: Input, rows: int, watch: Watch) -> None:
    source = given.source
    if source.rows is None or rows == source.rows:
        return
    text = f"source {source.name}: {rows:,} rows read, the public set has {source.rows:,}"
    if given.kind == "path":
        watch.note(text)
        return
    raise DomainError(
        f"{text}. The same command asks for the rest. If the set itself has changed, download its files and give them "
        "as PATHs: then another count is only noted"
    )
