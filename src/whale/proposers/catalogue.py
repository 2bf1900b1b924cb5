"""The offline proposer: candidates put together from a domain's catalogue of pieces, deterministic from the seed."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whale.protocols import ArchiveView, Catalogue


class CatalogueProposer:
    """Changes one axis of the parent per slot, driven by the parent's failures and by what was tried before."""

    name = "catalogue"

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def propose(self, archive: ArchiveView, parent: str, outbox: Path, slots: int, seed: int) -> Mapping[str, Any]:
        """Write up to ``slots`` files and their manifest; an empty manifest means that nothing is left to try."""
        began = time.monotonic()
        candidates = {candidate.id: candidate for candidate in archive.candidates()}
        ideas = self._catalogue.propose(
            parent=candidates[parent].spec,
            tried=[candidate.spec for candidate in candidates.values()],
            reasons=archive.failures(parent),
            slots=slots,
            seed=seed,
        )
        manifest = []
        for slot, idea in enumerate(ideas):
            (outbox / str(slot)).mkdir(parents=True)
            (outbox / str(slot) / "harness.py").write_text(self._catalogue.render(idea["spec"]))
            manifest.append({"file": f"{slot}/harness.py", **idea})
        (outbox / "manifest.json").write_text(json.dumps(manifest, indent=1))
        return {"seconds": round(time.monotonic() - began, 3), "money": 0.0, "calls": 0}
