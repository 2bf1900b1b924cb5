"""The catalogue: what it renders, what it refuses, what it proposes."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from whale.domains.math.catalogue import MathCatalogue
from whale.errors import DomainError
from whale.testing.catalogues import compatible_specs

CATALOGUE = MathCatalogue()
NO_BOX = {"no_box": 90, "wrong": 6}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"form": "poem"}, "axis 'form' has no piece 'poem'"),
        ({"colour": "red"}, "axis 'colour' has no piece"),
        ({"code": "normalise"}, "requires form to be one of 'expression'"),
        ({"form": "steps", "stop": "one_line"}, "requires form|conflicts with"),
        ({"calls": {"piece": "vote", "voters": 3}}, "no parameter 'voters'"),
    ],
)
def test_bad_specs_are_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(DomainError, match=message):
        CATALOGUE.render(spec)


def test_parameters_reach_the_file() -> None:
    assert "range(5)" in CATALOGUE.render({"calls": {"piece": "vote", "attempts": 5}})
    assert "max_tokens=12" in CATALOGUE.render({"stop": {"piece": "short", "max_tokens": 12}})


def test_a_piece_that_no_longer_fits_is_dropped() -> None:
    parent = {"parse": "last_number", "stop": "more_turns"}
    for seed in range(200):
        for idea in CATALOGUE.propose(parent, [parent], NO_BOX, 3, seed):
            if idea["mechanism"] == "expression":
                assert idea["spec"] == {"form": "expression"}
                return
    pytest.fail("the expression form was never proposed")


def test_no_harness_calculates_for_the_policy() -> None:
    banned = {"eval", "exec", "int", "float", "sum", "Fraction", "Decimal"}
    for spec in compatible_specs(CATALOGUE):
        tree = ast.parse(CATALOGUE.render(spec))
        called = {
            node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert not called & banned, spec
        operators = [node.op for node in ast.walk(tree) if isinstance(node, ast.BinOp)]
        assert all(isinstance(operator, ast.Add) for operator in operators), spec  # texts put together
