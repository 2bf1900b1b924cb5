"""Forward passes at load that find out whether a model computes what whale relies on.

A configuration says what its author thought of; numbers say what the layers do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from whale.engines import attention
from whale.engines.prefix_tree import build

if TYPE_CHECKING:
    from whale.engines.local_model import LocalModel

SHARED, BRANCH = 5, 4
"""Tokens of the probe's common prefix and of each of its two branches."""


@torch.no_grad()
def choose_attention(net: Any) -> None:
    """Leave a model that was loaded with the fast attention function with it, or with transformers' eager one where
    only that computes the model: the fast one ignores what it does not know, such as capped scores or sinks."""
    config = net.config.get_text_config(decoder=True)
    ids = _ids(net.device, config.vocab_size)[None]
    # Caps hardly show on a few tokens, so that a declared one decides alone.
    fast = None if getattr(config, "attn_logit_softcapping", None) is not None else _try_logits(net, ids)
    net.set_attn_implementation("eager")
    if fast is not None and _same(fast, net(input_ids=ids, use_cache=False).logits):
        net.set_attn_implementation(attention.NAME)


def _try_logits(net: Any, ids: Tensor) -> Tensor | None:
    """Logits, or ``None`` where the attention function refuses what the model asks of it."""
    try:
        return net(input_ids=ids, use_cache=False).logits  # type: ignore[no-any-return]
    except (ValueError, NotImplementedError):
        return None


def branch_fault(model: LocalModel) -> str:
    """Why trees and branches cannot be used with a model, or nothing: what its configuration declares about its
    layers, then a tree of two branches against its two rows computed plainly."""
    config = model.net.config.get_text_config(decoder=True)
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        others = sorted(set(kinds) - {"full_attention"})
        if others:
            return f"layers of type {', '.join(others)}"
    elif getattr(config, "sliding_window", None) is not None:
        return f"a sliding window of {config.sliding_window} tokens"
    if model.net.config._attn_implementation != attention.NAME:
        return "attention that only transformers' eager code computes"
    return "" if _tree_is_exact(model) else "layers that mix tokens of different branches, as a probe found"


@torch.no_grad()
def head_is_exact(model: LocalModel) -> bool:
    """Whether ``head(decoder(...))`` gives the model's own logits."""
    ids = _ids(model.device, model.vocabulary)[None]
    own = model.net(input_ids=ids, use_cache=False).logits
    return _same(own, model.head(model.decoder(input_ids=ids, use_cache=False).last_hidden_state))


@torch.no_grad()
def _tree_is_exact(model: LocalModel) -> bool:
    ids = _ids(model.device, model.vocabulary).cpu().numpy()
    rows = [ids[: SHARED + BRANCH], np.concatenate([ids[:SHARED], ids[SHARED + BRANCH :]])]
    rows.sort(key=lambda row: tuple(row.tolist()))
    tree, device = build(rows), model.device
    nodes, depth, end = (torch.from_numpy(array).to(device) for array in (tree.ids, tree.depth, tree.end))
    try:
        planned = model.hidden(nodes[None], depth[None], attention.TreePlan(end))[0]
    except (TypeError, ValueError, IndexError, RuntimeError):  # this model's layers do not hand the plan on
        return False
    plain = model.decoder(input_ids=torch.from_numpy(np.stack(rows)).to(device), use_cache=False).last_hidden_state
    return _same(torch.stack([planned[torch.from_numpy(path).to(device)] for path in tree.paths]), plain)


def _ids(device: torch.device, vocabulary: int) -> Tensor:
    """(SHARED + 2 * BRANCH,) ids, all different where the vocabulary allows."""
    return (torch.arange(SHARED + 2 * BRANCH, device=device) * 7 + 3) % vocabulary


def _same(first: Tensor, second: Tensor) -> bool:
    """Equal up to rounding: of the type, growing over the layers, relative to the largest value."""
    share = 1e-3 if second.dtype is torch.float32 else 4e-2
    return bool((first.float() - second.float()).abs().max() <= share * second.float().abs().max())
