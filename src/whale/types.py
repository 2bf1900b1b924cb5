"""The records that every part of whale passes around: frozen, JSON-ready, one meaning each.

Nothing here has behaviour beyond reading itself. Rewards are in [0, 1] or ``None`` (unknown: an
infrastructure or data fault, never a wrong answer).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Literal

Json = Any
"""A value that ``json.dumps`` accepts."""

Message = dict[str, Any]
"""A chat message in OpenAI form (``role``, ``content``, ``tool_calls``, ``tool_call_id``, ``name``).

An assistant message that came from ``Reply.message`` also carries ``reply``: the number of the model call
in this rollout. Passed back unchanged it is spliced by its sampled ids instead of being encoded anew."""

Split = Literal["weights", "search", "test", "unseen"]
"""``weights`` trains, ``search`` scores candidates, ``test`` is only reported, ``unseen`` holds families of
tasks that neither tuning nor search ever meets."""

SPLITS: tuple[Split, ...] = ("weights", "search", "test", "unseen")

Purpose = Literal["train", "search", "eval"]
"""What a rollout was paid for; the rollout counters are kept apart by it."""

PhaseKind = Literal["weights", "harness"]


def described(default: Any, text: str) -> Any:
    """A dataclass field with a default and a description, which the page of settings shows."""
    return field(default=default, metadata={"description": text})


@dataclass(frozen=True)
class Task:
    """One problem. ``inputs`` is all a harness ever sees; ``reference`` never leaves the host process."""

    id: str
    inputs: Mapping[str, Json]
    reference: Json
    family: str = ""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; belongs to the run, not to a harness. ``top_k=0``: no cut; ``temperature=0``: greedy."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    temperature: float = described(1.0, "Logits are divided by it; 0 takes the likeliest token.")
    top_p: float = described(1.0, "Smallest set of likeliest tokens with this probability is kept; 1 keeps all.")
    top_k: int = described(20, "So many likeliest tokens are kept; 0 keeps all.")


@dataclass(frozen=True)
class Limits:
    """What one rollout may use at most; enforced by the host. The fields say what each one bounds."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    turns: int = described(16, "Model calls.")
    assistant_tokens: int = described(8192, "Sampled tokens over all calls.")
    call_tokens: int = described(1024, "Sampled tokens of one call.")
    context_tokens: int = described(4096, "Ids of one call's context.")
    seconds: float = described(10.0, "The harness's own time between two requests to the host (waiting never counts).")
    memory_mb: int = described(512, "Address space of the rollout's process.")
    tool_calls: int = described(64, "Calls of tools in one rollout.")


@dataclass(frozen=True)
class Policy:
    """An immutable version of the model's weights.

    base: name of the model the run started from. version: 0 is the loaded base, each publish adds one.
    digest: identifies base and every update since (a lineage digest, not a hash of the tensors, so that it
    costs nothing). path: checkpoint folder, or ``None`` while the weights only live in memory.
    """

    base: str
    version: int
    digest: str
    kind: Literal["full", "adapter", "hosted"] = "full"
    path: str | None = None


@dataclass(frozen=True)
class GenerationRequest:
    """One call to the engine. context: ids in order, not empty. max_tokens >= 1. stop: strings that end the reply."""

    context: tuple[int, ...]
    max_tokens: int
    seed: int
    stop: tuple[str, ...] = ()


Finish = Literal["stop", "length", "stop_string"]
"""``stop``: the model emitted an end token. ``stop_string``: a requested string came. ``length``: cut by a limit."""


