"""What a proposer sees, what is taken from it, and what is noticed."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from whale.archive import Archive, make_candidate
from whale.proposers.brief import Round, task_text
from whale.proposers.outbox import collect
from whale.proposers.scratch import Guard, Keeper, make_scratch
from whale.records import rollout_to_json
from whale.testing.toy import H0
from whale.types import Candidate, ModelCall, Outcome, Rollout, Score, ToolCallRequest, ToolUse

OTHER = H0.replace("reply.text", "reply.text.strip()")


def call(messages: list[dict[str, str]], text: str) -> ModelCall:
    made = ToolCallRequest("search", {"query": "q"}, "c1")
    return ModelCall(
        context=(90001, 90002), sampled=(90003,), logprobs=(-0.5,), finish="stop", seed=77, version=0,
        messages=tuple(messages), text=text, reasoning="a thought", tool_calls=(made,),
    )  # fmt: skip


def rollout(candidate: Candidate, task: str, reward: float | None, outcome: Outcome = Outcome.SCORED) -> Rollout:
    first = {"role": "user", "content": f"question {task}"}
    second = [first, {"role": "assistant", "content": "looking"}, {"role": "tool", "content": "found"}]
    return Rollout(
        task, 0, 5, candidate.hash, 0, outcome, reward, answer="an answer", reason="wrong" if reward == 0 else "right",
        calls=(call([first], "looking"), call(second, "final")),
        tools=(ToolUse("search", {"query": "q"}, "found", 0.1, 1),),
    )  # fmt: skip


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """h0 with rollouts of two visible tasks and a hidden one, h1 that was rejected, h2 not evaluated yet."""
    run = tmp_path / "run"
    (run / "rollouts").mkdir(parents=True)
    (run / "candidates").mkdir()
    made = Archive(run / "candidates")
    h0 = make_candidate(0, H0, hypothesis="the seed harness")
    h1 = make_candidate(1, "class Harness", parent="h0", hypothesis="if parsed, fewer failures", axis="parsing",
                        mechanism="last number", phase=0, round=1)  # fmt: skip
    for candidate in (h0, h1, make_candidate(2, OTHER, parent="h0", phase=0, round=2)):
        made.add(candidate)
    made.record(Score("h0", 0, 0.5, 2, 2, 2.0, 3.0, {"wrong": 1}), "h0", 0)
    made.reject("h1", "check", "line 1: expected ':'")
    rows = [rollout(h0, "a", 1.0), rollout(h0, "b", 0.0), rollout(h0, "hidden", 0.0)]
    rows.append(replace(rollout(h0, "c", 0.0), harness="another"))
    lines = [json.dumps(rollout_to_json(row)) + "\n" for row in rows]
    (run / "rollouts" / "s000-000-00-abc.jsonl").write_text("".join(lines))
    (run / "rollouts" / "e-test.jsonl").write_text(json.dumps(rollout_to_json(rollout(h0, "test-task", 1.0))) + "\n")
    (run / "candidates" / "h0" / "blocks.json").write_text(json.dumps(["s000-000-00-abc", "gone"]))
    return made


def test_a_scratch_copy_holds_code_scores_traces_and_every_idea(archive: Archive, tmp_path: Path) -> None:
    scratch = make_scratch(tmp_path / "scratch", archive, "the skill", "the task", visible=["a", "b", "c"])
    files = {str(path.relative_to(scratch.folder)) for path in scratch.folder.rglob("*") if path.is_file()}
    assert files == {
        "SKILL.md", "TASK.md", "IDEAS.md",
        *(f"harnesses/h0/{name}" for name in ("harness.py", "meta.json", "score.json", "rollouts.jsonl")),
        *(f"harnesses/h1/{name}" for name in ("harness.py", "meta.json", "rejected.json")),
        *(f"harnesses/h2/{name}" for name in ("harness.py", "meta.json")),
    }  # fmt: skip
    assert list(scratch.outbox.iterdir()) == []
    ideas = (scratch.folder / "IDEAS.md").read_text()
    assert "success 0.500 on 2 of 2 rollouts" in ideas
    assert "if parsed, fewer failures" in ideas
    assert "rejected at check: line 1: expected ':'" in ideas
    assert ideas.count("not evaluated") == 1


def test_traces_show_the_conversation_and_the_verdict_and_nothing_else(archive: Archive, tmp_path: Path) -> None:
    scratch = make_scratch(tmp_path / "scratch", archive, "s", "t", visible=["a", "b", "c"])
    lines = (scratch.folder / "harnesses" / "h0" / "rollouts.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["task_id"], row["reward"], row["reason"]) for row in rows] == [
        ("b", 0.0, "wrong"),
        ("a", 1.0, "right"),
    ]
    first, second = rows[0]["calls"]
    assert first["messages"] == [{"role": "user", "content": "question b"}]
    assert second["repeats"] == 1
    assert [message["role"] for message in second["messages"]] == ["assistant", "tool"]
    assert second["reasoning"] == "a thought"
    assert rows[0]["tools"][0]["result"] == "found"
    everything = "\n".join(path.read_text() for path in scratch.folder.rglob("*") if path.is_file())
    for hidden in ("hidden", "test-task", "90001", "logprobs", "reference"):
        assert hidden not in everything


def test_the_task_text_names_parent_failures_and_rules() -> None:
    text = task_text(Round("h4", 3, {"right": 9, "wrong": 2, "no_box": 5}, 2400))
    assert "Write 3 candidates that may do better than the incumbent, h4. You have 40 minutes." in text
    assert "no_box 5, wrong 2." in text
    assert "right 9" not in text
    for rule in ("falsifiable hypothesis", "different axes", "Run no benchmarks", "policy makes the decision",
                 "tried and rejected", "outbox/manifest.json"):  # fmt: skip
        assert rule in text
    assert "No failures of h0 are recorded" in task_text(Round("h0", 1, {}, 60))


def put(outbox: Path, name: str, text: str) -> None:
    (outbox / name).parent.mkdir(parents=True, exist_ok=True)
    (outbox / name).write_text(text)


@pytest.fixture
def boxes(tmp_path: Path) -> tuple[Path, Path]:
    """What the proposer wrote into, and what the search reads."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    return source, target


