"""Rollouts to JSON and back: one readable row each, ids included, so that a row can be trained on, scored and read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whale.types import ModelCall, Outcome, Rollout, ToolCallRequest, ToolUse


def rollout_to_json(rollout: Rollout) -> dict[str, Any]:
    """Plain dict of a rollout. Inverse of ``rollout_from_json``."""
    row = {**vars(rollout), "outcome": str(rollout.outcome)}
    row["calls"] = [_call_to_json(call) for call in rollout.calls]
    row["tools"] = [{**vars(tool), "arguments": dict(tool.arguments)} for tool in rollout.tools]
    return row


def rollout_from_json(row: Mapping[str, Any]) -> Rollout:
    """The rollout a row describes."""
    fields = dict(row)
    fields["outcome"] = Outcome(fields["outcome"])
    fields["calls"] = tuple(_call_from_json(call) for call in fields["calls"])
    fields["tools"] = tuple(ToolUse(**tool) for tool in fields["tools"])
    return Rollout(**fields)


def _call_to_json(call: ModelCall) -> dict[str, Any]:
    requests = [{**vars(request), "arguments": dict(request.arguments)} for request in call.tool_calls]
    return {**vars(call), "tool_calls": requests, "logprobs": [round(p, 6) for p in call.logprobs]}


def _call_from_json(row: Mapping[str, Any]) -> ModelCall:
    fields = dict(row)
    for name in ("context", "sampled", "logprobs", "messages"):
        fields[name] = tuple(fields[name])
    fields["tool_calls"] = tuple(ToolCallRequest(**request) for request in fields["tool_calls"])
    return ModelCall(**fields)
