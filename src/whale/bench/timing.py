"""Wall time and memory of calls, taken in turn so that a drift of the machine meets every side alike."""

from __future__ import annotations

import ctypes
import gc
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

SAMPLE_SECONDS = 0.01
SLOWER = 1.1
"""A search for the best setting ends where one is this much slower than the best so far."""

ALIKE = 1.03
"""Settings whose times differ by no more are equally fast."""

Say = Callable[[str], None]
"""Called with one short line per thing measured."""


@dataclass(frozen=True)
class Measure:
    """One call. seconds: wall time. peak_bytes: most resident memory beyond what was resident before it (sampled,
    this process only). value: what the call returned."""

    seconds: float
    peak_bytes: int
    value: Any


def measure(call: Callable[[], Any]) -> Measure:
    """Run a call and measure it."""
    _let_go()
    process = psutil.Process()
    before = peak = process.memory_info().rss
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(SAMPLE_SECONDS):
            peak = max(peak, process.memory_info().rss)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    began = time.perf_counter()
    try:
        value = call()
    finally:
        seconds = time.perf_counter() - began
        done.set()
        watcher.join()
    peak = max(peak, process.memory_info().rss)
    return Measure(seconds, peak - before, value)


def _let_go() -> None:
    """Give the memory of what has ended back to the system, else a call that uses it again would seem to need none."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None  # glibc alone has it
    if trim:
        trim(0)


def interleave(rounds: Sequence[Mapping[str, Callable[[], Any]]]) -> dict[str, list[Measure]]:
    """Measure every side of a round one after the other, round by round (A B A B ...)."""
    results: dict[str, list[Measure]] = {name: [] for name in rounds[0]}
    for sides in rounds:
        for name, call in sides.items():
            results[name].append(measure(call))
    return results


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, smallest and largest of repeated values."""
    return {"value": statistics.median(values), "low": min(values), "high": max(values)}


def quotients(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Spread of the quotients of values that were taken side by side."""
    return spread([a / b for a, b in zip(above, below, strict=True)])


def fastest(sizes: Sequence[int], make: Callable[[int], Callable[[], Any]]) -> tuple[int, list[dict[str, float]]]:
    """The smallest of the sizes whose calls take about the least time, and every trial (``size``, ``seconds``,
    ``peak_bytes``).

    sizes: ascending. Sizes that would not fit the memory that is free, by the growth seen so far, are not tried; the
    search ends where it gets slower. What a first call does once has to be done before.
    """
    trials: list[dict[str, float]] = []
    for size in sizes:
        if trials and trials[-1]["peak_bytes"] * size / trials[-1]["size"] > psutil.virtual_memory().available:
            break
        seen = measure(make(size))
        trials.append({"size": size, "seconds": seen.seconds, "peak_bytes": seen.peak_bytes})
        if seen.seconds > SLOWER * min(trial["seconds"] for trial in trials):
            break
    least = min(trial["seconds"] for trial in trials)
    return int(next(trial["size"] for trial in trials if trial["seconds"] <= ALIKE * least)), trials


def summary(measures: Sequence[Measure]) -> dict[str, float]:
    """Seconds (median, low, high) and the largest memory peak of repeated calls."""
    return {
        **{f"seconds_{name}": value for name, value in spread([m.seconds for m in measures]).items()},
        "peak_bytes": max(m.peak_bytes for m in measures),
    }
