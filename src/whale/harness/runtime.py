"""The program inside a sandbox: the one project file that harness code can see.

Standard library only, and never an import of whale: it is bound into an otherwise empty sandbox. It plays
three parts. As a module it holds what a harness file imports from ``whale.harness``. As a program it is the
*warm parent*: it compiles the candidate once, imports the harmless modules it names, and forks on request; it
never runs a line of the candidate. As a fork it is one *rollout*: one process, one thread, its own socket.

That split is what makes rollouts independent by construction: there is no process in which candidate code
could leave something behind for the next rollout, and nothing that a rollout does can reach the warm parent.

Messages are JSON, one a line. Parent and host talk over the control socket; a rollout and the host over a
socket pair of their own, whose far end the host passes to the parent along with the request to fork.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib
import importlib.machinery
import inspect
import io
import json
import linecache
import os
import random
import resource
import select
import selectors
import signal
import socket
import struct
import sys
import traceback
import types
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

STANDARD_IMPORTS = frozenset(
    """
    __future__ abc ast asyncio base64 binascii bisect calendar cmath collections contextlib copy csv dataclasses
    datetime decimal difflib enum fractions functools hashlib heapq html itertools json keyword math numbers operator
    pprint random re reprlib statistics string struct textwrap time typing unicodedata
    """.split()  # noqa: SIM905
)
"""Modules of the standard library that every harness may import: they compute, and reach nothing outside."""

SOCKET_FD = 3  # where a rollout's own socket lies, next to /dev/null three times
LOG_CHARACTERS = 4096
DETAIL_CHARACTERS = 2000
HARNESS_FILE = "harness.py"
CODE_FILE = "<code>"


# ---- what a harness file imports from whale.harness ----------------------------------------------------------


class LimitReached(Exception):
    """The host refused a call because a limit of the rollout is used up (turns, tokens, context, tool calls).

    A harness may catch it and return its best answer so far; uncaught it ends the rollout with outcome ``limit``.
    """


@dataclass(frozen=True)
class ToolCall:
    """A tool call that the policy wrote. ``error`` is not empty where it could not be parsed."""

    name: str
    arguments: dict[str, Any]
    id: str
    error: str = ""


@dataclass(frozen=True)
class Reply:
    """What the policy answered to one ``session.chat``.

    text: the visible reply. reasoning: its thoughts, kept apart. finish: ``stop``, ``length`` (cut by a token
    limit) or ``stop_string``. usage: token counts. message: the assistant message to append to ``messages``; passed
    back unchanged, the policy sees exactly the tokens it wrote.
    """

    text: str
    reasoning: str
    tool_calls: list[ToolCall]
    finish: str
    usage: dict[str, Any]
    message: dict[str, Any]

    @property
    def call(self) -> int:
        """Number of the model call in this rollout, from 0."""
        return int(self.message["reply"])


class Task:
    """The inputs of one problem, as attributes and as items; there is nothing else to see."""

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        self._inputs = dict(inputs)

    def __getattr__(self, name: str) -> Any:
        inputs = self.__dict__.get("_inputs", {})
        if name in inputs:
            return inputs[name]
        raise AttributeError(f"the task has no input {name!r}; it has {sorted(inputs)}")

    def __getitem__(self, name: str) -> Any:
        return self._inputs[name]

    def __contains__(self, name: object) -> bool:
        return name in self._inputs

    def __iter__(self) -> Iterator[str]:
        return iter(self._inputs)

    def keys(self) -> list[str]:
        """Names of the inputs, so that ``dict(task)`` works."""
        return list(self._inputs)


class Tools:
    """``await session.tools.<name>(**arguments)``: the domain's tools, run by the host."""

    def __init__(self, ask: Callable[[dict[str, Any]], Awaitable[Any]]) -> None:
        self._ask = ask

    def __getattr__(self, name: str) -> Callable[..., Awaitable[str]]:
        if name.startswith("_"):
            raise AttributeError(name)

        async def call(**arguments: Any) -> str:
            return str(await self._ask({"op": "tool", "name": name, "arguments": arguments}))

        return call


