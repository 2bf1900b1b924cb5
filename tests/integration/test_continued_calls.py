"""Calls that go on from earlier ones: the same replies as without what was kept, for less work."""

import random

import pytest
import torch

from whale.engines.local_model import LocalModel
from whale.engines.transformers import TransformersEngine
from whale.testing.models import KINDS, save_tiny
from whale.types import GenerationRequest, Sampling

SAMPLED = Sampling(temperature=1.0, top_k=20)
GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module", params=KINDS)
def model(request, tmp_path_factory):
    return LocalModel(str(save_tiny(request.param, tmp_path_factory.mktemp("tiny"))))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return LocalModel(str(save_tiny("llama", tmp_path_factory.mktemp("tiny"))))


def opening(seed=0, prefix=20):
    pick = random.Random(seed)
    words = lambda count: tuple(pick.randrange(3, 259) for _ in range(count))  # noqa: E731
    start = words(prefix)
    prompts = [start + words(1 + number % 4) for number in range(6)]
    return [GenerationRequest(p, pick.choice([1, 5, 12]), pick.randrange(1 << 80)) for p in prompts for _ in range(3)]


def follow_up(requests, completions, seed=1):
    """The next calls: replies passed back with something after them, of several lengths; some rollouts have ended, one
    has rewritten its context, and new ones come in."""
    pick = random.Random(seed)
    result = []
    for request, completion in zip(requests, completions, strict=True):
        added = tuple(pick.randrange(3, 259) for _ in range(pick.choice([1, 3, 9])))
        context = request.context + completion.ids + added
        if pick.random() < 0.2:
            context = (*context[:10], 5, *context[11:])
        if pick.random() < 0.8:
            result.append(GenerationRequest(context, pick.choice([1, 7]), pick.randrange(1 << 80)))
    return [*result, *opening(9)[:3]]


def conversation(engine, sampling, turns=3):
    requests, heard = opening(), []
    for turn in range(turns):
        completions = engine.generate(requests, sampling)
        heard.append(completions)
        requests = follow_up(requests, completions, turn)
    return heard


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("settings", [{}, {"wave_rows": 3}, {"keep_bytes": 20_000}], ids=["all", "waves", "little"])
def test_replies_are_those_of_an_engine_that_keeps_nothing(model, sampling, settings):
    plain = conversation(TransformersEngine(model, keep_bytes=0), sampling)
    kept = conversation(TransformersEngine(model, **settings), sampling)
    for one, other in zip(plain, kept, strict=True):
        assert [c.ids for c in one] == [c.ids for c in other]
        for a, b in zip(one, other, strict=True):
            assert torch.allclose(torch.tensor(a.logprobs), torch.tensor(b.logprobs), atol=1e-4)


def fed_tokens(model, monkeypatch):
    """Counts the token positions that go through the decoder, padding included."""
    count = [0]
    forward = model.decoder.forward

    def counted(*args, **options):
        count[0] += options["input_ids"].numel()
        return forward(*args, **options)

    monkeypatch.setattr(model.decoder, "forward", counted)
    return count


def test_a_shared_beginning_is_computed_once_and_ended_samples_cost_nothing(model, monkeypatch):
    """24 requests with 40 tokens in common and 8 different ends of two tokens; all but one want a single token."""
    contexts = [(*range(5, 45), 60 + i, 70) for i in range(8)]
    requests = [GenerationRequest(c, 1, i) for i, c in enumerate(contexts * 3)]
    requests[5] = GenerationRequest(contexts[5], 6, 5)
    model.end_ids, ends = (), model.end_ids
    count = fed_tokens(model, monkeypatch)
    try:
        completions = TransformersEngine(model).generate(requests, SAMPLED)
    finally:
        model.end_ids = ends
    assert [len(c.ids) for c in completions] == [6 if i == 5 else 1 for i in range(24)]
    assert count[0] == 40 + 8 * 2 + 5


@pytest.mark.parametrize("settings", [{"wave_rows": 4}, {"wave_bytes": 1}], ids=["rows", "bytes"])
def test_no_more_rows_run_at_once_than_allowed(model, monkeypatch, settings):
    rows, requests = [], [GenerationRequest((*range(5, 45), 60 + i), 8, i) for i in range(12)]
    forward = model.decoder.forward

    def counted(*args, **options):
        rows.append(options["input_ids"].shape[0])
        return forward(*args, **options)

    monkeypatch.setattr(model.decoder, "forward", counted)
    TransformersEngine(model, **settings).generate(requests, SAMPLED)
    assert max(rows) == settings.get("wave_rows", 1)
    rows.clear()
    TransformersEngine(model).generate(requests, SAMPLED)
    assert max(rows) > 4


def test_only_what_is_new_is_computed(model, monkeypatch):
    engine = TransformersEngine(model)
    requests = [GenerationRequest((*range(5, 45), 60 + i), 4, i) for i in range(8)]
    completions = engine.generate(requests, SAMPLED)
    asked = [GenerationRequest(r.context + c.ids + (9, 8, 7), 1, 3) for r, c in zip(requests, completions, strict=True)]
    count = fed_tokens(model, monkeypatch)
    engine.generate(asked, SAMPLED)
    assert count[0] == 8 * 4, "three tokens are new, and the one drawn last was never fed"
    engine.forget()
    count[0] = 0
    engine.generate(asked, SAMPLED)
    assert count[0] > 8 * 4


def test_nothing_is_kept_beyond_the_budget_another_version_or_forget(llama):
    engine = TransformersEngine(llama, keep_bytes=30_000)
    conversation(engine, SAMPLED)
    assert 0 < engine._kept.bytes <= 30_000
    llama.policy = type(llama.policy)(**{**vars(llama.policy), "version": 7})
    requests = opening()
    engine.generate(requests[:1], GREEDY)
    assert len(engine._kept) <= 1
    engine.forget()
    assert len(engine._kept) == 0
