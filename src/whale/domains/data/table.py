"""Tasks from a table of questions and answers: what a domain of one's own begins with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whale.domains.base import content_key
from whale.domains.data.files import read_rows
from whale.domains.data.source import RowError
from whale.errors import DomainError
from whale.seeds import derive
from whale.types import SPLITS, Split, Task

_SHARE = 4  # of the questions, one in so many goes to test and one to search
_MOST = 256  # tasks of test and of search by default


@dataclass
class _Question:
    task: Task
    split: Split | None
    row: int


def read_table(
    path: Path,
    question: str = "question",
    answer: str = "answer",
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
) -> dict[Split, list[Task]]:
    """Tasks by split from a .jsonl, .csv or .parquet file, plain or compressed.

    A task has the input ``question`` and a list of right answers as its reference: those of all rows that ask the
    same. Optional columns: ``id``, ``family``, ``split``. Rows without ``split`` are shared out by ``seed`` and
    content: ``sizes`` for test and search (default: a quarter each, at most 256), the rest to weights; each split is
    cut to its size, if given. Raises DomainError naming file, row (from 1, without the header) and column.
    """
    questions: dict[str, _Question] = {}
    for number, row in enumerate(read_rows(path), start=1):
        where = f"{path}, row {number}"
        if isinstance(row, RowError):
            raise DomainError(f"{where}: {row}")
        found = _question(row, number, question, answer, where)
        known = questions.setdefault(content_key(found.task), found)
        if known is not found:
            _merge(known, found, where)
    if not questions:
        raise DomainError(f"{path}: holds no rows")
    return _share_out(questions, seed, sizes or {})


def _question(row: Mapping[str, Any], number: int, question: str, answer: str, where: str) -> _Question:
    for column in (question, answer):
        if column not in row:
            raise DomainError(f"{where}: no column {column!r}; the columns are {', '.join(map(str, row))}")
    value = row[answer]
    references = [_text(item, answer, where) for item in (value if isinstance(value, list) else [value])]
    if not references:
        raise DomainError(f"{where}, column {answer}: no answer")
    name = str(row.get("id") or f"row-{number}")
    family = str(row.get("family") or "")
    task = Task(name, {"question": _text(row[question], question, where)}, references, family)
    split = row.get("split") or None
    if split is not None and split not in SPLITS:
        raise DomainError(f"{where}, column split: one of {', '.join(SPLITS)} is expected, found {split!r}")
    return _Question(task, split, number)


def _text(value: Any, column: str, where: str) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise DomainError(f"{where}, column {column}: text is expected, found {value!r}")
    return value.strip()


def _merge(known: _Question, again: _Question, where: str) -> None:
    """The same question once more: its answers are right too."""
    if known.split != again.split:
        raise DomainError(f"{where}: row {known.row} asks the same and has split {known.split!r}, not {again.split!r}")
    known.task.reference.extend(text for text in again.task.reference if text not in known.task.reference)


def _share_out(questions: Mapping[str, _Question], seed: int, sizes: Mapping[str, int]) -> dict[Split, list[Task]]:
    # By content and not by row, so that a row more does not move the others.
    ordered = [questions[key] for key in sorted(questions, key=lambda key: derive(seed, "table", key))]
    splits: dict[Split, list[Task]] = {name: [q.task for q in ordered if q.split == name] for name in SPLITS}
    free = [q.task for q in ordered if q.split is None]
    default = min(len(ordered) // _SHARE, _MOST)
    for name in ("test", "search"):
        more = max(sizes.get(name, default) - len(splits[name]), 0)  # type: ignore[index]
        splits[name] += free[:more]  # type: ignore[index]
        free = free[more:]
    splits["weights"] += free
    return {name: tasks[: sizes.get(name)] for name, tasks in splits.items()}