class Session:
    """The line to the host: the policy, the tools and the limits of one rollout."""

    tools: Tools
    limits: dict[str, Any]

    def __init__(self, link: _Link, limits: dict[str, Any]) -> None:
        self._link = link
        self.tools = Tools(link.ask)
        self.limits = limits

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[str | Mapping[str, Any]] | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
    ) -> Reply:
        """Ask the policy once. Several calls may run at the same time (``asyncio.gather``).

        messages: OpenAI form. tools: names of the domain's tools or OpenAI function schemas. max_tokens: at most so
        many sampled tokens (the host may allow fewer). stop: strings that end the reply. Raises LimitReached.
        """
        request = {
            "op": "chat",
            "messages": [dict(message) for message in messages],
            "tools": None if tools is None else [tool if isinstance(tool, str) else dict(tool) for tool in tools],
            "max_tokens": max_tokens,
            "stop": [stop] if isinstance(stop, str) else list(stop or ()),
        }
        return _reply(await self._link.ask(request))

    def mark(self, reply: Reply) -> None:
        """Mark the model call behind ``reply`` as worth training on (used where the run trains marked calls only)."""
        self._link.post({"op": "mark", "call": reply.call})


def _reply(body: dict[str, Any]) -> Reply:
    call = body["call"]
    calls = [
        ToolCall(c["name"], dict(c["arguments"]), c.get("id") or f"call_{call}_{i}", c.get("error", ""))
        for i, c in enumerate(body["tool_calls"])
    ]
    message: dict[str, Any] = {"role": "assistant", "content": body["text"], "reply": call}
    if calls:
        message["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in calls
        ]
    return Reply(body["text"], body["reasoning"], calls, body["finish"], dict(body["usage"]), message)


# ---- one rollout: talking to the host ------------------------------------------------------------------------


