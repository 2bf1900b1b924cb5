"""The check of a domain finds what is wrong with it and hides nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from whale.domains.base import StatelessEpisode
from whale.domains.check import CheckReport, check_domain, write_faults
from whale.errors import DomainError
from whale.protocols import Episode
from whale.testing import ToyDomain
from whale.testing.toy import verdict
from whale.types import Outcome, Split, Task, Verdict


class Checked(ToyDomain):
    """The toy domain with gold and junk, and faults on demand."""

    def __init__(self, sizes: dict[str, int] | None = None, judge: Callable[..., Verdict] = verdict) -> None:
        super().__init__(sizes=sizes)
        self.judge = judge
        self.running = self.most = 0
        self.calls: list[str] = []

    async def start(self) -> None:
        self.calls.append("start")

    async def close(self) -> None:
        self.calls.append("close")

    def open(self, task: Task) -> Episode:
        return StatelessEpisode(lambda answer: self.judge(answer, task.reference))

    def gold(self, task: Task) -> str:
        return str(task.reference)

    def junk(self, task: Task) -> Sequence[str]:
        return ["", f"{task.reference}0", str(task.inputs["problem"])]

    async def submit(self, episode: Episode, answer: str) -> Verdict:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        result = await episode.score(answer)
        self.running -= 1
        return result


def check(domain: Any, limit: int | None = None) -> CheckReport:
    return asyncio.run(check_domain(domain, limit))


def text(report: CheckReport) -> str:
    return "\n".join(report.lines(20))


def test_a_sound_domain() -> None:
    domain = Checked({"weights": 600, "search": 16, "test": 16, "unseen": 8})
    report = check(domain)
    assert report.ok, text(report)
    assert (report.gold, report.junk) == (640, 1920)
    assert domain.calls == ["start", "close"]
    assert 1 < domain.most <= 16
    assert text(report).endswith("ok")
    limited = check(Checked(), limit=5)
    assert (limited.gold, limited.ok) == (20, True)
    assert limited.tasks["weights"] == 40


def test_gold_that_does_not_score_is_listed_by_id() -> None:
    chosen = Checked().tasks("search")[0].reference
    report = check(Checked(judge=lambda answer, right: verdict(answer, "none" if right == chosen else right)))
    tasks = [task for split in ("weights", "search", "test", "unseen") for task in Checked().tasks(split)]  # type: ignore[arg-type]
    wrong = [task.id for task in tasks if task.reference == chosen]
    assert wrong
    assert [fault.task for fault in report.faults] == wrong
    assert not report.ok
    assert f"{wrong[0]}: gold answer scores 0.0 (wrong): '{chosen}'" in text(report)
    assert text(report).endswith("FAILED")


def test_junk_that_scores_is_listed() -> None:
    report = check(Checked(judge=lambda answer, right: Verdict(float(answer.startswith(right)), "starts")))
    assert {(fault.kind, fault.reason) for fault in report.faults} == {("junk", "starts")}
    assert len(report.faults) >= 80
    assert not report.ok
    assert f"and {len(report.faults) - 20} more of this kind; --out FILE writes them all" in text(report)


def test_a_verdict_without_a_reward_is_no_pass() -> None:
    def broken(answer: str, right: str) -> Verdict:
        if answer == "":
            raise RuntimeError("no answer")
        return verdict(answer, right)

    report = check(Checked(judge=broken))
    assert not report.ok
    assert {(fault.kind, fault.reward) for fault in report.faults} == {("junk", None)}
    assert "verifier_error: RuntimeError" in text(report)


def test_an_episode_that_cannot_be_opened_is_one_fault_of_its_row() -> None:
    class Closed(Checked):
        def open(self, task: Task) -> Episode:
            if task == self.tasks("search")[0]:
                raise DomainError("no such puzzle")
            return super().open(task)

    report = check(Closed())
    assert len([fault for fault in report.faults if fault.kind == "gold"]) == 1
    assert "DomainError: no such puzzle" in text(report)


def test_rows_that_cannot_be_scored_are_listed_and_do_not_fail() -> None:
    none = Verdict(None, "no_reference", Outcome.UNSCORABLE)
    chosen = Checked().tasks("search")[0].reference
    report = check(Checked(judge=lambda answer, right: none if right == chosen else verdict(answer, right)))
    assert report.ok
    assert report.faults
    assert {fault.kind for fault in report.faults} == {"unscorable"}
    assert "cannot be scored (no_reference)" in text(report)

    class NoGold(Checked):
        def gold(self, task: Task) -> str:
            raise DomainError("its line is empty")

    report = check(NoGold())
    assert len(report.faults) == 80
    assert report.gold == 0
    assert not report.ok  # nothing was shown


def test_splits_that_overlap_are_a_problem() -> None:
    class Overlapping(Checked):
        def tasks(self, split: Split) -> Sequence[Task]:
            extra = [Task("x", {"problem": super().tasks("test")[0].inputs["problem"]}, "1")]
            return [*super().tasks(split), *(extra if split == "search" else [])]

    report = check(Overlapping())
    assert not report.ok
    assert "search and test: 1 questions with the same content" in text(report)


def test_a_seed_harness_that_is_none_is_a_problem() -> None:
    class Odd(Checked):
        def seed_harness(self) -> str:
            return "import os\n"

    report = check(Odd())
    assert not report.ok
    assert "the seed harness is no harness: line 1: import of os" in text(report)


class Plain:
    """The toy domain without what a check needs."""

    def __init__(self) -> None:
        self._toy = ToyDomain()

    def __getattr__(self, name: str) -> Any:
        if name in ("gold", "junk", "submit"):
            raise AttributeError(name)
        return getattr(self._toy, name)


def test_a_domain_that_cannot_be_checked_says_so() -> None:
    report = check(Plain())
    assert not report.ok
    assert "its verifier was not tried" in text(report)
    assert report.tasks["weights"] == 40


def test_gold_or_junk_that_cannot_be_made_fails_its_row() -> None:
    class Broken(Checked):
        def junk(self, task: Task) -> Sequence[str]:
            return [] if task.reference == "none" else [str(task.inputs["question"])]

    report = check(Broken())
    assert not report.ok
    assert {(fault.kind, fault.reason) for fault in report.faults} == {("junk", "KeyError: 'question'")}
    assert len(report.faults) == 80


def test_services_are_stopped_when_the_check_is() -> None:
    class Stop(BaseException):
        pass

    class Stopped(Checked):
        def junk(self, task: Task) -> Sequence[str]:
            raise Stop

    domain = Stopped()
    with pytest.raises(Stop):
        check(domain)
    assert domain.calls == ["start", "close"]


def test_every_fault_is_written(tmp_path: Path) -> None:
    report = check(Checked(judge=lambda answer, right: Verdict(1.0, "generous")))
    write_faults(report, tmp_path / "faults.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "faults.jsonl").read_text().splitlines()]
    assert len(lines) == len(report.faults) == 240
    assert set(lines[0]) == {"kind", "split", "task", "reward", "reason", "answer"}
    with pytest.raises(DomainError, match="cannot be written"):
        write_faults(report, tmp_path / "none" / "faults.jsonl")
