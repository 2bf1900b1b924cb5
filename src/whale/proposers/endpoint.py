"""One call of an OpenAI-compatible chat endpoint: tried again where that may help, never beyond the time that is left.

Answers are read as plain JSON, so that an endpoint that leaves fields out or adds some is no trouble.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whale.config import ProposerConfig
from whale.errors import ProposerError
from whale.types import Message

KEY_VARIABLE = "OPENAI_API_KEY"

_TRIES = 6
_LONGEST_PAUSE = 60.0
_BODY_BYTES = 32 << 20
_PASSING = frozenset({408, 409, 425, 429})
_REFUSED = frozenset({401, 403})


class NoReply(Exception):
    """The endpoint gave no usable reply. timeout: because the time is used up. The text says why."""

    def __init__(self, text: str, timeout: bool = False) -> None:
        super().__init__(text)
        self.timeout = timeout


@dataclass(frozen=True)
class Answer:
    """A reply. message: to be sent back as it is, with ``tool_calls`` in the order of the call. tokens, money: of this
    call, ``None`` if unknown."""

    message: Message
    tokens: int | None
    money: float | None


class Endpoint:
    """A chat endpoint with tool calls. Raises ProposerError, with the way out, for a missing package or key."""

    def __init__(self, settings: ProposerConfig) -> None:
        try:
            from openai import OpenAI
        except ImportError:
            raise ProposerError(
                "search.proposer.kind openai needs the package openai; pip install 'whale-learn[proposer]'"
            ) from None
        self._settings = settings
        self._client = OpenAI(
            api_key=_key(settings), base_url=settings.base_url or None, max_retries=0, timeout=settings.seconds
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def ask(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], deadline: float) -> Answer:
        """The reply to ``messages``, by ``deadline`` (of ``time.monotonic``).

        Raises NoReply where all tries failed, ProposerError where the key is refused.
        """
        why = "no time was left"
        for attempt in range(_TRIES):
            left = deadline - time.monotonic()
            if left <= 0:
                raise NoReply(why, timeout=True)
            try:
                return self._answer(self._send(messages, tools, left))
            except _Passing as error:
                why = str(error)
                pause = min(2.0**attempt, _LONGEST_PAUSE) if error.pause is None else error.pause
            if pause >= deadline - time.monotonic():
                raise NoReply(f"{why}; the endpoint asks for a pause longer than the time left", timeout=True)
            if attempt < _TRIES - 1:
                time.sleep(pause)
        raise NoReply(f"{why}, {_TRIES} times")

    def _send(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], seconds: float) -> dict[str, Any]:
        from openai import APIConnectionError, APIStatusError

        effort = {"reasoning_effort": self._settings.effort} if self._settings.effort else {}
        create: Any = self._client.chat.completions.with_streaming_response.create
        asked = {"model": self._settings.model, "messages": messages, "tools": tools, **effort}
        deadline = time.monotonic() + seconds
        try:
            with create(**asked, timeout=seconds) as raw:
                found = json.loads(_body(raw.iter_bytes(), deadline))
        except _Passing:
            raise
        except APIStatusError as error:
            raise self._refusal(error.status_code, str(error), error.response.headers) from None
        except APIConnectionError as error:  # a time-out of a single call among them
            raise _Passing(f"{type(error).__name__}: {error}") from None
        except ValueError as error:
            raise _Passing(f"the reply is not whole JSON: {error}") from None
        except Exception as error:  # the transport's own, whichever library it is: lost in the middle of a body
            raise _Passing(f"{type(error).__name__}: {error}") from None
        if not isinstance(found, dict):
            raise _Passing("the reply is no JSON object")
        return found

    def _refusal(self, status: int, text: str, headers: Mapping[str, str]) -> Exception:
        if status in _REFUSED:
            return ProposerError(
                f"search.proposer: the endpoint refused the key with status {status}: {text[:300]}; "
                f"put a valid one into the environment variable {self._settings.key_variable or KEY_VARIABLE}"
            )
        if status in _PASSING or status >= 500:
            return _Passing(f"status {status}", _pause(headers))
        return NoReply(f"status {status}: {text[:500]}")

    def _answer(self, found: Mapping[str, Any]) -> Answer:
        choices = found.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(message, dict):
            raise _Passing("the reply holds no message")
        kept: Message = {"role": "assistant", "content": message.get("content") or ""}
        calls = [_call(call) for call in message.get("tool_calls") or [] if isinstance(call, dict)]
        if calls:
            kept["tool_calls"] = calls
        usage = found.get("usage")
        return Answer(kept, *self._spent(usage if isinstance(usage, dict) else {}))

    def _spent(self, usage: Mapping[str, Any]) -> tuple[int | None, float | None]:
        read, written = (_number(usage.get(name)) for name in ("prompt_tokens", "completion_tokens"))
        total = _number(usage.get("total_tokens"))
        if total is None and read is not None and written is not None:
            total = read + written
        tokens = None if total is None else int(total)
        cost = _number(usage.get("cost"))  # some gateways report it
        prices = self._settings.price_in, self._settings.price_out
        if cost is None and None not in (*prices, read, written):
            cost = ((prices[0] or 0) * (read or 0) + (prices[1] or 0) * (written or 0)) / 1e6
        return tokens, cost


class _Passing(Exception):
    """A fault that another try may not meet. pause: seconds the endpoint asks to wait."""

    def __init__(self, text: str, pause: float | None = None) -> None:
        super().__init__(text)
        self.pause = pause


def _body(chunks: Iterator[bytes], deadline: float) -> bytes:
    """The whole body. Gateways send blanks while a model thinks, so the limit of a single read is none."""
    body = bytearray()
    for chunk in chunks:
        body += chunk
        if len(body) > _BODY_BYTES or time.monotonic() > deadline:
            raise _Passing("the reply was too long" if len(body) > _BODY_BYTES else "the reply did not end in time")
    return bytes(body)


def _key(settings: ProposerConfig) -> str:
    variable = settings.key_variable or KEY_VARIABLE
    key = os.environ.get(variable)
    if key:
        return key
    if not settings.base_url and not os.environ.get("OPENAI_BASE_URL"):
        raise ProposerError(
            f"search.proposer.kind openai needs a key in the environment variable {variable}; set it, name another "
            "variable in search.proposer.key_variable, or a server of your own in search.proposer.base_url"
        )
    return "none"  # servers of one's own seldom ask for one, the client insists


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    """A tool call with every field a text, as it must be to be sent back."""
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    named = {"name": str(function.get("name") or ""), "arguments": text}
    return {"id": str(call.get("id") or ""), "type": "function", "function": named}


def _pause(headers: Mapping[str, str]) -> float | None:
    """Seconds of ``Retry-After`` (``retry-after-ms`` where there is one); ``None`` for a date or nothing."""
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * scale
        except ValueError:
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    return None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        return None
    return float(value)
