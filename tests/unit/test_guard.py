"""When a weight phase counts as collapsed, and which checkpoint it goes back to."""

from whale.guard import best_version, collapsed
from whale.stats import moving_averages


def test_averages_begin_with_what_there_is():
    assert moving_averages([0.0, 1.0, 0.5, 0.0], 2) == [0.0, 0.5, 0.75, 0.25]


def test_a_noisy_dip_is_no_collapse():
    assert not collapsed([0.5, 0.6, 0.3, 0.6, 0.5], 0.2, 3)
    assert not collapsed([0.5, 0.6, 0.55, 0.6], 0.2, 3)


def test_a_fall_below_the_best_average_is_one():
    assert collapsed([0.5, 0.6, 0.6, 0.4, 0.2, 0.1], 0.2, 3)
    assert not collapsed([0.5, 0.6, 0.6, 0.4, 0.2, 0.1], 0.0, 3), "0 switches the guard off"


def test_too_few_steps_say_nothing():
    assert not collapsed([], 0.2, 3)
    assert not collapsed([0.9, 0.0, 0.0], 0.2, 3)


def test_the_best_saved_version_is_where_the_average_was_highest():
    values, versions = [0.2, 0.5, 0.6, 0.7, 0.1], [0, 1, 2, 3, 4]
    assert best_version(values, versions, 2, {0, 2, 4}) == 2
    assert best_version(values, versions, 2, {0, 1, 2, 3, 4}) == 3
    assert best_version(values, versions, 2, {0, 4, 5}) == 4, "a version that was never sampled from has no value"
    assert best_version(values, versions, 2, {5}) is None


def test_a_version_that_several_steps_sampled_from_is_judged_at_the_first():
    assert best_version([0.4, 0.1, 0.3], [0, 0, 1], 1, {0, 1}) == 0
