"""Compares a renderer with the tokenizer's template, id by id, before anything is sampled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whale.errors import EngineError
from whale.protocols import Renderer
from whale.renderers.families import first_difference
from whale.renderers.template import PROBE_TOOL, ChatTemplate, calling
from whale.types import Message, ToolSpec

_USER: Message = {"role": "user", "content": "How many?\n\n 3 + 4 "}
_AGAIN: Message = {"role": "user", "content": "Sure?"}
_SYSTEM: Message = {"role": "system", "content": "Be brief."}
_REPLY: Message = {"role": "assistant", "content": "7"}


def verify(template: ChatTemplate, renderer: Renderer, family: str) -> None:
    """Raises EngineError with the first differing token of the first conversation that differs."""
    for messages, tools in _conversations(template):
        expected = template.ids(template.text(messages, tools, opening=True))
        own = renderer.encode(messages, tools, ())
        if own != expected:
            at = first_difference(own, expected)
            raise EngineError(
                f"renderer: {family} differs from the tokenizer's template at token {at} of a conversation of "
                f"{len(messages)} messages{' with tools' if tools else ''}"
            )


def _conversations(template: ChatTemplate) -> Iterator[tuple[Sequence[Message], Sequence[ToolSpec]]]:
    plain = ([_USER], [_SYSTEM, _USER], [_USER, _REPLY, _AGAIN], [_SYSTEM, _USER, _REPLY, _AGAIN])
    for messages in plain:
        yield messages, ()
    if not template.knows_tools:
        return
    for messages in plain:
        yield messages, [PROBE_TOOL]
    if not template.native:
        return
    for calls in (1, 2) if template.several_calls else (1,):
        results = [{"role": "tool", "content": f"r{i} é ", "tool_call_id": f"call_0_{i}"} for i in range(calls)]
        yield [_USER, calling(calls), *results, _REPLY, _AGAIN], [PROBE_TOOL]
        yield [_SYSTEM, _USER, {**calling(calls), "content": "So:"}, *results, _AGAIN], [PROBE_TOOL]
