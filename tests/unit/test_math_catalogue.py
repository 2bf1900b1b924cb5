"""The catalogue: what it renders, what it refuses, what it proposes."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from whale.domains.math import MathDomain
from whale.domains.math.catalogue import MathCatalogue
from whale.domains.math.pieces import AXES, PIECES
from whale.errors import DomainError
from whale.harness.validate import check_source
from whale.testing.catalogues import compatible_specs, unused_names, with_requirements

CATALOGUE = MathCatalogue()
NO_BOX = {"no_box": 90, "wrong": 6}


def test_the_catalogue_is_wide_enough() -> None:
    assert len(PIECES) >= 12
    assert len({piece.axis for piece in PIECES}) >= 5
    assert {piece.axis for piece in PIECES} == set(AXES)
    assert len({(piece.axis, piece.name) for piece in PIECES}) == len(PIECES)
    for piece in PIECES:
        assert piece.hypothesis.startswith("If ")
        assert piece.addresses


def test_every_piece_fits_somewhere() -> None:
    assert all(with_requirements(CATALOGUE, piece) for piece in PIECES)


@pytest.mark.slow
def test_every_compatible_pair_renders_to_a_clean_file() -> None:
    catalogue = MathCatalogue()
    sources = set()
    for spec in compatible_specs(CATALOGUE):
        source = catalogue.render(spec)
        check_source(source)
        assert not unused_names(source), spec
        assert max(map(len, source.splitlines())) <= 200, spec
        sources.add(source)
    assert len(sources) == len(compatible_specs(CATALOGUE)) > 250


def test_the_empty_spec_is_h0() -> None:
    domain = MathDomain()
    assert domain.catalogue().render({}) == domain.seed_harness()
    check_source(domain.seed_harness())


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


def test_proposals_are_deterministic_and_on_different_axes() -> None:
    first = CATALOGUE.propose({}, [{}], NO_BOX, 3, seed=1)
    assert first == CATALOGUE.propose({}, [{}], NO_BOX, 3, seed=1)
    assert any(first != CATALOGUE.propose({}, [{}], NO_BOX, 3, seed=seed) for seed in range(2, 6))
    assert len({idea["axis"] for idea in first}) == 3
    for idea in first:
        assert idea["spec"][idea["axis"]] == idea["mechanism"]
        assert not CATALOGUE.problem(idea["spec"])


def test_proposals_follow_the_failures() -> None:
    def share(reasons: dict[str, int], reason: str) -> float:
        ideas = [idea for seed in range(60) for idea in CATALOGUE.propose({}, [{}], reasons, 1, seed)]
        pieces = {(piece.axis, piece.name): piece for piece in PIECES}
        return sum(reason in pieces[idea["axis"], idea["mechanism"]].addresses for idea in ideas) / len(ideas)

    assert share({"no_box": 100}, "no_box") > share({"wrong": 100}, "no_box") + 0.1
    assert share({"wrong": 100}, "wrong") > share({"no_box": 100}, "wrong") + 0.1


def test_a_piece_that_no_longer_fits_is_dropped() -> None:
    parent = {"parse": "last_number", "stop": "more_turns"}
    for seed in range(200):
        for idea in CATALOGUE.propose(parent, [parent], NO_BOX, 3, seed):
            if idea["mechanism"] == "expression":
                assert idea["spec"] == {"form": "expression"}
                return
    pytest.fail("the expression form was never proposed")


def test_nothing_is_proposed_twice_and_the_catalogue_runs_out() -> None:
    tried: list[dict[str, Any]] = [{}]
    for round_ in range(100):
        ideas = CATALOGUE.propose({}, tried, NO_BOX, 3, seed=round_)
        if not ideas:
            break
        tried += [idea["spec"] for idea in ideas]
    specs = [tuple(sorted(spec.items())) for spec in tried]
    assert len(specs) == len(set(specs))
    assert CATALOGUE.propose({}, tried, NO_BOX, 3, seed=0) == []


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