def _line(message: Mapping[str, Any]) -> bytes:
    # "replace": a lone surrogate in a model's reply must not break the line.
    return json.dumps(message, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _first_line(sock: socket.socket) -> dict[str, Any]:
    data = b""
    while not data.endswith(b"\n"):
        chunk = sock.recv(1 << 16)
        if not chunk:
            os._exit(0)
        data += chunk
    message: dict[str, Any] = json.loads(data)
    return message


class _Link:
    """Numbered requests to the host; replies are matched by number, so that calls may overlap."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._count = 0
        self._buffer = bytearray()
        self._outgoing: list[bytes] = []
        self._loop.add_reader(sock, self._on_readable)

    def post(self, message: Mapping[str, Any]) -> None:
        # Blocking is fine: the host always reads, and this process has nothing better to do.
        self._sock.sendall(_line(message))

    async def ask(self, request: dict[str, Any]) -> Any:
        line = _line({**request, "n": self._count + 1})  # here, so that what is no JSON fails in the caller
        self._count += 1
        future = self._waiting[self._count] = self._loop.create_future()
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(line)
        return await future

    def _flush(self) -> None:
        """Send what was asked in one turn of the loop as one batch, so that the host can answer it together."""
        *others, last = self._outgoing
        self._outgoing = []
        self._sock.sendall(b"".join(line[:-2] + b', "more": true}\n' for line in others) + last)

    def _on_readable(self) -> None:
        data = self._sock.recv(1 << 16, socket.MSG_DONTWAIT)
        if not data:
            os._exit(0)  # the host is gone: nobody is left to answer
        self._buffer += data
        if b"\n" not in data:
            return
        *lines, rest = bytes(self._buffer).split(b"\n")
        self._buffer = bytearray(rest)
        for line in lines:
            self._settle(json.loads(line))

    def _settle(self, message: dict[str, Any]) -> None:
        future = self._waiting.pop(message["n"], None)
        if future is None or future.done():
            return
        if "limit" in message:
            future.set_exception(LimitReached(message["limit"]))
        else:
            future.set_result(message["ok"])


class _Log(io.TextIOBase):
    """Where prints of a harness go: the first few kB are kept, the rest is dropped."""

    def __init__(self) -> None:
        self.text = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.text += text[: LOG_CHARACTERS - len(self.text)]
        return len(text)


class _Stream(io.TextIOBase):
    """Where prints of interpreted code go: straight to the host, so that they outlive a crash, up to a cap."""

    def __init__(self, sock: socket.socket, left: int) -> None:
        self._sock = sock
        self._left = left

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if text and self._left >= 0:
            # One byte over the cap is sent on purpose: it tells the host that something was cut.
            part = text[: self._left + 1]
            self._left -= len(part.encode("utf-8", "replace"))
            self._sock.sendall(_line({"op": "out", "text": part}))
        return len(text)


def _explain(error: BaseException, filename: str, indent: str = "") -> str:
    """The readable part of a traceback: lines of the candidate's own file, then the error. No machine paths."""
    try:
        walk = traceback.walk_tb(error.__traceback__)  # may be millions of frames long
        frames = deque(((f, line) for f, line in walk if f.f_code.co_filename == filename), maxlen=6)
        last = traceback.StackSummary.extract(iter(frames))
        shown = [f"  line {f.lineno}, in {f.name}: {f.line or ''}".rstrip(": ") for f in last]
        shown += [line.rstrip() for line in traceback.format_exception_only(error)][-6:]
    except MemoryError:
        raise
    except BaseException:  # an exception class of the candidate may itself be broken
        shown = [type(error).__name__]
    text = "\n".join(indent + line for line in shown)
    return text if len(text) <= DETAIL_CHARACTERS else text[: DETAIL_CHARACTERS - 4] + " ..."


# ---- one rollout: what it runs -------------------------------------------------------------------------------


class _Loop(asyncio.SelectorEventLoop):
    """An event loop without kernel objects, so that the warm parent can make one and every fork inherit it: no epoll
    descriptor, and no self-pipe, which only threads need. Saves a third of the price of a rollout."""

    _ssock = _csock = None

    def __init__(self) -> None:
        super().__init__(selectors.PollSelector())

    def _make_self_pipe(self) -> None:
        pass

    def _close_self_pipe(self) -> None:
        pass


class _LoadError(Exception):
    """The harness file itself is wrong; the message is meant for its author."""


def _load(code: types.CodeType) -> type:
    """Execute the candidate's file as a module of its own and return its ``Harness`` class."""
    module = types.ModuleType("candidate")
    module.__file__ = HARNESS_FILE
    sys.modules[module.__name__] = module  # dataclasses and typing look their module up by name
    try:
        exec(code, module.__dict__)
    except BaseException as error:
        raise _LoadError(f"the file raised an error while it was loaded:\n{_explain(error, HARNESS_FILE)}") from None
    harness = module.__dict__.get("Harness")
    if not isinstance(harness, type):
        raise _LoadError("the file defines no class Harness")
    if not inspect.iscoroutinefunction(getattr(harness, "run", None)):
        raise _LoadError("Harness has no method `async def run(self, task, session)`")
    return harness


def _only_limits(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_only_limits(inner) for inner in error.exceptions)
    return isinstance(error, LimitReached)


def _run_harness(job: Mapping[str, Any], parent: _Parent, sock: socket.socket) -> dict[str, Any]:
    """Run the candidate on one task; the final message says how it ended."""
    code, log = parent.code, _Log()
    assert code is not None
    sys.stdout = sys.stderr = log
    random.seed(job["seed"])

    async def drive() -> Any:
        harness = _load(code)
        if job["op"] == "check":
            return ""
        return await harness().run(Task(job["inputs"]), Session(_Link(sock), job["limits"]))

    end: dict[str, Any]
    try:
        answer = parent.loop.run_until_complete(drive())
        end = {"kind": "answer", "answer": answer}
        if not isinstance(answer, str):
            kind = type(answer).__name__
            end = {"kind": "error", "detail": f"Harness.run returned {kind}, it must return str"}
    except _LoadError as error:
        end = {"kind": "load", "detail": str(error)}
    except BaseException as error:
        end = {"kind": "limit" if _only_limits(error) else "error", "detail": _explain(error, HARNESS_FILE)}
    return {"op": "end", **end, "log": log.text}


def _run_code(job: Mapping[str, Any], sock: socket.socket) -> dict[str, Any]:
    """Run code as an interactive interpreter would: the value of a last expression is printed."""
    sys.stdout = sys.stderr = _Stream(sock, job["output_bytes"])
    random.seed(job["seed"])
    space: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__, "exit": sys.exit, "quit": sys.exit}
    source = job["code"]
    linecache.cache[CODE_FILE] = (len(source), None, source.splitlines(True), CODE_FILE)
    status = "ok"
    try:
        tree = ast.parse(source, CODE_FILE)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, CODE_FILE, "exec", dont_inherit=True), space)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), CODE_FILE, "eval", dont_inherit=True), space)
            if value is not None:
                print(value)
    except SystemExit as error:
        status = f"SystemExit: {error.code}" if error.code else "ok"
    except BaseException as error:
        status = f"Traceback (most recent call last):\n{_explain(error, CODE_FILE)}"
    return {"op": "end", "status": status[: DETAIL_CHARACTERS + 100]}


