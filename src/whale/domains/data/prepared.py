"""Reads the splits that ``whale data prepare`` wrote."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whale.domains.data.splits import to_task
from whale.errors import DomainError
from whale.types import SPLITS, Split, Task

MANIFEST = "manifest.json"
SCHEMA = 1


def read_prepared(folder: Path, domain: str) -> dict[Split, list[Task]]:
    """Tasks of every split of a finished preparation, in the order of its files; a split without tasks is empty.

    Raises DomainError naming the file and the way out: an unfinished folder, one of another domain, a file that is
    not the one that was written.
    """
    manifest = read_manifest(folder)
    if manifest["domain"] != domain:
        raise DomainError(f"{folder} was prepared for domain {manifest['domain']!r}, not for {domain!r}")
    return {split: _read_split(folder / f"{split}.jsonl", manifest["splits"].get(split)) for split in SPLITS}


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a finished preparation. Raises DomainError."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        state = "its preparation is not finished" if (folder / "parts").exists() else "it was never prepared"
        raise DomainError(
            f"{folder} has no {MANIFEST}: {state}; give the command whale data prepare (again) with --out {folder}"
        ) from None
    except (OSError, ValueError) as error:
        raise DomainError(f"{path} cannot be read: {error}; prepare the folder again with --force") from error
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        found = manifest.get("schema") if isinstance(manifest, dict) else None
        raise DomainError(f"{path}: schema {found!r}, this version of whale reads {SCHEMA}; prepare the folder again")
    return manifest


def _read_split(path: Path, expected: Mapping[str, Any] | None) -> list[Task]:
    if expected is None:
        return []
    again = "prepare the folder again with --force"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DomainError(f"{path} cannot be read: {error.strerror or error}; {again}") from error
    lines = data.split(b"\n")[:-1]
    if len(lines) != expected["rows"]:
        raise DomainError(f"{path} has {len(lines)} rows, the manifest says {expected['rows']}; {again}")
    if hashlib.sha256(data).hexdigest() != expected["sha256"]:
        raise DomainError(f"{path} is not the file that was written: its sha256 differs from the manifest's; {again}")
    return [to_task(json.loads(line)) for line in lines]
