"""What is read from the output of the command line programs, whole, cut or unknown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from whale.proposers.programs import json_objects, read_claude, read_codex, read_command
from whale.proposers.scratch import Scratch

RESULT = {
    "type": "result", "subtype": "success", "is_error": False, "duration_ms": 16049, "num_turns": 8,
    "result": "Done.", "session_id": "f18f49de", "total_cost_usd": 0.34642,
    "usage": {"input_tokens": 8, "cache_creation_input_tokens": 192, "cache_read_input_tokens": 17000,
              "output_tokens": 32, "server_tool_use": {"web_search_requests": 0}},
    "permission_denials": [{"tool_name": "Bash", "tool_input": {"command": "ls"}}], "uuid": "49ef",
}  # fmt: skip
CLAUDE = [
    {"type": "system", "subtype": "init", "session_id": "f18f49de", "tools": ["Read"]},
    {
        "type": "assistant",
        "message": {"content": [{"type": "text", "text": "Hm."}, {"type": "tool_use", "name": "Read"}]},
    },
    {"type": "user", "message": {"content": [{"type": "tool_result"}]}},
    {"type": "assistant", "message": {"content": [{"type": "tool_use", "name": "Write"}]}},
    {"type": "a kind of tomorrow", "message": 4},
    RESULT,
]
CODEX: list[dict[str, Any]] = [
    {"type": "thread.started", "thread_id": "0199a213"},
    {"type": "turn.started"},
    {"type": "item.started", "item": {"id": "1", "type": "command_execution", "status": "in_progress"}},
    {"type": "item.completed", "item": {"id": "1", "type": "command_execution", "exit_code": 0}},
    {"type": "error", "message": "Reconnecting... 1/5"},
    {"type": "item.completed", "item": {"id": "2", "type": "file_change", "changes": []}},
    {"type": "item.completed", "item": {"id": "3", "item_type": "assistant_message", "text": "Written."}},
    {"type": "turn.completed", "usage": {"input_tokens": 100, "cached_input_tokens": 90, "output_tokens": 7}},
    {"type": "turn.completed", "usage": {"input_tokens": 10, "output_tokens": 3}},
]


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    (tmp_path / "outbox").mkdir()
    return Scratch(tmp_path)


def log(tmp_path: Path, *messages: Any, cut: int = 0) -> Path:
    text = "\n".join(json.dumps(message) for message in messages)
    path = tmp_path / "log"
    path.write_text(text[: len(text) - cut])
    return path


def test_a_claude_session(scratch: Scratch, tmp_path: Path) -> None:
    said = read_claude(log(tmp_path, *CLAUDE), scratch)
    assert (said.calls, said.turns, said.tokens, said.money) == (2, 8, 17232, 0.34642)
    assert (said.session, said.limit) == ("f18f49de", False)
    assert said.detail == "success: Done.; refused: Bash"


@pytest.mark.parametrize("text", [json.dumps(RESULT), json.dumps(RESULT, indent=2), json.dumps(CLAUDE)])
def test_a_claude_result_alone_over_lines_or_in_a_list(scratch: Scratch, tmp_path: Path, text: str) -> None:
    (tmp_path / "log").write_text(text)
    said = read_claude(tmp_path / "log", scratch)
    assert (said.turns, said.money) == (8, 0.34642)


@pytest.mark.parametrize("subtype", ["error_max_turns", "error_max_budget_usd"])
def test_claude_says_when_it_met_a_limit(scratch: Scratch, tmp_path: Path, subtype: str) -> None:
    said = read_claude(log(tmp_path, {"type": "result", "subtype": subtype, "is_error": True}), scratch)
    assert said.limit
    assert (said.money, said.turns, said.tokens) == (None, None, None), "what is not said is unknown, not 0"


def test_cut_output_is_unknown_and_not_an_error(scratch: Scratch, tmp_path: Path) -> None:
    said = read_claude(log(tmp_path, *CLAUDE, cut=5), scratch)
    assert (said.calls, said.session) == (2, "f18f49de")
    assert (said.money, said.turns, said.detail) == (None, None, "no result was printed")


@pytest.mark.parametrize("value", [None, "0.3", True, -1, float("nan"), float("inf"), [0.3]])
def test_a_cost_that_is_no_amount_is_unknown(scratch: Scratch, tmp_path: Path, value: Any) -> None:
    assert read_claude(log(tmp_path, {**RESULT, "total_cost_usd": value}), scratch).money is None


def test_a_codex_session(scratch: Scratch, tmp_path: Path) -> None:
    said = read_codex(log(tmp_path, *CODEX), scratch)
    assert (said.session, said.calls, said.turns, said.tokens) == ("0199a213", 2, 2, 120)
    assert said.money is None
    failed = read_codex(log(tmp_path, {"type": "turn.failed", "error": {"message": "stream ended"}}), scratch)
    assert (failed.detail, failed.tokens, failed.turns) == ("stream ended", None, None)


@pytest.mark.parametrize("text", ["", "not json\n{", "[1, 2]", "null", "\xff", '{"type": 3, "item": [], "usage": 1}'])
def test_no_output_breaks_a_reader(scratch: Scratch, tmp_path: Path, text: str) -> None:
    (tmp_path / "log").write_bytes(text.encode("latin-1"))
    for read in (read_claude, read_codex, read_command):
        said = read(tmp_path / "log", scratch)
        assert (said.calls, said.money, said.tokens) == (0, None, None)
    assert read_codex(tmp_path / "none", scratch).session == ""


def test_a_command_may_leave_its_cost(scratch: Scratch, tmp_path: Path) -> None:
    path = log(tmp_path, "hello")
    (scratch.outbox / "cost.json").write_text('{"money": 0.25, "tokens": 7, "calls": 3, "turns": "many"}')
    said = read_command(path, scratch)
    assert (said.money, said.tokens, said.calls, said.turns, said.detail) == (0.25, 7, 3, None, '"hello"')


def test_lines_around_a_broken_one_are_read(tmp_path: Path) -> None:
    (tmp_path / "log").write_text('warning: something\n{"a": 1}\n{"b": \n{"c": 3}\n[{"d": 4}]\n')
    assert list(json_objects(tmp_path / "log")) == [{"a": 1}, {"c": 3}, {"d": 4}]
