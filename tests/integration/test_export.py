"""Exports: what is written loads as it is, computes what the policy computes, and says so where it does not."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from whale.build import load_policy
from whale.config import build_config
from whale.engines.adapters import Adapter
from whale.engines.local_model import LocalModel
from whale.errors import ConfigError, TrainerError
from whale.export import export_policy
from whale.state import RunState
from whale.store import Store
from whale.testing.models import KINDS, save_tiny
from whale.trainers.export import export
from whale.trainers.optimizer import Adam
from whale.trainers.torch import TorchTrainer
from whale.types import ModelCall, Outcome, Rollout, TrainRow

ROWS = [TrainRow((5, 6, 7), (8, 9, 2)), TrainRow((5, 6, 7), (10, 2)), TrainRow((20, 21), (22, 23, 2))]
IDS = list(range(3, 60))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {kind: save_tiny(kind, tmp_path_factory.mktemp("tiny")) for kind in KINDS}


@pytest.fixture
def checkpoint(folders, tmp_path):
    """``checkpoint(kind, ...)``: a trained policy's checkpoint and the trainer it came from."""

    def write(kind="llama", **options):
        trainer = TorchTrainer(LocalModel(str(folders[kind]), **options), Adam(lr=1e-2))
        for _ in range(3):
            trainer.update(ROWS, 3)
        trainer.publish("x")
        trainer.save(tmp_path / "checkpoint")
        return tmp_path / "checkpoint", trainer

    return write


def logits(net):
    with torch.no_grad():
        return net(torch.tensor([IDS]), use_cache=False).logits[0].float()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("adapter", [None, Adapter(4)])
def test_an_export_loads_as_a_plain_model_and_computes_the_same(checkpoint, tmp_path, kind, adapter):
    source, trainer = checkpoint(kind, adapter=adapter)
    figures = export(source, tmp_path / "out")
    assert figures["policy_version"] == 1
    assert figures["dtype"] == "float32"
    assert figures["tokens"] == 512
    # The recurrence of linear attention adds up the roundings of a merge over a whole row.
    assert figures["max_logit_difference"] < (1e-4 if kind != "qwen3.5" else 2e-3)
    assert figures["argmax_agreement"] == 1.0
    assert figures["adapter"] is None
    assert not list((tmp_path / "out").glob("*.bin"))
    net = AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    assert torch.allclose(logits(net), logits(trainer.model.net), atol=1e-4 if kind != "qwen3.5" else 2e-3)
    assert not any(".lora_" in name or "base_layer" in name for name in load_file(tmp_path / "out/model.safetensors"))
    words = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert words.chat_template == trainer.model.tokenizer.chat_template
    assert net.generation_config.eos_token_id == 2
    assert LocalModel(str(tmp_path / "out")).end_ids == trainer.model.end_ids


def test_an_adapter_is_copied_in_peft_format(checkpoint, folders, tmp_path):
    from peft import PeftModel

    source, trainer = checkpoint(adapter=Adapter(4, targets=("q_proj", "down_proj")))
    figures = export(source, tmp_path / "out", merge=False)
    assert (figures["max_logit_difference"], figures["adapter"]) == (0.0, str(tmp_path / "out"))
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"adapter_model.safetensors", "adapter_config.json"}
    base = AutoModelForCausalLM.from_pretrained(folders["llama"], attn_implementation="eager")
    loaded = PeftModel.from_pretrained(base, str(tmp_path / "out")).eval()
    assert torch.allclose(logits(loaded), logits(trainer.model.net), atol=1e-4)


def test_bf16_is_written_and_measured(checkpoint, tmp_path):
    source, trainer = checkpoint("qwen3", adapter=Adapter(8), dtype="bfloat16")
    as_trained = export(source, tmp_path / "a")
    exact = export(source, tmp_path / "b", dtype="float32")
    assert (as_trained["dtype"], exact["dtype"]) == ("bfloat16", "float32")
    assert load_file(tmp_path / "a/model.safetensors")["model.norm.weight"].dtype is torch.bfloat16
    assert load_file(tmp_path / "b/model.safetensors")["model.norm.weight"].dtype is torch.float32
    assert json.loads((tmp_path / "a/config.json").read_text())["dtype"] == "bfloat16"
    net = AutoModelForCausalLM.from_pretrained(tmp_path / "a", dtype="bfloat16").eval()
    found = (logits(net) - logits(trainer.model.net)).abs().max()
    assert 0 < float(found) < 1
    assert 0 < as_trained["max_logit_difference"] < 1


