"""The frame around every agentic proposer: scratch copy, one session of work, what it left, what it cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from whale.proposers.brief import Round, task_text
from whale.proposers.outbox import collect
from whale.proposers.scratch import Change, Guard, Keeper, Scratch, make_scratch
from whale.proposers.workplace import workplace
from whale.protocols import ArchiveView

Ended = Literal["ended", "timeout", "limit", "error"]
"""``ended`` by itself; stopped after too many seconds, or at another ``limit``; ``error``: broke down."""

SESSION_LOG = "session.jsonl"
"""The record of a session in the folder of its proposals."""

_DETAIL_CHARACTERS = 2_000


@dataclass(frozen=True)
class Worked:
    """How a session of work ended and what it used; ``None`` is unknown. money: US dollars. calls: tool calls.
    session: the program's own name for it. isolation: ``sealed``, ``none``, or ``file tools`` (no code was run)."""

    ended: Ended
    isolation: str
    calls: int = 0
    turns: int | None = None
    tokens: int | None = None
    money: float | None = None
    session: str = ""
    detail: str = ""


class Worker(Protocol):
    """Does the work of a session: reads a scratch copy, writes into its outbox."""

    name: str
    seconds: float

    def check(self) -> str:
        """Find what is missing before anything is paid. Raises ProposerError with the way out; returns a warning or
        ``""``."""
        ...

    def work(self, scratch: Scratch, task: str, log: Path) -> Worked:
        """Work for at most ``seconds``. log: a folder for the record of the session. Raises ProposerError only if the
        work could not even begin."""
        ...


class AgenticProposer:
    """Implements ``whale.protocols.Proposer`` with a worker.

    skill: the domain's brief. visible: ids of the search tasks that may be shown; ``None`` shows all that are recorded.
    say: takes lines for a person.
    """

    def __init__(
        self,
        worker: Worker,
        skill: str,
        visible: Collection[str] | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.name = worker.name
        self._worker = worker
        self._skill = skill
        self._visible = None if visible is None else frozenset(visible)
        self._say = say

    def propose(self, archive: ArchiveView, parent: str, outbox: Path, slots: int, seed: int) -> Mapping[str, Any]:
        """One session. Beside cost and ``calls`` it returns ``outcome`` (``complete``, ``partial``, ``no_output``,
        ``timeout``, ``limit``, ``error``), ``written`` candidates and ``events`` for the run's log."""
        began = time.monotonic()
        task = task_text(Round(parent, slots, archive.failures(parent), self._worker.seconds))
        (outbox / "TASK.md").write_text(task, encoding="utf-8")
        with workplace() as base:
            scratch = make_scratch(base / "scratch", archive, self._skill, task, self._visible)
            guard, keeper = Guard(scratch.folder, scratch.outbox), Keeper(archive.folder)
            worked = self._worker.work(scratch, task, outbox)
            # The copy is thrown away with what was done to it; the archive is put back.
            changes = [*guard.changes(), *keeper.restore()]
            collected = collect(scratch.outbox, outbox, slots)
        written, seconds = len(collected.entries), round(time.monotonic() - began, 3)
        outcome = _outcome(worked.ended, written, slots, collected.rebuilt)
        cost = "cost unknown" if worked.money is None else f"${worked.money:.2f}"
        self._say(f"proposer {self.name}: {outcome}, {written} of {slots} candidates, {seconds:.0f} s, {cost}")
        return {
            "outcome": outcome,
            "written": written,
            "asked": slots,
            "seconds": seconds,
            "money": worked.money,
            "calls": worked.calls,
            "turns": worked.turns,
            "tokens": worked.tokens,
            "proposer": self.name,
            "proposer_isolation": worked.isolation,
            "session": worked.session,
            "detail": worked.detail[-_DETAIL_CHARACTERS:],
            "events": [_violation(change) for change in changes],
        }


def _outcome(ended: Ended, written: int, slots: int, rebuilt: bool) -> str:
    if ended == "timeout":
        return "timeout"
    if not written:
        return "no_output"
    if written == slots and not rebuilt:
        return "complete"
    return "partial" if ended == "ended" else ended


def _violation(change: Change) -> dict[str, Any]:
    return {"event": "scope_violation", **asdict(change)}
