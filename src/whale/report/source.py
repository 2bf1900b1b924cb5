"""Reads a run folder for the reports: everything up to the last commit, nothing newer, and without taking the lock."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from whale.archive import Archive
from whale.config import RunConfig
from whale.state import Look, RunState
from whale.store import Store
from whale.types import Candidate, Policy, Rollout


@dataclass(frozen=True)
class RunData:
    """A run folder as a report sees it. ``candidates`` and ``metrics`` stop where ``state`` was committed."""

    folder: Path
    config: RunConfig
    state: RunState
    metrics: list[dict[str, Any]]
    candidates: list[Candidate]

    @cached_property
    def archive(self) -> Archive:
        """The candidates' scores and rejections."""
        return Archive(self.folder / "candidates")

    def looks(self, split: str) -> list[Look]:
        """The looks at a split in order."""
        return [look for look in self.state.looks if look.split == split]

    def first_look(self, split: str) -> Look | None:
        """The look before any training."""
        return next((look for look in self.looks(split) if look.when == "start"), None)

    def final_look(self, split: str) -> Look | None:
        """The look at the end of a finished run (an unfinished fork may still hold the end of its origin)."""
        ends = [look for look in self.looks(split) if look.when == "end"]
        return ends[-1] if ends and self.state.finished else None

    def rollouts(self, look: Look) -> list[Rollout] | None:
        """The rollouts a look is made of, or ``None`` if some of its blocks are gone."""
        store = Store(self.folder)
        found: list[Rollout] = []
        for key in look.blocks:
            block = store.read_block(key)
            if block is None:
                return None
            found += block
        return found

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl of one kind (``step``, ``candidate``, ``look``)."""
        return [line for line in self.metrics if line.get("kind") == kind]


def load(folder: Path) -> RunData:
    """Read a run folder. Raises StoreError if it is none or its state is of another version."""
    store = Store(folder)
    config = store.read_config()
    state = store.read_state() or RunState(policy=Policy(config.model, 0, ""), candidates=0)
    return RunData(folder, config, state, _metrics(folder, state.metrics_bytes), _candidates(folder, state.candidates))


def read_lines(path: Path, size: int | None = None) -> list[dict[str, Any]]:
    """Whole JSON lines of a log (of its first ``size`` bytes); a last line cut short by a crash is left out."""
    if not path.exists():
        return []
    whole, _, _ = path.read_bytes()[:size].rpartition(b"\n")
    return [json.loads(line) for line in whole.splitlines() if line.strip()]


def _metrics(folder: Path, size: int) -> list[dict[str, Any]]:
    return read_lines(folder / "metrics.jsonl", size)


def _candidates(folder: Path, count: int) -> list[Candidate]:
    if not (folder / "candidates").is_dir():
        return []
    known: Sequence[Candidate] = Archive(folder / "candidates").candidates()
    return [candidate for candidate in known if int(candidate.id[1:]) < count]
