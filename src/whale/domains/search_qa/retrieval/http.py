"""Retrieval from a server: whale's own, or any that speaks the same small protocol."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from pydantic import Field, field_validator

from whale.domains.search_qa.retrieval.base import (
    Passage,
    RetrievalError,
    RetrieverOptions,
    check_numbers,
    needs_extra,
)
from whale.domains.search_qa.retrieval.cut import Cutter
from whale.domains.search_qa.retrieval.protocol import PROTOCOL, BadAnswer, read_results

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

_HEALTH_QUERY = "history of the city"
_LONGEST_WAIT = 30.0  # seconds between two tries at most


class HttpOptions(RetrieverOptions):
    """url: of the server, with its path (default path ``/retrieve``). expect: the name that the server must report;
    empty takes any. timeout: seconds for one answer. retries: further tries after a fault of connection or server.
    wait: seconds before the second try, doubled each time. connections: requests at a time. batch: queries per
    request. health_query: a query that must find something."""

    url: str
    expect: str = ""
    timeout: float = Field(default=30.0, gt=0)
    retries: int = Field(default=4, ge=0)
    wait: float = Field(default=0.5, ge=0)
    connections: int = Field(default=4, ge=1)
    batch: int = Field(default=32, ge=1)
    health_query: str = Field(default=_HEALTH_QUERY, min_length=1)

    @field_validator("url")
    @classmethod
    def _with_path(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError("an address such as http://127.0.0.1:8000 is expected")
        path = parts.path if parts.path.strip("/") else "/retrieve"
        return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


@dataclass(frozen=True)
class _Asked:
    query: str
    top_k: int
    max_tokens: int | None
    found: asyncio.Future[list[Passage]]


class _Again(Exception):
    """This try failed in a way that another may not. after: seconds the server asked to wait."""

    def __init__(self, reason: str, after: float = 0.0) -> None:
        super().__init__(reason)
        self.after = after


class HttpRetriever:
    """Implements ``Retriever``. Connections live on a loop of their own, so searches may come from any event loop.

    Queries that wait together share a request. A blank query finds nothing and is not sent.
    """

    def __init__(self, options: HttpOptions, tokenizer: Path | None) -> None:
        self._options = options
        self._tokenizer = tokenizer
        self._server = ""
        self._background: _Background | None = None
        self._client: httpx.AsyncClient | None = None
        self._cutter: Cutter | None = None
        self._waiting: list[_Asked] = []
        self._senders: set[asyncio.Task[None]] = set()

    @property
    def name(self) -> str:
        """``http-<protocol>-<name of the server's retriever>``; of a server that gives no name, its address."""
        return f"http-{PROTOCOL}-{self._server or self._options.url}"

    async def start(self) -> None:
        """Connect, read the server's name, and make one search. Raises RetrievalError, ConfigError (tokenizer)."""
        if self._background is not None:
            return
        self._cutter = await asyncio.to_thread(Cutter, self._tokenizer)
        self._background = _Background()
        try:
            await self._background.run(self._connect())
            if not await self.search(self._options.health_query, 1, None):
                query = self._options.health_query
                raise RetrievalError(
                    f"retriever {self._options.url}: a search for {query!r} finds nothing; set health_query to a query "
                    "that must find something, or check the server's index"
                )
        except BaseException:
            await self.close()
            raise

    async def search(self, query: str, top_k: int, max_tokens: int | None) -> list[Passage]:
        """See ``Retriever.search``."""
        check_numbers(top_k, max_tokens)
        if self._background is None:
            raise RetrievalError("the HTTP retriever is not running: call start() first")
        if not query.strip():
            return []
        return await self._background.run(self._ask(query, top_k, max_tokens))

    async def close(self) -> None:
        """Close the connections; safe to call twice."""
        background, self._background = self._background, None
        if background is not None:
            await background.run(self._disconnect())
            await background.stop()

    # From here on everything runs on the background loop.

    async def _connect(self) -> None:
        try:
            import httpx
        except ImportError as error:
            raise needs_extra("httpx", "search") from error
        limits = httpx.Limits(max_connections=self._options.connections)
        # A proxy of the environment knows no server on this machine.
        far = urlsplit(self._options.url).hostname not in ("127.0.0.1", "::1", "localhost")
        self._client = httpx.AsyncClient(timeout=self._options.timeout, limits=limits, trust_env=far)
        self._server = await self._tried(self._read_name)
        expected = self._options.expect
        if expected and self._server != expected:
            found = self._server or "no name"
            raise RetrievalError(f"retriever {self._options.url}: expected {expected}, the server reports {found}")

    async def _disconnect(self) -> None:
        senders = list(self._senders)
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)
        _fail(self._waiting, RetrievalError("the HTTP retriever was closed"))
        self._waiting.clear()
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _ask(self, query: str, top_k: int, max_tokens: int | None) -> list[Passage]:
        asked = _Asked(query, top_k, max_tokens, asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        if len(self._senders) < self._options.connections:
            sender = asyncio.create_task(self._send_waiting())
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)
        return await asked.found

    async def _send_waiting(self) -> None:
        while self._waiting:
            batch = self._take_batch()
            try:
                results = await self._tried(lambda batch=batch: self._retrieve(batch))  # type: ignore[misc]
            except asyncio.CancelledError:
                _fail(batch, RetrievalError("the HTTP retriever was closed"))
                raise
            except RetrievalError as error:
                _fail(batch, error)
            except Exception as error:  # whatever it is, nobody may wait for ever
                _fail(batch, RetrievalError(f"retriever {self._options.url}: {type(error).__name__}: {error}"))
            else:
                for asked, passages in zip(batch, results, strict=True):
                    if not asked.found.done():
                        asked.found.set_result(passages)

    def _take_batch(self) -> list[_Asked]:
        """The oldest question and those behind it that ask for the same numbers."""
        first = self._waiting[0]
        same = [a for a in self._waiting if (a.top_k, a.max_tokens) == (first.top_k, first.max_tokens)]
        batch = same[: self._options.batch]
        taken = {id(asked) for asked in batch}
        self._waiting = [asked for asked in self._waiting if id(asked) not in taken]
        return batch

    async def _tried(self, once: Any) -> Any:
        """``once`` with retries. Raises RetrievalError with the last reason."""
        import httpx

        wait = self._options.wait
        for left in range(self._options.retries, -1, -1):
            try:
                return await once()
            except (httpx.TransportError, httpx.DecodingError) as error:
                reason, after = f"{type(error).__name__}: {error}".rstrip(": "), 0.0
            except BadAnswer as error:
                reason, after = str(error), 0.0
            except _Again as error:
                reason, after = str(error), error.after
            if left:
                await asyncio.sleep(min(max(wait, after), _LONGEST_WAIT))
                wait *= 2
        tries = self._options.retries + 1
        raise RetrievalError(f"retriever {self._options.url}: no answer after {tries} tries ({reason}); is it running?")

    async def _read_name(self) -> str:
        assert self._client is not None
        parts = urlsplit(self._options.url)
        path = parts.path.rstrip("/").rpartition("/")[0] + "/health"
        reply = await self._client.get(urlunsplit((parts.scheme, parts.netloc, path, "", "")))
        if reply.status_code in (404, 405):
            return ""  # another server of the family, which has no such page
        body = self._body(reply)
        if not isinstance(body, dict) or "protocol" not in body:
            return ""
        if body["protocol"] != PROTOCOL:
            raise RetrievalError(
                f"retriever {self._options.url}: the server speaks protocol {body['protocol']!r}, this whale speaks "
                f"{PROTOCOL}; run the same version of whale-learn on both sides"
            )
        return str(body.get("retriever", ""))

    async def _retrieve(self, batch: list[_Asked]) -> list[list[Passage]]:
        assert self._client is not None
        first = batch[0]
        request: dict[str, Any] = {
            "queries": [asked.query for asked in batch],
            "topk": first.top_k,
            "return_scores": True,
        }
        if first.max_tokens is not None:
            request["max_doc_tokens"] = first.max_tokens
        body = self._body(await self._client.post(self._options.url, json=request))
        if isinstance(body, dict) and self._server and body.get("retriever", self._server) != self._server:
            raise RetrievalError(
                f"retriever {self._options.url}: the server now serves {body['retriever']}, it was {self._server} at "
                "the start; passages of two corpora must not be mixed in one run"
            )
        results = read_results(body, len(batch))
        return [[self._cut(p, first.max_tokens) for p in passages[: first.top_k]] for passages in results]

    def _cut(self, passage: Passage, max_tokens: int | None) -> Passage:
        assert self._cutter is not None  # servers may not know max_doc_tokens, or count other tokens
        return Passage(passage.id, passage.title, self._cutter.cut(passage.text, max_tokens), passage.score)

    def _body(self, reply: httpx.Response) -> Any:
        code = reply.status_code
        if code in (408, 425, 429) or code >= 500:
            raise _Again(f"status {code}{_excerpt(reply.text)}", _seconds(reply.headers.get("retry-after", "")))
        if code >= 300:
            raise RetrievalError(f"retriever {self._options.url}: refused with status {code}{_excerpt(reply.text)}")
        try:
            return json.loads(reply.content)
        except ValueError as error:
            raise BadAnswer(f"the answer is not JSON{_excerpt(reply.text)}") from error


def _fail(questions: Sequence[_Asked], error: RetrievalError) -> None:
    for asked in questions:
        if not asked.found.done():
            asked.found.set_exception(error)


def _excerpt(text: str) -> str:
    return f": {' '.join(text.split())[:200]}" if text.strip() else ""


def _seconds(header: str) -> float:
    return float(header) if header.replace(".", "", 1).isdigit() else 0.0


class _Background:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="whale-http-retriever", daemon=True)
        self._thread.start()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``, awaited from the caller's loop; a cancelled caller cancels it."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()
