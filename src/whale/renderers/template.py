"""A tokenizer's own chat template, and what small probes rendered with it tell about it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from whale.errors import EngineError
from whale.renderers.messages import openai_tool
from whale.types import Message, ToolSpec

MARK = "whale-probe"
PROBE_TOOL = ToolSpec(
    "whale_tool",
    "Takes a probe.",
    {"type": "object", "properties": {"value": {"type": "string"}}, "required": ["value"]},
)
DATE = "26 Jul 2024"
"""Templates that write today's date get this one, Llama's own default: a context must not depend on the day."""


def probe_call(number: int) -> dict[str, Any]:
    """A tool call in OpenAI form."""
    function = {"name": PROBE_TOOL.name, "arguments": {"value": f"{number} <é>"}}
    return {"id": f"call_0_{number}", "type": "function", "function": function}


def calling(calls: int) -> Message:
    """An assistant message that makes so many calls."""
    return {"role": "assistant", "content": "", "tool_calls": [probe_call(number) for number in range(calls)]}


USER: Message = {"role": "user", "content": MARK}


class ChatTemplate:
    """Renders messages to text with a transformers tokenizer and turns text into ids.

    opening: what the template writes before a reply. thinks: replies start inside a thought. knows_tools: it describes
    tools. native: it also writes tool calls and their results. several_calls: more than one call in a message.
    """

    def __init__(self, tokenizer: Any, thinking: bool | None = None) -> None:
        """Raises EngineError without a usable template, or if it has no switch that ``thinking`` could set."""
        if not getattr(tokenizer, "chat_template", None):
            raise EngineError("renderer: the tokenizer has no chat template; use an instruction-tuned model")
        self.tokenizer = tokenizer
        self.source = str(tokenizer.chat_template)
        self._options: dict[str, Any] = {"date_string": DATE} if "date_string" in self.source else {}
        if thinking is not None:
            if "enable_thinking" not in self.source:
                raise EngineError(
                    f"engine.thinking: {thinking} has no effect, the model's chat template has no switch "
                    "`enable_thinking`; leave engine.thinking out"
                )
            self._options["enable_thinking"] = thinking
        self._cached = lru_cache(maxsize=1024)(self._render)
        self.text_ids = lru_cache(maxsize=4096)(self._encode_text)
        self.opening = self.text([USER], opening=True).removeprefix(self.text([USER]))
        self.thinks = self.opening.rstrip().endswith("<think>")
        self.knows_tools = "tools" in self.source and PROBE_TOOL.name in self._try([USER], [PROBE_TOOL])
        results = [USER, calling(1), {"role": "tool", "content": MARK, "tool_call_id": "call_0_0"}, USER]
        written = self._try(results) if self.knows_tools else ""
        self.native = PROBE_TOOL.name in written and written.count(MARK) == 3
        self.several_calls = self.native and bool(self._try([USER, calling(2), USER]))

    def text(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), opening: bool = False) -> str:
        """The template's text; with ``opening``, up to where the model starts to write. Raises EngineError."""
        return self._cached(json.dumps([list(messages), [openai_tool(tool) for tool in tools], opening]))

    def _render(self, key: str) -> str:
        messages, tools, opening = json.loads(key)
        options = {**self._options, **({"tools": tools} if tools else {})}
        try:
            return str(
                self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=opening, **options)
            )
        except Exception as error:  # templates are programs and raise what they like
            raise EngineError(f"renderer: the chat template failed ({error})") from error

    def _try(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> str:
        try:
            return self.text(messages, tools)
        except EngineError:
            return ""

    def ids(self, text: str) -> list[int]:
        """Ids of a rendered text, its markers as special tokens."""
        return [int(token) for token in self.tokenizer.encode(text, add_special_tokens=False)]

    def _encode_text(self, text: str) -> tuple[int, ...]:
        """Ids of plain text; never a special token."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))

    def single_id(self, word: str) -> int | None:
        """The id of a special token, None if the tokenizer does not have it as one token."""
        found = self.ids(word)
        return found[0] if len(found) == 1 else None

    def specials(self) -> dict[int, str]:
        """Every special token, those included that have no name of their own (Llama's markers)."""
        found = {i: str(self.tokenizer.decode([i], skip_special_tokens=False)) for i in self.tokenizer.all_special_ids}
        for number, token in getattr(self.tokenizer, "added_tokens_decoder", {}).items():
            if token.special:
                found[number] = str(token.content)
        return found
