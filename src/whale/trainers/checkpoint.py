"""A checkpoint folder: a model folder that transformers loads too, plus the optimizer and counters.

``model.safetensors``, ``config.json`` and the tokenizer; ``optimizer.safetensors``; ``trainer.json``; and, written
last and only after everything else is on disk, ``complete.json`` with the size of each file. A folder without it,
or whose files have other sizes, is not a checkpoint.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from whale.errors import TrainerError

MARKER = "complete.json"
WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "trainer.json"


def write(
    folder: Path,
    weights: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, Any],
    describe: Callable[[Path], None],
) -> None:
    """Write a checkpoint. state: JSON-ready. describe: adds the model's configuration and tokenizer to the folder.

    Raises TrainerError if the folder cannot be written.
    """
    from safetensors.torch import save_file

    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARKER).unlink(missing_ok=True)
        describe(folder)
        save_file(dict(weights), folder / WEIGHTS, metadata={"format": "pt"})
        save_file(dict(optimizer), folder / OPTIMIZER)
        (folder / STATE).write_text(json.dumps(state, indent=1))
        files = sorted(file for file in folder.iterdir() if file.is_file())
        for file in files:
            _sync(file)
        _mark(folder, {file.name: file.stat().st_size for file in files})
    except OSError as error:
        raise TrainerError(f"checkpoint: {folder} cannot be written ({error})") from error


def read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """Weights, optimizer tensors and state of a checkpoint. Raises TrainerError unless it is whole."""
    from safetensors.torch import load_file

    _check(folder)
    try:
        state = json.loads((folder / STATE).read_text())
        return load_file(folder / WEIGHTS), load_file(folder / OPTIMIZER), state
    except Exception as error:  # safetensors raises its own type on damaged files
        raise TrainerError(f"checkpoint: {folder} cannot be read ({type(error).__name__}: {error})") from error


def _check(folder: Path) -> None:
    marker = folder / MARKER
    if not marker.is_file():
        raise TrainerError(f"checkpoint: {folder} is not complete ({MARKER} is missing); use an earlier one")
    try:
        sizes = json.loads(marker.read_text())["files"]
    except (ValueError, KeyError, TypeError) as error:
        raise TrainerError(f"checkpoint: {marker} cannot be read ({error}); use an earlier one") from error
    for name, size in sizes.items():
        found = (folder / name).stat().st_size if (folder / name).is_file() else None
        if found != size:
            raise TrainerError(f"checkpoint: {folder / name} has {found} bytes, expected {size}; use an earlier one")


def _mark(folder: Path, sizes: Mapping[str, int]) -> None:
    fresh = folder / (MARKER + ".new")
    fresh.write_text(json.dumps({"files": sizes}, indent=1))
    _sync(fresh)
    _sync(folder)
    os.replace(fresh, folder / MARKER)
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
