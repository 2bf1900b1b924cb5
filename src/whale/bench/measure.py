"""The benchmark as a whole: what is asked for, what it needs, one object of figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from whale.bench.material import Material, load
from whale.bench.overhead import Growth, measure_overhead
from whale.bench.timing import Say
from whale.errors import ConfigError
from whale.launch import environment

KEYS = {
    "train_vs_trl": "gradient of an update: time of TRL / time of whale",
    "train_vs_rows": "gradient of an update: time of plain padded rows / time of whale",
    "train_worst_sharing": "the least of train_vs_rows over the levels of shared prefixes",
    "train_of_limit": "needed arithmetic per second / matrix products per second",
    "sample_vs_generate": "sampled tokens per second: whale / transformers generate",
    "sample_of_limit": "needed arithmetic per second / matrix products per second",
    "overhead_frac": "share of a weight step outside the model",
}
"""What is measured, and what each figure means."""


@dataclass(frozen=True)
class Options:
    """What to measure. run: folder of a finished run. model: base model to use instead of the run's last policy.
    threads: of the CPU, 0 for torch's choice. repeats: times each side is measured. only: keys or beginnings of keys;
    none means all."""

    run: Path = Path("runs/quickstart")
    model: str = ""
    threads: int = 0
    repeats: int = 5
    only: Sequence[str] = ()
    growth: Growth = field(default_factory=Growth)


def bench(options: Options, say: Say = lambda line: None) -> dict[str, Any]:
    """Measure and return one JSON-ready object: the median of each figure by its key, ``spread`` (``value``, ``low``,
    ``high`` over the repeats), ``settings`` and ``details``.

    Raises ConfigError, before anything is measured: an unknown key, TRL missing, no such finished run, or a model
    that the run's rows do not fit.
    """
    keys = wanted(options.only)
    if "train_vs_trl" in keys and any(find_spec(name) is None for name in ("trl", "datasets")):
        raise ConfigError(
            "train_vs_trl needs TRL, which is not installed: pip install 'whale-learn[bench]'; "
            "or measure the rest: --only sample --only train_vs_rows --only overhead"
        )
    material = load(options.run, options.model)
    settings = _settings(options, material)
    figures: dict[str, Any] = {}
    details: dict[str, Any] = {}
    if any(key.startswith(("train", "sample")) for key in keys):
        _measure_model(options, keys, material, figures, details, say)
    if "overhead_frac" in keys:
        found, details["overhead"] = measure_overhead(material, options.repeats, say, options.growth)
        figures.update(found)
    return {
        **{key: figures[key]["value"] for key in keys},
        "spread": {key: figures[key] for key in keys},
        "settings": settings,
        "details": details,
    }


def wanted(only: Sequence[str]) -> list[str]:
    """The keys that begin with one of ``only``; all without any. Raises ConfigError if one fits no key."""
    for word in only:
        if not any(key.startswith(word) for key in KEYS):
            raise ConfigError(f"--only {word}: nothing is called so; choose from {', '.join(KEYS)} (or a beginning)")
    return [key for key in KEYS if not only or key.startswith(tuple(only))]


def _measure_model(
    options: Options,
    keys: Sequence[str],
    material: Material,
    figures: dict[str, Any],
    details: dict[str, Any],
    say: Say,
) -> None:
    """The parts that share one loaded model; it is let go of before the steps of the run load theirs."""
    from whale.bench.sample import measure_sampling
    from whale.bench.train import measure_training
    from whale.engines.local_model import LocalModel

    model = LocalModel(material.model)
    if any(key.startswith("train") for key in keys):
        found, details["train"] = measure_training(model, material, keys, options.repeats, say)
        figures.update(found)
    if any(key.startswith("sample") for key in keys):
        found, details["sample"] = measure_sampling(model, material, options.repeats, say)
        figures.update(found)


def _settings(options: Options, material: Material) -> dict[str, Any]:
    """Set the number of threads and say what is measured with."""
    import torch

    if options.threads:
        torch.set_num_threads(options.threads)
    config = material.config
    return {
        "run": str(options.run),
        "model": material.model,
        "base": options.model or config.model,
        "threads": torch.get_num_threads(),
        "repeats": options.repeats,
        "dtype": "float32",
        "sampling": asdict(config.sampling),
        "max_new_tokens": material.requests[0].max_tokens,
        "token_budget": config.trainer.token_budget,
        "wave_rows": config.engine.wave_rows,
        "environment": {**environment(), **_versions("trl", "datasets", "accelerate")},
    }


def _versions(*names: str) -> dict[str, str]:
    return {name: metadata.version(name) for name in names if find_spec(name) is not None}
