"""A retriever behind HTTP, in the request and answer format of the Search-R1 family of servers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from whale.domains.search_qa.retrieval.base import RetrievalError, Retriever, Say, needs_extra
from whale.domains.search_qa.retrieval.protocol import PROTOCOL, BadRequest, read_request, write_passage
from whale.errors import ConfigError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse

MAX_BODY = 4_000_000
"""Bytes of one request."""


def make_app(retriever: Retriever) -> Starlette:
    """The application: ``POST /retrieve`` and ``GET /health``. Starts and closes the retriever with itself.

    Raises RetrievalError without the package starlette.
    """
    try:
        from starlette.applications import Starlette
        from starlette.responses import JSONResponse
        from starlette.routing import Route
    except ImportError as error:
        raise needs_extra("starlette", "serve") from error

    async def retrieve(request: Request) -> JSONResponse:
        try:
            search = read_request(await _read_body(request))
            found = await asyncio.gather(
                *(retriever.search(query, search.top_k, search.max_tokens) for query in search.queries)
            )
        except BadRequest as error:
            return JSONResponse({"error": str(error)}, 400)
        except RetrievalError as error:
            return JSONResponse({"error": str(error)}, 503)
        result = [[write_passage(passage, search.scores) for passage in passages] for passages in found]
        return JSONResponse({"result": result, "retriever": retriever.name})

    async def health(request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok", "protocol": PROTOCOL, "retriever": retriever.name})

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await retriever.start()
        try:
            yield
        finally:
            await retriever.close()

    routes = [Route("/retrieve", retrieve, methods=["POST"]), Route("/health", health, methods=["GET"])]
    return Starlette(routes=routes, lifespan=lifespan)


async def _read_body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            raise BadRequest(f"the body is larger than {MAX_BODY:,} bytes")
    return body


def serve(
    retriever: Retriever, host: str, port: int, say: Say, ready: Callable[[int], None] = lambda port: None
) -> None:
    """Serve until a signal. The retriever is loaded first; then ``ready`` is called with the port (0 takes a free one).

    Raises RetrievalError (it does not start), ConfigError (the address cannot be taken).
    """
    try:
        import uvicorn
    except ImportError as error:
        raise needs_extra("uvicorn", "serve") from error
    asyncio.run(_serve(uvicorn, retriever, host, port, say, ready))


async def _serve(
    uvicorn: Any, retriever: Retriever, host: str, port: int, say: Say, ready: Callable[[int], None]
) -> None:
    listener = _listen(host, port)
    with listener:
        # Started here and not by the application: its errors are messages, not tracebacks of the server.
        await retriever.start()
        config = uvicorn.Config(make_app(retriever), log_level="warning", lifespan="on")
        server = uvicorn.Server(config)
        taken = listener.getsockname()[1]
        say(f"serving {retriever.name} on http://{_shown(host)}:{taken}/retrieve")
        if host not in ("127.0.0.1", "::1", "localhost"):
            say("warning: this address can be reached from other machines, and the server asks for no password")
        ready(taken)
        await server.serve(sockets=[listener])


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()
        except OSError:
            listener.close()
            raise
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error}; choose another --host or --port") from error
    return listener
