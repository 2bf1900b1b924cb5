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

from whale.engines import adapters, attention, probe
from whale.errors import EngineError
from whale.models import resolve
from whale.types import Policy

SAMPLE = 1 << 20
"""Bytes at each end of a weight file that go into the base digest."""


class Head:
    """Logits (..., V) of last hidden states (..., E), as the model itself computes them: some kinds scale or cap what
    comes out of the output layer."""

    def __init__(self, layer: Any, config: Any) -> None:
        """layer: the output layer. config: of the text model."""
        self._layer = layer
        self._factor = getattr(config, "logit_scale", None)  # Cohere
        self._divisor = getattr(config, "logits_scaling", None)  # Granite
        self._cap = getattr(config, "final_logit_softcapping", None)  # Gemma

    def __call__(self, states: Tensor) -> Tensor:
        logits: Tensor = self._layer(states)
        if self._factor is not None:
            logits = logits * self._factor
        if self._divisor is not None:
            logits = logits / self._divisor
        return logits if self._cap is None else torch.tanh(logits / self._cap) * self._cap

    @property
    def weight(self) -> Tensor:
        """(V, E) weights of the output layer."""
        return self._layer.weight  # type: ignore[no-any-return]


class LocalModel:
    """Weights, tokenizer and the policy version they stand for, shared by ``TransformersEngine`` and ``TorchTrainer``.

    net: the transformers model, in eval mode always (no dropout, also when trained). decoder, head: its body and
    what makes logits of its states: ``head(decoder(...))``. branch_fault: why trees and branches do not apply to
    its layers (empty: they do, ``full_attention``). adapter: what is trained in place of the weights, if anything.
    policy: version that the weights stand for. dirty: they changed since it was published. token_bytes: memory of
    one token's keys and values. Not thread-safe.
    """

    def __init__(
        self,
        name: str,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        threads: int | None = None,
        adapter: adapters.Adapter | None = None,
    ) -> None:
        """name: a known model, a folder or a hub id, see ``whale.models.resolve``. dtype: of the weights, a torch
        name; training takes ``float32`` or ``bfloat16``. threads: CPU threads of the whole process (``None``:
        torch's choice). adapter: put a fresh one into the model.

        Raises EngineError if the model is not on this machine or is of a kind that cannot be used.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        self.name = name
        self.folder = resolve(name)
        self.net, self.tokenizer = load_net(self.folder, device, _dtype(dtype))
        self.adapter = adapter
        if adapter is not None:
            adapters.inject(self.net, adapter)
        self.decoder: Any = self.net.get_decoder()
        config = self.net.config.get_text_config(decoder=True)
        self.head = Head(self.net.get_output_embeddings(), config)
        self.vocabulary = int(self.head.weight.shape[0])
        self.context_limit = int(getattr(config, "max_position_embeddings", 0) or 1 << 30)
        self.end_ids = _end_ids(self.net, self.tokenizer)
        self.token_bytes = _token_bytes(config, self.dtype)
        names = inspect.signature(self.net.forward).parameters
        self.cache_argument = "cache" if "cache" in names else "past_key_values"
        self._probe()
        self.base = Policy(
            base=name, version=0, digest=_base_digest(self.folder), kind="adapter" if adapter else "full"
        )
        self.policy = self.base
        self.dirty = False

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the base weights; adapters are fp32 always."""
        return self.head.weight.dtype

    @property
    def full_attention(self) -> bool:
        """Whether every layer is plain full attention, so that trees and branches apply."""
        return not self.branch_fault

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
        """Every trainable tensor by name, tied ones once: all of the model's, or the adapter's alone."""
        return {name: tensor for name, tensor in self.net.named_parameters() if tensor.requires_grad}

    def reload(self) -> None:
        """Base weights from disk into the same tensors, or a fresh adapter; the policy is version 0 again."""
        if self.adapter is not None:
            adapters.initialise(self.weights(), self.adapter.seed)
        else:
            fresh, _ = load_net(self.folder, "cpu", self.dtype, tokenizer=False)
            with torch.no_grad():
                for name, tensor in fresh.named_parameters():
                    self.net.get_parameter(name).copy_(tensor)
        self.policy, self.dirty = self.base, False

    def describe(self, folder: Path) -> None:
        """Write what makes the saved weights loadable by others: configuration and tokenizer, or peft's settings."""
        if self.adapter is not None:
            adapters.describe(self.net, self.adapter, self.name, folder)
            return
        self.net.config.save_pretrained(folder)
        self.net.generation_config.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def _probe(self) -> None:
        probe.choose_attention(self.net)
        self.branch_fault = probe.branch_fault(self)
        if not probe.head_is_exact(self):
            kind = self.net.config.model_type
            raise EngineError(
                f"model: {self.name!r} ({kind}) changes its logits after the output layer in a way that whale does not "
                "know; choose another model"
            )


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if isinstance(found, torch.dtype) and found.is_floating_point:
        return found
    raise EngineError(f"model: dtype {name!r} is not one of float32, bfloat16, float16")


def load_net(folder: Path, device: str, dtype: torch.dtype, tokenizer: bool = True) -> tuple[Any, Any]:
    """The model of a folder, in eval mode, and its tokenizer (or ``None``). Raises EngineError."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        with quiet(), torch.random.fork_rng(devices=[]):  # some kinds draw numbers while they are built
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
