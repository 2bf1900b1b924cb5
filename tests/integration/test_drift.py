"""Divergence from the base policy: what it says, and that measuring it changes nothing."""

import pytest
import torch

from whale.engines.adapters import Adapter
from whale.engines.local_model import LocalModel
from whale.testing.models import save_tiny
from whale.trainers.drift import kl_to_base
from whale.trainers.torch import Adam, TorchTrainer
from whale.types import TrainRow

ROWS = [TrainRow((5, 6, 7), (8, 9, 2)), TrainRow((5, 6, 7), (8, 10)), TrainRow((5, 6, 7, 8, 10, 30, 31), (12, 13, 2))]


@pytest.fixture(params=["llama", "qwen3.5", "adapter"])
def trainer(request, tmp_path):
    kind = "llama" if request.param == "adapter" else request.param
    adapter = Adapter(rank=2) if request.param == "adapter" else None
    model = LocalModel(str(save_tiny(kind, tmp_path / "model")), adapter=adapter)
    return TorchTrainer(model, Adam(lr=1e-2))


def reference(trainer, folder_model):
    """From two whole models and plain forward passes, token by token."""
    total, count = 0.0, 0
    for row in ROWS:
        ids = torch.tensor([row.context + row.sampled])
        with torch.no_grad():
            own, base = (net(ids).logits[0, len(row.context) - 1 : -1].log_softmax(-1)
                         for net in (trainer.model.net, folder_model.net))  # fmt: skip
        total += (own.exp() * (own - base)).sum().item()
        count += len(row.sampled)
    return total / count


@pytest.mark.slow
@pytest.mark.parametrize("budget", [1000, 4])
def test_it_is_the_divergence_of_plain_forward_passes_and_leaves_the_weights_alone(trainer, budget):
    assert kl_to_base(trainer.model, ROWS, budget) == pytest.approx(0, abs=1e-6)
    for _ in range(3):
        trainer.update(ROWS, 3)
    before = {name: tensor.clone() for name, tensor in trainer.model.net.named_parameters()}
    found = kl_to_base(trainer.model, ROWS, budget)
    assert found == pytest.approx(reference(trainer, LocalModel(trainer.model.name)), rel=1e-4)
    assert found > 0.01
    for name, tensor in trainer.model.net.named_parameters():
        assert torch.equal(tensor, before[name])
        assert tensor.requires_grad == (trainer.model.adapter is None or "lora" in name)


@pytest.mark.slow
def test_files_that_name_their_tensors_otherwise_are_read_whole(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = save_tiny("llama", tmp_path / "model")
    model = LocalModel(str(folder))
    tensors = load_file(folder / "model.safetensors")
    trainer = TorchTrainer(model, Adam(lr=1e-2))
    trainer.update(ROWS, 3)
    expected = kl_to_base(model, ROWS, 1000)
    save_file({n.removeprefix("model."): t for n, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    assert kl_to_base(model, ROWS, 1000) == pytest.approx(expected, rel=1e-6)
