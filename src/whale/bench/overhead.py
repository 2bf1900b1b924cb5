"""What a run costs outside the model, and how that grows with the number of rows and rollouts."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from whale.archive import make_candidate
from whale.bench.material import Material
from whale.bench.timing import Say, measure, spread
from whale.build import build_run
from whale.errors import SandboxError
from whale.rollout import Attempt, Setting, run_rollouts
from whale.rsft import accept_rollouts, step_attempts, train_rows
from whale.run import Run
from whale.scripted import ScriptedEngine
from whale.store import Store
from whale.testing import ToyDomain
from whale.trainers.tree import pack
from whale.types import Limits, Rollout, Sampling, TrainRow


@dataclass(frozen=True)
class Growth:
    """Sizes at which costs are taken. rows: of one update and of one block. rollouts: of one block, each a process."""

    rows: Sequence[int] = (100, 1_000, 10_000)
    rollouts: Sequence[int] = (100, 1_000, 10_000)
    levels: Sequence[str] = ("sealed", "contained", "off")


def measure_overhead(
    material: Material, repeats: int, say: Say, growth: Growth = Growth()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Share of ``repeats`` weight steps of the run that is not spent in the model, and the growth of costs.

    The steps go on from the run's last policy in memory; the run folder is only read. Returns the figures by key and
    the details.
    """
    say(f"overhead: {repeats} weight steps of the run")
    steps = list(_steps(material, repeats))
    details = {
        "steps": steps,
        "trees": _by_size(growth.rows, lambda size: _trees(material, size), say, "trees"),
        "store": _by_size(growth.rows, lambda size: _store(material, size), say, "store"),
        "rollouts": {level: _sandboxed(level, growth.rollouts, say) for level in growth.levels},
    }
    return {"overhead_frac": spread([step["outside_frac"] for step in steps])}, details


def _steps(material: Material, repeats: int) -> Iterator[dict[str, float]]:
    config = material.config
    if material.base:
        config = config.model_copy(update={"model": material.base})
    run = build_run(config, material.store)
    checkpoint = material.store.policy_folder(material.state.policy.version)
    if not material.base and checkpoint.exists():
        run.trainer.load(checkpoint)
    spent: dict[str, float] = {}
    for part, name in ((run.engine, "generate"), (run.trainer, "update")):
        setattr(part, name, _adding(getattr(part, name), spent, name))
    for number in range(repeats):
        spent.update(generate=0.0, update=0.0)
        with _empty_store() as store:
            done = measure(partial(_step, replace(run, store=store), material, number))
        yield {
            "rollouts": done.value,
            "seconds": done.seconds,
            "generate_seconds": spent["generate"],
            "update_seconds": spent["update"],
            "outside_frac": 1 - (spent["generate"] + spent["update"]) / done.seconds,
            "peak_bytes": done.peak_bytes,
        }


def _step(run: Run, material: Material, number: int) -> int:
    """A weight step that writes its block, without its checkpoint; returns the number of its rollouts."""
    config, state = run.config.weights, material.state
    harness = run.archive.get(state.harness)
    attempts = step_attempts(harness, run.tasks["weights"], config, run.config.seed, state.step + number)
    _, rollouts = run.block("bench", "train", attempts)
    kept = [rollouts[i] for i in accept_rollouts(rollouts, config)[0]]
    for start in range(0, len(kept), config.minibatch):
        batch = kept[start : start + config.minibatch]
        run.trainer.update(train_rows(batch, config.train_calls), len(batch))
    run.trainer.publish("bench")
    return len(rollouts)


def _adding(function: Callable[..., Any], spent: dict[str, float], name: str) -> Callable[..., Any]:
    """The function, with its wall time added to ``spent[name]``."""

    def call(*arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            spent[name] += time.perf_counter() - began

    return call


def _by_size(
    sizes: Sequence[int], run: Callable[[int], Callable[[], Any]], say: Say, name: str
) -> list[dict[str, float]]:
    """Seconds per row and memory at each size."""
    found = []
    for size in sizes:
        say(f"overhead: {name}, {size}")
        done = measure(run(size))
        found.append({"size": size, "seconds_per_row": done.seconds / size, "peak_bytes": done.peak_bytes})
    return found


def _trees(material: Material, size: int) -> Callable[[], Any]:
    """Packing ``size`` distinct rows: the run's own, with a number at the end of the context that tells them apart."""
    rows = [example.row for update in material.updates for example in update]
    many = [_numbered(row, number) for number, row in enumerate(islice(cycle(rows), size))]
    return lambda: pack(many, material.config.trainer.token_budget)


def _numbered(row: TrainRow, number: int) -> TrainRow:
    return replace(row, context=(*row.context[:-2], number // 100, number % 100))


def _store(material: Material, size: int) -> Callable[[], Any]:
    """Writing and reading a block of ``size`` rollouts."""
    rollouts: list[Rollout] = list(islice(cycle(material.rollouts), size))

    def call() -> None:
        with _empty_store() as store:
            with store.write_block("bench") as writer:
                for order, rollout in enumerate(rollouts):
                    writer.add(order, rollout)
            store.read_block("bench")

    return call


@contextmanager
def _empty_store() -> Iterator[Store]:
    """A run folder that takes blocks, gone at the end."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "rollouts").mkdir()
        yield Store(Path(folder))


def _sandboxed(level: str, sizes: Sequence[int], say: Say) -> list[dict[str, float]] | str:
    """Rollouts with an engine that answers at once, the start of the sandbox included; or why this level cannot."""
    try:
        return _by_size(sizes, lambda size: _rollouts(level, size), say, f"rollouts {level}")
    except SandboxError as error:
        return str(error)


def _rollouts(level: str, size: int) -> Callable[[], Any]:
    domain = ToyDomain()
    harness = make_candidate(0, domain.seed_harness())
    setting = Setting(ScriptedEngine(["1"]), domain, Sampling(), Limits(), isolation=level)
    tasks = islice(cycle(domain.tasks("weights")), size)
    attempts = [Attempt(harness, task, 0, number) for number, task in enumerate(tasks)]
    return lambda: run_rollouts(setting, attempts, 0)
