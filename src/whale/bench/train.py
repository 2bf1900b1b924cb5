"""The gradient of one update: whale's trainer against TRL and against plain padded rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from whale.bench.limit import matmul_rate, shape_of, train_flops
from whale.bench.material import SHARING, Material, Sharing, Update, must_fit
from whale.bench.sides import Rows, Side, compare, rows_of, rows_side, trl_side, whale_side
from whale.bench.stock import stock_model
from whale.bench.timing import Measure, Say, fastest, interleave, measure, quotients, summary
from whale.engines.local_model import LocalModel

BATCHES = (1, 2, 4, 8, 16, 32)
"""Rows of a pass that are tried by every side; for whale, a budget of as many tokens."""


def measure_training(
    model: LocalModel, material: Material, keys: Collection[str], repeats: int, say: Say
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Time the gradient of ``repeats`` updates of the run, in turn by every side that ``keys`` ask for.

    Returns the figures by key and the details. Raises ConfigError if the rows do not fit the model.
    """
    updates = [material.updates[number % len(material.updates)] for number in range(repeats)]
    must_fit(model, [[*e.row.context, *e.row.sampled] for update in updates for e in update])
    budget = material.config.trainer.token_budget
    first = rows_of(updates[0], "harness", model)
    sides = _sides(model, first, keys, say)
    agreement = compare(sides, first)
    levels: dict[Sharing, dict[str, list[Measure]]] = {}
    for level in SHARING if len(sides) > 1 else SHARING[-1:]:
        say(f"train: prefixes shared by {level}, {repeats} updates by {', '.join(sides)} in turn")
        levels[level] = interleave(_rounds(sides, model, updates, level, budget))
    flops = [train_flops(shape_of(model), rows_of(update, "harness", model)) for update in updates]
    details = {
        "rows_per_update": [len(update) for update in updates],
        "settings": {name: side.setting for name, side in sides.items()},
        "trials": {name: side.trials for name, side in sides.items() if side.trials},
        "agreement": agreement,
        "levels": {level: {name: summary(of) for name, of in found.items()} for level, found in levels.items()},
        "matmul_flops_per_second": _rate(levels),
    }
    figures = _figures(levels, flops)
    return {key: value for key, value in figures.items() if key in keys}, details


def _sides(model: LocalModel, rows: Rows, keys: Collection[str], say: Say) -> dict[str, Side]:
    """Every side at its fastest for ``rows``."""
    sizes = [*(size for size in BATCHES if size < len(rows)), *([len(rows)] if len(rows) <= BATCHES[-1] else [])]
    width = max(len(row.context) + len(row.sampled) for row in rows)
    sides = {"whale": _best("whale", sizes, lambda size: whale_side(model, size * width), rows, say)}
    if {"train_vs_rows", "train_worst_sharing"} & set(keys):
        sides["rows"] = _best("padded rows", sizes, lambda size: rows_side(model, size * width), rows, say)
    if "train_vs_trl" in keys:
        sides["trl"] = _trl(model, sizes, rows, say)
    return sides


def _trl(model: LocalModel, sizes: Sequence[int], rows: Rows, say: Say) -> Side:
    """Padded rows at their fastest, or as many rows laid end to end if that is faster."""
    net = stock_model(model)
    side = _best("TRL", sizes, lambda size: trl_side(net, model, size, False), rows, say)
    free = trl_side(net, model, side.setting["per_device_train_batch_size"], True)
    free.prepare(rows)()
    seconds = measure(free.prepare(rows)).seconds
    trials = [*side.trials, {**free.setting, "seconds": seconds}]
    faster = seconds < min(trial["seconds"] for trial in side.trials)
    return replace(free if faster else side, trials=trials)


def _best(name: str, sizes: Sequence[int], make: Callable[[int], Side], rows: Rows, say: Say) -> Side:
    say(f"train: choosing how many rows {name} takes at once")
    make(sizes[0]).prepare(rows)()  # warms up
    size, trials = fastest(sizes, lambda size: make(size).prepare(rows))
    return replace(make(size), trials=trials)


def _rounds(
    sides: Mapping[str, Side], model: LocalModel, updates: Sequence[Update], level: Sharing, tokens: int
) -> list[dict[str, Callable[[], Any]]]:
    """One call by every side for each update, and the rate of matrix products beside them at the last level."""
    rounds: list[dict[str, Callable[[], Any]]] = []
    shape = shape_of(model)
    for update in updates:
        rows = rows_of(update, level, model)
        rounds.append({name: side.prepare(rows) for name, side in sides.items()})
        if level == "harness":
            rounds[-1]["matmul"] = lambda: matmul_rate(shape, tokens)
    return rounds


def _figures(levels: Mapping[Sharing, Mapping[str, Sequence[Measure]]], flops: Sequence[float]) -> dict[str, Any]:
    seconds = {level: {name: [m.seconds for m in of] for name, of in found.items()} for level, found in levels.items()}
    figures: dict[str, Any] = {}
    for side in ("trl", "rows"):
        if side in seconds["harness"]:
            by_level = {level: quotients(of[side], of["whale"]) for level, of in seconds.items()}
            figures[f"train_vs_{side}"] = {**by_level["harness"], "levels": by_level}
    if "train_vs_rows" in figures:
        level, worst = min(figures["train_vs_rows"]["levels"].items(), key=lambda item: float(item[1]["value"]))
        figures["train_worst_sharing"] = {**worst, "level": level}
    rate = _rate(levels)
    figures["train_of_limit"] = quotients(flops, [rate * second for second in seconds["harness"]["whale"]])
    return figures


def _rate(levels: Mapping[Sharing, Mapping[str, Sequence[Measure]]]) -> float:
    return max(float(measure.value) for measure in levels["harness"]["matmul"])
