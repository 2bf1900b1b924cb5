"""kill -9 at random moments of a run, the same command again: same weights, same history, losses booked.

Once with the scripted policy (quick), once with a tiny real model through the real engine and trainer. The number
of kills of the latter can be raised with WHALE_CRASH_KILLS.
"""

import hashlib
import json
import os
import random
import subprocess
import sys
import time

import pytest

from whale.testing.letters import RECIPE as TINY_RECIPE

FAKE_RECIPE = """
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


def start(folder, name, recipe, **values):
    path = folder / f"{name}.toml"
    path.write_text(recipe.format(run_dir=folder / name, **values))
    command = [sys.executable, "-c", "from whale.cli import main; main()", "run", str(path)]
    return subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def result(folder):
    """What must not depend on crashes: state, final weights, metrics, the rollouts themselves up to wall time."""
    state = json.loads((folder / "state.json").read_text())
    checkpoint = folder / "policies" / f"{state['policy']['version']:05d}"
    files = sorted([*checkpoint.glob("*.safetensors"), *checkpoint.glob("weights.json")])
    weights = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert weights
    rows = {}
    for path in sorted((folder / "rollouts").glob("*.jsonl")):
        rows[path.name] = [{**json.loads(line), "seconds": 0} for line in path.read_text().splitlines()]
    for row in (row for block in rows.values() for row in block):
        row["tools"] = [{**use, "seconds": 0} for use in row["tools"]]
    return {"state": state, "weights": weights, "metrics": (folder / "metrics.jsonl").read_text(), "rollouts": rows}


def wasted(folder):
    path = folder / "wasted.jsonl"
    return sum(json.loads(line)["rollouts"] for line in path.read_text().splitlines()) if path.exists() else 0


def run_with_kills(folder, recipe, rng, wanted, length, **values):
    """Start the run again and again, killing it ``wanted`` times at random moments; returns what was open at a kill."""
    moments = []
    while True:
        process = start(folder, "killed", recipe, **values)
        try:
            # The first seconds go into imports; a kill there tests nothing.
            output, _ = process.communicate(timeout=rng.uniform(0.2, 0.9) * length if len(moments) < wanted else 300)
            assert process.returncode == 0, output
            return moments
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            parts = list((folder / "killed" / "rollouts").glob("*.part"))
            moments.append(parts[0].name[0] if parts else "-")


def check(folder, recipe, kills, **values):
    calm = start(folder, "calm", recipe, **values)
    began = time.monotonic()
    output, _ = calm.communicate(timeout=300)
    assert calm.returncode == 0, output
    length = time.monotonic() - began
    expected = result(folder / "calm")
    assert expected["state"]["policy"]["version"] > 0, "the run must train for this test to mean anything"
    moments = run_with_kills(folder, recipe, random.Random(len(recipe)), kills, length, **values)
    got = result(folder / "killed")
    for part, value in expected.items():
        assert got[part] == value, part
    assert wasted(folder / "calm") == 0
    open_blocks = sum(moment != "-" for moment in moments)
    assert (wasted(folder / "killed") > 0) == (open_blocks > 0)
    print(f"{len(moments)} kills, open blocks {moments}, {wasted(folder / 'killed')} rollouts wasted")


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 3])
def test_scripted_policy(tmp_path, every):
    check(tmp_path, FAKE_RECIPE, 5, every=every)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_real_engine_and_trainer_are_bit_equal(tmp_path):
    pytest.importorskip("torch")
    from whale.testing.models import save_tiny

    save_tiny("llama", tmp_path / "model")
    check(tmp_path, TINY_RECIPE, int(os.environ.get("WHALE_CRASH_KILLS", "3")), model=tmp_path / "model")