# ---- one rollout: closing the doors --------------------------------------------------------------------------

# name, number on x86_64, number on aarch64 ("-": not there). What is not listed is refused.
_SYSCALLS = """
    read 0 63, write 1 64, close 3 57, fstat 5 80, lseek 8 62, mmap 9 222, mprotect 10 226, munmap 11 215,
    brk 12 214, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, pread64 17 67, readv 19 65,
    writev 20 66, access 21 -, select 23 -, sched_yield 24 124, mremap 25 216, madvise 28 233, dup 32 23, dup2 33 -,
    pause 34 -, nanosleep 35 101, getitimer 36 102, alarm 37 -, setitimer 38 103, getpid 39 172, recvfrom 45 207,
    recvmsg 47 212, shutdown 48 210, getsockname 51 204, getpeername 52 205, socketpair 53 199, setsockopt 54 208,
    getsockopt 55 209, exit 60 93, exit_group 231 94, uname 63 160, getcwd 79 17, readlink 89 -, sysinfo 99 179,
    getuid 102 174, getgid 104 176, geteuid 107 175, getegid 108 177, getppid 110 173, gettimeofday 96 169,
    getrusage 98 165, times 100 153, getrlimit 97 163, sigaltstack 131 132, gettid 186 178, futex 202 98,
    sched_getaffinity 204 123, epoll_create1 291 20, epoll_wait 232 -, epoll_pwait 281 22, epoll_ctl 233 21,
    getdents64 217 61, restart_syscall 219 128, clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115,
    poll 7 -, ppoll 271 73, pselect6 270 72, pipe2 293 59, dup3 292 24, eventfd2 290 19, newfstatat 262 79,
    readlinkat 267 78, faccessat 269 48, stat 4 -, lstat 6 -, set_robust_list 273 99, getrandom 318 278,
    statx 332 291, rseq 334 293, statfs 137 43, fstatfs 138 44
"""
# Allowed only with harmless arguments; see _filter.
_CHECKED = "openat 257 56, sendto 44 206, prlimit64 302 261, fcntl 72 25, ioctl 16 29"
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_FCNTL = (0, 1, 2, 3, 4, 1030)  # duplicate a descriptor, read and set its flags; no owners, leases or pipe sizes
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # is it a terminal, size, bytes waiting, blocking, cloexec
_WRITE_FLAGS = 0o3 | 0o100 | 0o1000 | 0o20000000  # O_ACCMODE, O_CREAT, O_TRUNC, O_TMPFILE: open for reading only
_NEW_SYSCALL = 424  # from here on numbers are equal everywhere; C libraries try these and fall back on ENOSYS

