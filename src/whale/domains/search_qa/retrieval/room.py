"""What an index needs and what the machine has, compared before anything is loaded."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from whale.domains.search_qa.retrieval.base import RetrievalError, Say


@dataclass(frozen=True)
class Room:
    """Free bytes: ``memory`` that a program may still take, ``disk`` under the cache folder."""

    memory: int
    disk: int


Measure = Callable[[Path], Room]
"""Gives the room of this machine for a cache folder."""


def measure_room(folder: Path) -> Room:
    """The room of this machine; the limit of a container counts where it is the smaller one."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    memory = min([int(psutil.virtual_memory().available), *_container_room()])
    return Room(memory, shutil.disk_usage(existing).free)


def _container_room() -> list[int]:
    root = Path("/sys/fs/cgroup")
    try:
        limit = (root / "memory.max").read_text().strip()
        used = int((root / "memory.current").read_text())
        reclaimable = next(
            int(line.split()[1]) for line in (root / "memory.stat").read_text().splitlines() if line.startswith("file ")
        )
    except (OSError, ValueError, StopIteration):
        return []
    return [] if limit == "max" else [max(0, int(limit) - used + reclaimable)]


def check_room(what: str, memory: int, disk: int, room: Room, way_out: str, say: Say) -> None:
    """Say what is needed and what is free, in bytes, and raise RetrievalError if it does not fit."""
    parts = [("memory", memory, room.memory), ("disk", disk, room.disk)]
    figures = "; ".join(f"{name} {_gb(need)} of {_gb(free)} free" for name, need, free in parts if need)
    say(f"{what} needs: {figures}")
    short = [f"{_gb(need)} of {name}, {_gb(free)} are free" for name, need, free in parts if need > free]
    if short:
        raise RetrievalError(f"{what} needs {' and '.join(short)}. {way_out}")


def _gb(count: int) -> str:
    """Bytes in a unit that shows at least one digit: decimal, as disks are sold."""
    unit, size = next(((u, s) for u, s in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if count >= s / 10), ("B", 1))
    return f"{count / size:.1f} {unit}" if size > 1 else f"{count} B"
