"""A weight phase that collapses ends at its best checkpoint, and the run goes on from there."""

import json

import pytest

from whale.loop import alternate
from whale.run import Run
from whale.testing import FakeTrainer, FakeWeights
from whale.testing.letters import RECIPE


def events(run: Run, kind: str):
    lines = (run.store.folder / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


COLLAPSING = {
    "schedule": {"kind": "weight_only", "total_steps": 20},
    "weights": {"tasks_per_step": 8, "samples": 8, "guard_steps": 2, "min_accepted": 1, "kl_every": 0},
    "sampling": {"temperature": 1.0},
    "store": {"keep_last": 1, "checkpoint_every": 2},
}


def fragile(run: Run) -> FakeTrainer:
    """The scripted trainer on the run's own weights, which breaks after six updates."""
    weights = run.trainer.weights
    assert isinstance(weights, FakeWeights)
    run.trainer = FakeTrainer(weights, gain=0.1, breaks_after=6)
    return run.trainer


def test_the_best_checkpoint_is_handed_on_under_a_new_version(make_run):
    run, state = make_run(**COLLAPSING)
    trainer = fragile(run)
    state = alternate(run, state)
    (record,) = state.history
    assert record.ended == "collapsed"
    assert record.units < 20
    (event,) = events(run, "collapsed")
    assert event["best"] < event["last"] < event["restored_as"] == state.policy.version == record.policy_after
    assert trainer.weights.skill > 0.5, "the skill of the checkpoint, not of the collapse"
    last = [look for look in state.looks if look.split == "test"][-1]
    assert last.policy_version == state.policy.version
    assert last.estimate["mean"] > record.values[-1]
    assert run.store.policy_folder(state.policy.version).exists()


def test_a_relaunch_after_the_collapse_serves_the_same_weights(make_run, config):
    run, state = make_run(**COLLAPSING)
    fragile(run)
    first = alternate(run, state)
    skill = run.trainer.weights.skill
    run.store.close()
    again, state = make_run(**COLLAPSING)
    assert state == first
    again.trainer.load(again.store.policy_folder(state.policy.version))
    assert again.trainer.weights.skill == skill
    assert again.trainer.policy() == state.policy


def test_switched_off_the_phase_runs_to_its_end(make_run):
    settings = {**COLLAPSING, "weights": {**COLLAPSING["weights"], "guard_drop": 0.0}}
    run, state = make_run(**settings)
    fragile(run)
    state = alternate(run, state)
    assert state.history[0].ended == "budget"
    assert not events(run, "collapsed")


@pytest.mark.slow
def test_a_real_policy_trained_far_too_fast_is_caught(tmp_path):
    """Few tasks, again and again, at a rate that wrecks the weights."""
    pytest.importorskip("torch")
    import tomllib

    from whale.build import build_run
    from whale.config import build_config
    from whale.store import Store
    from whale.testing.models import save_tiny

    save_tiny("llama", tmp_path / "model")
    data = tomllib.loads(RECIPE.format(run_dir=tmp_path / "run", model=tmp_path / "model"))
    data["trainer"]["lr"] = 3e-2
    data["weights"].update(samples=16, guard_steps=2, guard_drop=0.15, max_accepted_per_task=2)
    data["schedule"] = {"kind": "weight_only", "total_steps": 40}
    data["store"]["keep_last"] = 1
    config = build_config(data)
    store = Store(tmp_path / "run")
    state = store.open(config)
    run = build_run(config, store)
    state = alternate(run, state)
    store.close()
    record = state.history[0]
    assert record.ended == "collapsed"
    assert events(run, "collapsed")[0]["restored_as"] == state.policy.version
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line.get("kind") == "step"]
    for name in ("entropy", "repetition", "unique", "tokens_per_rollout", "kl_base", "weight_norm", "grad_norm"):
        assert all(name in step for step in steps if step.get("updates")), name
    assert all(step["logprob_gap"] < 1e-3 for step in steps if step.get("updates"))
