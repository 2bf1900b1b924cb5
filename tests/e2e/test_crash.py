"""kill -9 at random moments of a run, the same command again: same weights, same history, losses booked.

Once with the scripted policy (quick), once with a tiny real model through the real engine and trainer. Every kind of
phase is killed as often as WHALE_CRASH_KILLS says.
"""

import contextlib
import hashlib
import json
import os
import random
import shutil
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


PHASES = {"e": "evaluation", "w": "weights", "s": "search"}
"""Kinds of work, by the first letter of the blocks of rollouts that each begins with."""


def newest(folder):
    """The block begun last, open or finished, with the time at which it was last written."""
    found = []
    for path in (folder / "rollouts").glob("*"):
        with contextlib.suppress(FileNotFoundError):  # it was open and is finished now
            found.append((path.stat().st_mtime_ns, path.stem))
    return max(found, default=(0, "-"))


def kill_in(folder, process, phase, rng, length):
    """Kill within a random time of the next or the next but one block of a phase, so that what follows its rollouts
    (update, publish, checkpoint, acceptance) is hit too; returns the phase that was on, "" if the run ended first."""
    begun, skip, last = time.time_ns(), rng.randrange(2), ""
    while process.poll() is None:
        at, block = newest(folder)
        if at > begun and block != last:
            last = block
            if block[0] == phase and not skip:
                break
            skip -= block[0] == phase
        time.sleep(0.002)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=rng.uniform(0, length))
        return ""
    os.killpg(process.pid, 9)
    process.communicate()
    return newest(folder)[1][0]


def check(folder, recipe, kills, length, **values):
    """Run once undisturbed, then kill ``kills`` times in every phase; every run that ends must equal the first.

    length: seconds within which a kill falls after its block has begun, about what a weight step takes.
    """
    calm = start(folder, "calm", recipe, **values)
    output, _ = calm.communicate(timeout=300)
    assert calm.returncode == 0, output
    expected = result(folder / "calm")
    assert expected["state"]["policy"]["version"] > 0, "the run must train for this test to mean anything"
    assert wasted(folder / "calm") == 0
    rng = random.Random(len(recipe))
    done = dict.fromkeys(PHASES, 0)
    ends, opened, lost, relaunched, most = 0, 0, 0, 0, 20 * kills * len(done)
    while missing := [phase for phase, count in done.items() if count < kills]:
        process = start(folder, "killed", recipe, **values)
        relaunched += 1
        assert relaunched < most, f"too few kills hit their phase: {done}"
        wanted = min(missing, key=done.__getitem__)  # in the order in which a run comes to them
        phase = kill_in(folder / "killed", process, wanted, rng, length)
        if phase in done:
            done[phase] += 1
            opened += any((folder / "killed" / "rollouts").glob("*.part"))
        if not phase:
            ends, lost = ends + 1, lost + finish(folder, recipe, expected, **values)
    ends, lost = ends + 1, lost + finish(folder, recipe, expected, **values)
    assert (lost > 0) == (opened > 0)
    counts = {PHASES[phase]: count for phase, count in done.items()}
    print(f"kills {counts}, {opened} in an open block, {lost} rollouts wasted, {ends} runs ended, all equal")


def finish(folder, recipe, expected, **values):
    """Let a run that was killed go to its end, compare it, and set it aside; returns its wasted rollouts."""
    process = start(folder, "killed", recipe, **values)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    got = result(folder / "killed")
    for part, value in expected.items():
        assert got[part] == value, part
    lost = wasted(folder / "killed")
    shutil.rmtree(folder / "killed")
    return lost


KILLS = os.environ.get("WHALE_CRASH_KILLS")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("every", [1, 3])
def test_scripted_policy(tmp_path, every):
    check(tmp_path, FAKE_RECIPE, int(KILLS or 2), 0.2, every=every)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_real_engine_and_trainer_are_bit_equal(tmp_path):
    pytest.importorskip("torch")
    from whale.testing.models import save_tiny

    save_tiny("llama", tmp_path / "model")
    check(tmp_path, TINY_RECIPE, int(KILLS or 1), 0.5, model=tmp_path / "model")