def read(target: Path) -> list[dict[str, str]]:
    entries: list[dict[str, str]] = json.loads((target / "manifest.json").read_text())
    return [{**entry, "source": (target / entry["file"]).read_text()} for entry in entries]


def test_a_whole_outbox_is_taken_in_the_order_of_its_manifest(boxes: tuple[Path, Path]) -> None:
    source, target = boxes
    put(source, "b/harness.py", "B")
    put(source, "a/harness.py", "A")
    manifest = [
        {"file": "b/harness.py", "axis": "x", "mechanism": "m", "hypothesis": "if", "extra": [1]},
        {"file": "outbox/a/harness.py", "axis": 5, "spec": {"prompt": "steps"}},
    ]
    put(source, "manifest.json", json.dumps({"candidates": manifest}))
    assert not collect(source, target, 3).rebuilt
    found = read(target)
    assert [entry["source"] for entry in found] == ["B", "A"]
    assert found[0] == {"file": "0/harness.py", "axis": "x", "mechanism": "m", "hypothesis": "if", "spec": {},
                        "source": "B"}  # fmt: skip
    assert (found[1]["axis"], found[1]["hypothesis"], found[1]["spec"]) == ("5", "", {})


@pytest.mark.parametrize("manifest", [None, "", "[{", "3", '[{"file": 4}, "x"]', '{"candidates": 1}', "[" * 100_000])
def test_a_missing_or_broken_manifest_is_rebuilt_from_the_files(boxes: tuple[Path, Path], manifest: str | None) -> None:
    source, target = boxes
    put(source, "1/harness.py", H0)
    put(source, "2/harness.py", H0[: len(H0) // 2])  # half written: kept, the syntax check says why it is rejected
    put(source, "3/harness.py", " \n")
    put(source, "notes.txt", "thoughts")
    if manifest is not None:
        put(source, "manifest.json", manifest)
    collected = collect(source, target, 3)
    assert collected.rebuilt
    assert [entry["source"] for entry in read(target)] == [H0, H0[: len(H0) // 2]]


def test_no_more_than_the_slots_are_taken(boxes: tuple[Path, Path]) -> None:
    source, target = boxes
    for number in range(5):
        put(source, f"{number}/harness.py", str(number))
    put(source, "manifest.json", json.dumps([{"file": "4/harness.py"}, {"file": "4/harness.py"}]))
    collect(source, target, 2)
    assert [entry["source"] for entry in read(target)] == ["4", "0"]


def test_links_out_of_the_outbox_are_refused(boxes: tuple[Path, Path], tmp_path: Path) -> None:
    source, target = boxes
    (tmp_path / "secret.py").write_text("secret")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "harness.py").write_text("secret")
    (source / "1").mkdir()
    (source / "1" / "harness.py").symlink_to(tmp_path / "secret.py")
    (source / "2").symlink_to(tmp_path / "folder")
    (source / "3").mkdir()
    os.mkfifo(source / "3" / "harness.py")
    (source / "4").mkdir()
    (source / "4" / "harness.py").symlink_to("harness.py")  # a loop
    names = ["../secret.py", str(tmp_path / "secret.py"), "2/harness.py", "x" * 5000, "a\0b", ""]
    put(source, "manifest.json", json.dumps([{"file": name} for name in names]))
    assert collect(source, target, 3).entries == ()
    assert json.loads((target / "manifest.json").read_text()) == []


def test_what_is_no_text_becomes_one_that_can_be_written(boxes: tuple[Path, Path]) -> None:
    source, target = boxes
    (source / "1").mkdir()
    (source / "1" / "harness.py").write_bytes(b"x = '\xff'\r\ny = 1" + b"\n#" * 200_000)
    put(source, "manifest.json", '[{"file": "1/harness.py", "hypothesis": "\\ud800 and \\u0000"}]')
    collect(source, target, 1)
    (entry,) = read(target)
    assert entry["source"].startswith("x = '\ufffd'\ny = 1\n")
    assert len(entry["source"]) <= 64 * 1024 + 1
    assert entry["hypothesis"] == "? and "


def test_the_guard_sees_changed_removed_and_replaced_files(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("a", "b", "c", "outbox/d"):
        put(root, name, name)
    guard = Guard(root, root / "outbox")
    put(root, "new", "new")
    put(root, "outbox/d", "changed")
    assert guard.changes() == []
    put(root, "a", "changed")
    (root / "b").unlink()
    (root / "c").unlink()
    (root / "c").symlink_to(root / "new")
    changes = guard.changes()
    assert [(change.path, change.after == "missing") for change in changes] == [("a", False), ("b", True), ("c", True)]
    assert changes[0].before != changes[0].after


def test_the_keeper_puts_back_what_was_changed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("h0/harness.py", "h1/harness.py"):
        put(root, name, name)
    keeper = Keeper(root)
    put(root, "h0/harness.py", "changed")
    (root / "h1" / "harness.py").unlink()
    (root / "h1").rmdir()
    assert [change.path for change in keeper.restore()] == ["h0/harness.py", "h1/harness.py"]
    assert [(root / name).read_text() for name in ("h0/harness.py", "h1/harness.py")] == [
        "h0/harness.py",
        "h1/harness.py",
    ]
    assert keeper.changes() == []
