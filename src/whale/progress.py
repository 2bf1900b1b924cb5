"""What a person sees while a run is going on, with a terminal and without one. Never read back by the loop."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whale.state import Look, Phase, PhaseRecord, RunState
from whale.store import write_atomic
from whale.types import Candidate, Rollout, Score


class Progress:
    """Hears of everything worth telling; this base class is silent."""

    def say(self, text: str, style: str = "") -> None:
        """One line for a person."""

    def rollouts(self, name: str, done: int, total: int) -> None:
        """A block has ``done`` of ``total`` rollouts."""

    def block(self, name: str, purpose: str, rollouts: Sequence[Rollout], cached: bool) -> None:
        """A block has ended."""

    def note(self, text: str) -> None:
        """Something a person may want to know."""
        self.say(text)

    def warn(self, text: str) -> None:
        """Something a person should act on."""
        self.say(f"warning: {text}", "yellow")

    def phase(self, phase: Phase, state: RunState) -> None:
        """A phase begins."""
        title = "weights" if phase.kind == "weights" else "harness search"
        self.say(f"phase {phase.index + 1}: {title} (harness {state.harness}, policy {state.policy.version})", "bold")

    def phase_end(self, record: PhaseRecord) -> None:
        """A phase has ended."""
        what = f"{record.units} {'steps' if record.phase.kind == 'weights' else 'rounds'}"
        self.say(f"  ended after {what}: {record.ended}; {record.rollouts_after} rollouts so far")

    def step(self, state: RunState, reward: float, kept: int, total: int, figures: Mapping[str, float]) -> None:
        """A weight step has ended."""
        loss = f", loss {figures['loss']:.3f}" if "loss" in figures else ", no update"
        self.say(f"  step {state.step}: reward {reward:.3f}, accepted {kept} of {total}{loss}")

    def candidate(self, candidate: Candidate, score: Score | None, rejected: Mapping[str, str] | None) -> None:
        """A candidate has a result."""
        if rejected:
            result = f"rejected at {rejected['stage']}: {rejected['reason'].strip().splitlines()[-1]}"
        elif score and score.mean is not None:
            result = f"{score.mean:.3f} ({score.valid} rollouts, {score.turns:.1f} turns)"
        else:
            result = "no valid rollout"
        self.say(f"  {candidate.id} [{candidate.axis}: {candidate.mechanism}] {result}")

    def accepted(self, best: Score, before: Score) -> None:
        """The incumbent changes."""
        self.say(f"  accepted {best.harness}: {best.mean:.3f}, before {before.harness} {before.mean or 0:.3f}", "green")

    def look(self, look: Look) -> None:
        """An evaluation has ended."""
        e = look.estimate
        figure = f"{e['mean']:.3f} [{e['low']:.3f}, {e['high']:.3f}]" if e["mean"] is not None else "unknown"
        self.say(
            f"{look.split} mean@{e['k']} at {look.rollouts} rollouts: {figure} (coverage {e['coverage']:.2f})", "cyan"
        )

    def close(self) -> None:
        """The run has ended or was stopped."""


class LiveProgress(Progress):
    """Prints lines, and a bar for the open block where there is a terminal; keeps ``status.json`` for other readers."""

    def __init__(self, folder: Path | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        self._console = Console(highlight=False, soft_wrap=True)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                   TextColumn("{task.fields[rate]}"), TimeElapsedColumn())  # fmt: skip
        self._bars = Bars(*columns, console=self._console, transient=True) if self._console.is_terminal else None
        self._folder = folder
        self._began = time.monotonic()
        self._block = ("", 0.0)
        self._bar: Any = None
        self._written = 0.0

    def say(self, text: str, style: str = "") -> None:
        stamp = int(time.monotonic() - self._began)
        line = f"[{stamp // 60:3d}:{stamp % 60:02d}] {text}"
        (self._bars.console if self._bars else self._console).print(line, style=style or None, markup=False)

    def rollouts(self, name: str, done: int, total: int) -> None:
        now = time.monotonic()
        if self._block[0] != name:
            self._block = (name, now)
            if self._bars:
                self._bars.start()
                if self._bar is not None:
                    self._bars.remove_task(self._bar)
                self._bar = self._bars.add_task(name, total=total, rate="")
        rate = done / max(now - self._block[1], 1e-6)
        left = (total - done) / rate if done else None
        if self._bars:
            self._bars.update(self._bar, completed=done, total=total, rate=f"{rate:.1f}/s" if done else "")
        if self._folder and (now - self._written > 1 or done == total):
            self._written = now
            status = {"block": name, "done": done, "total": total, "rate": round(rate, 3),
                      "eta_seconds": round(left, 1) if left is not None else None, "time": time.time()}  # fmt: skip
            write_atomic(self._folder / "status.json", json.dumps(status))

    def close(self) -> None:
        if self._bars:
            self._bars.stop()