_ALLOW, _KILL, _EPERM, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
_LOAD, _RETURN, _EQUAL, _AT_LEAST, _ANY_BIT = 0x20, 0x06, 0x15, 0x35, 0x45


def _numbers(table: str, machine: str) -> dict[str, int]:
    column = 1 if machine == "x86_64" else 2
    rows = [entry.split() for entry in table.replace("\n", " ").split(",")]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


def _ask(code: int, k: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, k)


def _argument(index: int, high: bool = False) -> bytes:
    return _ask(_LOAD, 16 + 8 * index + 4 * high)  # both machines are little-endian


def _among(number: int, index: int, values: tuple[int, ...]) -> bytes:
    """Allow a system call if its argument is one of ``values``."""
    tests = [_ask(_EQUAL, value, yes=len(values) - i) for i, value in enumerate(values)]
    body = [_argument(index), *tests, _ask(_RETURN, _EPERM), _ask(_RETURN, _ALLOW)]
    return _ask(_EQUAL, number, no=len(body)) + b"".join(body)


def _if_null(number: int, index: int) -> bytes:
    """Allow a system call if its pointer argument is null."""
    body = [_argument(index), _ask(_EQUAL, 0, no=3), _argument(index, high=True), _ask(_EQUAL, 0, no=1)]
    body += [_ask(_RETURN, _ALLOW), _ask(_RETURN, _EPERM)]
    return _ask(_EQUAL, number, no=len(body)) + b"".join(body)


def _filter(machine: str) -> bytes:
    """The seccomp program: an allow-list under which a process stays one process with one thread, opens files for
    reading only, and reaches no network, no other process and no kernel service beyond memory, time and its sockets.
    """
    checked = _numbers(_CHECKED, machine)
    read_only = [_argument(2), _ask(_ANY_BIT, _WRITE_FLAGS, no=1), _ask(_RETURN, _EPERM), _ask(_RETURN, _ALLOW)]
    program = [
        _ask(_LOAD, 4),
        _ask(_EQUAL, _AUDIT_ARCH[machine], yes=1),
        _ask(_RETURN, _KILL),
        _ask(_LOAD, 0),
        _ask(_AT_LEAST, 0x40000000, no=1),  # the x32 door of x86_64
        _ask(_RETURN, _EPERM),
        _ask(_AT_LEAST, _NEW_SYSCALL, no=1),
        _ask(_RETURN, _ENOSYS),
    ]
    for number in _numbers(_SYSCALLS, machine).values():
        program += [_ask(_EQUAL, number, no=1), _ask(_RETURN, _ALLOW)]
    program += [_ask(_EQUAL, checked["openat"], no=len(read_only)), *read_only]
    # A datagram socket pair could otherwise send to any named socket of the machine.
    program += [_if_null(checked["sendto"], 4), _if_null(checked["prlimit64"], 2)]
    program += [_among(checked["fcntl"], 1, _FCNTL), _among(checked["ioctl"], 1, _IOCTL), _ask(_RETURN, _EPERM)]
    return b"".join(program)


class _Kernel:
    """Linux's process controls through the C library; loaded once, in the warm parent."""

    PDEATHSIG, DUMPABLE, SECCOMP, NO_NEW_PRIVS = 1, 4, 22, 38

    def __init__(self) -> None:
        import ctypes

        class Program(ctypes.Structure):
            _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

        self._libc = ctypes.CDLL(None, use_errno=True)
        self._zero = ctypes.c_ulong(0)
        self._ulong = ctypes.c_ulong
        self._filter = ctypes.create_string_buffer(_filter(os.uname().machine))
        length = (len(self._filter) - 1) // 8
        self._program = Program(length, ctypes.cast(self._filter, ctypes.c_void_p).value)
        self._reference = ctypes.byref(self._program)

    def control(self, option: int, value: int) -> None:
        zero = self._zero
        if self._libc.prctl(option, self._ulong(value), zero, zero, zero) != 0:
            raise OSError(f"prctl({option}, {value}) failed")

    def drop_capabilities(self) -> None:
        """Without them a root that stays root can neither look into other processes nor lift its limits."""
        version_3 = struct.pack("=Ii", 0x20080522, 0)
        if self._libc.capset(version_3, bytes(24)) != 0:
            raise OSError("capset failed")

    def seal(self) -> None:
        if self._libc.prctl(self.SECCOMP, self._ulong(2), self._reference, self._zero, self._zero) != 0:
            raise OSError("the seccomp filter was refused")


