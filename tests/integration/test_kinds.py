"""What is special about kinds of models: logits after the head, windows, capped scores, layers that trees break."""

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.llama import modeling_llama

from whale.engines.adapters import Adapter
from whale.engines.local_model import LocalModel
from whale.engines.transformers import TransformersEngine
from whale.errors import EngineError, TrainerError
from whale.testing.models import KINDS, save_tiny
from whale.trainers.optimizer import Adam
from whale.trainers.torch import TorchTrainer
from whale.types import GenerationRequest, Sampling, TrainRow

GREEDY = Sampling(temperature=0)
TREES = {"llama", "qwen3", "granite"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {kind: save_tiny(kind, tmp_path_factory.mktemp("tiny")) for kind in KINDS}


def requests():
    """Prefixes longer than a window, tails of several lengths, and replies that outgrow the window."""
    prefix = tuple((7 * n) % 250 + 5 for n in range(21))
    tails = [(9,), (9, 10), (11, 12), (), tuple(range(30, 43))]
    return [GenerationRequest(prefix + tail, 24, n) for n, tail in enumerate(tails * 2)]


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_and_logprobs_are_those_of_transformers_own_code(folders, kind):
    """An independent reference: eager attention, no cache, one sequence at a time."""
    reference = AutoModelForCausalLM.from_pretrained(folders[kind], attn_implementation="eager").eval()
    batch = requests()
    for request, completion in zip(
        batch, TransformersEngine(LocalModel(str(folders[kind]))).generate(batch, GREEDY), strict=True
    ):
        ids = torch.tensor([request.context + completion.ids])
        with torch.no_grad():
            wanted = reference(ids, use_cache=False).logits[0, len(request.context) - 1 : -1].log_softmax(-1)
        assert wanted.argmax(-1).tolist() == list(completion.ids)
        assert torch.allclose(torch.tensor(completion.logprobs), wanted.max(-1).values, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "close"), [("float32", 1e-4), ("bfloat16", 0.2)])
def test_logprobs_under_a_trained_adapter_and_in_bf16(folders, kind, dtype, close):
    model = LocalModel(str(folders[kind]), dtype=dtype, adapter=Adapter(4))
    trainer, batch = TorchTrainer(model, Adam(lr=1e-2)), requests()
    for _ in range(2):
        trainer.update([TrainRow((5, 6, 7), (8, 9, 2))], 1)
    trainer.publish("x")
    gaps = []
    for request, completion in zip(batch, TransformersEngine(model).generate(batch, Sampling()), strict=True):
        ids = torch.tensor([request.context + completion.ids])
        with torch.no_grad():
            logits = model.net(ids, use_cache=False).logits[0, len(request.context) - 1 : -1].float()
        wanted = logits.log_softmax(-1)[torch.arange(len(completion.ids)), torch.tensor(completion.ids)]
        gaps.append((torch.tensor(completion.logprobs) - wanted).abs())
    assert torch.cat(gaps).max() < close if dtype == "float32" else torch.cat(gaps).mean() < close


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_trees_are_used_where_they_are_exact(folders, kind, dtype):
    model = LocalModel(str(folders[kind]), dtype=dtype)
    assert model.full_attention == (kind in TREES) == (not model.branch_fault)
    trainer = TorchTrainer(model)
    rows = [TrainRow((5, 6, 7), (8, 2)), TrainRow((5, 6, 7), (9, 2))]
    assert trainer._accumulate(rows, 1.0)[1] == (5 if kind in TREES else 8)
    if kind in TREES:
        assert TorchTrainer(model, packing="rows")._accumulate(rows, 1.0)[1] == 8
        return
    with pytest.raises(TrainerError, match=r"trainer.packing: 'tree'.*(linear|sliding)_attention.*packing=\"rows\""):
        TorchTrainer(model, packing="tree")


def shifted(forward):
    """A feed-forward layer that also looks at the token before, as in models with a token shift."""

    def wrapped(self, states):
        before = torch.nn.functional.pad(states, (0, 0, 1, 0))[:, :-1]
        return forward(self, (states + before) / 2)

    return wrapped


def deaf(forward):
    """An attention layer that does not hand on what it was given beyond the usual arguments."""

    def wrapped(self, hidden_states, position_embeddings, attention_mask=None, cache=None, **kwargs):
        if kwargs.pop("whale_plan", None) is not None:
            attention_mask = None
        return forward(self, hidden_states, position_embeddings, attention_mask, cache, **kwargs)

    return wrapped


@pytest.mark.parametrize(
    ("layer", "change"), [(modeling_llama.LlamaMLP, shifted), (modeling_llama.LlamaAttention, deaf)]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_layers_that_break_trees_are_found_out(folders, monkeypatch, layer, change, dtype):
    """Nothing in the configuration tells: only numbers do. A chain of tokens alone would look right."""
    monkeypatch.setattr(layer, "forward", change(layer.forward))
    model = LocalModel(str(folders["llama"]), dtype=dtype)
    assert "probe" in model.branch_fault
    with pytest.raises(TrainerError, match=r"mix tokens of different branches"):
        TorchTrainer(model, packing="tree")
    rows = [TrainRow((5, 6, 7), (8, 9, 2)), TrainRow((5, 6, 7), (10, 11, 2))]
    trainer = TorchTrainer(model)
    together, alone = trainer._accumulate(rows, 1.0)[0], [trainer._accumulate([row], 1.0)[0] for row in rows]
    assert together.loss == pytest.approx(sum(sums.loss for sums in alone), rel=1e-5 if dtype == "float32" else 1e-2)


@pytest.mark.parametrize("kind", ["granite", "gemma2"])
def test_logits_are_scaled_and_capped_as_the_model_does(folders, kind):
    model = LocalModel(str(folders[kind]))
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        states = model.decoder(ids, use_cache=False).last_hidden_state
        assert torch.equal(model.head(states), model.net(ids, use_cache=False).logits)
        assert not torch.allclose(model.head(states), model.net.lm_head(states))


def test_logits_that_are_changed_in_an_unknown_way_are_refused(folders, monkeypatch):
    forward = modeling_llama.LlamaForCausalLM.forward

    def wrapped(self, *args, **kwargs):
        output = forward(self, *args, **kwargs)
        output.logits = output.logits * 1.5
        return output

    monkeypatch.setattr(modeling_llama.LlamaForCausalLM, "forward", wrapped)
    with pytest.raises(EngineError, match="changes its logits after the output layer"):
        LocalModel(str(folders["llama"]))


def test_capped_attention_scores_are_computed_by_eager_code(folders):
    assert LocalModel(str(folders["gemma2"])).net.config._attn_implementation == "eager"
    assert LocalModel(str(folders["gemma3"])).net.config._attn_implementation == "whale"
