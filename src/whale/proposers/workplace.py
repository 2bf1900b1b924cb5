"""A folder for one session, outside every run folder, gone afterwards; also what a killed process left of its own.

It may hold the copy of a login, so leftovers are not left to the system's own cleaning.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "whale-proposer-"
_LOCK = "lock"


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A new folder that only its owner can enter; deleted at the end. ``TMPDIR`` decides where."""
    _sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        with (folder / "unlocked").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (folder / "unlocked").rename(folder / _LOCK)  # nobody sees it before it is held
            yield folder


def _sweep(place: Path) -> None:
    """Delete workplaces whose process is gone: a lock ends with its holder."""
    for leftover in place.glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError), leftover.open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(leftover.parent, ignore_errors=True)
