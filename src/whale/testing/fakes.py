"""A policy small enough to reason about: it adds two numbers, but seldom says only the result until it is trained.

The engine really samples (by seed), the trainer really changes what it samples, checkpoints really restore it;
only the neural network is missing. Everything that passes through is digested into the "weights", so that two
runs have equal weights exactly if they trained on equal rows in equal order.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whale.errors import TrainerError
from whale.scripted import ByteRenderer, ScriptedEngine, cut, decode
from whale.types import Completion, GenerationRequest, Policy, Sampling, TrainRow

_SUM = re.compile(r"(\d+)\s*\+\s*(\d+)")


@dataclass
class FakeWeights:
    """skill: chance in [0, 1] of a right sum. digest: of every row trained on so far."""

    skill: float = 0.2
    digest: str = "base"
    updates: int = 0
    policy: Policy = field(default_factory=lambda: Policy("fake", 0, "fake"))


class FakeEngine(ScriptedEngine):
    """Samples sums with the skill of its weights; a prompt that asks for steps makes it a little better."""

    def __init__(self, weights: FakeWeights) -> None:
        super().__init__([])
        self.weights = weights
        self.renderer = ByteRenderer()
        self.waves: list[int] = []

    def generate(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[Completion]:
        """One completion per request; the request's seed decides it."""
        self.waves.append(len(requests))
        return [self._sample(request) for request in requests]

    def _sample(self, request: GenerationRequest) -> Completion:
        text = self._reply(decode(request.context), random.Random(request.seed))
        ids, finish = cut(text, request)
        return Completion(ids, (-0.5,) * len(ids), finish, self.weights.policy.version)

    def _reply(self, context: str, rng: random.Random) -> str:
        found = _SUM.findall(context)
        if not found:
            return "I do not see a sum."
        right = sum(map(int, found[-1]))
        chance = self.weights.skill + (0.1 if "step by step" in context else 0.0)
        number = right if rng.random() < chance else right + rng.choice((-2, -1, 1, 2))
        return str(number) if rng.random() < 0.3 + self.weights.skill / 2 else f"The sum is {number} I think"


class FakeTrainer:
    """Each update raises the skill by a fixed amount and digests its rows."""

    def __init__(self, weights: FakeWeights, gain: float = 0.05, breaks_after: int | None = None) -> None:
        """breaks_after: updates after which each further one takes skill instead, as too high a rate does."""
        self.weights = weights
        self._gain = gain
        self._breaks_after = breaks_after

    def update(self, rows: Sequence[TrainRow], rollouts: int) -> Mapping[str, float]:
        """Digest the rows in order."""
        if not rows:
            raise TrainerError("rows: nothing to train on; an update needs at least one row")
        text = json.dumps([self.weights.digest, [vars(row) for row in rows], rollouts])
        self.weights.digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        self.weights.updates += 1
        broken = self._breaks_after is not None and self.weights.updates > self._breaks_after
        self.weights.skill = max(0.0, min(0.95, self.weights.skill + (-4 if broken else 1) * self._gain))
        tokens = float(sum(len(row.context) + len(row.sampled) for row in rows))
        return {
            "loss": 1 - self.weights.skill,
            "grad_norm": 1.0,
            "tokens": tokens,
            "row_tokens": tokens,
            "lr": self._gain,
        }

    def drift(self, rows: Sequence[TrainRow]) -> float:
        """Grows with every update."""
        return 0.01 * self.weights.updates

    def publish(self, note: str, version: int | None = None) -> Policy:
        """The next version, or a given one."""
        old = self.weights.policy
        digest = hashlib.blake2b(f"{old.digest}{note}".encode(), digest_size=8).hexdigest()
        self.weights.policy = Policy(old.base, old.version + 1 if version is None else version, digest)
        return self.weights.policy

    def policy(self) -> Policy:
        """The version published last."""
        return self.weights.policy

    def save(self, folder: Path) -> None:
        """Write the weights as JSON, in place only once whole."""
        temporary = folder.with_name(folder.name + ".tmp")
        temporary.mkdir(parents=True, exist_ok=True)
        (temporary / "weights.json").write_text(json.dumps({**vars(self.weights), "policy": vars(self.weights.policy)}))
        temporary.rename(folder)

    def load(self, folder: Path) -> None:
        """Restore the weights."""
        try:
            data: dict[str, Any] = json.loads((folder / "weights.json").read_text())
        except (OSError, ValueError) as error:
            raise TrainerError(f"{folder} holds no whole checkpoint: {error}") from None
        self.weights.__dict__.update(data, policy=Policy(**data["policy"]))

    def reset(self) -> None:
        """Back to the base."""
        self.weights.__dict__.update(vars(FakeWeights()))
