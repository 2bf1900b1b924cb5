import math
import random

import pytest

from whale import stats
from whale.accept import frontier, paper_rule
from whale.types import Outcome, Rollout, Score


def rollout(task, reward, outcome=Outcome.SCORED, sample=0, reason=""):
    return Rollout(task, sample, 0, "hash", 0, outcome, reward, reason=reason)


def test_mean_at_k_is_a_mean_over_tasks():
    rollouts = [rollout("a", 1.0), rollout("a", 1.0), rollout("a", 1.0), rollout("b", 0.0)]
    estimate = stats.mean_at_k(rollouts, 3)
    assert estimate.mean == 0.5
    assert estimate.tasks == 2


def test_infrastructure_faults_lower_the_coverage_not_the_mean():
    rollouts = [
        rollout("a", 1.0),
        rollout("a", None, Outcome.INFRA_ERROR),
        rollout("b", 1.0),
        rollout("c", None, Outcome.UNSCORABLE),
    ]
    estimate = stats.mean_at_k(rollouts, 1)
    assert estimate.mean == 1.0
    assert estimate.coverage == 0.5
    assert estimate.tasks == 2


def test_harness_faults_stay_in_the_denominator():
    rollouts = [rollout("a", 1.0), rollout("b", 0.0, Outcome.HARNESS_ERROR), rollout("c", 0.0, Outcome.LIMIT)]
    assert stats.mean_at_k(rollouts, 1).mean == pytest.approx(1 / 3)


def test_nothing_valid_is_unknown():
    estimate = stats.mean_at_k([rollout("a", None, Outcome.INFRA_ERROR)], 1)
    assert estimate.mean is None
    assert estimate.coverage == 0.0


def test_interval_covers_the_truth_about_as_often_as_it_says():
    rng = random.Random(1)
    hits = 0
    for _ in range(2000):
        values = [sum(rng.random() < p for _ in range(8)) / 8 for p in (rng.random() for _ in range(48))]
        _, low, high = stats.interval(values)
        hits += low <= 0.5 <= high
    assert 0.93 < hits / 2000 < 0.97


def test_t_quantiles_join_smoothly():
    assert stats.t95(31) == pytest.approx(2.0395, abs=2e-3)
    assert stats.t95(10_000) == pytest.approx(1.9602, abs=1e-3)


def test_values_all_alike_do_not_claim_certainty():
    _, low, _ = stats.interval([1.0] * 48, 0.0, 1.0)
    assert low < 0.95
    assert math.isinf(stats.interval([0.5])[1])


def test_paired_uses_common_tasks_only():
    result = stats.paired({"a": 0.0, "b": 0.5, "c": 1.0}, {"a": 0.5, "b": 1.0, "d": 0.0})
    assert result["mean"] == 0.5
    assert result["tasks"] == 2


def test_pass_at_k():
    assert stats.pass_at_k([rollout("a", 0.0), rollout("a", 1.0), rollout("b", 0.0), rollout("c", None)]) == 0.5
    assert stats.pass_at_k([]) is None


def test_score_counts_failure_reasons():
    rollouts = [
        rollout("a", 1.0),
        rollout("b", 0.0, reason="wrong"),
        rollout("c", 0.0, Outcome.LIMIT, reason="limit"),
        rollout("d", None, Outcome.INFRA_ERROR),
    ]
    score = stats.score(rollouts, "h1", 3)
    assert score.mean == pytest.approx(1 / 3)
    assert score.coverage == 0.75
    assert score.reasons == {"wrong": 1, "limit": 1, "infra_error": 1}


def make(name, mean, turns):
    return Score(name, 0, mean, 10, 10, turns)


def test_paper_rule():
    h0 = make("h0", 0.5, 2.0)
    assert paper_rule(h0, [make("h1", 0.4, 1.0)]).harness == "h0"
    assert paper_rule(h0, [make("h1", 0.5, 2.0)]).harness == "h0", "a full tie keeps the incumbent"
    assert paper_rule(h0, [make("h1", 0.5, 1.0)]).harness == "h1", "a tie goes to fewer turns"
    assert paper_rule(h0, [make("h1", 0.6, 3.0), make("h2", 0.6, 2.0), make("h3", 0.6, 2.0)]).harness == "h2"
    assert paper_rule(h0, [make("h1", None, 0.0)]).harness == "h0"


def test_frontier():
    scores = [make("a", 0.5, 2.0), make("b", 0.6, 3.0), make("c", 0.4, 2.5), make("d", None, 0.0), make("e", 0.5, 2.0)]
    assert [s.harness for s in frontier(scores)] == ["a", "b", "e"]
