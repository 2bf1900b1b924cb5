"""A domain that even a tiny random model can be right in: reply with a text that holds a wanted letter.

With it the real engine and the real trainer run through the whole loop in seconds.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from whale.domains.base import StatelessEpisode
from whale.protocols import Episode
from whale.seeds import derive
from whale.testing.toy import ToyDomain
from whale.types import SPLITS, Split, Task, Verdict

RECIPE = """
run_dir = "{run_dir}"
model = "{model}"
domain = {{ name = "whale.testing.letters:LetterDomain" }}
engine = {{ threads = 1 }}
trainer = {{ lr = 1e-2 }}
harness = {{ isolation = "contained" }}
store = {{ min_free_gb = 0.0, checkpoint_every = 2 }}
limits = {{ call_tokens = 8, turns = 2, context_tokens = 400 }}
sampling = {{ top_k = 0 }}
weights = {{ tasks_per_step = 4, samples = 8, minibatch = 8, min_accepted = 2, accept_truncated = true }}
search = {{ tasks = 6, candidates = 2, block_tasks = 3 }}
schedule = {{ kind = "fixed", total_steps = 5, steps = 2, rounds = 1 }}
eval = {{ k = 2, tasks = 4, every_rollouts = 50, unseen = false }}
"""
"""Fields to fill: ``run_dir``, ``model`` (a folder made by ``whale.testing.models.save_tiny``)."""


class LetterDomain(ToyDomain):
    """Tasks ask for a letter; a reply that holds it is right. Harness, catalogue and sizes are the toy domain's."""

    name = "letters"
    version = "letters-1"

    def open(self, task: Task) -> Episode:
        """An episode without tools."""
        return StatelessEpisode(lambda answer: verdict(answer, str(task.reference)))

    def _make(self, seed: int) -> dict[Split, list[Task]]:
        rng = random.Random(derive(seed, "letters"))
        numbers = rng.sample(range(10_000), sum(self._sizes.values()))
        return {split: [self._task(rng, numbers.pop()) for _ in range(self._sizes[split])] for split in SPLITS}

    def _task(self, rng: random.Random, number: int) -> Task:
        letter = rng.choice("aeiou")
        return Task(f"letter-{number}", {"problem": f"Write {letter} ({number})"}, letter, letter)

    def smoke(self) -> tuple[Sequence[Task], Sequence[str]]:
        """One task, one reply."""
        return [Task("smoke", {"problem": "Write a"}, "a")], ["a 1"]


def verdict(answer: str, letter: str) -> Verdict:
    """1 if the answer holds the letter, in either case."""
    right = letter in answer.lower()
    return Verdict(float(right), "right" if right else "wrong")