def _kernel() -> _Kernel | None:
    return _Kernel() if sys.platform == "linux" and os.uname().machine in _AUDIT_ARCH else None


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    # Some systems (macOS) refuse to bound the address space at all; the level's documentation says so.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (value, value))


def _confine(kernel: _Kernel | None, limits: Mapping[str, int]) -> None:
    """Give up, for good, everything that a rollout has no use for."""
    _limit(resource.RLIMIT_AS, limits["memory_bytes"])
    _limit(resource.RLIMIT_CPU, limits["cpu_seconds"])
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_NOFILE, 64)
    _limit(resource.RLIMIT_CORE, 0)
    if kernel:
        kernel.control(kernel.PDEATHSIG, signal.SIGKILL)
        kernel.control(kernel.DUMPABLE, 0)
        kernel.seal()


# ---- the warm parent -----------------------------------------------------------------------------------------


class _Finder:
    """Finds the packages that a domain allows, each in its own folder, and nothing beside them."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        place = self._places.get(name) if path is None else None
        return importlib.machinery.PathFinder.find_spec(name, [place]) if place else None


def _install_contract() -> None:
    """Make ``from whale.harness import ...`` work, and every other import of whale fail."""
    package, contract = types.ModuleType("whale"), types.ModuleType("whale.harness")
    package.__path__ = []
    for item in (Reply, Session, Task, ToolCall, LimitReached):
        setattr(contract, item.__name__, item)
    package.harness = contract  # type: ignore[attr-defined]
    sys.modules.update({"whale": package, "whale.harness": contract})


def _preload(names: Sequence[str]) -> None:
    for name in names:
        # A module that cannot be imported is the candidate's problem: it will meet the same error by itself.
        with contextlib.suppress(Exception):
            importlib.import_module(name)


@dataclass
class _Parent:
    control: socket.socket
    setup: Mapping[str, Any]
    kernel: _Kernel | None
    code: types.CodeType | None = None
    loop: _Loop = field(default_factory=_Loop)
    children: dict[int, int] = field(default_factory=dict)  # pid -> number of the rollout

    def post(self, message: Mapping[str, Any]) -> None:
        self.control.sendall(_line(message))

    def serve(self) -> None:
        """Fork and kill on request, report every exit; ends when the host hangs up."""
        wake, wake_write = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(wake, select.POLLIN)
        buffer, sockets = b"", list[int]()
        while True:
            ready = dict(poll.poll())
            if wake in ready:
                os.read(wake, 4096)
                self._reap()
            if self.control.fileno() in ready:
                data, received, _, _ = socket.recv_fds(self.control, 1 << 16, 16)
                if not data:
                    break
                sockets += received
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines:
                    self._obey(json.loads(line), sockets)
        self._end_all()

    def _obey(self, message: Mapping[str, Any], sockets: list[int]) -> None:
        if message["op"] == "fork":
            self._fork(message["id"], sockets.pop(0))
        else:
            for pid in [pid for pid, number in self.children.items() if number == message["id"]]:
                os.kill(pid, signal.SIGKILL)

    def _fork(self, number: int, sock: int) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            os.close(sock)
            self.post({"op": "exit", "id": number, "status": -1, "cpu": 0.0, "error": str(error)})
            return
        if pid == 0:
            self._become_rollout(sock)
        os.close(sock)
        self.children[pid] = number

    def _become_rollout(self, fd: int) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.control.detach()  # only forget it: the number is reused below
            os.dup2(fd, SOCKET_FD)
            for standard in (1, 2):
                os.dup2(0, standard)
            os.closerange(SOCKET_FD + 1, 4096)
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=SOCKET_FD)
            if self.setup["confine"]:
                _confine(self.kernel, self.setup["limits"])
            sock.sendall(_line({"op": "started"}))
            job = _first_line(sock)
            sock.sendall(_line(self._run(job, sock)))
        finally:
            os._exit(0)

    def _run(self, job: Mapping[str, Any], sock: socket.socket) -> dict[str, Any]:
        with contextlib.suppress(MemoryError):
            return _run_code(job, sock) if self.code is None else _run_harness(job, self, sock)
        # There was no memory even to tell what happened; by now the frames that held it are gone.
        return {"op": "end", "kind": "error", "detail": "MemoryError", "status": "MemoryError"}

    def _reap(self) -> None:
        while self.children:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            number = self.children.pop(pid, None)
            if number is not None:
                code, cpu = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
                self.post({"op": "exit", "id": number, "status": code, "cpu": cpu})

    def _end_all(self) -> None:
        for pid in self.children:
            os.kill(pid, signal.SIGKILL)
        for pid in self.children:
            os.waitpid(pid, 0)


def _drop_root(uid: int) -> None:
    """Become an unprivileged user, so that limits bind and no capability is left."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _compile(setup: Mapping[str, Any]) -> types.CodeType | None:
    """Compile the candidate (which runs nothing of it) and import the harmless modules it names."""
    source = setup["source"]
    if source is None:
        _preload(setup["preload"])
        return None
    linecache.cache[HARNESS_FILE] = (len(source), None, source.splitlines(True), HARNESS_FILE)
    tree = ast.parse(source, HARNESS_FILE)
    named = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    named |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    harmless = STANDARD_IMPORTS | set(setup["packages"])
    _preload(sorted(name for name in named if name.split(".")[0] in harmless))
    return compile(tree, HARNESS_FILE, "exec", dont_inherit=True)


