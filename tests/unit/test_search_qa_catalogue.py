"""The search QA catalogue: what it renders, what it refuses, what it proposes, and its invented demonstrations."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any

import pytest

from whale.domains.base import content_key
from whale.domains.search_qa import SearchQaDomain
from whale.domains.search_qa.catalogue import SearchQaCatalogue
from whale.domains.search_qa.pieces import AXES, PIECES
from whale.domains.search_qa.questions import read_file
from whale.domains.search_qa.verifier import normalise
from whale.domains.search_qa.wording import DEMOS
from whale.errors import DomainError
from whale.harness.validate import check_source
from whale.testing.catalogues import compatible_specs, unused_names, with_requirements
from whale.types import Task

CATALOGUE = SearchQaCatalogue()
SOURCES = {tuple(sorted(spec.items())): CATALOGUE.render(spec) for spec in compatible_specs(CATALOGUE)}
NO_TAG = {"no_answer_tag": 90, "wrong": 6}


def test_the_catalogue_is_wide_enough() -> None:
    assert len(PIECES) >= 14
    assert len({piece.axis for piece in PIECES}) >= 6
    assert {piece.axis for piece in PIECES} == set(AXES)
    assert len({(piece.axis, piece.name) for piece in PIECES}) == len(PIECES)
    for piece in PIECES:
        assert piece.hypothesis.startswith("If ")
        assert piece.addresses


def test_every_piece_fits_somewhere() -> None:
    assert all(with_requirements(CATALOGUE, piece) for piece in PIECES)


@pytest.mark.slow
def test_every_compatible_pair_renders_to_a_clean_file() -> None:
    for spec, source in SOURCES.items():
        check_source(source)
        assert not unused_names(source), spec
        assert max(map(len, source.splitlines())) <= 200, spec
    bodies = {source.partition('"""\n')[2] for source in SOURCES.values()}
    assert len(bodies) == len(SOURCES) > 400, "two specs differ in name only"


def test_the_empty_spec_is_h0() -> None:
    domain = SearchQaDomain()
    assert domain.catalogue().render({}) == domain.seed_harness()
    check_source(domain.seed_harness())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"form": "poem"}, "axis 'form' has no piece 'poem'"),
        ({"colour": "red"}, "axis 'colour' has no piece"),
        ({"demos": "turns"}, "requires flow to be one of 'question_first', 'query_line'"),
        ({"stop": "more_turns", "flow": "query_line"}, "requires flow"),
        ({"calls": {"piece": "vote", "voters": 3}}, "no parameter 'voters'"),
    ],
)
def test_bad_specs_are_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(DomainError, match=message):
        CATALOGUE.render(spec)


def test_parameters_reach_the_file() -> None:
    assert "range(5)" in CATALOGUE.render({"calls": {"piece": "vote", "attempts": 5}})
    assert "top_k=4" in CATALOGUE.render({"depth": {"piece": "top_3", "top_k": 4}})
    assert "max_tokens=90" in CATALOGUE.render({"length": {"piece": "short", "max_tokens": 90}})


def test_proposals_are_deterministic_and_on_different_axes() -> None:
    first = CATALOGUE.propose({}, [{}], NO_TAG, 3, seed=1)
    assert first == CATALOGUE.propose({}, [{}], NO_TAG, 3, seed=1)
    assert any(first != CATALOGUE.propose({}, [{}], NO_TAG, 3, seed=seed) for seed in range(2, 6))
    assert len({idea["axis"] for idea in first}) == 3
    for idea in first:
        assert idea["spec"][idea["axis"]] == idea["mechanism"]
        assert not CATALOGUE.problem(idea["spec"])


def test_proposals_follow_the_failures() -> None:
    def share(reasons: dict[str, int], reason: str) -> float:
        ideas = [idea for seed in range(60) for idea in CATALOGUE.propose({}, [{}], reasons, 1, seed)]
        pieces = {(piece.axis, piece.name): piece for piece in PIECES}
        return sum(reason in pieces[idea["axis"], idea["mechanism"]].addresses for idea in ideas) / len(ideas)

    assert share({"no_answer_tag": 100}, "no_answer_tag") > share({"wrong": 100}, "no_answer_tag") + 0.1
    assert share({"wrong": 100}, "wrong") > share({"no_answer_tag": 100}, "wrong") + 0.1


def test_nothing_is_proposed_twice_and_the_catalogue_runs_out() -> None:
    tried: list[dict[str, Any]] = [{}]
    for round_ in range(100):
        ideas = CATALOGUE.propose({}, tried, NO_TAG, 3, seed=round_)
        if not ideas:
            break
        tried += [idea["spec"] for idea in ideas]
    specs = [tuple(sorted(spec.items())) for spec in tried]
    assert len(specs) == len(set(specs))
    assert CATALOGUE.propose({}, tried, NO_TAG, 3, seed=0) == []


@pytest.mark.slow
def test_no_harness_chooses_for_the_policy() -> None:
    """Nothing is computed, ordered or compared with the question: texts are put together, split and counted only."""
    banned = {"eval", "exec", "int", "float", "sum", "sorted", "max", "min", "filter"}
    for spec, source in SOURCES.items():
        tree = ast.parse(source)
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        assert not {node.func.id for node in calls if isinstance(node.func, ast.Name)} & banned, spec
        assert not {node.func.attr for node in calls if isinstance(node.func, ast.Attribute)} & {"sort", "search_all"}
        assert not any(isinstance(node, ast.BinOp) for node in ast.walk(tree)), spec
        compared = [node for node in ast.walk(tree) if isinstance(node, ast.Compare)]
        names = {inner.id for node in compared for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        assert not names & {"question", "passages", "found"}, spec


@pytest.mark.slow
def test_only_the_policy_or_the_question_is_searched_for() -> None:
    allowed = {
        "question",
        "query",
        "query or question",
        "reply.text.strip() or question",
        "str(call.arguments['query'])",
    }
    for spec, source in SOURCES.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "session.tools.search":
                query = next(keyword.value for keyword in node.keywords if keyword.arg == "query")
                assert ast.unparse(query) in allowed, spec


@pytest.mark.slow
def test_demonstrations_hold_their_answers_and_no_public_question_or_answer() -> None:
    for demo in DEMOS:
        assert demo.answer in demo.text
        assert demo.title in demo.question
    folder = Path(os.environ.get("WHALE_TEST_DATA", ""), "search_qa")
    if not os.environ.get("WHALE_TEST_DATA") or not folder.is_dir():
        pytest.skip("WHALE_TEST_DATA does not hold the public question sets")
    questions, answers = set(), set()
    for path in [*folder.glob("*qa*.jsonl"), *folder.glob("nq*.jsonl"), *folder.glob("[bm]*.jsonl")]:
        for task in read_file(path):
            questions.add(content_key(task))
            answers |= {normalise(alias) for alias in task.reference}
    assert len(questions) > 10_000
    for demo in DEMOS:
        assert content_key(Task("", {"question": demo.question}, "")) not in questions
        assert normalise(demo.answer) not in answers, demo.answer
        assert normalise(demo.title) not in answers
