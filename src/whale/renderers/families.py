"""Template families: the markers they put around messages. All else is read off a tokenizer's own template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whale.errors import EngineError
from whale.renderers.template import MARK, PROBE_TOOL, ChatTemplate
from whale.types import Message, ToolSpec


@dataclass(frozen=True)
class Markers:
    """What a family writes around a message's content.

    words: special tokens of the format. head: before a content, with ``{role}``. tail: after it. begin: before the
    first message, where the template writes it. ends: tokens that close a reply when the model samples them; the
    first is the one that ``tail`` starts with.
    """

    name: str
    words: tuple[str, ...]
    head: str
    tail: str
    ends: tuple[str, ...]
    begin: str = ""

    def block(self, role: str, content: str) -> str:
        """A message as the template writes it."""
        return self.head.format(role=role) + content + self.tail

    def body(self, text: str, role: str) -> str | None:
        """The content of exactly one block of ``role``, or None if the text is not framed as one."""
        head = self.head.format(role=role)
        framed = text.startswith(head) and text.endswith(self.tail) and len(text) >= len(head) + len(self.tail)
        return text[len(head) : len(text) - len(self.tail)] if framed else None

    def role(self, text: str) -> str | None:
        """The role of the block that the text starts with."""
        before, after = self.head.split("{role}")
        role, found, _ = text.removeprefix(before).partition(after)
        return role if found and text.startswith(before) else None


CHATML = Markers(
    name="ChatML",
    words=("<|im_start|>", "<|im_end|>"),
    head="<|im_start|>{role}\n",
    tail="<|im_end|>\n",
    ends=("<|im_end|>",),
)
LLAMA3 = Markers(
    name="Llama 3",
    words=("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    head="<|start_header_id|>{role}<|end_header_id|>\n\n",
    tail="<|eot_id|>",
    ends=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    begin="<|begin_of_text|>",
)
FAMILIES = (CHATML, LLAMA3)


def family_of(template: ChatTemplate) -> Markers | None:
    """The family of a template, told by the marker that opens its messages; None if there is none."""
    return next((family for family in FAMILIES if family.head.split("{role}")[0] in template.source), None)


@dataclass(frozen=True)
class Opening:
    """What a template writes before the first user message's own text.

    begin: text before the first block. system: content of the system block, or None without one. preamble: what is put
    in front of the first user message (Llama 3.1 describes tools there).
    """

    begin: str
    system: str | None
    preamble: str = ""


def opening_of(template: ChatTemplate, markers: Markers, given: str | None, tools: Sequence[ToolSpec] = ()) -> Opening:
    """Read off the template what it makes of a system message and tools. Raises EngineError if it fails at it.

    Texts of ``given`` and ``tools`` that look like markers cannot move the borders found here: only the end of the
    rendered text, and a rendering with a harmless tool, are searched for them.
    """
    system: list[Message] = [] if given is None else [{"role": "system", "content": given}]
    messages = [*system, {"role": "user", "content": MARK}]
    text = template.text(messages, tools)
    plain = markers.block("user", MARK)
    if text.endswith(plain):
        return _opening(markers, text.removesuffix(plain), "")
    head = markers.head.format(role="user")
    harmless = template.text(messages, [PROBE_TOOL]) if tools else ""
    before = harmless[: harmless.rfind(markers.tail + head) + len(markers.tail)]
    if not tools or not text.startswith(before + head) or not text.endswith(MARK + markers.tail):
        assumed = text[: max(0, text.rfind(MARK) - len(head))] + plain
        at = first_difference(template.ids(assumed), template.ids(text))
        raise EngineError(
            f"renderer: {markers.name} differs from the tokenizer's template at token {at} of a conversation of "
            f"{len(messages)} messages: a user's message is written as {text[len(assumed) - len(plain) :]!r}"
        )
    return _opening(markers, before, text.removeprefix(before + head).removesuffix(MARK + markers.tail))


def first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """The first place where two lists of ids differ; the length of the shorter one if it is the other's beginning."""
    same = (a == b for a, b in zip(one, other, strict=False))
    return next((i for i, equal in enumerate(same) if not equal), min(len(one), len(other)))


def _opening(markers: Markers, text: str, preamble: str) -> Opening:
    begin = markers.begin if text.startswith(markers.begin) else ""
    block = text.removeprefix(begin)
    if not block:
        return Opening(begin, None, preamble)
    system = markers.body(block, "system")
    if system is None:
        raise EngineError(f"renderer: the chat template opens with {text[:60]!r}, which is not a system message")
    return Opening(begin, system, preamble)
