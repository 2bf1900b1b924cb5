"""Sharing out: sizes, duplicates, overlaps, families in turn, and the order by the seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from whale.domains.base import check_disjoint, content_key
from whale.domains.data.hub import Retry
from whale.domains.data.inputs import Input
from whale.domains.data.parts import Part, Watch, fill
from whale.domains.data.source import RowError, Source
from whale.domains.data.splits import Index, Shares, Sizes, build_index, interleaved, share_out
from whale.errors import DomainError
from whale.types import Split, Task

TRAIN = Source("train", ("weights", "search"))
ALL = Source("all", ("weights", "search", "test"))
EXAM = Source("exam", ("test",))


class Plain:
    domain = "plain"
    version = "1"
    sources = (TRAIN, ALL, EXAM)
    sizes: ClassVar[dict[Split, int | None]] = {}

    def task(self, source: Source, number: int, row: Any) -> Task:
        if "q" not in row:
            raise RowError("no question")
        return Task(row.get("id", f"{source.name}-{number}"), {"q": row["q"]}, "r", row.get("family", source.name))


class Rows(Input):
    rows_given: Sequence[Any] = ()

    def rows(self, start: int) -> Any:
        return iter(self.rows_given[start:])


def part(folder: Path, source: Source, rows: Sequence[Any]) -> Part:
    given = Rows(source)
    object.__setattr__(given, "rows_given", rows)
    return fill(folder, Plain(), given, {"kind": "test"}, Watch(), Retry())


def questions(texts: Sequence[Any], **fields: Any) -> list[dict[str, Any]]:
    return [{"q": f"{text}", **fields} for text in texts]


def shared(
    folder: Path, rows: dict[Source, Sequence[Any]], sizes: Sizes, seed: int = 0
) -> tuple[Index, Shares, dict[str, list[str]]]:
    parts = [part(folder, source, items) for source, items in rows.items()]
    index = build_index(parts, seed, lambda *line: None)
    shares = share_out(index, sizes)
    return (
        index,
        shares,
        {
            split: [line["task"]["inputs"]["q"] for line in index.lines(numbers)]
            for split, numbers in shares.splits.items()
        },
    )


def reasons(shares: Shares) -> list[str]:
    return sorted(drop.reason for drop in shares.drops)


def test_sizes_and_the_rest_to_weights(tmp_path: Path) -> None:
    sizes = Sizes({"test": 10, "search": 20, "weights": None})
    _, shares, splits = shared(tmp_path, {ALL: questions(range(100))}, sizes)
    assert {split: len(items) for split, items in splits.items()} == {
        "test": 10, "search": 20, "weights": 70, "unseen": 0
    }  # fmt: skip
    assert sorted(itertools.chain(*splits.values()), key=int) == [str(i) for i in range(100)]
    assert splits["weights"] != sorted(splits["weights"], key=int)
    assert shares.unused == [0]


def test_weights_are_cut_to_their_size(tmp_path: Path) -> None:
    _, shares, splits = shared(tmp_path, {ALL: questions(range(100))}, Sizes({"test": 10, "search": 20, "weights": 30}))
    assert len(splits["weights"]) == 30
    assert shares.unused == [40]


def test_the_seed_alone_decides(tmp_path: Path) -> None:
    sizes = Sizes({"test": 10, "search": 20, "weights": None})
    rows = questions(range(60))
    first = shared(tmp_path / _new(tmp_path), {ALL: rows}, sizes)[2]
    again = shared(tmp_path / _new(tmp_path), {ALL: rows}, sizes)[2]
    other = shared(tmp_path / _new(tmp_path), {ALL: rows}, sizes, seed=1)[2]
    assert first == again
    assert set(first["test"]) != set(other["test"])
    grown = shared(tmp_path / _new(tmp_path), {ALL: rows}, Sizes({"test": 10, "search": 40, "weights": None}))[2]
    assert grown["test"] == first["test"]


def _new(folder: Path) -> str:
    name = f"f{sum(1 for _ in folder.iterdir())}"
    (folder / name).mkdir()
    return name


def test_test_sources_go_to_test_whole_unless_a_size_is_given(tmp_path: Path) -> None:
    rows = {TRAIN: questions(range(50)), EXAM: questions("abcdefgh")}
    sizes = Sizes({"test": 3, "search": 5, "weights": None})
    assert sorted(shared(tmp_path, rows, sizes)[2]["test"]) == list("abcdefgh")
    exact = Sizes({"test": 3, "search": 5, "weights": None}, frozenset({"test"}))
    _, shares, splits = shared(tmp_path, rows, exact)
    assert len(splits["test"]) == 3
    assert shares.unused == [0, 5]


def test_a_duplicate_within_a_split_is_dropped(tmp_path: Path) -> None:
    rows = questions(["What is it?", "what  is it", "WHAT IS IT", "another", "a third", "a fourth"])
    _, shares, splits = shared(tmp_path, {TRAIN: rows}, Sizes({"search": 1, "weights": None}))
    kept = {content_key(Task("", {"q": text}, "")) for text in splits["weights"] + splits["search"]}
    assert len(splits["weights"] + splits["search"]) == len(kept) == 4
    assert len(shares.drops) == 2


def test_what_stands_in_test_is_dropped_elsewhere(tmp_path: Path) -> None:
    """Of 100 rows, 5 ask what the test asks, one of them in other case and spacing."""
    rows = {TRAIN: questions(range(100)), EXAM: questions(["3", "14", "15", "92", " 65 ", "new"])}
    index, shares, splits = shared(tmp_path, rows, Sizes({"search": 20, "weights": None}))
    assert reasons(shares) == ["same question in test"] * 5
    assert len(splits["weights"]) == 75
    assert len(splits["test"]) == 6
    dropped = {line["task"]["inputs"]["q"] for line in index.lines(drop.number for drop in shares.drops)}
    assert dropped == {"3", "14", "15", "92", "65"}
    assert not dropped & {*splits["weights"], *splits["search"]}


def test_what_stands_in_search_is_dropped_from_weights(tmp_path: Path) -> None:
    rows = questions([i // 2 for i in range(80)])  # every question twice
    _, shares, splits = shared(tmp_path, {TRAIN: rows}, Sizes({"search": 10, "weights": None}))
    assert not set(splits["search"]) & set(splits["weights"])
    assert len(splits["weights"]) == 30
    assert {"same question in search", "same question in weights"} == set(reasons(shares))


def test_a_repeated_id_is_dropped(tmp_path: Path) -> None:
    rows = [*questions(range(20)), {"q": "other", "id": "train-3"}]
    _, shares, splits = shared(tmp_path, {TRAIN: rows}, Sizes({"search": 5, "weights": None}))
    assert reasons(shares) == ["repeated id"]
    assert len(splits["weights"]) == 15


def test_a_row_keeps_the_split_it_names(tmp_path: Path) -> None:
    rows = [*questions(range(40)), *questions("abc", split="search"), *questions("de", split="test")]
    rows += questions("z", split="dev")  # a public set's own word
    _, _, splits = shared(tmp_path, {ALL: rows}, Sizes({"test": 5, "search": 5, "weights": None}))
    assert set("abc") <= set(splits["search"])
    assert set("de") <= set(splits["test"])
    assert (len(splits["search"]), len(splits["test"]), len(splits["weights"])) == (5, 5, 36)


def test_a_split_that_the_source_must_not_feed_is_refused(tmp_path: Path) -> None:
    lines: list[Any] = []
    made = part(tmp_path, TRAIN, [*questions(range(20)), *questions("a", split="test")])
    index = build_index([made], 0, lambda *line: lines.append(line))
    assert lines == [("train", 20, None, "its split test is not one of the source's")]
    assert len(index) == 20


def test_overlap_between_declared_splits_is_refused_with_counts_and_ids(tmp_path: Path) -> None:
    """100 weights, 20 search of which 5 share the question, 30 test of which 1 does in other case and spacing."""
    rows = [{"q": f"Question {i}", "id": f"w{i}", "split": "weights"} for i in range(100)]
    rows += [{"q": f"Question {i + 95}", "id": f"s{i}", "split": "search"} for i in range(20)]
    rows += [{"q": f"question   {i + 119 if i else 7}", "id": f"t{i}", "split": "test"} for i in range(30)]
    with pytest.raises(DomainError, match="not disjoint") as error:
        shared(tmp_path, {ALL: rows}, Sizes({}))
    assert "weights and search: 5 questions with the same content (w95 = s0" in str(error.value)
    assert "weights and test: 1 questions with the same content (w7 = t0)" in str(error.value)


def test_families_take_turns_in_test(tmp_path: Path) -> None:
    rows = [{"q": f"{family}{i}", "family": family} for family, n in (("a", 30), ("b", 4), ("c", 10)) for i in range(n)]
    _, _, splits = shared(tmp_path, {EXAM: rows}, Sizes({}))
    families = [text[0] for text in splits["test"]]
    for lead in range(1, 13):
        counts = [families[:lead].count(family) for family in "abc"]
        assert max(counts) - min(counts) <= 1
    assert len(families) == 44
    own = [text for text in splits["test"] if text[0] == "a"]
    assert own != sorted(own, key=lambda text: int(text[1:]))


def test_interleaving() -> None:
    assert interleaved([[1, 4, 6], [2], [3, 5]]) == [1, 2, 3, 4, 5, 6]
    assert interleaved([]) == []


def test_an_empty_split_is_refused(tmp_path: Path) -> None:
    rows = {ALL: questions(range(10))}
    with pytest.raises(DomainError, match="split weights is left empty") as error:
        shared(tmp_path, rows, Sizes({"test": 5, "search": 256, "weights": None}))
    assert "search 5" in str(error.value)
    with pytest.raises(DomainError, match="--size test=N"):
        shared(tmp_path, rows, Sizes({"test": None, "search": 5, "weights": None}))
    assert shared(tmp_path, rows, Sizes({"test": 0, "search": 5, "weights": None}))[2]["test"] == []


def test_a_source_without_a_single_task_is_refused(tmp_path: Path) -> None:
    made = part(tmp_path, TRAIN, [{"text": "a"}, {"text": "b"}])
    with pytest.raises(DomainError, match=r"train: none of 2 rows became a task: no question \(2\)"):
        build_index([made], 0, lambda *line: None)


def test_other_ideas_of_the_same_question(tmp_path: Path) -> None:
    made = part(tmp_path, TRAIN, questions([f"{i} move {i % 10}" for i in range(40)]))
    index = build_index([made], 0, lambda *line: None, lambda task: task.inputs["q"].split()[-1])
    shares = share_out(index, Sizes({"search": 2, "weights": None}))
    assert (len(shares.splits["search"]), len(shares.splits["weights"]), len(shares.drops)) == (2, 8, 30)


@pytest.mark.parametrize("seed", range(8))
def test_random_sources_always_give_disjoint_splits(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    rows = {
        source: questions([rng.randrange(60) for _ in range(rng.randrange(20, 80))]) for source in (TRAIN, ALL, EXAM)
    }
    index, shares, _ = shared(tmp_path, rows, Sizes({"test": 5, "search": 7, "weights": 20}), seed)
    tasks: dict[Split, list[Task]] = {
        split: [Task(line["task"]["id"], line["task"]["inputs"], "") for line in index.lines(numbers)]
        for split, numbers in shares.splits.items()
    }
    check_disjoint(tasks)
    for items in tasks.values():
        assert len({content_key(task) for task in items}) == len(items)
    total = sum(len(items) for items in tasks.values()) + len(shares.drops) + sum(shares.unused)
    assert total == sum(len(items) for items in rows.values())
