"""Renderer of the ChatML family (``<|im_start|>role ... <|im_end|>``): SmolLM2, Qwen and others.

What differs between these models (default system prompt, what the model's turn opens with, whether contents are
trimmed, how tools are described) is read off the tokenizer's own template by rendering small probes, and a plain
conversation is compared with the template id by id when the renderer is made.

Contexts only ever grow: an earlier reply is put back as the ids that were sampled, followed by what the model did
not sample (the end token if it was cut short, the newline after it). Only the markers written here become special
tokens; text that looks like one stays text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from whale.errors import EngineError, HarnessError
from whale.renderers.calls import describe_tools, find_calls, write_message_calls
from whale.types import Message, ParsedReply, ToolSpec

START, END = "<|im_start|>", "<|im_end|>"
ROLES = ("system", "user", "assistant", "tool")


class ChatML:
    """``protocols.Renderer`` for a transformers tokenizer with a ChatML template.

    Tools: described by the template if it knows them, else in whale's text form (``calls.describe_tools``), which
    extends the system prompt. Results (role ``tool``) are a user turn of ``<tool_response>`` blocks. A message with
    ``reply: i`` stands for ``replies[i]`` whatever its content says; the host drops the mark of changed messages.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Raises EngineError if the template's plain conversations are not exactly reproduced."""
        self._tokenizer = tokenizer
        self._start, self._end = (_special(tokenizer, word) for word in (START, END))
        self._hidden = frozenset(tokenizer.all_special_ids)
        self.text_ids = lru_cache(maxsize=4096)(self._encode_text)
        probe = [{"role": "user", "content": " x "}]
        self._trims = f"{START}user\nx{END}" in self._template(probe)
        self._turn = self._template(probe, add_generation_prompt=True)[len(self._template(probe)) :]
        self.default_system = self._system_block([])
        self._has_tools = "tools" in str(tokenizer.chat_template)
        self._thinks = self._turn.rstrip().endswith("<think>")
        self._verify()

    # --- messages to ids -----------------------------------------------------------------------------------

    def encode(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], replies: Sequence[Sequence[int]]
    ) -> list[int]:
        """See ``protocols.Renderer.encode``. Raises HarnessError for a message that cannot be rendered."""
        for number, message in enumerate(messages):
            _check(number, message, len(replies))
        rest = list(messages)
        given = rest.pop(0) if rest and rest[0]["role"] == "system" else None
        ids: list[int] = []
        system = self._system(None if given is None else _content(given), list(tools))
        if system is not None:
            ids += self._block("system", system)
        while rest:
            message = rest.pop(0)
            if message["role"] == "tool":
                results = [message]
                while rest and rest[0]["role"] == "tool":
                    results.append(rest.pop(0))
                ids += self._block("user", "\n".join(_response(result) for result in results))
            elif message["role"] == "assistant":
                ids += self._assistant(message, replies)
            else:
                ids += self._block(message["role"], self._trim(_content(message)))
        return ids + self._opening()

    def _assistant(self, message: Message, replies: Sequence[Sequence[int]]) -> list[int]:
        number = message.get("reply")
        if number is None:
            parts = [self._trim(_content(message)), write_message_calls(message)]
            return self._block("assistant", "\n".join(part for part in parts if part))
        sampled = list(replies[number])
        if not sampled or sampled[-1] != self._end:
            sampled.append(self._end)
        return [*self._opening(), *sampled, *self.text_ids("\n")]

    def _opening(self) -> list[int]:
        """What stands before the first id that the model samples."""
        return [self._start, *self.text_ids(self._turn.removeprefix(START))]

    def _block(self, role: str, content: str) -> list[int]:
        # Header and content in one piece, as the template's own text is encoded; the markers are put around it.
        return [self._start, *self.text_ids(f"{role}\n{content}"), self._end, *self.text_ids("\n")]

    def _system(self, given: str | None, tools: list[ToolSpec]) -> str | None:
        if tools and self._has_tools:
            return self._system_block([_openai(tool) for tool in tools], given)
        system = self.default_system if given is None else self._trim(given)
        if not tools:
            return system
        return f"{system}\n\n{describe_tools(tools)}" if system else describe_tools(tools)

    def _trim(self, text: str) -> str:
        return text.strip() if self._trims else text

    def _encode_text(self, text: str) -> tuple[int, ...]:
        """Ids of plain text; never a special token."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))

    # --- ids to a reply ------------------------------------------------------------------------------------

    def parse(self, ids: Sequence[int], finish: str) -> ParsedReply:
        """See ``protocols.Renderer.parse``. Never raises; see ``calls.find_calls`` for broken tool calls."""
        kept = [token for token in ids if token not in self._hidden]
        text = str(self._tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False))
        reasoning, text = self._split_reasoning(text)
        visible, calls = find_calls(text)
        return ParsedReply(visible, reasoning, calls)

    def _split_reasoning(self, text: str) -> tuple[str, str]:
        """Thoughts are never read for calls or answers, finished or not."""
        if not self._thinks:
            before, opened, rest = text.partition("<think>")
            if not opened or before.strip():
                return "", text
            text = rest
        thought, closed, visible = text.partition("</think>")
        return thought.strip(), visible.lstrip("\n") if closed else ""

    # --- the template ----------------------------------------------------------------------------------------

    def _template(self, messages: Sequence[Message], **options: Any) -> str:
        try:
            return str(self._tokenizer.apply_chat_template(list(messages), tokenize=False, **options))
        except Exception as error:  # templates are programs and raise what they like
            raise EngineError(f"renderer: the chat template failed on a plain conversation ({error})") from error

    def _system_block(self, tools: list[dict[str, Any]], given: str | None = None) -> str | None:
        """The system message that the template writes for the given one and tools, without its markers."""
        mark = "whale-probe"
        messages: list[Message] = [] if given is None else [{"role": "system", "content": given}]
        text = self._template([*messages, {"role": "user", "content": mark}], **({"tools": tools} if tools else {}))
        before = text[: text.rindex(f"{START}user\n{mark}")]
        if not before:
            return None
        head, tail = f"{START}system\n", f"{END}\n"
        if not (before.startswith(head) and before.endswith(tail)):
            raise EngineError(f"renderer: the chat template opens with {before[:60]!r}, which is not a system message")
        return before[len(head) : -len(tail)]

    def _verify(self) -> None:
        user, again = {"role": "user", "content": "How many?\n\n 3 + 4 "}, {"role": "user", "content": "Sure?"}
        system, reply = {"role": "system", "content": "Be brief."}, {"role": "assistant", "content": "7"}
        for messages in ([user], [system, user], [user, reply, again], [system, user, reply, again]):
            text = self._template(messages, add_generation_prompt=True)
            expected = self._tokenizer.encode(text, add_special_tokens=False)
            own = self.encode(messages, (), ())
            if own != expected:
                same = (a == b for a, b in zip(own, expected, strict=False))
                at = next((i for i, equal in enumerate(same) if not equal), min(len(own), len(expected)))
                raise EngineError(
                    f"renderer: ChatML differs from the tokenizer's template at token {at} of a conversation of "
                    f"{len(messages)} messages; pass a renderer for this model to the engine"
                )


def _special(tokenizer: Any, word: str) -> int:
    found = tokenizer.encode(word, add_special_tokens=False)
    if len(found) != 1:
        raise EngineError(f"renderer: {word} is {len(found)} tokens for this tokenizer, it must be one")
    return int(found[0])


def _check(number: int, message: Message, replies: int) -> None:
    role, content, reply = message.get("role"), message.get("content"), message.get("reply")
    if role not in ROLES:
        raise HarnessError(f"message {number}: role {role!r} is not one of {', '.join(ROLES)}")
    if content is not None and not isinstance(content, str):
        raise HarnessError(f"message {number}: content is {type(content).__name__}, it must be text")
    if reply is not None and not (isinstance(reply, int) and role == "assistant" and 0 <= reply < replies):
        raise HarnessError(f"message {number}: reply {reply!r} of role {role}; {replies} replies were made")


def _content(message: Message) -> str:
    return message.get("content") or ""


def _response(message: Message) -> str:
    return f"<tool_response>\n{_content(message)}\n</tool_response>"


def _openai(tool: ToolSpec) -> dict[str, Any]:
    parameters = dict(tool.parameters) or {"type": "object", "properties": {}}
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}
