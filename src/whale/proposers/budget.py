"""Whether another session may be begun, from what the sessions of the run have cost so far."""

from __future__ import annotations

from pathlib import Path

from whale.config import ProposerConfig
from whale.proposers.programs import json_objects

SESSIONS = "proposals.jsonl"
"""The file of a run folder with one line per session."""


def refusal(settings: ProposerConfig, sessions: Path) -> str:
    """Why no further session may be begun under ``total_sessions`` and ``total_money``, or ``""``.

    A session may cost what the dearest has cost, so the limit is kept rather than passed. One of unknown cost leaves
    nothing that could be kept: then only ``total_sessions`` allows more.
    """
    rows = list(json_objects(sessions))
    if settings.total_sessions and len(rows) >= settings.total_sessions:
        return f"search.proposer.total_sessions is {settings.total_sessions}, and so many sessions were held"
    if settings.total_money is None:
        return ""
    costs = [row.get("money") for row in rows]
    known = [cost for cost in costs if cost is not None]
    if len(known) < len(costs) and not settings.total_sessions:
        return (
            "search.proposer.total_money is set, but a session's cost is unknown; set search.proposer.total_sessions "
            "too, or prices where the proposer can use them"
        )
    if sum(known) + max(known, default=0.0) > settings.total_money:
        return (
            f"another session could pass search.proposer.total_money: ${sum(known):.2f} of ${settings.total_money:.2f} "
            f"are spent, the dearest cost ${max(known):.2f}"
        )
    return ""
