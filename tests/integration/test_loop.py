"""The whole loop on the fakes, with real sandboxed harness processes."""

import json
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from whale.errors import ConfigError, ProposerError, StoreError
from whale.launch import fork, launch
from whale.loop import alternate
from whale.progress import LiveProgress
from whale.store import Store
from whale.testing import FakeTrainer, ScriptedProposer
from whale.testing.toy import H0


def counted(folder):
    """Rollouts in finished blocks by the letter their file name starts with: w(eights), s(earch), e(val)."""
    totals = {"w": 0, "s": 0, "e": 0}
    for path in (Path(folder) / "rollouts").glob("*.jsonl"):
        totals[path.name[0]] += len(path.read_text().splitlines())
    return totals


def test_a_run_improves_both_sides_and_counts_what_it_spent(config):
    settings = config(schedule={"total_steps": 6}, search={"tasks": 16}, eval={"tasks": 16, "k": 4})
    state = launch(settings)
    assert [record.phase.kind for record in state.history] == ["weights", "harness", "weights", "harness", "weights"]
    assert state.harness != "h0"
    assert state.policy.version > 0
    start, end = state.looks[0], [look for look in state.looks if look.split == "test"][-1]
    assert end.estimate["low"] > start.estimate["mean"]
    spent = counted(settings.run_dir)
    assert (state.counters.train, state.counters.search, state.counters.eval) == (spent["w"], spent["s"], spent["e"])
    assert state.counters.train == 6 * 4 * 4
    assert state.counters.accepted == state.counters.trained + len(state.pending) + state.counters.discarded


def test_the_same_configuration_gives_the_same_run(tmp_path, config):
    first = launch(config(run_dir=str(tmp_path / "a")))
    second = launch(config(run_dir=str(tmp_path / "b")))
    assert first == second
    other = launch(config(run_dir=str(tmp_path / "c"), seed=1))
    assert other.policy.digest != first.policy.digest


