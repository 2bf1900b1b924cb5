"""The quickstart against its two halves: joint run, weights only, harness only, at equal rollouts.

    python scripts/quickstart_study.py OUT_FOLDER [key=value ...] --seeds 10 11 12

Runs (or resumes) every cell as `whale run recipes/quickstart.toml` would, one after the other, and prints a Markdown
table and the paired gain of the joint run over the better of the two others, over tasks, per seed and pooled. Weights
only and harness only get as many training and search rollouts as the joint run of the same seed used.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from whale import stats
from whale.report.data import summarise
from whale.store import Store

RECIPE = Path(__file__).parents[1] / "recipes" / "quickstart.toml"
HALVES = {"weight_only": "schedule.total_steps=0", "harness_only": "schedule.total_rounds=0"}


def main() -> None:
    """Run the cells that are missing and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    pooled: dict[str, dict[str, float]] = {"joint": {}, "weight_only": {}, "harness_only": {}}
    for seed in options.seeds:
        cells = run_seed(options.out, seed, options.overrides)
        rows.append(cells)
        for name, means in pooled.items():
            means.update({f"{seed}/{task}": value for task, value in end_means(options.out / f"{name}-{seed}").items()})
    print(table(rows))
    better = max(("weight_only", "harness_only"), key=lambda name: sum(pooled[name].values()))
    print(f"\nall seeds, joint - {better}: {show(stats.paired(pooled[better], pooled['joint']))}")
    (options.out / "study.json").write_text(json.dumps(rows, indent=1))


def run_seed(out: Path, seed: int, overrides: list[str]) -> dict[str, Any]:
    """The three cells of a seed."""
    common = [f"seed={seed}", f"domain.options.seed={seed}", *overrides]
    joint = run_cell(out / f"joint-{seed}", common)
    budget = joint["rollouts"]["axis"]
    cells: dict[str, Any] = {"seed": seed, "joint": joint}
    for name, unlimited in HALVES.items():
        limit = [f"schedule.kind={name}", unlimited, f"schedule.max_rollouts={budget}"]
        cells[name] = run_cell(out / f"{name}-{seed}", [*common, *limit])
    best = max(HALVES, key=lambda name: cells[name]["test"]["end"]["mean"])
    cells["better"] = best
    cells["gain"] = stats.paired(end_means(out / f"{best}-{seed}"), end_means(out / f"joint-{seed}"))
    return cells


def run_cell(folder: Path, overrides: list[str]) -> dict[str, Any]:
    """One run in a process of its own, so that its memory and time are its own."""
    command = [sys.executable, "-c", "from whale.cli import main; main()", "run", str(RECIPE), f"run_dir={folder}"]
    subprocess.run([*command, *overrides], check=True)
    return summarise(folder)


def end_means(folder: Path) -> dict[str, float]:
    """Mean reward of each test task at the end of a run."""
    store = Store(folder)
    state = store.read_state()
    assert state is not None
    last = [look for look in state.looks if look.split == "test"][-1]
    return stats.task_means([r for block in last.blocks for r in store.read_block(block) or []])


def show(estimate: dict[str, Any]) -> str:
    """``mean [low, high]``."""
    return "{mean:.3f} [{low:.3f}, {high:.3f}]".format(**estimate)


def table(rows: list[dict[str, Any]]) -> str:
    """A Markdown table of the cells."""
    lines = ["| seed | condition | start | end | unseen end | rollouts | steps | harness | seconds | peak GB |",
             "|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for cells in rows:
        for name in ("joint", *HALVES):
            r = cells[name]
            lines.append(
                f"| {cells['seed']} | {name} | {show(r['test']['start'])} | {show(r['test']['end'])} | "
                f"{show(r['unseen']['end'])} | {r['rollouts']['axis']} | {r['weight_steps']} | {r['harness']} | "
                f"{r['seconds']:.0f} | {r['peak_rss_bytes'] / 1e9:.2f} |"
            )
        lines.append(f"| {cells['seed']} | joint - {cells['better']} | | {show(cells['gain'])} | | | | | | |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
