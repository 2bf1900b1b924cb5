"""A checkpoint as a plain folder that other programs load, and how far the copy is from the policy that was trained.

Adapters are merged here and nowhere else. Merging rounds, so every export is loaded again and compared.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from whale.engines import adapters
from whale.engines.local_model import LocalModel, load_net, quiet
from whale.errors import TrainerError
from whale.trainers import checkpoint

COMPARED = 512
"""Tokens that policy and export are compared on, and at most how many of one sequence."""

ROW = 128

AGREEMENT = 0.99
"""Share of equal likeliest tokens below which an export is not the policy that was scored."""

Dtype = Literal["float32", "bfloat16"]


def open_checkpoint(folder: Path) -> LocalModel:
    """The policy of a checkpoint, unmerged, as it was trained. Raises TrainerError or EngineError."""
    kind = checkpoint.kind_of(folder)
    weights, _, state = checkpoint.read(folder, kind)
    model = LocalModel(
        state["policy"]["base"], dtype=state.get("dtype", "float32"), adapter=_adapter(state.get("adapter"))
    )
    checkpoint.install(model, folder, weights, state)
    return model


def export(
    source: Path, out: Path, sequences: Sequence[Sequence[int]] = (), *, merge: bool = True, dtype: Dtype | None = None
) -> dict[str, Any]:
    """Write the policy of checkpoint ``source`` to the folder ``out`` and compare the two.

    sequences: token ids to compare on; seeded random ids where there are none. merge: an adapter into the base
    weights; otherwise the adapter alone, in peft's format. dtype: of the written weights (``None``: of the base).

    Returns ``policy_version``, ``dtype``, ``tokens`` compared, ``max_logit_difference``, ``argmax_agreement`` (share),
    ``agrees`` (at least ``AGREEMENT``) and ``adapter``: its folder, kept beside a merge that does not agree.
    Raises TrainerError if ``out`` holds something, or for an adapter that is not there or would need another dtype.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise TrainerError(f"export: {out} exists already and is not an empty folder; choose another one")
    kind = checkpoint.kind_of(source)
    if not merge and kind == "full":
        raise TrainerError(f"export: {source} holds full weights and no adapter; leave --adapter out")
    if not merge and dtype is not None:
        raise TrainerError(f"export: an adapter is copied as it is (fp32), dtype {dtype} cannot be asked for")
    model = open_checkpoint(source)
    if merge:
        copy = _write_merged(model, out, dtype)
    else:
        _copy_adapter(source, out)
        copy = _with_adapter(model, out)
    figures = _compare(model, copy, sequences)
    kept = "" if merge else str(out)
    if merge and kind == "adapter" and not figures["agrees"]:
        kept = str(out.with_name(out.name + "-adapter"))
        _copy_adapter(source, Path(kept))
    written = dtype or str(model.dtype).removeprefix("torch.")
    return {"policy_version": model.policy.version, "dtype": written, **figures, "adapter": kept or None}


def _write_merged(model: LocalModel, out: Path, dtype: Dtype | None) -> Any:
    """Write a plain model folder; returns the model that it loads as."""
    kind = model.dtype if dtype is None else getattr(torch, dtype)
    net, _ = load_net(model.folder, "cpu", kind)
    with torch.no_grad():
        for name, tensor in adapters.merged(model.net).items():
            net.get_parameter(name).copy_(tensor)
    try:
        with quiet():
            net.save_pretrained(out)
        model.tokenizer.save_pretrained(out)
    except OSError as error:
        raise TrainerError(f"export: {out} cannot be written ({error})") from error
    del net
    return LocalModel(str(out), dtype=str(kind).removeprefix("torch.")).net


def _copy_adapter(source: Path, out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in (checkpoint.WEIGHTS["adapter"], "adapter_config.json"):
            shutil.copyfile(source / name, out / name)
    except OSError as error:
        raise TrainerError(f"export: {out} cannot be written ({error})") from error


def _with_adapter(model: LocalModel, folder: Path) -> Any:
    """The base with the adapter of a folder, put together by peft itself."""
    from peft import PeftModel

    base = LocalModel(model.name, dtype=str(model.dtype).removeprefix("torch."))
    return PeftModel.from_pretrained(base.net, str(folder)).eval()


@torch.no_grad()
def _compare(model: LocalModel, copy: Any, sequences: Sequence[Sequence[int]]) -> dict[str, Any]:
    tokens, agreeing, largest = 0, 0, 0.0
    for ids in _rows(sequences, model.vocabulary):
        first, second = (net(input_ids=ids, use_cache=False).logits[0].float() for net in (model.net, copy))
        tokens += len(first)
        agreeing += int((first.argmax(-1) == second.argmax(-1)).sum())
        largest = max(largest, float((first - second).abs().max()))
    share = agreeing / tokens
    return {
        "tokens": tokens,
        "max_logit_difference": largest,
        "argmax_agreement": share,
        "agrees": share >= AGREEMENT,
    }


def _rows(sequences: Sequence[Sequence[int]], vocabulary: int) -> list[Tensor]:
    """``COMPARED`` tokens at most, in rows (1, T) of at most ``ROW``: the ends of the sequences, or random ids."""
    rows = [torch.tensor([ids[-ROW:]]) for ids in sequences[: COMPARED // ROW] if ids]
    if rows:
        return rows
    generator = torch.Generator().manual_seed(0)
    return list(torch.randint(vocabulary, (COMPARED // ROW, 1, ROW), generator=generator))


def _adapter(state: Mapping[str, Any] | None) -> adapters.Adapter | None:
    if state is None:
        return None
    targets = state["targets"] if isinstance(state["targets"], str) else tuple(state["targets"])
    return adapters.Adapter(**{**state, "targets": targets})
