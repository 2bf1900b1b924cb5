"""The built-in agent against a real server that speaks the chat completions protocol with tools on loopback."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from whale.archive import Archive, make_candidate
from whale.config import ProposerConfig, build_config
from whale.errors import ProposerError
from whale.launch import launch
from whale.proposers.session import AgenticProposer
from whale.proposers.workers import worker_of
from whale.testing.toy import H0

pytest.importorskip("openai")

KEY = "sk-test-4711"
USAGE = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}

Reply = dict[str, Any] | tuple[int, dict[str, str]] | bytes


def tool(name: str, *, number: int = 0, raw: str | None = None, **arguments: Any) -> dict[str, Any]:
    text = json.dumps(arguments) if raw is None else raw
    return {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": text}}


def reply(*calls: dict[str, Any], text: str | None = None, **fields: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, **({"tool_calls": list(calls)} if calls else {})}
    choice = {"index": 0, "finish_reason": "tool_calls" if calls else "stop", "message": message}
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [choice],
        "usage": USAGE,
        **fields,
    }


def write(number: int, source: str) -> dict[str, Any]:
    return reply(tool("write", path=f"outbox/{number}/harness.py", content=source))


MANIFEST = json.dumps([{"file": "1/harness.py", "axis": "a", "mechanism": "m", "hypothesis": "if"}])
DONE = reply(text="done")
WHOLE: list[Reply] = [
    write(1, H0 + "# new\n"),
    reply(tool("write", path="outbox/manifest.json", content=MANIFEST)),
    DONE,
]


class ChatServer:
    """Gives the scripted replies one after the other, the last again and again: an object, a status with headers, or
    bytes."""

    def __init__(self) -> None:
        self.script: list[Reply] = []
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.times: list[float] = []
        self.before: Callable[[], None] = lambda: None
        self.trickle = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        assert handler.path == "/v1/chat/completions"
        body = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
        self.bodies.append(body)
        self.times.append(time.monotonic())
        self.keys.add(handler.headers["authorization"])
        self.before()
        said = self.script[min(len(self.bodies), len(self.script)) - 1]
        status, headers = said if isinstance(said, tuple) else (200, {})
        data = said if isinstance(said, bytes) else json.dumps(said if isinstance(said, dict) else {}).encode()
        handler.send_response(status)
        for name, value in {"content-type": "application/json", "content-length": str(len(data)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        for _ in range(100 if self.trickle else 0):
            try:
                handler.wfile.write(b" ")
            except OSError:
                return
            time.sleep(0.1)
        handler.wfile.write(data)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    found = ChatServer()
    yield found
    found.stop()


def settings(server: ChatServer, **changes: Any) -> ProposerConfig:
    return ProposerConfig(**{"kind": "openai", "model": "m", "base_url": server.url, "seconds": 60, **changes})


@pytest.fixture
def propose(server: ChatServer, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """``propose(replies, **settings)``: what a session under that script returns."""
    (tmp_path / "run" / "candidates").mkdir(parents=True)
    archive = Archive(tmp_path / "run" / "candidates")
    archive.add(make_candidate(0, H0, hypothesis="the seed harness"))

    def run(script: list[Reply], slots: int = 1, **changes: Any) -> dict[str, Any]:
        server.script = script
        lines: list[str] = []
        outbox = tmp_path / f"outbox{time.time_ns()}"
        outbox.mkdir()
        worker = worker_of(
            settings(server, **changes), lambda source: None if "Harness" in source else "no", lines.append
        )
        proposer = AgenticProposer(worker, "the skill", say=lines.append)
        cost = dict(proposer.propose(archive, "h0", outbox, slots, 0))
        entries = json.loads((outbox / "manifest.json").read_text())
        sources = [(outbox / entry["file"]).read_text() for entry in entries]
        return {**cost, "entries": entries, "sources": sources, "lines": lines, "folder": outbox}

    return run


Propose = Callable[..., dict[str, Any]]


def results(server: ChatServer) -> list[str]:
    """Tool results that the last request sent back."""
    return [message["content"] for message in server.bodies[-1]["messages"] if message["role"] == "tool"]


def test_a_session_reads_writes_checks_and_ends(server: ChatServer, propose: Propose) -> None:
    script = [
        reply(tool("list", number=1), tool("read", number=2, path="harnesses/h0/harness.py"), text="First I look."),
        write(1, H0 + "# new\n"),
        reply(tool("check", path="outbox/1/harness.py")),
        reply(tool("write", path="outbox/manifest.json", content=MANIFEST)),
        DONE,
    ]
    found = propose(script, effort="high")
    assert (found["outcome"], found["written"], found["calls"], found["turns"]) == ("complete", 1, 5, 5)
    assert found["sources"] == [H0 + "# new\n"]
    assert found["entries"][0]["axis"] == "a"
    assert (found["tokens"], found["money"], found["proposer_isolation"]) == (5500, None, "file tools")
    body = server.bodies[-1]
    assert (body["model"], body["reasoning_effort"]) == ("m", "high")
    assert {t["function"]["name"] for t in body["tools"]} == {"list", "read", "grep", "write", "edit", "diff", "check"}
    assert [m["role"] for m in body["messages"][:5]] == ["system", "user", "assistant", "tool", "tool"]
    assert body["messages"][1]["content"].startswith("You improve the harness")
    assert [m.get("tool_call_id") for m in body["messages"][3:5]] == ["c1", "c2"]
    listing, source, *_ = results(server)
    assert "harnesses/" in listing.splitlines()
    assert "class Harness" in source
    assert server.keys == {f"Bearer {KEY}"}
    session = (found["folder"] / "session.jsonl").read_text()
    assert len(session.splitlines()) == 1 + 5 + 5
    assert KEY not in session


def test_mistakes_and_escapes_are_answered_and_do_nothing(server: ChatServer, propose: Propose, tmp_path: Path) -> None:
    calls = [
        tool("shell", number=0, command="ls"),
        tool("read", number=1, raw='{"path": "SKI'),
        tool("read", number=2, path="../../../../../../etc/passwd"),
        tool("write", number=3, path="harnesses/h0/harness.py", content="x"),
        tool("write", number=4, path="/tmp/whale-escape", content="x"),
        {"id": None, "type": "function", "function": None},
    ]
    found = propose([reply(*calls), *WHOLE])
    assert found["outcome"] == "complete"
    answers = results(server)[:6]
    assert all(answer.startswith("Error:") for answer in answers)
    assert "root:" not in "".join(answers)
    assert not Path("/tmp/whale-escape").exists()
    assert found["events"] == []


@pytest.mark.parametrize(
    "fault",
    [
        (429, {"retry-after-ms": "10"}),
        (503, {"retry-after": "0.01"}),
        (200, {"content-length": "500"}),
        b'{"choices": [{"mess',
        b"",
        b"[]",
        {"choices": []},
        {"choices": None},
    ],
)
def test_what_may_pass_is_tried_again(server: ChatServer, propose: Propose, fault: Reply, monkeypatch: Any) -> None:
    monkeypatch.setattr("whale.proposers.endpoint._LONGEST_PAUSE", 0.01)
    found = propose([fault, *WHOLE])
    assert (found["outcome"], found["turns"]) == ("complete", 3)
    assert len(server.bodies) == 4


def test_a_pause_the_endpoint_asks_for_is_kept(server: ChatServer, propose: Propose) -> None:
    assert propose([(429, {"retry-after": "0.5"}), *WHOLE])["outcome"] == "complete"
    assert server.times[1] - server.times[0] >= 0.5


def test_a_pause_beyond_the_session_ends_it_at_once(server: ChatServer, propose: Propose) -> None:
    found = propose([write(1, H0), (429, {"retry-after": "3600"})], seconds=30)
    assert (found["outcome"], found["written"]) == ("timeout", 1)
    assert found["seconds"] < 5
    assert "status 429" in found["detail"]


def test_an_outage_keeps_what_was_written(
    server: ChatServer, propose: Propose, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whale.proposers.endpoint._LONGEST_PAUSE", 0.01)
    found = propose([write(1, H0), (500, {})], slots=2)
    assert (found["outcome"], found["written"], found["tokens"]) == ("error", 1, 1100)
    assert "status 500, 6 times" in found["detail"]
    found = propose([(400, {})])
    assert (found["outcome"], found["tokens"], found["money"]) == ("no_output", None, None)
    assert "status 400" in found["detail"]


def test_a_refused_key_is_an_error_with_the_way_out(propose: Propose) -> None:
    with pytest.raises(ProposerError, match=r"refused the key with status 401.*variable OPENAI_API_KEY"):
        propose([(401, {})])


LOOP = [reply(tool("list"))]


@pytest.mark.parametrize(
    ("limits", "calls", "detail"),
    [
        ({"turns": 4}, 4, "limit on turns"),
        ({"tokens": 3000}, 3, "limit on tokens"),
        # 1,000 tokens in and 100 out cost 0.40: a third call would pass the limit of a dollar.
        ({"money": 1.0, "price_in": 300, "price_out": 1000}, 2, "limit on money"),
    ],
)
def test_endless_sessions_meet_a_limit(
    server: ChatServer, propose: Propose, limits: dict[str, Any], calls: int, detail: str
) -> None:
    found = propose(LOOP, **limits)
    assert len(server.bodies) == found["turns"] == calls
    assert detail in found["detail"]
    assert found["outcome"] == "no_output"
    assert found["money"] == (pytest.approx(0.8) if "money" in limits else None)


def test_seconds_end_an_endless_session_and_it_shows_signs_of_life(server: ChatServer, propose: Propose) -> None:
    server.before = lambda: time.sleep(0.1)
    began = time.monotonic()
    found = propose([write(1, H0), *LOOP], seconds=1, heartbeat=0.3, slots=2)
    assert time.monotonic() - began < 3
    assert (found["outcome"], found["written"]) == ("timeout", 1)
    assert any("tool calls, 1 files so far" in line for line in found["lines"])


def test_a_server_that_does_not_answer_is_a_timeout(server: ChatServer, propose: Propose) -> None:
    server.before = lambda: time.sleep(3)
    found = propose(LOOP, seconds=0.5)
    assert found["outcome"] == "timeout"
    assert found["seconds"] < 2.5


def test_a_reply_that_trickles_without_end_is_a_timeout(server: ChatServer, propose: Propose) -> None:
    server.trickle = True
    found = propose(LOOP, seconds=1)
    assert found["outcome"] == "timeout"
    assert found["seconds"] < 3


def test_costs_are_the_endpoint_s_where_it_reports_them(propose: Propose) -> None:
    script: list[Reply] = [{**said, "usage": {**USAGE, "cost": 0.25}} for said in WHOLE if isinstance(said, dict)]
    assert propose(script, price_in=1, price_out=1)["money"] == 0.75


def test_an_endpoint_that_counts_nothing_is_unknown_and_still_limited(server: ChatServer, propose: Propose) -> None:
    silent = reply(tool("list"), usage=None)
    found = propose([silent], tokens=4_000, money=1.0)
    assert (found["tokens"], found["money"]) == (None, None)
    assert "limit on tokens" in found["detail"]
    assert len([line for line in found["lines"] if "reports no cost" in line]) == 1


def test_who_stops_without_files_is_reminded_twice(server: ChatServer, propose: Propose) -> None:
    assert propose([DONE, *WHOLE])["outcome"] == "complete"
    assert "only files count" in server.bodies[1]["messages"][-1]["content"]
    server.bodies.clear()
    found = propose([DONE])
    assert (found["outcome"], len(server.bodies)) == ("no_output", 3)


def test_a_long_session_is_cut_without_losing_the_task(server: ChatServer, propose: Propose) -> None:
    long = reply(tool("write", path="outbox/notes", content="x " * 5000))
    propose([long] * 12 + WHOLE, context_tokens=8000)
    last = server.bodies[-1]["messages"]
    assert len(json.dumps(last)) < 12 * 10_000
    assert last[1]["content"].startswith("You improve the harness")
    asked = [call["id"] for message in last for call in message.get("tool_calls", [])]
    assert asked == [message["tool_call_id"] for message in last if message["role"] == "tool"] != []


def test_a_flood_of_calls_in_one_reply_is_bounded(server: ChatServer, propose: Propose) -> None:
    found = propose([reply(*(tool("list", number=number) for number in range(50))), *WHOLE])
    assert found["calls"] == 32 + 2
    assert "at most 32 calls" in results(server)[40]


def test_keys_come_from_the_named_variable(
    server: ChatServer, propose: Propose, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-mine")
    propose(WHOLE, key_variable="MY_KEY")
    assert server.keys == {"Bearer sk-mine"}
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(ProposerError, match=r"key in the environment variable OPENAI_API_KEY; set it"):
        worker_of(settings(server, base_url="")).check()
    assert worker_of(settings(server)).check() == "", "a server of one's own may need no key"
    assert server.bodies[3:] == [], "the check sends nothing"


def test_a_run_with_the_agent_checks_candidates_as_the_search_does(server: ChatServer, tmp_path: Path) -> None:
    better = "import re\n\n" + H0.replace("return reply.text", 'return (re.findall(r"\\d+", reply.text) or [""])[-1]')
    check = tool("check", path="outbox/1/harness.py")
    crash = write(1, H0.replace("return reply.text", "raise ValueError('on purpose')"))
    forbidden = write(1, "import socket\n" + H0)
    server.script = [crash, reply(check), forbidden, reply(check), write(1, better), reply(check), *WHOLE[1:]]
    config = build_config({
        "run_dir": str(tmp_path / "run"), "domain": {"name": "toy"}, "engine": {"kind": "fake"},
        "trainer": {"kind": "fake", "lr": 1.0}, "weights": {"tasks_per_step": 4, "samples": 4},
        "search": {"tasks": 8, "candidates": 1, "proposer": settings(server).model_dump()},
        "schedule": {"total_steps": 2, "steps": 1, "rounds": 1}, "eval": {"k": 1, "tasks": 2},
        "store": {"min_free_gb": 0.0},
    })  # fmt: skip
    state = launch(config)
    assert (state.finished, state.harness) == (True, "h1")
    _, first, _, second, _, third, _ = results(server)
    assert first.startswith("would be rejected: harness_error")
    assert "on purpose" in first
    assert "import of socket is not allowed" in second
    assert third == "passes: it can be evaluated"
    everything = json.dumps(server.bodies[-1]["messages"])
    assert "one falsifiable hypothesis" in everything
    for kept in (tmp_path / "run").rglob("*"):
        assert not kept.is_file() or KEY.encode() not in kept.read_bytes()
