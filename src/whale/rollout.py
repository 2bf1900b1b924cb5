"""The only way a harness runs: for training, for search and for test.

A block is a fixed list of (harness, task, sample, seed) under one policy version. Its rollouts run at once, each in
its own sandboxed process; their model calls are answered in waves (see ``waves``), so that a block gives the same
tokens each time, whatever the timing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from whale.errors import HarnessError, NoIdsError, StaleWeightsError, WhaleError
from whale.harness.host import HarnessProcess, HarnessResult
from whale.protocols import Episode
from whale.session import HostSession, Setting
from whale.types import OWNED, Candidate, Outcome, Rollout, Task, Verdict
from whale.waves import Waves

__all__ = ["Attempt", "Listener", "Setting", "run_rollouts"]


@dataclass(frozen=True)
class Attempt:
    """One rollout to make."""

    harness: Candidate
    task: Task
    sample: int
    seed: int


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
    setting.engine.forget()
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
        setting.engine.forget()
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
    session = HostSession(setting, attempt.seed, waves, order)
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
    except NoIdsError as error:
        verdict, detail, answer = Verdict(None, "no_ids", Outcome.NO_IDS), str(error), None
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
