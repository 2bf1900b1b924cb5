"""The host's side of a warm parent: asks for forks, talks to them, times them, ends them.

**Own time.** A fork has ``seconds`` for itself between two requests to the host. Its clock runs only while the host
owes it nothing and no message of it is waiting to be read; time in which the kernel kept it waiting for a processor
(``/proc/<pid>/schedstat``) is taken off, so that many forks on few processors are not timed out by each other, while
both an endless loop and an endless sleep are. Between two looks at the clock at most a second is counted, so that a
host that was paused or busy does not blame its forks for it. Where the kernel's figure does not exist (macOS) the clock
runs ten times slower, and the limit on processor time catches loops.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from whale.errors import HarnessError, SandboxError
from whale.harness.sandbox import Sandbox, start, way_out
from whale.types import Json

MAX_MESSAGE = 1 << 20
"""Bytes of one message from a fork; a longer one ends it."""

MAX_LIVE = 512
"""Forks of one warm parent that exist at the same time; more wait their turn."""

_CREDENTIALS = struct.Struct("3i")
_SLOWER_CLOCK = 10.0
_LONGEST_TICK = 1.0
_EXIT_PATIENCE = 10.0
_START_PATIENCE = 60.0
_FORK_PATIENCE = 120.0  # hundreds of forks may be asked for at once on a busy machine


class ProtocolError(Exception):
    """A fork sent what is not a message. Its own fault, and nobody else's."""


@dataclass(frozen=True)
class Exit:
    """How a fork ended: exit code, or minus the signal's number, and the processor time it used, in seconds."""

    status: int
    cpu: float
    error: str = ""