@dataclass(frozen=True)
class Completion:
    """What the engine sampled: ids including the stop token, log-probabilities of each under the sampling
    policy at temperature 1 (natural log, same length as ids), and the policy version that produced them."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    version: int


@dataclass(frozen=True)
class ToolCallRequest:
    """A tool call the policy wrote in a reply. ``error`` is a short message for the policy where it could not
    be parsed; then ``name`` may be empty and ``arguments`` is ``{}``."""

    name: str
    arguments: Mapping[str, Json]
    id: str = ""
    error: str = ""


@dataclass(frozen=True)
class ParsedReply:
    """A completion as a harness reads it: visible text, reasoning kept apart, tool calls."""

    text: str
    reasoning: str = ""
    tool_calls: tuple[ToolCallRequest, ...] = ()


@dataclass(frozen=True)
class ModelCall:
    """One model call of a rollout: exactly what the engine was given and what it sampled. This is a training row:
    the context has mask 0, the sampled ids (stop token included) have mask 1. Nothing is encoded again."""

    context: tuple[int, ...]
    sampled: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    seed: int
    version: int
    messages: tuple[Message, ...] = ()
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallRequest, ...] = ()
    marked: bool = False


@dataclass(frozen=True)
class ToolUse:
    """One tool execution, as the trace shows it. after_call: number of model calls made before it."""

    name: str
    arguments: Mapping[str, Json]
    result: str
    seconds: float
    after_call: int
    error: str = ""


class Outcome(StrEnum):
    """How a rollout ended, and with it who owns the result.

    Policy or harness own the first group: they stay in the denominator with reward 0 unless scored. The
    second group is infrastructure or data: reward ``None``, left out of means, shown as missing coverage.
    """

    SCORED = "scored"
    NO_ANSWER = "no_answer"
    LIMIT = "limit"
    HARNESS_ERROR = "harness_error"
    HARNESS_TIMEOUT = "harness_timeout"
    VERIFIER_TIMEOUT = "verifier_timeout"

    INFRA_ERROR = "infra_error"
    TOOL_INFRA_ERROR = "tool_infra_error"
    VERIFIER_ERROR = "verifier_error"
    UNSCORED = "unscored"
    NO_IDS = "no_ids"
    UNSCORABLE = "unscorable"


OWNED = frozenset(
    {
        Outcome.SCORED,
        Outcome.NO_ANSWER,
        Outcome.LIMIT,
        Outcome.HARNESS_ERROR,
        Outcome.HARNESS_TIMEOUT,
        Outcome.VERIFIER_TIMEOUT,
    }
)
"""Outcomes that count: the policy or the harness is responsible for them."""


@dataclass(frozen=True)
class Verdict:
    """What a verifier says of an answer. reason: a short word that failures are grouped by (``no_box``, ``wrong``,
    ``right``, ...); it may be shown to proposers and must not contain the reference."""

    reward: float | None
    reason: str
    outcome: Outcome = Outcome.SCORED


@dataclass(frozen=True)
class Rollout:
    """One run of a harness on a task, complete enough to train on, to score and to read."""

    task_id: str
    sample: int
    seed: int
    harness: str
    policy_version: int
    outcome: Outcome
    reward: float | None
    answer: str | None = None
    reason: str = ""
    detail: str = ""
    calls: tuple[ModelCall, ...] = ()
    tools: tuple[ToolUse, ...] = ()
    seconds: float = 0.0
    family: str = ""

    @property
    def turns(self) -> int:
        """Model calls made."""
        return len(self.calls)

    @property
    def truncated(self) -> bool:
        """True if any reply was cut by a token limit."""
        return any(call.finish == "length" for call in self.calls)

    @property
    def sampled_tokens(self) -> int:
        """Sampled tokens over all calls."""
        return sum(len(call.sampled) for call in self.calls)


@dataclass(frozen=True)
class TrainRow:
    """One model call as the trainer sees it.

    weight: what each sampled token counts in the loss (the trainer divides the weighted sum of negative
    log-likelihoods by the number of rollouts in the mini-batch); a tuple weighs token by token, so that other
    objectives than imitation can use the same batches. logprobs: what the sampler gave each token, if the weights are
    still the ones it was sampled with (empty: not to be compared).
    """

    context: tuple[int, ...]
    sampled: tuple[int, ...]
    weight: float | tuple[float, ...] = 1.0
    logprobs: tuple[float, ...] = ()

    @property
    def weights(self) -> tuple[float, ...]:
        """The weight of each sampled token."""
        return self.weight if isinstance(self.weight, tuple) else (self.weight,) * len(self.sampled)


@dataclass(frozen=True)
class ToolSpec:
    """A tool as the policy is told of it. parameters: a JSON schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class Candidate:
    """A harness under consideration.

    id: ``h0``, ``h1``, ... in order of proposal. hash: of the source, names the code everywhere. parent: id of the
    candidate it was derived from. hypothesis: one falsifiable sentence. axis and mechanism: what it changes. spec:
    how a catalogue candidate was put together (empty for written ones). phase, round: when it was proposed.
    """

    id: str
    source: str
    hash: str
    parent: str | None = None
    hypothesis: str = ""
    axis: str = ""
    mechanism: str = ""
    spec: Mapping[str, Json] = field(default_factory=dict)
    phase: int = -1
    round: int = 0


@dataclass(frozen=True)
class Score:
    """Result of a harness under one policy version on a set of rollouts.

    mean: success in [0, 1] over valid rollouts, ``None`` if none was valid. valid/total: rollouts with a reward /
    attempted. turns: mean model calls. reasons: how often each failure reason or outcome occurred.
    """

    harness: str
    policy_version: int
    mean: float | None
    valid: int
    total: int
    turns: float = 0.0
    tokens: float = 0.0
    reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def coverage(self) -> float:
        """Share of rollouts that have a reward."""
        return self.valid / self.total if self.total else 0.0
