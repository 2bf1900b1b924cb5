"""What a session left behind: judged by the files alone, whatever the program said about them.

Everything here was written by a proposer and is treated as such: links are refused, texts are cut and made printable.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whale.harness.validate import MAX_SOURCE_BYTES

HARNESS = "harness.py"
MANIFEST = "manifest.json"
IDEA_FIELDS = ("hypothesis", "axis", "mechanism")
_IDEA_CHARACTERS = 2_000


@dataclass(frozen=True)
class Collected:
    """entries: the manifest as it was written for the search. rebuilt: the proposer's own was missing or unreadable,
    or did not name every file."""

    entries: tuple[Mapping[str, Any], ...]
    rebuilt: bool


def collect(source: Path, target: Path, slots: int) -> Collected:
    """Copy the candidates in ``source`` to ``target/<slot>/harness.py`` and write ``target/manifest.json``.

    At most ``slots`` are taken: those the proposer's manifest names in its order, then other ``*/harness.py``. A file
    that is only half written is taken too; the checks that follow reject it with a reason the next session can read.
    """
    named = _named(source)
    known = {path for path, _ in named}
    others = [path for path in map(_real, sorted(source.glob(f"*/{HARNESS}"))) if path not in known]
    found = [*named, *((path, {}) for path in others)]
    entries: list[Mapping[str, Any]] = []
    for path, idea in found:
        text = _source(path, source)
        if text is None or len(entries) == slots:
            continue
        slot = str(len(entries))
        (target / slot).mkdir()
        (target / slot / HARNESS).write_text(text, encoding="utf-8")
        entries.append({"file": f"{slot}/{HARNESS}", **_idea(idea), "spec": {}})
    (target / MANIFEST).write_text(json.dumps(entries, indent=1))
    return Collected(tuple(entries), rebuilt=bool(others) and bool(entries))


def _named(source: Path) -> list[tuple[Path, Mapping[str, Any]]]:
    """Files that the proposer's manifest names, each once, with what it says of them."""
    try:
        found = json.loads((source / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return []
    if isinstance(found, dict):
        found = found.get("candidates")
    named: dict[Path, Mapping[str, Any]] = {}
    for entry in found if isinstance(found, list) else []:
        name = entry.get("file") if isinstance(entry, dict) else None
        if isinstance(name, str) and name and "\0" not in name:
            named.setdefault(_real(source / name.removeprefix("outbox/")), entry)
    return list(named.items())


def _source(path: Path, root: Path) -> str | None:
    """Text of a file, or ``None`` if it is empty, no plain file, or outside ``root`` once links are followed."""
    try:
        if not path.is_relative_to(_real(root)) or not path.is_file():
            return None
        with path.open("rb") as file:
            text = file.read(MAX_SOURCE_BYTES + 1).decode("utf-8", "replace").replace("\r\n", "\n")
    except OSError:  # a name that is too long, a file without permission to read
        return None
    return text if text.strip() else None


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _idea(entry: Mapping[str, Any]) -> dict[str, str]:
    return {name: printable(entry.get(name, ""))[:_IDEA_CHARACTERS] for name in IDEA_FIELDS}


def printable(value: Any) -> str:
    """A text that can be written to any file: strings as they are (lone surrogates replaced), the rest as JSON."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text.encode("utf-8", "replace").decode().replace("\0", "")
