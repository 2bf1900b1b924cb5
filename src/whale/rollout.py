"""The only way a harness runs: for training, for search and for test.

A block is a fixed list of (harness, task, sample, seed) under one policy version. Its rollouts run at once, each
in its own sandboxed process; their model calls are answered in waves: when every live rollout waits
for the model (or has ended), all waiting calls go to the engine together, in a fixed order. What a wave holds
therefore depends on the harness and the tokens alone, never on timing, and a block gives the same tokens each time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from whale.errors import EngineError, HarnessError, StaleWeightsError, WhaleError
from whale.harness.host import ChatRequest, HarnessProcess, HarnessResult
from whale.harness.runtime import LimitReached
from whale.protocols import Domain, Engine, Episode
from whale.seeds import derive
from whale.types import (
    OWNED,
    Candidate,
    Completion,
    GenerationRequest,
    Json,
    Limits,
    Message,
    ModelCall,
    Outcome,
    Rollout,
    Sampling,
    Task,
    ToolSpec,
    ToolUse,
    Verdict,
)

_REACTION_SECONDS = 0.05


@dataclass(frozen=True)
class Attempt:
    """One rollout to make."""

    harness: Candidate
    task: Task
    sample: int
    seed: int


@dataclass(frozen=True)
class Setting:
    """Everything about a block that is the same for all its rollouts."""

    engine: Engine
    domain: Domain
    sampling: Sampling
    limits: Limits
    isolation: str = "sealed"
    concurrent: int = 512
    retries: int = 1


class Listener:
    """Hears of a block's progress; the base class ignores it."""

    def started(self, count: int) -> None:
        """``count`` more rollouts are about to begin."""

    def finished(self, order: int, rollout: Rollout) -> None:
        """The rollout at place ``order`` has its final outcome."""


def run_rollouts(
    setting: Setting, attempts: Sequence[Attempt], version: int, listener: Listener | None = None
) -> list[Rollout]:
    """Run every attempt and return its rollouts in order. Infrastructure faults are retried, then left as ``None``.

    Attempts may name different harnesses: a larger wave costs less per token. A file that cannot be loaded gives
    ``harness_error`` rollouts. Raises SandboxError if no sandbox can be started.
    """
    return asyncio.run(_run_block(setting, attempts, version, listener or Listener()))


async def _run_block(setting: Setting, attempts: Sequence[Attempt], version: int, listener: Listener) -> list[Rollout]:
    results: dict[int, Rollout] = {}
    todo = list(range(len(attempts)))
    await setting.domain.start()
    try:
        for tries_left in range(setting.retries, -1, -1):
            listener.started(len(todo))

            def finished(order: int, rollout: Rollout, last: bool = tries_left == 0) -> None:
                results[order] = rollout
                if last or not _retryable(rollout):
                    listener.finished(order, rollout)

            await _run_once(setting, [(order, attempts[order]) for order in todo], version, finished)
            todo = [order for order in todo if _retryable(results[order])]
            if not todo:
                break
    finally:
        await setting.domain.close()
    return [results[order] for order in range(len(attempts))]


def _retryable(rollout: Rollout) -> bool:
    return rollout.outcome not in OWNED and rollout.outcome != Outcome.UNSCORABLE


async def _run_once(
    setting: Setting,
    items: Sequence[tuple[int, Attempt]],
    version: int,
    finished: Callable[[int, Rollout], None],
) -> None:
    waves = Waves(setting.engine, setting.sampling, version)
    gate = asyncio.Semaphore(setting.concurrent)
    places = min(len(items), setting.concurrent)
    waves.enter(places)
    queued = len(items) - places

    async def one(order: int, attempt: Attempt) -> None:
        nonlocal queued
        async with gate:
            try:
                process = processes[attempt.harness.hash]
                finished(order, await _rollout(setting, attempt, process, waves, order))
            finally:
                # Whoever still queues takes over the place, so that the next wave waits for it too.
                waves.leave(order, replaced=queued > 0)
                queued -= queued > 0

    async with AsyncExitStack() as stack:
        processes = await _start_harnesses(setting, [attempt.harness for _, attempt in items], stack)
        await asyncio.gather(*(one(order, attempt) for order, attempt in items))


async def _start_harnesses(
    setting: Setting, harnesses: Iterable[Candidate], stack: AsyncExitStack
) -> dict[str, HarnessProcess | HarnessError]:
    """One warm parent per distinct harness, or the error that its file gives when it is loaded."""
    processes: dict[str, HarnessProcess | HarnessError] = {}
    for harness in harnesses:
        if harness.hash in processes:
            continue
        process = HarnessProcess(
            harness.source,
            isolation=setting.isolation,
            limits=setting.limits,
            allowed_imports=setting.domain.allowed_imports,
        )
        try:
            processes[harness.hash] = await stack.enter_async_context(process)
        except HarnessError as error:
            processes[harness.hash] = error
    return processes


