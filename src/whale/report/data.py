"""One JSON object that says what a run has shown: ``whale report RUN --json``.

Figures of the held-out splits come with their interval and coverage; the gain is a paired difference over the tasks
of the first and the last look; a best-of-looks figure stands beside its number of looks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whale import stats
from whale.report.source import RunData, load, read_lines
from whale.state import Look, PhaseRecord
from whale.store import Store
from whale.types import Candidate


def summarise(folder: Path) -> dict[str, Any]:
    """Summary of a run, finished or not; figures that do not exist yet are ``None``.

    ``cycles`` is the number of completed alternations: the smaller of the numbers of finished weight and harness
    phases. ``regression`` is true if the end is below the start on the test tasks. Raises StoreError for a folder
    that is no run.
    """
    return summary_of(load(folder))


def summary_of(run: RunData) -> dict[str, Any]:
    """The summary of a run that has been read already."""
    config, state = run.config, run.state
    kinds = [record.phase.kind for record in state.history]
    candidates = [_candidate(run, candidate) for candidate in run.candidates]
    test = _split(run, "test")
    return {
        "name": config.name,
        "domain": config.domain.name,
        "model": config.model,
        "seed": config.seed,
        "finished": state.finished,
        "isolation": config.harness.isolation,
        "test": test,
        "unseen": _split(run, "unseen") if run.looks("unseen") else None,
        "regression": _below(test),
        "rollouts": _rollouts(run),
        "cycles": min(kinds.count("weights"), kinds.count("harness")),
        "weight_steps": state.step,
        "weight_updates": state.policy.version,
        "harness": state.harness,
        "harness_changed": state.harness != "h0",
        "accepted": [_accepted(entry) for entry in candidates if entry["verdict"] == "accepted"],
        "phases": [_phase(record) for record in state.history],
        "candidates": candidates,
        "tokens": {"sampled": state.counters.sampled_tokens, "trained": state.counters.trained_tokens},
        **_usage(run.folder),
    }


def _split(run: RunData, split: str) -> dict[str, Any]:
    looks = run.looks(split)
    start, end = run.first_look(split), run.final_look(split)
    return {
        "start": _figure(start),
        "end": _figure(end),
        "gain": _gain(run, start, end),
        "best": _best(looks),
        "families": _families(run, start, end),
        "looks": [_look(look) for look in looks],
    }


def _figure(look: Look | None) -> dict[str, Any] | None:
    return dict(look.estimate) if look else None


def _look(look: Look) -> dict[str, Any]:
    where = {"rollouts": look.rollouts, "when": look.when, "harness": look.harness, "policy": look.policy_version}
    return {**look.estimate, **where}


def _gain(run: RunData, start: Look | None, end: Look | None) -> dict[str, Any] | None:
    """Paired difference over tasks; ``None`` without an end, or if the rollouts of a look are gone."""
    if start is None or end is None:
        return None
    before, after = run.rollouts(start), run.rollouts(end)
    if before is None or after is None:
        return None
    return dict(stats.paired(stats.task_means(before), stats.task_means(after)))


def _families(run: RunData, start: Look | None, end: Look | None) -> dict[str, Any]:
    """mean@k of each family of tasks at the start and the end, and the mean over families; empty if there is but one.

    Test sets of different sizes count alike in the mean over families, as tables of several test sets report it.
    """
    found: dict[str, dict[str, Any]] = {}
    for when, look in (("start", start), ("end", end)):
        rollouts = run.rollouts(look) if look else None
        if look is None or rollouts is None:
            continue
        estimates = stats.by_family(rollouts, look.estimate["k"])
        for family, estimate in estimates.items():
            found.setdefault(family, {"start": None, "end": None})[when] = estimate.to_json()
    return (
        {"each": found, "average": {when: _average(found, when) for when in ("start", "end")}} if len(found) > 1 else {}
    )


def _average(families: dict[str, dict[str, Any]], when: str) -> float | None:
    return stats.mean_of_all([family[when] and family[when]["mean"] for family in families.values()])


def _best(looks: list[Look]) -> dict[str, Any] | None:
    known = [look for look in looks if look.estimate["mean"] is not None]
    if not known:
        return None
    return {**_look(max(known, key=lambda look: look.estimate["mean"])), "looks": len(looks)}


def _below(split: dict[str, Any]) -> bool:
    """Whether the end is below the start; by the paired difference where there is one, for lost rollouts bias means."""
    gain, start, end = split["gain"], split["start"], split["end"]
    if gain and gain["mean"] is not None:
        return bool(gain["mean"] < 0)
    if not start or not end or start["mean"] is None or end["mean"] is None:
        return False
    return bool(end["mean"] < start["mean"])


def _rollouts(run: RunData) -> dict[str, int]:
    counters = run.state.counters
    return {
        "train": counters.train,
        "search": counters.search,
        "eval": counters.eval,
        "wasted": Store(run.folder).wasted(),
        "axis": counters.axis,
        "accepted": counters.accepted,
        "trained": counters.trained,
        "discarded": counters.discarded,
    }


def _phase(record: PhaseRecord) -> dict[str, Any]:
    fields = record.model_dump(exclude={"phase"}, mode="json")
    return {"index": record.phase.index, "kind": record.phase.kind, **fields}


def _candidate(run: RunData, candidate: Candidate) -> dict[str, Any]:
    score = _score(run, candidate.id, candidate.phase)
    return {
        "id": candidate.id,
        "parent": candidate.parent,
        "axis": candidate.axis,
        "mechanism": candidate.mechanism,
        "hypothesis": candidate.hypothesis,
        "phase": candidate.phase,
        "round": candidate.round,
        "score": score["mean"] if score else None,
        "before": (_score(run, candidate.parent, candidate.phase) or {}).get("mean") if candidate.parent else None,
        "turns": score["turns"] if score else None,
        "valid": score["valid"] if score else 0,
        "total": score["total"] if score else 0,
        "reasons": dict(score["reasons"]) if score else {},
        **_verdict(run, candidate, score),
    }


def _score(run: RunData, candidate_id: str, phase: int) -> dict[str, Any] | None:
    """The result a candidate got in a phase (h0, which no phase proposed: its first one)."""
    scores = run.archive.scores(candidate_id)
    return next((score for score in scores if phase < 0 or score["phase"] == phase), None)


def _verdict(run: RunData, candidate: Candidate, score: dict[str, Any] | None) -> dict[str, Any]:
    rejected = run.archive.rejected(candidate.id)
    if candidate.parent is None:
        verdict = "seed"
    elif rejected:
        verdict = f"rejected at {rejected['stage']}"
    elif candidate.id in _incumbents(run):
        verdict = "accepted"
    elif score is None or score["mean"] is None:
        verdict = "no valid rollout"
    else:
        verdict = "not better"
    return {"verdict": verdict, "reason": rejected["reason"] if rejected else None}


def _incumbents(run: RunData) -> set[str]:
    """Harnesses that were picked in a search: those a phase handed on, and those a later round started from."""
    return {record.harness_after for record in run.state.history} | {c.parent for c in run.candidates if c.parent}


def _accepted(entry: dict[str, Any]) -> dict[str, Any]:
    keys = ("parent", "phase", "round", "score", "before", "axis", "mechanism", "hypothesis")
    return {"harness": entry["id"], **{key: entry[key] for key in keys}}


def _usage(folder: Path) -> dict[str, Any]:
    """Seconds over all launches and the largest memory of any of them, where launches wrote them down."""
    lines = read_lines(folder / "usage.jsonl")
    seconds = [line["seconds"] for line in lines if line.get("seconds") is not None]
    peaks = [line["peak_rss_bytes"] for line in lines if line.get("peak_rss_bytes") is not None]
    return {
        "seconds": round(sum(seconds), 3) if seconds else None,
        "peak_rss_bytes": max(peaks) if peaks else None,
        "launches": len(lines) or None,
    }
