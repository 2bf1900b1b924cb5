"""Questions and their references from JSONL files, split by file or by seed."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from whale.domains.base import check_sizes, content_key
from whale.domains.data.source import RowError
from whale.errors import ConfigError, DomainError
from whale.types import SPLITS, Split, Task

Files = Mapping[Split, Sequence[str]] | Sequence[str]

SIZES: dict[Split, int] = {"test": 256, "search": 256, "unseen": 0}
"""Tasks per split where one list of files is split by seed; what is left over is ``weights``."""

_ORDER: tuple[Split, ...] = ("test", "search", "unseen")  # test first: it stays the same when another split grows


def task_of(row: Mapping[str, Any], name: str, family: str) -> Task:
    """The task of one row: ``question``, and ``golden_answers`` or ``answers`` with every known alias.

    Raises RowError for a question or an alias that is missing, blank or no text.
    """
    question = row.get("question")
    if not isinstance(question, str) or not question.strip():
        raise RowError("no question")
    aliases = row.get("golden_answers", row.get("answers"))
    if isinstance(aliases, str) or not isinstance(aliases, Sequence) or not aliases:
        raise RowError("no answers")
    if not all(isinstance(alias, str) for alias in aliases):
        raise RowError("an answer is not a text")
    if not all(alias.strip() for alias in aliases):
        raise RowError("an answer is empty")
    return Task(name, {"question": question.strip()}, list(dict.fromkeys(alias.strip() for alias in aliases)), family)


def read_file(path: Path, with_passages: bool = False) -> list[Task]:
    """Tasks of one JSONL file, plain or gzipped, in its order; family is the column ``dataset`` or the file's name.

    with_passages: leave out rows whose column ``gold_paragraphs`` is missing or empty. Raises DomainError naming
    file and line.
    """
    stem = path.name.removesuffix(".gz").removesuffix(".jsonl")
    tasks = []
    for number, line in _lines(path):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        row = _object(line, where)
        if with_passages and not row.get("gold_paragraphs"):
            continue
        try:
            tasks.append(task_of(row, str(row.get("id", f"{stem}_{number}")), str(row.get("dataset") or stem)))
        except RowError as error:
            raise DomainError(f"{where}: {error}; mend or remove the row") from None
    if not tasks:
        lack = " with gold_paragraphs" if with_passages else ""
        raise DomainError(f"{path}: holds no questions{lack}")
    return tasks


def load(files: Files, seed: int, sizes: Mapping[str, int], with_passages: bool = False) -> dict[Split, list[Task]]:
    """Tasks of every split, shuffled by ``seed``. Of rows with the same question the first is kept.

    files: one list, split by ``seed`` and ``sizes``; or split -> list, each whole or cut to its size. with_passages: as
    ``read_file`` has it.
    Raises ConfigError for options, DomainError for rows and for files that are too small.
    """
    check_sizes("search_qa", sizes)
    if isinstance(files, Mapping):
        return _by_file(files, seed, sizes, with_passages)
    pool = _shuffled(_paths(files, "files"), seed, with_passages)
    splits: dict[Split, list[Task]] = {split: [] for split in SPLITS}
    for split in _ORDER:
        size = sizes.get(split, SIZES[split])
        splits[split], pool = _take(pool, size, split), pool[size:]
    splits["weights"] = _take(pool, sizes.get("weights", len(pool)), "weights")
    return splits


def _by_file(
    files: Mapping[Split, Sequence[str]], seed: int, sizes: Mapping[str, int], with_passages: bool
) -> dict[Split, list[Task]]:
    splits: dict[Split, list[Task]] = {split: [] for split in SPLITS}
    for split, paths in files.items():
        if split not in SPLITS:
            raise ConfigError(f"domain search_qa, option files: unknown split {split!r}, known are {', '.join(SPLITS)}")
        tasks = _shuffled(_paths(paths, f"files.{split}"), seed, with_passages)
        splits[split] = _take(tasks, sizes.get(split, len(tasks)), split)
    return splits


def _paths(value: Any, field: str) -> list[Path]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise ConfigError(f"domain search_qa, option {field}: a list of JSONL files is expected, found {value!r}")
    return [Path(str(path)).expanduser() for path in value]


def _shuffled(paths: Sequence[Path], seed: int, with_passages: bool) -> list[Task]:
    """Any leading part is then a fair sample of all files."""
    tasks = [task for path in paths for task in read_file(path, with_passages)]
    first = {content_key(task): task for task in reversed(tasks)}
    tasks = [first[key] for key in sorted(first)]
    random.Random(f"search_qa/{seed}").shuffle(tasks)
    return tasks


def _take(tasks: list[Task], size: int, split: str) -> list[Task]:
    if len(tasks) < size:
        raise DomainError(
            f"search_qa: split {split} asks for {size} questions, {len(tasks)} are left; "
            f"name more files or lower sizes.{split}"
        )
    return tasks[:size]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            yield from enumerate(file, start=1)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise DomainError(f"{path}: cannot be read: {error}") from error


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DomainError(f"{where}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise DomainError(f"{where}: an object is expected, found {type(row).__name__}")
    return row