def test_a_merge_that_changes_the_policy_keeps_the_adapter(checkpoint, tmp_path):
    """An adapter far larger than the base cancels against it: bf16 has no digits left for the sum."""
    source, _ = checkpoint("qwen3", adapter=Adapter(4), dtype="bfloat16")
    weights = load_file(source / "adapter_model.safetensors")
    # A different B of the same size: only the marker's byte counts are checked, so this stays a whole checkpoint.
    generator = torch.Generator().manual_seed(0)
    for name, tensor in weights.items():
        if "lora_B" in name:
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    save_file(weights, source / "adapter_model.safetensors", metadata={"format": "pt"})
    figures = export(source, tmp_path / "out")
    assert figures["argmax_agreement"] < 0.99
    assert not figures["agrees"]
    assert figures["adapter"] == str(tmp_path / "out-adapter")
    assert (tmp_path / "out-adapter" / "adapter_config.json").is_file()
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_what_cannot_be_exported_is_refused(checkpoint, tmp_path):
    source, _ = checkpoint()
    full = tmp_path / "full"
    shutil.copytree(source, full)
    with pytest.raises(TrainerError, match="no adapter"):
        export(full, tmp_path / "out", merge=False)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("mine")
    with pytest.raises(TrainerError, match="not an empty folder"):
        export(full, tmp_path / "used")
    adapted, _ = checkpoint(adapter=Adapter(2))
    with pytest.raises(TrainerError, match="copied as it is"):
        export(adapted, tmp_path / "out", merge=False, dtype="bfloat16")
    (full / "complete.json").unlink()
    with pytest.raises(TrainerError, match="not complete"):
        export(full, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def run_folder(folders, tmp_path):
    """A run whose policy was trained once, with one block of rollouts; and its trainer."""
    config = build_config(
        {
            "run_dir": str(tmp_path / "run"),
            "model": str(folders["llama"]),
            "domain": {"name": "toy"},
            "trainer": {"lr": 1e-2, "lora_rank": 4, "lora_targets": ["q_proj", "v_proj"]},
            "store": {"min_free_gb": 0.0},
            "seed": 5,
        }
    )
    _, trainer = load_policy(config)
    store = Store(tmp_path / "run")
    store.open(config)
    store.commit(RunState(policy=trainer.policy()))
    yield store, trainer
    store.close()


def train(store, trainer):
    trainer.update(ROWS, 3)
    policy = trainer.publish("x")
    trainer.save(store.policy_folder(policy.version))
    store.commit(RunState(policy=trainer.policy()))


def test_a_run_exports_its_last_policy_compared_on_its_rollouts(run_folder, tmp_path):
    store, trainer = run_folder
    assert trainer.model.adapter == Adapter(4, 16, ("q_proj", "v_proj"), 5)
    with pytest.raises(ConfigError, match="no trained policy yet"):
        export_policy(tmp_path / "run", tmp_path / "out")
    train(store, trainer)
    assert export_policy(tmp_path / "run", tmp_path / "random")["tokens"] == 512
    call = ModelCall(tuple(IDS), (9, 2), (-1.0, -1.0), "stop", 0, 1)
    rollout = Rollout("t", 0, 0, "h0", 1, Outcome.SCORED, 1.0, calls=(call,))
    with store.write_block("e-x") as block:
        block.add(0, rollout)
        block.add(1, Rollout("t", 1, 0, "h0", 1, Outcome.INFRA_ERROR, None))
    assert export_policy(tmp_path / "run", tmp_path / "mine")["tokens"] == len(IDS) + 2
    checkpoint = tmp_path / "run" / "policies" / "00001"
    assert export_policy(checkpoint, tmp_path / "again")["tokens"] == len(IDS) + 2


def test_the_command_prints_figures(run_folder, tmp_path):
    store, trainer = run_folder
    train(store, trainer)
    command = [sys.executable, "-c", "from whale.cli import main; main()", "export"]
    command += [str(tmp_path / "run"), str(tmp_path / "out"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["argmax_agreement"] == 1.0
    assert set(figures) >= {"policy_version", "dtype", "tokens", "max_logit_difference", "adapter"}
