"""The trainer on tiny models: packed gradients are the plain ones, and what was saved continues bit for bit."""

import dataclasses
import json
import random
import shutil
from typing import get_args

import pytest
import torch
from torch.nn.functional import cross_entropy

from whale.engines.local_model import LocalModel
from whale.engines.transformers import TransformersEngine
from whale.errors import StaleWeightsError, TrainerError
from whale.testing.models import KINDS, save_tiny
from whale.trainers.loss import Sums, backward
from whale.trainers.passes import Packing, Pass, passes
from whale.trainers.torch import Adam, TorchTrainer
from whale.trainers.tree import pack, padded
from whale.types import GenerationRequest, Sampling, TrainRow

GREEDY = Sampling(temperature=0)
END = 2


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {kind: save_tiny(kind, tmp_path_factory.mktemp("tiny")) for kind in KINDS}


@pytest.fixture
def make(folders):
    return lambda kind="llama", adam=None, **options: TorchTrainer(
        LocalModel(str(folders[kind])), adam or Adam(lr=1e-2), **options
    )


def make_rows(seed=0):
    """Shared prefixes, replies of one token and of several, duplicates, weights, and a row that shares nothing."""
    pick = random.Random(seed)
    words = lambda count: tuple(pick.randrange(3, 259) for _ in range(count))  # noqa: E731
    prefix = words(20)
    prompts = [prefix + words(3 + n) for n in range(4)]
    rows = [
        TrainRow(p, (*words(pick.choice([0, 2, 7])), END), pick.choice([1.0, 0.5])) for p in prompts for _ in range(4)
    ]
    return [*rows, *rows[:2], TrainRow((5,), (7,))]


def plain_gradient(model, rows, rollouts, pad=0):
    """Loss and gradient with every row computed alone and logits everywhere, ``pad`` tokens after each."""
    model.net.zero_grad()
    total = 0.0
    for row in rows:
        logits = model.net(torch.tensor([row.context + row.sampled + (0,) * pad]), use_cache=False).logits[0]
        wanted = logits[len(row.context) - 1 :][: len(row.sampled)]
        nll = cross_entropy(wanted, torch.tensor(row.sampled), reduction="none")
        loss = (nll * torch.tensor(row.weights)).sum() / rollouts
        loss.backward()
        total += loss.item()
    return total, gradient(model)


def allowed(kind, model, rows, rollouts, expected):
    """Relative difference that is rounding: 1e-5; with linear attention, whose chunks round differently at every
    length, twice what padding a row by one token changes in transformers' own code."""
    if kind != "qwen3.5":
        return 1e-5
    padded_alone = plain_gradient(model, rows, rollouts, pad=1)[1]
    return max(1e-5, 2 * float((padded_alone - expected).norm() / expected.norm()))


def gradient(model):
    return torch.cat([p.grad.flatten() for p in model.net.parameters()])


@pytest.mark.parametrize(
    ("kind", "packing"),
    [*((kind, "auto") for kind in KINDS), *((kind, "tree") for kind in ("llama", "qwen3", "granite"))],
)
@pytest.mark.parametrize("budget", [1, 40, 64, 4096])
def test_the_packed_gradient_is_the_plain_one(make, kind, packing, budget):
    trainer, rows = make(kind, packing=packing, token_budget=budget), make_rows()
    expected_loss, expected = plain_gradient(trainer.model, rows, 9)
    most = allowed(kind, trainer.model, rows, 9, expected)
    sums, _, pieces = trainer._accumulate(rows, 1 / 9)
    assert sums.loss == pytest.approx(expected_loss, rel=1e-6)
    assert (gradient(trainer.model) - expected).norm() / expected.norm() < most
    assert (pieces == 1) == (budget == 4096)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "granite"])
