"""Working on a harness by hand: run it on a task and read everything, check a file, compare candidates."""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from whale import stats
from whale.archive import Archive, make_candidate
from whale.build import build_run, domain_of, load_policy
from whale.config import RunConfig, build_config, load_config
from whale.domains import load_domain
from whale.errors import ConfigError, HarnessError, WhaleError
from whale.evaluate import evaluate
from whale.harness.validate import check_source
from whale.protocols import Domain, Engine, Trainer
from whale.rollout import Attempt, Setting, run_rollouts
from whale.run import Run
from whale.seeds import derive
from whale.smoke import smoke_run
from whale.store import Store
from whale.types import SPLITS, Candidate, Limits, Rollout, Task


@dataclass
class Tryout:
    """A loaded policy and domain to try harnesses on. ``archive`` is set when they come from a run."""

    config: RunConfig
    domain: Domain
    engine: Engine
    trainer: Trainer
    archive: Archive | None = None

    @classmethod
    def open(cls, domain: str, run_folder: Path | None, recipe: Path | None) -> Tryout:
        """Load policy and domain from a run, a recipe, or a domain's defaults. Raises ConfigError if none is named."""
        if run_folder is not None:
            store = Store(run_folder)
            config, state = store.read_config(), store.read_state()
        elif recipe is not None:
            config, state = load_config(recipe), None
        elif domain:
            config, state = build_config({"run_dir": "runs/try", "domain": {"name": domain}}), None
        else:
            raise ConfigError("nothing says what to try on: give --domain NAME, --recipe FILE or --run FOLDER")
        loaded = domain_of(config)
        engine, trainer = load_policy(config)
        if state is not None and state.policy.version:
            trainer.load(Store(Path(run_folder or "")).policy_folder(state.policy.version))
        return cls(config, loaded, engine, trainer, Archive(run_folder / "candidates") if run_folder else None)

    def rollouts(self, harness: str, task_id: str, n: int) -> list[Rollout]:
        """n rollouts of a harness on a task. Raises HarnessError for a file that breaks the contract."""
        candidate = self._candidate(harness)
        check_source(candidate.source, self.domain.allowed_imports)
        task = find_task(self.domain, task_id)
        setting = Setting(
            engine=self.engine, domain=self.domain, sampling=self.config.sampling, limits=self.config.limits,
            isolation=self.config.harness.isolation,
        )  # fmt: skip
        attempts = [Attempt(candidate, task, i, derive(self.config.seed, "try", task.id, i)) for i in range(n)]
        return run_rollouts(setting, attempts, self.trainer.policy().version)

    def show(self, harness: str, task_id: str, n: int, out: Console) -> None:
        """Run and print."""
        began = time.monotonic()
        rollouts = self.rollouts(harness, task_id, n)
        for rollout in rollouts:
            print_rollout(rollout, out)
        rewards = [r.reward for r in rollouts if r.reward is not None]
        mean = f"{sum(rewards) / len(rewards):.3f}" if rewards else "unknown"
        out.print(
            f"mean reward {mean} over {len(rewards)} of {n} rollouts, {time.monotonic() - began:.1f} s", markup=False
        )

    def watch(self, harness: str, task_id: str, n: int, out: Console) -> None:
        """Run again whenever the file is saved, until interrupted."""
        path = Path(harness)
        if not path.is_file():
            raise ConfigError(f"--edit needs a harness file, got {harness!r}")
        seen = -1
        while True:
            stamp = path.stat().st_mtime_ns if path.exists() else seen
            if stamp != seen:
                seen = stamp
                try:
                    self.show(harness, task_id, n, out)
                except WhaleError as error:
                    out.print(f"error: {error}", markup=False)
                out.print(f"waiting for {path} to be saved (Ctrl-C ends)", markup=False)
            time.sleep(0.2)

    def _candidate(self, harness: str) -> Candidate:
        if self.archive is not None and (self.archive.folder / harness / "meta.json").exists():
            return self.archive.get(harness)
        if harness == "h0":
            return make_candidate(0, self.domain.seed_harness())
        return make_candidate(0, read_harness(Path(harness)))


def print_rollout(rollout: Rollout, out: Console) -> None:
    """Everything a rollout did, in reading order."""
    reward = "unknown" if rollout.reward is None else f"{rollout.reward:g}"
    out.rule(f"{rollout.task_id} sample {rollout.sample}", characters="-")
    for number, call in enumerate(rollout.calls):
        for use in (tool for tool in rollout.tools if tool.after_call == number):
            out.print(f"  tool {use.name}({json.dumps(dict(use.arguments))}) -> {use.result}", markup=False)
        for message in call.messages:
            out.print(f"  {message.get('role')}: {message.get('content')}", markup=False)
        out.print(
            f"  call {number}: {len(call.context)} context + {len(call.sampled)} sampled tokens, {call.finish}",
            style="dim",
            markup=False,
        )
        out.print(f"  reply: {call.text}", style="bold", markup=False)
        for request in call.tool_calls:
            out.print(f"  asks for {request.name}({json.dumps(dict(request.arguments))}) {request.error}", markup=False)
    for use in (tool for tool in rollout.tools if tool.after_call == len(rollout.calls)):
        out.print(f"  tool {use.name}({json.dumps(dict(use.arguments))}) -> {use.result}", markup=False)
    out.print(f"  answer: {rollout.answer}", markup=False)
    out.print(f"  {rollout.outcome}, reward {reward}, {rollout.reason}", style="bold", markup=False)
    if rollout.detail:
        out.print(rollout.detail, style="red", markup=False)


