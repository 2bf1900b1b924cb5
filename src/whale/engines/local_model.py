"""A model in this process: what the engine samples from and the trainer changes, one copy of the weights."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whale.engines import attention
from whale.errors import EngineError
from whale.models import resolve
from whale.types import Policy

PROBE = 6
"""Tokens of the forward pass that checks, at load, whether the fast kernels give this model's own logits."""

SAMPLE = 1 << 20
"""Bytes at each end of a weight file that go into the base digest."""


class LocalModel:
    """Weights, tokenizer and the policy version they stand for, shared by ``TransformersEngine`` and ``TorchTrainer``.

    net: the transformers model, in eval mode always (no dropout, also when trained). decoder, head: its body and
    its output layer; logits are ``head(decoder(...))``. full_attention: every layer is plain full attention, so
    trees and branches apply. policy: version that the weights stand for. dirty: they changed since it was
    published. token_bytes: memory of one token's keys and values. Not thread-safe.
    """

    def __init__(self, name: str, *, device: str = "cpu", dtype: str = "float32", threads: int | None = None) -> None:
        """name: a known model, a folder or a hub id, see ``whale.models.resolve``. dtype: of the weights, a torch
        name; training needs ``float32``. threads: CPU threads of the whole process (``None``: torch's choice).

        Raises EngineError if the model is not on this machine or is of a kind that cannot be used.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        self.name = name
        self.folder = resolve(name)
        self.net, self.tokenizer = _load(self.folder, device, _dtype(dtype))
        self.decoder: Any = self.net.get_decoder()
        self.head: Any = self.net.get_output_embeddings()
        config = self.net.config.get_text_config(decoder=True)
        self.vocabulary = int(self.head.weight.shape[0])
        self.context_limit = int(getattr(config, "max_position_embeddings", 0) or 1 << 30)
        self.end_ids = _end_ids(self.net, self.tokenizer)
        self.token_bytes = _token_bytes(config, self.dtype)
        names = inspect.signature(self.net.forward).parameters
        self.cache_argument = "cache" if "cache" in names else "past_key_values"
        self.full_attention = _only_full_attention(config) and self._probe_plan()
        self._probe_head()
        self.base = Policy(base=name, version=0, digest=_base_digest(self.folder))
        self.policy = self.base
        self.dirty = False

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.head.weight.device  # type: ignore[no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return self.head.weight.dtype  # type: ignore[no-any-return]

    def hidden(self, ids: Tensor, positions: Tensor, plan: attention.Plan) -> Tensor:
        """Last hidden states (B, T, E) of ids (B, T) at positions (B, T) under an attention plan."""
        output = self.decoder(
            input_ids=ids,
            position_ids=positions,
            attention_mask=attention.no_mask(self.net),
            use_cache=False,
            whale_plan=plan,
        )
        return output.last_hidden_state  # type: ignore[no-any-return]

    def weights(self) -> dict[str, Tensor]:
        """Every trainable tensor by name; tied ones once."""
        return dict(self.net.named_parameters())

    def reload(self) -> None:
        """Base weights from disk into the same tensors; the policy is version 0 again."""
        fresh, _ = _load(self.folder, "cpu", self.dtype, tokenizer=False)
        with torch.no_grad():
            for name, tensor in fresh.named_parameters():
                self.net.get_parameter(name).copy_(tensor)
        self.policy, self.dirty = self.base, False

    @torch.no_grad()
    def _probe_head(self) -> None:
        """Some models scale or cap their logits after the head; whale computes ``head(decoder(...))`` and must know."""
        ids = self._probe_ids()
        own = self.net(input_ids=ids, use_cache=False).logits
        if not _same(own, self.head(self.decoder(input_ids=ids, use_cache=False).last_hidden_state)):
            kind = self.net.config.model_type
            raise EngineError(f"model: {self.name!r} ({kind}) changes its logits after the output layer; not supported")

    @torch.no_grad()
    def _probe_plan(self) -> bool:
        ids = self._probe_ids()
        plan = attention.TreePlan(torch.full((PROBE,), PROBE, device=self.device))
        try:
            planned = self.hidden(ids, torch.arange(PROBE, device=self.device)[None], plan)
        except (TypeError, RuntimeError):  # this model's layers do not hand the plan on
            return False
        return _same(planned, self.decoder(input_ids=ids, use_cache=False).last_hidden_state)

    def _probe_ids(self) -> Tensor:
        return (torch.arange(PROBE, device=self.device) * 7 % self.vocabulary)[None]


def _same(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first.float(), second.float(), rtol=1e-3, atol=1e-3 * float(second.float().abs().max()))


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if isinstance(found, torch.dtype) and found.is_floating_point:
        return found
    raise EngineError(f"model: dtype {name!r} is not one of float32, bfloat16, float16")


def _load(folder: Path, device: str, dtype: torch.dtype, tokenizer: bool = True) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        with quiet():
            net = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=attention.NAME)
            words = AutoTokenizer.from_pretrained(folder) if tokenizer else None
        return net.to(device).eval(), words
    except Exception as error:  # unreadable folders raise types of several libraries
        raise EngineError(f"model: {folder} cannot be loaded ({type(error).__name__}: {error})") from error


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars of transformers inside: whale shows its own progress."""
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if bars:
            logging.enable_progress_bar()


def _only_full_attention(config: Any) -> bool:
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return set(kinds) == {"full_attention"}
    return getattr(config, "sliding_window", None) is None


def _token_bytes(config: Any, dtype: torch.dtype) -> int:
    """Bytes of one token's keys and values, as if every layer kept them."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * int(config.num_hidden_layers) * int(heads) * int(size) * dtype.itemsize


def _end_ids(net: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every id that ends a reply: chat models often declare one in the tokenizer and others in the configs."""
    found: set[int] = set()
    for declared in (net.generation_config.eos_token_id, net.config.eos_token_id, tokenizer.eos_token_id):
        found.update([declared] if isinstance(declared, int) else declared or [])
    if not found:
        raise EngineError("model: no end token is declared by its generation_config, config or tokenizer")
    return tuple(sorted(found))


def _base_digest(folder: Path) -> str:
    """Identifies the base without reading it whole: its configuration, and size and both ends of each weight file."""
    digest = hashlib.blake2b((folder / "config.json").read_bytes(), digest_size=16)
    for file in sorted(folder.glob("*.safetensors")):
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}".encode())
        with file.open("rb") as handle:
            digest.update(handle.read(SAMPLE))
            handle.seek(max(0, size - SAMPLE))
            digest.update(handle.read(SAMPLE))
    return digest.hexdigest()
