"""The built-in agent: any chat endpoint with tool calls, and a loop that gives it file tools until it is done.

No code of the model's is run here, apart from candidates in the sandbox of the smoke check.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from whale.config import ProposerConfig
from whale.proposers.conversation import Conversation, estimate
from whale.proposers.endpoint import Answer, Endpoint, NoReply
from whale.proposers.file_tools import SCHEMAS, CheckSource, FileTools
from whale.proposers.scratch import Scratch
from whale.proposers.session import SESSION_LOG, Ended, Worked

SYSTEM = (
    "You are an engineer who improves programs. You work only through the tools you are given; paths are relative to "
    "the current folder. Read before you write. Use `check` on every candidate and mend what it finds. When the "
    "candidates and the manifest are written, reply without calling a tool."
)

_CALLS_AT_ONCE = 32
_REMINDERS = 2
_REMINDER = "outbox/ holds no harness.py yet, and only files count. Go on with the tools."
_TOOLS = [{"type": "function", "function": {"name": name, **schema}} for name, schema in SCHEMAS.items()]


class ChatWorker:
    """Implements ``session.Worker`` with an OpenAI-compatible endpoint.

    check: why a source must not be evaluated, or ``None``. say: takes lines for a person.
    """

    name = "openai"

    def __init__(
        self, settings: ProposerConfig, check: CheckSource, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self.seconds = settings.seconds
        self._settings = settings
        self._check = check
        self._say = say

    def check(self) -> str:
        """Raises ProposerError if the package or the key is missing. Sends nothing, warns of nothing."""
        Endpoint(self._settings).close()
        return ""

    def work(self, scratch: Scratch, task: str, log: Path) -> Worked:
        """One conversation, kept as ``session.jsonl`` in ``log``."""
        endpoint = Endpoint(self._settings)
        try:
            with (log / SESSION_LOG).open("w", encoding="utf-8") as file:
                tools = FileTools(scratch, self._check)
                return _Session(self._settings, endpoint, tools, scratch, file, self._say).hold(task)
        finally:
            endpoint.close()


class _Session:
    """A conversation under way, and what it has used."""

    def __init__(
        self,
        settings: ProposerConfig,
        endpoint: Endpoint,
        tools: FileTools,
        scratch: Scratch,
        log: IO[str],
        say: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._endpoint = endpoint
        self._tools = tools
        self._scratch = scratch
        self._log = log
        self._say = say
        self._began = time.monotonic()
        self._next_beat = self._began + settings.heartbeat
        self._turns = 0
        self._counted = 0  # tokens, estimated where the endpoint does not count
        self._tokens: int | None = 0
        self._money: float | None = 0.0
        self._dearest = 0.0

    def hold(self, task: str) -> Worked:
        talk = Conversation(SYSTEM, task, self._settings.context_tokens)
        self._note({"role": "user", "content": task})
        reminders = 0
        while not (limit := self._limit()):
            try:
                answer = self._ask(talk)
            except NoReply as error:
                return self._worked("timeout" if error.timeout else "error", str(error))
            self._note(answer.message)
            talk.reply(answer.message)
            calls = answer.message.get("tool_calls", [])
            for number, call in enumerate(calls):
                self._answer(talk, call, number)
            if not calls:
                if any(self._scratch.outbox.glob("*/harness.py")) or reminders == _REMINDERS:
                    return self._worked("ended", answer.message["content"])
                reminders += 1
                talk.answer({"role": "user", "content": _REMINDER})
            self._beat()
        return self._worked("timeout" if limit == "seconds" else "limit", f"the limit on {limit} is reached")

    def _limit(self) -> str:
        """The limit that forbids another call, or ``""``."""
        settings = self._settings
        if self._out_of_time():
            return "seconds"
        if self._turns >= settings.turns:
            return "turns"
        if self._counted >= settings.tokens:
            return "tokens"
        # Another call may cost what the dearest has cost: the limit is kept, not passed.
        if settings.money is not None and (self._money or 0.0) + self._dearest > settings.money:
            return "money"
        return ""

    def _out_of_time(self) -> bool:
        return time.monotonic() - self._began >= self._settings.seconds

    def _ask(self, talk: Conversation) -> Answer:
        messages = talk.messages()
        answer = self._endpoint.ask(messages, _TOOLS, self._began + self._settings.seconds)
        self._turns += 1
        self._counted += answer.tokens if answer.tokens is not None else estimate([*messages, answer.message])
        self._tokens = None if self._tokens is None or answer.tokens is None else self._tokens + answer.tokens
        if answer.money is None and self._money is not None and self._settings.money is not None:
            self._say("proposer openai: the endpoint reports no cost and search.proposer.price_in and price_out are "
                      "not set; the limit on money cannot be kept, those on turns and tokens are")  # fmt: skip
        self._money = None if self._money is None or answer.money is None else self._money + answer.money
        self._dearest = max(self._dearest, answer.money or 0.0)
        return answer

    def _answer(self, talk: Conversation, call: dict[str, Any], number: int) -> None:
        function = call["function"]
        if number < _CALLS_AT_ONCE and not self._out_of_time():
            result = self._tools.call(function["name"], function["arguments"])
        else:
            result = f"Error: not done; at most {_CALLS_AT_ONCE} calls in one reply, within the time of the session"
        message = {"role": "tool", "tool_call_id": call["id"], "content": result}
        self._note(message)
        talk.answer(message)

    def _beat(self) -> None:
        if time.monotonic() >= self._next_beat:
            self._next_beat = time.monotonic() + self._settings.heartbeat
            files = sum(1 for _ in self._scratch.outbox.glob("*/harness.py"))
            self._say(f"proposer openai: {time.monotonic() - self._began:.0f} s, {self._turns} turns, "
                      f"{self._tools.calls} tool calls, {files} files so far")  # fmt: skip

    def _note(self, message: dict[str, Any]) -> None:
        self._log.write(json.dumps(message) + "\n")
        self._log.flush()

    def _worked(self, ended: Ended, detail: str) -> Worked:
        unknown = self._turns == 0  # nothing came back: what it cost is not known
        return Worked(
            ended=ended, isolation="file tools", calls=self._tools.calls, turns=self._turns,
            tokens=None if unknown else self._tokens, money=None if unknown else self._money, detail=detail,
        )  # fmt: skip
