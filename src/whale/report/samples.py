"""Picks rollouts worth reading: the same held-out task and sample at the first look and at the last one.

Shown is what the policy saw and wrote and what the verifier said; a task's reference answer is not in a run folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whale.report.source import RunData
from whale.report.words import clip
from whale.types import Message, ModelCall, Rollout, ToolUse

Pair = tuple[Rollout, Rollout]


@dataclass(frozen=True)
class Sample:
    """A pair of rollouts with the heading they are shown under."""

    title: str
    task: str
    sides: tuple[dict[str, Any], ...]


def pick_samples(run: RunData) -> list[Sample]:
    """Up to three pairs: learned, right both times, and still (or newly) wrong. Empty before a second look."""
    looks = run.looks("test")
    start, last = run.first_look("test"), run.final_look("test") or (looks[-1] if looks else None)
    if start is None or last is None or last.blocks == start.blocks:
        return []
    before, after = run.rollouts(start), run.rollouts(last)
    if before is None or after is None:
        return []
    names = ("at the start", "at the end" if run.state.finished else "at the latest look")
    threshold = run.config.weights.accept_above
    return [
        Sample(title, pair[0].task_id, tuple(_side(name, r, threshold) for name, r in zip(names, pair, strict=True)))
        for title, pair in _choose(before, after, threshold)
    ]


def _choose(before: Sequence[Rollout], after: Sequence[Rollout], threshold: float) -> list[tuple[str, Pair]]:
    later = {(r.task_id, r.sample): r for r in after}
    pairs = [(r, later[r.task_id, r.sample]) for r in before if (r.task_id, r.sample) in later]
    pairs = [pair for pair in pairs if all(r.reward is not None for r in pair)]

    kinds = {(False, True): "Wrong before, right after", (True, True): "Right both times",
             (True, False): "Right before, wrong after", (False, False): "Wrong both times"}  # fmt: skip
    chosen: dict[str, Pair] = {}
    for right, title in kinds.items():
        if title == "Wrong both times" and "Right before, wrong after" in chosen:
            continue  # one that is wrong in the end is enough
        fitting = [pair for pair in pairs if tuple(_right(r, threshold) for r in pair) == right]
        shown = {before.task_id for before, _ in chosen.values()}
        fitting.sort(key=lambda pair: pair[0].task_id in shown)  # another task where there is one
        if fitting:
            chosen[title] = fitting[0]
    return list(chosen.items())


def _right(rollout: Rollout, threshold: float) -> bool:
    return rollout.reward is not None and rollout.reward > threshold


def _side(name: str, rollout: Rollout, threshold: float) -> dict[str, Any]:
    return {
        "name": name,
        "policy": rollout.policy_version,
        "reward": rollout.reward,
        "right": _right(rollout, threshold),
        "verdict": rollout.reason if rollout.outcome == "scored" and rollout.reason else str(rollout.outcome),
        "answer": None if rollout.answer is None else clip(rollout.answer, 400),
        # What went wrong inside a harness; a scored rollout's detail is the verifier's own and stays out.
        "detail": "" if rollout.outcome == "scored" else clip(rollout.detail, 600),
        "calls": [_call(rollout, number) for number in range(rollout.turns)],
    }


def _call(rollout: Rollout, number: int) -> dict[str, Any]:
    call = rollout.calls[number]
    known = _known(rollout.calls[number - 1], call) if number else 0
    new = [_message(message) for message in call.messages[known:]]
    return {
        "number": number + 1,
        "earlier": new[:-1] if number == 0 else [],
        "messages": new[-1:] if number == 0 else new,
        "reasoning": clip(call.reasoning),
        "reply": clip(call.text),
        "requests": [f"{request.name}({_arguments(request.arguments)})" for request in call.tool_calls],
        "truncated": call.finish == "length",
        "tokens": len(call.sampled),
        "tools": [_tool(tool) for tool in rollout.tools if tool.after_call == number + 1],
    }


def _known(before: ModelCall, call: ModelCall) -> int:
    """How many messages of a call the reader has seen already: those of the call before it and its reply."""
    count = len(before.messages)
    if call.messages[:count] != before.messages or len(call.messages) == count:
        return 0
    return count + (call.messages[count].get("role") == "assistant")


def _message(message: Message) -> dict[str, str]:
    content = message.get("content") or ""
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, indent=1)
    return {"role": str(message.get("role", "")), "text": clip(text)}


def _tool(tool: ToolUse) -> dict[str, str]:
    return {"call": f"{tool.name}({_arguments(tool.arguments)})", "result": clip(tool.error or tool.result, 600)}


def _arguments(arguments: Mapping[str, Any]) -> str:
    return clip(", ".join(f"{key}={value!r}" for key, value in arguments.items()), 600)
