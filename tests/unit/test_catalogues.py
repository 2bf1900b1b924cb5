"""What every domain's catalogue owes: width, clean files, h0 as the empty spec, proposals that follow the failures."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from whale.domains.catalogue import PieceCatalogue
from whale.domains.chess.catalogue import ChessCatalogue
from whale.domains.chess.domain import ChessDomain
from whale.domains.math.catalogue import MathCatalogue
from whale.domains.math.domain import MathDomain
from whale.domains.search_qa.catalogue import SearchQaCatalogue
from whale.domains.search_qa.domain import SearchQaDomain
from whale.harness.validate import check_source
from whale.testing.catalogues import compatible_specs, unused_names, with_requirements


class Case(NamedTuple):
    catalogue: PieceCatalogue
    domain: Any
    slip: str
    miss: str
    specs: int


CASES = {
    "chess": Case(ChessCatalogue(), ChessDomain, "bad_format", "wrong_move", 600),
    "math": Case(MathCatalogue(), MathDomain, "no_box", "wrong", 250),
    "search_qa": Case(SearchQaCatalogue(), SearchQaDomain, "no_answer_tag", "wrong", 500),
}


@pytest.fixture(params=CASES.values(), ids=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


def test_the_catalogue_is_wide_enough(case: Case) -> None:
    pieces = case.catalogue.pieces
    assert len(pieces) >= 28
    assert {piece.axis for piece in pieces} == set(case.catalogue.axes)
    assert len(case.catalogue.axes) >= 10
    assert len({(piece.axis, piece.name) for piece in pieces}) == len(pieces)
    for piece in pieces:
        assert piece.hypothesis.startswith("If ")
        assert piece.addresses
        assert with_requirements(case.catalogue, piece), f"{piece.axis}/{piece.name} fits nowhere"


@pytest.mark.slow
def test_every_compatible_pair_renders_to_a_clean_file(case: Case) -> None:
    specs = compatible_specs(case.catalogue)
    bodies = set()
    for spec in specs:
        source = case.catalogue.render(spec)
        check_source(source)
        assert not unused_names(source), spec
        assert max(map(len, source.splitlines())) <= 200, spec
        bodies.add(source.partition('"""\n')[2])
    assert len(bodies) == len(specs) > case.specs, "two specs differ in name only"


def test_the_empty_spec_is_h0(case: Case) -> None:
    source = case.domain().seed_harness()
    assert case.catalogue.render({}) == source
    check_source(source)


def test_proposals_are_deterministic_and_on_different_axes(case: Case) -> None:
    reasons = {case.slip: 90, case.miss: 6}
    first = case.catalogue.propose({}, [{}], reasons, 3, seed=1)
    assert first == case.catalogue.propose({}, [{}], reasons, 3, seed=1)
    assert any(first != case.catalogue.propose({}, [{}], reasons, 3, seed=seed) for seed in range(2, 6))
    assert len({idea["axis"] for idea in first}) == 3
    for idea in first:
        assert idea["spec"][idea["axis"]] == idea["mechanism"]
        assert not case.catalogue.problem(idea["spec"])


def test_proposals_follow_the_failures(case: Case) -> None:
    pieces = {(piece.axis, piece.name): piece for piece in case.catalogue.pieces}

    def share(seen: str, reason: str) -> float:
        ideas = [idea for seed in range(60) for idea in case.catalogue.propose({}, [{}], {seen: 100}, 1, seed)]
        return sum(reason in pieces[idea["axis"], idea["mechanism"]].addresses for idea in ideas) / len(ideas)

    assert share(case.slip, case.slip) > share(case.miss, case.slip) + 0.1
    assert share(case.miss, case.miss) > share(case.slip, case.miss) + 0.1


def test_nothing_is_proposed_twice_and_the_catalogue_runs_out(case: Case) -> None:
    tried: list[dict[str, Any]] = [{}]
    for round_ in range(100):
        ideas = case.catalogue.propose({}, tried, {case.slip: 90}, 3, seed=round_)
        if not ideas:
            break
        tried += [idea["spec"] for idea in ideas]
    specs = [tuple(sorted(spec.items())) for spec in tried]
    assert len(specs) == len(set(specs)) > 25
    assert case.catalogue.propose({}, tried, {case.slip: 90}, 3, seed=0) == []
