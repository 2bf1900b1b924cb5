"""Which harness a phase hands on, and which ones are on the frontier. Pure functions of scores."""

from __future__ import annotations

from collections.abc import Sequence

from whale.types import Score


def paper_rule(incumbent: Score, candidates: Sequence[Score]) -> Score:
    """Best success rate, ties to fewer turns, then to the incumbent, then to the earlier candidate (paper).

    Scores without a mean (nothing valid) are never picked over one that has a mean.
    """
    best = incumbent
    for score in candidates:
        if _rank(score) > _rank(best):
            best = score
    return best


def frontier(scores: Sequence[Score]) -> list[Score]:
    """Scores no other one beats on both success rate (up) and mean turns (down), in the order given."""
    ranked = [score for score in scores if score.mean is not None]
    return [s for s in ranked if not any(_dominates(other, s) for other in ranked)]


def _rank(score: Score) -> tuple[float, float]:
    return (-1.0 if score.mean is None else score.mean, -score.turns)


def _dominates(a: Score, b: Score) -> bool:
    return _rank(a)[0] >= _rank(b)[0] and a.turns <= b.turns and (_rank(a)[0] > _rank(b)[0] or a.turns < b.turns)
