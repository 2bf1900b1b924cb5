"""An engine that answers from a list, and the renderer that goes with it. No model, no torch: for smoke runs and tests.

Ids are the UTF-8 bytes of the text plus one end token, so every id can be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from whale.types import Completion, Finish, GenerationRequest, Message, ParsedReply, Sampling, ToolCallRequest, ToolSpec

END = 256
"""Id of the end token; below it an id is a byte."""

_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


class ByteRenderer:
    """Plain text rendering: ``role: content`` lines, one id per byte."""

    def encode(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], replies: Sequence[Sequence[int]]
    ) -> list[int]:
        """Ids of the conversation; earlier replies are spliced from their sampled ids."""
        ids: list[int] = list("".join(f"tool {tool.name}: {tool.description}\n" for tool in tools).encode())
        for message in messages:
            ids += f"{message['role']}: ".encode()
            if "reply" in message:
                ids += [*replies[message["reply"]], 10]
            else:
                ids += [*str(message.get("content", "")).encode(), 10]
        return [*ids, *b"assistant: "]

    def parse(self, ids: Sequence[int], finish: str) -> ParsedReply:
        """Text without the end token; ``<tool_call>{...}</tool_call>`` blocks become tool calls."""
        text = decode(ids)
        calls = tuple(_call(block, number) for number, block in enumerate(_CALL.findall(text)))
        return ParsedReply(_CALL.sub("", text).strip() if calls else text, "", calls)


class ScriptedEngine:
    """Answers request i of its life with ``replies[i % len]``, or by a function of (context text, seed)."""

    vocabulary = END + 1

    def __init__(self, replies: Sequence[str] | Callable[[str, int], str], version: int = 0) -> None:
        self.renderer = ByteRenderer()
        self.version = version
        self.calls = 0
        self._replies = replies

    def generate(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[Completion]:
        """One scripted completion per request, cut at ``max_tokens`` and at stop strings like a real one."""
        return [self._answer(request) for request in requests]

    def forget(self) -> None:
        """Nothing is cached."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids."""
        return decode(ids)

    def _answer(self, request: GenerationRequest) -> Completion:
        if callable(self._replies):
            text = self._replies(decode(request.context), request.seed)
        else:
            text = self._replies[self.calls % len(self._replies)]
        self.calls += 1
        ids, finish = cut(text, request)
        return Completion(ids, (-0.5,) * len(ids), finish, self.version)


def cut(text: str, request: GenerationRequest) -> tuple[tuple[int, ...], Finish]:
    """Ids of a scripted text under the request's stop strings and token limit."""
    ends = [text.index(stop) + len(stop) for stop in request.stop if stop in text]
    ids, finish = ([*text.encode()[: min(ends)]], "stop_string") if ends else ([*text.encode(), END], "stop")
    if len(ids) > request.max_tokens:
        return tuple(ids[: request.max_tokens]), "length"
    return tuple(ids), "stop_string" if finish == "stop_string" else "stop"


def decode(ids: Sequence[int]) -> str:
    """Text of byte ids; the end token is not part of it."""
    return bytes(i for i in ids if i < END).decode(errors="replace")


def _call(block: str, number: int) -> ToolCallRequest:
    try:
        body = json.loads(block)
        return ToolCallRequest(str(body["name"]), dict(body.get("arguments", {})), id=f"call_{number}")
    except (ValueError, KeyError, TypeError) as error:
        return ToolCallRequest("", {}, id=f"call_{number}", error=f"unreadable tool call: {error}")
