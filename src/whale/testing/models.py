"""Tiny models of the real kinds, built in code and saved as a folder that the real engine and trainer load.

Random weights, a byte-level tokenizer without merges (any text survives a round trip) and a ChatML template:
enough to test every path that a real model takes, in milliseconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from whale.engines.local_model import quiet

TinyKind = Literal["llama", "qwen3", "granite", "cohere", "qwen3.5", "gemma2", "gemma3"]
"""``llama``, ``qwen3``, ``granite``, ``cohere``: full attention only, the last two with scaled logits (the last with
attention beside its MLP). ``qwen3.5``: linear attention with a full layer now and then. ``gemma2``, ``gemma3``: layers
with a window of 8 tokens and full ones in turn; the first caps its logits and its attention scores."""

KINDS: tuple[TinyKind, ...] = tuple(kind for kind in get_args(TinyKind) if kind != "cohere")
"""What every path is tested on; ``cohere`` only where its own logits matter."""

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
DEFAULT_SYSTEM = "You are tiny."

TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    + DEFAULT_SYSTEM
    + "<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_tokenizer() -> Any:
    """A fast tokenizer of 256 bytes and the three ChatML tokens (ids 0, 1, 2; ``<|im_end|>`` = 2 ends a turn)."""
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: number for number, word in enumerate([*SPECIAL, *alphabet])}
    core = Tokenizer(BPE(vocab=words, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in SPECIAL])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|im_end|>", bos_token="<|im_start|>"
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def tiny_config(kind: TinyKind, vocabulary: int) -> Any:
    """Configuration of hidden size 32, 2 layers (4 for mixed kinds), 4 heads over 2 key/value heads, 512 positions."""
    import transformers as hf

    shape: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "eos_token_id": 2,
        "bos_token_id": 1,
        "pad_token_id": 2,
        "tie_word_embeddings": True,
        "initializer_range": 0.3,  # peaked distributions: greedy choices do not hang on the last bit
    }
    if kind == "llama":
        return hf.LlamaConfig(**shape)
    if kind == "qwen3":
        return hf.Qwen3Config(**{**shape, "tie_word_embeddings": False})
    if kind == "qwen3.5":
        linear = {
            "num_hidden_layers": 4,
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
        }
        return hf.Qwen3_5TextConfig(**{**shape, **linear})
    if kind == "granite":
        scales = {"embedding_multiplier": 3.0, "residual_multiplier": 0.7, "attention_multiplier": 0.4}
        return hf.GraniteConfig(**shape, **scales, logits_scaling=2.0)
    if kind == "cohere":
        return hf.CohereConfig(**{key: value for key, value in shape.items() if key != "head_dim"}, logit_scale=0.25)
    if kind in ("gemma2", "gemma3"):
        window = {
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "sliding_window": 8,
            "query_pre_attn_scalar": 8,
        }
        if kind == "gemma3":
            return hf.Gemma3TextConfig(**{**shape, **window})
        return hf.Gemma2Config(**{**shape, **window}, final_logit_softcapping=5.0, attn_logit_softcapping=2.0)
    raise ValueError(f"kind: {kind!r} is not one of {get_args(TinyKind)}")


def save_tiny(kind: TinyKind, folder: Path, seed: int = 0) -> Path:
    """Build a tiny model with random weights from ``seed`` and save it to ``folder``; returns the folder.

    The caller's random state is left as it was.
    """
    from transformers import AutoModelForCausalLM

    tokenizer = tiny_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = AutoModelForCausalLM.from_config(tiny_config(kind, len(tokenizer)))
    with quiet():
        net.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder
