"""The usual ways: transformers' model as it comes, TRL's trainer and ``generate``, each at its best setting."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import torch

from whale.engines.local_model import LocalModel, quiet
from whale.types import GenerationRequest, Sampling, TrainRow

IGNORED = -100
"""Label of a token that is not predicted."""


def stock_model(model: LocalModel) -> Any:
    """The same weights once more, with transformers' own attention: TRL replaces a model's forward, so it gets its
    own."""
    from transformers import AutoModelForCausalLM

    with quiet():
        return AutoModelForCausalLM.from_pretrained(model.folder, dtype=torch.float32, attn_implementation="sdpa")


def trl_update(net: Any, tokenizer: Any, rows: Sequence[TrainRow], batch: int, free: bool) -> Callable[[], float]:
    """A call that computes the gradient of the mean loss per sampled token of ``rows`` with TRL's ``SFTTrainer``,
    leaves it in ``net`` and returns the loss. Setting up the trainer and its data set is not part of the call.

    batch: rows per forward pass. free: rows are laid end to end in place of padding, under a mask over all of them, as
    the CPU has no kernel that knows where a row ends. Rows are sorted by length and taken in that order: the sampler
    ``group_by_length`` sorts within random groups only, which for one update is no sorting at all.
    """
    trainer = _trainer(net, tokenizer, rows, batch, free)
    steps = trainer.args.gradient_accumulation_steps
    loader = trainer.get_train_dataloader()

    def call() -> float:
        net.zero_grad(set_to_none=True)
        batches, count = trainer.get_batch_samples(iter(loader), steps, trainer.args.device)
        trainer.current_gradient_accumulation_steps = len(batches)
        return float(sum(trainer.training_step(net, inputs, count).item() for inputs in batches))

    return call


def _trainer(net: Any, tokenizer: Any, rows: Sequence[TrainRow], batch: int, free: bool) -> Any:
    import datasets
    import trl

    ordered = sorted(rows, key=lambda row: len(row.context) + len(row.sampled), reverse=True)
    examples = [
        {
            "input_ids": [*row.context, *row.sampled],
            "labels": [*[IGNORED] * len(row.context), *row.sampled],
        }
        for row in ordered
    ]
    config = trl.SFTConfig(
        output_dir=tempfile.gettempdir(),  # nothing is saved
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=-(-len(rows) // batch),
        train_sampling_strategy="sequential",
        max_length=None,
        packing=False,  # is padding_free with other boundaries
        padding_free=free,
        gradient_checkpointing=False,  # computes every layer a second time to save memory
        bf16=False,
        use_cpu=True,
        dataloader_num_workers=0,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    bars = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        return trl.SFTTrainer(
            net, config, train_dataset=datasets.Dataset.from_list(examples), processing_class=tokenizer
        )
    finally:
        if not bars:
            datasets.enable_progress_bars()


def stock_generate(
    net: Any, requests: Sequence[GenerationRequest], sampling: Sampling, ends: Sequence[int], batch: int, seed: int
) -> Callable[[], list[int]]:
    """A call that samples every request with transformers' ``generate`` and returns how many tokens each got, the end
    token included.

    batch: rows at once. One row per sample: ``num_return_sequences`` does the same inside. Rows of similar length go
    together, left-padded. seed: of the draws.
    """
    net.generation_config = _generation(sampling, ends, max(request.max_tokens for request in requests))
    ordered = sorted((request.context for request in requests), key=len)

    def call() -> list[int]:
        torch.manual_seed(seed)
        counts: list[int] = []
        for start in range(0, len(ordered), batch):
            counts += _generate(net, ordered[start : start + batch], ends)
        return counts

    return call


def _generation(sampling: Sampling, ends: Sequence[int], limit: int) -> Any:
    from transformers import GenerationConfig

    draws = {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
    return GenerationConfig(
        do_sample=sampling.temperature > 0,
        **(draws if sampling.temperature > 0 else {}),
        max_new_tokens=limit,
        eos_token_id=list(ends),
        pad_token_id=ends[0],
    )


def _generate(net: Any, contexts: Sequence[Sequence[int]], ends: Sequence[int]) -> list[int]:
    width = max(map(len, contexts))
    ids = torch.full((len(contexts), width), ends[0])
    seen = torch.zeros_like(ids)
    for row, context in enumerate(contexts):
        ids[row, width - len(context) :] = torch.tensor(context)
        seen[row, width - len(context) :] = 1
    sampled = net.generate(input_ids=ids, attention_mask=seen)[:, width:]
    ended = torch.isin(sampled, torch.tensor(list(ends)))
    before = (ended.long().cumsum(1) - ended.long() == 0).sum(1)  # up to the first end token, itself included
    return [int(count) for count in before]
