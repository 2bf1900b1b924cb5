"""What every domain shares: the error of a tool, the one-line episode, and the check that splits are disjoint."""

from __future__ import annotations

import inspect
import json
import re
import unicodedata
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from whale.errors import ConfigError, DomainError
from whale.protocols import ToolFunction
from whale.types import SPLITS, Outcome, Split, Task, Verdict

ScoreFunction = Callable[[str], Verdict | Awaitable[Verdict]]

_EXAMPLES = 5  # ids shown per kind of overlap; a list of thousands helps nobody
# Signs that carry meaning in a formula (operators, brackets, a point between digits) are not punctuation here.
_PUNCTUATION = re.compile(r"(?<!\d)[.,]|[.,](?!\d)|[;:!?\"'`\u00b4\u2018\u2019\u201c\u201d\u2026]")


class ToolInputError(ValueError):
    """Arguments a tool cannot use. The message becomes the observation the policy reads; nothing else fails."""


@dataclass
class StatelessEpisode:
    """An episode without state on the host: tools that answer, and one function that judges the answer.

    An exception inside the judge is an outcome (``verifier_error``, reward ``None``), never a wrong answer.
    """

    judge: ScoreFunction
    tools: Mapping[str, ToolFunction] = field(default_factory=dict)

    async def score(self, answer: str) -> Verdict:
        """Judge ``answer``; awaits the judge if it is async."""
        try:
            verdict = self.judge(answer)
            return await verdict if inspect.isawaitable(verdict) else verdict
        except Exception as error:  # whatever a verifier raises is its own fault, not the policy's
            return Verdict(None, f"verifier_error: {type(error).__name__}", Outcome.VERIFIER_ERROR)


class SplitTasks:
    """Part of the built-in domains: tasks that are loaded and checked once, and the brief that lies beside the code."""

    name: str
    _splits: Mapping[Split, Sequence[Task]] | None = None

    def tasks(self, split: Split) -> Sequence[Task]:
        """Tasks of ``split``; loaded and checked once. Raises DomainError, ConfigError."""
        if self._splits is None:
            splits = self._load()
            check_disjoint(splits)
            self._splits = splits
        return self._splits[split]

    def skill(self) -> str:
        """The brief for agentic proposers."""
        return packaged(self.name, "SKILL.md")

    def _load(self) -> Mapping[Split, Sequence[Task]]:
        raise NotImplementedError


def packaged(domain: str, file: str) -> str:
    """Text of a file that lies in the package of a built-in domain."""
    return files(f"whale.domains.{domain}").joinpath(file).read_text(encoding="utf-8")


def check_sizes(domain: str, sizes: Mapping[str, object], known: Sequence[str] = SPLITS) -> None:
    """Raise ConfigError unless every key of option ``sizes`` is a known split and every value a number of tasks."""
    for split, size in sizes.items():
        if split not in known:
            raise ConfigError(f"domain {domain}, option sizes: unknown split {split!r}, known are {', '.join(known)}")
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise ConfigError(
                f"domain {domain}, option sizes.{split}: a number of tasks >= 0 is expected, found {size!r}"
            )


def content_key(task: Task) -> str:
    """The task's inputs with case, spacing and punctuation folded: equal keys mean the same question."""
    text = json.dumps(task.inputs, sort_keys=True, ensure_ascii=False) if len(task.inputs) != 1 else None
    if text is None:
        (value,) = task.inputs.values()
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    folded = _PUNCTUATION.sub(" ", unicodedata.normalize("NFKC", text).casefold())
    return " ".join(folded.split())


def check_disjoint(splits: Mapping[Split, Sequence[Task]]) -> None:
    """Raise DomainError with counts and example ids when ids repeat or two splits share a question."""
    problems = _repeated_ids(splits) + _shared_ids(splits) + _shared_content(splits)
    if problems:
        raise DomainError("splits are not disjoint:\n  " + "\n  ".join(problems))


def _examples(ids: Sequence[str]) -> str:
    return ", ".join(ids[:_EXAMPLES]) + (", ..." if len(ids) > _EXAMPLES else "")


def _repeated_ids(splits: Mapping[Split, Sequence[Task]]) -> list[str]:
    problems = []
    for name, tasks in splits.items():
        seen: set[str] = set()
        repeated = [task.id for task in tasks if task.id in seen or seen.add(task.id)]  # type: ignore[func-returns-value]
        if repeated:
            problems.append(f"{name}: {len(repeated)} repeated ids ({_examples(repeated)})")
    return problems


def _pairs(splits: Mapping[Split, Sequence[Task]]) -> list[tuple[Split, Split]]:
    names = list(splits)
    return [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]


def _shared_ids(splits: Mapping[Split, Sequence[Task]]) -> list[str]:
    problems = []
    for a, b in _pairs(splits):
        ids = {task.id for task in splits[a]}
        shared = [task.id for task in splits[b] if task.id in ids]
        if shared:
            problems.append(f"{a} and {b}: {len(shared)} shared ids ({_examples(shared)})")
    return problems


def _shared_content(splits: Mapping[Split, Sequence[Task]]) -> list[str]:
    problems = []
    for a, b in _pairs(splits):
        known = {content_key(task): task.id for task in splits[a]}
        ids = {task.id for task in splits[a]}
        # A shared id is already reported above; here come the same questions under another id.
        shared = [
            f"{known[key]} = {task.id}"
            for task in splits[b]
            if task.id not in ids and (key := content_key(task)) in known
        ]
        if shared:
            problems.append(f"{a} and {b}: {len(shared)} questions with the same content ({_examples(shared)})")
    return problems
