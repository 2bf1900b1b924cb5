"""The points that the charts draw, read once from a run: looks, training reward, candidates, phases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from whale.report.source import RunData


@dataclass(frozen=True)
class Band:
    """A phase on the rollout axis."""

    kind: str
    index: int
    begin: int
    end: int


@dataclass(frozen=True)
class Dot:
    """A scored candidate at the point of the axis where its score was known."""

    rollouts: int
    score: float
    accepted: bool
    label: str


def bands(run: RunData) -> list[Band]:
    """The finished phases, and the open one as far as it has been committed."""
    found = [Band(r.phase.kind, r.phase.index, r.rollouts_before, r.rollouts_after) for r in run.state.history]
    phase, start = run.state.phase, run.state.phase_start
    if phase and start:
        found.append(Band(phase.kind, phase.index, start["rollouts"], run.state.counters.axis))
    return found


def dots(run: RunData, summary: dict[str, Any]) -> list[Dot]:
    """Scored candidates of all searches."""
    known = {entry["id"]: entry for entry in summary["candidates"]}
    found = []
    for line in run.lines("candidate"):
        entry = known.get(line["candidate"])
        if entry is None or line["score"] is None:
            continue
        label = f"{entry['id']}: {entry['mechanism']} ({entry['axis']}), {entry['verdict']}"
        found.append(Dot(line["rollouts"], line["score"], entry["verdict"] == "accepted", label))
    return found


def rewards(run: RunData) -> list[list[tuple[int, float]]]:
    """Training reward of each weight step at the point where the step ended: one list per weight phase."""
    searches = [band.begin for band in bands(run) if band.kind == "harness"]
    phases: dict[int, list[tuple[int, float]]] = {}
    for line in run.lines("step"):
        searched = sum(begin < line["rollouts"] for begin in searches)
        phases.setdefault(searched, []).append((line["rollouts"], line["reward"]))
    return list(phases.values())


def known_looks(summary: dict[str, Any], split: str) -> list[dict[str, Any]]:
    """Looks that have a mean."""
    looks = summary[split]["looks"] if summary[split] else []
    return [look for look in looks if look["mean"] is not None]


def line_names(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """The lines of held-out splits that have a look: (split, name with its k)."""
    names = {"test": "test", "unseen": "unseen families"}
    found = [(split, known_looks(summary, split)) for split in names]
    return [(split, f"{names[split]} mean@{looks[-1]['k']}") for split, looks in found if looks]


STEP_FIGURES = (
    ("reward", "Training reward", "mean over the step's rollouts"),
    ("accepted", "Accepted rollouts", "rollouts the step kept for training"),
    ("loss", "Loss", "nats per token, mean over the step's updates"),
    ("grad_norm", "Gradient norm", "before clipping, mean over the step's updates"),
    ("weight_norm", "Weight norm", "all trained weights"),
    ("entropy", "Entropy", "nats per sampled token of accepted rollouts"),
    ("kl_base", "Divergence from the base", "nats per sampled token"),
    ("logprob_gap", "Log-probability gap", "sampler against trainer, nats per token"),
    ("tokens_per_rollout", "Tokens per rollout", "sampled tokens, mean"),
    ("repetition", "Repetition", "share of four-token pieces that came before in the reply"),
    ("unique", "Unique share", "share of rollouts with different tokens"),
    ("truncated", "Truncated share", "rollouts with a reply cut by a limit"),
)
"""What is watched per weight step: key in metrics.jsonl, title, meaning."""
