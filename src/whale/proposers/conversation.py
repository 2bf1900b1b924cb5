"""A conversation with tool calls that is kept within a length without losing the task."""

from __future__ import annotations

import json

from whale.types import Message

_CHARACTERS_PER_TOKEN = 3.5  # rough, on the safe side for English and code
_DROPPED = "(dropped to save space; ask again if it is needed)"
_KEPT_WHOLE = 4  # latest messages that are never cut


class Conversation:
    """The task first, then replies and tool results. Old results are dropped first, then whole old turns."""

    def __init__(self, system: str, task: str, context_tokens: int) -> None:
        self._head: list[Message] = [{"role": "system", "content": system}, {"role": "user", "content": task}]
        self._turns: list[list[Message]] = []
        self._budget = context_tokens * _CHARACTERS_PER_TOKEN

    def reply(self, message: Message) -> None:
        """A reply of the model: it begins a turn."""
        self._turns.append([message])

    def answer(self, message: Message) -> None:
        """A tool's result, or what is said to the model: it belongs to the latest turn."""
        self._turns[-1].append(message)

    def messages(self) -> list[Message]:
        """What to send. Each tool call keeps its result, as endpoints insist."""
        turns = self._turns
        messages = [*self._head, *(message for turn in turns for message in turn)]
        excess = _length(messages) - self._budget
        recent = {id(message) for message in messages[-_KEPT_WHOLE:]}
        for turn in turns:
            for place, message in enumerate(turn):
                if excess <= 0:
                    break
                if message["role"] == "tool" and id(message) not in recent and message["content"] != _DROPPED:
                    turn[place] = {**message, "content": _DROPPED}
                    excess -= len(message["content"]) - len(_DROPPED)
        while excess > 0 and len(turns) > 1:
            excess -= _length(turns.pop(0))
        return [*self._head, *(message for turn in turns for message in turn)]


def _length(messages: list[Message]) -> int:
    return sum(len(json.dumps(message, ensure_ascii=False)) for message in messages)


def estimate(messages: list[Message]) -> int:
    """Tokens of messages, roughly; for endpoints that do not count."""
    return int(_length(messages) / _CHARACTERS_PER_TOKEN)