def main(control_fd: int, uid: int) -> None:
    """Run as the warm parent: read the setup from the control socket, answer ``ready``, serve forks."""
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=control_fd)
    if uid:
        _drop_root(uid)
    kernel = _kernel()
    parent = _Parent(control, _first_line(control), kernel)
    if kernel and parent.setup["confine"]:
        kernel.drop_capabilities()
        kernel.control(kernel.DUMPABLE, 0)  # inherited by every fork
        kernel.control(kernel.NO_NEW_PRIVS, 1)
    sys.meta_path.append(_Finder(parent.setup["packages"]))
    _install_contract()
    parent.post({"op": "up"})
    try:
        parent.code = _compile(parent.setup)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        parent.post({"op": "failed", "detail": _explain(error, HARNESS_FILE)})
        return
    parent.loop.run_until_complete(asyncio.sleep(0))  # warm: what it makes on first use is made here
    # Objects made so far are never collected: a fork then touches, and copies, fewer pages.
    gc = importlib.import_module("gc")
    gc.collect()
    gc.freeze()
    parent.post({"op": "ready", "seccomp": kernel is not None, "uid": os.getuid()})
    parent.serve()


def libraries() -> list[str]:
    """Shared libraries that this file and every module of ``STANDARD_IMPORTS`` need, by the names the loader uses."""
    import ctypes

    class Info(ctypes.Structure):
        _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]

    names: list[str] = []
    _preload(sorted(STANDARD_IMPORTS))
    visit = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)
    note = visit(lambda info, _size, _data: names.append(os.fsdecode(info.contents.name)) or 0)  # type: ignore[func-returns-value]
    ctypes.CDLL(None).dl_iterate_phdr(note, None)
    return [name for name in names if name.startswith("/")]


if __name__ == "__main__":
    if sys.argv[1] == "libraries":
        print(json.dumps(libraries()))
    else:
        main(int(sys.argv[1]), int(sys.argv[2]))
