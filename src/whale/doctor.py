"""Try what a run needs on this machine, and say how to mend what is missing."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from whale import models
from whale.build import check_proposer
from whale.config import ProposerConfig, RunConfig
from whale.errors import WhaleError
from whale.harness.sandbox import probe
from whale.proposers.workers import worker_of

_MEMORY_GB = 4.0
_DISK_GB = 6.0

_Agent = Literal["openai", "claude-code", "codex"]
_AGENTS: tuple[_Agent, ...] = ("openai", "claude-code", "codex")


@dataclass(frozen=True)
class Check:
    """One thing tried. needed: the default laptop run fails without it. fix: what to do if not ok."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    needed: bool = True


def diagnose(folder: Path, config: RunConfig | None = None) -> list[Check]:
    """All checks, cheapest first. folder: where runs will be stored. config: a recipe whose proposer is tried too;
    without one the agentic proposers are only looked for."""
    return [
        _python(),
        *_packages(),
        _memory(),
        _disk(folder),
        _model(),
        *_sandbox("sealed", True),
        *_sandbox("contained", False),
        *([_proposer(config)] if config else map(_agent, _AGENTS)),
    ]


def machine_rate() -> float | None:
    """Floating-point operations per second of a matrix product on this machine, or ``None`` without torch."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    a = torch.randn(1024, 1024)
    best = float("inf")
    for _ in range(4):
        began = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - began)
    return 2 * 1024**3 / best


def model_parameters(name: str) -> int | None:
    """Parameters of a base policy, from the size of its weight files, or ``None`` if it is not on this machine."""
    try:
        folder = models.resolve(name)
    except WhaleError:
        return None
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        config = {}
    width = 4 if "32" in str(config.get("dtype") or config.get("torch_dtype") or "float32") else 2
    return sum(path.stat().st_size for path in folder.glob("*.safetensors")) // width


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    return Check("python", sys.version_info >= (3, 11), version, "install Python 3.11 or newer")


def _packages() -> list[Check]:
    needs = {"torch": "torch", "transformers": "torch", "reasoning_gym": "math", "jinja2": "report", "plotly": "report"}
    missing = [name for name in needs if importlib.util.find_spec(name) is None]
    extras = ",".join(sorted({needs[name] for name in missing}))
    detail = f"missing: {', '.join(missing)}" if missing else "torch, transformers, reasoning-gym, jinja2, plotly found"
    return [Check("packages", not missing, detail, f"pip install 'whale-learn[{extras}]'")]


def _memory() -> Check:
    free = psutil.virtual_memory().available / 1e9
    return Check(
        "memory",
        free >= _MEMORY_GB,
        f"{free:.1f} GB available",
        f"close other programs; the quickstart needs {_MEMORY_GB:.0f} GB",
    )


def _disk(folder: Path) -> Check:
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free / 1e9
    return Check(
        "disk",
        free >= _DISK_GB,
        f"{free:.1f} GB free at {existing}",
        f"free some space; the quickstart needs {_DISK_GB:.0f} GB with its checkpoints",
    )


def _model() -> Check:
    name = "smollm2-135m"
    try:
        return Check("model cache", True, f"{name} at {models.resolve(name)}")
    except WhaleError as error:
        return Check("model cache", False, str(error).splitlines()[0], f"whale models pull {name}")


def _sandbox(level: str, needed: bool) -> list[Check]:
    return [Check(f"sandbox {level}: {c.name}", c.ok, c.detail, c.fix, needed) for c in probe(level)]


def _proposer(config: RunConfig) -> Check:
    return _tried(f"proposer {config.search.proposer.kind}", lambda: check_proposer(config), needed=True)


def _agent(kind: _Agent) -> Check:
    settings = ProposerConfig(kind=kind, model="any")
    return _tried(f"proposer {kind}", worker_of(settings).check, needed=False)


def _tried(name: str, check: Callable[[], str], needed: bool) -> Check:
    try:
        return Check(name, True, check() or "ready", needed=needed)
    except WhaleError as error:
        found, _, fix = str(error).partition("; ")
        return Check(name, False, found, fix, needed)
