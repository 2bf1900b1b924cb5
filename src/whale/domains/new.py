"""``whale domain new``: a small domain package of one's own, from a table of questions and answers."""

from __future__ import annotations

import csv
import importlib.util
import io
import keyword
import shutil
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import Any

from whale.domains import domain_names
from whale.domains.data.files import read_rows
from whale.domains.data.source import RowError
from whale.domains.data.table import read_table
from whale.errors import ConfigError, DomainError
from whale.types import SPLITS, Split, Task

TABLE = "tasks.csv"
LEAST = 12
"""Questions that a domain needs at least, so that each split has some."""

_OPTIONAL = ("id", "family", "split")  # columns that read_table knows beyond question and answer
_SHOWN = 5
_MOST_PER_STEP, _MOST_SEARCH, _MOST_TEST = 16, 24, 32  # of the recipe: a first run takes minutes


def new_domain(
    name: str, table: Path | None = None, question: str = "question", answer: str = "answer", out: Path | None = None
) -> list[str]:
    """Write the package ``out`` (default: folder ``name``) and return what to tell the user.

    Raises ConfigError for a name or column that cannot be used and an existing folder, DomainError for a table that
    cannot be read or has too few questions. Nothing is left behind then.
    """
    folder = out or Path(name)
    if folder.name != name:
        raise ConfigError(f"--out {folder}: the folder is the package, so its last part must be {name}")
    if folder.exists():
        raise ConfigError(f"{folder} exists already; choose another name or remove it")
    _check_name(name)
    if table is None and (question, answer) != ("question", "answer"):
        raise ConfigError("--question and --answer name columns of a table: give it with --csv FILE")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as scratch:
        made = Path(scratch) / name
        made.mkdir()
        left_out = _write_table(made / TABLE, table, question, answer)
        splits = read_table(made / TABLE)
        _check_sizes(splits, table)
        values = _values(name, splits)
        for template in _templates():
            text = Template(template.read_text(encoding="utf-8")).substitute(values)
            (made / _file_name(template.name)).write_text(text, encoding="utf-8")
        shutil.move(made, folder)  # whole or not at all
    counts = ", ".join(f"{split} {len(splits[split])}" for split in SPLITS if splits[split])
    place = "" if folder.parent.resolve() == Path.cwd() else f" (in {folder.parent}, from where they find the package)"
    return [
        f"{folder}: {sum(map(len, splits.values()))} questions ({counts})",
        *left_out,
        f"next{place}:",
        f"  whale domain check {name}.domain:{values['class_name']}",
        f"  whale run {name}/recipe.toml",
    ]


def _check_name(name: str) -> None:
    if not name.isidentifier() or keyword.iskeyword(name) or not name.isascii() or name.startswith("_"):
        raise ConfigError(f"{name!r} is no name for a domain: letters, digits and _ are expected, a letter first")
    if name in domain_names():
        raise ConfigError(f"{name!r} is a domain already; choose another name")
    if _is_module(name):
        raise ConfigError(f"{name!r} is the name of an installed Python module and would hide it; choose another name")


def _is_module(name: str) -> bool:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return True
    return spec is not None and spec.origin is not None  # a plain folder on the path is no module


def _templates() -> list[Traversable]:
    folder = files("whale.domains").joinpath("templates")
    return [file for file in folder.iterdir() if file.name.endswith(".tmpl")]


def _file_name(template: str) -> str:
    name = template.removesuffix(".tmpl")
    return "__init__.py" if name == "init.py" else name


def _values(name: str, splits: dict[Split, list[Task]]) -> dict[str, Any]:
    return {
        "name": name,
        "class_name": "".join(word[:1].upper() + word[1:] for word in name.split("_")) + "Domain",
        "table": TABLE,
        "tasks_per_step": min(_MOST_PER_STEP, len(splits["weights"])),
        "search_tasks": min(_MOST_SEARCH, len(splits["search"])),
        "test_tasks": min(_MOST_TEST, len(splits["test"])),
    }


def _check_sizes(splits: dict[Split, list[Task]], table: Path | None) -> None:
    total = sum(map(len, splits.values()))
    if total < LEAST:
        raise DomainError(f"{table}: {total} different questions; at least {LEAST} are needed")
    for split in ("weights", "search", "test"):
        if not splits[split]:  # type: ignore[index]
            raise DomainError(f"{table}, column split: no row has {split}; fill the column wholly or leave it out")


def _write_table(path: Path, table: Path | None, question: str, answer: str) -> list[str]:
    """Copy the table's questions and answers under their plain names; returns lines on rows that were left out."""
    if table is None:
        example = files("whale.domains").joinpath("templates", "example.csv")
        path.write_text(example.read_text(encoding="utf-8"), encoding="utf-8")
        return []
    text = io.StringIO()
    left_out: list[int] = []
    writer: Any = None
    for number, row in enumerate(read_rows(table), start=1):
        if isinstance(row, RowError):
            left_out.append(number)
            continue
        _check_columns(row, table, question, answer)
        if writer is None:
            kept = [column for column in _OPTIONAL if column in row and column not in (question, answer)]
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(["question", "answer", *kept])
        answers = list(_answers(row[answer]))
        if not _is_text(row[question]) or not answers:
            left_out.append(number)
        for value in answers if _is_text(row[question]) else []:
            writer.writerow([row[question], value, *(row.get(column) for column in kept)])
    if writer is None:
        raise DomainError(f"{table}: holds no rows with a question and an answer")
    path.write_text(text.getvalue(), encoding="utf-8")
    if not left_out:
        return []
    shown = ", ".join(map(str, left_out[:_SHOWN])) + (", ..." if len(left_out) > _SHOWN else "")
    return [f"{len(left_out)} rows without a readable question or answer were left out (rows {shown})"]


def _check_columns(row: Any, table: Path, question: str, answer: str) -> None:
    for option, column in (("question", question), ("answer", answer)):
        if column not in row:
            raise ConfigError(
                f"--{option} {column}: {table} has no such column; its columns are {', '.join(map(str, row))}"
            )


def _answers(value: Any) -> Iterator[str]:
    """The answers of a field: one, or a list of equally right ones."""
    for item in value if isinstance(value, list) else [value]:
        if _is_text(item):
            yield str(item)


def _is_text(value: Any) -> bool:
    return (isinstance(value, str) and bool(value.strip())) or (
        isinstance(value, int | float) and not isinstance(value, bool)
    )
