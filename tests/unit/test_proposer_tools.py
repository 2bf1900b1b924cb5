"""The built-in agent's file tools and its conversation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from whale.proposers.conversation import Conversation, estimate
from whale.proposers.file_tools import OBSERVATION_CHARACTERS, SCHEMAS, FileTools
from whale.proposers.scratch import Scratch


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    root = tmp_path / "scratch"
    (root / "outbox").mkdir(parents=True)
    (root / "harnesses" / "h0").mkdir(parents=True)
    (root / "harnesses" / "h0" / "harness.py").write_text("one\ntwo\nThree two\n")
    (root / "SKILL.md").write_text("rules")
    return Scratch(root)


@pytest.fixture
def tools(scratch: Scratch) -> FileTools:
    return FileTools(scratch, lambda source: "no class" if "class" not in source else None)


def use(tools: FileTools, name: str, **arguments: Any) -> str:
    return tools.call(name, json.dumps(arguments))


def test_reading(tools: FileTools) -> None:
    assert use(tools, "list").splitlines() == ["SKILL.md  5 bytes", "harnesses/", "outbox/"]
    assert use(tools, "list", path="outbox") == "empty"
    assert use(tools, "read", path="harnesses/h0/harness.py", start=2, lines=1) == "2\ttwo\n(lines 2 to 2 of 3)"
    found = use(tools, "grep", text="TWO", path="harnesses").splitlines()
    assert found == ["harnesses/h0/harness.py:2: two", "harnesses/h0/harness.py:3: Three two"]
    assert use(tools, "grep", text="(((") == "nothing found"


def test_writing_editing_comparing_checking(tools: FileTools, scratch: Scratch) -> None:
    assert (
        use(tools, "write", path="outbox/1/harness.py", content="class A\ntwo\n")
        == "wrote 12 bytes to outbox/1/harness.py"
    )
    assert use(tools, "edit", path="outbox/1/harness.py", old="two", new="2").startswith("wrote")
    assert (scratch.outbox / "1" / "harness.py").read_text() == "class A\n2\n"
    assert "occurs 0 times" in use(tools, "edit", path="outbox/1/harness.py", old="two", new="2")
    assert "+2" in use(tools, "diff", old="harnesses/h0/harness.py", new="outbox/1/harness.py").splitlines()
    assert use(tools, "check", path="outbox/1/harness.py").startswith("passes")
    assert use(tools, "check", path="SKILL.md") == "would be rejected: no class"
    assert tools.calls == 6


ESCAPES = ["../outside", "/etc/passwd", "outbox/../../outside", "link", "linked/outside", "outbox/link", "a\0b"]


@pytest.mark.parametrize("path", ESCAPES)
def test_nothing_outside_is_read_or_written(tools: FileTools, scratch: Scratch, tmp_path: Path, path: str) -> None:
    (tmp_path / "outside").write_text("secret two")
    (scratch.folder / "link").symlink_to(tmp_path / "outside")
    (scratch.outbox / "link").symlink_to(tmp_path / "outside")
    (scratch.folder / "linked").symlink_to(tmp_path)
    for name, arguments in (
        ("read", {}), ("list", {}), ("check", {}), ("write", {"content": "x"}), ("edit", {"old": "secret", "new": "x"}),
    ):  # fmt: skip
        answer = use(tools, name, path=path, **arguments)
        assert answer.startswith("Error:"), answer
        assert "secret" not in answer
    assert use(tools, "diff", old=path, new="SKILL.md").startswith("Error:")
    assert "secret" not in use(tools, "grep", text="secret")
    assert (tmp_path / "outside").read_text() == "secret two"


def test_only_the_outbox_is_written_to(tools: FileTools, scratch: Scratch) -> None:
    for path in ("SKILL.md", "harnesses/h0/harness.py", "new.py", "."):
        assert "outside the outbox" in use(tools, "write", path=path, content="x")
        assert "outside the outbox" in use(tools, "edit", path=path, old="one", new="x")
    assert use(tools, "write", path="outbox", content="x").startswith("Error:")
    assert "bytes; a file may have" in use(tools, "write", path="outbox/x", content="x" * 70_000)
    assert (scratch.folder / "SKILL.md").read_text() == "rules"


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("shell", "{}", "there is no tool 'shell'; the tools are list, read"),
        ("read", '{"path": "SKILL', "not valid JSON"),
        ("read", "[]", "must be a JSON object"),
        ("read", "{}", "missing: ['path']"),
        ("read", '{"path": "SKILL.md", "mode": "w"}', "unknown: ['mode']"),
        ("read", '{"path": 3}', "path must be of type string"),
        ("read", '{"path": "SKILL.md", "start": "1"}', "start must be of type integer"),
        ("read", '{"path": "none"}', "there is no file"),
    ],
)
def test_a_mistake_is_told_to_the_model(tools: FileTools, name: str, arguments: str, says: str) -> None:
    answer = tools.call(name, arguments)
    assert answer.startswith("Error:")
    assert says in answer


def test_long_results_are_cut_and_say_so(tools: FileTools, scratch: Scratch) -> None:
    (scratch.folder / "long").write_text("\n".join("x" * 3000 for _ in range(50)))
    answer = use(tools, "read", path="long")
    assert len(answer) < OBSERVATION_CHARACTERS + 100
    assert "ask for less" in answer
    assert "(3000 characters)" in answer


def test_every_tool_has_a_schema(tools: FileTools) -> None:
    assert all("there is no tool" not in tools.call(name, "{}") for name in SCHEMAS)


def test_a_long_conversation_keeps_the_task_and_whole_turns() -> None:
    talk = Conversation("system", "the task", context_tokens=1000)
    for number in range(40):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        talk.reply({"role": "assistant", "content": "", "tool_calls": [call]})
        talk.answer({"role": "tool", "tool_call_id": f"c{number}", "content": f"result {number} " + "x" * 400})
    messages = talk.messages()
    assert estimate(messages) <= 1000
    assert [message["content"] for message in messages[:2]] == ["system", "the task"]
    assert messages[-1]["content"].startswith("result 39 ")
    asked = [call["id"] for message in messages for call in message.get("tool_calls", [])]
    answered = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    assert asked == answered != []
    assert talk.messages() == messages