@pytest.mark.parametrize("budget", [40, 4096])
def test_trees_and_rows_give_the_same_gradient(make, kind, budget):
    trainer, rows = make(kind, packing="tree", token_budget=budget), make_rows()
    tree, tokens, _ = trainer._accumulate(rows, 1 / 9)
    expected = gradient(trainer.model)
    padded = TorchTrainer(trainer.model, packing="rows", token_budget=budget)
    sums, more, _ = padded._accumulate(rows, 1 / 9)
    assert sums.loss == pytest.approx(tree.loss, rel=1e-6)
    assert (gradient(trainer.model) - expected).norm() / expected.norm() < 1e-5
    assert more > tokens


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampled", [(END,), (9, 10, END)])
def test_the_loss_of_a_row_is_that_of_its_sampled_tokens_alone(make, kind, sampled):
    """What the context holds is given, never predicted: the gradient is that of the sampled tokens' likelihood."""
    trainer, context = make(kind), (5, 6, 7, 8)
    row = TrainRow(context, sampled)
    sums, _, _ = trainer._accumulate([row, row], 1.0)
    found = gradient(trainer.model)
    trainer.model.net.zero_grad()
    logits = trainer.model.net(torch.tensor([context + sampled]), use_cache=False).logits[0]
    likelihood = logits.log_softmax(-1)[torch.arange(len(sampled)) + len(context) - 1, torch.tensor(sampled)]
    (-2 * likelihood.sum()).backward()
    assert sums.loss == pytest.approx(-2 * likelihood.sum().item(), rel=1e-5)
    assert (found - gradient(trainer.model)).norm() / found.norm() < 1e-5


@pytest.mark.parametrize("kind", ["llama", "qwen3.5"])
def test_a_row_may_weigh_token_by_token(make, kind):
    """Negative weights and zeros too, as other objectives have them."""
    pick = random.Random(4)
    rows = [
        dataclasses.replace(row, weight=tuple(pick.choice([-1.0, 0.0, 0.3, 2.0]) for _ in row.sampled))
        for row in make_rows()
    ]
    trainer = make(kind)
    expected_loss, expected = plain_gradient(trainer.model, rows, 9)
    most = allowed(kind, trainer.model, rows, 9, expected)
    sums, _, _ = trainer._accumulate(rows, 1 / 9)
    assert sums.loss == pytest.approx(expected_loss, rel=1e-5)
    assert (gradient(trainer.model) - expected).norm() / expected.norm() < most


@pytest.mark.parametrize("kind", ["llama", "qwen3.5"])
def test_figures_are_those_of_plain_forward_passes(make, kind):
    """Over sampled tokens alone: what a context holds is in none of them."""
    trainer, rows = make(kind), make_rows()
    entropies, told = [], []
    for number, row in enumerate(rows):
        with torch.no_grad():
            logits = trainer.model.net(torch.tensor([row.context + row.sampled]), use_cache=False).logits[0]
        table = logits[len(row.context) - 1 : -1].log_softmax(-1)
        entropies += (-(table.exp() * table).sum(-1)).tolist()
        if number % 2:  # the others are not compared
            own = table.gather(-1, torch.tensor(row.sampled)[:, None])[:, 0].tolist()
            row = dataclasses.replace(row, logprobs=tuple(value + 0.01 for value in own))
        told.append(row)
    expected = plain_gradient(trainer.model, rows, 9)[1].norm().item()
    figures = trainer.update(told, 9)
    assert figures["grad_norm"] == pytest.approx(expected, rel=1e-4)
    weights = [tensor.detach().flatten() for tensor in trainer.model.weights().values()]
    assert figures["weight_norm"] == pytest.approx(torch.cat(weights).norm().item(), rel=1e-5)
    assert figures["entropy"] == pytest.approx(sum(entropies) / len(entropies), rel=1e-4)
    compared = [row for row in told if row.logprobs]
    assert make(kind).update(compared, 9)["logprob_gap"] == pytest.approx(0.01, rel=1e-2)


def test_another_policy_than_the_sampler_s_stops_before_the_weights_change(make):
    trainer = make(max_logprob_gap=0.05)
    engine = TransformersEngine(trainer.model)
    requests = [GenerationRequest((5, 6, 7), 6, seed) for seed in range(8)]
    completions = engine.generate(requests, Sampling(top_k=0))
    rows = [TrainRow(r.context, c.ids, 1.0, c.logprobs) for r, c in zip(requests, completions, strict=True)]
    assert trainer.update(rows, 8)["logprob_gap"] < 1e-5
    before = {name: tensor.clone() for name, tensor in trainer.model.weights().items()}
    with pytest.raises(StaleWeightsError, match="max_logprob_gap"):
        trainer.update(rows, 8)
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.model.weights().items())
    assert trainer.steps == 1
    assert "logprob_gap" not in trainer.update([dataclasses.replace(row, logprobs=()) for row in rows], 8)


