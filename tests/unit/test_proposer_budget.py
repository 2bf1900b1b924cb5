"""When another session may be begun."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from whale.config import ProposerConfig
from whale.proposers.budget import refusal


@pytest.mark.parametrize(
    ("costs", "limits", "says"),
    [
        ([], {"total_money": 1.0}, ""),
        ([0.4], {"total_money": 1.0}, ""),
        ([0.4, 0.4], {"total_money": 1.0}, "$0.80 of $1.00"),
        ([0.1, 0.6], {"total_money": 1.2}, "the dearest cost $0.60"),
        ([None], {"total_money": 1.0}, "cost is unknown; set search.proposer.total_sessions"),
        ([None, 0.4], {"total_money": 1.0, "total_sessions": 3}, ""),
        ([None, None, 0.4], {"total_money": 1.0, "total_sessions": 3}, "total_sessions is 3"),
        ([None, 9.0], {}, ""),
    ],
)
def test_sessions_are_refused_before_they_pass_a_limit(tmp_path: Path, costs: list, limits: dict, says: str) -> None:
    file = tmp_path / "proposals.jsonl"
    file.write_text("".join(json.dumps({"money": cost}) + "\n" for cost in costs))
    found = refusal(ProposerConfig(kind="codex", **limits), file)
    assert says in found if says else found == ""


def test_without_sessions_nothing_is_refused(tmp_path: Path) -> None:
    assert refusal(ProposerConfig(kind="codex", total_money=1.0, total_sessions=1), tmp_path / "none") == ""
