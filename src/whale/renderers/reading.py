"""From sampled ids to a reply: thoughts apart, tool calls found, special tokens left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from whale.renderers.calls import PYTHON_TAG, find_calls, find_json_calls
from whale.renderers.families import LLAMA3, Markers
from whale.renderers.template import ChatTemplate
from whale.types import ParsedReply, ToolCallRequest

_MEANING = frozenset({"<think>", "</think>", "<tool_call>", "</tool_call>", PYTHON_TAG})
"""Markers inside a reply; tokenizers disagree about whether they are special tokens."""

Finder = Callable[[str], tuple[str, tuple[ToolCallRequest, ...]]]


class Reader:
    """Reads replies that were sampled after a template's opening."""

    def __init__(self, template: ChatTemplate, markers: Markers | None) -> None:
        self._tokenizer = template.tokenizer
        self._thinks = template.thinks
        self._hidden = frozenset(i for i, word in template.specials().items() if word not in _MEANING)
        self.find: Finder = find_json_calls if markers is LLAMA3 and template.native else find_calls

    def read(self, ids: Sequence[int]) -> ParsedReply:
        """Never raises; a broken tool call becomes one with ``error`` set."""
        reasoning, text = self.split(ids)
        visible, calls = self.find(text)
        return ParsedReply(visible, reasoning, calls)

    def split(self, ids: Sequence[int]) -> tuple[str, str]:
        """Thoughts and the text after them, calls still in it. Thoughts are never read for calls or answers."""
        kept = [token for token in ids if token not in self._hidden]
        text = str(self._tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False))
        if not self._thinks:
            before, opened, rest = text.partition("<think>")
            if not opened or before.strip():
                return "", text
            text = rest
        thought, closed, visible = text.partition("</think>")
        return thought.strip(), visible.lstrip("\n") if closed else ""
