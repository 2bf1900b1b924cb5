"""Adapters: trained, sampled from and saved unmerged; and bf16 weights trained through fp32 masters."""

import gc
import random

import pytest
import torch

from whale.engines.adapters import Adapter
from whale.engines.local_model import LocalModel
from whale.engines.transformers import TransformersEngine
from whale.errors import EngineError, TrainerError
from whale.testing.models import KINDS, save_tiny
from whale.trainers.optimizer import Adam
from whale.trainers.torch import TorchTrainer
from whale.types import GenerationRequest, Sampling, TrainRow

GREEDY = Sampling(temperature=0)
END = 2
SHAPES = {
    "lora": {"adapter": Adapter(4, seed=3)},
    "lora-bf16": {"adapter": Adapter(4, seed=3), "dtype": "bfloat16"},
    "bf16": {"dtype": "bfloat16"},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {kind: save_tiny(kind, tmp_path_factory.mktemp("tiny")) for kind in KINDS}


@pytest.fixture
def make(folders):
    def build(shape="lora", kind="llama", lr=1e-2, **options):
        return TorchTrainer(LocalModel(str(folders[kind]), **SHAPES[shape]), Adam(lr=lr, warmup_steps=2), **options)

    return build


def make_rows(seed=0):
    pick = random.Random(seed)
    words = lambda count: tuple(pick.randrange(3, 259) for _ in range(count))  # noqa: E731
    prefix = words(20)
    rows = [TrainRow(prefix + words(3 + n % 3), (*words(pick.choice([0, 2, 7])), END)) for n in range(8)]
    return [*rows, rows[0], TrainRow((5,), (7,), 0.5)]


def plain_logits(model, ids):
    with torch.no_grad():
        return model.net(torch.tensor([ids]), use_cache=False).logits[0]


def snapshot(trainer):
    weights = {name: tensor.detach().clone() for name, tensor in trainer.model.weights().items()}
    return {**weights, **{name: tensor.clone() for name, tensor in trainer._optimizer.tensors().items()}}


def assert_equal(first, second):
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_fresh_adapter_changes_nothing_and_random_numbers_of_others_neither(folders, kind):
    state = torch.random.get_rng_state()
    plain = LocalModel(str(folders[kind]))
    first, same = (LocalModel(str(folders[kind]), adapter=Adapter(4, seed=3)) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(plain_logits(plain, range(3, 40)), plain_logits(first, range(3, 40)))
    assert_equal(first.weights(), same.weights())
    other = LocalModel(str(folders[kind]), adapter=Adapter(4, seed=4))
    assert not any(torch.equal(t, other.weights()[n]) for n, t in first.weights().items() if "lora_A" in n)
    assert (first.base.kind, plain.base.kind) == ("adapter", "full")
    assert first.branch_fault == plain.branch_fault


@pytest.mark.parametrize("kind", KINDS)
def test_every_linear_layer_but_the_output_layer_has_an_adapter(folders, kind):
    model = LocalModel(str(folders[kind]), dtype="bfloat16", adapter=Adapter(2))
    linear = [n for n, m in model.net.named_modules() if isinstance(m, torch.nn.Linear) and ".lora_" not in n]
    adapted = {name.partition(".lora_")[0] for name in model.weights()}
    assert adapted == {name.removesuffix(".base_layer") for name in linear} - {"lm_head"}
    assert {tensor.dtype for tensor in model.weights().values()} == {torch.float32}
    assert model.dtype is torch.bfloat16


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [1, 40, 4096])
def test_the_packed_gradient_of_an_adapter_is_the_plain_one(make, kind, budget):
    trainer, rows = make(kind=kind, token_budget=budget), make_rows()
    trainer.update(rows, 9)  # B is no longer zero
    net = trainer.model.net
    for row in rows:
        logits = net(torch.tensor([row.context + row.sampled]), use_cache=False).logits[0, len(row.context) - 1 : -1]
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(row.sampled), reduction="sum")
        (loss * row.weight / 9).backward()
    expected = torch.cat([p.grad.flatten() for p in trainer.model.weights().values()])
    trainer._accumulate(rows, 1 / 9)
    found = torch.cat([p.grad.flatten() for p in trainer.model.weights().values()])
    assert (found - expected).norm() / expected.norm() < 1e-5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_what_may_move_moves_and_nothing_else(make, kind, shape):
    trainer = make(shape, kind)
    trainable = set(trainer.model.weights())
    before = {name: tensor.detach().clone() for name, tensor in trainer.model.net.named_parameters()}
    for step in range(2):  # B is zero at first, so that A only moves in the second step
        trainer.update(make_rows(step), 9)
    after = dict(trainer.model.net.named_parameters())
    assert {name for name in before if not torch.equal(before[name], after[name])} == trainable


