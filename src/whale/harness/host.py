"""Runs one candidate: a warm parent, a fork per rollout, and the conversation between a rollout and its handler."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Protocol

from whale.errors import HarnessError, SandboxError
from whale.harness.forkserver import MAX_MESSAGE, Exit, Fork, ForkServer, ProtocolError, describe
from whale.harness.runtime import DETAIL_CHARACTERS, LOG_CHARACTERS, LimitReached
from whale.types import Json, Limits, Message, Outcome

LOAD_SECONDS = 10.0
"""Own time that a file may take to be compiled, and again to be executed."""

_MAX_REFUSALS = 32  # a harness that goes on asking after so many LimitReached is ended
_MAX_AT_ONCE = 64  # requests of one rollout that are worked on at the same time; more wait unread


@dataclass(frozen=True)
class ChatRequest:
    """One ``session.chat`` as the harness wrote it, checked for type only. ``max_tokens`` is ``None`` where it named
    none; ``tools`` is ``None`` or tool names and OpenAI function schemas."""

    messages: list[Message]
    tools: list[str | dict[str, Json]] | None
    max_tokens: int | None
    stop: list[str]


class SessionHandler(Protocol):
    """The host's end of one rollout. Its coroutines may run at the same time and may be cancelled when the harness
    ends before they do. What they raise, other than ``LimitReached``, ends the rollout and comes out of ``run``."""

    async def chat(self, request: ChatRequest) -> dict[str, Json]:
        """The reply: ``text, reasoning, tool_calls, finish, usage, call``; each tool call has ``name, arguments, id,
        error``. Raises LimitReached, which the harness sees as its own exception."""
        ...

    async def tool(self, name: str, arguments: dict[str, Json]) -> str:
        """The observation of a tool. Raises LimitReached."""
        ...

    def mark(self, call: int) -> None:
        """The harness marked a model call as worth training on; the number may be one that was never made."""
        ...


@dataclass(frozen=True)
class HarnessResult:
    """How a rollout's harness ended. outcome: ``None`` if it answered, else ``HARNESS_ERROR``, ``HARNESS_TIMEOUT`` or
    ``LIMIT``. detail: the last lines of a traceback or a sentence, capped. log: what it printed, capped."""

    outcome: Outcome | None
    answer: str | None
    detail: str = ""
    log: str = ""


class HarnessProcess:
    """One candidate in one sandbox; an async context manager. ``run`` may be called many times at once.

    source: the harness file (see ``validate.check_source``; nothing is checked here). isolation: ``sealed``,
    ``contained`` or ``off``. limits: ``seconds`` is own time between two requests (rule: ``forkserver``), ``memory_mb``
    the address space of a rollout. allowed_imports: installed packages it may import beyond the standard library.
    Entering raises HarnessError if the file does not load, SandboxError if the sandbox does not start.
    """

    def __init__(
        self,
        source: str,
        *,
        isolation: str = "sealed",
        limits: Limits,
        allowed_imports: frozenset[str] = frozenset(),
        max_message: int = MAX_MESSAGE,
        load_seconds: float = LOAD_SECONDS,
    ) -> None:
        self._limits = limits
        self._load_seconds = load_seconds
        # A last resort only, since the clock of own time is the real limit: all of its requests at full length.
        self._cpu_seconds = int(limits.seconds * (limits.turns + limits.tool_calls + 1) + load_seconds) + 1
        confinement = {"memory_bytes": limits.memory_mb << 20, "cpu_seconds": self._cpu_seconds}
        self._server = ForkServer(
            isolation,
            {"source": source, "limits": confinement},
            allowed_imports,
            load_seconds=load_seconds,
            max_message=max_message,
            tick=min(0.1, limits.seconds / 4),
        )

    async def __aenter__(self) -> HarnessProcess:
        try:
            await self._server.start()
            await self._check()
        except BaseException:
            await self._server.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the sandbox and every rollout in it. Safe to call twice."""
        await self._server.close()

    async def _check(self) -> None:
        """Load the file once in a fork, so that a broken file is one clear error and not one per rollout."""
        fork = await self._server.open({"op": "check", "seed": 0}, self._load_seconds)
        try:
            result = await _Conversation(fork, _NoHandler(), self._limits, self._cpu_seconds).hold()
        finally:
            fork.release()
        if result.outcome is Outcome.HARNESS_TIMEOUT:
            raise HarnessError(f"the file did not finish loading within {self._load_seconds:g} s")
        if result.outcome is not None:
            raise HarnessError(result.detail)

    async def run(self, inputs: Mapping[str, Json], seed: int, handler: SessionHandler) -> HarnessResult:
        """Run the harness on one task in a fresh fork.

        inputs: all that the harness sees of the task. seed: seeds ``random`` in the fork. Whatever the candidate does
        becomes a HarnessResult. Raises what the handler raises, and SandboxError for a fault of the sandbox (the next
        ``run`` starts it again, unless it died twice in a row).
        """
        job = {"op": "run", "inputs": dict(inputs), "seed": seed, "limits": asdict(self._limits)}
        fork = await self._server.open(job, self._limits.seconds)
        try:
            return await _Conversation(fork, handler, self._limits, self._cpu_seconds).hold()
        finally:
            fork.release()


class _NoHandler:
    """For loading: the file has no session then, so nothing can be asked."""

    async def chat(self, request: ChatRequest) -> dict[str, Json]:
        raise HarnessError("the file called the model while it was loaded")

    async def tool(self, name: str, arguments: dict[str, Json]) -> str:
        raise HarnessError("the file called a tool while it was loaded")

    def mark(self, call: int) -> None:
        pass


