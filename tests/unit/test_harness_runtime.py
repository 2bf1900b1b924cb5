"""The runtime's plain parts: what harness code sees, and the system-call filter run by a small interpreter."""

from __future__ import annotations

import ast
import asyncio
import socket
import struct
from pathlib import Path

import pytest

import whale.harness
from whale.harness import LimitReached, Reply, Task, forkserver, runtime
from whale.harness.forkserver import Fork, ForkServer, ProtocolError, decode, encode


def test_the_runtime_imports_the_standard_library_only() -> None:
    """It is the only project file in a sandbox: an import of whale there would fail, an import here would leak."""
    import sys

    tree = ast.parse(Path(runtime.__file__).read_text())
    names = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names


def test_host_and_sandbox_export_the_same_names(monkeypatch: pytest.MonkeyPatch) -> None:
    modules: dict[str, object] = {}
    monkeypatch.setattr(runtime.sys, "modules", modules)
    runtime._install_contract()
    inside = modules["whale.harness"]
    assert all(getattr(inside, name) is getattr(whale.harness, name) for name in whale.harness.__all__)


def test_task_shows_inputs_and_nothing_else() -> None:
    task = Task({"problem": "1 + 1", "level": 2})
    assert task.problem == task["problem"] == "1 + 1"
    assert "level" in task
    assert "id" not in task
    assert dict(task) == {"problem": "1 + 1", "level": 2}
    with pytest.raises(AttributeError, match=r"no input 'id'.*level.*problem"):
        _ = task.id


def test_reply_message_carries_the_call_and_openai_tool_calls() -> None:
    calls = [{"name": "search", "arguments": {"q": "x"}, "id": "", "error": ""}]
    body = {"text": "t", "reasoning": "r", "tool_calls": calls, "finish": "stop", "usage": {}, "call": 3}
    reply = runtime._reply(body)
    assert isinstance(reply, Reply)
    assert reply.call == 3
    assert reply.message["reply"] == 3
    assert reply.message["tool_calls"] == [
        {"id": "call_3_0", "type": "function", "function": {"name": "search", "arguments": {"q": "x"}}}
    ]
    assert reply.tool_calls[0].id == "call_3_0"
    assert "tool_calls" not in runtime._reply({**body, "tool_calls": []}).message


