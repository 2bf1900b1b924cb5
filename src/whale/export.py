"""From a run folder or a checkpoint to a plain model folder: finds the checkpoint and what to compare it on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from whale.errors import ConfigError
from whale.store import Store

ROLLOUTS = 64
"""Model calls of the run that the export may be compared on."""


def export_policy(
    source: Path, out: Path, merge: bool = True, dtype: Literal["float32", "bfloat16"] | None = None
) -> dict[str, Any]:
    """Export the last committed policy of a run, or that of a checkpoint folder, see ``whale.trainers.export``.

    Compared on rollouts of the run where there are any. Raises ConfigError if nothing was trained yet or ``source``
    is neither, and what ``export`` raises.
    """
    from whale.trainers.export import export  # heavy: torch and transformers

    checkpoint, run = _find(source)
    return export(checkpoint, out, _sequences(run) if run else [], merge=merge, dtype=dtype)


def _find(source: Path) -> tuple[Path, Path | None]:
    """The checkpoint, and the run folder it belongs to."""
    if (source / "trainer.json").is_file():
        run = source.resolve().parent.parent
        return source, run if (run / "state.json").is_file() else None
    store = Store(source)
    config, state = store.read_config(), store.read_state()
    if state is None or not state.policy.version:
        raise ConfigError(f"{source} has no trained policy yet: it is the base {config.model!r}, nothing to export")
    return store.policy_folder(state.policy.version), source


def _sequences(run: Path) -> list[list[int]]:
    """Ids of the last call of some rollouts, from the newest block backwards."""
    store = Store(run)
    found: list[list[int]] = []
    blocks = sorted((run / "rollouts").glob("*.jsonl"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    while blocks and len(found) < ROLLOUTS:
        rollouts = store.read_block(blocks.pop().stem) or []
        found += [[*r.calls[-1].context, *r.calls[-1].sampled] for r in rollouts if r.calls]
    return found[:ROLLOUTS]
