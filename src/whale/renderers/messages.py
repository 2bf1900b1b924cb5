"""Chat messages on their way into a context: checking them, and writing tools as text where a template has none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

from whale.errors import HarnessError
from whale.renderers.calls import describe_tools, write_message_calls
from whale.types import Message, ToolSpec

ROLES = ("system", "user", "assistant", "tool")


def check(messages: Sequence[Message], replies: int) -> None:
    """Raises HarnessError, naming it, for a message that no renderer can use. replies: model calls made so far."""
    for number, message in enumerate(messages):
        role, content, reply = message.get("role"), message.get("content"), message.get("reply")
        if role not in ROLES:
            raise HarnessError(f"message {number}: role {role!r} is not one of {', '.join(ROLES)}")
        if content is not None and not isinstance(content, str):
            raise HarnessError(f"message {number}: content is {type(content).__name__}, it must be text")
        if reply is not None and not (isinstance(reply, int) and role == "assistant" and 0 <= reply < replies):
            raise HarnessError(f"message {number}: reply {reply!r} of role {role}; {replies} replies were made")


def content_of(message: Message) -> str:
    """The content, empty where there is none."""
    return message.get("content") or ""


def for_template(message: Message) -> Message:
    """A message as templates expect it: content is text, arguments of calls are objects where they can be read."""
    kept = {key: value for key, value in message.items() if key != "reply"}
    kept["content"] = content_of(message)
    if message.get("tool_calls"):
        kept["tool_calls"] = [_call(call, number) for number, call in enumerate(message["tool_calls"])]
    else:
        kept.pop("tool_calls", None)  # some templates only ask whether the key is there
    return kept


def _call(call: dict[str, Any], number: int) -> dict[str, Any]:
    function = call.get("function", call)
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        with suppress(ValueError):  # the template may still write it as it is
            arguments = json.loads(arguments)
    named = {"name": str(function.get("name", "")), "arguments": arguments}
    return {"id": call.get("id") or f"call_{number}", "type": "function", "function": named}


def openai_tool(tool: ToolSpec) -> dict[str, Any]:
    """A tool as an OpenAI function schema."""
    parameters = dict(tool.parameters) or {"type": "object", "properties": {}}
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def calls_as_text(messages: Sequence[Message]) -> list[Message]:
    """For templates without tools: calls go into the assistant's content; consecutive results become one user message
    of ``<tool_response>`` blocks."""
    written: list[Message] = []
    for is_result, group in groupby(messages, lambda message: message["role"] == "tool"):
        if is_result:
            results = [f"<tool_response>\n{content_of(result)}\n</tool_response>" for result in group]
            written.append({"role": "user", "content": "\n".join(results)})
        else:
            written += [_with_calls(message) for message in group]
    return written


def _with_calls(message: Message) -> Message:
    if not message.get("tool_calls") or message.get("reply") is not None:
        return message
    parts = [content_of(message), write_message_calls(message)]
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**kept, "content": "\n".join(part for part in parts if part)}


def tools_as_text(system: str | None, tools: Sequence[ToolSpec]) -> str:
    """A system prompt extended by whale's description of tools, for templates without them."""
    described = describe_tools(list(tools))
    return f"{system.rstrip(chr(10))}\n\n{described}" if system else described
