"""A table of questions and answers becomes tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from whale.domains.base import check_disjoint
from whale.domains.data.table import read_table
from whale.errors import DomainError


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows(count: int) -> list[dict[str, Any]]:
    return [{"question": f"Question {i}?", "answer": f"a{i}"} for i in range(count)]


def test_a_quarter_each_for_search_and_test(tmp_path: Path) -> None:
    splits = read_table(write(tmp_path / "t.jsonl", rows(40)))
    assert [len(splits[name]) for name in ("weights", "search", "test", "unseen")] == [20, 10, 10, 0]
    check_disjoint(splits)
    assert splits == read_table(tmp_path / "t.jsonl")
    assert splits["test"] != read_table(tmp_path / "t.jsonl", seed=1)["test"]


def test_a_row_more_moves_no_other_row(tmp_path: Path) -> None:
    sizes = {"test": 10, "search": 10}
    before = read_table(write(tmp_path / "t.jsonl", rows(40)), sizes=sizes)
    after = read_table(write(tmp_path / "t.jsonl", [{"question": "New?", "answer": "n"}, *rows(40)]), sizes=sizes)
    same = {task.inputs["question"] for task in before["test"]} & {task.inputs["question"] for task in after["test"]}
    assert len(same) >= 9


def test_the_answers_of_one_question_are_all_right(tmp_path: Path) -> None:
    table = [
        *rows(12),
        {"question": "question 3", "answer": ["b", "a3"]},
        {"question": "QUESTION 3", "answer": 7},
    ]
    splits = read_table(write(tmp_path / "t.jsonl", table))
    tasks = {task.id: task for items in splits.values() for task in items}
    assert len(tasks) == 12
    assert tasks["row-4"].reference == ["a3", "b", "7"]


def test_columns_of_other_names_and_optional_ones(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("Frage,Antwort,id,family,split\nWas?,das,x1,kurz,test\nWo?,da,,,weights\nWer?,er,,,\n")
    splits = read_table(path, "Frage", "Antwort", sizes={"test": 1, "search": 1})
    (task,) = splits["test"]
    assert (task.id, task.family, task.reference) == ("x1", "kurz", ["das"])
    assert [task.id for task in splits["weights"]] == ["row-2"]
    assert [task.id for task in splits["search"]] == ["row-3"]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([{"question": "a", "reply": "b"}], r"row 1: no column 'answer'; the columns are question, reply"),
        ([*rows(2), {"question": "a", "answer": " "}], r"row 3, column answer: text is expected, found ' '"),
        ([{"question": None, "answer": "b"}], "row 1, column question: text"),
        ([{"question": "a", "answer": []}], "row 1, column answer: no answer"),
        ([{"question": "a", "answer": "b", "split": "train"}], "column split: one of weights, search, test, unseen"),
        (
            [{"question": "a", "answer": "b", "split": "test"}, {"question": "A", "answer": "b", "split": "search"}],
            "row 2: row 1 asks the same and has split 'test', not 'search'",
        ),
        ([], "holds no rows"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, table: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(DomainError, match=message):
        read_table(write(tmp_path / "t.jsonl", table))


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"question": "a", "answer": "b"}\n{"question":\n')
    with pytest.raises(DomainError, match="row 2: not JSON"):
        read_table(tmp_path / "t.jsonl")
