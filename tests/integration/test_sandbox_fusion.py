"""The client of code servers against a server that implements the documented route, on loopback."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from whale.domains.base import ToolInputError
from whale.domains.math import MathDomain
from whale.errors import ConfigError, SandboxError
from whale.harness.sandbox_fusion import SandboxFusion, printing
from whale.types import Task

starlette_applications = pytest.importorskip("starlette.applications")
uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("httpx")


class Server:
    """``POST /run_code`` as documented: runs Python in a process of its own. ``faults``: answers to give first."""

    def __init__(self) -> None:
        from starlette.requests import Request
        from starlette.responses import JSONResponse, PlainTextResponse, Response
        from starlette.routing import Route

        self.requests: list[dict[str, Any]] = []
        self.faults: list[Any] = []

        async def run_code(request: Request) -> Response:
            body = await request.json()
            self.requests.append(body)
            if self.faults:
                fault = self.faults.pop(0)
                if isinstance(fault, int):
                    return PlainTextResponse("overloaded", fault)
                return JSONResponse(fault)
            return JSONResponse(await asyncio.to_thread(_execute, body))

        app = starlette_applications.Starlette(routes=[Route("/run_code", run_code, methods=["POST"])])
        self.port = _free_port()
        self.server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", self.port, log_level="error"))
        self.thread = threading.Thread(target=self.server.run)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Server:
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join()


def _execute(body: dict[str, Any]) -> dict[str, Any]:
    assert body["language"] == "python"
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", body["code"]], capture_output=True, text=True, timeout=body["run_timeout"]
        )
    except subprocess.TimeoutExpired as error:
        out = error.stdout.decode() if isinstance(error.stdout, bytes) else ""
        result: dict[str, Any] = {"status": "TimeLimitExceeded", "stdout": out, "stderr": "", "return_code": None}
        return {"status": "Failed", "message": "", "compile_result": None, "run_result": result}
    result = {
        "status": "Finished",
        "execution_time": 0.1,
        "return_code": done.returncode,
        "stdout": done.stdout,
        "stderr": done.stderr,
    }
    status = "Success" if done.returncode == 0 else "Failed"
    return {"status": status, "message": "", "compile_result": None, "run_result": result, "files": {}}


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def server(running: Server) -> Server:
    running.requests.clear()
    running.faults.clear()
    return running


def use(server: Server, *codes: str, **options: Any) -> list[str]:
    async def main() -> list[str]:
        client = SandboxFusion(server.address, 2, pause=0.01, **options)
        await client.start()
        try:
            return await asyncio.gather(*[client.run(code) for code in codes])
        finally:
            await client.close()
            await client.close()

    return asyncio.run(main())


def test_the_request_is_the_documented_one(server: Server) -> None:
    assert use(server, "print(1)", seconds=7) == ["1"]
    assert server.requests[-1] == {
        "code": printing("print(1)"),
        "language": "python",
        "compile_timeout": 7,
        "run_timeout": 7,
    }


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("1 + 1", "2"),
        ("x = 3\nx * 2", "6"),
        ("x = 3", ""),
        ("x = 3; x + 1", "4"),
        ("print('a')\nNone", "a"),
        ("def f(n):\n    return n + 1\nf(4)", "5"),
        ("(1 +\n 2)", "3"),
        ("'''a\nb'''", "a\nb"),
        ("s = 'é'; s + 'ü'", "éü"),
        ("1, 2", "(1, 2)"),
        ("for i in range(2):\n    i", ""),
        ("5  # five", "5"),
        ("", ""),
        ("import sys\nprint('out')\nprint('err', file=sys.stderr)\n'last'", "out\nlast\nerr"),
    ],
)
def test_values_and_output(server: Server, code: str, text: str) -> None:
    assert use(server, code) == [text]


def test_errors_of_the_code_are_text(server: Server) -> None:
    failed, syntax, silent = use(server, "print('before')\n1 / 0", "x = (1", "import os\nos._exit(3)")
    assert failed.startswith("before\n")
    assert "ZeroDivisionError" in failed
    assert "SyntaxError" in syntax
    assert silent == "RuntimeError: the code ended with exit code 3"


@pytest.mark.slow
def test_a_timeout_of_the_code_is_text(server: Server) -> None:
    (text,) = use(server, "print('x', flush=True)\nwhile True: pass", seconds=2)
    assert text == "x\nTimeoutError: the code ran longer than 2 seconds"


def test_output_is_cut_with_a_note(server: Server) -> None:
    (text,) = use(server, "print('x' * 5000)", output_bytes=100)
    assert text == "x" * 100 + "\n... (output cut)"


def test_an_outage_is_tried_again(server: Server) -> None:
    async def main() -> str:
        client = SandboxFusion(server.address, 1, pause=0.01, retries=3)
        await client.start()
        server.faults = [503, 500, 429]
        try:
            return await client.run("3")
        finally:
            await client.close()

    assert asyncio.run(main()) == "3"
    assert len(server.requests) == 5


SANDBOX_ERROR = {"status": "SandboxError", "message": "no slot", "compile_result": None, "run_result": None}


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ([503, 503], r"failed 2 times, the last time with status 503: overloaded"),
        ([404], r"refuses the request with status 404"),
        ([SANDBOX_ERROR], "says of itself that it failed: no slot"),
        ([{"hello": 1}], "says of itself that it failed"),
        ([{"status": "Success", "message": ""}], "without a run_result"),
        (
            [{"status": "Success", "run_result": {"status": "Error", "stderr": "no fork"}}],
            "could not run the code: no f",
        ),
    ],
)
def test_faults_of_the_server_are_infrastructure(server: Server, faults: list[Any], message: str) -> None:
    async def main() -> None:
        client = SandboxFusion(server.address, 1, pause=0.01, retries=1)
        await client.start()
        server.faults = list(faults)
        try:
            with pytest.raises(SandboxError, match=message):
                await client.run("3")
            assert await client.run("4") == "4"
        finally:
            await client.close()

    asyncio.run(main())


def test_nobody_there() -> None:
    async def main() -> None:
        client = SandboxFusion(f"http://127.0.0.1:{_free_port()}", 1, pause=0.01, retries=1)
        with pytest.raises(SandboxError, match=r"failed 2 times.*ConnectError"):
            await client.start()
        await client.close()

    asyncio.run(main())


def test_the_domain_uses_it(server: Server) -> None:
    domain = MathDomain(interpreter=server.address + "/", interpreter_seconds=5)

    async def main() -> None:
        await domain.start()
        try:
            run = domain.open(Task("t", {"problem": "2 + 3?"}, "5")).tools["code_interpreter"]
            assert await run(code="```python\n2 + 3\n```") == "5"
            with pytest.raises(ToolInputError):
                await run(code=" ")
        finally:
            await domain.close()

    asyncio.run(main())
    with pytest.raises(ConfigError, match="option interpreter"):
        MathDomain(interpreter="somewhere")
