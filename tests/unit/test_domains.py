"""Finding domains, tasks of a user's file, and the check that splits share nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from whale.domains import domain_names, load_domain
from whale.domains.base import StatelessEpisode, check_disjoint, content_key
from whale.domains.math import MathDomain
from whale.domains.math.wording import DEMOS
from whale.errors import ConfigError, DomainError
from whale.types import SPLITS, Outcome, Task, Verdict


def task(name: str, problem: str) -> Task:
    return Task(name, {"problem": problem}, "1")


def test_names() -> None:
    assert {"math", "toy"} <= set(domain_names())
    with pytest.raises(ConfigError, match="did you mean 'math'"):
        load_domain("maths", {})
    with pytest.raises(ConfigError, match=r"no option 'sead'.*did you mean 'seed'"):
        load_domain("math", {"sead": 1})
    with pytest.raises(ConfigError, match="cannot import"):
        load_domain("no_such_module:Domain", {})
    assert load_domain("whale.domains.math:MathDomain", {"seed": 3}).name == "math"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": {"training": 3}}, "unknown split 'training'"),
        ({"sizes": {"test": -1}}, "sizes.test"),
        ({"families": {}}, "at least one family"),
        ({"unseen_family": "gcd"}, "also one of families"),
        ({"verifier": "other"}, "option verifier"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_domain("math", options)


def test_overlap_is_reported_with_counts() -> None:
    weights = [task(f"w{i}", f"What is {i} + 1?") for i in range(100)]
    search = [
        *(task(f"w{i}", f"What is {i} + 1?") for i in range(5)),
        *(task(f"s{i}", f"Is {i} odd?") for i in range(15)),
    ]
    test = [task("t0", "what  is 7 + 1"), *(task(f"t{i}", f"Name {i}.") for i in range(1, 30))]
    with pytest.raises(DomainError) as caught:
        check_disjoint({"weights": weights, "search": search, "test": test})
    assert "weights and search: 5 shared ids (w0, w1, w2, w3, w4)" in str(caught.value)
    assert "weights and test: 1 questions with the same content (w7 = t0)" in str(caught.value)


def test_repeated_ids_within_a_split() -> None:
    with pytest.raises(DomainError, match=r"test: 1 repeated ids \(a\)"):
        check_disjoint({"test": [task("a", "x"), task("a", "y")]})


def test_content_key_folds_wording_but_not_mathematics() -> None:
    assert content_key(task("a", "What is 3 + 4?")) == content_key(task("b", " what IS  3 + 4 "))
    different = ["3 + 4", "3 - 4", "3.4", "3, 4", "(3 + 4) * 2", "3 + 4 * 2", "34"]
    assert len({content_key(task("a", text)) for text in different}) == len(different)


async def _score(episode: StatelessEpisode, answer: str) -> Verdict:
    return await episode.score(answer)


def test_a_judge_that_raises_is_a_verifier_error() -> None:
    import asyncio

    def broken(answer: str) -> Verdict:
        raise RuntimeError("boom")

    verdict = asyncio.run(_score(StatelessEpisode(broken), "1"))
    assert (verdict.reward, verdict.outcome) == (None, Outcome.VERIFIER_ERROR)


ROW = {"id": "a", "problem": "What is 1 + 1?", "answer": "2", "split": "test"}


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: an object is expected"),
        (json.dumps({**ROW, "id": "b", "answer": ""}), "line 2, field answer"),
        (json.dumps({**ROW, "id": "b", "problem": 3}), "line 2, field problem"),
        (json.dumps({**ROW, "id": "b", "split": "dev"}), "line 2, field split"),
        (json.dumps(ROW), "line 2, field id: 'a' is already the id of line 1"),
    ],
)
def test_bad_rows_name_file_line_and_field(tmp_path: Path, second: str, message: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + second + "\n")
    with pytest.raises(DomainError, match=message) as caught:
        MathDomain(tasks_file=str(path)).tasks("test")
    assert str(path) in str(caught.value)


def test_tasks_file(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(
        json.dumps({**ROW, "answer": 2}) + "\n\n" + json.dumps({**ROW, "id": 7, "problem": "x", "split": "search"})
    )
    domain = MathDomain(tasks_file=str(path))
    assert [row.reference for row in domain.tasks("test")] == ["2"]
    assert [row.id for row in domain.tasks("search")] == ["7"]
    assert list(domain.tasks("weights")) == []
    with pytest.raises(DomainError, match="cannot be read"):
        MathDomain(tasks_file=str(tmp_path / "none.jsonl")).tasks("test")


@pytest.mark.slow
class TestGenerated:
    @pytest.fixture(autouse=True)
    def _needs_reasoning_gym(self) -> None:
        pytest.importorskip("reasoning_gym")

    def test_splits_are_balanced_disjoint_and_reproducible(self) -> None:
        domain, again, other = MathDomain(seed=5), MathDomain(seed=5), MathDomain(seed=6)
        for split in SPLITS:
            assert list(domain.tasks(split)) == list(again.tasks(split))
        assert list(domain.tasks("test")) != list(other.tasks("test"))
        keys = [content_key(row) for split in SPLITS for row in domain.tasks(split)]
        assert len(keys) == len(set(keys))
        for split in ("weights", "search", "test"):
            families = [row.family for row in domain.tasks(split)]
            counts = [families.count(family) for family in set(families)]
            assert len(counts) >= 5
            assert max(counts) - min(counts) <= 1
        assert not {row.family for row in domain.tasks("unseen")} & {row.family for row in domain.tasks("weights")}

    def test_the_test_split_stays_when_another_one_grows(self) -> None:
        small, large = MathDomain(sizes={"weights": 12}), MathDomain(sizes={"weights": 120})
        assert list(small.tasks("test")) == list(large.tasks("test"))

    def test_demonstrations_are_in_no_split(self) -> None:
        shown = {content_key(task("demo", demo.problem)) for demo in DEMOS}
        domain = MathDomain()
        assert not shown & {content_key(row) for split in SPLITS for row in domain.tasks(split)}

    def test_a_family_that_is_too_small_is_named(self) -> None:
        families = {"products": {"min_digits": 1, "max_digits": 1}}
        with pytest.raises(DomainError, match="'products' holds only"):
            MathDomain(families=families).tasks("test")

    def test_a_configuration_that_is_refused_is_named(self) -> None:
        with pytest.raises(DomainError, match="reasoning-gym refuses"):
            MathDomain(families={"products": {"no_such": 1}}).tasks("test")


def test_tools_that_run_code_are_shut_in_like_the_harness() -> None:
    """Else a harness would read through the interpreter what its own sandbox keeps from it."""
    assert load_domain("math", {}, "contained")._pool_options["isolation"] == "contained"
    assert load_domain("math", {})._pool_options["isolation"] == "sealed"
    assert load_domain("math", {"isolation": "off"}, "sealed")._pool_options["isolation"] == "off"
    assert load_domain("toy", {}, "sealed").name == "toy"
