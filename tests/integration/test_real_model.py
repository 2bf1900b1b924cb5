"""The small real model: what the tiny ones show, at the size, vocabulary and precision of use."""

import random

import pytest
import torch

from whale.engines.local_model import LocalModel
from whale.engines.transformers import TransformersEngine
from whale.errors import EngineError
from whale.trainers.torch import TorchTrainer
from whale.types import GenerationRequest, Sampling, TrainRow

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

GREEDY = Sampling(temperature=0)
QUESTIONS = ["What is 7 times 6?", "Name a colour.", "How many legs do 3 ducks have?"]


@pytest.fixture(scope="module")
def model():
    try:
        return LocalModel("smollm2-135m")
    except EngineError as error:
        pytest.skip(str(error))


def requests(engine, system="Answer in a few words."):
    contexts = [
        engine.renderer.encode([{"role": "system", "content": system}, {"role": "user", "content": question}], (), ())
        for question in QUESTIONS
    ]
    return [GenerationRequest(tuple(context), 10, seed) for context in contexts for seed in range(2)]


def test_greedy_replies_are_those_of_generate_and_go_on_the_same_way(model):
    engine = TransformersEngine(model)
    asked = requests(engine)
    for _ in range(2):
        completions = engine.generate(asked, GREEDY)
        for request, completion in zip(asked[::2], completions[::2], strict=True):
            ids = torch.tensor([request.context])
            expected = model.net.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=10, do_sample=False, pad_token_id=0,
                eos_token_id=list(model.end_ids),
            )  # fmt: skip
            assert completion.ids == tuple(expected[0, len(request.context) :].tolist())
        more = tuple(engine.renderer.text_ids("\nAnd then?"))
        asked = [
            GenerationRequest(r.context + c.ids + more, 10, r.seed) for r, c in zip(asked, completions, strict=True)
        ]


def test_log_probabilities_are_those_of_a_plain_forward_pass(model):
    engine = TransformersEngine(model)
    asked = requests(engine)
    for request, completion in zip(asked, engine.generate(asked, Sampling()), strict=True):
        with torch.no_grad():
            logits = model.net(torch.tensor([request.context + completion.ids])).logits[
                0, len(request.context) - 1 : -1
            ]
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(completion.ids)[:, None])[:, 0]
        assert (torch.tensor(completion.logprobs) - expected).abs().max() < 1e-4


def test_the_order_of_requests_changes_log_probabilities_by_rounding_only(model):
    engine, few = TransformersEngine(model), TransformersEngine(model, wave_rows=2)
    asked = requests(engine)
    order = random.Random(0).sample(range(len(asked)), len(asked))
    whole = engine.generate(asked, Sampling())
    again = few.generate([asked[i] for i in order], Sampling())
    for place, i in enumerate(order):
        assert again[place].ids == whole[i].ids
        difference = torch.tensor(again[place].logprobs) - torch.tensor(whole[i].logprobs)
        assert difference.abs().max() < 1e-4


def test_the_packed_gradient_is_that_of_padded_rows(model):
    engine = TransformersEngine(model)
    asked = requests(engine)
    completions = engine.generate(asked, Sampling())
    rows = [TrainRow(r.context, c.ids, 1 / len(c.ids)) for r, c in zip(asked, completions, strict=True)]
    gradients = []
    for packing in ("rows", "tree"):
        trainer = TorchTrainer(model, packing=packing)
        trainer._accumulate(rows, 1 / len(rows))
        gradients.append(torch.cat([p.grad.flatten() for p in model.weights().values()]))
        trainer._optimizer.zero_grad()
    plain, packed = gradients
    assert (packed - plain).norm() / plain.norm() < 1e-5