async def _rollout(
    setting: Setting, attempt: Attempt, process: HarnessProcess | HarnessError, waves: Waves, order: int
) -> Rollout:
    began = time.monotonic()
    session = HostSession(setting, attempt, waves, order)
    try:
        if isinstance(process, HarnessError):
            raise process
        episode = setting.domain.open(attempt.task)
        session.episode = episode
        result = await process.run(dict(attempt.task.inputs), attempt.seed, session)
        verdict, detail = await _judge(episode, result)
        answer = result.answer
    except StaleWeightsError:
        raise
    except HarnessError as error:  # a file that does not load, a request that cannot be understood
        verdict, detail, answer = Verdict(0.0, "harness_error", Outcome.HARNESS_ERROR), str(error), None
    except WhaleError as error:
        tool = session.in_tool
        outcome = Outcome.TOOL_INFRA_ERROR if tool else Outcome.INFRA_ERROR
        verdict, detail, answer = Verdict(None, "infrastructure", outcome), f"{type(error).__name__}: {error}", None
    return Rollout(
        task_id=attempt.task.id,
        sample=attempt.sample,
        seed=attempt.seed,
        harness=attempt.harness.hash,
        policy_version=waves.version,
        outcome=verdict.outcome,
        reward=verdict.reward,
        answer=answer,
        reason=verdict.reason,
        detail=detail,
        calls=tuple(call for call in session.calls if call is not None),
        tools=tuple(session.tools),
        seconds=round(time.monotonic() - began, 4),
        family=attempt.task.family,
    )


async def _judge(episode: Episode, result: HarnessResult) -> tuple[Verdict, str]:
    if result.outcome is not None:
        return Verdict(0.0, str(result.outcome), result.outcome), result.detail
    if not (result.answer or "").strip():
        return Verdict(0.0, "no_answer", Outcome.NO_ANSWER), result.detail
    try:
        verdict = await episode.score(result.answer or "")
    except Exception as error:  # a verifier that breaks must never look like a wrong answer
        return Verdict(None, "verifier", Outcome.VERIFIER_ERROR), f"{type(error).__name__}: {error}"
    return verdict, result.detail


class Waves:
    """Collects model calls until every live rollout waits for one, then has the engine answer all of them."""

    def __init__(self, engine: Engine, sampling: Sampling, version: int) -> None:
        self.engine = engine
        self.sampling = sampling
        self.version = version
        self._live = 0
        self._busy: dict[int, int] = {}
        self._waiting: dict[tuple[int, int], tuple[GenerationRequest, asyncio.Future[Completion]]] = {}

    def enter(self, count: int) -> None:
        """``count`` rollouts become live: no wave starts before each of them waits or has left."""
        self._live += count

    def leave(self, order: int, replaced: bool = False) -> None:
        """The rollout has ended; ``replaced`` if another one takes its place."""
        self._busy.pop(order, None)
        if not replaced:
            self._live -= 1
            self._start_if_all_wait()

    def busy(self, order: int, change: int) -> None:
        """A tool call of the rollout begins (+1) or ends (-1): it may ask for the model soon, so waves wait for it."""
        self._busy[order] = self._busy.get(order, 0) + change
        if change < 0:
            # Only matters to a rollout with a tool and a model call under way at once: it gets a moment to react.
            asyncio.get_running_loop().call_later(_REACTION_SECONDS, self._start_if_all_wait)

    async def generate(self, order: int, call: int, request: GenerationRequest) -> Completion:
        """Answer one call with the next wave. Raises EngineError, or StaleWeightsError for another policy version."""
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting[order, call] = (request, future)
        # Not at once: calls a harness makes together (asyncio.gather) arrive together and belong in one wave.
        asyncio.get_running_loop().call_soon(self._start_if_all_wait)
        completion = await future
        if completion.version != self.version:
            raise StaleWeightsError(
                f"asked for policy {self.version}, the engine sampled from {completion.version}; "
                "publish before rolling out"
            )
        return completion

    def _start_if_all_wait(self) -> None:
        waiting = {order for order, _ in self._waiting}
        if not waiting or len(waiting) < self._live or any(self._busy.get(order) for order in waiting):
            return
        wave = sorted(self._waiting.items())
        self._waiting = {}
        try:
            completions = self.engine.generate([request for _, (request, _) in wave], self.sampling)
        except EngineError as error:
            for _, (_, future) in wave:
                future.set_exception(error)
            return
        for (_, (_, future)), completion in zip(wave, completions, strict=True):
            if not future.done():
                future.set_result(completion)


