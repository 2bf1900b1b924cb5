"""Reading a prepared folder: what is accepted, and what is said of everything else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whale.domains.data import read_prepared
from whale.domains.data.inputs import Input
from whale.domains.data.prepare import Request, prepare
from whale.domains.data.registry import load_preparer, preparer_names
from whale.domains.data.source import Source
from whale.errors import ConfigError, DomainError
from whale.types import Task

SOURCE = Source("words", ("weights", "search", "test"))


class Words:
    domain = "words"
    version = "words-1"
    sources = (SOURCE,)
    sizes = {"search": 4, "test": 4}  # noqa: RUF012

    def task(self, source: Source, number: int, row: Any) -> Task:
        return Task(f"w{number}", {"word": row["word"]}, {"answers": [row["word"].upper()]}, "é")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "words.jsonl"
    lines = [json.dumps({"word": f"line\u2028{i}\n\u00e9"}) for i in range(20)]
    path.write_text("\n".join(lines))
    prepare(Request(Words(), [Input(SOURCE, (path,))], tmp_path / "out"))
    return tmp_path / "out"


def test_tasks_come_back_as_they_were(folder: Path) -> None:
    tasks = read_prepared(folder, "words")
    assert {split: len(items) for split, items in tasks.items()} == {
        "weights": 12, "search": 4, "test": 4, "unseen": 0
    }  # fmt: skip
    by_id = {task.id: task for items in tasks.values() for task in items}
    text = "line\u20285\n\u00e9"
    assert by_id["w5"] == Task("w5", {"word": text}, {"answers": [text.upper()]}, "é")


def change(folder: Path, name: str, how: Callable[[str], str]) -> None:
    path = folder / name
    path.write_text(how(path.read_text(encoding="utf-8")), encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "how", "message"),
    [
        ("test.jsonl", lambda text: text.replace("w", "W", 1), "test.jsonl is not the file that was written"),
        ("test.jsonl", lambda text: text[: text.rindex('{"id"')], "test.jsonl has 3 rows, the manifest says 4"),
        ("search.jsonl", lambda text: text + text, "search.jsonl has 8 rows, the manifest says 4"),
        ("manifest.json", lambda text: text[:-20], "manifest.json cannot be read"),
        ("manifest.json", lambda text: text.replace('"schema": 1', '"schema": 7'), "schema 7, this version"),
        ("manifest.json", lambda text: "[]", "schema None"),
    ],
)
def test_a_changed_file_is_refused(folder: Path, name: str, how: Callable[[str], str], message: str) -> None:
    change(folder, name, how)
    with pytest.raises(DomainError, match=message):
        read_prepared(folder, "words")


def test_a_folder_of_something_else_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DomainError, match="was prepared for domain 'words', not for 'math'"):
        read_prepared(folder, "math")
    (folder / "weights.jsonl").unlink()
    with pytest.raises(DomainError, match=r"weights.jsonl cannot be read"):
        read_prepared(folder, "words")
    (folder / "manifest.json").unlink()
    with pytest.raises(DomainError, match="its preparation is not finished"):
        read_prepared(folder, "words")
    with pytest.raises(DomainError, match="it was never prepared"):
        read_prepared(tmp_path / "none", "words")


def test_preparers_by_name() -> None:
    assert {"math", "chess", "search_qa"} <= set(preparer_names())
    assert load_preparer(f"{__name__}:Words").domain == "words"
    with pytest.raises(ConfigError, match="no preparer 'chss': did you mean 'chess'"):
        load_preparer("chss")
    with pytest.raises(ConfigError, match="cannot import none"):
        load_preparer("none.such:Thing")
