"""What a run knows of itself: the JSON in ``state.json``. Frozen; every change is a new value."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from whale.types import PhaseKind, Policy


class Record(BaseModel):
    """Base of the stored records: frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Phase(Record):
    """One phase to run. limit: most units (weight steps or proposal rounds; 0 = none). patience = 0: no early stop.

    window: units averaged before comparing. minimum: units before patience may end the phase.
    """

    kind: PhaseKind
    index: int
    limit: int = 0
    minimum: int = 0
    patience: int = 0
    window: int = 1


class PhaseRecord(Record):
    """A finished phase. units: steps or rounds done. values: training reward per step, or best search score with the
    incoming harness first. ended: why it ended."""

    phase: Phase
    units: int
    values: tuple[float, ...]
    harness_before: str
    harness_after: str
    policy_before: int
    policy_after: int
    rollouts_before: int
    rollouts_after: int
    ended: str


class Counters(Record):
    """Rollouts and tokens paid for. train + search is the cost axis of every figure; eval stands apart."""

    train: int = 0
    search: int = 0
    eval: int = 0
    sampled_tokens: int = 0
    trained_tokens: int = 0
    accepted: int = 0
    trained: int = 0
    discarded: int = 0

    @property
    def axis(self) -> int:
        """Position on the rollout axis."""
        return self.train + self.search


class Look(Record):
    """One evaluation of a held-out split."""

    split: str
    rollouts: int
    blocks: tuple[str, ...]
    policy_version: int
    harness: str
    estimate: dict[str, Any]
    when: Literal["start", "between", "end"]


class PendingRow(Record):
    """An accepted rollout that waits for an update: where it is recorded."""

    block: str
    index: int


class RunState(Record):
    """The whole state between two units of work. ``phase`` is set while a phase is under way; ``values`` are its
    results so far and, in a weight phase, ``versions`` the policies that they were sampled from."""

    schema_version: int = 1
    step: int = 0
    phase: Phase | None = None
    values: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()
    phase_start: dict[str, Any] = {}
    history: tuple[PhaseRecord, ...] = ()
    policy: Policy
    harness: str = "h0"
    candidates: int = 1
    counters: Counters = Counters()
    pending: tuple[PendingRow, ...] = ()
    empty_steps: int = 0
    looks: tuple[Look, ...] = ()
    exhausted: bool = False
    finished: bool = False
    metrics_bytes: int = 0

    def but(self, **changes: Any) -> RunState:
        """A copy with some fields changed."""
        return self.model_copy(update=changes)