@pytest.mark.parametrize("kind", KINDS)
def test_sampling_uses_the_trained_adapter(make, kind):
    trainer = make(kind=kind)
    trainer.model.end_ids = (11,)  # the tiny models' own end token has a zero embedding, which an adapter cannot reach
    engine = TransformersEngine(trainer.model)
    for _ in range(60):
        if trainer.update([TrainRow((7, 8), (9, 11))], 1)["loss"] < 0.5:
            break
    policy = trainer.publish("one row")
    assert (policy.kind, policy.version) == ("adapter", 1)
    (completion,) = engine.generate([GenerationRequest((7, 8), 10, 0)], GREEDY)
    assert (completion.ids, completion.finish, completion.version) == ((9, 11), "stop", 1)
    logprobs = plain_logits(trainer.model, [7, 8, 9, 11]).log_softmax(-1)
    assert completion.logprobs == pytest.approx([float(logprobs[1, 9]), float(logprobs[2, 11])], abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_saving_and_loading_in_between_changes_no_bit(make, kind, shape, tmp_path):
    straight, first = make(shape, kind), make(shape, kind)
    for step in range(4):
        straight.update(make_rows(step), 9)
        straight.publish(f"step {step}")
    for step in range(2):
        first.update(make_rows(step), 9)
        first.publish(f"step {step}")
    first.save(tmp_path / "at-2")
    second = make(shape, kind)
    second.load(tmp_path / "at-2")
    assert second.policy() == first.policy()
    for step in range(2, 4):
        second.update(make_rows(step), 9)
        second.publish(f"step {step}")
    assert_equal(snapshot(second), snapshot(straight))
    assert second.policy().digest == straight.policy().digest


@pytest.mark.parametrize("shape", SHAPES)
def test_reset_is_the_fresh_state_again(make, shape):
    trainer = make(shape)
    before, base = snapshot(trainer), trainer.policy()
    trainer.update(make_rows(), 9)
    trainer.publish("x")
    trainer.reset()
    assert_equal(snapshot(trainer), before)
    assert (trainer.policy(), trainer.steps) == (base, 0)


def test_a_checkpoint_is_an_adapter_that_peft_loads(make, folders, tmp_path):
    from peft import PeftModel

    trainer = make(kind="qwen3")
    for step in range(2):
        trainer.update(make_rows(step), 9)
    trainer.save(tmp_path / "c")
    files = {file.name for file in (tmp_path / "c").iterdir()}
    assert files == {
        "adapter_model.safetensors", "adapter_config.json", "optimizer.safetensors", "trainer.json", "complete.json",
    }  # fmt: skip
    loaded = PeftModel.from_pretrained(LocalModel(str(folders["qwen3"])).net, str(tmp_path / "c")).eval()
    with torch.no_grad():
        logits = loaded(torch.tensor([list(range(3, 40))]), use_cache=False).logits[0]
    assert torch.equal(logits, plain_logits(trainer.model, range(3, 40)))


def test_full_weights_and_adapters_do_not_load_each_other(make, folders, tmp_path):
    full = TorchTrainer(LocalModel(str(folders["llama"])))
    full.save(tmp_path / "full")
    make().save(tmp_path / "adapter")
    with pytest.raises(TrainerError, match=r"holds an adapter.*trains full weights.*lora_rank"):
        full.load(tmp_path / "adapter")
    with pytest.raises(TrainerError, match=r"holds full weights.*trains an adapter.*lora_rank"):
        make().load(tmp_path / "full")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"adapter": Adapter(8)}, "rank 4 and alpha 16, this run's rank 8"),
        ({"adapter": Adapter(4, alpha=8)}, "lora_alpha"),
        ({"adapter": Adapter(4, targets=("q_proj",))}, "names or shapes"),
        ({"adapter": Adapter(4), "dtype": "bfloat16"}, "engine.dtype=bfloat16"),
    ],
)
def test_an_adapter_of_other_settings_is_refused_and_changes_nothing(make, folders, tmp_path, options, part):
    make().save(tmp_path / "c")
    trainer = TorchTrainer(LocalModel(str(folders["llama"]), **options))
    before = snapshot(trainer)
    with pytest.raises(TrainerError, match=part):
        trainer.load(tmp_path / "c")
    assert_equal(snapshot(trainer), before)


