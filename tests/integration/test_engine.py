"""The engine on tiny models of every kind: the same tokens and log-probabilities as plain forward passes."""

import random

import numpy as np
import pytest
import torch

from whale.engines.draw import BLOCK, draw, pick, uniforms
from whale.engines.local_model import LocalModel
from whale.engines.transformers import TransformersEngine
from whale.errors import EngineError, StaleWeightsError
from whale.testing.models import KINDS, save_tiny
from whale.types import GenerationRequest, Sampling

SAMPLED = Sampling(temperature=1.0, top_p=0.95, top_k=20)
GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module", params=KINDS)
def model(request, tmp_path_factory):
    return LocalModel(str(save_tiny(request.param, tmp_path_factory.mktemp("tiny"))))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return LocalModel(str(save_tiny("llama", tmp_path_factory.mktemp("tiny"))))


def requests(seed=0):
    """A batch as a harness makes it: shared instructions, tails of several lengths, several samples of each, and odd
    ones: a lone token, a context that is a prefix of others, one token to sample."""
    pick = random.Random(seed)
    words = lambda count: tuple(pick.randrange(3, 259) for _ in range(count))  # noqa: E731
    prefix = words(20)
    prompts = [prefix + words(1 + number % 3) for number in range(5)] + [prefix, prefix[:7], (9,)]
    return [GenerationRequest(p, pick.choice([1, 5, 12]), pick.randrange(1 << 80)) for p in prompts for _ in range(3)]


def alone(model, request):
    """Greedy ids of transformers' own generate for one request."""
    ids = torch.tensor([request.context])
    out = model.net.generate(ids, max_new_tokens=request.max_tokens, do_sample=False, eos_token_id=list(model.end_ids))
    return tuple(out[0, len(request.context) :].tolist())


def plain_logprobs(model, context, ids):
    with torch.no_grad():
        logits = model.net(torch.tensor([context + ids])).logits[0, len(context) - 1 : -1]
    return logits.log_softmax(-1)[torch.arange(len(ids)), torch.tensor(ids)]


@pytest.mark.parametrize("rows", [1, 4, 384])
def test_greedy_equals_generating_each_prompt_alone(model, rows):
    batch = requests()
    completions = TransformersEngine(model, wave_rows=rows).generate(batch, GREEDY)
    assert [c.ids for c in completions] == [alone(model, r) for r in batch]


def test_logprobs_are_those_of_a_plain_forward_pass(model):
    batch = requests()
    for request, completion in zip(batch, TransformersEngine(model).generate(batch, SAMPLED), strict=True):
        expected = plain_logprobs(model, request.context, completion.ids)
        assert torch.allclose(torch.tensor(completion.logprobs), expected, atol=1e-4)


def test_a_model_that_scales_its_logits_up_by_a_factor(tmp_path):
    cohere = LocalModel(str(save_tiny("cohere", tmp_path)))
    test_greedy_equals_generating_each_prompt_alone(cohere, 64)
    test_logprobs_are_those_of_a_plain_forward_pass(cohere)


def test_samples_do_not_depend_on_order_or_waves(model):
    batch = requests()
    whole = TransformersEngine(model).generate(batch, SAMPLED)
    order = list(range(len(batch)))
    random.Random(1).shuffle(order)
    again = TransformersEngine(model, wave_rows=3).generate([batch[i] for i in order], SAMPLED)
    assert [c.ids for c in again] == [whole[i].ids for i in order]
    tight = TransformersEngine(model, wave_bytes=1).generate(batch, SAMPLED)
    assert [c.ids for c in tight] == [c.ids for c in whole]


def test_the_same_list_gives_the_same_bits(model):
    first, second = (TransformersEngine(model).generate(requests(), SAMPLED) for _ in range(2))
    assert first == second


def test_samples_of_one_prompt_differ_by_seed(llama):
    batch = [GenerationRequest((5, 6, 7), 12, seed) for seed in range(8)]
    assert len({c.ids for c in TransformersEngine(llama).generate(batch, Sampling(top_k=0))}) == 8


def test_long_and_short_rows_of_two_families_mix(llama):
    pick = random.Random(2)
    families = [tuple(pick.randrange(3, 259) for _ in range(90)) for _ in range(2)]
    batch = [GenerationRequest((*f, 3 + n), 1 + 7 * n % 40, n) for f in families for n in range(40)]
    completions = TransformersEngine(llama, wave_rows=9).generate(batch, GREEDY)
    for index in (0, 13, 39, 40, 77):
        assert completions[index].ids == alone(llama, batch[index])


def test_sampling_follows_the_softmax():
    logits = torch.randn(12, generator=torch.Generator().manual_seed(0)) * 2
    count = 40_000
    chance = torch.from_numpy(uniforms(3, count))
    for sampling in (Sampling(1.0, 1.0, 0), Sampling(0.7, 1.0, 5), Sampling(1.3, 0.8, 0), Sampling(1.0, 0.6, 4)):
        tokens, logprobs = draw(logits.expand(count, -1), chance, sampling)
        found = np.bincount(tokens.numpy(), minlength=12) / count
        assert np.abs(found - expected_mass(logits, sampling)).max() < 0.01
        assert torch.allclose(logprobs, logits.log_softmax(-1)[tokens])  # always of the full softmax at T = 1


def expected_mass(logits, sampling):
    mass = torch.softmax(logits.double() / sampling.temperature, -1).numpy()
    order = np.argsort(-mass)
    kept = order[: sampling.top_k or None]
    part = mass[kept] / mass[kept].sum()
    kept = kept[np.cumsum(part) - part < sampling.top_p]
    result = np.zeros_like(mass)
    result[kept] = mass[kept] / mass[kept].sum()
    return result


