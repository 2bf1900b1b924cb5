"""Agentic proposers in the whole search: retries, costs, events, resuming, and what is found before a run starts."""

from __future__ import annotations

import json
import sys

import pytest

from whale.cli import app
from whale.config import build_config
from whale.errors import ConfigError, ProposerError
from whale.launch import launch
from whale.loop import alternate
from whale.testing.toy import H0

BETTER = "import re\n\n" + H0.replace("return reply.text", 'return (re.findall(r"\\d+", reply.text) or [""])[-1]')

TOOL = f"""#!{sys.executable}
import json, sys
from pathlib import Path
memory = Path(sys.argv[1])
count = int(memory.read_text()) if memory.exists() else 0
memory.write_text(str(count + 1))
files = {{files}}[min(count, len({{files}}) - 1)]
for name, text in files.items():
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
Path("outbox/cost.json").write_text(json.dumps({{"money": 0.5}}))
"""


@pytest.fixture
def tool(tmp_path):
    """``tool(files, files, ...)``: settings of a proposer that writes these, session after session."""

    def make(*sessions, isolation="none", **settings):
        path = tmp_path / "tool"
        path.write_text(TOOL.replace("{files}", repr(list(sessions))).replace("{{", "{").replace("}}", "}"))
        path.chmod(0o755)
        return {"kind": "command", "program": str(path), "arguments": [str(tmp_path / "memory")],
                "isolation": isolation, **settings}  # fmt: skip

    return make


def lines(run, name):
    path = run.store.folder / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


ROUND = {"total_steps": 2, "steps": 1, "rounds": 1}
GOOD = {"outbox/1/harness.py": BETTER}


def test_a_session_without_output_is_no_round_and_its_cost_is_kept(make_run, tool):
    run, state = make_run(schedule=ROUND, search={"proposer": tool({}, {}, GOOD)})
    state = alternate(run, state)
    assert state.finished
    assert state.harness == "h1"
    (phase,) = [record for record in state.history if record.phase.kind == "harness"]
    assert (phase.units, len(phase.values)) == (1, 2), "one round and the first scoring; empty sessions count as none"
    spent = lines(run, "proposals.jsonl")
    assert [(row["outcome"], row["money"], row["try"]) for row in spent] == [
        ("no_output", 0.5, 0), ("no_output", 0.5, 1), ("partial", 0.5, 2),
    ]  # fmt: skip
    assert {row["proposer_isolation"] for row in spent} == {"none"}
    assert len([event for event in lines(run, "events.jsonl") if event["event"] == "no_output"]) == 2


def test_a_proposer_that_never_writes_stops_the_run_and_the_same_command_goes_on(make_run, tool):
    run, state = make_run(schedule=ROUND, search={"proposer": tool({}, {}, GOOD, retries=1)})
    with pytest.raises(ProposerError, match=r"no candidate in 2 tries .*same command again"):
        alternate(run, state)
    searched = len(list((run.store.folder / "rollouts").glob("s*.jsonl")))
    run.store.close()
    again, state = make_run(schedule=ROUND, search={"proposer": tool({}, {}, GOOD, retries=1)})
    state = alternate(again, state)
    assert (state.finished, state.harness) == (True, "h1")
    assert again.store.wasted() == 0
    assert len(list((run.store.folder / "rollouts").glob("s*.jsonl"))) == 2 * searched
    assert sum(row["money"] for row in lines(again, "proposals.jsonl")) == 1.5


def test_partial_work_is_tried_and_a_half_file_is_rejected_with_a_reason(make_run, tool):
    half = {"outbox/1/harness.py": BETTER, "outbox/2/harness.py": BETTER[:-10]}
    second = {"outbox/1/harness.py": H0 + "\nLATER = 1\n"}
    run, state = make_run(schedule={**ROUND, "rounds": 2}, search={"candidates": 3, "proposer": tool(half, second)})
    state = alternate(run, state)
    assert state.harness == "h1"
    assert run.archive.rejected("h2")["stage"] == "check"
    assert [row["outcome"] for row in lines(run, "proposals.jsonl")] == ["partial", "partial"]
    assert (run.store.folder / "proposals" / "001-002" / "TASK.md").exists()


SEES = "".join(
    f"Path({name!r}).read_text() + "
    for name in ("IDEAS.md", "harnesses/h1/rejected.json", "harnesses/h0/rollouts.jsonl", "SKILL.md")
)


@pytest.mark.parametrize("isolation", ["sealed", "none"])
def test_the_next_session_reads_code_scores_traces_and_reasons(make_run, tmp_path, isolation):
    path = tmp_path / "tool"
    path.write_text(
        f"#!{sys.executable}\nimport json\nfrom pathlib import Path\n"
        f"text = {SEES}'' if Path('harnesses/h1').exists() else ''\n"
        "Path('outbox/1').mkdir()\n"
        "Path('outbox/1/harness.py').write_text('class Harness' if not text else '# ' + json.dumps(text))\n"
    )
    path.chmod(0o755)
    run, state = make_run(
        schedule={**ROUND, "rounds": 2},
        search={"candidates": 1, "proposer": {"kind": "command", "program": str(path), "isolation": isolation}},
    )
    alternate(run, state)
    seen = json.loads((run.store.folder / "candidates" / "h2" / "harness.py").read_text()[2:])
    assert "rejected at check" in seen
    assert '"stage": "check"' in seen
    assert '"reason": "not_a_number"' in seen
    assert "I think" in seen, "the policy's words"
    assert "# Proposing harnesses" in seen
    references = {task.id: task.reference for split in ("test", "weights") for task in run.tasks[split]}
    assert not any(task in seen for task in references)


