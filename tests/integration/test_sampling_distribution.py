"""Sampling through the engine: over many seeds, tokens come as often as transformers' own cuts say."""

import numpy as np
import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from whale.engines.local_model import LocalModel
from whale.engines.transformers import TransformersEngine
from whale.errors import EngineError
from whale.testing.models import KINDS, save_tiny
from whale.types import GenerationRequest, Sampling

CONTEXT = (9, 40, 7, 7, 30)
SETTINGS = [
    Sampling(1.0, 1.0, 0),
    Sampling(0.7, 1.0, 0),
    Sampling(1.3, 0.8, 0),
    Sampling(1.0, 0.95, 20),
    Sampling(0.7, 0.9, 5),
]
SPREAD = 2.0
"""Standard deviation of the logits: those of random weights are so alike that no cut or temperature would show."""


@pytest.fixture(scope="module", params=KINDS)
def model(request, tmp_path_factory):
    loaded = LocalModel(str(save_tiny(request.param, tmp_path_factory.mktemp("tiny"))))
    with torch.no_grad():
        sharper = SPREAD / loaded.net(torch.tensor([CONTEXT])).logits[:, -1].std()
        loaded.net.lm_head.weight = torch.nn.Parameter(loaded.net.lm_head.weight * sharper)
    return loaded


def wanted(model, contexts, sampling):
    """(B, V) float64: next-token distributions by a plain forward pass, cut in the order that ``generate`` cuts in."""
    ids = torch.tensor(contexts)
    with torch.no_grad():
        logits = model.net(ids).logits[:, -1].double()
    logits = TemperatureLogitsWarper(sampling.temperature)(ids, logits)
    if sampling.top_k:
        logits = TopKLogitsWarper(sampling.top_k)(ids, logits)
    return TopPLogitsWarper(sampling.top_p)(ids, logits).softmax(-1).numpy()


def assert_drawn_from(tokens, distributions):
    """Pearson's statistic stays within five standard deviations of what chance gives.

    distributions: (N, V), the one that each token was drawn from, or (V,) for all.
    """
    distributions = np.broadcast_to(distributions, (len(tokens), distributions.shape[-1]))
    assert (distributions[np.arange(len(tokens)), tokens] > 0).all(), "a token outside the cuts"
    expected = distributions.sum(0)
    found = np.bincount(tokens, minlength=len(expected))
    cells: list[list[float]] = [[0.0, 0.0]]
    for token in np.argsort(expected):  # rare ones share a cell until five are expected in it
        if cells[-1][0] >= 5:
            cells.append([0.0, 0.0])
        cells[-1][0] += expected[token]
        cells[-1][1] += found[token]
    statistic = sum((seen - mean) ** 2 / mean for mean, seen in cells)
    freedom = len(cells) - 1
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5 + 5


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SETTINGS, ids=lambda s: f"T{s.temperature}-p{s.top_p}-k{s.top_k}")
def test_first_and_second_tokens_follow_the_distribution(model, sampling):
    requests = [GenerationRequest(CONTEXT, 2, seed) for seed in range(4000)]
    completions = TransformersEngine(model).generate(requests, sampling)
    first = [c.ids[0] for c in completions]
    assert_drawn_from(first, wanted(model, [CONTEXT], sampling)[0])
    going = [c.ids for c in completions if len(c.ids) == 2]
    after = {token: number for number, token in enumerate(sorted({ids[0] for ids in going}))}
    table = wanted(model, [(*CONTEXT, token) for token in after], sampling)
    assert_drawn_from([ids[1] for ids in going], table[[after[ids[0]] for ids in going]])


def test_the_check_sees_a_wrong_temperature(model):
    requests = [GenerationRequest(CONTEXT, 1, seed) for seed in range(4000)]
    first = [c.ids[0] for c in TransformersEngine(model).generate(requests, Sampling(1.0, 1.0, 0))]
    with pytest.raises(AssertionError):
        assert_drawn_from(first, wanted(model, [CONTEXT], Sampling(0.8, 1.0, 0))[0])


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [SETTINGS[1], SETTINGS[3]], ids=["T0.7", "k20"])
def test_tokens_of_the_small_model_follow_the_distribution(sampling):
    try:
        model = LocalModel("smollm2-135m")
    except EngineError as error:
        pytest.skip(str(error))
    context = tuple(model.tokenizer("My favourite colour is").input_ids)
    requests = [GenerationRequest(context, 1, seed) for seed in range(2000)]
    first = [c.ids[0] for c in TransformersEngine(model).generate(requests, sampling)]
    assert_drawn_from(first, wanted(model, [context], sampling)[0])
