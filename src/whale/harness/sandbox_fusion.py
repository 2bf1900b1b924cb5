"""A client for servers that run code and speak the SandboxFusion protocol, with the interface of ``PythonPool``.

One route is used: ``POST /run_code`` with the code and its limits. Whatever the code does is text for the policy; a
server that cannot be reached or says that it failed itself is a fault of the infrastructure.
"""

from __future__ import annotations

import ast
import asyncio
from typing import TYPE_CHECKING, Any

from whale.errors import ConfigError, SandboxError

if TYPE_CHECKING:
    import httpx

_PATIENCE = 30.0  # seconds beyond the code's own, for the server's queue and the way there and back
_FIRST_PAUSE = 0.5
_WORTH_ANOTHER_TRY = frozenset({408, 425, 429, 500, 502, 503, 504})
_CUT_NOTE = "\n... (output cut)"
_PRINT_LAST = "_whale_last_value"


class SandboxFusion:
    """Runs code on a server. address: of the server, without the route. workers: requests at the same time; more wait
    here. seconds: run time of one call, which the server enforces. output_bytes: of what it printed; the rest is cut
    with a note. retries: further tries of a request that met an outage. patience: seconds that the server may take
    beyond ``seconds``. pause: before the first retry, in seconds, doubled each time."""

    def __init__(
        self,
        address: str,
        workers: int,
        seconds: float = 30.0,
        output_bytes: int = 8192,
        retries: int = 3,
        patience: float = _PATIENCE,
        pause: float = _FIRST_PAUSE,
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers is {workers}, it must be at least 1")
        self._url = address.rstrip("/").removesuffix("/run_code") + "/run_code"
        self._workers, self._seconds, self._output_bytes = workers, seconds, output_bytes
        self._retries, self._patience, self._pause = retries, patience, pause
        self._client: httpx.AsyncClient | None = None
        self._turn = asyncio.Semaphore(workers)

    async def start(self) -> None:
        """Try the server with a line of code. Raises SandboxError if it does not run it, ConfigError without httpx."""
        if self._client is None:
            try:
                import httpx
            except ImportError as error:
                raise ConfigError("a code server needs httpx: pip install 'whale-learn[math]'") from error
            limits = httpx.Limits(max_connections=self._workers)
            self._client = httpx.AsyncClient(timeout=self._seconds + self._patience, limits=limits)
        found = await self.run("6 * 7")
        if found != "42":
            await self.close()
            raise SandboxError(f"{self._url} does not run Python: 6 * 7 gave {found[:200]!r}")

    async def close(self) -> None:
        """End the connections. Safe to call twice."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def run(self, code: str) -> str:
        """Run ``code`` and return what it printed, the value of a last expression included. Raises SandboxError for a
        fault of the server or the way to it."""
        if self._client is None:
            raise SandboxError("the code server's client is not started")
        body = {
            "code": printing(code),
            "language": "python",
            "compile_timeout": self._seconds,
            "run_timeout": self._seconds,
        }
        async with self._turn:
            return self._text(await self._post(self._client, body))

    async def _post(self, client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
        import httpx

        trouble = ""
        for attempt in range(self._retries + 1):
            if attempt:
                await asyncio.sleep(self._pause * 2 ** (attempt - 1))
            try:
                response = await client.post(self._url, json=body)
            except httpx.HTTPError as error:
                trouble = f"{type(error).__name__} {error}".strip()
                continue
            trouble = f"status {response.status_code}: {response.text[:200]}"
            if response.status_code not in _WORTH_ANOTHER_TRY:
                break
        else:
            raise SandboxError(f"{self._url} failed {self._retries + 1} times, the last time with {trouble}")
        if response.status_code != 200:
            raise SandboxError(f"{self._url} refuses the request with {trouble}")
        return self._answer(response)

    def _answer(self, response: httpx.Response) -> dict[str, Any]:
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or answer.get("status") not in ("Success", "Failed"):
            said = answer.get("message") if isinstance(answer, dict) else response.text
            raise SandboxError(f"{self._url} says of itself that it failed: {str(said)[:200]}")
        result = answer.get("run_result")
        if not isinstance(result, dict):
            raise SandboxError(f"{self._url} answered without a run_result; is it a SandboxFusion server?")
        return result

    def _text(self, result: dict[str, Any]) -> str:
        """What the policy reads."""
        parts = [str(result.get("stdout") or ""), str(result.get("stderr") or "")]
        text = _cut("\n".join(part.rstrip("\n") for part in parts if part.strip("\n")), self._output_bytes)
        ending = ""
        if result.get("status") == "TimeLimitExceeded":
            ending = f"TimeoutError: the code ran longer than {self._seconds:g} seconds"
        elif result.get("status") != "Finished":
            raise SandboxError(f"{self._url} could not run the code: {text[:200]}")
        elif result.get("return_code") and not text:
            ending = f"RuntimeError: the code ended with exit code {result['return_code']}"
        return "\n".join(part for part in (text, ending) if part)


def printing(code: str) -> str:
    """``code`` with its last expression printed unless its value is ``None``; unchanged where there is none, or where
    it does not parse (its error is then the policy's to read)."""
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code
    if not body or not isinstance(body[-1], ast.Expr):
        return code
    lines = code.encode().splitlines(keepends=True)  # columns of the tree count bytes
    last = body[-1]
    before = b"".join(lines[: last.lineno - 1]) + lines[last.lineno - 1][: last.col_offset]
    expression = _between(lines, last)
    tail = f"{_PRINT_LAST} = (\n{expression}\n)\nif {_PRINT_LAST} is not None: print({_PRINT_LAST})\n"
    head = before.decode()
    return f"{head.rstrip(' ').rstrip(';')}\n{tail}" if head.strip() else tail


def _between(lines: list[bytes], node: ast.Expr) -> str:
    last = (node.end_lineno or node.lineno) - 1
    part = [*lines[node.lineno - 1 : last], lines[last][: node.end_col_offset]]
    if node.lineno - 1 == last:
        return lines[last][node.col_offset : node.end_col_offset].decode()
    return b"".join([part[0][node.col_offset :], *part[1:]]).decode()


def _cut(text: str, limit: int) -> str:
    data = text.encode("utf-8", "replace")
    return text if len(data) <= limit else data[:limit].decode("utf-8", "ignore") + _CUT_NOTE
