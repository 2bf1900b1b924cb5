"""Every candidate of a run on disk: source, idea, result, and why it was rejected. What proposers read.

``candidates/<id>/``: harness.py, meta.json (what it is), score.json (results per policy version, newest last),
rejected.json where it never got a score. Scores belong to (harness, policy version); ideas and reasons carry over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from whale.harness.validate import code_hash, source_hash
from whale.store import write_atomic
from whale.types import Candidate, Score


class Archive:
    """The candidates of a run folder. Writing the same candidate or result again changes nothing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def folder(self) -> Path:
        """``candidates/`` of the run."""
        return self._folder

    def candidates(self) -> list[Candidate]:
        """Every candidate so far in order of proposal, rejected ones included."""
        names = [path.name for path in self._folder.iterdir() if (path / "meta.json").exists()]
        return [self.get(name) for name in sorted(names, key=lambda name: int(name[1:]))]

    def get(self, candidate_id: str) -> Candidate:
        """One candidate. Raises KeyError with the id if there is none."""
        folder = self._folder / candidate_id
        if not (folder / "meta.json").exists():
            raise KeyError(candidate_id)
        meta = json.loads((folder / "meta.json").read_text())
        return Candidate(source=(folder / "harness.py").read_text(), **meta)

    def add(self, candidate: Candidate) -> None:
        """Write a candidate's files."""
        folder = self._folder / candidate.id
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "harness.py").write_text(candidate.source)
        meta = {key: value for key, value in asdict(candidate).items() if key != "source"}
        write_atomic(folder / "meta.json", json.dumps(meta, indent=1))

    def clear_from(self, number: int) -> None:
        """Forget candidates numbered ``number`` and later: a search that is replayed proposes them anew."""
        for path in self._folder.iterdir():
            if path.name[1:].isdigit() and int(path.name[1:]) >= number and (path / "meta.json").exists():
                (path / "meta.json").unlink()
                for name in ("score.json", "rejected.json"):
                    (path / name).unlink(missing_ok=True)

    def reject(self, candidate_id: str, stage: str, reason: str) -> None:
        """Record why a candidate never got a score. stage: ``check``, ``smoke``, ``duplicate``, ``evaluation``."""
        write_atomic(self._folder / candidate_id / "rejected.json", json.dumps({"stage": stage, "reason": reason}))

    def rejected(self, candidate_id: str) -> dict[str, str] | None:
        """Stage and reason of a rejection, or ``None``."""
        found: dict[str, str] | None = _read(self._folder / candidate_id / "rejected.json")
        return found

    def record(self, score: Score, candidate_id: str, phase: int) -> None:
        """Add a result; one per (policy version, phase)."""
        scores = [
            s for s in self.scores(candidate_id) if (s["policy_version"], s["phase"]) != (score.policy_version, phase)
        ]
        scores.append({**asdict(score), "reasons": dict(score.reasons), "phase": phase})
        write_atomic(self._folder / candidate_id / "score.json", json.dumps(scores, indent=1))

    def scores(self, candidate_id: str) -> list[dict[str, Any]]:
        """Results of a candidate, newest last."""
        return _read(self._folder / candidate_id / "score.json") or []

    def failures(self, candidate_id: str) -> Mapping[str, int]:
        """Failure reasons of the latest evaluation and how often each occurred."""
        scores = self.scores(candidate_id)
        return scores[-1]["reasons"] if scores else {}

    def duplicate_of(self, source: str) -> str | None:
        """Id of an earlier candidate with the same code up to comments and formatting."""
        wanted = code_hash(source)
        for candidate in self.candidates():
            if self.rejected(candidate.id) is None and code_hash(candidate.source) == wanted:
                return candidate.id
        return None


def make_candidate(number: int, source: str, **fields: Any) -> Candidate:
    """A candidate with its id and hash filled in."""
    return Candidate(id=f"h{number}", source=source, hash=source_hash(source), **fields)


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None
