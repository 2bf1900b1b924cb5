"""kill -9 at random moments of a run, the same command again: same weights, same history, losses booked."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = "import sys; from tests_crash_entry import main; main()"
ENTRY = """
import sys, time
from pathlib import Path
from whale.config import load_config
from whale.launch import launch
from whale import scripted
from whale.testing import fakes

def slow(self, requests, sampling, fast=fakes.FakeEngine.generate):
    time.sleep(float(sys.argv[2]))  # stretches every wave, so that a kill can land inside it
    return fast(self, requests, sampling)

def main():
    fakes.FakeEngine.generate = slow
    launch(load_config(Path(sys.argv[1])))
"""
RECIPE = """
run_dir = "{run_dir}"
domain = {{ name = "toy" }}
engine = {{ kind = "fake" }}
trainer = {{ kind = "fake", lr = 1.0 }}
harness = {{ isolation = "contained" }}
store = {{ min_free_gb = 0.0, checkpoint_every = {every} }}
weights = {{ tasks_per_step = 5, samples = 5, minibatch = 4, min_accepted = 2 }}
search = {{ tasks = 6, candidates = 2, block_tasks = 3 }}
schedule = {{ kind = "fixed", total_steps = 5, steps = 2, rounds = 1 }}
eval = {{ k = 2, tasks = 4, every_rollouts = 20, unseen = false }}
"""


def start(folder, run_dir, every, delay):
    recipe = folder / f"{run_dir}.toml"
    recipe.write_text(RECIPE.format(run_dir=folder / run_dir, every=every))
    (folder / "tests_crash_entry.py").write_text(ENTRY)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(recipe), str(delay)], env=environment, start_new_session=True
    )


def result(folder):
    """What must not depend on crashes: state, final weights, metrics, the rollouts themselves up to wall time."""
    state = json.loads((folder / "state.json").read_text())
    version = state["policy"]["version"]
    rows = {
        path.name: [{**json.loads(line), "seconds": 0} for line in path.read_text().splitlines()]
        for path in sorted((folder / "rollouts").glob("*.jsonl"))
    }
    weights = (folder / "policies" / f"{version:05d}" / "weights.json").read_text()
    return state, weights, (folder / "metrics.jsonl").read_text(), rows


def wasted(folder):
    path = folder / "wasted.jsonl"
    return sum(json.loads(line)["rollouts"] for line in path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 3])
def test_killed_runs_end_like_an_undisturbed_one(tmp_path: Path, every):
    calm = start(tmp_path, "calm", every, 0.02)
    began = time.monotonic()
    assert calm.wait(120) == 0
    length = time.monotonic() - began
    expected = result(tmp_path / "calm")
    rng = random.Random(every)
    kills, lost = 0, 0
    while True:
        process = start(tmp_path, "killed", every, 0.02)
        try:
            process.wait(rng.uniform(0.3, 0.6) * length)
            assert process.returncode == 0
            break
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
            assert kills < 40, "the run does not get ahead"
    assert kills >= 1
    assert result(tmp_path / "killed") == expected
    lost = wasted(tmp_path / "killed")
    assert lost >= 0
    assert wasted(tmp_path / "calm") == 0