def find_task(domain: Domain, wanted: str) -> Task:
    """A task by id, or by ``SPLIT:NUMBER``. Raises ConfigError with examples."""
    split, _, number = wanted.partition(":")
    if split in SPLITS and number.isdigit():
        tasks = domain.tasks(split)  # type: ignore[arg-type]
        if int(number) < len(tasks):
            return tasks[int(number)]
        raise ConfigError(f"--task {wanted}: split {split} has {len(tasks)} tasks, numbered from 0")
    for name in SPLITS:
        for task in domain.tasks(name):
            if task.id == wanted:
                return task
    examples = ", ".join(task.id for task in list(domain.tasks("search"))[:3])
    raise ConfigError(f"--task {wanted}: no such task; ids look like {examples}, or write search:0")


def read_harness(path: Path) -> str:
    """Source of a harness file. Raises HarnessError if it cannot be read."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise HarnessError(f"harness file {path} cannot be read: {error}") from None


def validate_file(path: Path, domain: str, isolation: str) -> str | None:
    """What is wrong with a harness file, or ``None``: contract check, then smoke run."""
    loaded = load_domain(domain, {}, isolation)
    try:
        candidate = make_candidate(0, read_harness(path))
        check_source(candidate.source, loaded.allowed_imports)
    except HarnessError as error:
        return str(error)
    return smoke_run(loaded, candidate, Limits(), isolation)


def describe(folder: Path, candidate_id: str) -> str:
    """A candidate's idea, results and source as text."""
    archive, chosen = _candidate_of(folder, candidate_id)
    lines = [
        f"# {chosen.id} (hash {chosen.hash}), parent {chosen.parent or 'none'}, axis {chosen.axis or '-'}",
        f"# {chosen.hypothesis}",
    ]
    for score in archive.scores(chosen.id):
        lines.append(
            f"# phase {score['phase']}: {score['mean']} on {score['valid']} rollouts, policy {score['policy_version']}"
        )
    if rejected := archive.rejected(chosen.id):
        lines.append(f"# rejected at {rejected['stage']}: {rejected['reason']}")
    return "\n".join([*lines, "", chosen.source])


def difference(folder: Path, candidate_id: str, other_id: str) -> str:
    """Unified diff from ``other_id`` (default: the parent) to the candidate."""
    archive, chosen = _candidate_of(folder, candidate_id)
    other = archive.get(other_id or chosen.parent or "h0")
    lines = difflib.unified_diff(
        other.source.splitlines(), chosen.source.splitlines(), other.id, chosen.id, lineterm=""
    )
    return "\n".join(lines) or "no difference"


def evaluate_folder(
    folder: Path, split: str, k: int, harness: str, base: bool, limit: int | None = None
) -> dict[str, Any]:
    """Evaluate a run's policy (or its base) under one of its harnesses or a file; kept in the run's rollouts.

    limit: tasks, from the first on; ``None`` takes as many as the run's looks, 0 all. ``families`` of the result has
    the estimate of each family, ``average`` their mean, each family counting alike.
    """
    if split not in SPLITS:
        raise ConfigError(f"--split {split}: the splits are {', '.join(SPLITS)}")
    with _opened(folder, base) as (run, accepted):
        if harness and Path(harness).is_file():
            candidate = make_candidate(0, read_harness(Path(harness)))
            check_source(candidate.source, run.domain.allowed_imports)
        else:
            candidate = _get(run.archive, harness or accepted)
        name = f"x-{split}-p{run.trainer.policy().version:05d}"
        _, rollouts = evaluate(run, candidate, split, k, name, limit)  # type: ignore[arg-type]
        families = stats.by_family(rollouts, k)
        return {
            **stats.mean_at_k(rollouts, k).to_json(),
            "families": {family: estimate.to_json() for family, estimate in families.items()},
            "average": stats.mean_of_all([estimate.mean for estimate in families.values()]),
            "harness": harness or accepted,
            "policy_version": run.trainer.policy().version,
            "split": split,
        }


@contextmanager
def _opened(folder: Path, base: bool) -> Iterator[tuple[Run, str]]:
    store = Store(folder)
    config = store.read_config().model_copy(update={"run_dir": str(folder)})
    state = store.open(config)
    try:
        run = build_run(config, store)
        if state is not None and state.policy.version and not base:
            run.trainer.load(store.policy_folder(state.policy.version))
        yield run, state.harness if state else "h0"
    finally:
        store.close()


def _candidate_of(folder: Path, candidate_id: str) -> tuple[Archive, Candidate]:
    store = Store(folder)
    store.read_config()
    state = store.read_state()
    archive = Archive(folder / "candidates")
    return archive, _get(archive, candidate_id or (state.harness if state else "h0"))


def _get(archive: Archive, candidate_id: str) -> Candidate:
    try:
        return archive.get(candidate_id)
    except KeyError:
        known = ", ".join(candidate.id for candidate in archive.candidates())
        raise ConfigError(f"there is no candidate {candidate_id!r}; the run has {known or 'none'}") from None
