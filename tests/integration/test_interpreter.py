"""The interpreter pool: whatever the code does comes back as text, and soon enough."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from test_harness_support import LEVELS, processes

from whale.errors import SandboxError
from whale.harness.interpreter import PythonPool

both_levels = pytest.mark.parametrize("level", LEVELS)


def run(code: str, level: str = "contained", **options: float) -> str:
    async def main() -> str:
        async with PythonPool(1, level, **options) as pool:  # type: ignore[arg-type]
            return await pool.run(code)

    return asyncio.run(main())


@both_levels
@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("print(1)", "1"),
        ("1 + 1", "2"),
        ("x = 3\nx * 2", "6"),
        ("x = 3", ""),
        ("", ""),
        ("# nothing", ""),
        ("print('a')\nNone", "a"),
        ("from fractions import Fraction\nFraction(1, 3) + 1", "4/3"),
        ("import sys\nprint('out')\nprint('err', file=sys.stderr)\n'last'", "out\nerr\nlast"),
        ("def f(n):\n    return 1 if n < 2 else n * f(n - 1)\nf(5)", "120"),
        ("import asyncio\nasyncio.run(asyncio.sleep(0, 'slept'))", "slept"),
        ("if __name__ == '__main__':\n    print('main')", "main"),
        ("'\\ud800'", "?"),
        ("exit()", ""),
        ("raise SystemExit(3)", "SystemExit: 3"),
        (
            "input()",
            "Traceback (most recent call last):\n  line 1, in <module>: input()\nEOFError: EOF when reading a line",
        ),
    ],
)
def test_values_and_output(level: str, code: str, text: str) -> None:
    assert run(code, level) == text


@both_levels
@pytest.mark.parametrize(
    ("code", "part"),
    [
        (
            "print('before')\n1 / 0",
            "before\nTraceback (most recent call last):\n  line 2, in <module>: 1 / 0\nZeroDivision",
        ),
        ("x = (1", "SyntaxError: '(' was never closed"),
        ("def f(n):\n    return f(n + 1)\nf(0)", "RecursionError: maximum recursion depth exceeded"),
        ("x = 'a' * (8 << 30)", "MemoryError"),
        (
            "import os\nprint('kept')\nos._exit(3)",
            "kept\nRuntimeError: the interpreter ended before the code did (exit code 3)",
        ),
        (
            "import ctypes\nctypes.string_at(0)",
            "RuntimeError: the interpreter ended before the code did (signal SIGSEGV)",
        ),
        ("import os\nos.write(3, b'junk\\n')\nwhile True: pass", "RuntimeError: the code broke its connection"),
        ("class E(Exception):\n    def __str__(self): raise ValueError\nraise E", "E"),
        ("import subprocess\nsubprocess.run(['ls'])", "PermissionError"),
        ("import socket\nsocket.socket()", "PermissionError"),
        ("open('/tmp/x', 'w')", "Error: ["),
        ("import numpy", "ModuleNotFoundError: No module named 'numpy'"),
        ("import whale.types", "ModuleNotFoundError"),
        ("(" * 500 + ")" * 500, "Error"),
    ],
)
def test_every_misfortune_is_readable(level: str, code: str, part: str) -> None:
    text = run(code, level)
    assert part in text
    assert "runtime.py" not in text
    assert str(Path(__file__).parents[2]) not in text


@pytest.mark.slow
def test_endless_recursion_past_the_limit() -> None:
    text = run("import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f()\nf()", memory_mb=100, seconds=60)
    assert any(word in text for word in ("MemoryError", "SIGSEGV", "RecursionError", "SystemError"))


@pytest.mark.slow
@both_levels
@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(60)", "while True: print('x' * 99)"])
def test_endless_code_is_timed_out(level: str, code: str) -> None:
    start = time.monotonic()
    text = run(code, level, seconds=0.5)
    assert text.endswith("TimeoutError: the code ran longer than 0.5 seconds")
    assert time.monotonic() - start < 8


@pytest.mark.slow
@both_levels
def test_a_timeout_leaves_no_descendant_and_no_file(level: str, tmp_path: Path) -> None:
    """Here the child is not even born, and the time-out comes in time."""
    mark = tmp_path / "mark"
    code = f"""
import subprocess, time
try:
    subprocess.Popen(["sh", "-c", "sleep 2; touch {mark}"], start_new_session=True)
except OSError as error:
    print(type(error).__name__)
time.sleep(30)
"""

    async def main() -> tuple[str, float]:
        async with PythonPool(1, level, seconds=1) as pool:
            start = time.monotonic()
            return await pool.run(code), time.monotonic() - start

    text, seconds = asyncio.run(main())
    assert text == "PermissionError\nTimeoutError: the code ran longer than 1 seconds"
    assert seconds < 4  # 2 on an idle machine
    assert not processes()
    time.sleep(2)
    assert not mark.exists()


@pytest.mark.slow
@both_levels
def test_a_crowd_is_not_timed_out_by_its_queue(level: str) -> None:
    """256 at once, 4 workers, 5 s: waiting does not count."""

    async def main() -> list[str]:
        async with PythonPool(4, level, seconds=5) as pool:
            return await asyncio.gather(*[pool.run("print(1)") for _ in range(256)])

    assert asyncio.run(main()) == ["1"] * 256


def test_no_more_than_the_workers_run_at_once() -> None:
    async def main() -> float:
        async with PythonPool(2, "contained") as pool:
            start = time.monotonic()
            await asyncio.gather(*[pool.run("import time; time.sleep(0.2)") for _ in range(4)])
            return time.monotonic() - start

    assert asyncio.run(main()) >= 0.4


@both_levels
def test_calls_see_nothing_of_each_other(level: str) -> None:
    async def main() -> list[str]:
        async with PythonPool(1, level) as pool:
            return [
                await pool.run("import math\nmath.seen = getattr(math, 'seen', 0) + 1\nmath.seen") for _ in range(3)
            ]

    assert asyncio.run(main()) == ["1"] * 3


def test_output_is_cut_with_a_note() -> None:
    for print_it in ("print('x' * 10**7)", "for i in range(10**4): print('xxxx')"):
        text = run(print_it, output_bytes=100)
        assert text.startswith("xxxx")
        assert text.endswith("\n... (output cut)")
        assert len(text) <= 100 + 20
    assert run("print('é' * 60)", output_bytes=101) == "é" * 50 + "\n... (output cut)"
    assert run("print('x' * 99)", output_bytes=100) == "x" * 99


def test_code_that_takes_over_its_socket_cannot_flood_the_host() -> None:
    flood = """
import os
line = b'{"op": "out", "text": "' + b"y" * 9000 + b'"}\\n'
for _ in range(20000): os.write(3, line)
"""
    assert len(run(flood, output_bytes=100)) < 200
    assert "broke its connection" in run("import os\nwhile True: os.write(3, b'z' * 65536)")


@both_levels
def test_a_broken_sandbox_is_not_the_code_s_fault(level: str) -> None:
    async def main() -> str:
        async with PythonPool(2, level) as pool:
            waiting = asyncio.create_task(pool.run("import time; time.sleep(30)"))
            await asyncio.sleep(0.5)
            assert pool._server._sandbox is not None
            pool._server._sandbox.process.kill()
            with pytest.raises(SandboxError):
                await waiting
            return await pool.run("print('again')")

    assert asyncio.run(main()) == "again"


def test_closing_ends_everything() -> None:
    async def main() -> None:
        pool = PythonPool(1, "contained")
        await pool.start()
        await pool.close()
        await pool.close()
        with pytest.raises(SandboxError, match="closed"):
            await pool.run("1")

    asyncio.run(main())
