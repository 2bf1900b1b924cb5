"""Time outside the model, and rollouts per second through sandboxed forks.

    python scripts/overhead.py RUN_FOLDER

1. Rollouts/s with an engine that answers at once, for each isolation level.
2. Share of a weight step that is not model time, on the policy, harness and tasks of a finished run: the step's
   wall time less the time inside `Engine.generate` and `Trainer.update`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from whale.archive import make_candidate
from whale.build import build_run
from whale.rollout import Attempt, Setting, run_rollouts
from whale.rsft import accept_rollouts, step_attempts, train_rows
from whale.scripted import ScriptedEngine
from whale.store import Store
from whale.testing import ToyDomain
from whale.types import Limits, Sampling

ROLLOUTS = 1000


def forks() -> None:
    """Rollouts per second with an instant engine."""
    domain = ToyDomain(sizes={"weights": ROLLOUTS})
    harness = make_candidate(0, domain.seed_harness())
    for level in ("sealed", "contained", "off"):
        setting = Setting(ScriptedEngine(["1"]), domain, Sampling(), Limits(), isolation=level)
        attempts = [Attempt(harness, task, 0, i) for i, task in enumerate(domain.tasks("weights"))]
        began = time.perf_counter()
        rollouts = run_rollouts(setting, attempts, 0)
        seconds = time.perf_counter() - began
        assert all(r.reward is not None for r in rollouts)
        print(f"{level}: {ROLLOUTS / seconds:.0f} rollouts/s ({ROLLOUTS} in {seconds:.2f} s, sandbox start included)")


def step(folder: Path) -> None:
    """Where the time of a weight step goes."""
    store = Store(folder)
    state = store.read_state()
    assert state is not None
    run = build_run(store.read_config(), store)
    run.trainer.load(store.policy_folder(state.policy.version))
    spent = {"generate": 0.0, "update": 0.0}
    for part, name in ((run.engine, "generate"), (run.trainer, "update")):
        setattr(part, name, timed(getattr(part, name), spent, name))
    config = run.config.weights
    harness = run.archive.get(state.harness)
    for number in range(3):
        spent.update(generate=0.0, update=0.0)
        began = time.perf_counter()
        attempts = step_attempts(harness, run.tasks["weights"], config, run.config.seed, state.step + number)
        rollouts = run_rollouts(run.setting(), attempts, run.trainer.policy().version)
        kept, _ = accept_rollouts(rollouts, config)
        for start in range(0, len(kept), config.minibatch):
            batch = [rollouts[i] for i in kept[start : start + config.minibatch]]
            run.trainer.update(train_rows(batch, config.train_calls), len(batch))
        run.trainer.publish("overhead")
        total = time.perf_counter() - began
        outside = total - spent["generate"] - spent["update"]
        print(
            f"step of {len(rollouts)} rollouts: {total:.2f} s, sampling {spent['generate']:.2f} s, "
            f"training {spent['update']:.2f} s, outside the model {outside:.2f} s = {outside / total:.1%}"
        )


def timed(function: Callable[..., Any], spent: dict[str, float], name: str) -> Callable[..., Any]:
    """The function, with its wall time added to ``spent[name]``."""

    def call(*arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            spent[name] += time.perf_counter() - began

    return call


if __name__ == "__main__":
    forks()
    if len(sys.argv) > 1:
        step(Path(sys.argv[1]))
