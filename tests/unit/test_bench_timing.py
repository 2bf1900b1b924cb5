"""Bookkeeping of the benchmark: turns, spreads, and the search for a setting. No model, and no time is asserted."""

import subprocess
import sys

import pytest

from whale.bench import timing
from whale.bench.timing import Measure, fastest, interleave, measure, quotients, spread


def test_sides_take_turns():
    order = []
    found = interleave([{name: lambda name=name: order.append(name) for name in "ab"}] * 3)
    assert order == ["a", "b"] * 3
    assert [len(of) for of in found.values()] == [3, 3]


def test_quotients_are_taken_side_by_side():
    assert quotients([2, 9, 4], [1, 3, 4]) == {"value": 2, "low": 1, "high": 3}
    assert spread([5.0]) == {"value": 5, "low": 5, "high": 5}


def test_memory_is_what_was_added():
    """In a process of its own: what earlier tests left to the allocator would be used again, and nothing be added."""
    code = """
from whale.bench.timing import measure
kept = []
print(measure(lambda: kept.append(bytearray(b"x" * 50_000_000))).peak_bytes)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
    assert 30_000_000 < int(done.stdout) < 300_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc can give memory back")
def test_memory_that_an_earlier_call_left_is_counted_again():
    """Many small pieces, freed but not given back, with one that stays above them."""
    code = """
from whale.bench.timing import measure
call = lambda: [bytearray(60_000) for _ in range(2_000)]
left = [call()]
last = bytearray(60_000)
left.clear()
print(measure(call).peak_bytes)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
    assert int(done.stdout) > 60_000_000


def test_the_first_error_of_a_call_comes_out():
    with pytest.raises(ZeroDivisionError):
        measure(lambda: 1 / 0)


@pytest.fixture
def costs(monkeypatch):
    """Calls that give their seconds and bytes instead of taking them."""
    monkeypatch.setattr(timing, "measure", lambda call: Measure(*call(), None))
    return lambda table: lambda size: lambda: table[size]


def test_the_fastest_size_is_taken_and_the_search_ends_past_it(costs):
    size, trials = fastest([1, 2, 4, 8, 16], costs({1: (9, 1), 2: (5, 1), 4: (5.2, 1), 8: (7, 1)}))
    assert size == 2
    assert [trial["size"] for trial in trials] == [1, 2, 4, 8]


def test_of_equally_fast_sizes_the_smallest_is_taken(costs):
    """It needs the least memory, and luck of a hundredth of a second decides nothing."""
    size, _ = fastest([1, 2, 4, 8], costs({1: (9, 1), 2: (5.1, 1), 4: (5.0, 1), 8: (5.05, 1)}))
    assert size == 2


def test_sizes_that_would_not_fit_are_not_tried(costs, monkeypatch):
    monkeypatch.setattr(timing.psutil, "virtual_memory", lambda: type("Memory", (), {"available": 350}))
    size, trials = fastest([1, 2, 4], costs({1: (9, 100), 2: (5, 200)}))
    assert (size, len(trials)) == (2, 2)


@pytest.mark.slow
def test_asking_for_the_benchmark_loads_no_torch():
    code = "import sys, whale.bench.measure, whale.bench.text; assert not {'torch', 'trl'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
