"""The benchmark on a tiny model and a tiny finished run: every figure is there, and both sides compute the same."""

import importlib.util
import json
import math
import sys
import tomllib

import numpy as np
import pytest
from rich.console import Console

pytest.importorskip("torch")

from whale.bench import measure
from whale.bench.limit import sample_flops, shape_of, train_flops
from whale.bench.material import SHARING, at_level, load
from whale.bench.measure import KEYS, Options, bench, wanted
from whale.bench.overhead import Growth
from whale.bench.sides import compare, rows_of, rows_side, trl_side, whale_side
from whale.bench.stock import stock_generate, stock_model
from whale.bench.text import print_bench
from whale.cli import main
from whale.config import build_config
from whale.engines.local_model import LocalModel
from whale.engines.prefix_tree import build
from whale.engines.transformers import TransformersEngine
from whale.errors import ConfigError
from whale.launch import launch
from whale.testing.letters import RECIPE
from whale.testing.models import save_tiny
from whale.types import GenerationRequest, Sampling, TrainRow

SMALL = Growth(rows=(10, 30), rollouts=(4, 8), levels=("contained",))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of the letters recipe, only read."""
    folder = tmp_path_factory.mktemp("bench")
    save_tiny("llama", folder / "model")
    text = RECIPE.format(run_dir=folder / "run", model=folder / "model")
    launch(build_config({**tomllib.loads(text), "schedule": {"kind": "weight_only", "total_steps": 2}}))
    return folder / "run"


@pytest.fixture(scope="module")
def material(finished):
    return load(finished)


@pytest.fixture(scope="module")
def model(material):
    return LocalModel(material.model, threads=1)


def same(sides, rows):
    for found in compare(sides, rows).values():
        assert found["loss_difference"] < 1e-5
        assert found["gradient_difference"] < 1e-4
        assert found["cosine"] == pytest.approx(1, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("level", SHARING)
def test_padded_rows_compute_the_gradient_of_whale(material, model, level):
    rows = rows_of(material.updates[0], level, model)
    same({"whale": whale_side(model, 200), "rows": rows_side(model, 300)}, rows)


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "free"), [(1, False), (3, False), (3, True), (100, False)])
def test_trl_computes_the_gradient_of_whale(material, model, batch, free):
    pytest.importorskip("trl")
    rows = rows_of(material.updates[0], "harness", model)
    same({"whale": whale_side(model, 200), "trl": trl_side(stock_model(model), model, batch, free)}, rows)


@pytest.mark.slow
def test_levels_of_sharing_share_what_they_say(material, model):
    update = next(update for update in material.updates if len({example.task for example in update}) > 1)
    firsts = {
        level: [row.context[0] for row in at_level(update, level, model.vocabulary)] for level in ("none", "task")
    }
    assert len(set(firsts["none"])) == len(update)
    by_task = dict(zip((example.task for example in update), firsts["task"], strict=True))
    assert firsts["task"] == [by_task[example.task] for example in update]
    assert len(set(by_task.values())) == len(by_task)
    sizes = {level: nodes(at_level(update, level, model.vocabulary)) for level in SHARING}
    assert sizes["none"] == sum(len(example.row.context) + len(example.row.sampled) for example in update)
    assert sizes["harness"] <= sizes["task"] <= sizes["none"]
    assert sizes["harness"] < sizes["none"]


def nodes(rows):
    return len(build([np.array(ids) for ids in sorted((*row.context, *row.sampled) for row in rows)]))


def test_too_few_ids_to_tell_rows_apart(material):
    with pytest.raises(ConfigError, match="first tokens"):
        at_level(material.updates[0], "none", 2)


@pytest.mark.slow
def test_tokens_of_generate_count_up_to_the_end_token(model):
    """Greedy, so that whale's own engine knows what generate has to count."""
    prompts = [tuple(range(3, 3 + size)) for size in (5, 9, 14, 30)]
    requests = [GenerationRequest(prompt, 20, 0) for prompt in prompts]
    greedy = Sampling(temperature=0)
    ends = sorted({c.ids[2] for c in TransformersEngine(model).generate(requests, greedy)})[:1]
    own, model.end_ids = model.end_ids, tuple(ends)
    try:
        expected = [len(c.ids) for c in TransformersEngine(model).generate(requests, greedy)]
    finally:
        model.end_ids = own
    assert min(expected) < 20
    for batch in (1, 3, 4):
        assert stock_generate(stock_model(model), requests, greedy, ends, batch, 0)() == expected


def test_needed_arithmetic_counts_distinct_tokens_once(model):
    shape = shape_of(model)
    one = TrainRow((5, 6, 7), (8, 2))
    assert train_flops(shape, [one, one]) == train_flops(shape, [one])
    head = 2 * shape.width * shape.vocabulary
    body = 2 * shape.body * 4 + 4 * shape.attention * (1 + 2 + 3 + 4)
    assert train_flops(shape, [one]) == 3 * (body + 2 * head)
    # Three tokens of the prompt once, and the first sampled token of each of two samples; its second is only drawn.
    both = 2 * shape.body * 5 + 4 * shape.attention * (1 + 2 + 3 + 4 + 4)
    assert sample_flops(shape, [(5, 6, 7)] * 2, [2, 2]) == both + 3 * head


@pytest.mark.slow
def test_every_figure_is_there(finished, capsys):
    pytest.importorskip("trl")
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    result = json.loads(json.dumps(bench(Options(finished, threads=1, repeats=1, growth=SMALL))))
    assert set(result) == {*KEYS, "spread", "settings", "details"}
    for key in KEYS:
        found = result["spread"][key]
        assert found["low"] <= found["value"] == result[key] <= found["high"]
        assert math.isfinite(result[key])
        assert result[key] > 0
    assert 0 < result["overhead_frac"] < 1
    assert set(result["spread"]["train_vs_trl"]["levels"]) == set(SHARING)
    assert result["train_worst_sharing"] <= result["train_vs_rows"]
    assert [step["size"] for step in result["details"]["overhead"]["rollouts"]["contained"]] == [4, 8]
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before, "a run is only read"
    print_bench(result, Console(width=160))
    text = capsys.readouterr().out
    assert all(key in text for key in KEYS)


@pytest.mark.slow
def test_sampling_alone_needs_no_trl(finished, monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(measure, "find_spec", lambda name: None if name in ("trl", "datasets") else find(name))
    monkeypatch.setitem(sys.modules, "trl", None)  # importing it fails
    arguments = ["whale", "bench", "--run", str(finished), "--repeats", "1", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--json", "--only", "sample"])
    main()
    assert {"sample_vs_generate", "sample_of_limit"} == KEYS.keys() & json.loads(capsys.readouterr().out).keys()
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "pip install 'whale-learn[bench]'" in capsys.readouterr().err


def test_missing_run_says_how_to_make_one(tmp_path):
    with pytest.raises(ConfigError, match="make quickstart"):
        bench(Options(tmp_path / "nothing", only=["sample"]))


def test_only_takes_beginnings_of_keys():
    assert wanted([]) == list(KEYS)
    assert wanted(["sample", "overhead"]) == ["sample_vs_generate", "sample_of_limit", "overhead_frac"]
    with pytest.raises(ConfigError, match="train_vs_trl"):
        wanted(["speed"])
