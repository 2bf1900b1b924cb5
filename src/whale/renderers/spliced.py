"""The renderer that keeps replies as they were sampled, for the families whose markers are known.

Contexts only ever grow: an earlier reply is put back as the ids that were sampled, followed by what the model did not
sample (the end token if it was cut short, what the template puts after it). Everything else is written as the
tokenizer's own template writes it; small probes tell how, and whole conversations are compared id by id when the
renderer is made. Only markers become special tokens; text that looks like one stays text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from whale.errors import EngineError, HarnessError
from whale.renderers.families import Markers, Opening, opening_of
from whale.renderers.messages import calls_as_text, check, content_of, for_template, tools_as_text
from whale.renderers.reading import Reader
from whale.renderers.template import USER, ChatTemplate
from whale.renderers.verify import verify
from whale.types import Message, ParsedReply, ToolSpec

Piece = int | str
"""An id, or plain text still to be encoded."""


class Spliced:
    """``protocols.Renderer`` of a known family.

    Tools, calls and results are written by the template if it knows them, else in whale's text form. A message with
    ``reply: i`` stands for ``replies[i]`` whatever its content says; the host drops the mark of changed messages.
    Other assistant messages are written the way the template writes turns before the last user message, wherever they
    stand, so that a context stays the beginning of the next one.
    """

    def __init__(self, template: ChatTemplate, markers: Markers) -> None:
        """Raises EngineError if the template's conversations are not exactly reproduced."""
        self._template, self._markers = template, markers
        self._ids = {word: _required(template, word) for word in markers.words}
        self._ends = frozenset(i for i in map(template.single_id, markers.ends) if i is not None)
        self._words = re.compile("(" + "|".join(map(re.escape, markers.words)) + ")")
        self._reader = Reader(template, markers)
        self.text_ids = template.text_ids
        self._trims = template.text([{"role": "user", "content": " x "}]).endswith(markers.block("user", "x"))
        self.default_system = opening_of(template, markers, None).system
        self._result_role, self._merges = self._probe_results() if template.native else ("user", True)
        verify(template, self, markers.name)

    def parse(self, ids: Sequence[int], finish: str) -> ParsedReply:
        """See ``protocols.Renderer.parse``. Never raises; a broken tool call becomes one with ``error`` set."""
        return self._reader.read(ids)

    def encode(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], replies: Sequence[Sequence[int]]
    ) -> list[int]:
        """See ``protocols.Renderer.encode``. Raises HarnessError for a message that cannot be rendered."""
        check(messages, len(replies))
        rest = list(messages) if self._template.native else calls_as_text(messages)
        given = content_of(rest.pop(0)) if rest and rest[0]["role"] == "system" else None
        try:
            opening = self._opening(given, list(tools))
            pieces = self._marked(opening.begin)
            if opening.system is not None:
                pieces += self._block("system", opening.system)
            pieces += self._messages(rest, opening.preamble, replies)
        except EngineError as error:
            raise HarnessError(f"session.chat: these messages cannot be written for this model: {error}") from error
        return self._encoded([*pieces, *self._marked(self._template.opening)])

    # --- parts of a conversation ---------------------------------------------------------------------------------

    def _opening(self, given: str | None, tools: list[ToolSpec]) -> Opening:
        if not tools or self._template.knows_tools:
            return opening_of(self._template, self._markers, given, tools)
        if given is not None:
            return opening_of(self._template, self._markers, tools_as_text(self._trim(given), tools))
        default = opening_of(self._template, self._markers, None)
        return Opening(default.begin, tools_as_text(default.system, tools))

    def _messages(self, messages: list[Message], preamble: str, replies: Sequence[Sequence[int]]) -> list[Piece]:
        if preamble and (not messages or messages[0]["role"] != "user"):
            raise EngineError("the template describes tools in the first message, which must be the user's")
        pieces: list[Piece] = []
        for is_result, group in groupby(messages, lambda message: message["role"] == "tool"):
            if is_result:
                pieces += self._results(list(group))
                continue
            for message in group:
                if message["role"] == "assistant":
                    pieces += self._assistant(message, replies)
                else:
                    pieces += self._block(message["role"], preamble + self._trim(content_of(message)))
                    preamble = ""
        return pieces

    def _assistant(self, message: Message, replies: Sequence[Sequence[int]]) -> list[Piece]:
        number = message.get("reply")
        if number is None:
            return self._block("assistant", self._body([for_template(message)], "assistant", then=[USER]))
        sampled = list(replies[number])
        tail = self._marked(self._markers.tail)
        if sampled and sampled[-1] in self._ends:
            tail = tail[1:]
        return [*self._marked(self._template.opening), *sampled, *tail]

    def _results(self, results: list[Message]) -> list[Piece]:
        groups = [results] if self._merges else [[result] for result in results]
        bodies = [self._body([for_template(result) for result in group], self._result_role) for group in groups]
        return [piece for body in bodies for piece in self._block(self._result_role, body)]

    def _body(self, messages: list[Message], role: str, then: Sequence[Message] = ()) -> str:
        """What the template writes between the markers of these messages, which share one block."""
        before, after = self._template.text([USER]), "".join(self._markers.block("user", content_of(m)) for m in then)
        text = self._template.text([USER, *messages, *then])
        block = text[len(before) : len(text) - len(after)]
        body = self._markers.body(block, role)
        if body is None or before + block + after != text:
            raise EngineError(f"renderer: the chat template writes {text[:200]!r}, where a turn of {role} was expected")
        return body

    def _probe_results(self) -> tuple[str, bool]:
        """The role that results are written under, and whether consecutive ones share a block."""
        before = self._template.text([USER])
        one, two = (
            self._template.text([USER, *({"role": "tool", "content": "r", "tool_call_id": "call_0"},) * count])
            for count in (1, 2)
        )
        role = self._markers.role(one.removeprefix(before))
        if role is None:
            raise EngineError(f"renderer: the chat template writes a tool's result as {one[-80:]!r}, which is no turn")
        return role, two != one + one.removeprefix(before)

    # --- text and ids --------------------------------------------------------------------------------------------

    def _block(self, role: str, content: str) -> list[Piece]:
        return [*self._marked(self._markers.head.format(role=role)), content, *self._marked(self._markers.tail)]

    def _marked(self, text: str) -> list[Piece]:
        """The template's own text: its markers as ids."""
        return [self._ids.get(part, part) for part in self._words.split(text) if part]

    def _encoded(self, pieces: Sequence[Piece]) -> list[int]:
        # Neighbouring texts are encoded as one, as in the template's own text: tokens may span a header and a content.
        ids: list[int] = []
        text = ""
        for piece in pieces:
            if isinstance(piece, str):
                text += piece
            else:
                ids += [*self.text_ids(text), piece]
                text = ""
        return [*ids, *self.text_ids(text)]

    def _trim(self, text: str) -> str:
        return text.strip() if self._trims else text


def _required(template: ChatTemplate, word: str) -> int:
    found = template.single_id(word)
    if found is None:
        raise EngineError(f"renderer: {word} is {len(template.ids(word))} tokens for this tokenizer, it must be one")
    return found