@pytest.mark.parametrize(
    ("adapter", "part"),
    [
        (Adapter(4, targets=("q_proj", "nonsense")), r"nonsense.*choose from down_proj"),
        (Adapter(4, targets=("lm_head",)), r"lm_head.*choose from"),
        (Adapter(4, targets=()), "an empty list"),
        (Adapter(4, alpha=0), "lora_alpha 0"),
        (Adapter(-1), "lora_rank -1"),
    ],
)
def test_adapters_that_do_not_fit_are_refused(folders, adapter, part):
    with pytest.raises(EngineError, match=part):
        LocalModel(str(folders["qwen3"]), adapter=adapter)


def test_the_digest_names_adapter_and_precision(make, folders):
    trainers = [make(shape) for shape in SHAPES]
    trainers.append(TorchTrainer(LocalModel(str(folders["llama"])), Adam(lr=1e-2, warmup_steps=2)))
    assert len({trainer.publish("a").digest for trainer in trainers}) == 4


def test_masters_keep_steps_that_bf16_would_lose(make):
    trainer = make("bf16", lr=1e-5)
    weights = trainer.model.weights()
    start = {name: tensor.detach().clone() for name, tensor in weights.items()}
    for _ in range(60):
        trainer.update(make_rows(), 9)
    tensors = trainer._optimizer.tensors()
    for name, weight in weights.items():
        master = tensors[f"master/{name}"]
        assert master.dtype is torch.float32
        assert torch.equal(weight, master.bfloat16())
        assert not torch.equal(master, start[name].float())
    assert all(weight.grad is None for weight in weights.values())


def test_a_second_trainer_of_a_bf16_model_gets_the_gradients(make):
    first = make("bf16")
    model, adam = first.model, first.adam
    del first
    gc.collect()
    second = TorchTrainer(model, adam)
    assert second.update(make_rows(), 9)["grad_norm"] > 0
    assert all(second._optimizer.tensors()[f"exp_avg/{name}"].any() for name in model.weights())


def test_bf16_gradients_are_gathered_in_fp32(make):
    """A sum of many equal parts: bf16 alone would stop growing before the end."""
    trainer = make("bf16", token_budget=1)
    row = TrainRow((5, 6), (7, END))
    trainer._accumulate([row], 1.0)
    once = {name: gradient.clone() for name, gradient in trainer._optimizer.gradients().items()}
    rows = [TrainRow((5, 6), (7, END), 1.0 + n / 1e9) for n in range(300)]
    trainer._accumulate(rows, 1.0)
    for name, gradient in trainer._optimizer.gradients().items():
        assert gradient.dtype is torch.float32
        assert torch.allclose(gradient, 300 * once[name], rtol=1e-3, atol=1e-4), name
