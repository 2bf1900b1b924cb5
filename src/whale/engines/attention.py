"""One attention function for trees and branches, registered with transformers under the name ``whale``.

A forward pass that carries ``whale_plan=plan`` hands queries, keys and values of every layer to the plan;
without a plan the function is transformers' own ``sdpa``, so a model loaded with it behaves as ever. A plan
owns keys and values that a cache would repeat per row: this is where shared prefixes are shared.

Shapes: B rows or 1, H query heads, G = H / K query heads per key/value head, K key/value heads, D head size.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "whale"


class Plan(Protocol):
    """What a forward pass does instead of plain causal attention."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """query (B, H, T, D), key and value (B, K, T, D), rotated -> output (B, T, H, D)."""
        ...


def no_mask(model: Any) -> Tensor:
    """The ``attention_mask`` to pass along with a plan: 4-D masks are handed through, so none is built."""
    return torch.empty(1, 1, 0, 0, device=model.device)


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    whale_plan: Plan | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    if whale_plan is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)  # type: ignore[no-any-return]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return whale_plan.attend(module.layer_idx, query, key, value, scale), None


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, sdpa_mask)


def tree_mask(end: Tensor, first: int = 0) -> Tensor:
    """Ancestor mask of nodes in depth-first order: node q sees k when ``k <= q < end[k]``.

    end: (N,) int64, one past the last descendant. first: number of columns before the nodes that all see.
    Returns (1, 1, N, first + N) bool.
    """
    index = torch.arange(len(end), device=end.device)
    seen = (index[None] <= index[:, None]) & (index[:, None] < end[None])
    if first:
        seen = torch.cat([seen.new_ones(len(end), first), seen], 1)
    return seen[None, None]


def attend_masked(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """Plain attention with grouped heads -> (B, T, H, D). mask ``None`` means causal."""
    group = query.shape[1] // key.shape[1]
    if group > 1:
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    out = scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling)
    return out.transpose(1, 2)


class TreePlan:
    """Every node sees its ancestors and itself. Differentiable; used by the trainer."""

    def __init__(self, end: Tensor) -> None:
        """end: (N,) int64, see ``tree_mask``."""
        chain = bool((end == len(end)).all())
        # A float mask once, rather than a bool one that every layer would convert anew.
        self._mask = None if chain else float_mask(tree_mask(end))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        return attend_masked(query, key, value, self._mask, scaling)


def float_mask(seen: Tensor) -> Tensor:
    """0 where seen, -inf elsewhere (fp32)."""
    return torch.zeros(seen.shape, device=seen.device).masked_fill_(~seen, float("-inf"))
