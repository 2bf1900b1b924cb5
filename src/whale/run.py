"""One run under way: its parts, and the three services every phase uses (blocks of rollouts, commits, looks)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from whale import guard
from whale.archive import Archive
from whale.config import RunConfig
from whale.errors import StoreError
from whale.progress import Progress
from whale.protocols import Domain, Engine, Proposer, Trainer
from whale.rollout import Attempt, Listener, Setting, run_rollouts
from whale.state import RunState
from whale.store import BlockWriter, Store
from whale.types import OWNED, Outcome, Purpose, Rollout, Split, Task


@dataclass
class Run:
    """The parts of a run. ``tasks`` holds every split, loaded and checked once."""

    config: RunConfig
    store: Store
    archive: Archive
    domain: Domain
    engine: Engine
    trainer: Trainer
    proposer: Proposer
    tasks: dict[Split, list[Task]]
    progress: Progress = field(default_factory=Progress)

    def setting(self) -> Setting:
        """What rollouts of this run have in common."""
        config = self.config
        return Setting(
            engine=self.engine,
            domain=self.domain,
            sampling=config.sampling,
            limits=config.limits,
            isolation=config.harness.isolation,
            concurrent=config.harness.concurrent,
            retries=config.harness.retries,
        )

    def block(self, name: str, purpose: Purpose, attempts: Sequence[Attempt]) -> tuple[str, list[Rollout]]:
        """Roll out a block, or read it if it was finished before. Returns its key and its rollouts in order.

        Raises StoreError if more than ``harness.max_infra_share`` of it was lost to infrastructure.
        """
        key = f"{name}-{self._block_digest(attempts)}"
        found = self.store.read_block(key)
        if found is not None:
            self.progress.block(name, purpose, found, cached=True)
            return key, found
        with self.store.write_block(key) as writer:
            listener = _BlockListener(writer, self.progress, name, len(attempts))
            rollouts = run_rollouts(self.setting(), attempts, self.trainer.policy().version, listener)
            self._check_infrastructure(name, rollouts)
        self.progress.block(name, purpose, rollouts, cached=False)
        return key, rollouts

    def commit(self, state: RunState) -> RunState:
        """Put the policy and the state on disk; a relaunch continues from here."""
        version = state.policy.version
        folder = self.store.policy_folder(version)
        if version and not folder.exists():
            self.trainer.save(folder)
        state = self.store.commit(state)
        kept = {record.policy_after for record in state.history} if self.config.store.keep_phase_ends else set()
        best = guard.best_version(
            state.values, state.versions, self.config.weights.guard_steps, self.store.saved_versions()
        )
        kept |= {best} if best else set()
        self.store.prune(kept, self.config.store.keep_last)
        return state

    def log(self, state: RunState, **figures: Any) -> None:
        """One line of metrics.jsonl at the current point of the rollout axis."""
        self.store.append("metrics.jsonl", {"rollouts": state.counters.axis, **figures})

    def _check_infrastructure(self, name: str, rollouts: Sequence[Rollout]) -> None:
        lost = [r for r in rollouts if r.outcome not in OWNED and r.outcome != Outcome.UNSCORABLE]
        if len(lost) > self.config.harness.max_infra_share * len(rollouts):
            raise StoreError(
                f"block {name}: {len(lost)} of {len(rollouts)} rollouts were lost to infrastructure "
                f"(harness.max_infra_share is {self.config.harness.max_infra_share}); "
                f"first fault: {lost[0].detail or lost[0].reason or lost[0].outcome}. "
                "Mend the cause and give the same command again; finished work is kept"
            )

    def _block_digest(self, attempts: Sequence[Attempt]) -> str:
        """Digest of everything that decides a block's rollouts."""
        config = self.config
        identity = [
            self.trainer.policy().digest,
            self.domain.version,
            vars(config.sampling),
            vars(config.limits),
            config.engine.model_dump(),
            [
                (a.harness.hash, a.task.id, json.dumps(dict(a.task.inputs), sort_keys=True), a.sample, a.seed)
                for a in attempts
            ],
        ]
        return hashlib.blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=8).hexdigest()


class _BlockListener(Listener):
    def __init__(self, writer: BlockWriter, progress: Progress, name: str, total: int) -> None:
        self._writer, self._progress, self._name, self._total = writer, progress, name, total
        self._done = 0

    def started(self, count: int) -> None:
        self._writer.started(count)
        self._progress.rollouts(self._name, self._done, self._total)

    def finished(self, order: int, rollout: Rollout) -> None:
        self._writer.add(order, rollout)
        self._done += 1
        self._progress.rollouts(self._name, self._done, self._total)