class HostSession:
    """The host's end of one rollout: enforces limits, encodes contexts, calls engine and tools, keeps the trace."""

    def __init__(self, setting: Setting, attempt: Attempt, waves: Waves, order: int) -> None:
        self._setting = setting
        self._attempt = attempt
        self._waves = waves
        self._order = order
        self.episode: Episode | None = None
        self.calls: list[ModelCall | None] = []
        self.tools: list[ToolUse] = []
        self.in_tool = False

    async def chat(self, request: ChatRequest) -> dict[str, Json]:
        """Answer ``session.chat``. Raises LimitReached for the harness to catch, EngineError for the host."""
        limits = self._setting.limits
        if len(self.calls) >= limits.turns:
            raise LimitReached(f"turns: {limits.turns} model calls are used up")
        number = len(self.calls)
        self.calls.append(None)
        messages = [self._as_sampled(message) for message in request.messages]
        context = self._encode(messages, request.tools or ())
        if len(context) > limits.context_tokens:
            raise LimitReached(f"context_tokens: {len(context)} ids, the limit is {limits.context_tokens}")
        completion = await self._waves.generate(
            self._order,
            number,
            GenerationRequest(
                context=context,
                max_tokens=self._room(request.max_tokens),
                seed=derive(self._attempt.seed, "call", number),
                stop=tuple(request.stop or ()),
            ),
        )
        return self._record(number, messages, context, completion)

    async def tool(self, name: str, arguments: Mapping[str, Json]) -> str:
        """Answer ``session.tools.name``: the observation, also for arguments the tool cannot use."""
        assert self.episode is not None
        if len(self.tools) >= self._setting.limits.tool_calls:
            raise LimitReached(f"tool_calls: {self._setting.limits.tool_calls} tool calls are used up")
        function = self.episode.tools.get(name)
        began = time.monotonic()
        self._waves.busy(self._order, +1)
        error = ""
        try:
            if function is None:
                raise ValueError(f"there is no tool {name!r}; the tools are: {', '.join(self.episode.tools) or 'none'}")
            self.in_tool = True
            observation = await function(**arguments)
            self.in_tool = False
        except (ValueError, TypeError) as fault:
            if isinstance(fault, WhaleError):
                raise
            error = str(fault)
            observation = f"Error: {fault}"
            self.in_tool = False
        finally:
            self._waves.busy(self._order, -1)
        use = ToolUse(name, dict(arguments), observation, round(time.monotonic() - began, 4), len(self.calls), error)
        self.tools.append(use)
        return observation

    def mark(self, call: int) -> None:
        """Remember that the harness wants this call trained on (``train_calls = marked``)."""
        if 0 <= call < len(self.calls) and (found := self.calls[call]) is not None:
            self.calls[call] = replace(found, marked=True)

    def _room(self, asked: int | None) -> int:
        limits = self._setting.limits
        used = sum(len(call.sampled) for call in self.calls if call)
        left = limits.assistant_tokens - used
        if left <= 0:
            raise LimitReached(f"assistant_tokens: {limits.assistant_tokens} sampled tokens are used up")
        return max(1, min(asked or limits.call_tokens, limits.call_tokens, left))

    def _encode(self, messages: Sequence[Message], tools: Sequence[str | Mapping[str, Any]]) -> tuple[int, ...]:
        try:
            specs = [self._tool_spec(tool) for tool in tools]
            sampled = [call.sampled if call else () for call in self.calls]
            return tuple(self._setting.engine.renderer.encode(messages, specs, sampled))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise HarnessError(f"session.chat was given messages or tools it cannot use: {error}") from None

    def _tool_spec(self, tool: str | Mapping[str, Any]) -> ToolSpec:
        if isinstance(tool, str):
            known = self._setting.domain.tool_specs
            if tool not in known:
                raise ValueError(f"there is no tool {tool!r}; the tools are: {', '.join(known) or 'none'}")
            return known[tool]
        function = tool.get("function", tool)
        return ToolSpec(
            str(function["name"]), str(function.get("description", "")), dict(function.get("parameters", {}))
        )

    def _as_sampled(self, message: Message) -> Message:
        """Keep the mark of an earlier reply only if the harness passed it back unchanged."""
        number = message.get("reply")
        if number is None:
            return message
        call = self.calls[number] if isinstance(number, int) and 0 <= number < len(self.calls) else None
        if call is not None and message.get("role") == "assistant" and message.get("content") == call.text:
            return message
        return {key: value for key, value in message.items() if key != "reply"}

    def _record(
        self, number: int, messages: Sequence[Message], context: tuple[int, ...], completion: Completion
    ) -> dict[str, Json]:
        parsed = self._setting.engine.renderer.parse(completion.ids, completion.finish)
        self.calls[number] = ModelCall(
            context=context,
            sampled=completion.ids,
            logprobs=completion.logprobs,
            finish=completion.finish,
            seed=derive(self._attempt.seed, "call", number),
            version=completion.version,
            messages=tuple(messages),
            text=parsed.text,
            reasoning=parsed.reasoning,
            tool_calls=parsed.tool_calls,
        )
        return {
            "call": number,
            "text": parsed.text,
            "reasoning": parsed.reasoning,
            "tool_calls": [{**vars(c), "arguments": dict(c.arguments)} for c in parsed.tool_calls],
            "finish": completion.finish,
            "usage": {"context": len(context), "sampled": len(completion.ids)},
        }
