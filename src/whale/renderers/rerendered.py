"""The renderer that gives the whole conversation to the tokenizer's chat template at every call.

For models that were trained on histories which differ from what they sampled (thoughts of earlier turns dropped), and
for templates of no known family. A context need not extend the one before; a training row still holds exactly the ids
that the engine was given. Special tokens come from the template alone, never from a message's text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from whale.errors import EngineError, HarnessError
from whale.renderers.families import Markers, opening_of
from whale.renderers.messages import calls_as_text, check, content_of, for_template, tools_as_text
from whale.renderers.reading import Reader
from whale.renderers.template import MARK, ChatTemplate
from whale.types import Message, ParsedReply, ToolSpec


class Rerendered:
    """``protocols.Renderer`` of any chat template.

    A message with ``reply: i`` is given to the template as the parts read from ``replies[i]``: content, ``tool_calls``
    and ``reasoning_content``. Calls that cannot be read, or that the template cannot write, stay in the content as the
    model wrote them.
    """

    def __init__(self, template: ChatTemplate, markers: Markers | None) -> None:
        """Raises EngineError if the template cannot render a plain conversation."""
        self._template = template
        self._reader = Reader(template, markers)
        self._takes_system = self._probe_system()
        self._default = None if markers is None else self._replaced_system(markers)
        self._specials = {word: token for token, word in template.specials().items() if len(word) > 1}
        words = sorted(self._specials, key=len, reverse=True)
        self._words = re.compile("(" + "|".join(map(re.escape, words)) + ")") if words else re.compile("(?!)")

    def parse(self, ids: Sequence[int], finish: str) -> ParsedReply:
        """See ``protocols.Renderer.parse``. Never raises; a broken tool call becomes one with ``error`` set."""
        return self._reader.read(ids)

    def encode(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], replies: Sequence[Sequence[int]]
    ) -> list[int]:
        """See ``protocols.Renderer.encode``. Raises HarnessError for messages that the template refuses."""
        check(messages, len(replies))
        given = [self._restored(message, replies) for message in messages]
        if not self._template.native:
            given = calls_as_text(given)
        if tools and not self._template.knows_tools:
            given, tools = self._described(given, tools), ()
        try:
            return self._ids([for_template(message) for message in given], list(tools))
        except EngineError as error:
            raise HarnessError(f"session.chat: these messages cannot be written for this model: {error}") from error

    def _restored(self, message: Message, replies: Sequence[Sequence[int]]) -> Message:
        number = message.get("reply")
        if number is None:
            return message
        reasoning, text = self._reader.split(replies[number])
        visible, calls = self._reader.find(text)
        restored: Message = {"role": "assistant", "content": text}
        if reasoning:
            restored["reasoning_content"] = reasoning
        writable = self._template.native and (len(calls) == 1 or self._template.several_calls)
        if calls and writable and not any(call.error for call in calls):
            ids = [call.get("id") for call in message.get("tool_calls") or ()]
            restored["content"] = visible
            restored["tool_calls"] = [
                {
                    "id": ids[i] if i < len(ids) else f"call_{number}_{i}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": dict(call.arguments)},
                }
                for i, call in enumerate(calls)
            ]
        return restored

    # --- tools for templates without them ------------------------------------------------------------------------

    def _described(self, messages: list[Message], tools: Sequence[ToolSpec]) -> list[Message]:
        rest = list(messages)
        given = content_of(rest.pop(0)) if rest and rest[0]["role"] == "system" else self._default
        text = tools_as_text(given, tools)
        if self._takes_system or not rest:
            return [{"role": "system", "content": text}, *rest]
        return [{**rest[0], "content": f"{text}\n\n{content_of(rest[0])}"}, *rest[1:]]

    def _probe_system(self) -> bool:
        try:
            return MARK in self._template.text([{"role": "system", "content": MARK}, {"role": "user", "content": "x"}])
        except EngineError:
            return False

    def _replaced_system(self, markers: Markers) -> str | None:
        """The template's own system prompt where a given one takes its place: it must be said again with tools."""
        try:
            default = opening_of(self._template, markers, None).system
            kept = opening_of(self._template, markers, MARK).system or ""
        except EngineError:
            return None
        return None if not default or default.strip() in kept else default

    # --- ids -------------------------------------------------------------------------------------------------------

    def _ids(self, messages: list[Message], tools: list[ToolSpec]) -> list[int]:
        given = [{"name": t.name, "description": t.description, "parameters": dict(t.parameters)} for t in tools]
        masked = _Mask(self._words, [messages, given])
        specs = [ToolSpec(**tool) for tool in masked.hide(given)]
        text = self._template.text(masked.hide(messages), specs, opening=True)
        if not masked.used:
            return self._template.ids(text)
        ids: list[int] = []
        for part in self._words.split(text):
            if part in self._specials:
                ids.append(self._specials[part])
            elif part:
                ids += self._template.text_ids(masked.show(part))
        return ids


class _Mask:
    """Breaks what looks like a special token with a character that occurs nowhere else, until the text is encoded."""

    def __init__(self, words: re.Pattern[str], data: Any) -> None:
        self._words = words
        self.used = False
        seen = json.dumps(data, ensure_ascii=False)
        self._break = next(letter for letter in map(chr, range(0xE000, 0xF900)) if letter not in seen)

    def hide(self, data: Any) -> Any:
        """The same data with every text broken where it needs to be."""
        return _each(data, self._hide)

    def show(self, text: str) -> str:
        """The text as it was."""
        return text.replace(self._break, "")

    def _hide(self, text: str) -> str:
        hidden = self._words.sub(lambda found: found[0][0] + self._break + found[0][1:], text)
        self.used = self.used or hidden != text
        return hidden


def _each(data: Any, change: Callable[[str], str]) -> Any:
    if isinstance(data, str):
        return change(data)
    if isinstance(data, dict):
        return {_each(key, change): _each(value, change) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_each(item, change) for item in data]
    return data
