"""A proposer that follows a script."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whale.protocols import ArchiveView


class ScriptedProposer:
    """Writes the sources of one round after the other; after the last round it has no further idea."""

    name = "scripted"

    def __init__(self, rounds: Sequence[Sequence[str]]) -> None:
        self._rounds = list(rounds)
        self.calls = 0

    def propose(self, archive: ArchiveView, parent: str, outbox: Path, slots: int, seed: int) -> Mapping[str, Any]:
        """Write the next round's files and their manifest."""
        sources = self._rounds[self.calls] if self.calls < len(self._rounds) else []
        self.calls += 1
        manifest = []
        for slot, source in enumerate(sources[:slots]):
            (outbox / str(slot)).mkdir()
            (outbox / str(slot) / "harness.py").write_text(source)
            entry = {
                "file": f"{slot}/harness.py",
                "hypothesis": f"round {self.calls}",
                "axis": "script",
                "mechanism": "script",
            }
            manifest.append({**entry, "spec": {}})
        (outbox / "manifest.json").write_text(json.dumps(manifest))
        return {"seconds": 0.0, "money": 0.0, "calls": 0}