def test_groups_of_limits_count_as_a_limit() -> None:
    limit = LimitReached("turns")
    assert runtime._only_limits(ExceptionGroup("two", [limit, LimitReached("tokens")]))
    assert not runtime._only_limits(ExceptionGroup("mixed", [limit, ValueError()]))


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[1]", b"3", b"\xff\xfe", b"[" * 100_000, b'{"a": ' * 100_000, b'{"n": ' + b"9" * 9000 + b"}"]
)
def test_junk_is_a_protocol_error(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(line)


def test_lone_surrogates_do_not_travel() -> None:
    assert decode(b'{"a": "x\\ud800y \\u00e9"}') == {"a": "x?y é"}
    assert encode({"a": "\ud800"}) == b'{"a": "?"}\n'


# ---- the filter ----------------------------------------------------------------------------------------------

ALLOW, EPERM, ENOSYS, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000


def verdict(machine: str, number: int, arguments: tuple[int, ...] = (), arch: int | None = None) -> int:
    """Interpret the classic BPF program on one system call."""
    arguments = arguments + (0,) * (6 - len(arguments))
    data = struct.pack("=iIQ6Q", number, arch or runtime._AUDIT_ARCH[machine], 0, *arguments)
    program = list(struct.iter_unpack("=HBBI", runtime._filter(machine)))
    accumulator = at = 0
    while True:
        code, yes, no, k = program[at]
        at += 1
        if code == 0x06:
            return int(k)
        if code == 0x20:
            accumulator = struct.unpack_from("=I", data, k)[0]
        else:
            test = {0x15: accumulator == k, 0x35: accumulator >= k, 0x45: bool(accumulator & k)}[code]
            at += yes if test else no


# number on x86_64, number on aarch64
REFUSED = {
    "clone": (56, 220),
    "execve": (59, 221),
    "execveat": (322, 281),
    "kill": (62, 129),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    "sendmsg": (46, 211),
    "mount": (165, 40),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "keyctl": (250, 219),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "memfd_create": (319, 279),
    "prctl": (157, 167),
    "setsid": (112, 157),
    "unlinkat": (263, 35),
    "mkdirat": (258, 34),
    "renameat2": (316, 276),
    "shmget": (29, 194),
    "sched_setaffinity": (203, 122),
    "setpriority": (141, 140),
    "setuid": (105, 146),
    "chmod": (268, 53),
    "inotify_init1": (294, 26),
}
MACHINES = ["x86_64", "aarch64"]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", REFUSED)
def test_refused_calls(machine: str, name: str) -> None:
    assert verdict(machine, REFUSED[name][MACHINES.index(machine)]) == EPERM


@pytest.mark.parametrize("number", [57, 58])
def test_fork_and_vfork_of_x86_64(number: int) -> None:
    assert verdict("x86_64", number) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("number", [424, 425, 434, 435, 437, 440, 460, 600])
def test_newer_calls_do_not_exist(machine: str, number: int) -> None:
    """pidfd_send_signal, io_uring_setup, pidfd_open, clone3, openat2, process_madvise and all that is yet to come."""
    assert verdict(machine, number) == ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_harmless_arguments_only(machine: str) -> None:
    openat, sendto, prlimit, fcntl, ioctl = runtime._numbers(runtime._CHECKED, machine).values()
    assert verdict(machine, openat, (0, 0, 0o2000000)) == ALLOW  # read-only, close on exec
    assert verdict(machine, openat, (0, 0, 0o1)) == EPERM
    assert verdict(machine, openat, (0, 0, 0o100)) == EPERM
    assert verdict(machine, openat, (0, 0, 0o1000)) == EPERM
    assert verdict(machine, sendto, (3, 1, 1, 0, 0, 0)) == ALLOW
    assert verdict(machine, sendto, (3, 1, 1, 0, 0x7F0000001000, 16)) == EPERM
    assert verdict(machine, sendto, (3, 1, 1, 0, 1 << 40, 16)) == EPERM
    assert verdict(machine, prlimit, (0, 7, 0, 0x7F0000001000)) == ALLOW
    assert verdict(machine, prlimit, (0, 7, 0x7F0000001000, 0)) == EPERM
    assert verdict(machine, fcntl, (3, 1)) == ALLOW
    assert verdict(machine, fcntl, (3, 8, 100)) == EPERM  # F_SETOWN: signals to another process
    assert verdict(machine, ioctl, (3, 0x5421)) == ALLOW
    assert verdict(machine, ioctl, (3, 0x5412)) == EPERM  # TIOCSTI
    assert verdict(machine, ioctl, (3, 0x8901)) == EPERM  # FIOSETOWN


def test_other_machine_languages_are_shut() -> None:
    assert verdict("x86_64", 0x40000000 | 1) == EPERM  # x32
    assert verdict("x86_64", 1, arch=0x40000003) == KILL  # i386


# ---- the clock -----------------------------------------------------------------------------------------------


def own_time(moments: list[float], waits: list[float], seconds: float = 2.0) -> bool:
    """Whether a fork that is never owed anything is ended by looks at these moments with these kernel waits."""

    async def main() -> bool:
        host, far = socket.socketpair()
        with host, far:
            host.setblocking(False)
            fork = Fork(ForkServer("off", {}), 0, host, seconds)
            fork._started, fork._pid = True, 1
            for now, wait in zip(moments, waits, strict=True):
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(forkserver, "_kernel_wait", lambda _pid, wait=wait: wait)
                    fork.check_clock(now)
            return fork.timed_out

    return asyncio.run(main())


def test_own_time_is_wall_time_less_waits_for_a_processor() -> None:
    looks = [i * 0.5 for i in range(9)]  # four seconds
    assert own_time(looks, [0.0] * 9)
    assert not own_time(looks[:5], [0.0] * 5)  # two seconds, no more
    assert not own_time(looks, [i * 0.3 for i in range(9)])


def test_a_paused_host_blames_nobody() -> None:
    assert not own_time([0.0, 3600.0], [0.0, 0.0])
    assert own_time([0.0, 3600.0, 7200.0, 7200.5], [0.0] * 4)
