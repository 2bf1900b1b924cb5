"""A domain without data or services: add two numbers, answer with the number alone."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from whale.domains.base import StatelessEpisode, check_disjoint
from whale.errors import DomainError
from whale.protocols import Catalogue, Episode
from whale.seeds import derive
from whale.types import SPLITS, Split, Task, ToolSpec, Verdict

H0 = '''"""Ask for the sum and return the reply as it is."""


class Harness:
    async def run(self, task, session):
        reply = await session.chat([{"role": "user", "content": task.problem}])
        return reply.text
'''

_PIECES: dict[str, dict[str, dict[str, Any]]] = {
    "prompt": {
        "steps": {"text": " Think step by step.", "addresses": ("wrong",)},
        "politeness": {"text": " Please.", "addresses": ("wrong", "not_a_number")},
    },
    "parse": {
        "last_number": {"code": 'return (re.findall(r"\\d+", reply.text) or [""])[-1]', "addresses": ("not_a_number",)},
        "first_word": {"code": 'return (reply.text.split() or [""])[0]', "addresses": ("not_a_number",)},
        "crash": {"code": "raise RuntimeError(reply.text)", "addresses": ("not_a_number",)},
    },
}


class ToyDomain:
    """Sums of two numbers. Options: ``seed``, ``sizes`` (tasks per split)."""

    name = "toy"
    version = "toy-1"
    tool_specs: Mapping[str, ToolSpec] = {}
    allowed_imports: frozenset[str] = frozenset()

    def __init__(self, seed: int = 0, sizes: Mapping[str, int] | None = None) -> None:
        self._sizes = {"weights": 40, "search": 16, "test": 16, "unseen": 8, **(sizes or {})}
        self._tasks = self._make(seed)

    def tasks(self, split: Split) -> Sequence[Task]:
        """Tasks of a split."""
        if split not in self._tasks:
            raise DomainError(f"split {split!r} does not exist; the splits are {', '.join(SPLITS)}")
        return self._tasks[split]

    def open(self, task: Task) -> Episode:
        """An episode without tools."""
        return StatelessEpisode(lambda answer: verdict(answer, task.reference))

    def seed_harness(self) -> str:
        """h0: one call, the reply is the answer."""
        return H0

    def catalogue(self) -> Catalogue:
        """Five pieces on two axes; one of them crashes."""
        return ToyCatalogue()

    def smoke(self) -> tuple[Sequence[Task], Sequence[str]]:
        """Two sums and two replies."""
        tasks = [Task(f"smoke-{i}", {"problem": f"{i} + 1 ="}, str(i + 1)) for i in range(2)]
        return tasks, ["The sum is 1 I think", "2"]

    def gold(self, task: Task) -> str:
        """The sum."""
        return str(task.reference)

    def junk(self, task: Task) -> Sequence[str]:
        """Nothing, a sum that is one too large, and the right one in a sentence."""
        return ["", str(int(task.reference) + 1), f"The sum is {task.reference}."]

    async def submit(self, episode: Episode, answer: str) -> Verdict:
        """What the verifier says of ``answer``."""
        return await episode.score(answer)

    async def start(self) -> None:
        """Nothing to start."""

    async def close(self) -> None:
        """Nothing to stop."""

    def _make(self, seed: int) -> dict[Split, list[Task]]:
        rng = random.Random(derive(seed, "toy"))
        pairs = [(a, b) for a in range(1, 60) for b in range(1, 60)]
        rng.shuffle(pairs)
        tasks: dict[Split, list[Task]] = {}
        for split in SPLITS:
            chosen = [pairs.pop() for _ in range(self._sizes[split])]
            tasks[split] = [Task(f"{split}-{a}-{b}", {"problem": f"{a} + {b} ="}, str(a + b), "sum") for a, b in chosen]
        check_disjoint(tasks)
        return tasks


class ToyCatalogue:
    """Renders a spec ``{"prompt": name, "parse": name}`` and proposes untried changes of one axis."""

    def render(self, spec: Mapping[str, Any]) -> str:
        """Source of the harness; the empty spec is h0."""
        if not spec:
            return H0
        text = _PIECES["prompt"][spec["prompt"]]["text"] if "prompt" in spec else ""
        code = _PIECES["parse"][spec["parse"]]["code"] if "parse" in spec else "return reply.text"
        source = H0.replace("task.problem}", f"task.problem + {text!r}}}").replace("return reply.text", code)
        return f"import re\n\n{source}" if "re." in code else source

    def propose(
        self,
        parent: Mapping[str, Any],
        tried: Sequence[Mapping[str, Any]],
        reasons: Mapping[str, int],
        slots: int,
        seed: int,
    ) -> list[dict[str, Any]]:
        """Untried one-axis changes, those that address the frequent failures first."""
        rng = random.Random(seed)
        ranked: list[tuple[float, float, dict[str, Any]]] = []
        for axis, pieces in _PIECES.items():
            for name, piece in pieces.items():
                spec = {**parent, axis: name}
                if spec in [dict(t) for t in tried] or parent.get(axis) == name:
                    continue
                weight = sum(reasons.get(reason, 0) for reason in piece["addresses"])
                entry = {
                    "spec": spec,
                    "axis": axis,
                    "mechanism": name,
                    "hypothesis": f"{name} helps with {piece['addresses'][0]}",
                }
                ranked.append((-weight, rng.random(), entry))
        return [entry for *_, entry in sorted(ranked, key=lambda item: item[:2])[:slots]]


def verdict(answer: str, reference: str) -> Verdict:
    """1 for the reference and nothing else."""
    if answer.strip() == reference:
        return Verdict(1.0, "right")
    return Verdict(0.0, "wrong" if answer.strip().isdigit() else "not_a_number")