def test_a_scope_violation_is_one_event_per_file_and_the_run_goes_on(make_run, tool):
    changed = {**GOOD, "harnesses/h0/harness.py": "# cheat", "SKILL.md": "other rules"}
    run, state = make_run(schedule=ROUND, search={"proposer": tool(changed)})
    state = alternate(run, state)
    assert (state.finished, state.harness) == (True, "h1")
    events = [event for event in lines(run, "events.jsonl") if event["event"] == "scope_violation"]
    assert [event["path"] for event in events] == ["SKILL.md", "harnesses/h0/harness.py"]
    assert all(len(event["before"]) == len(event["after"]) == 16 for event in events)
    assert run.archive.get("h0").source == H0


@pytest.mark.parametrize(
    ("limits", "sessions"),
    [({"total_money": 1.0}, 2), ({"total_money": 1.6}, 3), ({"total_sessions": 1}, 1), ({}, 4)],
)
def test_a_session_that_could_pass_the_run_s_limit_is_not_begun(make_run, tool, limits, sessions):
    rounds = [{"outbox/1/harness.py": H0 + f"\nNUMBER = {number}\n"} for number in range(4)]
    run, state = make_run(schedule={**ROUND, "rounds": 4}, search={"proposer": tool(*rounds, **limits)})
    state = alternate(run, state)
    assert state.finished
    assert len(lines(run, "proposals.jsonl")) == sessions
    ended = [record.ended for record in state.history if record.phase.kind == "harness"]
    assert ended == (["exhausted"] if limits else ["budget"])
    refused = [event for event in lines(run, "events.jsonl") if event["event"] == "proposer_budget"]
    assert len(refused) == bool(limits)


def recipe(tmp_path, proposer, **changes):
    data = {
        "run_dir": str(tmp_path / "run"), "domain": {"name": "toy"}, "engine": {"kind": "fake"},
        "trainer": {"kind": "fake", "lr": 1.0}, "weights": {"tasks_per_step": 4, "samples": 4},
        "search": {"tasks": 8, "candidates": 2, "proposer": proposer}, "schedule": ROUND,
        "eval": {"k": 1, "tasks": 2}, "harness": {"isolation": "sealed"}, "store": {"min_free_gb": 0.0}, **changes,
    }  # fmt: skip
    return build_config(data)


def test_what_a_proposer_lacks_is_found_before_the_first_rollout(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    config = recipe(tmp_path, {"kind": "claude-code"})
    with pytest.raises(ProposerError, match="'claude' is not found"):
        launch(config)
    assert list((tmp_path / "run" / "rollouts").iterdir()) == []
    weights_only = recipe(tmp_path, {"kind": "claude-code"}, run_dir=str(tmp_path / "other"),
                          schedule={"kind": "weight_only", "total_steps": 1})  # fmt: skip
    assert launch(weights_only).finished, "a run without search needs no proposer"


def test_written_code_must_run_sealed(tmp_path, tool):
    config = recipe(tmp_path, tool(GOOD), harness={"isolation": "contained"})
    with pytest.raises(ConfigError, match=r"must run sealed; harness.isolation is 'contained'"):
        launch(config)


def test_a_sealed_run_from_start_to_end(tmp_path):
    path = tmp_path / "tool"
    path.write_text(
        f"#!{sys.executable}\nfrom pathlib import Path\nPath('outbox/1').mkdir()\n"
        f"Path('outbox/1/harness.py').write_text({BETTER!r})\n"
    )
    path.chmod(0o755)
    state = launch(recipe(tmp_path, {"kind": "command", "program": str(path), "isolation": "sealed"}))
    assert (state.finished, state.harness) == (True, "h1")
    (row,) = [json.loads(line) for line in (tmp_path / "run" / "proposals.jsonl").read_text().splitlines()]
    assert (row["proposer_isolation"], row["money"], row["written"]) == ("sealed", None, 1)


def test_doctor_tries_the_proposer_of_a_recipe(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    file = tmp_path / "recipe.toml"
    file.write_text(
        'run_dir = "r"\ndomain = { name = "toy" }\nschedule = { total_steps = 1 }\n'
        'search = { proposer = { kind = "codex" } }\n'
    )
    done = CliRunner().invoke(app, ["doctor", "--recipe", str(file), "--json"])
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert done.exit_code == 1
    found = checks["proposer codex"]
    assert (found["ok"], found["needed"]) == (False, True)
    assert "'codex' is not found" in found["detail"]
    assert found["fix"].startswith("install Codex")


@pytest.mark.parametrize(
    ("proposer", "says"),
    [
        ({"kind": "openai"}, "needs search.proposer.model"),
        ({"kind": "command"}, "needs search.proposer.program"),
        ({"kind": "codex", "api_key": "sk"}, "unknown key search.proposer.api_key"),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path, proposer, says):
    with pytest.raises(ConfigError, match=says):
        recipe(tmp_path, proposer)
