"""Retrieval over HTTP: whale's own server as a process, and a scripted server with every kind of fault."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from whale.domains.search_qa.retrieval import Passage, RetrievalError, open_retriever
from whale.errors import ConfigError

httpx = pytest.importorskip("httpx")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("bm25s")

ROWS = [
    {"id": "a", "title": "Blue whale", "text": "The blue whale is the largest animal known to have lived."},
    {"id": "b", "title": "Krill", "text": "Krill are small crustaceans eaten by whales."},
    {"id": "c", "title": "", "text": "A passage without a title about lighthouses."},
]


# --- whale's server ------------------------------------------------------------------------------------------

SERVE = "import typer, whale.cli_retriever as cli; typer.run(cli.serve_retriever)"


class Served:
    """``whale serve-retriever`` in a process of its own on a free port of the loopback."""

    def __init__(self, corpus: Path, cache: Path, port: int = 0) -> None:
        command = [sys.executable, "-c", SERVE, "--corpus", str(corpus), "--cache", str(cache), "--port", str(port)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.lines: list[str] = []
        for line in self.process.stderr:
            self.lines.append(line)
            if match := re.search(r"serving (\S+) on (http://127\.0\.0\.1:(\d+))/retrieve", line):
                self.name, self.url, self.port = match[1], match[2], int(match[3])
                return
        raise AssertionError(f"the server did not start: {self.lines}")

    def stop(self, how: signal.Signals = signal.SIGINT) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(30)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


def write_corpus(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    server = Served(write_corpus(folder / "corpus.jsonl", ROWS), folder / "cache")
    yield server
    server.stop()


def client(url: str, **options: Any) -> Any:
    given = {"kind": "http", "url": url, "health_query": "whale", "wait": 0.01, "timeout": 20.0, **options}
    return open_retriever(given, None)


def using(retriever: Any, work: Callable[[Any], Any]) -> Any:
    async def run() -> Any:
        await retriever.start()
        try:
            return await work(retriever)
        finally:
            await retriever.close()

    return asyncio.run(run())


@pytest.mark.slow
def test_the_client_finds_what_the_server_has(served: Served) -> None:
    async def work(retriever: Any) -> None:
        assert retriever.name == f"http-1-{served.name}"
        (best, *_) = await retriever.search("the largest animal", 2, None)
        assert (best.id, best.title, best.text) == ("a", "Blue whale", ROWS[0]["text"])
        assert best.score > 0
        (untitled,) = await retriever.search("lighthouses", 2, None)
        assert (untitled.title, untitled.text) == ("", ROWS[2]["text"])
        assert (await retriever.search("largest", 1, 3))[0].text == "The"
        assert await retriever.search("unheard of", 2, None) == []
        assert await retriever.search(" ", 2, None) == []
        queries = ["largest animal", "krill", "lighthouses", "nothing here"] * 50
        found = await asyncio.gather(*(retriever.search(query, 1, None) for query in queries))
        assert [[p.id for p in passages] for passages in found] == [["a"], ["b"], ["c"], []] * 50

    using(client(served.url, expect=served.name), work)


@pytest.mark.slow
def test_searches_from_several_event_loops(served: Served) -> None:
    retriever = client(served.url)
    asyncio.run(retriever.start())
    found = [asyncio.run(retriever.search("krill", 1, None))[0].id for _ in range(3)]
    asyncio.run(retriever.close())
    asyncio.run(retriever.close())
    assert found == ["b"] * 3
    with pytest.raises(RetrievalError, match="start"):
        asyncio.run(retriever.search("krill", 1, None))


@pytest.mark.slow
def test_the_format_of_requests_and_answers(served: Served) -> None:
    with httpx.Client(base_url=served.url, trust_env=False) as http:
        health = http.get("/health").json()
        assert health == {"status": "ok", "protocol": 1, "retriever": served.name}
        request = {"queries": ["krill", "zzzz"], "topk": 1, "return_scores": True, "max_doc_tokens": 4}
        answer = http.post("/retrieve", json=request).json()
        (entry,), nothing = answer["result"]
        assert nothing == []
        assert entry["score"] > 0
        assert entry["document"] == {"id": "b", "title": "Krill", "text": "Krill are", "contents": '"Krill"\nKrill are'}
        bare = http.post("/retrieve", json={"queries": ["krill"], "topk": None}).json()["result"][0][0]
        assert (bare["id"], bare["text"]) == ("b", ROWS[1]["text"])
        for body, message in (
            (b"{", "not JSON"),
            (b"[]", "an object is expected"),
            (b"{}", "queries: a list of texts"),
            (b'{"queries": "krill"}', "queries: a list of texts"),
            (b'{"queries": ["krill"], "topk": 0}', "topk: a whole number from 1 to 1000 is expected, found 0"),
            (b'{"queries": ["krill"], "topk": true}', "topk"),
            (b'{"queries": ["krill"], "topk": 1001}', "topk"),
            (b'{"queries": ["krill"], "max_doc_tokens": 0.5}', "max_doc_tokens: a whole number from 1"),
            (b'{"queries": ["krill"], "return_scores": 1}', "return_scores"),
            (b'{"queries": ["krill"], "top_k": 1}', "unknown field 'top_k'"),
            (json.dumps({"queries": ["q"] * 1025}).encode(), "at most 1024"),
            (b" " * 4_000_001, "larger than 4,000,000 bytes"),
        ):
            reply = http.post("/retrieve", content=body)
            assert reply.status_code == 400
            assert message in reply.json()["error"]
        assert http.get("/retrieve").status_code == 405
        assert http.get("/other").status_code == 404


@pytest.mark.slow
def test_outage_recovery_and_another_corpus(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl", ROWS)
    server = Served(corpus, tmp_path / "cache")
    servers = [server]

    async def work(retriever: Any) -> None:
        assert (await retriever.search("krill", 1, None))[0].id == "b"
        server.stop(signal.SIGKILL)
        with pytest.raises(RetrievalError, match=r"no answer after 3 tries .*is it running"):
            await retriever.search("krill", 1, None)
        servers.append(await asyncio.to_thread(Served, corpus, tmp_path / "cache", server.port))
        assert (await retriever.search("krill", 1, None))[0].id == "b"
        servers[-1].stop()
        other = write_corpus(tmp_path / "other.jsonl", [*ROWS, {"id": "d", "text": "krill"}])
        servers.append(await asyncio.to_thread(Served, other, tmp_path / "cache", server.port))
        with pytest.raises(RetrievalError, match="two corpora must not be mixed"):
            await retriever.search("krill", 1, None)

    try:
        using(client(server.url, retries=2), work)
    finally:
        for each in servers:
            each.stop()
    with pytest.raises(RetrievalError, match="is it running"):
        asyncio.run(client(server.url, retries=0).start())


@pytest.mark.slow
def test_addresses_that_cannot_be_taken(served: Served, tmp_path: Path) -> None:
    from whale.domains.search_qa.retrieval.server import serve

    corpus = write_corpus(tmp_path / "corpus.jsonl", ROWS)
    retriever = open_retriever({"kind": "bm25", "corpus": [str(corpus)], "cache": str(tmp_path)}, None)
    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{served.port}.*--port"):
        serve(retriever, "127.0.0.1", served.port, lambda line: None)


# --- a scripted server ---------------------------------------------------------------------------------------

Answer = Callable[[dict[str, Any]], bytes]


def reply(status: str, body: bytes, headers: str = "", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\nConnection: close\r\n{headers}\r\n".encode() + body


def results(request: dict[str, Any], **changes: Any) -> dict[str, Any]:
    document = {"id": "1", "title": "T", "text": "whale text", **changes.pop("document", {})}
    return {"result": [[{"document": document, "score": 1.5, **changes}] for _ in request["queries"]]}


def good(request: dict[str, Any]) -> bytes:
    return reply("200 OK", json.dumps(results(request)).encode())


def with_body(body: Any) -> Answer:
    return lambda request: reply("200 OK", body if isinstance(body, bytes) else json.dumps(body).encode())


class Scripted:
    """Answers POSTs by the script, one entry each, then the last for ever; GETs with 404 or ``health``."""

    def __init__(self, *script: Answer, health: bytes = b"") -> None:
        self.script = list(script)
        self.health = health
        self.requests: list[dict[str, Any]] = []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}/search"
        self.lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as reader:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                line = reader.readline()
                if not line:
                    return
                head += line
            if head.startswith(b"GET"):
                connection.sendall(self.health or reply("404 Not Found", b""))
                return
            match = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            assert match
            request = json.loads(reader.read(int(match[1])))
            with self.lock:
                self.requests.append(request)
                answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
            connection.sendall(answer(request))

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def scripted() -> Iterator[Callable[..., Scripted]]:
    made: list[Scripted] = []

    def make(*script: Answer, health: bytes = b"") -> Scripted:
        made.append(Scripted(*script, health=health))
        return made[-1]

    yield make
    for server in made:
        server.close()


def one_search(server: Scripted, **options: Any) -> list[Passage]:
    async def search(retriever: Any) -> list[Passage]:
        found: list[Passage] = await retriever.search("q", 2, None)
        return found

    return using(client(server.url, **options), search)


def waits_for(gate: threading.Event) -> Answer:
    """Answers nothing, when the gate opens."""

    def answer(request: dict[str, Any]) -> bytes:
        gate.wait(20)
        return b""

    return answer


FAULTS: dict[str, Answer] = {
    "status 500": lambda request: reply("500 Oops", b"traceback"),
    "status 503": lambda request: reply("503 Busy", b"", "Retry-After: 0\r\n"),
    "status 429": lambda request: reply("429 Slow Down", b"", "Retry-After: soon\r\n"),
    "RemoteProtocolError": lambda request: b"",  # closed without a word
    "peer closed": lambda request: reply("200 OK", json.dumps(results(request)).encode()[:30], length=300),
    "not JSON": with_body(b'{"result": [[{"docu'),
    "no list of results": with_body({"error": "nothing"}),
    "0 results for 1 queries": with_body({"result": []}),
    "2 results for 1 queries": with_body({"result": [[], []]}),
    "a result is dict": with_body({"result": [{}]}),
    "without document and score": with_body({"result": [[{"document": {"text": "x"}}]]}),
    "the score nan": with_body(b'{"result": [[{"document": {"text": "x"}, "score": NaN}]]}'),
    "a document without text": with_body({"result": [[{"document": {"id": "1"}, "score": 1}]]}),
}


@pytest.mark.parametrize("reason", FAULTS)
def test_a_fault_is_tried_again_and_at_last_an_error(scripted: Callable[..., Scripted], reason: str) -> None:
    passing = scripted(good, FAULTS[reason], FAULTS[reason], good)
    assert one_search(passing, retries=2) == [Passage("1", "T", "whale text", 1.5)]
    assert len(passing.requests) == 4
    lasting = scripted(good, FAULTS[reason])
    with pytest.raises(RetrievalError, match=f"no answer after 3 tries .*{reason}"):
        one_search(lasting, retries=2)
    assert len(lasting.requests) == 4


def test_a_refusal_is_not_tried_again(scripted: Callable[..., Scripted]) -> None:
    server = scripted(good, lambda request: reply("400 Bad", b'{"error": "topk is wrong"}'))
    with pytest.raises(RetrievalError, match=r"refused with status 400.*topk is wrong"):
        one_search(server)
    assert len(server.requests) == 2


def test_a_server_that_never_answers(scripted: Callable[..., Scripted]) -> None:
    gate = threading.Event()
    server = scripted(good, waits_for(gate))
    try:
        with pytest.raises(RetrievalError, match=r"no answer after 2 tries .*Timeout"):
            one_search(server, timeout=0.1, retries=1)
    finally:
        gate.set()


def test_servers_of_the_family(scripted: Callable[..., Scripted]) -> None:
    """The layout with ``contents``, no health page, numbers as ids, more passages than asked for."""
    entry = {"document": {"id": 7, "contents": '"Whale"\nBlue.\nBig.'}, "score": 2}
    server = scripted(with_body({"result": [[entry] * 5]}))
    assert one_search(server) == [Passage("7", "Whale", "Blue.\nBig.", 2.0)] * 2
    assert client(server.url).name == f"http-1-{server.url}"
    assert server.requests[-1] == {"queries": ["q"], "topk": 2, "return_scores": True}


def test_passages_are_cut_here_too(scripted: Callable[..., Scripted]) -> None:
    server = scripted(
        lambda request: reply("200 OK", json.dumps(results(request, document={"text": "a b c d"})).encode())
    )

    async def search(retriever: Any) -> None:
        assert (await retriever.search("q", 1, 4))[0].text == "a b"
        assert server.requests[-1]["max_doc_tokens"] == 4

    using(client(server.url), search)


def test_versions_and_names_that_do_not_fit(scripted: Callable[..., Scripted]) -> None:
    def health(**page: Any) -> bytes:
        return reply("200 OK", json.dumps(page).encode())

    newer = scripted(good, health=health(status="ok", protocol=2, retriever="bm25-9"))
    with pytest.raises(RetrievalError, match="speaks protocol 2, this whale speaks 1"):
        one_search(newer)
    assert newer.requests == []
    other = scripted(good, health=health(status="ok", protocol=1, retriever="bm25-1-x-y"))
    with pytest.raises(RetrievalError, match="expected bm25-1-x-z, the server reports bm25-1-x-y"):
        one_search(other, expect="bm25-1-x-z")
    with pytest.raises(RetrievalError, match="expected bm25-1-x-z, the server reports no name"):
        one_search(scripted(good), expect="bm25-1-x-z")
    assert one_search(other, expect="bm25-1-x-y")


def test_a_server_that_finds_nothing_is_not_healthy(scripted: Callable[..., Scripted]) -> None:
    server = scripted(with_body({"result": [[]]}))
    with pytest.raises(RetrievalError, match="a search for 'whale' finds nothing; set health_query"):
        one_search(server)


def test_waiting_queries_share_requests(scripted: Callable[..., Scripted]) -> None:
    gate = threading.Event()
    first = threading.Event()

    def slow(request: dict[str, Any]) -> bytes:
        first.set()
        gate.wait(20)
        return good(request)

    def named(request: dict[str, Any]) -> bytes:
        entries = [[{"document": {"text": query}, "score": 1}] for query in request["queries"]]
        return reply("200 OK", json.dumps({"result": entries}).encode())

    server = scripted(good, slow, named)

    async def work(retriever: Any) -> None:
        blocked = asyncio.create_task(retriever.search("first", 1, None))
        await asyncio.to_thread(first.wait, 20)
        tasks = [asyncio.create_task(retriever.search(f"q{i}", 1 + i % 2, None)) for i in range(20)]
        while len(retriever._waiting) < len(tasks):
            await asyncio.sleep(0.01)
        gate.set()
        found = await asyncio.gather(*tasks)
        assert [passages[0].text for passages in found] == [f"q{i}" for i in range(20)]
        await blocked

    using(client(server.url, connections=1, batch=8), work)
    sizes = [(len(request["queries"]), request["topk"]) for request in server.requests[2:]]
    assert sorted(sizes) == [(2, 1), (2, 2), (8, 1), (8, 2)]


def test_closing_answers_those_who_wait(scripted: Callable[..., Scripted]) -> None:
    gate = threading.Event()
    server = scripted(good, waits_for(gate))

    async def run() -> None:
        retriever = client(server.url, connections=1, batch=1)
        await retriever.start()
        tasks = [asyncio.create_task(retriever.search(f"q{i}", 1, None)) for i in range(3)]
        while len(server.requests) < 2 or len(retriever._waiting) < 2:
            await asyncio.sleep(0.01)
        await retriever.close()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(outcome, RetrievalError)
            assert "closed" in str(outcome)

    try:
        asyncio.run(run())
    finally:
        gate.set()
