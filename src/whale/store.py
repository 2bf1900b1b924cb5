"""The run folder: what makes a run resumable.

``config.json`` says whose folder it is; ``state.json`` is replaced atomically after each unit of work whose
weights are on disk; ``rollouts/`` holds one file per block of rollouts, keyed by everything that decides them.
Resuming is replaying: the loop runs again from the last state, finished blocks are read instead of rolled out,
so nothing that was paid for is paid twice and the history comes out the same. A block that was open when the
process died is redone whole and its rollouts are booked in ``wasted.jsonl``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from whale.config import RunConfig, build_config, differences
from whale.errors import ConfigError, StoreError
from whale.records import rollout_from_json, rollout_to_json
from whale.state import PendingRow, RunState
from whale.types import Rollout

_IDENTITY_FREE = ("run_dir", "name", "store")
"""Sections that may change between two launches of the same run: they do not decide any result."""


class Store:
    """One run folder, held under a lock while it is open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: IO[str] | None = None

    # -- opening -----------------------------------------------------------------------------------------------

    def open(self, config: RunConfig) -> RunState | None:
        """Lock the folder, check that it belongs to ``config`` and put it in order after a crash.

        Returns the committed state, or ``None`` for a new run. Raises ConfigError with the differences for a folder
        of another configuration, StoreError if another process has it or the disk is too full.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        self._check_disk(config.store.min_free_gb)
        self._check_config(config)
        for name in ("rollouts", "candidates", "policies", "proposals"):
            (self.folder / name).mkdir(exist_ok=True)
        state = self.read_state()
        self._book_waste()
        self._set_aside_later(state)
        return state

    def close(self) -> None:
        """Release the lock."""
        if self._lock:
            self._lock.close()
            self._lock = None

    def read_state(self) -> RunState | None:
        """The committed state. Raises StoreError if the file does not hold one."""
        path = self.folder / "state.json"
        if not path.exists():
            return None
        try:
            return RunState.model_validate_json(path.read_text())
        except ValueError as error:
            raise StoreError(f"{path} is not a state of this version of whale: {error}") from None

    def read_config(self) -> RunConfig:
        """The configuration the folder belongs to. Raises StoreError if it is no run folder."""
        path = self.folder / "config.json"
        if not path.exists():
            raise StoreError(f"{self.folder} is not a run folder (no config.json)")
        return build_config(json.loads(path.read_text()), str(path))

    def _take_lock(self) -> None:
        self._lock = (self.folder / "run.lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise StoreError(
                f"{self.folder} is in use by another process; wait for it, or choose another run_dir"
            ) from None

    def _check_disk(self, need_gb: float) -> None:
        free = shutil.disk_usage(self.folder).free / 1e9
        if free < need_gb:
            raise StoreError(
                f"{self.folder} has {free:.1f} GB of free disk, store.min_free_gb asks for {need_gb:.1f}; "
                "free some space, choose another run_dir, or lower store.min_free_gb"
            )

    def _check_config(self, config: RunConfig) -> None:
        path = self.folder / "config.json"
        new = config.model_dump(mode="json")
        if path.exists():
            old = json.loads(path.read_text())
            changed = differences(_identity(old), _identity(new))
            if changed:
                raise ConfigError(
                    f"{self.folder} belongs to another configuration: {'; '.join(changed)}. "
                    "Undo the change, choose another run_dir, or continue from here with --fork NEW_RUN_DIR"
                )
        write_atomic(path, json.dumps(new, indent=2))

    def _book_waste(self) -> None:
        for part in sorted((self.folder / "rollouts").glob("*.part")):
            if part.with_suffix(".jsonl").exists():  # killed between the last two steps of finishing it
                part.unlink()
                continue
            lost = sum(json.loads(line).get("started", 0) for line in _whole_lines(part))
            if lost:
                self.append("wasted.jsonl", {"block": part.stem, "rollouts": lost, "time": time.time()}, sync=True)
            part.unlink()

    def _set_aside_later(self, state: RunState | None) -> None:
        """Move what is newer than the state (or half written) out of the way, so that nothing picks it up."""
        version = state.policy.version if state else 0
        for path in (self.folder / "policies").iterdir():
            if not path.name.isdigit() or int(path.name) > version:
                self._to_stale(path)
        metrics = self.folder / "metrics.jsonl"
        keep = state.metrics_bytes if state else 0
        if metrics.exists() and metrics.stat().st_size > keep:
            with metrics.open("r+b") as file:
                file.truncate(keep)

    def _to_stale(self, path: Path) -> None:
        stale = self.folder / "stale"
        stale.mkdir(exist_ok=True)
        target = stale / f"{path.name}-{time.time_ns()}"
        path.rename(target)
        self.event("set_aside", path=str(path.relative_to(self.folder)), to=str(target.relative_to(self.folder)))

    # -- committing --------------------------------------------------------------------------------------------

    def commit(self, state: RunState) -> RunState:
        """Make ``state`` what a relaunch continues from. The weights it names must be on disk already."""
        if state.policy.version and not (self.policy_folder(state.policy.version)).exists():
            raise StoreError(f"state names policy {state.policy.version}, which has no checkpoint in {self.folder}")
        metrics = self.folder / "metrics.jsonl"
        state = state.but(metrics_bytes=metrics.stat().st_size if metrics.exists() else 0)
        write_atomic(self.folder / "state.json", state.model_dump_json(indent=1))
        return state

    def policy_folder(self, version: int) -> Path:
        """Where the checkpoint of a policy version lies."""
        return self.folder / "policies" / f"{version:05d}"

    def saved_versions(self) -> list[int]:
        """Policy versions with a checkpoint, in order."""
        return sorted(int(path.name) for path in (self.folder / "policies").iterdir() if path.name.isdigit())

    def prune(self, keep: set[int], last: int) -> None:
        """Delete checkpoints other than the ``last`` newest and those in ``keep``. Call after a commit."""
        for version in self.saved_versions()[:-last]:
            if version not in keep:
                shutil.rmtree(self.policy_folder(version))

    def fork(self, target: Path, config: RunConfig) -> None:
        """Start ``target`` from this folder's committed state under another configuration.

        Raises StoreError if there is nothing to fork from or ``target`` exists, ConfigError where the weights
        would not fit (another base model).
        """
        state = self.read_state()
        if state is None:
            raise StoreError(f"{self.folder} has no committed state to fork from")
        if config.model != self.read_config().model:
            raise ConfigError(f"model: a fork keeps the base policy {self.read_config().model}, got {config.model}")
        if target.exists() and any(target.iterdir()):
            raise StoreError(f"fork target {target} is not empty; choose another folder")
        target.mkdir(parents=True, exist_ok=True)
        for name in ("rollouts", "candidates", "proposals"):
            shutil.copytree(self.folder / name, target / name, ignore=shutil.ignore_patterns("*.part"))
        (target / "policies").mkdir()
        if state.policy.version:
            shutil.copytree(self.policy_folder(state.policy.version), Store(target).policy_folder(state.policy.version))
        if (self.folder / "metrics.jsonl").exists():
            (target / "metrics.jsonl").write_bytes((self.folder / "metrics.jsonl").read_bytes()[: state.metrics_bytes])
        write_atomic(target / "config.json", config.model_dump_json(indent=2))
        write_atomic(target / "state.json", state.but(finished=False).model_dump_json(indent=1))

    # -- blocks of rollouts ------------------------------------------------------------------------------------

    def read_block(self, key: str) -> list[Rollout] | None:
        """The rollouts of a finished block, or ``None``."""
        path = self.folder / "rollouts" / f"{key}.jsonl"
        if not path.exists():
            return None
        return [rollout_from_json(json.loads(line)) for line in path.read_text().splitlines()]

    @contextlib.contextmanager
    def write_block(self, key: str) -> Iterator[BlockWriter]:
        """Stream rollouts into an open block; it counts once the body has ended without an exception.

        After an ordinary exception the started rollouts are booked as wasted, as after a kill.
        """
        part = self.folder / "rollouts" / f"{key}.part"
        try:
            with part.open("w") as file:
                writer = BlockWriter(file)
                yield writer
            rows = sorted(writer.rows, key=lambda item: item[0])
            finished = part.with_suffix(".tmp")
            with part.open() as source, finished.open("w") as file:
                lines = [line for line in source if not line.startswith('{"started"')]
                file.writelines(lines[place] for _, place in rows)
                _sync(file)
            finished.rename(part.with_suffix(".jsonl"))
            part.unlink()
        except BaseException:
            self._book_waste()
            raise

    def read_rows(self, rows: Sequence[PendingRow]) -> list[Rollout]:
        """The rollouts that pending rows point at. Raises StoreError if a block is missing."""
        blocks: dict[str, list[Rollout]] = {}
        for name in {row.block for row in rows}:
            block = self.read_block(name)
            if block is None:
                raise StoreError(f"block {name} of {self.folder} is missing; restore rollouts/{name}.jsonl")
            blocks[name] = block
        return [blocks[row.block][row.index] for row in rows]

    # -- logs --------------------------------------------------------------------------------------------------

    def append(self, name: str, record: Mapping[str, Any], sync: bool = False) -> None:
        """Append one JSON line to a file of the run folder."""
        with (self.folder / name).open("a") as file:
            file.write(json.dumps(record, default=str) + "\n")
            if sync:
                _sync(file)

    def event(self, event: str, **fields: Any) -> None:
        """Record that something happened (never read back by the loop)."""
        self.append("events.jsonl", {"time": round(time.time(), 3), "event": event, **fields})

    def wasted(self) -> int:
        """Rollouts that were started and lost to an interruption."""
        return sum(json.loads(line)["rollouts"] for line in _whole_lines(self.folder / "wasted.jsonl"))


class BlockWriter:
    """Streams rows to an open block's file; remembers the order they belong in."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self.rows: list[tuple[int, int]] = []

    def started(self, count: int) -> None:
        """Book rollouts as started before they cost anything."""
        self._file.write(json.dumps({"started": count}) + "\n")
        self._file.flush()

    def add(self, order: int, rollout: Rollout) -> None:
        """Write a finished rollout; ``order`` is its place in the finished block."""
        self._file.write(json.dumps(rollout_to_json(rollout), default=str) + "\n")
        self.rows.append((order, len(self.rows)))


def write_atomic(path: Path, text: str) -> None:
    """Replace a file so that a reader (or a crash) sees the old or the new text, never a part."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w") as file:
        file.write(text)
        _sync(file)
    temporary.rename(path)


def _sync(file: IO[str]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _whole_lines(path: Path) -> list[str]:
    """Complete lines of a file that may have been cut in the middle of one."""
    if not path.exists():
        return []
    return [line for line in re.findall(r".*\n", path.read_text(errors="replace")) if line.strip()]


def _identity(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in _IDENTITY_FREE}
