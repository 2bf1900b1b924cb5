"""Rollouts as a proposer reads them: what the policy was shown and wrote, what the tools returned, how it was judged.

Token ids and log-probabilities are left out, and so is everything that is not on a short list of fields: a reference
answer is in no recorded rollout, and could not pass if one ever were.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_FIELDS = ("task_id", "sample", "outcome", "reward", "reason", "detail", "answer", "seconds")
_REPLY = ("text", "reasoning", "tool_calls", "finish")
_TOOL = ("name", "arguments", "result", "error", "after_call")


def traces(rollouts: Path, keys: Sequence[str], harness: str, visible: Collection[str] | None) -> Iterator[str]:
    """JSON lines, failed rollouts first, of the blocks ``keys`` in the folder ``rollouts``.

    harness: hash of the code whose rollouts are wanted. visible: ids of the tasks that may be shown; ``None`` shows
    all. A block that is not there is skipped.
    """
    rows = [row for key in keys for row in _rows(rollouts / f"{key}.jsonl")]
    shown = [row for row in rows if row["harness"] == harness and (visible is None or row["task_id"] in visible)]
    for row in sorted(shown, key=lambda row: row["reward"] if row["reward"] is not None else 0.5):
        yield json.dumps(_trace(row), ensure_ascii=False)


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _trace(row: Mapping[str, Any]) -> dict[str, Any]:
    calls = []
    before: list[Any] = []
    for call in row["calls"]:
        messages = list(call["messages"])
        known = len(before) if before and messages[: len(before)] == before else 0
        # A conversation that grows is shown once: each call names how many earlier messages it repeats.
        calls.append({"repeats": known, "messages": messages[known:], **{name: call[name] for name in _REPLY}})
        before = messages
    tools = [{name: tool[name] for name in _TOOL} for tool in row["tools"]]
    return {**{name: row.get(name) for name in _FIELDS}, "calls": calls, "tools": tools}
