"""What the tests of harness processes share: a scripted handler and short ways to run a source."""

from __future__ import annotations

import asyncio
import shutil
import textwrap
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psutil
import pytest

from whale.harness.host import ChatRequest, HarnessProcess, HarnessResult
from whale.types import Limits

LEVELS = [
    pytest.param(
        "sealed", marks=pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
    ),
    "contained",
]


class Handler:
    """Answers ``<call>:<last content>``; records what it was asked."""

    def __init__(self) -> None:
        self.requests: list[ChatRequest] = []
        self.marks: list[int] = []
        self.tools: list[tuple[str, dict[str, Any]]] = []

    async def chat(self, request: ChatRequest) -> dict[str, Any]:
        call = len(self.requests)
        self.requests.append(request)
        return reply(call, f"{call}:{request.messages[-1]['content']}")

    async def tool(self, name: str, arguments: dict[str, Any]) -> str:
        self.tools.append((name, arguments))
        return f"{name}{sorted(arguments.items())}"

    def mark(self, call: int) -> None:
        self.marks.append(call)


def reply(call: int, text: str, **more: Any) -> dict[str, Any]:
    body = {"text": text, "reasoning": "", "tool_calls": [], "finish": "stop", "usage": {"sampled": 3}, "call": call}
    return {**body, **more}


def source(body: str, top: str = "") -> str:
    """A harness file with ``body`` in its run method and ``top`` above the class."""
    head = "from whale.harness import LimitReached, Reply, Session, Task\n" + textwrap.dedent(top)
    run = textwrap.indent(textwrap.dedent(body), " " * 8)
    return f"{head}\nclass Harness:\n    async def run(self, task, session):\n{run}\n"


def with_process(
    text: str, use: Callable[[HarnessProcess], Awaitable[Any]], level: str = "contained", **limits: Any
) -> Any:
    """Start a process for ``text``, hand it to ``use``, close it."""

    async def main() -> Any:
        async with HarnessProcess(text, isolation=level, limits=Limits(**limits)) as process:
            return await use(process)

    return asyncio.run(main())


def run_once(
    text: str, level: str = "contained", handler: Any = None, inputs: Any = None, **limits: Any
) -> HarnessResult:
    """One rollout of ``text``."""

    async def use(process: HarnessProcess) -> HarnessResult:
        return await process.run(inputs or {"problem": "1 + 1"}, 7, handler or Handler())

    result = with_process(text, use, level, **limits)
    assert isinstance(result, HarnessResult)
    return result


def attempt(body: str, level: str, top: str = "", **limits: Any) -> str:
    """Run ``body``; the answer, or the name of the exception that stopped it, or the outcome."""
    guarded = "try:\n" + textwrap.indent(textwrap.dedent(body), "    ")
    guarded += "\nexcept BaseException as error:\n    return f'stopped: {type(error).__name__}: {error}'"
    result = run_once(source(guarded, top), level, **limits)
    return result.answer if result.answer is not None else f"{result.outcome}: {result.detail}"


def processes() -> set[int]:
    """Ids of the live processes that this one, or one that it started, has started."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def left_of(pids: set[int], patience: float = 2.0) -> set[int]:
    """Those of ``pids`` that are still there after a while."""
    deadline = time.monotonic() + patience
    while (left := {pid for pid in pids if psutil.pid_exists(pid)}) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left
