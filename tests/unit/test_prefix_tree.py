"""Prefix trees: every distinct token once, ancestors by interval, cuts that fit a budget."""

import numpy as np
import pytest

from whale.engines.prefix_tree import build, cut, families, overlaps


def arrays(*sequences):
    return [np.array(s, np.int64) for s in sorted(sequences)]


def random_sequences(seed, count=40):
    draw = np.random.default_rng(seed)
    return sorted(tuple(draw.integers(0, 3, draw.integers(1, 12)).tolist()) for _ in range(count))


@pytest.mark.parametrize("seed", range(5))
def test_paths_give_back_the_sequences_and_prefixes_are_nodes(seed):
    sequences = random_sequences(seed)
    tree = build(arrays(*sequences))
    assert [tuple(tree.ids[path]) for path in tree.paths] == sequences
    assert len(tree) == len({s[: n + 1] for s in sequences for n in range(len(s))})
    for path in tree.paths:
        assert tree.depth[path].tolist() == list(range(len(path)))


@pytest.mark.parametrize("seed", range(5))
def test_ancestors_are_exactly_the_interval(seed):
    tree = build(arrays(*random_sequences(seed)))
    parents = {int(node): set(map(int, path[: i + 1])) for path in tree.paths for i, node in enumerate(path)}
    for node in range(len(tree)):
        seen = {k for k in range(node + 1) if node < tree.end[k]}
        assert seen == parents[node]


def test_a_cut_falls_where_least_is_shared():
    sequences = arrays((1, 2, 3, 4), (1, 2, 3, 5), (1, 9, 8, 7), (1, 9, 8, 6))
    lengths, shared = [4] * 4, overlaps(sequences)
    assert shared == [0, 3, 1, 3]
    assert cut(lengths, shared, 6) == [(0, 2), (2, 4)]
    assert cut(lengths, shared, 100) == [(0, 4)]


@pytest.mark.parametrize("budget", [1, 5, 9, 30])
def test_runs_cover_all_and_fit_unless_one_sequence_is_longer(budget):
    sequences = arrays(*random_sequences(3))
    runs = cut([len(s) for s in sequences], overlaps(sequences), budget)
    assert [i for a, b in runs for i in range(a, b)] == list(range(len(sequences)))
    for a, b in runs:
        assert b == a + 1 or len(build(sequences[a:b])) <= budget


def test_unrelated_sequences_still_share_a_run():
    sequences = arrays(*[(i, i + 1, i + 2) for i in range(0, 90, 3)])
    assert cut([3] * 30, overlaps(sequences), 45) == [(0, 15), (15, 30)]


def test_families_split_only_large_groups_with_a_long_common_prefix():
    assert families([]) == []
    assert families([0] + [150] * 63) == [(0, 64)]
    two = [0] + [150] * 39 + [10] + [150] * 39
    assert families(two) == [(0, 40), (40, 80)]
    assert families([0] + [150] * 39 + [10] + [150] * 5) == [(0, 46)]  # too few to leave
    assert families([0] + [60] * 39 + [10] + [60] * 39) == [(0, 80)]  # too little to gain
