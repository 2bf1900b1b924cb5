from pathlib import Path

import pytest

from whale.config import build_config, differences, load_config
from whale.errors import ConfigError

RECIPES = Path(__file__).parents[2] / "recipes"
BASE = {"run_dir": "runs/x", "domain": {"name": "toy"}, "schedule": {"total_steps": 2}}


@pytest.mark.parametrize("recipe", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_recipes_are_valid(recipe):
    assert load_config(recipe).name == recipe.stem


def test_overrides_are_typed():
    config = load_config(
        RECIPES / "toy.toml", ["seed=7", "schedule.kind=weight_only", "sampling.temperature=0.5", 'name="a b"']
    )
    assert (config.seed, config.schedule.kind, config.sampling.temperature, config.name) == (
        7,
        "weight_only",
        0.5,
        "a b",
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schedul": {}}, ["unknown key schedul", "did you mean schedule?"]),
        ({"schedule": {"total_step": 1}}, ["unknown key schedule.total_step", "total_steps"]),
        ({"limits": {"turn": 1}}, ["unknown key limits.turn", "turns"]),
        ({"sampling": {"zzz": 1}}, ["unknown key sampling.zzz", "known keys", "temperature"]),
        ({"seed": "many"}, ["seed", "many"]),
        ({"seed": -1}, ["seed", "-1"]),
        ({"weights": {"accept_above": 1.5}}, ["weights.accept_above", "1.5"]),
        ({"schedule": {"kind": "often", "total_steps": 1}}, ["schedule.kind", "often", "fixed"]),
        ({"schedule": {"total_steps": 0}}, ["schedule", "total_steps"]),
        ({"domain": {}}, ["domain.name is missing"]),
    ],
)
def test_bad_values_are_named_with_the_way_out(change, words):
    with pytest.raises(ConfigError) as caught:
        build_config({**BASE, **change})
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("override", ["seed", "=3", "seed.deep=3"])
def test_bad_overrides(override):
    with pytest.raises(ConfigError):
        load_config(RECIPES / "toy.toml", [override])


def test_missing_recipe_and_broken_toml(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        load_config(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("name = ")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(tmp_path / "bad.toml")


def test_differences_name_leaves():
    assert differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}, "d": 4}) == ["a.c: 2 -> 3", "d: None -> 4"]
