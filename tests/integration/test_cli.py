"""The commands as a user types them, in processes of their own, on the toy recipe."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RECIPE = Path(__file__).parents[2] / "recipes" / "toy.toml"
WHALE = [sys.executable, "-c", "from whale.cli import main; main()"]
SMALL = ["harness.isolation=contained", "schedule.total_steps=2", "schedule.steps=1", "schedule.rounds=1", "eval.k=2"]


def whale(*arguments, code=0, cwd=None, path=None):
    environment = {**os.environ, "COLUMNS": "200", **({"PATH": path} if path is not None else {})}
    command = [*WHALE, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd, env=environment)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout if code == 0 else done.stdout + done.stderr


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished toy run, shared by the tests that only read it."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    text = whale("run", RECIPE, f"run_dir={folder}", *SMALL)
    assert "test mean@" in text
    return folder


def test_report_json_has_the_promised_keys(finished):
    report = json.loads(whale("report", finished, "--json"))
    for when in ("start", "end"):
        assert set(report["test"][when]) >= {"mean", "low", "high", "k", "tasks", "coverage"}
    assert set(report["rollouts"]) >= {"train", "search", "eval", "wasted"}
    assert report["cycles"] == 1
    assert report["weight_steps"] == 2
    assert isinstance(report["harness_changed"], bool)
    assert report["seconds"] > 0
    assert report["peak_rss_bytes"] > 10e6


def test_report_writes_one_page(finished, tmp_path):
    page = tmp_path / "page.html"
    text = whale("report", finished, "--html", page)
    assert str(page) in text
    assert page.read_text().startswith("<!")


def test_finished_run_is_not_run_again(finished):
    assert "finished already" in whale("resume", finished)


def test_changed_config_is_refused_and_forked(finished, tmp_path):
    before = (finished / "state.json").read_bytes()
    text = whale("run", RECIPE, f"run_dir={finished}", *SMALL, "schedule.total_steps=3", code=2)
    assert "schedule.total_steps: 2 -> 3" in text
    assert "--fork" in text
    assert (finished / "state.json").read_bytes() == before
    target = tmp_path / "fork"
    whale("run", RECIPE, f"run_dir={finished}", *SMALL, "schedule.total_steps=3", "--fork", target)
    assert json.loads(whale("report", target, "--json"))["weight_steps"] == 3
    assert (finished / "state.json").read_bytes() == before


def test_eval(finished):
    figures = json.loads(whale("eval", finished, "-k", 2, "--split", "unseen", "--harness", "h0", "--base", "--json"))
    assert figures["tasks"] == 8
    assert figures["policy_version"] == 0
    assert figures["average"] == figures["families"]["sum"]["mean"] == figures["mean"]
    few = json.loads(whale("eval", finished, "-k", 2, "--tasks", 3, "--json"))
    every = json.loads(whale("eval", finished, "-k", 2, "--tasks", 0, "--json"))
    assert (few["tasks"], every["tasks"]) == (3, 16)
    assert "splits are" in whale("eval", finished, "--split", "train", code=2)
    assert "no candidate 'h99'" in whale("eval", finished, "--harness", "h99", code=2)


def test_harness_show_and_diff(finished):
    assert "class Harness" in whale("harness", "show", finished, "h1")
    assert "+" in whale("harness", "diff", finished, "h1")


def test_plan_counts_what_the_paper_spends(tmp_path):
    """256 x (1 + 15) search rollouts and 90,112 training rollouts in a cycle of the main setting."""
    overrides = ["weights.tasks_per_step=256", "weights.samples=8", "search.tasks=256", "search.candidates=3",
                 "schedule.total_steps=88", "schedule.steps=44", "schedule.rounds=5"]  # fmt: skip
    rollouts = json.loads(whale("plan", RECIPE, *overrides, "--json"))["rollouts"]
    assert rollouts["search"] == 4096
    assert rollouts["train"] == 2 * 90_112
    assert "weight steps" in whale("plan", RECIPE)


def test_counters_end_at_the_planned_values(finished):
    planned = json.loads(whale("plan", RECIPE, *SMALL, "--json"))["rollouts"]
    report = json.loads(whale("report", finished, "--json"))
    saved = 12 * sum(candidate["verdict"].startswith("rejected") for candidate in report["candidates"])
    assert report["rollouts"]["train"] == planned["train"]
    assert report["rollouts"]["search"] == planned["search"] - saved


BAD_HARNESSES = {
    "class Harness:\n    async def run(self, task, session)\n        pass\n": "line 2",
    "import socket\n\n\nclass Harness:\n    async def run(self, task, session):\n        return ''\n": "socket",
    "class Other:\n    pass\n": "Harness",
    "class Harness:\n    def walk(self):\n        pass\n": "run",
    "class Harness:\n    async def run(self, task, session):\n        while True:\n            pass\n": "timeout",
    "class Harness:\n    async def run(self, task, session):\n        raise KeyError('lost')\n": "lost",
    "class Harness:\n    async def run(self, task, session):\n        return 3\n": "int",
}


@pytest.mark.slow
def test_validate_names_what_is_wrong(tmp_path):
    files = []
    for number, source in enumerate(BAD_HARNESSES):
        files.append(tmp_path / f"bad{number}.py")
        files[-1].write_text(source)
    text = whale("harness", "validate", *files, "-d", "toy", "--isolation", "contained", code=1)
    lines = "\n".join(text.splitlines())
    for path, word in zip(files, BAD_HARNESSES.values(), strict=True):
        part = lines[lines.index(str(path)) :]
        following = [part.find(str(other), 1) for other in files if part.find(str(other), 1) > 0]
        assert word in (part[: min(following)] if following else part), word
    good = tmp_path / "good.py"
    good.write_text("class Harness:\n    async def run(self, task, session):\n        return ''\n")
    assert f"{good}: ok" in whale("harness", "validate", good, "-d", "toy", "--isolation", "contained")


def test_try_shows_every_call(finished):
    text = whale("try", "h0", "--run", finished, "--task", "search:0", "-n", 2)
    assert "user:" in text
    assert "context +" in text
    assert "mean reward" in text
    assert "no such task" in whale("try", "h0", "--run", finished, "--task", "nope", code=2)


def test_try_edit_runs_again_on_save(finished, tmp_path):
    harness = tmp_path / "h.py"
    harness.write_text("class Harness:\n    async def run(self, task, session):\n        return 'one'\n")
    command = [*WHALE, "try", str(harness), "--run", str(finished), "--edit"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as process:
        assert process.stdout is not None
        seen = []
        for line in process.stdout:
            seen.append(line)
            if "waiting for" in line and len([x for x in seen if "waiting for" in x]) == 1:
                harness.write_text(harness.read_text().replace("one", "two"))
            elif "waiting for" in line:
                process.send_signal(signal.SIGINT)
                break
        process.wait(20)
    text = "".join(seen)
    assert "answer: one" in text
    assert "answer: two" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "nowhere.toml"], ["nowhere.toml does not exist"]),
        (
            ["run", str(RECIPE), "schedule.stepz=3"],
            ["unknown key schedule.stepz", "did you mean steps?"],
        ),
        (["run", str(RECIPE), "domain.name=tooy"], ["tooy", "toy"]),
        (["run", str(RECIPE), "search.tasks=1000"], ["search.tasks", "16", "1000"]),
        (["run", str(RECIPE), "store.min_free_gb=1000000"], ["store.min_free_gb"]),
        (["run", str(RECIPE), "engine.kind=transformers"], ["engine.kind", "trainer.kind"]),
        (["run", str(RECIPE), "engine.kind=transformers", "trainer.kind=torch", "model=/no/model"], ["/no/model"]),
        (["report", "nowhere"], ["nowhere", "not a run folder"]),
        (["resume", "nowhere"], ["nowhere", "not a run folder"]),
        (["run"], ["Missing argument", "recipe"]),
        (["try", "h0"], ["--domain"]),
    ],
    ids=lambda value: "-".join(value)[-40:] if isinstance(value, list) else None,
)
def test_bad_input_is_one_clear_message(tmp_path, arguments, words):
    done = subprocess.run([*WHALE, *arguments], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    text = done.stdout + done.stderr
    assert done.returncode in (1, 2)
    assert "Traceback" not in text
    for word in words:
        assert word in text, text


def test_missing_bubblewrap_is_said_with_the_fix(tmp_path):
    text = whale("run", RECIPE, f"run_dir={tmp_path / 'run'}", "harness.isolation=sealed", code=1, path="/nonexistent")
    assert "bubblewrap" in text
    assert "install" in text


def test_ctrl_c_says_how_to_go_on(tmp_path):
    folder = tmp_path / "run"
    command = [
        *WHALE,
        "run",
        str(RECIPE),
        f"run_dir={folder}",
        "harness.isolation=contained",
        "schedule.total_steps=500",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + 60
    while not (folder / "state.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 130, text
    assert f"whale resume {folder}" in text
    assert "Traceback" not in text


def test_doctor_reports_and_fixes():
    done = subprocess.run([*WHALE, "doctor", "--json"], capture_output=True, text=True, timeout=120)
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert {"python", "packages", "memory", "disk", "model cache"} <= set(checks)
    assert any(name.startswith("sandbox sealed") for name in checks)
    assert all(check["fix"] for check in checks.values() if not check["ok"])


def test_models_list():
    names = {info["name"] for info in json.loads(whale("models", "list", "--json"))}
    assert {"smollm2-135m", "qwen3.5-2b", "qwen3.5-4b"} <= names


def test_commands_of_data_and_domains_are_there(tmp_path):
    assert "say where the rows come from" in whale("data", "prepare", "chess", code=2)
    assert "did you mean 'chess'" in whale("domain", "check", "ches", code=2)
    assert "gold: 80 judged, 0 do not score 1" in whale("domain", "check", "toy")
    assert "there is no file" in whale("serve-retriever", "--corpus", tmp_path / "none.jsonl", code=1)
