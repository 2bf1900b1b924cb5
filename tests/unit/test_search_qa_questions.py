"""Questions from files, the domain's options, and what becomes of the rows of public sets."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from whale.domains.base import check_disjoint
from whale.domains.data.source import RowError
from whale.domains.search_qa import SearchQaDomain
from whale.domains.search_qa.prepare import SOURCES, SearchQaPreparer
from whale.domains.search_qa.questions import load, read_file
from whale.errors import ConfigError, DomainError
from whale.types import SPLITS

RETRIEVER = {"kind": "bm25", "corpus": ["corpus.jsonl"]}


def row(number: int, **changes: Any) -> dict[str, Any]:
    return {"id": f"q{number}", "dataset": "toy", "question": f"Who is {number}?", "answers": [f"A{number}"], **changes}


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode())) if path.suffix == ".gz" else path.write_text(text)
    return str(path)


def test_a_list_is_split_by_seed_and_sizes(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.jsonl", map(row, range(30))), write(tmp_path / "b.jsonl.gz", map(row, range(30, 40)))]
    splits = load(files, 0, {"test": 8, "search": 6})
    assert {split: len(tasks) for split, tasks in splits.items()} == {
        "test": 8, "search": 6, "unseen": 0, "weights": 26,
    }  # fmt: skip
    check_disjoint(splits)
    assert splits == load(files, 0, {"test": 8, "search": 6})
    assert splits["test"] != load(files, 1, {"test": 8, "search": 6})["test"]
    assert splits["test"] == load(files, 0, {"test": 8, "search": 20})["test"]
    first = splits["test"][0]
    assert first.family == "toy"
    assert set(first.inputs) == {"question"}
    assert isinstance(first.reference, list)


def test_each_split_may_have_its_files(tmp_path: Path) -> None:
    weights = write(tmp_path / "w.jsonl", map(row, range(10)))
    test = write(tmp_path / "t.jsonl", map(row, range(20, 24)))
    splits = load({"weights": [weights], "test": [test]}, 0, {"weights": 5})
    assert [len(splits[split]) for split in SPLITS] == [5, 0, 4, 0]


def test_every_alias_is_kept_once_and_a_repeated_question_is_kept_once(tmp_path: Path) -> None:
    rows = [
        row(0, answers=["B", "A", "B", " C "]),
        row(1),
        row(2, question="who is 1", answers=["other"]),
        row(3, golden_answers=["hub"], answers=["local"]),
    ]
    tasks = load([write(tmp_path / "a.jsonl", rows)], 0, {"test": 0, "search": 0})["weights"]
    by_id = {task.id: task for task in tasks}
    assert by_id["q0"].reference == ["B", "A", "C"]
    assert by_id["q3"].reference == ["hub"]
    assert set(by_id) == {"q0", "q1", "q3"}


def test_rows_without_their_passages_may_be_left_out(tmp_path: Path) -> None:
    passage = {"title": "T", "text": "x"}
    rows = [row(0, gold_paragraphs=[passage]), row(1, gold_paragraphs=[]), row(2)]
    path = write(tmp_path / "a.jsonl", rows)
    assert [task.id for task in read_file(Path(path), with_passages=True)] == ["q0"]
    assert len(load([path], 0, {"test": 0, "search": 0}, with_passages=True)["weights"]) == 1
    with pytest.raises(DomainError, match="no questions with gold_paragraphs"):
        read_file(Path(write(tmp_path / "b.jsonl", [row(1)])), with_passages=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answers": []}, "no answers"),
        ({"answers": ""}, "no answers"),
        ({"answers": "text"}, "no answers"),
        ({"answers": None}, "no answers"),
        ({"answers": [""]}, "an answer is empty"),
        ({"answers": ["A", "  "]}, "an answer is empty"),
        ({"answers": [1]}, "an answer is not a text"),
        ({"question": " "}, "no question"),
        ({"question": None}, "no question"),
    ],
)
def test_bad_rows_are_refused_with_file_and_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "a.jsonl", [row(0), row(1, **changes)])
    with pytest.raises(DomainError, match=rf"a\.jsonl, line 2: {message}"):
        read_file(Path(path))


def test_bad_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.jsonl").write_text("not json\n")
    (tmp_path / "list.jsonl").write_text("[1]\n")
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "broken.jsonl.gz").write_bytes(gzip.compress(b"{}" * 500)[:20])
    for name, message in (
        ("text.jsonl", "line 1: not JSON"),
        ("list.jsonl", "line 1: an object is expected"),
        ("empty.jsonl", "holds no questions"),
        ("broken.jsonl.gz", "cannot be read"),
        ("missing.jsonl", "cannot be read"),
    ):
        with pytest.raises(DomainError, match=message):
            read_file(tmp_path / name)


def test_shared_questions_of_two_splits_are_refused(tmp_path: Path) -> None:
    weights = write(tmp_path / "w.jsonl", map(row, range(10)))
    test = write(tmp_path / "t.jsonl", [row(70, question="WHO IS 7")])
    domain = SearchQaDomain(files={"weights": [weights], "test": [test]}, retriever=RETRIEVER)
    with pytest.raises(DomainError, match="weights and test: 1 questions with the same content"):
        domain.tasks("test")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"verifier": "fuzzy"}, "option verifier: one of exact, f1, judge"),
        ({"answer_tag": "maybe"}, "option answer_tag"),
        ({"sizes": {"training": 3}}, "unknown split 'training'"),
        ({"sizes": {"test": -1}}, "sizes.test"),
        ({"top_k_limit": 0}, "option top_k_limit"),
        ({"passage_tokens": True}, "option passage_tokens"),
        ({"passage_tokens": 500}, "more than passage_tokens_limit"),
        ({"data": "a", "files": ["b"]}, "not both"),
        ({"files": ["a.jsonl"]}, "option retriever: missing"),
        ({"retriever": {"kind": "oracle"}}, "kind"),
        ({"judge": {"model": "m"}}, "only used with verifier"),
        ({"verifier": "judge"}, "judge.model"),
        ({"verifier": "judge", "judge": {"model": "m", "api_key": "sk-1"}}, "does not belong in a recipe"),
        ({"verifier": "judge", "judge": {"model": "m", "colour": 1}}, "no option judge.colour"),
        ({"verifier": "judge", "judge": {"model": "m", "retries": -1}}, "judge.retries"),
        ({"verifier": "judge", "judge": {"model": "m", "seconds": 0}}, "judge.seconds"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SearchQaDomain(**options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ConfigError, "give the option data"),
        ({"files": "a.jsonl", "retriever": RETRIEVER}, ConfigError, "a list of JSONL files"),
        ({"files": {"training": ["a"]}, "retriever": RETRIEVER}, ConfigError, "unknown split 'training'"),
        ({"files": ["no.jsonl"], "retriever": RETRIEVER}, DomainError, "cannot be read"),
        ({"data": "nowhere", "retriever": RETRIEVER}, DomainError, "nowhere"),
    ],
)
def test_bad_data(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        SearchQaDomain(**options).tasks("test")


def test_too_few_questions(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", map(row, range(10)))
    with pytest.raises(DomainError, match=r"split search asks for 8 questions, 2 are left"):
        load([path], 0, {"test": 8, "search": 8})


def test_the_key_never_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError) as caught:
        SearchQaDomain(verifier="judge", judge={"model": "m", "key": "sk-secret"})
    assert "sk-secret" not in str(caught.value)


def test_public_rows_become_tasks() -> None:
    preparer = SearchQaPreparer()
    sources = {source.name: source for source in SOURCES}
    hub = {"id": "train_7", "question": " who? ", "golden_answers": ["A", "B"], "metadata": {}}
    task = preparer.task(sources["nq_train"], 7, hub)
    assert (task.id, task.family, task.reference) == ("nq_train_train_7", "nq", ["A", "B"])
    assert task.inputs == {"question": "who?"}
    assert preparer.task(sources["hotpotqa_dev"], 3, {"question": "q", "answers": ["yes"]}).id == "hotpotqa_dev_3"
    with pytest.raises(RowError, match="no answers"):
        preparer.task(sources["popqa"], 0, {"question": "q", "golden_answers": []})


def test_the_sources_are_the_paper_s() -> None:
    preparer = SearchQaPreparer()
    assert preparer.sizes["weights"] == 18_946
    weights = {source.name for source in SOURCES if "weights" in source.splits}
    assert weights == {"nq_train", "hotpotqa_train"}
    tests = [source for source in SOURCES if source.splits == ("test",)]
    task = {preparer.task(source, 0, {"question": "q", "answers": ["a"]}).family for source in tests}
    assert task == {"nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle"}
    assert len({source.name for source in SOURCES}) == len(SOURCES)


def test_real_files_become_tasks() -> None:
    folder = Path(os.environ.get("WHALE_TEST_DATA", ""), "search_qa")
    if not os.environ.get("WHALE_TEST_DATA") or not folder.is_dir():
        pytest.skip("WHALE_TEST_DATA does not hold the public question sets")
    files = [str(folder / name) for name in ("popqa.jsonl", "hotpotqa_train_gold.jsonl", "nq_open_dev.jsonl")]
    splits = load(files, 0, {"test": 96, "search": 48})
    check_disjoint(splits)
    assert sum(map(len, splits.values())) > 4400
    assert {task.family for task in splits["test"]} == {"popqa", "hotpotqa", "nq"}
    assert max(len(task.reference) for task in splits["weights"]) > 40
