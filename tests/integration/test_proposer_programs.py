"""Command line proposers against fake programs that print what the real ones print, sealed and without a sandbox."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from whale.archive import Archive, make_candidate
from whale.config import ProposerConfig
from whale.errors import ProposerError
from whale.proposers import isolation
from whale.proposers.session import AgenticProposer
from whale.proposers.workers import worker_of
from whale.proposers.workplace import workplace
from whale.testing.toy import H0

KEY = "sk-test-4711"
LEVELS = ["sealed", "none"]
RESULT = {
    "type": "result", "subtype": "success", "is_error": False, "num_turns": 3, "session_id": "s-1",
    "result": "done", "total_cost_usd": 0.25, "usage": {"input_tokens": 10, "output_tokens": 5},
}  # fmt: skip
HEAD = """
import json, os, subprocess, sys, time
from pathlib import Path
H0 = Path("harnesses/h0/harness.py").read_text()
task = sys.stdin.read()
def put(name, text):
    path = Path("outbox", name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
def say(**message):
    print(json.dumps(message), flush=True)
"""
MANIFEST = """
put("manifest.json", json.dumps([
    {"file": f"{n}/harness.py", "axis": f"axis {n}", "mechanism": "m", "hypothesis": "if"} for n in (1, 2)]))
"""
TWO_FILES = 'put("1/harness.py", H0 + "# 1")\nput("2/harness.py", H0 + "# 2")\n' + MANIFEST
SUCCESS = f"say(**{RESULT!r})\n"

Propose = Callable[..., dict[str, Any]]


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    folder = tmp_path / "run" / "candidates"
    folder.mkdir(parents=True)
    made = Archive(folder)
    made.add(make_candidate(0, H0, hypothesis="the seed harness"))
    return made


def program(folder: Path, name: str, body: str) -> Path:
    path = folder / "programs" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{HEAD}\n{body}")
    path.chmod(0o755)
    return path


@pytest.fixture
def propose(tmp_path: Path, archive: Archive, monkeypatch: pytest.MonkeyPatch) -> Propose:
    """``propose(body, kind=..., **settings)``: what a session with a program of that body returns."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("CODEX_API_KEY", KEY)
    monkeypatch.setenv("A_SECRET", "nobody's business")

    def run(body: str, kind: str = "claude-code", slots: int = 2, **changes: Any) -> dict[str, Any]:
        path = program(tmp_path, {"claude-code": "claude", "codex": "codex"}.get(kind, "tool"), body)
        settings = ProposerConfig(**{"kind": kind, "program": str(path), "seconds": 60, **changes})
        lines: list[str] = []
        outbox = tmp_path / f"outbox{time.time_ns()}"
        outbox.mkdir()
        proposer = AgenticProposer(worker_of(settings, say=lines.append), "the skill", say=lines.append)
        cost = dict(proposer.propose(archive, "h0", outbox, slots, 0))
        entries = json.loads((outbox / "manifest.json").read_text())
        sources = [(outbox / entry["file"]).read_text() for entry in entries]
        return {**cost, "entries": entries, "sources": sources, "lines": lines, "folder": outbox}

    return run


@pytest.mark.parametrize("level", LEVELS)
def test_claude_code_with_files(propose: Propose, level: str) -> None:
    body = TWO_FILES + "print(json.dumps([sys.argv[1:], task[:9]]), file=sys.stderr)\n"
    body += 'say(type="assistant", message={"content": [{"type": "tool_use", "name": "Write"}]})\n' + SUCCESS
    found = propose(body, model="opus", effort="max", money=2.5, turns=40, isolation=level)
    assert (found["outcome"], found["written"], found["proposer_isolation"]) == ("complete", 2, level)
    assert (found["money"], found["turns"], found["tokens"], found["calls"], found["session"]) == (
        0.25,
        3,
        15,
        1,
        "s-1",
    )
    assert found["sources"] == [H0 + "# 1", H0 + "# 2"]
    assert [entry["axis"] for entry in found["entries"]] == ["axis 1", "axis 2"]
    arguments, begins = json.loads((found["folder"] / "session.err").read_text())
    assert begins == "You impro"
    text = " ".join(arguments)
    for part in ("-p --output-format stream-json --verbose", "--permission-mode acceptEdits", "--model opus",
                 "--allowedTools Read,Glob,Grep,Write,Edit", "--effort max", "--max-turns 40",
                 "--max-budget-usd 2.5"):  # fmt: skip
        assert part in text
    assert KEY not in text
    assert json.loads((found["folder"] / "session.jsonl").read_text().splitlines()[-1]) == RESULT


@pytest.mark.parametrize("level", LEVELS)
def test_the_key_comes_from_the_named_variable_and_other_variables_stay_out(
    propose: Propose, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-mine")
    body = 'put("1/harness.py", "".join(f"# {name}={value}\\n" for name, value in sorted(os.environ.items())))\n'
    (source,) = propose(body, slots=1, key_variable="MY_KEY", isolation=level)["sources"]
    assert "# ANTHROPIC_API_KEY=sk-mine\n" in source
    for name in ("A_SECRET", "MY_KEY", "CODEX_API_KEY", KEY):
        assert name not in source


def test_a_success_without_files_is_no_output_and_its_cost_is_kept(propose: Propose) -> None:
    found = propose('say(type="result", subtype="success", num_turns=0, result="", total_cost_usd=0.1)\n')
    assert (found["outcome"], found["written"], found["money"]) == ("no_output", 0, 0.1)
    assert found["entries"] == []


def test_files_count_whatever_the_exit_code_and_unknown_cost_is_unknown(propose: Propose) -> None:
    found = propose(TWO_FILES + 'print("boom", file=sys.stderr)\nsys.exit(7)\n')
    assert (found["outcome"], found["written"], found["money"]) == ("complete", 2, None)
    assert "exit status 7" in found["detail"]
    assert "boom" in found["detail"]
    assert any("cost unknown" in line for line in found["lines"])


def test_work_that_stops_in_the_middle_is_partial(propose: Propose) -> None:
    body = 'put("1/harness.py", H0 + "# 1")\nput("2/harness.py", H0[: len(H0) // 2])\n' + SUCCESS
    found = propose(body, slots=3)
    assert (found["outcome"], found["written"], found["asked"]) == ("partial", 2, 3)
    assert found["sources"] == [H0 + "# 1", H0[: len(H0) // 2]]


def marked(mark: str) -> list[int]:
    """Processes with ``mark`` on their command line."""
    return [p.pid for p in psutil.process_iter(["cmdline"]) if mark in (p.info["cmdline"] or [])]


HANG = """
put("1/harness.py", H0 + "# 1")
say(type="assistant", message={"content": [{"type": "tool_use", "name": "Write"}]})
child = "import os, time; os.setsid() if {apart} else None; time.sleep(600)"
for apart in (0, 1):
    subprocess.Popen([sys.executable, "-c", child.format(apart=apart), os.environ["MARK"]])
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_a_hanging_program_is_killed_with_its_children(
    propose: Propose, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = f"whale-test-{os.getpid()}-{level}"
    monkeypatch.setenv("MARK", mark)
    began = time.monotonic()
    found = propose(HANG, seconds=3, heartbeat=1, variables=["MARK"], isolation=level)
    assert 3 <= time.monotonic() - began < 8
    assert (found["outcome"], found["written"], found["money"], found["calls"]) == ("timeout", 1, None, 1)
    assert found["sources"] == [H0 + "# 1"]
    assert "killed at its time limit" in found["detail"]
    beats = [line for line in found["lines"] if "tool calls" in line]
    assert len(beats) >= 2
    assert "1 tool calls, 1 files so far" in beats[-1]
    time.sleep(0.2)
    assert marked(mark) == []


def test_a_program_that_ends_leaves_no_child(propose: Propose, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = f"whale-test-{os.getpid()}-orphan"
    monkeypatch.setenv("MARK", mark)
    body = TWO_FILES + 'subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", os.environ["MARK"]])\n'
    assert propose(body, variables=["MARK"], isolation="none")["outcome"] == "complete"
    time.sleep(0.2)
    assert marked(mark) == []


@pytest.mark.slow
def test_nothing_survives_a_host_that_is_killed(
    tmp_path: Path, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = f"whale-test-{os.getpid()}-host"
    path = program(tmp_path, "tool", HANG)
    (tmp_path / "out").mkdir()
    code = (
        "from pathlib import Path\nfrom whale.archive import Archive\nfrom whale.config import ProposerConfig\n"
        "from whale.proposers.session import AgenticProposer\nfrom whale.proposers.workers import worker_of\n"
        f"settings = ProposerConfig(kind='command', program={str(path)!r}, isolation='sealed', variables=['MARK'])\n"
        f"AgenticProposer(worker_of(settings), '').propose(Archive(Path({str(archive.folder)!r})), 'h0',"
        f" Path({str(tmp_path / 'out')!r}), 1, 0)\n"
    )
    environment = {**os.environ, "MARK": mark, "TMPDIR": str(tmp_path)}
    host = subprocess.Popen([sys.executable, "-c", code], env=environment)
    try:
        deadline = time.monotonic() + 30
        while not marked(mark):
            assert host.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        host.kill()
        host.wait()
    deadline = time.monotonic() + 5
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert marked(mark) == []
    # Its workplace may hold a login; the next session deletes it, and not those that are in use.
    (leftover,) = tmp_path.glob("whale-proposer-*")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with workplace() as used:
        assert not leftover.exists()
        with workplace():
            assert used.exists()


EDITS = """
import os
parent = Path("harnesses/h0/harness.py")
try:
    parent.write_text(H0 + "# changed")
    Path("SKILL.md").unlink()
    put("1/harness.py", "# could")
except OSError as error:
    put("1/harness.py", f"# could not: {error.errno}")
"""


def test_edits_outside_the_outbox_are_refused_when_sealed(propose: Propose) -> None:
    found = propose(EDITS, slots=1, isolation="sealed")
    assert found["sources"] == ["# could not: 30"]
    assert found["events"] == []


def test_edits_outside_the_outbox_are_events_and_put_back_without_a_sandbox(propose: Propose, archive: Archive) -> None:
    h0 = archive.folder / "h0" / "harness.py"
    body = EDITS + f"Path({str(h0)!r}).write_text('cheat')\n"
    found = propose(body, slots=1, isolation="none")
    assert found["sources"] == ["# could"]
    events = found["events"]
    assert [event["path"] for event in events] == ["SKILL.md", "harnesses/h0/harness.py", "h0/harness.py"]
    assert {event["event"] for event in events} == {"scope_violation"}
    assert all(event["before"] != event["after"] for event in events)
    assert h0.read_text() == H0


LOOKS = """
def tries(action):
    try:
        return str(action())
    except Exception as error:
        return "no: " + type(error).__name__
doors = {
    "run": tries(lambda: os.listdir(RUN)),
    "home": tries(lambda: os.listdir(os.path.expanduser("~"))),
    "temporary": tries(lambda: sorted(set(os.listdir("/tmp")) - {Path.cwd().parent.name})),
    "write": tries(lambda: Path("/usr/probe").write_text("x")),
    "shadow": tries(lambda: Path("/etc/shadow").read_text()),
    "processes": tries(lambda: len([n for n in os.listdir("/proc") if n.isdigit()]) < 5),
}
put("1/harness.py", "# " + json.dumps(doors))
"""


def test_a_sealed_program_sees_neither_the_run_nor_homes_nor_other_processes(
    propose: Propose, archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / ".claude").mkdir(parents=True)
    (home / ".claude" / ".credentials.json").write_text('{"token": 1}')
    (home / "data.csv").write_text("answers")
    monkeypatch.setenv("HOME", str(home))
    (source,) = propose(f"RUN = {str(archive.folder)!r}\n{LOOKS}", slots=1, isolation="sealed")["sources"]
    doors = json.loads(source[2:])
    assert doors["run"] == "no: FileNotFoundError"
    assert doors["home"] == "['.claude']"
    assert doors["write"].startswith("no:")
    assert doors["shadow"] == "no: FileNotFoundError"
    assert doors["processes"] in ("True", "no: FileNotFoundError")
    assert "data" not in source
    assert tmp_path.name not in doors["temporary"] or "programs" not in doors["temporary"]


def test_a_renewed_login_is_kept(propose: Propose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    login = home / ".claude" / ".credentials.json"
    login.parent.mkdir(parents=True)
    login.write_text('{"token": 1}')
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    body = """
login = Path.home() / ".claude" / ".credentials.json"
put("1/harness.py", "# " + login.read_text())
login.write_text('{"token": 2}')
(Path.home() / ".claude" / "settings.json").write_text("{}")
"""
    assert propose(body, slots=1, isolation="sealed")["sources"] == ['# {"token": 1}']
    assert login.read_text() == '{"token": 2}'
    assert [path.name for path in login.parent.iterdir()] == [".credentials.json"]


@pytest.mark.parametrize("level", LEVELS)
def test_codex(propose: Propose, level: str) -> None:
    body = (
        TWO_FILES
        + """
print(json.dumps(sys.argv[1:]), task[:9], os.environ["CODEX_API_KEY"] != "", file=sys.stderr)
say(type="thread.started", thread_id="t-1")
say(type="item.completed", item={"type": "file_change"})
say(type="turn.completed", usage={"input_tokens": 100, "output_tokens": 20})
"""
    )
    found = propose(body, kind="codex", model="m", effort="high", isolation=level)
    assert (found["outcome"], found["session"], found["calls"], found["tokens"]) == ("complete", "t-1", 1, 120)
    assert found["money"] is None
    errors = (found["folder"] / "session.err").read_text()
    sandbox = "danger-full-access" if level == "sealed" else "workspace-write"
    for part in ("exec", "--json", "--skip-git-repo-check", sandbox, "model_reasoning_effort=", '"-"] You impro True'):
        assert part in errors


def test_any_command(propose: Propose) -> None:
    body = """
scratch, given, outbox = sys.argv[1:]
assert scratch == os.getcwd() and Path(given).read_text() == task and Path(outbox) == Path("outbox").resolve()
put("1/harness.py", H0)
put("cost.json", '{"money": 0.5, "calls": 9}')
"""
    found = propose(body, kind="command", slots=1, arguments=["{scratch}", "{task}", "{outbox}"])
    assert (found["outcome"], found["money"], found["calls"]) == ("partial", 0.5, 9), found["detail"]


def test_a_command_that_floods_its_output_is_stopped(propose: Propose, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whale.proposers.process.MAX_LOG_BYTES", 1 << 20)
    found = propose('put("1/harness.py", H0)\nwhile True: print("x" * 10_000)\n', kind="command", isolation="none")
    assert (found["outcome"], found["written"]) == ("limit", 1)


def check(**settings: Any) -> str:
    return worker_of(ProposerConfig(**settings)).check()


def test_what_is_missing_is_found_before_anything_is_paid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ProposerError, match=r"'claude' is not found .*npm install -g @anthropic-ai/claude-code"):
        check(kind="claude-code")
    with pytest.raises(ProposerError, match=r"'codex' is not found"):
        check(kind="codex")
    with pytest.raises(ProposerError, match=r"'no-such' is not found .*search.proposer.program"):
        check(kind="command", program="no-such")
    path = str(program(tmp_path, "claude", ""))
    with pytest.raises(
        ProposerError, match=r"environment variable ANTHROPIC_API_KEY nor a login; set ANTHROPIC_API_KEY"
    ):
        check(kind="claude-code", program=path)
    with pytest.raises(ProposerError, match=r"environment variable MY_KEY"):
        check(kind="command", program=path, key_variable="MY_KEY")
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / ".credentials.json").write_text("{}")
    assert check(kind="claude-code", program=path, isolation="sealed") == ""
    assert "runs without a sandbox" in check(kind="claude-code", program=path, isolation="none")


def test_an_outbox_that_cannot_be_written_to_is_found(tmp_path: Path) -> None:
    cell = isolation.Cell(isolation.Scratch(tmp_path / "gone"), tmp_path, (), {}, sealed=False)
    with pytest.raises(ProposerError, match=r"cannot write to its outbox .*TMPDIR"):
        isolation.check_writable(cell)


def test_a_machine_without_bubblewrap(propose: Propose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``auto`` goes without and says so in the proposal; ``sealed`` is refused with the way out."""
    isolation._problem.cache_clear()
    monkeypatch.setattr("whale.proposers.isolation.shutil.which", lambda name, path=None: None)
    try:
        with pytest.raises(ProposerError, match=r"bwrap is missing.*search.proposer.isolation=none"):
            isolation.level("sealed")
        assert isolation.level("auto") == "none"
        monkeypatch.setattr("whale.proposers.program_worker.shutil.which", lambda name, path=None: name)
        assert propose(TWO_FILES, isolation="auto")["proposer_isolation"] == "none"
    finally:
        isolation._problem.cache_clear()
