"""The search QA catalogue: what it renders, what it refuses, what it proposes, and its invented demonstrations."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any

import pytest

from whale.domains.base import content_key
from whale.domains.search_qa.catalogue import SearchQaCatalogue
from whale.domains.search_qa.questions import read_file
from whale.domains.search_qa.verifier import normalise
from whale.domains.search_qa.wording import DEMOS
from whale.errors import DomainError
from whale.testing.catalogues import compatible_specs
from whale.types import Task

CATALOGUE = SearchQaCatalogue()
SOURCES = {tuple(sorted(spec.items())): CATALOGUE.render(spec) for spec in compatible_specs(CATALOGUE)}


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
