"""The scratch copy an agentic proposer works in, and the guard that notices changes outside its outbox.

A copy in a folder of its own: whatever is done to it, the run folder is not touched. Layout: ``SKILL.md`` (the domain's
brief), ``TASK.md``, ``IDEAS.md`` (every earlier idea with its result), ``harnesses/<id>/`` with ``harness.py``,
``meta.json``, ``score.json``, ``rejected.json`` and ``rollouts.jsonl``, and ``outbox/``, the only place to write to.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whale.proposers.traces import traces
from whale.protocols import ArchiveView
from whale.types import Candidate

OUTBOX = "outbox"
_COPIED = ("harness.py", "meta.json", "score.json", "rejected.json")
_GONE = "missing"


@dataclass(frozen=True)
class Scratch:
    """A scratch copy on disk. folder: its root; all but ``outbox`` is for reading."""

    folder: Path

    @property
    def outbox(self) -> Path:
        """Where the proposer writes."""
        return self.folder / OUTBOX


def make_scratch(
    folder: Path, archive: ArchiveView, skill: str, task: str, visible: Collection[str] | None = None
) -> Scratch:
    """Write a scratch copy of the archive into ``folder`` (made if missing).

    skill: the domain's brief. task: what is asked this time. visible: ids of the search tasks whose rollouts may be
    shown; ``None`` shows all. Raises OSError where the disk refuses.
    """
    (folder / OUTBOX).mkdir(parents=True)
    (folder / "SKILL.md").write_text(skill, encoding="utf-8")
    (folder / "TASK.md").write_text(task, encoding="utf-8")
    candidates = archive.candidates()
    (folder / "IDEAS.md").write_text(ideas(archive.folder, candidates), encoding="utf-8")
    for candidate in candidates:
        _copy_candidate(archive.folder, candidate, folder / "harnesses" / candidate.id, visible)
    return Scratch(folder)


def _copy_candidate(archive: Path, candidate: Candidate, target: Path, visible: Collection[str] | None) -> None:
    target.mkdir(parents=True)
    for name in _COPIED:
        if (archive / candidate.id / name).exists():
            shutil.copyfile(archive / candidate.id / name, target / name)
    keys = read_json(archive / candidate.id / "blocks.json") or []
    lines = list(traces(archive.parent / "rollouts", keys, candidate.hash, visible))
    if lines:
        (target / "rollouts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def ideas(archive: Path, candidates: Collection[Candidate]) -> str:
    """Every idea so far in order, with its results per policy version or the reason it was rejected."""
    lines = ["# What was tried", ""]
    for candidate in candidates:
        origin = f"from {candidate.parent}, phase {candidate.phase + 1}, round {candidate.round}"
        lines.append(f"## {candidate.id} ({origin if candidate.parent else 'the seed harness'})")
        for name in ("axis", "mechanism", "hypothesis"):
            if getattr(candidate, name):
                lines.append(f"- {name}: {getattr(candidate, name)}")
        lines += [f"- {line}" for line in _results(archive / candidate.id)]
        lines.append("")
    return "\n".join(lines)


def _results(folder: Path) -> list[str]:
    rejected = read_json(folder / "rejected.json")
    if rejected:
        return [f"rejected at {rejected['stage']}: {rejected['reason'].strip()}"]
    return [_result(score) for score in read_json(folder / "score.json") or []] or ["not evaluated"]


def _result(score: Mapping[str, Any]) -> str:
    mean = "no valid rollout" if score["mean"] is None else f"success {score['mean']:.3f}"
    reasons = ", ".join(f"{name} {count}" for name, count in sorted(score["reasons"].items(), key=lambda r: -r[1]))
    where = f"policy {score['policy_version']}, phase {score['phase'] + 1}"
    return f"{where}: {mean} on {score['valid']} of {score['total']} rollouts, {score['turns']:.1f} turns" + (
        f"; {reasons}" if reasons else ""
    )


@dataclass(frozen=True)
class Change:
    """A protected file that is not what it was. after: ``missing`` if it is gone."""

    path: str
    before: str
    after: str


class Guard:
    """Hashes files before a session and says afterwards which were changed or removed."""

    def __init__(self, root: Path, spared: Path | None = None) -> None:
        """root: what is protected. spared: a folder in it that may change."""
        self._root = root
        self._spared = spared
        self._before = self._hashes()

    def changes(self) -> list[Change]:
        """What differs from before. New files beside the protected ones are nobody's loss and not reported."""
        after = self._hashes()
        found = ((path, digest, after.get(path, _GONE)) for path, digest in self._before.items())
        return [Change(*item) for item in found if item[1] != item[2]]

    def _hashes(self) -> dict[str, str]:
        paths = [path for path in sorted(self._root.rglob("*")) if not self._is_spared(path)]
        return {str(path.relative_to(self._root)): _digest(path) for path in paths if _is_plain(path)}

    def _is_spared(self, path: Path) -> bool:
        return self._spared is not None and path.is_relative_to(self._spared)


class Keeper(Guard):
    """A guard that also remembers the contents, and puts back what was changed. For small files."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._contents = {path: (root / path).read_bytes() for path in self._before}

    def restore(self) -> list[Change]:
        """Put changed and removed files back; returns what was changed."""
        found = self.changes()
        for change in found:
            path = self._root / change.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.write_bytes(self._contents[change.path])
        return found


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def read_json(path: Path) -> Any:
    """What a JSON file holds, or ``None`` if there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
