"""The small model itself: it is what it should be, answers, learns, and stays within its memory."""

import pytest
import torch

from whale.engines.local_model import LocalModel
from whale.engines.transformers import TransformersEngine
from whale.errors import EngineError
from whale.models import resolve
from whale.testing.models import KINDS, save_tiny
from whale.trainers.torch import Adam, TorchTrainer
from whale.types import GenerationRequest, Sampling, TrainRow


@pytest.mark.parametrize("kind", KINDS)
def test_tiny_models_are_the_same_for_the_same_seed(kind, tmp_path):
    state = torch.random.get_rng_state()
    folders = [save_tiny(kind, tmp_path / name, seed) for name, seed in (("a", 0), ("b", 0), ("c", 1))]
    assert torch.equal(torch.random.get_rng_state(), state)
    first, same, other = (LocalModel(str(folder)) for folder in folders)
    assert all(torch.equal(t, same.weights()[name]) for name, t in first.weights().items())
    assert not torch.equal(first.head.weight, other.head.weight)
    assert first.base.digest == same.base.digest != other.base.digest
    assert first.full_attention == (kind in ("llama", "qwen3", "granite"))


@pytest.fixture(scope="module")
def small():
    try:
        resolve("smollm2-135m")
    except EngineError as error:
        pytest.skip(str(error))
    return LocalModel("smollm2-135m")


@pytest.mark.slow
def test_the_small_model_answers(small):
    engine = TransformersEngine(small)
    context = engine.renderer.encode([{"role": "user", "content": "What is the capital of France?"}], (), ())
    (completion,) = engine.generate([GenerationRequest(tuple(context), 24, 0)], Sampling(temperature=0))
    assert "Paris" in engine.renderer.parse(completion.ids, completion.finish).text
    with torch.no_grad():
        ids = torch.tensor([[*context, *completion.ids]])
        expected = small.net(ids).logits[0, len(context) - 1 : -1].log_softmax(-1)
    chosen = expected[torch.arange(len(completion.ids)), torch.tensor(completion.ids)]
    assert torch.allclose(torch.tensor(completion.logprobs), chosen, atol=1e-3)


@pytest.mark.slow
def test_the_small_model_learns_and_is_served(small):
    trainer, engine = TorchTrainer(small, Adam(lr=1e-4)), TransformersEngine(small)
    context = tuple(engine.renderer.encode([{"role": "user", "content": "Say the word."}], (), ()))
    sampled = (*engine.renderer.text_ids("whale"), 2)
    losses = [trainer.update([TrainRow(context, sampled)], 1)["loss"] for _ in range(5)]
    trainer.publish("the word")
    assert losses[-1] < losses[0] / 2
    (completion,) = engine.generate([GenerationRequest(context, 8, 0)], Sampling(temperature=0))
    assert completion.ids == sampled
    trainer.reset()