def test_shared_tokens_are_computed_once(make):
    rows = [TrainRow((5, 6, 7), (8, n, END)) for n in range(10, 20)]
    figures = make().update(rows, 10)
    assert figures["tokens"] == 3 + 1 + 10  # the context, the 8 they all begin with, and what differs
    assert figures["row_tokens"] == 60
    assert figures["pieces"] == 1


def test_auto_takes_trees_where_much_is_shared_and_rows_where_little_is(make):
    """One token of each context shared by all of equal length: a tree saves less than its mask costs."""
    model = make().model
    much = [TrainRow((5, 6, 7), (8, n, END)) for n in range(10, 20)]
    little = [TrainRow((5, *range(n, n + 18)), (8, 9, END)) for n in range(10, 20)]
    for rows, wanted, other in ((much, "tree", "rows"), (little, "rows", "tree")):
        tokens = {
            packing: [each.tokens for each in passes(model, rows, 4096, packing)] for packing in get_args(Packing)
        }
        assert tokens["auto"] == tokens[wanted] != tokens[other]


def test_packing_does_not_depend_on_the_order_of_rows():
    rows = make_rows()
    shuffled = random.Random(1).sample(rows, len(rows))
    for one, other in zip(pack(rows, 40), pack(shuffled, 40), strict=True):
        assert one.tree.ids.tolist() == other.tree.ids.tolist()
        assert one.targets.weights.tolist() == other.targets.weights.tolist()


def test_thousands_of_rows_are_packed_at_once():
    pick = random.Random(3)
    prompts = [(*range(3, 200), *(pick.randrange(259) for _ in range(40))) for _ in range(250)]
    rows = [TrainRow(p, (*(pick.randrange(259) for _ in range(20)), END)) for p in prompts for _ in range(8)]
    pieces = pack(rows, 768)
    assert sum(len(piece.targets.tokens) for piece in pieces) > 0.9 * 2000 * 21
    assert sum(len(piece.tree) for piece in pieces) < 0.5 * sum(len(r.context) + len(r.sampled) for r in rows)


PROMPT, FIRST, TOOL, SECOND = (5, 6, 7, 8, 9), (10, 11, END), (20, 21, 22, 23), (30, END)


def with_tool(tool=TOOL):
    """Five prompt tokens, three sampled, four of a tool, two sampled: the rows of its two calls."""
    return [TrainRow(PROMPT, FIRST), TrainRow(PROMPT + FIRST + tool, SECOND, logprobs=(-1.0, -2.0))]


def targets_of(rows, packing):
    """Targets and the positions in their row that they predict, of all passes."""
    if packing == "tree":
        return [(piece.targets, piece.tree.depth[piece.targets.nodes] + 1) for piece in pack(rows, 100)]
    return [(targets, targets.nodes % max(map(len, ids)) + 1) for ids, targets in padded(rows, 100)]


@pytest.mark.parametrize("packing", ["tree", "rows"])
def test_targets_stand_at_the_sampled_positions_alone(packing):
    found = targets_of(with_tool(), packing)
    assert sorted(int(p) for targets, positions in found for p in positions[targets.at]) == [5, 6, 7, 12, 13]
    assert sum(int(targets.counts.sum()) for targets, _ in found) == 5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("packing", ["tree", "rows"])
def test_what_a_tool_said_has_no_part_in_loss_entropy_or_gap(make, kind, packing):
    """Exactly none: given the states that predict, other tool tokens change no figure and no gradient by one bit."""
    model = make(kind).model
    results = []
    for tool in (TOOL, (40, 41, 42, 43)):
        sums, gradients = Sums(), []
        for targets, _ in targets_of(with_tool(tool), packing):
            fixed = torch.Generator().manual_seed(len(targets.nodes))
            states = torch.randn(len(targets.nodes), model.head.weight.shape[1], generator=fixed).requires_grad_()
            sums += backward(model, Pass(1, targets, lambda states=states: states), 1.0)
            gradients.append(states.grad)
        results.append((sums, gradients))
    (one, first), (other, second) = results
    assert one == other
    assert one.tokens == 5
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_only_sampled_tokens_are_in_the_loss(make, kind):
    trainer, rows = make(kind), with_tool()
    sums, _, _ = trainer._accumulate(rows, 1.0)
    expected, _ = plain_gradient(trainer.model, rows, 1)
    assert sums.loss == pytest.approx(expected, rel=1e-6)
    alone, _, _ = trainer._accumulate(rows[:1], 1.0)
    other, _, _ = trainer._accumulate([rows[0], TrainRow(PROMPT + FIRST + TOOL, SECOND, weight=0.0)], 1.0)
    assert alone.loss == pytest.approx(other.loss, rel=1e-6)


