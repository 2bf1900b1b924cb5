"""The whole loop with an adapter or in bf16: one representation of the policy for training, search and scores."""

import json
import tomllib
from pathlib import Path

import pytest
import torch
from peft.tuners.lora import LoraLayer

from whale.build import build_run
from whale.config import build_config
from whale.loop import alternate
from whale.store import Store
from whale.testing.letters import RECIPE
from whale.testing.models import save_tiny


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "dtype"), [(4, "float32"), (4, "bfloat16"), (0, "bfloat16")], ids=["adapter", "adapter-bf16", "bf16"]
)
def test_every_phase_uses_the_weights_that_are_trained(tmp_path, rank, dtype):
    save_tiny("llama", tmp_path / "model")
    changes = tomllib.loads(RECIPE.format(run_dir=tmp_path / "run", model=tmp_path / "model"))
    changes["trainer"] |= {"lora_rank": rank}
    changes["engine"] |= {"dtype": dtype}
    config = build_config(changes)
    store = Store(Path(config.run_dir))
    state = store.open(config)
    run = build_run(config, store)
    net = run.trainer.model.net
    trained = set(run.trainer.model.weights())
    base = {name: tensor.clone() for name, tensor in net.named_parameters() if name not in trained}
    state = alternate(run, state)
    store.close()

    assert state.finished
    assert [record.phase.kind for record in state.history] == ["weights", "harness", "weights", "harness", "weights"]
    assert state.policy.version > 0
    assert bool(base) == bool(rank)
    now = dict(net.named_parameters())
    assert all(torch.equal(tensor, now[name]) for name, tensor in base.items()), "only the adapter moves"
    assert not any(layer.merged for layer in net.modules() if isinstance(layer, LoraLayer))
    steps = [line for line in map(json.loads, (store.folder / "metrics.jsonl").open()) if line["kind"] == "step"]
    gaps = {line["policy"]: line["logprob_gap"] for line in steps if "logprob_gap" in line}
    assert max(gaps) > 0, "compared under trained weights too, after search and scores"
    assert max(gaps.values()) < (1e-4 if dtype == "float32" else config.trainer.max_logprob_gap)
