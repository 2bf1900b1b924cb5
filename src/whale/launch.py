"""Start, resume or fork a run: what ``whale run`` and ``whale resume`` do, usable from Python."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import resource
import sys
import time
from importlib import metadata
from pathlib import Path

from whale.build import build_run, check_proposer
from whale.config import RunConfig
from whale.loop import alternate
from whale.progress import Progress
from whale.state import RunState
from whale.store import Store, write_atomic


def launch(config: RunConfig, progress: Progress | None = None) -> RunState:
    """Run a configuration to its end in its run folder, continuing whatever is there.

    Raises ConfigError for a folder of another configuration. Ctrl-C and every error leave a folder that the same
    call continues.
    """
    progress = progress or Progress()
    store = Store(Path(config.run_dir))
    began = time.monotonic()
    state = store.open(config)
    try:
        if state is not None and state.finished:
            progress.note(f"{store.folder} is finished already; see: whale report {store.folder}")
            return state
        if warning := check_proposer(config):
            progress.warn(warning)
        run = build_run(config, store, progress)
        if state is not None:
            progress.note(f"continuing {store.folder} at step {state.step}, {state.counters.axis} rollouts")
        store.event("launch", resumed=state is not None)
        write_atomic(store.folder / "environment.json", json.dumps(environment(), indent=1))
        state = alternate(run, state)
        store.event("finished")
        return state
    finally:
        store.append("usage.jsonl", {"seconds": round(time.monotonic() - began, 2), "peak_rss_bytes": peak_rss()})
        store.close()
        progress.close()


def fork(source: Path, config: RunConfig) -> None:
    """Copy the committed state of ``source`` into ``config.run_dir``, to be continued under ``config``."""
    Store(source).fork(Path(config.run_dir), config)


def environment() -> dict[str, str]:
    """Versions and machine that a result was made with."""
    found = {"python": platform.python_version(), "system": platform.platform(), "processors": str(os.cpu_count())}
    for name in ("whale-learn", "torch", "transformers", "reasoning-gym"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def peak_rss() -> int:
    """Largest resident memory of this process so far, in bytes (its sandboxed children not included)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
