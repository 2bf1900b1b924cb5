"""The host's end of one rollout: what a harness may ask for, what it may use, and the trace of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from whale.errors import HarnessError, WhaleError
from whale.harness.host import ChatRequest
from whale.harness.runtime import LimitReached
from whale.protocols import Domain, Engine, Episode
from whale.renderers.calls import by_schema
from whale.seeds import derive
from whale.types import (
    Completion,
    GenerationRequest,
    Json,
    Limits,
    Message,
    ModelCall,
    Sampling,
    ToolSpec,
    ToolUse,
)
from whale.waves import Waves


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


class HostSession:
    """The host's end of one rollout: enforces limits, encodes contexts, calls engine and tools, keeps the trace."""

    def __init__(self, setting: Setting, seed: int, waves: Waves, order: int) -> None:
        self._setting = setting
        self._seed = seed
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
        context, specs = self._encode(messages, request.tools or ())
        if len(context) > limits.context_tokens:
            raise LimitReached(f"context_tokens: {len(context)} ids, the limit is {limits.context_tokens}")
        completion = await self._waves.generate(
            self._order,
            number,
            GenerationRequest(
                context=context,
                max_tokens=self._room(request.max_tokens),
                seed=derive(self._seed, "call", number),
                stop=tuple(request.stop or ()),
            ),
        )
        return self._record(number, messages, context, completion, specs)

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

    def _encode(
        self, messages: Sequence[Message], tools: Sequence[str | Mapping[str, Any]]
    ) -> tuple[tuple[int, ...], list[ToolSpec]]:
        """Ids of the context, and the tools that are described in it."""
        try:
            specs = [self._tool_spec(tool) for tool in tools]
            sampled = [call.sampled if call else () for call in self.calls]
            return tuple(self._setting.engine.renderer.encode(messages, specs, sampled)), specs
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
        self,
        number: int,
        messages: Sequence[Message],
        context: tuple[int, ...],
        completion: Completion,
        tools: Sequence[ToolSpec],
    ) -> dict[str, Json]:
        parsed = self._setting.engine.renderer.parse(completion.ids, completion.finish)
        schemas = {spec.name: spec.parameters for spec in tools}
        tool_calls = tuple(
            replace(call, arguments=by_schema(call.arguments, schemas.get(call.name, {}))) for call in parsed.tool_calls
        )
        self.calls[number] = ModelCall(
            context=context,
            sampled=completion.ids,
            logprobs=completion.logprobs,
            finish=completion.finish,
            seed=derive(self._seed, "call", number),
            version=completion.version,
            messages=tuple(messages),
            text=parsed.text,
            reasoning=parsed.reasoning,
            tool_calls=tool_calls,
        )
        return {
            "call": number,
            "text": parsed.text,
            "reasoning": parsed.reasoning,
            "tool_calls": [{**vars(c), "arguments": dict(c.arguments)} for c in tool_calls],
            "finish": completion.finish,
            "usage": {"context": len(context), "sampled": len(completion.ids)},
        }
