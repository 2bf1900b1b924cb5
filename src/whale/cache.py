"""Where whale keeps what it fetched or built: models, indexes, verdicts of a judge."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$WHALE_CACHE`` or ``~/.cache/whale`` (it may not exist yet)."""
    return Path(os.environ.get("WHALE_CACHE") or Path.home() / ".cache" / "whale").expanduser()
