"""Rows of public sets as tasks of the math domain."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from whale.domains.data.files import read_rows
from whale.domains.data.inputs import hub_inputs, local_inputs
from whale.domains.data.prepare import Request, prepare
from whale.domains.data.prepared import read_prepared
from whale.domains.data.source import RowError, Source
from whale.domains.math import MathDomain
from whale.domains.math.prepare import MathPreparer
from whale.errors import ConfigError, DomainError

HEAD = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
TAIL = '\n\nRemember to put your answer on its own line after "Answer:".'
CHINESE = (
    "\n\u8ba9\u6211\u4eec\u4e00\u6b65\u4e00\u6b65\u5730\u601d\u8003\u3002\u8bf7\u4ee5\u201cAnswer: "
    "\\boxed{<final_answer>}\u201d\u7684\u683c\u5f0f\u8f93\u51fa\u6700\u7ec8\u7b54\u6848\u3002"
)
SOURCES = {source.name: source for source in MathPreparer.sources}


def read(row: dict[str, Any], source: str = "dapo", number: int = 7) -> tuple[str, str, str, str]:
    task = MathPreparer().task(SOURCES[source], number, row)
    return task.id, task.inputs["problem"], task.reference, task.family


def test_the_layouts_of_dapo() -> None:
    verl = {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": HEAD + "What is $1+1$?" + TAIL}],
        "reward_model": {"ground_truth": "2", "style": "rule"},
        "extra_info": {"index": "9a9b"},
    }
    assert read(verl) == ("dapo-9a9b", "What is $1+1$?", "2", "dapo")
    processed = {"prompt": "What is $1+1$?", "solution": "2", "extra_info": {"index": "9a9b"}}
    assert read(processed) == ("dapo-9a9b", "What is $1+1$?", "2", "dapo")
    plain = {"id": "dapo_7", "problem": "What is $1+1$?" + CHINESE, "answer": "2"}
    assert read(plain) == ("dapo_7", "What is $1+1$?", "2", "dapo")


def test_the_layouts_of_the_other_sets() -> None:
    aime = {"id": 60, "problem": "P?", "solution": "so \\boxed{204}", "answer": "204", "url": "u", "year": "2024"}
    assert read(aime, "aime_2024") == ("aime_2024-60", "P?", "204", "aime_2024")
    assert read({"question": "P?", "answer": "70"}, "aime_2025") == ("aime_2025-7", "P?", "70", "aime_2025")
    gsm = {"question": "Q?", "answer": "2*600=<<2*600=1200>>1200\n#### 1,200"}
    assert read(gsm, "gsm8k_train")[2] == "1200"
    hard = {"problem": "P", "solution": "s \\boxed{1}", "answer": "\\frac{1}{2}", "unique_id": "test/a/1.json"}
    assert read(hard, "math_500") == ("math_500-test/a/1.json", "P", "\\frac{1}{2}", "math_500")
    school = {"problem": "P", "level": "Level 5", "solution": "so \\boxed{\\frac{1}{2}} holds"}
    assert read(school, "math_train")[2] == "\\frac{1}{2}"
    assert read({**school, "expected_answer": "0.5"}, "math_train")[2] == "0.5"


def test_a_damaged_escape_is_mended() -> None:
    assert read({"problem": "form \x0crac{m}{n}", "answer": "3"})[1] == "form \\frac{m}{n}"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"answer": "2"}, "no problem"),
        ({"problem": HEAD + TAIL, "answer": "2"}, "empty problem"),
        ({"problem": " ", "answer": "2"}, "empty problem"),
        (
            {"prompt": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], "solution": "2"},
            "no problem",
        ),
        ({"problem": "P"}, "no answer"),
        ({"problem": "P", "answer": True}, "no answer"),
        ({"problem": "P", "answer": ["1"]}, "no answer"),
        ({"problem": "P", "answer": "  "}, "empty answer"),
        ({"problem": "P", "answer": "1" * 2000}, "answer of more than"),
        ({"problem": "P", "answer": "\\frac{1}{2"}, "unmatched brace"),
        ({"problem": "P", "answer": "1}2"}, "unmatched brace"),
    ],
)
def test_rows_that_are_no_tasks(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        read(row)


def test_the_paper_s_sets_come_from_the_hub_and_the_others_on_request() -> None:
    def names(only: list[str]) -> set[str]:
        return {given.source.name for given in hub_inputs(MathPreparer.sources, lambda note: None, only)}

    assert names([]) == {"dapo", "aime_2024", "aime_2025"}
    assert names(["gsm8k_train", "math_500"]) == {"gsm8k_train", "math_500"}
    assert {source.name: source.rows for source in MathPreparer.sources}["dapo"] == 17_917
    with pytest.raises(ConfigError, match=r"--only gsm: there is no such source on the hub; known are dapo"):
        names(["gsm"])


def test_a_prepared_folder_is_the_domain_s_data(tmp_path: Path) -> None:
    weights = [{"id": f"dapo_{i}", "problem": f"What is ${i}+1$?", "answer": str(i + 1)} for i in range(20)]
    test = [{"id": f"aime_2024_{i}", "problem": f"What is ${i}^2$?", "answer": i * i} for i in range(3)]
    for name, rows in (("dapo.jsonl", weights), ("aime_2024.jsonl", test)):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    preparer = MathPreparer()
    inputs = local_inputs(preparer.sources, [str(tmp_path)], lambda note: None)
    prepare(Request(preparer, inputs, tmp_path / "out", sizes={"search": 5}))
    domain = MathDomain(data=str(tmp_path / "out"))
    assert [len(domain.tasks(split)) for split in ("weights", "search", "test", "unseen")] == [15, 5, 3, 0]
    assert domain.version == "math-2-strict-formulas1"
    with pytest.raises(ConfigError, match="exclude each other"):
        MathDomain(data="a", tasks_file="b")
    with pytest.raises(DomainError, match="manifest"):
        MathDomain(data=str(tmp_path)).tasks("test")
    assert MathDomain().version == "math-2-strict"
    assert len(read_prepared(tmp_path / "out", "math")["weights"]) == 15


DATA = Path(os.environ.get("WHALE_TEST_DATA", "/nonexistent")) / "math"


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason="WHALE_TEST_DATA is not set")
@pytest.mark.parametrize(
    ("name", "file", "tasks"),
    [
        ("dapo", "dapo_math_17k.jsonl.gz", 13589),
        ("aime_2024", "aime_2024.jsonl", 30),
        ("math_500", "math_500.jsonl", 402),
        ("gsm8k_train", "gsm8k_train.jsonl", 6031),
        ("gsm8k_test", "gsm8k_test.jsonl", 1040),
        ("math_train", "math_train_8k.jsonl.gz", 6754),  # two rows have no answer
    ],
)
def test_real_rows(name: str, file: str, tasks: int) -> None:
    preparer, source, found, dropped = MathPreparer(), SOURCES[name], {}, set()
    for number, row in enumerate(read_rows(DATA / file)):
        assert not isinstance(row, RowError)
        try:
            task = preparer.task(source, number, row)
        except RowError as error:
            dropped.add(str(error))
            continue
        found[task.id] = task
        assert "final_answer>" not in task.inputs["problem"]
        assert "\x0c" not in task.inputs["problem"]
    assert len(found) == tasks
    assert dropped <= {"empty answer"}


def test_sources_have_a_place() -> None:
    for source in MathPreparer.sources:
        assert isinstance(source, Source)
        assert source.splits in (("weights", "search"), ("test",))
