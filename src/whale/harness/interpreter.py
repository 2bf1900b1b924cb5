"""A pool of sandboxed Python interpreters, for tools that run code which the policy wrote."""

from __future__ import annotations

import asyncio
import signal
from types import TracebackType

from whale.errors import SandboxError
from whale.harness.forkserver import Fork, ForkServer, ProtocolError, describe
from whale.harness.host import used_up

_WARM = """
    math cmath fractions decimal statistics itertools functools collections re string random heapq bisect operator
    datetime time json copy typing dataclasses numbers sys
""".split()  # noqa: SIM905
_CUT_NOTE = "\n... (output cut)"


class PythonPool:
    """Runs code, each call in a process that has seen no other call: no files, no network, no child processes.

    workers: calls that run at the same time; more wait in a queue, and waiting never counts as run time. isolation:
    ``sealed``, ``contained`` or ``off``. seconds: run time of one call (time without a processor is taken off).
    memory_mb: its address space. output_bytes: what it may print; the rest is cut with a note. packages: installed
    packages that code may import beyond the standard library.
    """

    def __init__(
        self,
        workers: int,
        isolation: str,
        seconds: float = 30,
        memory_mb: int = 1024,
        output_bytes: int = 8192,
        packages: frozenset[str] = frozenset(),
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers is {workers}, it must be at least 1")
        self._seconds = seconds
        self._output_bytes = output_bytes
        self._turn = asyncio.Semaphore(workers)
        # The clock of run time comes first; the kernel's limit is for the case that there is none.
        self._cpu_seconds = int(seconds) + 2
        limits = {"memory_bytes": memory_mb << 20, "cpu_seconds": self._cpu_seconds}
        preload = [*_WARM, *sorted(packages)]
        self._server = ForkServer(
            isolation, {"source": None, "preload": preload, "limits": limits}, packages, tick=min(0.1, seconds / 4)
        )

    async def __aenter__(self) -> PythonPool:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the sandbox; ``run`` does it too. Raises SandboxError."""
        await self._server.start()

    async def close(self) -> None:
        """End the sandbox and all code in it. Safe to call twice."""
        await self._server.close()

    async def run(self, code: str) -> str:
        """Run ``code`` and return what it printed (both streams, in order), the value of a last expression included.

        Whatever the code does becomes text for the policy: an error its traceback, a time-out a line
        ``TimeoutError: ...``, a crash a sentence. Raises SandboxError only for a fault of the sandbox.
        """
        async with self._turn:
            job = {"op": "code", "code": code, "seed": 0, "output_bytes": self._output_bytes}
            fork = await self._server.open(job, self._seconds)
            try:
                output, status = await self._listen(fork)
            finally:
                fork.release()
        return "\n".join(part for part in (_cut(output, self._output_bytes).rstrip("\n"), status) if part)

    async def _listen(self, fork: Fork) -> tuple[str, str]:
        """What it printed, and how it ended in words (empty if well)."""
        output: list[str] = []
        size = 0
        try:
            while (message := await fork.receive()) is not None:
                if message.get("op") == "end":
                    status = str(message.get("status", ""))
                    return "".join(output), "" if status == "ok" else status[: 2 * self._output_bytes]
                if size <= self._output_bytes:  # the runtime stops there too; code that took it over may not
                    output.append(str(message.get("text", "")))
                    size += len(output[-1].encode("utf-8", "replace"))
        except ProtocolError:
            fork.kill()
            return "".join(output), "RuntimeError: the code broke its connection to the interpreter"
        return "".join(output), await self._explain(fork)

    async def _explain(self, fork: Fork) -> str:
        late = f"TimeoutError: the code ran longer than {self._seconds:g} seconds"
        if fork.timed_out:
            return late
        ending = await fork.ended()
        if used_up(ending, self._cpu_seconds):
            return late
        if ending.status == -signal.SIGKILL:
            raise SandboxError("interpreted code was killed from outside (is the machine out of memory?)")
        return f"RuntimeError: the interpreter ended before the code did ({describe(ending.status)})"


def _cut(text: str, limit: int) -> str:
    data = text.encode("utf-8", "replace")
    return text if len(data) <= limit else data[:limit].decode("utf-8", "ignore") + _CUT_NOTE
