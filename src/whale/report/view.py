"""What the page shows, as plain values: the template only lays them out."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

from whale.report.samples import pick_samples
from whale.report.series import STEP_FIGURES
from whale.report.source import RunData
from whale.report.words import count, number

_SPENT = (
    ("train", "training"),
    ("search", "search"),
    ("eval", "evaluation"),
    ("wasted", "wasted by interruptions"),
)
_DIFF_CLASS = {"+": "add", "-": "del", "@": "hunk"}


def page(run: RunData, summary: dict[str, Any]) -> dict[str, Any]:
    """The template's values, charts apart."""
    return {
        "s": summary,
        "notices": notices(summary),
        "candidates": candidates(run, summary),
        "final_source": next((c.source for c in run.candidates if c.id == run.state.harness), ""),
        "samples": pick_samples(run),
        "shares": shares(summary),
        "steps": steps(run),
        "settings": settings(run.config.model_dump(mode="json")),
        "environment": environment(run),
    }


def notices(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a reader must know before the figures: (``bad`` or ``note``, text)."""
    found: list[tuple[str, str]] = []
    test = summary["test"]
    if summary["regression"]:
        high = (test["gain"] or {}).get("high")
        hedge = " (the interval of the difference includes 0)" if high is not None and high >= 0 else ""
        found.append(("bad", f"Regression: at the end the agent is worse on the test tasks than at the start{hedge}."))
    if not summary["finished"]:
        found.append(("note", "This run has not finished: the figures are those of its last commit."))
    lost = [look["coverage"] for look in test["looks"] if look["coverage"] < 1]
    if lost:
        text = f"coverage of the test looks is {min(lost):.1%} or more."
        found.append(("note", f"Rollouts lost to infrastructure or data faults are left out: {text}"))
    if summary["isolation"] != "sealed":
        found.append(("note", f"Candidate code ran with isolation “{summary['isolation']}”, not sealed."))
    return found


def candidates(run: RunData, summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every candidate with what it changed against its parent."""
    sources = {candidate.id: candidate.source for candidate in run.candidates}
    return [
        {
            **entry,
            "tone": _tone(entry["verdict"]),
            "facts": _facts(entry),
            "diff": diff(entry, sources),
            "source": sources[entry["id"]],
        }
        for entry in summary["candidates"]
    ]


def diff(entry: Mapping[str, Any], sources: Mapping[str, str]) -> list[tuple[str, str]]:
    """Lines of the unified diff against the parent: (css class, text). Empty for the seed harness."""
    if entry["parent"] not in sources:
        return []
    before, after = sources[entry["parent"]].splitlines(), sources[entry["id"]].splitlines()
    lines = difflib.unified_diff(before, after, f"{entry['parent']}.py", f"{entry['id']}.py", lineterm="")
    return [("hunk" if number < 2 else _DIFF_CLASS.get(line[:1], ""), line) for number, line in enumerate(lines)]


def shares(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """How the rollouts were spent."""
    rollouts = summary["rollouts"]
    total = sum(rollouts[kind] for kind, _ in _SPENT) or 1
    return [
        {"kind": kind, "name": name, "count": rollouts[kind], "percent": 100 * rollouts[kind] / total}
        for kind, name in _SPENT
    ]


def steps(run: RunData) -> list[list[str]]:
    """Rows of the table of weight steps, the header first."""
    lines = run.lines("step")
    if not lines:
        return []
    header = ["step", "rollouts", "harness", *(title.lower() for _, title, _ in STEP_FIGURES)]
    return [header, *([str(line["step"]), f"{line['rollouts']:,}", line["harness"], *_figures(line)] for line in lines)]


def settings(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """The configuration as (dotted key, value) rows in the order of the configuration."""
    rows: list[tuple[str, str]] = []
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            rows += settings(value, f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)))
    return rows


def environment(run: RunData) -> list[tuple[str, str]]:
    """What the run ran on, where it was written down (``environment.json``)."""
    path = run.folder / "environment.json"
    return settings(json.loads(path.read_text())) if path.exists() else []


def _figures(line: Mapping[str, Any]) -> list[str]:
    values = (line.get(key) for key, _, _ in STEP_FIGURES)
    return ["-" if value is None else f"{value:.4g}" for value in values]


def _facts(entry: Mapping[str, Any]) -> str:
    """Where a candidate comes from and how it did, in a line."""
    parts = []
    if entry["parent"]:
        parts.append(f"Change to {entry['parent']}, phase {entry['phase'] + 1}, round {entry['round']}")
        parts.append(f"Axis: {entry['axis'] or 'not named'}. Mechanism: {entry['mechanism'] or 'not named'}")
    if entry["total"]:
        parts.append(f"{entry['valid']} of {count(entry['total'], 'rollout')} valid, {number(entry['turns'], 1)} turns")
    if entry["reasons"]:
        parts.append("Failures: " + ", ".join(f"{reason} {count}" for reason, count in entry["reasons"].items()))
    return "".join(f"{part}. " for part in parts)


def _tone(verdict: str) -> str:
    if verdict == "accepted":
        return "good"
    return "bad" if verdict.startswith("rejected") or verdict == "no valid rollout" else "plain"