@pytest.mark.parametrize("packing", ["tree", "rows"])
def test_an_end_token_that_also_pads_is_learnt_once_a_row(packing):
    """A short row padded beside a long one, pad id = end id: two targets, however many pads follow."""
    (found,) = targets_of([TrainRow((7, 8), (9, END)), TrainRow((7, 8, 5, 6), (10, 11, END))], packing)
    targets, positions = found
    short = [(int(p), int(t)) for p, t in zip(positions[targets.at], targets.tokens, strict=True) if p < 4]
    assert short == [(2, 9), (3, END)]
    assert int(targets.counts.sum()) == 5


def test_padded_rows_are_sorted_by_length():
    rows = make_rows()
    lengths = [len(ids) for batch, _ in padded(random.Random(0).sample(rows, len(rows)), 64) for ids in batch]
    assert lengths == sorted(lengths)
    assert len(lengths) == len(rows)


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_token_is_learnt_and_decoding_stops_there(make, kind):
    trainer = make(kind)
    engine = TransformersEngine(trainer.model)
    request = GenerationRequest((7, 8), 10, 0)
    (before,) = engine.generate([request], GREEDY)
    assert before.ids[0] != 9
    for _ in range(60):
        figures = trainer.update([TrainRow((7, 8), (9, END))], 1)
        if figures["loss"] < 0.05:
            break
    trainer.publish("one row")
    (completion,) = engine.generate([request], GREEDY)
    assert (completion.ids, completion.finish) == ((9, END), "stop")
    assert completion.version == trainer.policy().version == engine.version == 1
    (trained,) = engine.generate([GenerationRequest((7, 8), 10, 0)], Sampling())
    assert trained.logprobs[0] > -0.1  # what is sampled from is what was trained


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_moves(make, kind):
    trainer = make(kind)
    before = {name: tensor.detach().clone() for name, tensor in trainer.model.weights().items()}
    trainer.update(make_rows(), 9)
    still = [name for name, tensor in trainer.model.weights().items() if torch.equal(tensor, before[name])]
    assert still == []
    assert all(p.grad is None for p in trainer.model.net.parameters())


def test_warm_up_and_clipping(make):
    trainer = make(adam=Adam(lr=1e-3, warmup_steps=4, clip=0.5))
    figures = [trainer.update(make_rows(), 9) for _ in range(6)]
    assert [f["lr"] for f in figures] == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3, 1e-3])
    assert figures[0]["clipped"] == 1.0
    assert figures[0]["grad_norm"] > 0.5


def snapshot(trainer):
    tensors = {name: tensor.detach().clone() for name, tensor in trainer.model.weights().items()}
    return {**tensors, **{name: tensor.clone() for name, tensor in trainer._optimizer.tensors().items()}}


