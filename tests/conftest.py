"""Fixtures shared by all tests: small run configurations and runs on the public fakes."""

import os
import signal
from pathlib import Path

# A test run in the background ignores Ctrl-C, and so would the commands it starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Before torch is loaded: tiny models only wait for each other on several threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from whale.build import build_run
from whale.config import build_config
from whale.store import Store


def toy_config(folder, **changes):
    """The toy domain with the scripted policy, small enough for a test."""
    data = {
        "run_dir": str(folder),
        "domain": {"name": "toy"},
        "engine": {"kind": "fake"},
        "trainer": {"kind": "fake", "lr": 1.0},
        "weights": {"tasks_per_step": 4, "samples": 4, "minibatch": 8},
        "search": {"tasks": 8, "candidates": 2, "block_tasks": 4},
        "schedule": {"kind": "fixed", "total_steps": 4, "steps": 2, "rounds": 2},
        "eval": {"k": 2, "tasks": 6, "every_rollouts": 48},
        "harness": {"isolation": "contained"},
        "store": {"min_free_gb": 0.0},
    }
    for key, value in changes.items():
        data[key] = {**data[key], **value} if isinstance(data.get(key), dict) and isinstance(value, dict) else value
    return build_config(data)


@pytest.fixture
def config(tmp_path):
    """A toy configuration maker: ``config(section={...})`` for a run folder of this test."""
    return lambda **changes: toy_config(tmp_path / "run", **changes)


@pytest.fixture
def make_run(config):
    """``make_run(proposer=..., section={...})``: an opened run on the fakes and the state it would continue from."""
    stores = []

    def make(proposer=None, **changes):
        settings = config(**changes)
        store = Store(Path(settings.run_dir))
        state = store.open(settings)
        stores.append(store)
        run = build_run(settings, store)
        if proposer is not None:
            run.proposer = proposer
        return run, state

    yield make
    for store in stores:
        store.close()
