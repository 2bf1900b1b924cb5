"""Tool calls as a policy writes them: finding them in a reply, and writing them as text.

Three forms are read: JSON (``{"name": ..., "arguments": {...}}`` inside ``<tool_call>``), the XML of Qwen3.5
(``<function=name><parameter=key>value</parameter></function>`` inside ``<tool_call>``; values are strings until
``by_schema`` reads them), and Llama 3's bare JSON (``{"name": ..., "parameters": {...}}``, with or without
``<|python_tag|>`` before it). What a small model gets wrong becomes a call with ``error`` set, a short message for it
to read; never an exception and never silence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from whale.types import Message, ToolCallRequest, ToolSpec

_BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^>\s]+)\s*>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)\s*>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)
_BETWEEN = re.compile(r"[\s,;]*")
_BARE = re.compile(r"\s*\[?\s*\{(?=.*\"name\")(?=.*\"(?:parameters|arguments)\")", re.DOTALL)

PYTHON_TAG = "<|python_tag|>"
"""Llama 3's token before a call."""


def find_calls(text: str) -> tuple[str, tuple[ToolCallRequest, ...]]:
    """Split a reply into its text without call blocks and the calls, in order. Each block gives at least one."""
    if "<tool_call>" not in text:
        return text, ()
    calls = [call for block in _BLOCK.findall(text) for call in _read_block(block)]
    return _BLOCK.sub("", text).strip(), tuple(calls)


def find_json_calls(text: str) -> tuple[str, tuple[ToolCallRequest, ...]]:
    """As ``find_calls``, for models that write a call as bare JSON: the whole reply, or what follows
    ``<|python_tag|>``. A reply that is an object with a name and parameters is a call; other JSON is text."""
    before, tag, after = text.partition(PYTHON_TAG)
    if tag:
        return before.strip(), tuple(_read_json(after))
    if _BARE.match(text):
        return "", tuple(_read_json(text))
    return find_calls(text)


_KINDS: dict[str, tuple[type, ...]] = {
    "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,), "object": (dict,)
}  # fmt: skip


def by_schema(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with strings read as what the tool's schema asks for, where that is possible; others as they are.

    parameters: a JSON schema of an object.
    """
    properties = parameters.get("properties", {})
    return {name: _as_type(value, properties.get(name)) for name, value in arguments.items()}


def _as_type(value: Any, schema: Any) -> Any:
    kinds = _KINDS.get(str(schema.get("type"))) if isinstance(schema, Mapping) else None
    if kinds is None or not isinstance(value, str):
        return value
    text = value.strip()
    try:
        read = json.loads(text.lower() if kinds == (bool,) else text)
    except (ValueError, RecursionError):
        return value
    return read if isinstance(read, kinds) and (bool in kinds or not isinstance(read, bool)) else value


def _read_block(block: str) -> list[ToolCallRequest]:
    functions = _FUNCTION.findall(block)
    if functions:
        return [ToolCallRequest(name, dict(_PARAMETER.findall(body))) for name, body in functions]
    return _read_json(block)


def _read_json(block: str) -> list[ToolCallRequest]:
    decoder = json.JSONDecoder(strict=False)  # a newline inside a string is clear enough
    calls: list[ToolCallRequest] = []
    place = _skip(block, 0)
    while place < len(block):
        try:
            value, place = decoder.raw_decode(block, place)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", "nested too deeply")
            return [*calls, _broken(f"the tool call is not valid JSON: {reason}")]
        calls.extend(_read_value(item) for item in (value if isinstance(value, list) else [value]))
        place = _skip(block, place)
    return calls or [_broken("the tool call is empty")]


def _skip(block: str, place: int) -> int:
    found = _BETWEEN.match(block, place)
    return found.end() if found else place


def _read_value(value: Any) -> ToolCallRequest:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return _broken('a tool call is {"name": "...", "arguments": {...}}')
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, strict=False)
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, dict):
        return ToolCallRequest(value["name"], {}, error='"arguments" of a tool call is a JSON object')
    return ToolCallRequest(value["name"], arguments)


def _broken(reason: str) -> ToolCallRequest:
    return ToolCallRequest("", {}, error=reason)


def write_call(name: str, arguments: Any) -> str:
    """A call in the JSON form. arguments: an object, or its JSON as OpenAI messages carry it."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def write_message_calls(message: Message) -> str:
    """All calls of an assistant message in OpenAI form (``tool_calls``), one below the other."""
    parts = []
    for call in message.get("tool_calls") or ():
        function = call.get("function", call)
        parts.append(write_call(str(function.get("name", "")), function.get("arguments", {})))
    return "\n".join(parts)


def describe_tools(tools: list[ToolSpec]) -> str:
    """Whale's text form for models that were never taught tools: one line per tool and one example of a call."""
    lines = ["Tools:"]
    for tool in tools:
        names = ", ".join(f"{name}: {_type(schema)}" for name, schema in _properties(tool).items())
        lines.append(f"- {tool.name}({names}): {tool.description}")
    example = dict.fromkeys(_properties(tools[0]), "...")
    lines += ["To call a tool, write:", write_call(tools[0].name, example)]
    return "\n".join(lines)


def _properties(tool: ToolSpec) -> Mapping[str, Any]:
    found = tool.parameters.get("properties", {})
    return found if isinstance(found, Mapping) else {}


def _type(schema: Any) -> str:
    return str(schema.get("type", "string")) if isinstance(schema, Mapping) else "string"
