"""The benchmark's figures for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from whale.bench.measure import KEYS


def print_bench(result: Mapping[str, Any], out: Console) -> None:
    """Print a result of ``measure.bench``: figures with their spread, then levels, growth, memory and settings."""
    table = Table(box=None, pad_edge=False)
    table.add_column("figure")
    for name in ("median", "least", "most"):
        table.add_column(name, justify="right")
    table.add_column("meaning")
    for key, found in result["spread"].items():
        table.add_row(key, *(f"{found[part]:.3f}" for part in ("value", "low", "high")), KEYS[key])
    out.print(table)
    for line in _details(result["details"]):
        out.print(line, markup=False)
    for name, value in result["settings"].items():
        out.print(f"{name}: {value}", markup=False)


def _details(details: Mapping[str, Any]) -> Iterator[str]:
    if "train" in details:
        yield from _train(details["train"])
    if "sample" in details:
        found = details["sample"]
        yield f"sampling: {found['requests']} requests on {found['prompts']} prompts"
        yield f"  generate takes {found['batch_size']} rows at once"
        for name in ("whale", "generate"):
            speed, side = found["tokens_per_second"][name]["value"], found["sides"][name]
            yield f"  {name}: {speed:.0f} tokens/s, {_memory(side['peak_bytes'])}"
    if "overhead" in details:
        yield from _overhead(details["overhead"])


def _train(found: Mapping[str, Any]) -> Iterator[str]:
    for level, sides in found["levels"].items():
        yield f"training, prefixes shared: {level}"
        for name, setting in found["settings"].items():
            side = sides[name]
            yield f"  {name}: {side['seconds_value']:.3f} s an update, {_memory(side['peak_bytes'])}, {setting}"
    for name, side in found["agreement"].items():
        yield f"gradient of {name} beside whale's: relative difference {side['gradient_difference']:.1e}"


def _overhead(found: Mapping[str, Any]) -> Iterator[str]:
    growth = {"trees": found["trees"], "store": found["store"]}
    growth.update({f"rollouts {level}": sizes for level, sizes in found["rollouts"].items()})
    for name, sizes in growth.items():
        if isinstance(sizes, str):
            yield f"{name}: not available here ({sizes})"
            continue
        cost = ", ".join(f"{1e3 * size['seconds_per_row']:.3f} ms at {size['size']}" for size in sizes)
        yield f"{name}: {cost} (each), {_memory(max(size['peak_bytes'] for size in sizes))}"


def _memory(peak: float) -> str:
    return f"+{peak / 1e6:.0f} MB"
