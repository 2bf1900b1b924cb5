"""Tasks from a JSONL file of the user's: one object per line with id, problem, answer, split and maybe family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from whale.errors import DomainError
from whale.types import SPLITS, Split, Task


def read(path: Path) -> dict[Split, list[Task]]:
    """Tasks by split, in the order of the file. Raises DomainError naming file, line and field."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DomainError(f"{path}: cannot be read: {error}") from error
    splits: dict[Split, list[Task]] = {split: [] for split in SPLITS}
    first_line: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        row = _object(line, where)
        task = _task(row, where)
        if task.id in first_line:
            raise DomainError(f"{where}, field id: {task.id!r} is already the id of line {first_line[task.id]}")
        first_line[task.id] = number
        splits[_split(row, where)].append(task)
    if not first_line:
        raise DomainError(f"{path}: holds no tasks")
    return splits


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DomainError(f"{where}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise DomainError(f"{where}: an object is expected, found {type(row).__name__}")
    return row


def _task(row: dict[str, Any], where: str) -> Task:
    answer = row.get("answer")
    if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not str(answer).strip():
        raise DomainError(f"{where}, field answer: a number or text is expected, found {answer!r}")
    problem = {"problem": _text(row, "problem", where)}
    family = _text(row, "family", where) if "family" in row else ""
    return Task(_text(row, "id", where), problem, str(answer), family)


def _text(row: dict[str, Any], field: str, where: str) -> str:
    value = row.get(field)
    if isinstance(value, int) and not isinstance(value, bool) and field == "id":
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise DomainError(f"{where}, field {field}: text is expected, found {value!r}")
    return value


def _split(row: dict[str, Any], where: str) -> Split:
    for split in SPLITS:
        if row.get("split") == split:
            return split
    raise DomainError(f"{where}, field split: one of {', '.join(SPLITS)} is expected, found {row.get('split')!r}")