def test_looks_stand_at_fixed_points_of_the_rollout_axis(config):
    state = launch(config(eval={"every_rollouts": 20}))
    looks = [look for look in state.looks if look.split == "test"]
    assert [looks[0].when, looks[-1].when] == ["start", "end"]
    points = [look.rollouts // 20 for look in looks[:-1]]
    assert points == sorted(set(points)), "at most one look between two multiples"
    assert len(looks) >= 5
    unseen = [look.when for look in state.looks if look.split == "unseen"]
    assert unseen == ["start", "end"]


@pytest.mark.parametrize("kind", ["weight_only", "harness_only", "sequential", "patience"])
def test_every_schedule_runs(config, kind):
    state = launch(config(schedule={"kind": kind, "total_steps": 3, "min_rounds": 1, "max_rounds": 2}))
    kinds = {record.phase.kind for record in state.history}
    assert state.finished
    assert kinds == {"weight_only": {"weights"}, "harness_only": {"harness"}}.get(kind, {"weights", "harness"})
    if kind == "harness_only":
        assert state.policy.version == 0
        assert state.history[0].ended in ("exhausted", "solved")


def test_rollout_limit_is_kept_to_within_one_unit(config):
    state = launch(config(schedule={"kind": "weight_only", "total_steps": 0, "max_rollouts": 50}))
    assert 50 <= state.counters.axis < 50 + 16
    assert state.history[0].ended == "rollouts"


@pytest.mark.parametrize(("share", "stops"), [(0.3, True), (0.9, False)])
def test_too_many_replies_without_ids_stop_the_run(make_run, monkeypatch, share, stops):
    """A server that parses replies and drops their ids must not become a run that trains on half of its rollouts."""
    run, state = make_run(
        harness={"max_infra_share": share, "retries": 0}, schedule={"kind": "weight_only", "total_steps": 1}
    )
    generate = run.engine.generate

    def forgetful(requests, sampling):
        completions = generate(requests, sampling)
        return [replace(c, ids=(), logprobs=()) if n % 2 else c for n, c in enumerate(completions)]

    monkeypatch.setattr(run.engine, "generate", forgetful)
    if not stops:
        assert alternate(run, state).finished
        return
    with pytest.raises(StoreError, match=r"lost to infrastructure .*max_infra_share is 0.3.*0 ids"):
        alternate(run, state)


CRASH = H0.replace("return reply.text", "raise ValueError('broken on purpose')")
BROKEN = [
    "class Harness:\n    async def run(self, task, session)\n        return ''\n",  # half a file
    H0.replace("class Harness", "import socket\n\n\nclass Harness"),
    H0.replace("class Harness", "class Other"),
    H0.replace("return reply.text", "return 42"),
    CRASH,
    H0.replace("return reply.text", "while True: pass"),
    H0 + "\nraise SystemExit(3)\n",
    H0,  # the same code again
]
BETTER = "import re\n\n" + H0.replace("return reply.text", 'return (re.findall(r"\\d+", reply.text) or [""])[-1]')


@pytest.mark.slow
def test_broken_candidates_are_recorded_and_end_nothing(make_run):
    proposer = ScriptedProposer([BROKEN, [BETTER]])
    run, state = make_run(proposer, schedule={"total_steps": 2, "steps": 1, "rounds": 2}, search={"candidates": 9})
    state = alternate(run, state)
    assert state.finished
    stages = [run.archive.rejected(f"h{i}")["stage"] for i in range(1, 9)]
    assert stages == ["check", "check", "check", "smoke", "smoke", "smoke", "smoke", "duplicate"]
    assert "h0" in run.archive.rejected("h8")["reason"]
    assert "broken on purpose" in run.archive.rejected("h5")["reason"]
    assert state.harness == "h9"
    assert state.counters.search == 2 * 8, "rejected candidates cost no rollout"


def test_exhausted_proposer_ends_the_phase_not_the_run(make_run):
    run, state = make_run(ScriptedProposer([[BETTER]]), schedule={"rounds": 9})
    state = alternate(run, state)
    assert state.history[1].ended == "exhausted"
    assert state.finished
    assert state.step == 4


def test_resuming_a_finished_run_changes_nothing(config):
    settings = config()
    first = launch(settings)
    before = (Path(settings.run_dir) / "state.json").read_bytes()
    assert launch(settings) == first
    assert (Path(settings.run_dir) / "state.json").read_bytes() == before


def test_other_configuration_is_refused_with_the_difference(config):
    settings = config(schedule={"total_steps": 1})
    launch(settings)
    before = (Path(settings.run_dir) / "state.json").read_bytes()
    with pytest.raises(ConfigError, match=r"weights.samples: 4 -> 5.*--fork"):
        launch(config(schedule={"total_steps": 1}, weights={"samples": 5}))
    assert (Path(settings.run_dir) / "state.json").read_bytes() == before


def test_fork_continues_under_other_settings(config, tmp_path):
    settings = config(schedule={"total_steps": 2})
    launch(settings)
    longer = config(schedule={"total_steps": 4}, run_dir=str(tmp_path / "fork"))
    fork(Path(settings.run_dir), longer)
    state = launch(longer)
    assert state.step == 4
    assert state.history[0] == Store(Path(settings.run_dir)).read_state().history[0]
    with pytest.raises(StoreError, match="not empty"):
        fork(Path(settings.run_dir), longer)


def test_no_accepted_rollout_leaves_the_weights_alone(make_run):
    """No update, no new version, rollouts counted, a clear warning."""
    run, state = make_run(schedule={"kind": "weight_only", "total_steps": 3}, weights={"warn_after": 3})
    warnings = []
    run.progress.warn = warnings.append
    run.engine._reply = lambda context, rng: "no idea"
    state = alternate(run, state)
    assert state.policy.version == 0
    assert run.trainer.weights.updates == 0
    assert state.counters.train == 48
    assert state.counters.accepted == 0
    assert len(warnings) == 1
    assert "3 weight steps in a row" in warnings[0]


def test_few_accepted_rollouts_are_carried_over(make_run):
    """Nothing accepted is lost; the sum always adds up."""
    run, state = make_run(schedule={"kind": "weight_only", "total_steps": 4}, weights={"min_accepted": 10})
    state = alternate(run, state)
    counters = state.counters
    assert counters.accepted > 0
    assert counters.accepted == counters.trained + len(state.pending) + counters.discarded
    steps = [json.loads(line) for line in (run.store.folder / "metrics.jsonl").read_text().splitlines()]
    pending = [row["pending"] for row in steps if row["kind"] == "step"]
    assert any(pending), "a step below min_accepted waits"


class Recording(FakeTrainer):
    """Remembers what each update was given."""

    def __init__(self, weights):
        super().__init__(weights)
        self.batches = []

    def update(self, rows, rollouts):
        self.batches.append((rollouts, rows))
        return super().update(rows, rollouts)


def test_every_accepted_rollout_is_trained_once_whatever_their_number(make_run):
    """Rollouts that do not fill the last mini-batch make a smaller one."""
    run, state = make_run(
        schedule={"kind": "weight_only", "total_steps": 1},
        weights={"tasks_per_step": 16, "samples": 6, "minibatch": 8, "deduplicate": False},
    )
    run.trainer = Recording(run.trainer.weights)
    state = alternate(run, state)
    sizes = [size for size, _ in run.trainer.batches]
    accepted = state.counters.accepted
    assert accepted % 8, "the case is only met by a number that does not divide"
    assert sizes == [8] * (accepted // 8) + [accepted % 8]
    rows = [(row.context, row.sampled) for _, batch in run.trainer.batches for row in batch]
    assert len(rows) == accepted == state.counters.trained


def test_waiting_rollouts_of_another_harness_are_discarded_aloud(make_run):
    """Contexts of an earlier harness are not trained under the next one unless asked for."""
    run, state = make_run(
        ScriptedProposer([[BETTER]]),
        schedule={"total_steps": 2, "steps": 1, "rounds": 1},
        weights={"min_accepted": 1000},
    )
    state = alternate(run, state)
    assert state.harness == "h1"
    assert state.counters.discarded > 0
    events = [json.loads(line) for line in (run.store.folder / "events.jsonl").read_text().splitlines()]
    assert any(event["event"] == "discarded" and event["reason"] == "harness_changed" for event in events)


class Stops(ScriptedProposer):
    """Breaks down in one round, like a proposer whose key was refused."""

    def __init__(self, rounds, fail_at):
        super().__init__(rounds)
        self.fail_at = fail_at

    def propose(self, *arguments):
        if self.calls == self.fail_at:
            raise ProposerError("key refused")
        return super().propose(*arguments)


def test_an_interrupted_search_goes_on_where_it_was(make_run):
    """Rounds that are done are neither paid again nor skipped, and the phase is not taken for complete."""
    rounds = [[H0.replace("return reply.text", f"return '{n}{m}'") for m in range(2)] for n in range(4)]
    changes = {"schedule": {"total_steps": 2, "steps": 1, "rounds": 4}}
    run, state = make_run(Stops(rounds, 2), **changes)
    with pytest.raises(ProposerError):
        alternate(run, state)
    paid = counted(run.store.folder)["s"]
    assert paid == 8 * (1 + 2 * 2)
    run.store.close()

    again, state = make_run(Stops(rounds[2:], 99), **changes)
    assert [record.phase.kind for record in state.history] == ["weights"]
    again.engine.waves.clear()
    state = alternate(again, state)
    searched = list((run.store.folder / "rollouts").glob("s*.jsonl"))
    assert counted(run.store.folder)["s"] == state.counters.search == 8 * (1 + 2 * 4)
    assert len(searched) == 2 * (1 + 4)
    assert again.proposer.calls == 2, "only the missing rounds are proposed"
    assert state.history[1].units == 4
    assert again.store.wasted() == 0


@pytest.mark.slow
def test_memory_does_not_grow_with_the_steps(make_run):
    """Traces go to disk; a step leaves nothing behind in memory."""
    changes = {"store": {"checkpoint_every": 25}, "limits": {"call_tokens": 20_000, "assistant_tokens": 20_000}}
    run, state = make_run(schedule={"kind": "weight_only", "total_steps": 25}, **changes)
    process, used = psutil.Process(), []
    run.engine._reply = lambda context, rng: "I think 7 " + "and so on " * 1200
    run.progress.step = lambda *_: used.append(process.memory_info().rss)
    alternate(run, state)
    trace = sum(path.stat().st_size for path in (run.store.folder / "rollouts").iterdir())
    assert trace > 25 * 2_000_000
    assert used[-1] < 1.1 * used[9]


def test_status_file_tells_rate_and_time_left(tmp_path, monkeypatch):
    """After a fifth of a block at a steady rate the time left is right to 20 %."""
    clock = iter(range(10_000))
    monkeypatch.setattr("whale.progress.time.monotonic", lambda: float(next(clock)))
    progress = LiveProgress(tmp_path)
    for done in range(241):
        progress.rollouts("block", done, 1200)
    status = json.loads((tmp_path / "status.json").read_text())
    assert status["done"] >= 238, "written every second"
    assert abs(status["eta_seconds"] - 960) < 0.2 * 960