def encode(message: Mapping[str, Json]) -> bytes:
    """One message as a line. Lone surrogates, which a model can produce, are replaced."""
    return json.dumps(message, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def decode(line: bytes) -> dict[str, Json]:
    """A line from a fork as a message. Raises ProtocolError for anything that is not one."""
    try:
        message = json.loads(line)
        if b"\\u" in line:  # an escaped lone surrogate could not be written to any file later on
            message = json.loads(json.dumps(message, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not a JSON message ({type(error).__name__})") from None
    if not isinstance(message, dict):
        raise ProtocolError("a message that is not an object")
    return message


def _kernel_wait(pid: int) -> float:
    """Seconds in which the process could have run but got no processor, since it began."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


class Fork:
    """One forked process and the host's end of its socket. Made by ``ForkServer.open``."""

    def __init__(self, server: ForkServer, number: int, sock: socket.socket, seconds: float) -> None:
        self.number = number
        self.timed_out = False
        self.killed = False
        self.exit: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._server = server
        self._sock = sock
        self._seconds = seconds
        self._pid = 0
        self._started = False
        self._owed = 0
        self._own = 0.0  # seconds of own time since the last request
        self._period: tuple[float, float] | None = None  # moment of the last look at it, kernel wait at that moment
        self._buffer = bytearray()
        self._scanned = 0
        self._sending = asyncio.Lock()

    @contextmanager
    def owing(self) -> Iterator[None]:
        """While inside, the host owes this fork an answer and its clock stands still."""
        self._owed += 1
        try:
            yield
        finally:
            self._owed -= 1
            self._own, self._period = 0.0, None

    async def send(self, message: Mapping[str, Json]) -> None:
        """Send one message; a fork that is gone does not mind."""
        async with self._sending:
            with suppress(OSError):
                await asyncio.get_running_loop().sock_sendall(self._sock, encode(message))

    async def receive(self) -> dict[str, Json] | None:
        """The next message, or ``None`` once the fork is gone. Raises ProtocolError."""
        while True:
            end = self._buffer.find(b"\n", self._scanned)
            if (end if end >= 0 else len(self._buffer)) > self._server.max_message:
                raise ProtocolError(f"a message of over {self._server.max_message} bytes")
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                self._scanned = 0
                return decode(line)
            self._scanned = len(self._buffer)
            data = await self._read()
            if not data:
                return None
            self._buffer += data

    async def _read(self) -> bytes:
        while True:
            try:
                if self._started:
                    return self._sock.recv(1 << 16)
                return self._read_first()
            except BlockingIOError:
                await self._readable()
            except OSError:
                return b""

    def _read_first(self) -> bytes:
        """The first message is the runtime's own; the kernel vouches for the process id that comes with it."""
        data, ancillary, _, _ = self._sock.recvmsg(1 << 16, socket.CMSG_SPACE(_CREDENTIALS.size))
        for _level, _kind, value in ancillary:
            if len(value) == _CREDENTIALS.size:
                self._pid = _CREDENTIALS.unpack(value)[0]
        self._started = bool(data)
        return data

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._sock, _settle, ready)
        try:
            await ready
        finally:
            loop.remove_reader(self._sock)

    def _has_input(self) -> bool:
        if self._buffer:
            return True
        try:
            return bool(self._sock.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def check_clock(self, now: float) -> None:
        """End the fork if its own time is used up."""
        if self._owed or not self._started or self.killed or self._has_input():
            return
        waited = _kernel_wait(self._pid)
        if self._period is not None:
            self._own += max(0.0, min(now - self._period[0], _LONGEST_TICK) - (waited - self._period[1]))
        self._period = (now, waited)
        if self._own > self._seconds * (1.0 if self._pid else _SLOWER_CLOCK):
            self.timed_out = True
            self.kill()

    def kill(self) -> None:
        """End the process now; ``receive`` returns ``None`` from here on. Safe to call twice."""
        if not self.killed:
            self.killed = True
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            self._server.post({"op": "kill", "id": self.number})

    async def ended(self) -> Exit:
        """How the process ended. Raises SandboxError if the warm parent is gone or does not say."""
        try:
            return await asyncio.wait_for(asyncio.shield(self.exit), _EXIT_PATIENCE)
        except TimeoutError:
            raise SandboxError("the sandbox does not report the end of a process") from None

    def release(self) -> None:
        """Done with this fork: end it if it still runs, close the socket."""
        if not self.exit.done():
            self.kill()
        self._sock.close()


@dataclass
class ForkServer:
    """Keeps one warm parent running and forks from it.

    setup: what the runtime is told at its start (``source``, ``preload``, ``limits``). packages: installed packages
    that code inside may import. load_seconds: for compilation. A parent that died is started again by the
    next ``open``, unless it dies twice without one fork ending properly in between.
    """

    level: str
    setup: Mapping[str, Json]
    packages: frozenset[str] = frozenset()
    load_seconds: float = 20.0
    max_message: int = MAX_MESSAGE
    tick: float = 0.1

    _sandbox: Sandbox | None = None
    _forks: dict[int, Fork] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _outbox: deque[tuple[bytes, int | None]] = field(default_factory=deque)
    _inbox: bytes = b""
    _watch: asyncio.Task[None] | None = None
    _news: asyncio.Queue[dict[str, Json]] = field(default_factory=asyncio.Queue)  # of a parent that comes up
    _coming_up: bool = False
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_LIVE))
    _deaths: int = 0
    _closed: bool = False

    async def start(self) -> None:
        """Start the warm parent unless it runs. Raises SandboxError, or HarnessError if the source does not compile."""
        async with self._starting:
            if self._closed:
                raise SandboxError("the sandbox is closed")
            if self._sandbox is not None:
                return
            if self._deaths > 1:
                raise SandboxError("the sandbox died twice in a row; it is not started a third time")
            await self._start()

    async def _start(self) -> None:
        # In a thread it would bind the sandbox's life to that thread (die-with-parent).
        sandbox, places = start(self.level, sorted(self.packages))
        self._sandbox, self._inbox, self._news, self._coming_up = sandbox, b"", asyncio.Queue(), True
        asyncio.get_running_loop().add_reader(sandbox.control, self._on_control)
        self.post({**self.setup, "packages": places, "confine": self.level != "off"})
        try:
            problem = self._problem(await self._come_up(), sandbox)
            if problem is not None:
                raise problem
        except BaseException:
            await self._stop()
            raise
        self._coming_up = False
        self._watch = asyncio.create_task(self._watch_clocks())

    async def _come_up(self) -> dict[str, Json]:
        """The parent's last word on its start. A slow machine is told apart from a source that is slow to compile."""
        try:
            async with asyncio.timeout(_START_PATIENCE):
                news = await self._news.get()
        except TimeoutError:
            raise SandboxError(f"the {self.level} sandbox did not start within {_START_PATIENCE:g} s") from None
        if news["op"] != "up":
            return news
        try:
            async with asyncio.timeout(self.load_seconds):
                return await self._news.get()
        except TimeoutError:
            raise HarnessError(f"the file could not be compiled within {self.load_seconds:g} s") from None

    def _problem(self, answer: Mapping[str, Json], sandbox: Sandbox) -> Exception | None:
        if answer["op"] == "gone":
            return SandboxError(way_out(self.level, sandbox.complaint()))
        if answer["op"] == "failed":
            return HarnessError(f"the file cannot be compiled:\n{answer['detail']}")
        if self.level == "sealed" and not answer["seccomp"]:
            return SandboxError("this machine type has no system-call filter here; use isolation: contained")
        return None

    async def open(self, job: Mapping[str, Json], seconds: float) -> Fork:
        """Fork, hand over the job, return once the fork has started. seconds: its own time between two requests.

        Waits while ``MAX_LIVE`` forks exist. The caller calls ``release`` in the end. Raises SandboxError.
        """
        await self._slots.acquire()
        try:
            await self.start()
            fork = self._fork(seconds)
        except BaseException:
            self._slots.release()
            raise
        fork.exit.add_done_callback(lambda _: self._slots.release())
        try:
            await self._welcome(fork)
            await fork.send(job)
        except BaseException:
            fork.release()
            raise
        return fork

    async def _welcome(self, fork: Fork) -> None:
        try:
            async with asyncio.timeout(_FORK_PATIENCE):
                hello = await fork.receive()
        except TimeoutError:
            raise SandboxError(f"the sandbox did not fork within {_FORK_PATIENCE:g} s") from None
        if hello is None:
            ending = await fork.ended()
            raise SandboxError(f"the sandbox could not fork: {ending.error or describe(ending.status)}")

    def _fork(self, seconds: float) -> Fork:
        try:
            host, inside = socket.socketpair()
        except OSError as error:
            raise SandboxError(f"no socket for another rollout ({error}); raise the limit `ulimit -n`") from error
        host.setblocking(False)
        if sys.platform == "linux":
            host.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        fork = Fork(self, next(self._numbers), host, seconds)
        self._forks[fork.number] = fork
        self.post({"op": "fork", "id": fork.number}, inside.detach())
        return fork

    def post(self, message: Mapping[str, Json], fd: int | None = None) -> None:
        """Queue a message to the warm parent, with a descriptor that is closed here once it is sent."""
        self._outbox.append((encode(message), fd))
        if len(self._outbox) == 1:
            self._flush()

    def _flush(self) -> None:
        control = self._sandbox.control if self._sandbox else None
        while self._outbox and control is not None:
            data, fd = self._outbox[0]
            try:
                sent = socket.send_fds(control, [data], [] if fd is None else [fd])
            except BlockingIOError:
                asyncio.get_running_loop().add_writer(control, self._flush)
                return
            except OSError:
                control = None  # the reader will notice the end
                break
            _close(fd)
            self._outbox.popleft()
            if sent < len(data):
                self._outbox.appendleft((data[sent:], None))
        if control is None:
            self._drop_outbox()
        else:
            asyncio.get_running_loop().remove_writer(control)

    def _drop_outbox(self) -> None:
        while self._outbox:
            _close(self._outbox.popleft()[1])

    def _on_control(self) -> None:
        assert self._sandbox is not None
        try:
            data = self._sandbox.control.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._on_death()
            return
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        for line in lines:
            self._on_message(decode(line))

    def _on_message(self, message: Mapping[str, Json]) -> None:
        if message["op"] in ("up", "ready", "failed"):
            self._news.put_nowait(dict(message))
            return
        fork = self._forks.pop(message["id"], None)
        if fork is not None and not fork.exit.done():
            if fork.killed or message["status"] != -signal.SIGKILL:
                self._deaths = 0  # it works; but an unasked kill may be the first sign of the parent's own end
            fork.exit.set_result(Exit(message["status"], message["cpu"], message.get("error", "")))

    def _on_death(self) -> None:
        """The warm parent is gone, and with it every fork; the next ``open`` starts another."""
        sandbox, self._sandbox = self._sandbox, None
        assert sandbox is not None
        asyncio.get_running_loop().remove_reader(sandbox.control)
        asyncio.get_running_loop().remove_writer(sandbox.control)
        if self._watch:
            self._watch.cancel()
        if self._coming_up:
            self._sandbox = sandbox  # ``_start`` reads its complaint and closes it
            self._news.put_nowait({"op": "gone"})
            return
        self._deaths += 1
        self._drop_outbox()
        self._lose_forks()
        sandbox.close(1.0)

    def _lose_forks(self) -> None:
        for fork in self._forks.values():
            fork.killed = True
            if not fork.exit.done():
                fork.exit.set_exception(SandboxError("the sandbox died"))
                fork.exit.exception()  # looked at: no complaint if nobody waits for it
            with suppress(OSError):
                fork._sock.shutdown(socket.SHUT_RDWR)
        self._forks.clear()

    async def _watch_clocks(self) -> None:
        while True:
            await asyncio.sleep(self.tick)
            now = time.monotonic()
            for fork in list(self._forks.values()):
                fork.check_clock(now)

    async def _stop(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if self._watch:
            self._watch.cancel()
        self._drop_outbox()
        self._lose_forks()
        if sandbox is not None:
            asyncio.get_running_loop().remove_reader(sandbox.control)
            asyncio.get_running_loop().remove_writer(sandbox.control)
            await asyncio.to_thread(sandbox.close)

    async def close(self) -> None:
        """End the warm parent and every fork, and wait for them. Safe to call twice."""
        self._closed = True
        await self._stop()


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _close(fd: int | None) -> None:
    if fd is not None:
        os.close(fd)


def describe(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"exit code {status}"
    with suppress(ValueError):
        return f"signal {signal.Signals(-status).name}"
    return f"signal {-status}"