def assert_equal(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


@pytest.mark.parametrize("kind", KINDS)
def test_saving_and_loading_in_between_changes_no_bit(make, kind, tmp_path):
    straight, first = make(kind, Adam(lr=1e-3, warmup_steps=3)), make(kind, Adam(lr=1e-3, warmup_steps=3))
    for step in range(4):
        straight.update(make_rows(step), 9)
        straight.publish(f"step {step}")
    for step in range(2):
        first.update(make_rows(step), 9)
        first.publish(f"step {step}")
    first.save(tmp_path / "at-2")
    second = make(kind, Adam(lr=1e-3, warmup_steps=3))
    second.load(tmp_path / "at-2")
    assert second.policy() == first.policy()
    for step in range(2, 4):
        second.update(make_rows(step), 9)
        second.publish(f"step {step}")
    assert_equal(snapshot(second), snapshot(straight))
    assert second.policy().digest == straight.policy().digest


def test_a_checkpoint_is_a_model_folder(make, tmp_path):
    trainer = make("qwen3")
    trainer.update(make_rows(), 9)
    trainer.publish("x")
    trainer.save(tmp_path / "c")
    loaded = LocalModel(str(tmp_path / "c"))
    assert_equal(dict(loaded.weights()), dict(trainer.model.weights()))
    assert loaded.end_ids == trainer.model.end_ids


def test_a_half_written_checkpoint_is_refused_and_changes_nothing(make, tmp_path):
    trainer = make()
    trainer.update(make_rows(), 9)
    trainer.save(tmp_path / "whole")
    before = snapshot(trainer)
    damage = {
        "no-marker": lambda f: (f / "complete.json").unlink(),
        "no-weights": lambda f: (f / "model.safetensors").unlink(),
        "short": lambda f: (f / "optimizer.safetensors").write_bytes(b"x"),
        "marker-cut": lambda f: (f / "complete.json").write_text("{"),
    }
    for name, harm in damage.items():
        shutil.copytree(tmp_path / "whole", tmp_path / name)
        harm(tmp_path / name)
        with pytest.raises(TrainerError, match="earlier one"):
            trainer.load(tmp_path / name)
    assert_equal(snapshot(trainer), before)


def test_saving_again_takes_the_marker_away_first(make, tmp_path, monkeypatch):
    trainer = make()
    trainer.save(tmp_path / "c")
    monkeypatch.setattr(trainer.model.tokenizer, "save_pretrained", lambda folder: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer.save(tmp_path / "c")
    with pytest.raises(TrainerError, match="not complete"):
        trainer.load(tmp_path / "c")


def test_a_checkpoint_of_another_model_is_refused(make, tmp_path):
    make("llama").save(tmp_path / "c")
    with pytest.raises(TrainerError, match="this run uses"):
        make("qwen3").load(tmp_path / "c")


def test_reset_is_the_base_again(make, tmp_path):
    trainer = make()
    base, before = trainer.policy(), snapshot(trainer)
    trainer.update(make_rows(), 9)
    trainer.publish("x")
    assert trainer.policy().digest != base.digest
    trainer.reset()
    assert trainer.policy() == base
    assert trainer.steps == 0
    assert_equal(snapshot(trainer), before)


def test_the_digest_names_base_notes_and_settings(make):
    one, same, other, rate = make(), make(), make(), make(adam=Adam(lr=1e-5))
    assert one.publish("a").digest == same.publish("a").digest
    assert len({t.policy().digest for t in (one, rate)} | {other.publish("b").digest, rate.publish("a").digest}) == 4
    assert one.publish("a").version == 2


@pytest.mark.parametrize(
    ("row", "part"),
    [
        (TrainRow((5, 259), (7,)), "token id 259"),
        (TrainRow((5,), (-1,)), "token id -1"),
        (TrainRow((5,), ()), "no sampled tokens"),
        (TrainRow((), (5,)), "empty context"),
        (TrainRow((5,) * 500, (6,) * 20), "520 tokens"),
        (TrainRow((5,), (7,), float("nan")), "weight nan"),
    ],
)
def test_rows_that_cannot_be_trained_on_are_named(make, row, part):
    trainer = make()
    before = snapshot(trainer)
    with pytest.raises(TrainerError, match=f"row 1 .*{part}"):
        trainer.update([TrainRow((5,), (6,)), row], 2)
    assert_equal(snapshot(trainer), before)
    with pytest.raises(TrainerError):
        trainer.update([], 1)


def test_a_loss_that_is_not_finite_changes_nothing(make):
    trainer = make()
    trainer.update(make_rows(), 9)
    trainer.publish("x")
    before = snapshot(trainer)
    with pytest.raises(TrainerError, match="not finite"):
        trainer.update([TrainRow((5,), (6,), 1e308), TrainRow((5,), (6,), 1e308)], 1)
    assert_equal(snapshot(trainer), before)
    assert not trainer.model.dirty
    assert all(p.grad is None for p in trainer.model.net.parameters())


def test_training_in_float16_is_refused(folders):
    with pytest.raises(TrainerError, match=r"float16.*bfloat16"):
        TorchTrainer(LocalModel(str(folders["llama"]), dtype="float16"))


def test_the_state_file_is_readable(make, tmp_path):
    trainer = make()
    trainer.publish("x")
    trainer.save(tmp_path)
    state = json.loads((tmp_path / "trainer.json").read_text())
    assert state["policy"]["version"] == 1
    assert trainer.policy().path == str(tmp_path)
