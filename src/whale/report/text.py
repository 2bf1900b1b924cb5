"""The report in a terminal: short, and readable without colours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from whale.report.words import count, figure, gain, memory, number, seconds

_LABEL_WIDTH = 12


def print_report(summary: Mapping[str, Any], console: Console) -> None:
    """Print the summary of a run."""
    state = "finished" if summary["finished"] else "not finished"
    console.print(Text(f"{summary['name']}: {state}", style="bold"))
    where = f"{summary['domain']}, {summary['model']}, seed {summary['seed']}, isolation {summary['isolation']}"
    _line(console, "run", where)
    for split in ("test", "unseen"):
        if summary[split]:
            _print_split(console, split, summary[split])
    if summary["regression"]:
        _line(console, "REGRESSION", "the end is below the start on the test tasks", "bold red")
    _print_cost(console, summary)
    _print_accepted(console, summary)
    if summary["phases"]:
        console.print(_phases(summary))
    if summary["test"]["families"]:
        console.print(_families(summary["test"]["families"]))


def _print_split(console: Console, name: str, split: Mapping[str, Any]) -> None:
    for when in ("start", "end"):
        if split[when]:
            _line(console, f"{name} {when}", figure(split[when]))
    if split["gain"]:
        _line(console, f"{name} gain", gain(split["gain"]), "bold")
    best = split["best"]
    if best and best["looks"] > 2:  # start and end are told already
        _line(console, f"{name} best", f"{number(best['mean'])} (best of {best['looks']} looks, mean@{best['k']})")


def _print_cost(console: Console, summary: Mapping[str, Any]) -> None:
    rollouts, tokens = summary["rollouts"], summary["tokens"]
    kinds = ", ".join(f"{rollouts[kind]:,} {kind}" for kind in ("train", "search", "eval", "wasted"))
    _line(console, "rollouts", f"{kinds}; train + search = {rollouts['axis']:,}")
    _line(console, "tokens", f"{tokens['sampled']:,} sampled, {tokens['trained']:,} trained")
    if summary["seconds"] is not None:
        _line(console, "cost", f"{seconds(summary['seconds'])}, peak memory {memory(summary['peak_rss_bytes'])}")
    _line(
        console, "done",
        f"{count(summary['weight_steps'], 'weight step')}, {count(summary['weight_updates'], 'update')}, "
        f"{count(summary['cycles'], 'cycle')}, harness {summary['harness']}",
    )  # fmt: skip


def _print_accepted(console: Console, summary: Mapping[str, Any]) -> None:
    tried = [entry for entry in summary["candidates"] if entry["parent"]]
    if not tried:
        return
    rejected = sum(entry["verdict"].startswith("rejected") for entry in tried)
    result = f"{rejected} rejected unscored, {len(summary['accepted'])} accepted"
    _line(console, "search", f"{count(len(tried), 'candidate')}, {result}")
    for entry in summary["accepted"]:
        idea = f"{entry['mechanism']} ({entry['axis']}): {entry['hypothesis']}"
        change = f"{number(entry['before'])} -> {number(entry['score'])}"
        _line(console, f"  {entry['harness']}", f"over {entry['parent']}, search {change}; {idea}", "green")


def _phases(summary: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("phase", "kind", "units", "first", "last", "harness", "policy", "rollouts", "ended"):
        table.add_column(name, justify="left" if name in ("kind", "harness", "ended") else "right")
    for phase in summary["phases"]:
        values = phase["values"]
        row = (
            str(phase["index"] + 1), phase["kind"], str(phase["units"]),
            number(values[0] if values else None), number(values[-1] if values else None),
            phase["harness_after"], str(phase["policy_after"]),
            f"{phase['rollouts_after'] - phase['rollouts_before']:,}", phase["ended"],
        )  # fmt: skip
        table.add_row(*(Text(cell) for cell in row))
    return table


def _families(families: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("test tasks of", "tasks", "start", "end"):
        table.add_column(name, justify="left" if name == "test tasks of" else "right")
    for family, looks in families["each"].items():
        tasks = max(look["tasks"] for look in looks.values() if look)
        means = [number(looks[when]["mean"] if looks[when] else None) for when in ("start", "end")]
        table.add_row(Text(family or "(no family)"), str(tasks), *means)
    table.add_row(Text("mean of these"), "", *(number(families["average"][when]) for when in ("start", "end")))
    return table


def _line(console: Console, label: str, text: str, style: str = "") -> None:
    # Text objects, not markup: hypotheses may hold square brackets.
    console.print(Text(f"{label:<{_LABEL_WIDTH}} ") + Text(text, style=style))
