"""Sampling the prompts of an evaluation: whale's engine against transformers' ``generate``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from whale.bench.limit import matmul_rate, sample_flops, shape_of
from whale.bench.material import Material, must_fit
from whale.bench.stock import stock_generate, stock_model
from whale.bench.timing import Measure, Say, fastest, interleave, quotients, spread, summary
from whale.engines.local_model import LocalModel
from whale.engines.transformers import TransformersEngine
from whale.types import Completion, GenerationRequest, Sampling

REQUESTS = 128
"""Requests at most: whole tasks of the look from its beginning on. More would only take longer: on two cores
``generate`` spends minutes on these."""

BATCHES = (16, 32, 64)
"""Rows at once that are tried for ``generate``, on as many requests as the largest of them. Larger ones gain nothing
there: each row computes its prompt for itself, which fills the processor long before."""


def measure_sampling(
    model: LocalModel, material: Material, repeats: int, say: Say
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sample ``REQUESTS`` requests ``repeats`` times with both, in turn; tokens per second are of tokens sampled.

    Returns the figures by key and the details. Raises ConfigError if the requests do not fit the model.
    """
    requests, sampling = material.requests[:REQUESTS], material.config.sampling
    must_fit(model, [request.context for request in requests], max(request.max_tokens for request in requests))
    engine = TransformersEngine(model, wave_rows=material.config.engine.wave_rows)
    net = stock_model(model)
    say("sample: choosing how many rows generate takes at once")
    some = requests[: BATCHES[-1]]
    sizes = [*(size for size in BATCHES if size < len(some)), len(some)]
    engine.generate(requests[:1], sampling)  # warms up, as does the next line
    stock_generate(net, requests[:1], sampling, model.end_ids, 1, 0)()
    batch, trials = fastest(sizes, lambda size: stock_generate(net, some, sampling, model.end_ids, size, 0))
    say(f"sample: {len(requests)} requests, {repeats} times by whale and generate in turn")
    shape = shape_of(model)
    rounds: list[dict[str, Callable[[], Any]]] = [
        {
            "whale": _whale(engine, requests, sampling, number),
            "generate": stock_generate(net, requests, sampling, model.end_ids, batch, number),
            "matmul": lambda: matmul_rate(shape, material.config.engine.wave_rows),
        }
        for number in range(repeats)
    ]
    found = interleave(rounds)
    lengths = [[len(completion.ids) for completion in m.value] for m in found["whale"]]
    speed = {
        "whale": [sum(counts) / m.seconds for counts, m in zip(lengths, found["whale"], strict=True)],
        "generate": [sum(m.value) / m.seconds for m in found["generate"]],
    }
    contexts = [request.context for request in requests]
    rate = max(float(m.value) for m in found["matmul"])
    figures = {
        "sample_vs_generate": quotients(speed["whale"], speed["generate"]),
        "sample_of_limit": quotients(
            [sample_flops(shape, contexts, counts) for counts in lengths], [rate * m.seconds for m in found["whale"]]
        ),
    }
    details = {
        "requests": len(requests),
        "prompts": len(set(contexts)),
        "batch_size": batch,
        "trials": trials,
        "tokens_per_second": {name: spread(values) for name, values in speed.items()},
        "tokens": {"whale": sum(map(sum, lengths)), "generate": _tokens(found["generate"])},
        "sides": {name: summary(of) for name, of in found.items()},
        "matmul_flops_per_second": rate,
    }
    return figures, details


def _whale(
    engine: TransformersEngine, requests: Sequence[GenerationRequest], sampling: Sampling, number: int
) -> Callable[[], list[Completion]]:
    """Other draws in each repeat, as the other side has them."""
    seeded = [replace(request, seed=request.seed + number) for request in requests]
    return lambda: engine.generate(seeded, sampling)


def _tokens(measures: Sequence[Measure]) -> int:
    return sum(sum(measure.value) for measure in measures)
