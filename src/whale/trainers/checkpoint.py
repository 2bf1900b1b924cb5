"""A checkpoint folder: a model or adapter folder that transformers or peft loads too, plus the optimizer and counters.

``model.safetensors``, ``config.json`` and the tokenizer, or, where an adapter is trained, nothing of the base but
``adapter_model.safetensors`` and ``adapter_config.json``; ``optimizer.safetensors``; ``trainer.json``; and, written
last and only after everything else is on disk, ``complete.json`` with the size of each file. A folder without it,
or whose files have other sizes, is not a checkpoint.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from whale.engines.adapters import file_name
from whale.engines.local_model import LocalModel
from whale.errors import TrainerError
from whale.types import Policy

MARKER = "complete.json"
Kind = Literal["full", "adapter"]
WEIGHTS: dict[Kind, str] = {"full": "model.safetensors", "adapter": "adapter_model.safetensors"}
OPTIMIZER = "optimizer.safetensors"
STATE = "trainer.json"


def write(
    folder: Path,
    kind: Kind,
    weights: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, Any],
    describe: Callable[[Path], None],
) -> None:
    """Write a checkpoint. kind: of the weights. state: JSON-ready. describe: adds what makes them loadable by others
    to the folder.

    Raises TrainerError if the folder cannot be written.
    """
    from safetensors.torch import save_file

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (MARKER, *WEIGHTS.values()):
            (folder / name).unlink(missing_ok=True)
        describe(folder)
        save_file(dict(weights), folder / WEIGHTS[kind], metadata={"format": "pt"})
        save_file(dict(optimizer), folder / OPTIMIZER)
        (folder / STATE).write_text(json.dumps(state, indent=1))
        files = sorted(file for file in folder.iterdir() if file.is_file())
        for file in files:
            _sync(file)
        _mark(folder, {file.name: file.stat().st_size for file in files})
    except OSError as error:
        raise TrainerError(f"checkpoint: {folder} cannot be written ({error})") from error


def read(folder: Path, kind: Kind) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """Weights, optimizer tensors and state of a checkpoint. Raises TrainerError unless it is whole and of ``kind``."""
    from safetensors.torch import load_file

    found = kind_of(folder)
    if found != kind:
        raise TrainerError(
            f"checkpoint: {folder} holds {_WORDS[found]}, this run trains {_WORDS[kind]}; set trainer.lora_rank as it "
            "was when the checkpoint was written, or use another checkpoint"
        )
    with _reading(folder):
        return load_file(folder / WEIGHTS[kind]), load_file(folder / OPTIMIZER), read_state(folder)


def read_state(folder: Path) -> dict[str, Any]:
    """State of a checkpoint alone. Raises TrainerError if it cannot be read."""
    with _reading(folder):
        state: dict[str, Any] = json.loads((folder / STATE).read_text())
        return state


def kind_of(folder: Path) -> Kind:
    """What a checkpoint holds. Raises TrainerError unless it is whole."""
    return "adapter" if WEIGHTS["adapter"] in _check(folder) else "full"


def install(model: LocalModel, folder: Path, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Put a checkpoint's weights and policy, as read from ``folder``, into a model.

    Raises TrainerError, and changes nothing, if they are not this model's.
    """
    own, saved = model.weights(), Policy(**state["policy"])
    if saved.base != model.base.base:
        raise TrainerError(f"checkpoint: {folder} is of {saved.base!r}, this run uses {model.base.base!r}")
    dtype = str(model.dtype).removeprefix("torch.")
    if state.get("dtype", "float32") != dtype:
        raise TrainerError(f"checkpoint: {folder} was trained in {state['dtype']}, this run has engine.dtype={dtype}")
    found, here = _scale(state.get("adapter")), _scale(dataclasses.asdict(model.adapter) if model.adapter else None)
    if found != here:
        raise TrainerError(f"checkpoint: the adapter of {folder} has {found}, this run's {here} (trainer.lora_alpha)")
    if {n: t.shape for n, t in weights.items()} != {file_name(n): t.shape for n, t in own.items()}:
        raise TrainerError(f"checkpoint: tensors of {folder} have other names or shapes than the model's")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[file_name(name)])
    model.policy = dataclasses.replace(saved, path=str(folder))
    model.dirty = bool(state["dirty"])


def _scale(adapter: Mapping[str, Any] | None) -> str:
    return f"rank {adapter['rank']} and alpha {adapter['alpha']}" if adapter else "no adapter"


_WORDS: dict[Kind, str] = {"full": "full weights", "adapter": "an adapter"}


@contextmanager
def _reading(folder: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # safetensors raises its own type on damaged files
        raise TrainerError(f"checkpoint: {folder} cannot be read ({type(error).__name__}: {error})") from error


def _check(folder: Path) -> dict[str, int]:
    """Sizes of the files of a whole checkpoint."""
    marker = folder / MARKER
    if not marker.is_file():
        raise TrainerError(f"checkpoint: {folder} is not complete ({MARKER} is missing); use an earlier one")
    try:
        sizes: dict[str, int] = json.loads(marker.read_text())["files"]
    except (ValueError, KeyError, TypeError) as error:
        raise TrainerError(f"checkpoint: {marker} cannot be read ({error}); use an earlier one") from error
    for name, size in sizes.items():
        found = (folder / name).stat().st_size if (folder / name).is_file() else None
        if found != size:
            raise TrainerError(f"checkpoint: {folder / name} has {found} bytes, expected {size}; use an earlier one")
    return sizes


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
