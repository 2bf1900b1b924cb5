"""``whale domain check``: right answers score 1, junk scores 0, the splits share nothing."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, cast

from whale.domains.base import check_disjoint
from whale.errors import DomainError, HarnessError
from whale.harness.validate import check_source
from whale.protocols import Checkable, Domain
from whale.types import SPLITS, Outcome, Split, Task, Verdict

_CONCURRENT = 16  # answers judged at once
_BLOCK = 256  # tasks in flight; bounds memory
_ANSWER_CHARACTERS = 200  # of an answer in the list of faults

Kind = Literal["gold", "junk", "unscorable"]


@dataclass(frozen=True)
class Fault:
    """A row that does not do what it must. ``unscorable``: the data gives no answer that could be judged."""

    kind: Kind
    split: Split
    task: str
    reward: float | None
    reason: str
    answer: str = ""

    def line(self) -> str:
        """The fault as a person reads it."""
        if self.kind == "unscorable":
            return f"{self.split} {self.task}: cannot be scored ({self.reason})"
        what = "gold answer" if self.kind == "gold" else "junk answer"
        return f"{self.split} {self.task}: {what} scores {self.reward} ({self.reason}): {self.answer!r}"


@dataclass
class CheckReport:
    """What a check found. tasks: per split. gold, junk: answers judged. checkable: the domain says what is right and
    what is junk. problems: what concerns the domain as a whole, such as splits that overlap."""

    domain: str
    version: str
    checkable: bool
    tasks: dict[Split, int] = field(default_factory=dict)
    gold: int = 0
    junk: int = 0
    faults: list[Fault] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if nothing failed. Rows that cannot be scored do not fail, unless nothing else is left."""
        failed = any(fault.kind != "unscorable" for fault in self.faults)
        return self.checkable and self.gold > 0 and not failed and not self.problems

    def lines(self, most: int) -> Iterator[str]:
        """The report as text, with up to ``most`` faults of each kind written out."""
        counts = ", ".join(f"{split} {count:,}" for split, count in self.tasks.items())
        yield f"{self.domain} ({self.version}): {counts} tasks"
        yield from self.problems
        if not self.checkable:
            yield "the domain has no gold, junk and submit (whale.protocols.Checkable): its verifier was not tried"
            return
        by_kind = Counter(fault.kind for fault in self.faults)
        yield f"gold: {self.gold:,} judged, {by_kind['gold']:,} do not score 1"
        yield f"junk: {self.junk:,} judged, {by_kind['junk']:,} do not score 0"
        if by_kind["unscorable"]:
            yield f"{by_kind['unscorable']:,} tasks cannot be scored; they count for nothing in a run"
        if not self.gold:
            yield "no task's gold answer could be judged"
        for kind in ("gold", "junk", "unscorable"):
            faults = [fault for fault in self.faults if fault.kind == kind]
            yield from (f"  {fault.line()}" for fault in faults[:most])
            if len(faults) > most:
                yield f"  and {len(faults) - most:,} more of this kind; --out FILE writes them all"
        yield "ok" if self.ok else "FAILED"


async def check_domain(domain: Domain, limit: int | None = None) -> CheckReport:
    """Try the verifier on every task (``limit``: the first of each split). Starts and closes the domain.

    Raises what the domain raises when its tasks cannot be read or its services cannot be started.
    """
    checkable = all(callable(getattr(domain, name, None)) for name in ("gold", "junk", "submit"))
    splits = {split: domain.tasks(split) for split in SPLITS}
    counts: dict[Split, int] = {split: len(tasks) for split, tasks in splits.items()}
    report = CheckReport(domain.name, domain.version, checkable, counts)
    report.problems += _problems(domain, splits)
    if checkable:
        await domain.start()
        try:
            for split, tasks in splits.items():
                await _check_split(domain, split, tasks[:limit], report)
        finally:
            await domain.close()
    return report


def write_faults(report: CheckReport, path: Path) -> None:
    """Write every fault as a line of JSON. Raises DomainError."""
    try:
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(fault), ensure_ascii=False) + "\n" for fault in report.faults)
    except OSError as error:
        raise DomainError(f"--out {path}: cannot be written: {error.strerror or error}") from error


def _problems(domain: Domain, splits: Mapping[Split, Sequence[Task]]) -> list[str]:
    problems = []
    try:
        check_disjoint(splits)
    except DomainError as error:
        problems.append(str(error))
    try:
        check_source(domain.seed_harness(), domain.allowed_imports)
    except HarnessError as error:
        problems.append(f"the seed harness is no harness: {error}")
    return problems


async def _check_split(domain: Domain, split: Split, tasks: Sequence[Task], report: CheckReport) -> None:
    free = asyncio.Semaphore(_CONCURRENT)
    for start in range(0, len(tasks), _BLOCK):
        block = tasks[start : start + _BLOCK]
        # Results are added in the order of the tasks, so that two checks give the same report.
        for result in await asyncio.gather(*(_check_task(domain, split, task, free) for task in block)):
            report.gold += result.gold
            report.junk += result.junk
            report.faults += result.faults


@dataclass
class _Result:
    gold: int = 0
    junk: int = 0
    faults: list[Fault] = field(default_factory=list)


async def _check_task(domain: Domain, split: Split, task: Task, free: asyncio.Semaphore) -> _Result:
    sides = cast(Checkable, domain)
    result = _Result()
    kind: Kind = "gold"
    try:
        gold = sides.gold(task)
        kind = "junk"
        junk = list(sides.junk(task))
    except DomainError as error:
        result.faults.append(Fault("unscorable", split, task.id, None, str(error)))
        return result
    except Exception as error:
        result.faults.append(Fault(kind, split, task.id, None, f"{type(error).__name__}: {error}"))
        return result
    verdict = await _submit(domain, task, gold, free)
    if verdict.outcome is Outcome.UNSCORABLE:
        result.faults.append(Fault("unscorable", split, task.id, None, verdict.reason))
        return result
    result.gold += 1
    if verdict.reward != 1:
        result.faults.append(_fault("gold", split, task, verdict, gold))
    for answer in junk:
        verdict = await _submit(domain, task, answer, free)
        result.junk += 1
        if verdict.reward != 0:
            result.faults.append(_fault("junk", split, task, verdict, answer))
    return result


async def _submit(domain: Domain, task: Task, answer: str, free: asyncio.Semaphore) -> Verdict:
    async with free:
        try:
            return await cast(Checkable, domain).submit(domain.open(task), answer)
        except Exception as error:  # one row that breaks the verifier must not hide the others
            return Verdict(None, f"{type(error).__name__}: {error}", Outcome.VERIFIER_ERROR)


def _fault(kind: Kind, split: Split, task: Task, verdict: Verdict, answer: str) -> Fault:
    shown = answer if len(answer) <= _ANSWER_CHARACTERS else answer[:_ANSWER_CHARACTERS] + " ..."
    return Fault(kind, split, task.id, verdict.reward, verdict.reason, shown)
