"""The interfaces between whale's parts. Only protocols live here; implementations depend on them, not on each other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from whale.types import (
    Candidate,
    Completion,
    GenerationRequest,
    Message,
    ParsedReply,
    Policy,
    Sampling,
    Split,
    Task,
    ToolSpec,
    TrainRow,
    Verdict,
)

ToolFunction = Callable[..., Awaitable[str]]
"""An async function of keyword arguments that returns the observation for the policy. It raises ``ToolInputError``
(see ``whale.domains.base``) for arguments it cannot use, which becomes an observation, and ``SandboxError`` or
another ``WhaleError`` for a fault of its own, which makes the rollout ``tool_infra_error``."""


class Renderer(Protocol):
    """Turns messages and tools into token ids and sampled ids back into a reply. One per chat-template family."""

    def encode(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], replies: Sequence[Sequence[int]]
    ) -> list[int]:
        """Ids of the whole context, ending where the model starts to write.

        replies[i] are the sampled ids of model call i; an assistant message with ``reply: i`` is spliced from them.
        """
        ...

    def parse(self, ids: Sequence[int], finish: str) -> ParsedReply:
        """Text, reasoning and tool calls of sampled ids (the stop token is not part of the text)."""
        ...


class Engine(Protocol):
    """Samples from the current policy: ids in, ids out."""

    @property
    def renderer(self) -> Renderer:
        """Turns messages into ids for this engine's policy."""
        ...

    @property
    def version(self) -> int:
        """Version of the policy that the next completion is drawn from."""
        ...

    @property
    def vocabulary(self) -> int:
        """Number of token ids; every id it is given or returns is below it."""
        ...

    def generate(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[Completion]:
        """One completion per request, in order. The same list gives the same tokens on the same machine and thread
        count; each request's randomness comes from its own seed alone. Raises EngineError."""
        ...

    def forget(self) -> None:
        """Called around each block of rollouts: caches of its samples are of no more use. What a block gives may then
        not depend on which blocks were rolled out before it in this process."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens shown. For people to read; nothing is parsed from it."""
        ...


class Trainer(Protocol):
    """Owns the trainable weights and the optimizer."""

    def update(self, rows: Sequence[TrainRow], rollouts: int) -> Mapping[str, float]:
        """One optimizer update on all rows together: loss = sum(weight * nll) / rollouts over sampled tokens.

        Returns figures: ``loss``, ``grad_norm``, ``tokens`` (distinct tokens computed), ``row_tokens``, ``lr``; a
        trainer of real weights also ``entropy``, ``weight_norm`` and, for rows with log-probabilities, ``logprob_gap``.
        Raises TrainerError for rows that cannot be trained on, StaleWeightsError if the sampler's log-probabilities
        are not those of these weights; weights and optimizer are untouched then.
        """
        ...

    def drift(self, rows: Sequence[TrainRow]) -> float:
        """Mean KL(policy || base) in nats per sampled token of the rows; changes nothing."""
        ...

    def publish(self, note: str, version: int | None = None) -> Policy:
        """Make the current weights what the engine samples from; returns the next version. ``note`` identifies what
        was trained on and goes into the lineage digest. version: given where the weights are those of an earlier
        version again, so that no number is used twice."""
        ...

    def policy(self) -> Policy:
        """The policy published last (version 0 before any publish)."""
        ...

    def save(self, folder: Path) -> None:
        """Write weights, optimizer, counters and policy so that ``load`` continues bit for bit."""
        ...

    def load(self, folder: Path) -> None:
        """Restore what ``save`` wrote, and serve it. Raises TrainerError."""
        ...

    def reset(self) -> None:
        """Back to version 0: the base weights, a fresh optimizer."""
        ...


class Episode(Protocol):
    """One task being worked on, on the host's side. Single use; irrevocable steps (a losing move) are decided here."""

    tools: Mapping[str, ToolFunction]

    async def score(self, answer: str) -> Verdict:
        """Judge the harness's answer. Raises nothing on purpose: faults of the verifier are outcomes."""
        ...


class Catalogue(Protocol):
    """A domain's offline source of candidates: pieces on axes, one template that renders a spec into a flat file."""

    def render(self, spec: Mapping[str, Any]) -> str:
        """Source of the harness for ``{axis: piece name}``; the empty spec is equivalent to h0."""
        ...

    def propose(
        self,
        parent: Mapping[str, Any],
        tried: Sequence[Mapping[str, Any]],
        reasons: Mapping[str, int],
        slots: int,
        seed: int,
    ) -> list[dict[str, Any]]:
        """Up to ``slots`` proposals ``{spec, axis, mechanism, hypothesis}`` from the parent's spec, driven by the
        failure ``reasons`` seen under it and by what was ``tried``; deterministic from ``seed``."""
        ...


class Domain(Protocol):
    """Tasks, tools, verifier and seed harness of one field of work."""

    name: str
    tool_specs: Mapping[str, ToolSpec]
    allowed_imports: frozenset[str]
    """Top-level modules a harness may import beyond the standard allow-list."""

    @property
    def version(self) -> str:
        """Names tools and verifier; part of every rollout's identity."""
        ...

    def tasks(self, split: Split) -> Sequence[Task]:
        """All tasks of a split, in a fixed order; disjoint by content from the other splits. Raises DomainError."""
        ...

    def open(self, task: Task) -> Episode:
        """A fresh episode of the task."""
        ...

    def seed_harness(self) -> str:
        """Source of h0."""
        ...

    def catalogue(self) -> Catalogue | None:
        """The offline catalogue, if the domain has one."""
        ...

    def smoke(self) -> tuple[Sequence[Task], Sequence[str]]:
        """Toy tasks and scripted replies (used in turn) that every candidate must survive before it is evaluated."""
        ...

    async def start(self) -> None:
        """Start services (an interpreter pool, a retriever). Called once before the first rollout of a block."""
        ...

    async def close(self) -> None:
        """Stop what ``start`` started; safe to call twice."""
        ...


class Checkable(Protocol):
    """A domain that can be tried without a policy: ``whale domain check`` proves that gold scores 1 and junk 0.

    An answer is a text that says all a policy would do; ``submit`` does it on an episode (a chess line is played move
    by move, the answer to a question is handed in)."""

    def gold(self, task: Task) -> str:
        """The answer that must score 1."""
        ...

    def junk(self, task: Task) -> Sequence[str]:
        """Answers that look like some and must score 0: empty, near misses, several at once, the prompt's own words."""
        ...

    async def submit(self, episode: Episode, answer: str) -> Verdict:
        """What ``answer`` earns on a fresh episode."""
        ...


@runtime_checkable
class Briefed(Protocol):
    """A domain with a brief of its own for agentic proposers; without one they get a general text."""

    def skill(self) -> str:
        """Task, tools, axes and rules of the domain, in Markdown (``SKILL.md``)."""
        ...


class ArchiveView(Protocol):
    """What a proposer may read."""

    @property
    def folder(self) -> Path:
        """``candidates/<id>/`` with harness.py, meta.json, score.json, rejected.json and blocks.json, which names the
        blocks of its rollouts in ``rollouts/`` beside this folder."""
        ...

    def candidates(self) -> Sequence[Candidate]:
        """Every candidate so far, rejected ones included, in order of proposal."""
        ...

    def failures(self, candidate_id: str) -> Mapping[str, int]:
        """Failure reasons of a candidate's latest evaluation and how often each occurred."""
        ...


class Proposer(Protocol):
    """Writes candidate files. Judged by the files in ``outbox``, never by how it ended."""

    name: str

    def propose(self, archive: ArchiveView, parent: str, outbox: Path, slots: int, seed: int) -> Mapping[str, Any]:
        """Write up to ``slots`` complete harness files ``outbox/<slot>/harness.py`` and ``outbox/manifest.json``
        (a list of ``{file, hypothesis, axis, mechanism, spec}``). Returns what it cost (``seconds``, ``money`` or
        ``None`` if unknown, ``calls``). An agentic proposer adds ``outcome``, ``written`` (candidates; after 0 it is
        asked again), ``proposer_isolation`` and ``events`` for the log. Raises ProposerError only if it could not
        run at all."""
        ...


class Tracker(Protocol):
    """A sink for figures. It may never stop a run."""

    def log(self, figures: Mapping[str, Any], rollouts: int) -> None:
        """Record figures at a point of the rollout axis."""
        ...
