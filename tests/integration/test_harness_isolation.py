"""What code inside a sandbox cannot do; docs/security.md names these tests."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from test_harness_support import LEVELS, Handler, attempt, processes, run_once, source, with_process

from whale.errors import SandboxError
from whale.harness import sandbox
from whale.harness.host import HarnessProcess
from whale.harness.sandbox import probe

both_levels = pytest.mark.parametrize("level", LEVELS)
sealed_only = pytest.mark.parametrize("level", LEVELS[:1])


# ---- nothing is carried from rollout to rollout --------------------------------------------------------------


@both_levels
def test_globals_and_modules_are_fresh_in_every_rollout(level: str) -> None:
    text = source(
        """
        SEEN.append(task.i)
        Harness.count = getattr(Harness, "count", 0) + 1
        re.marker = getattr(re, "marker", 0) + 1
        return f"{len(SEEN)} {Harness.count} {re.marker}"
        """,
        top="import re\nSEEN = []\n",
    )

    async def use(process: HarnessProcess) -> set[str | None]:
        return {(await process.run({"i": i}, i, Handler())).answer for i in range(5)}

    assert with_process(text, use, level) == {"1 1 1"}


@both_levels
def test_no_file_can_be_made_so_none_is_carried(level: str) -> None:
    answer = attempt(
        """
        import os, tempfile
        made = []
        for folder in ["/tmp", "/dev/shm", "/var/tmp", "/", "/dev", "/run", os.getcwd(), os.path.dirname(os.__file__)]:
            for make in (lambda p: open(p, "w"), os.mkdir, lambda p: os.symlink("/", p), os.mkfifo):
                try:
                    make(folder + "/whale-test")
                    made.append(folder)
                except OSError:
                    pass
        return f"made {made}"
        """,
        level,
    )
    assert answer == "made []"


@both_levels
def test_existing_files_cannot_be_changed(level: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    body = f"""
        import os
        path, done = {str(victim)!r}, []
        tries = [lambda: open(path, "a"), lambda: open(path, "r+"), lambda: os.truncate(path, 0),
                 lambda: os.unlink(path), lambda: os.rename(path, path + "x"), lambda: os.chmod(path, 0),
                 lambda: os.utime(path)]
        for number, action in enumerate(tries):
            try:
                action()
                done.append(number)
            except OSError:
                pass
        return f"done {{done}}"
    """
    assert attempt(body, level) == "done []"
    assert victim.read_text() == "as it was"


@both_levels
def test_same_names_edited_within_the_same_second_are_told_apart(level: str) -> None:
    """No byte code, module or class of one candidate is ever used for another."""
    first, second = source("return 'first'"), source("return 'other'")
    assert len(first) == len(second)
    assert run_once(first, level).answer == "first"
    assert run_once(second, level).answer == "other"

    async def both(one: HarnessProcess) -> tuple[str | None, ...]:
        async def use(two: HarnessProcess) -> tuple[str | None, ...]:
            results = await asyncio.gather(one.run({}, 1, Handler()), two.run({}, 1, Handler()))
            return tuple(result.answer for result in results)

        from whale.types import Limits

        async with HarnessProcess(second, isolation=level, limits=Limits()) as two:
            return await use(two)

    assert with_process(first, both, level) == ("first", "other")


# ---- what can be seen ----------------------------------------------------------------------------------------


@both_levels
def test_no_environment(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "secret-value")
    answer = attempt("import os\nreturn ' '.join(sorted(os.environ)) + str(os.environ)", level)
    assert "secret" not in answer
    assert set(answer.split("environ(")[0].split()) <= {"PATH", "LANG", "PYTHONHASHSEED", "PWD", "LC_CTYPE"}


@both_levels
@pytest.mark.parametrize("module", ["whale.types", "whale.errors", "numpy", "pytest", "pip", "torch"])
def test_neither_project_nor_packages_can_be_imported(level: str, module: str) -> None:
    assert attempt(f"import {module}\nreturn 'imported'", level).startswith("stopped: ModuleNotFoundError")


@sealed_only
def test_a_sealed_sandbox_holds_no_file_beyond_the_interpreter(level: str) -> None:
    body = """
        import os, sys
        library = os.path.dirname(os.__file__)
        odd = []
        for folder, folders, files in os.walk("/"):
            folders[:] = [f for f in folders if os.path.join(folder, f) != library]
            odd += [os.path.join(folder, f) for f in files]
        return "\\n".join(odd)
    """
    seen = attempt(body, level).splitlines()
    assert "/whale/runtime.py" in seen
    odd = [p for p in seen if not p.startswith("/dev/") and ".so" not in p and "python3" not in p.rsplit("/", 1)[-1]]
    assert odd == ["/whale/runtime.py"]
    assert not any("site-packages" in p or "main" in p for p in seen)


@sealed_only
def test_a_sealed_sandbox_shows_no_process(level: str) -> None:
    assert attempt("import os\nreturn str(os.listdir('/proc'))", level).startswith("stopped: FileNotFoundError")


@both_levels
@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_memory_of_parent_and_siblings_cannot_be_read(level: str) -> None:
    """A sibling holds a secret in memory; the reader knows every process id there could be."""
    body = """
        if task.role == "sibling":
            secret = "the-sibling-knows"
            await session.tools.wait()
            return secret
        import os
        got, me = [], os.getpid()
        pids = [int(p) for p in os.listdir("/proc") if p.isdigit()] if os.path.exists("/proc") else range(1, 2000)
        for pid in pids:
            if pid == me:
                continue
            for name in ("mem", "environ", "maps", "fd/3", "root"):
                try:
                    open(f"/proc/{pid}/{name}", "rb").read(1)
                    got.append((pid, name))
                except OSError:
                    pass
        await session.tools.done(pids=got, parent=os.getppid())
        return ""
    """
    done: asyncio.Event = asyncio.Event()
    readable: list[list[Any]] = []

    class Room(Handler):
        async def tool(self, name: str, arguments: dict[str, Any]) -> str:
            if name == "wait":
                await done.wait()
            else:
                readable.extend(arguments["pids"])
                done.set()
            return ""

    async def use(process: HarnessProcess) -> set[int]:
        sibling = asyncio.create_task(process.run({"role": "sibling"}, 1, Room()))
        await asyncio.sleep(0.3)
        ours = set(processes())
        await process.run({"role": "reader"}, 2, Room())
        await sibling
        return ours

    ours = with_process(source(body), use, level)
    assert len(ours) >= 2
    assert not {pid for pid, _ in readable} & ours
    assert done.is_set()


# ---- what can be reached -------------------------------------------------------------------------------------


@both_levels
@pytest.mark.parametrize(
    "body",
    [
        "import socket\nreturn str(socket.socket())",
        "import socket\nreturn str(socket.socket(socket.AF_UNIX))",
        "import socket\nreturn str(socket.create_connection(('127.0.0.1', PORT), 1))",
        "import asyncio\nreturn str(await asyncio.open_connection('127.0.0.1', PORT))",
        "import urllib.request\nreturn str(urllib.request.urlopen('http://127.0.0.1:PORT', timeout=1))",
    ],
)
def test_no_network(level: str, body: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        answer = attempt(body.replace("PORT", str(server.getsockname()[1])), level)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert answer.startswith("stopped: ")


@both_levels
def test_a_datagram_pair_cannot_reach_a_named_socket(level: str, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as service:
        service.bind(b"\0whale-test-service")
        service.setblocking(False)
        body = """
            import socket
            one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            return str(one.sendto(b"hello", b"\\0whale-test-service"))
        """
        assert attempt(body, level).startswith("stopped: PermissionError")
        with pytest.raises(BlockingIOError):
            service.recv(1)


@both_levels
@pytest.mark.parametrize(
    "body",
    [
        "import os\nreturn str(os.fork())",
        "import os\nos.execv('/bin/true', ['true'])",
        "import os\nreturn str(os.posix_spawn('/bin/true', ['true'], {}))",
        "import subprocess\nreturn str(subprocess.run(['true']))",
        "import threading\nthreading.Thread(target=print).start()\nreturn 'a thread'",
        "import multiprocessing\np = multiprocessing.Process(target=print)\np.start()\nreturn 'a process'",
        "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nreturn 'killed'",
        "import os, signal\nos.kill(-1, signal.SIGTERM)\nreturn 'killed'",
        "import fcntl, os\nfcntl.fcntl(3, fcntl.F_SETOWN, os.getppid())\nreturn 'owner'",
        "import os\nos.setsid()\nreturn 'session'",
        "import os\nos.setuid(0)\nreturn 'root'",
        "import os\nos.nice(5)\nreturn 'nice'",
        "import resource as r\nr.setrlimit(r.RLIMIT_AS, r.getrlimit(r.RLIMIT_AS))\nreturn 'limit'",
        "import os\nreturn str(os.memfd_create('x'))",
        "import os\nreturn str(os.pidfd_open(os.getppid()))",
        "import ctypes\nif ctypes.CDLL(None).ptrace(16, 1, 0, 0) == -1: raise PermissionError\nreturn 'ptrace'",
        "import ctypes\nif ctypes.CDLL(None).prctl(4, 1, 0, 0, 0) == -1: raise PermissionError\nreturn 'dumpable'",
        "import ctypes\nif ctypes.CDLL(None).unshare(0x10000000) == -1: raise PermissionError\nreturn 'unshared'",
    ],
)
def test_one_process_one_thread_and_nobody_else(level: str, body: str) -> None:
    assert attempt(body, level).startswith("stopped: ")


@both_levels
def test_limits_bind_root_too(level: str) -> None:
    """A sealed rollout is not root; a contained one has no capability left, which the host reads from outside."""
    if os.geteuid() == 0 and level == "sealed":
        assert attempt("import os\nreturn str(os.getuid())", level) == str(sandbox.UNPRIVILEGED_UID)

    async def use(process: HarnessProcess) -> set[str]:
        waiting = asyncio.create_task(process.run({}, 1, Handler()))
        await asyncio.sleep(0.4)
        pids = {fork._pid for fork in process._server._forks.values()}
        assert pids
        found = {line for pid in pids for line in Path(f"/proc/{pid}/status").read_text().splitlines()}
        waiting.cancel()
        return found

    status = with_process(source("await __import__('asyncio').sleep(60)"), use, level)
    wanted = {"CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"}
    assert wanted <= status


@both_levels
def test_a_rollout_cannot_speak_for_another(level: str) -> None:
    """Its only descriptors are /dev/null three times and its own socket."""
    body = """
        import os
        found = []
        for fd in range(64):
            try:
                os.fstat(fd)
                found.append(fd)
            except OSError:
                pass
        return str(found)
    """
    assert attempt(body, level) == "[0, 1, 2, 3]"


@both_levels
def test_code_at_the_top_of_the_file_is_confined_as_well(level: str) -> None:
    top = """
        import os
        def attempt(action):
            try:
                return str(action())
            except OSError as error:
                return type(error).__name__
        write, kill = lambda: open("/tmp/whale-top", "w"), lambda: os.kill(os.getppid(), 9)
        SEEN = [attempt(os.fork), attempt(write), attempt(kill)]
    """
    assert run_once(source("return ' '.join(SEEN)", top), level).answer in (
        "PermissionError PermissionError PermissionError",
        "PermissionError OSError PermissionError",
    )


@both_levels
def test_packages_that_a_domain_allows_are_visible_and_no_others(level: str, tmp_path: Path) -> None:
    (tmp_path / "whale_test_pkg").mkdir()
    (tmp_path / "whale_test_pkg" / "__init__.py").write_text("from whale_test_pkg.part import VALUE\n")
    (tmp_path / "whale_test_pkg" / "part.py").write_text("VALUE = 'from the package'\n")
    (tmp_path / "whale_test_other.py").write_text("")
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import asyncio, sys, textwrap
        from whale.harness.host import HarnessProcess
        from whale.types import Limits
        SOURCE = '''
        import whale_test_pkg
        class Harness:
            async def run(self, task, session):
                try:
                    import whale_test_other
                except ImportError:
                    return whale_test_pkg.VALUE
        '''
        async def main():
            source = textwrap.dedent(SOURCE)
            async with HarnessProcess(source, isolation=sys.argv[1], limits=Limits(),
                                      allowed_imports=frozenset({"whale_test_pkg"})) as process:
                print((await process.run({}, 1, None)).answer)
        asyncio.run(main())
        """)
    )
    import whale

    assert whale.__file__ is not None
    path = f"{Path(whale.__file__).parents[1]}:{tmp_path}"
    done = subprocess.run(
        [sys.executable, str(script), level], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.stdout == "from the package\n", done.stderr


# ---- trying it on this machine -------------------------------------------------------------------------------


@both_levels
def test_probe_finds_every_door_closed(level: str) -> None:
    checks = probe(level)
    assert len(checks) > 5
    assert all(check.ok for check in checks), checks


def test_probe_off_only_starts() -> None:
    assert [check.ok for check in probe("off")] == [True]


def test_missing_bubblewrap_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
    with pytest.raises(SandboxError, match=r"apt-get install bubblewrap.*isolation: contained"):
        run_once(source("return ''"), "sealed")
    check = probe("sealed")[0]
    assert not check.ok
    assert "apt-get install bubblewrap" in check.fix


def test_a_bubblewrap_that_fails_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: "/bin/false")
    with pytest.raises(SandboxError, match="user namespaces"):
        run_once(source("return ''"), "sealed")


def test_unknown_levels_and_packages_are_refused() -> None:
    with pytest.raises(SandboxError, match="sealed, contained, off"):
        run_once(source("return ''"), "open")
    with pytest.raises(SandboxError, match="not installed"):
        sandbox.start("contained", ["no_such_package_at_all"])
    with pytest.raises(SandboxError, match="not installed"):
        sandbox.start("contained", ["whale"])