class _Conversation:
    """Listens to one fork until it ends; each request is answered by a task of its own."""

    def __init__(self, fork: Fork, handler: SessionHandler, limits: Limits, cpu_seconds: float) -> None:
        self._fork = fork
        self._handler = handler
        self._limits = limits
        self._cpu_seconds = cpu_seconds
        self._messages_left = 4 * (limits.turns + limits.tool_calls) + 2 * _MAX_REFUSALS
        self._refusals = 0
        self._failure: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(_MAX_AT_ONCE)
        self._batch: list[tuple[int, Callable[[], Awaitable[Json]]]] = []

    async def hold(self) -> HarnessResult:
        """The whole conversation. Raises the handler's failure, and SandboxError."""
        try:
            result = await self._listen()
        except ProtocolError as error:
            self._fork.kill()
            result = HarnessResult(Outcome.HARNESS_ERROR, None, f"broken protocol: {error}")
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._failure is not None:
            raise self._failure
        return result

    async def _listen(self) -> HarnessResult:
        while (message := await self._fork.receive()) is not None:
            if message.get("op") == "end":
                return _result(message)
            self._messages_left -= 1
            if self._messages_left < 0 or self._refusals > _MAX_REFUSALS:
                self._fork.kill()
                return HarnessResult(Outcome.LIMIT, None, "the harness went on asking after its limits were reached")
            await self._serve(message)
        if self._failure is not None:
            return HarnessResult(None, None)
        return await self._explain()

    async def _serve(self, message: dict[str, Json]) -> None:
        if message.get("op") == "mark":
            self._handler.mark(_typed(message, "call", int))
            return
        self._batch.append((_typed(message, "n", int), self._work(message)))
        if message.get("more") is True:
            return  # asked together, started together: the handler sees them without a gap in which it could act
        batch, self._batch = self._batch, []
        for number, work in batch:
            await self._room.acquire()
            task = asyncio.create_task(self._answer(number, work))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _work(self, message: dict[str, Json]) -> Callable[[], Awaitable[Json]]:
        if message.get("op") == "chat":
            request = _chat_request(message)
            return lambda: self._handler.chat(request)
        if message.get("op") == "tool":
            name, arguments = _typed(message, "name", str), _typed(message, "arguments", dict)
            return lambda: self._handler.tool(name, arguments)
        raise ProtocolError("an unknown kind of message")

    async def _answer(self, number: int, work: Callable[[], Awaitable[Json]]) -> None:
        """Answer one request; a failure of the handler ends the fork and is kept for ``hold`` to raise."""
        try:
            with self._fork.owing():
                try:
                    answer = {"n": number, "ok": await work()}
                except LimitReached as limit:
                    self._refusals += 1
                    answer = {"n": number, "limit": str(limit)}
                await self._fork.send(answer)
        except Exception as error:
            self._failure = self._failure or error
            self._fork.kill()
        finally:
            self._room.release()

    async def _explain(self) -> HarnessResult:
        """The fork is gone without a last word."""
        if self._fork.timed_out:
            return HarnessResult(
                Outcome.HARNESS_TIMEOUT, None, f"over {self._limits.seconds:g} s of its own between two requests"
            )
        ending = await self._fork.ended()
        if used_up(ending, self._cpu_seconds):
            return HarnessResult(Outcome.HARNESS_TIMEOUT, None, f"over {self._cpu_seconds:g} s of processor time")
        if ending.status == -signal.SIGKILL:
            raise SandboxError("a rollout was killed from outside (is the machine out of memory?)")
        return HarnessResult(Outcome.HARNESS_ERROR, None, f"ended without an answer ({describe(ending.status)})")


def used_up(ending: Exit, cpu_seconds: float) -> bool:
    """Whether the kernel ended a process for using up its processor time."""
    killed = ending.status in (-signal.SIGXCPU, -signal.SIGKILL)
    return killed and ending.cpu >= cpu_seconds - 0.5


def _result(message: Mapping[str, Json]) -> HarnessResult:
    log = str(message.get("log", ""))[:LOG_CHARACTERS]
    kind, answer = message.get("kind"), message.get("answer")
    if kind == "answer" and isinstance(answer, str):
        return HarnessResult(None, answer, "", log)
    detail = str(message.get("detail", "no answer"))[:DETAIL_CHARACTERS]
    return HarnessResult(Outcome.LIMIT if kind == "limit" else Outcome.HARNESS_ERROR, None, detail, log)


def _typed(message: Mapping[str, Json], name: str, kind: type[Any]) -> Any:
    value = message.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ProtocolError(f"{name} is {type(value).__name__}, it must be {kind.__name__}")
    return value


def _chat_request(message: Mapping[str, Json]) -> ChatRequest:
    messages, tools = _typed(message, "messages", list), message.get("tools")
    if not messages or not all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages):
        raise ProtocolError("messages must be a non-empty list of objects with a role")
    if tools is not None and not _all(tools, (str, dict)):
        raise ProtocolError("tools must be a list of names and function schemas")
    limit = message.get("max_tokens")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ProtocolError(f"max_tokens is {limit!r}, it must be a positive whole number")
    stop = message.get("stop")
    if not _all(stop, (str,)):
        raise ProtocolError("stop must be a string or a list of strings")
    return ChatRequest(messages, tools, limit, [text for text in stop or [] if text])


def _all(values: Json, kinds: tuple[type[Any], ...]) -> bool:
    items: Sequence[Any] = values if isinstance(values, list) else [None]
    return all(isinstance(item, kinds) for item in items)