def test_the_largest_uniform_still_gives_a_candidate():
    logits = torch.tensor([[0.0, -1.0, -200.0, -300.0]])
    token, _ = draw(logits, torch.tensor([1 - 2**-53], dtype=torch.float64), Sampling(1.0, 0.9, 3))
    assert token.item() in (0, 1)


def test_a_draw_is_the_inverse_of_the_distribution():
    """Over several blocks, the last one not full, with blocks and tokens that have no mass."""
    size, count = 3 * BLOCK + 77, 20_000
    mass = torch.rand(size, generator=torch.Generator().manual_seed(1)) ** 8
    mass[::3] = 0
    mass[BLOCK : 2 * BLOCK] = 0
    mass[-5:] = 0
    chance = torch.from_numpy(uniforms(5, count))
    chance[:2] = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    found = pick(mass.expand(count, -1), chance)
    assert (mass[found] > 0).all()
    below = mass.double().cumsum(-1) / mass.double().sum()
    assert (below[found] >= chance - 1e-6).all()
    assert (below[found] - mass[found] / mass.sum() <= chance + 1e-6).all()
    assert found[0] == mass.nonzero()[0]
    assert found[1] == mass.nonzero()[-1]


def test_stop_strings_end_a_reply_and_their_ids_are_kept(model):
    engine = TransformersEngine(model)
    free = next(
        c for c in engine.generate([GenerationRequest((7, n), 12, n) for n in range(9)], GREEDY) if len(c.ids) == 12
    )
    number = engine.generate([GenerationRequest((7, n), 12, n) for n in range(9)], GREEDY).index(free)
    text = engine.decode(free.ids)
    stop = text[4:7]
    (cut,) = engine.generate([GenerationRequest((7, number), 12, number, ("never there", stop))], GREEDY)
    assert cut.finish == "stop_string"
    assert free.ids[: len(cut.ids)] == cut.ids
    assert stop in engine.decode(cut.ids)
    assert stop not in engine.decode(cut.ids[:-1])


def test_every_declared_end_token_ends_a_reply(llama):
    engine = TransformersEngine(llama)
    (free,) = engine.generate([GenerationRequest((7, 8), 6, 0)], GREEDY)
    ends = llama.end_ids
    try:
        llama.end_ids = (*ends, free.ids[2])
        (cut,) = engine.generate([GenerationRequest((7, 8), 6, 0)], GREEDY)
    finally:
        llama.end_ids = ends
    assert (cut.ids, cut.finish) == (free.ids[: free.ids.index(free.ids[2]) + 1], "stop")


def test_finish_is_length_where_the_context_is_full(llama):
    request = GenerationRequest((5,) * (llama.context_limit - 2), 50, 0)
    (completion,) = TransformersEngine(llama).generate([request], Sampling(top_k=0))
    assert len(completion.ids) <= 2


@pytest.mark.parametrize(
    ("request_", "part"),
    [
        (GenerationRequest((), 5, 0), "context of 0"),
        (GenerationRequest((5,), 0, 0), "max_tokens 0"),
        (GenerationRequest((5, 9999), 5, 0), "token id 9999"),
        (GenerationRequest((-1,), 5, 0), "token id -1"),
        (GenerationRequest((5,) * 600, 5, 0), "leaves no room"),
    ],
)
def test_requests_that_cannot_be_sampled_are_named(llama, request_, part):
    with pytest.raises(EngineError, match=f"request 1: .*{part}"):
        TransformersEngine(llama).generate([GenerationRequest((5,), 1, 0), request_], GREEDY)


def test_nothing_asked_nothing_given(llama):
    assert TransformersEngine(llama).generate([], GREEDY) == []


def test_unpublished_weights_are_stale(llama):
    llama.dirty = True
    try:
        with pytest.raises(StaleWeightsError, match="publish"):
            TransformersEngine(llama).generate([GenerationRequest((5,), 1, 0)], GREEDY)
    finally:
        llama.dirty = False


def test_a_folder_that_is_no_model_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(EngineError, match="cannot be loaded"):
        LocalModel(str(tmp_path))


def test_end_tokens_come_from_every_place_that_declares_them(tmp_path):
    folder = save_tiny("llama", tmp_path)
    file = folder / "generation_config.json"
    file.write_text(file.read_text().replace('"eos_token_id": 2', '"eos_token_id": [0, 7]'))
    assert LocalModel(str(folder)).end_ids == (0, 2, 7)


def test_memory_that_was_never_written_is_never_read(model):
    """A masked place may hold anything, also a NaN, which no mask and no zero weight would take away again."""
    batch = requests()
    expected = TransformersEngine(model, wave_rows=5).generate(batch, SAMPLED)
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills fresh memory with NaN
    try:
        assert torch.empty(3).isnan().all()
        assert TransformersEngine(model, wave_rows=5).generate(batch, SAMPLED) == expected
    finally:
        torch.use_deterministic_algorithms(False)


def test_logits_that_are_not_numbers_are_an_error(llama):
    """Never a token: a broken model must not look like a bad policy."""
    engine = TransformersEngine(llama)
    norm = llama.decoder.norm.weight
    saved = norm.detach().clone()
    with torch.no_grad():
        norm.fill_(float("nan"))
    try:
        with pytest.raises(EngineError, match="not finite"):
            engine.generate(requests()[:2], SAMPLED)
    finally:
        with torch.no_grad():
            norm.copy_(saved)
