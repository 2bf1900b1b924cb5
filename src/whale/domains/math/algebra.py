"""Computer algebra (``math-verify``) in processes that can be killed: for pairs of formulas nothing cheaper decides.

Algebra can take for ever or all memory over a reply of one line. So it runs in processes of its own, started when they
are first needed, each with a limit of memory; one that takes too long is killed and replaced, and nobody waits
for it but the one who asked. No signals and no threads here, so any thread with an event loop may ask.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from whale.errors import DomainError

Pair = tuple[str, str]

_START_PATIENCE = 120.0  # seconds for the imports, on a machine that is busy
_LOOKS = 10  # at the clock within the limit
_WALL_FACTOR = 6  # a process that gets no processor is not timed out before this many limits
_RECYCLED_AFTER = 2000  # requests; the library's caches grow
_PROGRAM = Path(__file__).with_name("algebra_worker.py")


class AlgebraTimeout(Exception):
    """The formulas were too much for the limits: time or memory. Their author's fault."""


class AlgebraError(Exception):
    """A process could not be started, or died over these formulas and its successor did too."""


class _Worker:
    """One process and its socket."""

    def __init__(self, memory_bytes: int, cpu_seconds: int) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.setblocking(False)
        kept = ("PATH", "PYTHONPATH", "LANG", "LD_LIBRARY_PATH", "SYSTEMROOT")
        with theirs:
            arguments = [str(theirs.fileno()), str(memory_bytes), str(cpu_seconds)]
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(_PROGRAM), *arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in kept if name in os.environ},
                start_new_session=True,
            )
        self.requests = 0
        self._buffer = b""

    def kill(self) -> None:
        with suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.socket.close()

    async def line(self) -> bytes:
        """One line, or nothing if the process is gone."""
        loop = asyncio.get_running_loop()
        while b"\n" not in self._buffer:
            try:
                data = await loop.sock_recv(self.socket, 1 << 16)
            except OSError:
                data = b""
            if not data:
                return b""
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def cpu(self) -> float | None:
        """Seconds of processor time so far; ``None`` where the kernel does not tell."""
        try:
            return int(Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[0]) / 1e9
        except (OSError, IndexError, ValueError):
            return None


class AlgebraPool:
    """Decides pairs of formulas. workers: processes at most. seconds: processor time of one request (wall time where
    that cannot be measured). memory_mb: address space of a process. Raises DomainError without ``math-verify``."""

    def __init__(self, workers: int = 2, seconds: float = 5.0, memory_mb: int = 2048) -> None:
        if workers < 1 or seconds <= 0 or memory_mb < 512:
            raise ValueError(f"workers {workers}, seconds {seconds:g}, memory_mb {memory_mb}: at least 1, above 0, 512")
        if find_spec("math_verify") is None:
            raise DomainError(
                "comparing formulas needs math-verify: pip install 'whale-learn[math]', or set formulas = false"
            )
        self._workers, self._seconds, self._memory = workers, seconds, memory_mb << 20
        self._idle: list[_Worker] = []
        self._turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )
        self.started = 0
        """Processes started so far."""
        self.busy: set[int] = set()
        """Numbers of the processes that work on a request."""

    async def decide(self, pairs: Sequence[Pair]) -> dict[Pair, bool]:
        """Which pairs (given, gold) are equal. Raises AlgebraTimeout, AlgebraError. Waiting for a free process does
        not count against the limit."""
        loop = asyncio.get_running_loop()
        turn = self._turns.setdefault(loop, asyncio.Semaphore(self._workers))
        async with turn:
            for _ in range(2):
                answer = await self._ask(pairs)
                if answer is not None:
                    return dict(zip(pairs, answer, strict=True))
        raise AlgebraError("a process of the formula check died over the same formulas twice")

    def close(self) -> None:
        """End the processes that are idle; a later ``decide`` starts new ones. Safe to call twice."""
        while self._idle:
            self._idle.pop().kill()

    async def _ask(self, pairs: Sequence[Pair]) -> list[bool] | None:
        """The answer, or ``None`` if the process died over it."""
        worker = await self._worker()
        self.busy.add(worker.process.pid)
        try:
            line = await self._exchange(worker, json.dumps(list(pairs)).encode() + b"\n")
        except BaseException:
            worker.kill()
            raise
        finally:
            self.busy.discard(worker.process.pid)
        if not line:
            worker.kill()
            if worker.process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
                raise AlgebraTimeout("the processor time or the memory of the formula check is used up")
            return None
        worker.requests += 1
        if worker.requests < _RECYCLED_AFTER:
            self._idle.append(worker)
        else:
            worker.kill()
        return [bool(decision) for decision in json.loads(line)]

    async def _worker(self) -> _Worker:
        while self._idle:
            worker = self._idle.pop()
            if worker.process.poll() is None:
                return worker
            worker.kill()
        try:
            worker = _Worker(self._memory, int(self._seconds) + 2)
        except OSError as error:
            raise AlgebraError(f"a process for the formula check cannot be started: {error}") from error
        self.started += 1
        try:
            ready = await asyncio.wait_for(worker.line(), _START_PATIENCE)
        except BaseException as error:
            worker.kill()
            if isinstance(error, TimeoutError):
                raise AlgebraError(
                    f"a process for the formula check took over {_START_PATIENCE:g} s to start"
                ) from None
            raise
        if not ready:
            worker.kill()
            raise AlgebraError("a process for the formula check ended at once: is math-verify installed whole?")
        return worker

    async def _exchange(self, worker: _Worker, request: bytes) -> bytes:
        """Send and wait, looking at the process's own clock. Raises AlgebraTimeout."""
        loop = asyncio.get_running_loop()
        began, before = loop.time(), worker.cpu()
        with suppress(OSError):
            await asyncio.wait_for(loop.sock_sendall(worker.socket, request), self._seconds)
        reply = asyncio.ensure_future(worker.line())
        try:
            while not (await asyncio.wait([reply], timeout=self._seconds / _LOOKS))[0]:
                wall, now = loop.time() - began, worker.cpu()
                used = wall if now is None or before is None else now - before
                if used >= self._seconds or wall >= self._seconds * _WALL_FACTOR:
                    raise AlgebraTimeout(f"the formula check took over {self._seconds:g} seconds")
            return reply.result()
        finally:
            if not reply.done():
                reply.cancel()
                with suppress(asyncio.CancelledError):
                    await reply
