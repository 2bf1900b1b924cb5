"""The harness phase: Meta-Harness search under fixed weights (paper, section on the harness phase).

The incoming harness is scored under the new weights; then each round a proposer writes candidate files, each is
checked and smoke-run before any rollout is spent on it, the survivors are evaluated on the search tasks with the
same seeds, and the incumbent is picked. A broken candidate is a record in the archive, never the end of a run.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

from whale import accept, schedule, stats
from whale.archive import make_candidate
from whale.errors import HarnessError, ProposerError
from whale.evaluate import blocks, look_if_due
from whale.harness.validate import check_source
from whale.proposers import budget
from whale.rollout import Attempt
from whale.run import Run
from whale.seeds import derive
from whale.smoke import smoke_run
from whale.state import Phase, RunState
from whale.store import write_atomic
from whale.types import Candidate, Rollout, Score, Task


def search_harness(run: Run, state: RunState, phase: Phase) -> tuple[RunState, str]:
    """Run a harness phase to its end; returns the state with the accepted harness and why the phase ended.

    The whole phase is replayed after a crash: proposals and evaluation blocks that are on disk are read.
    """
    run.archive.clear_from(state.candidates)
    scores: dict[str, Score] = {}
    state = _score(run, state, phase, 0, [run.archive.get(state.harness)], scores)
    state = state.but(values=(scores[state.harness].mean or 0.0,))
    while not (ended := schedule.phase_ended(phase, state.values)):
        if schedule.out_of_budget(run.config.schedule, state):
            return state, "rollouts"
        number = len(state.values)
        proposals = _proposals(run, state, phase, number)
        if not proposals:
            run.progress.note(f"the proposer has no further idea after {number - 1} rounds of this phase")
            return state.but(exhausted=True), "exhausted"
        state = _try_candidates(run, state, phase, number, proposals, scores)
        state = _pick(run, state, scores)
        state = look_if_due(run, state)
    return state, ended


def _try_candidates(
    run: Run, state: RunState, phase: Phase, number: int, proposals: list[dict[str, Any]], scores: dict[str, Score]
) -> RunState:
    """Check and smoke-run the proposals of a round, then evaluate those that survive, all in the same waves.

    What goes wrong with one is recorded for the next round and touches no other.
    """
    candidates: list[Candidate] = []
    for proposal in proposals:
        candidate = make_candidate(
            state.candidates, proposal["source"], parent=state.harness, phase=phase.index, round=number,
            **{key: proposal.get(key, "") for key in ("hypothesis", "axis", "mechanism")},
            spec=proposal.get("spec") or {},
        )  # fmt: skip
        state = state.but(candidates=state.candidates + 1)
        problem = check_candidate(run, candidate, {*scores, *(other.id for other in candidates)})
        run.archive.add(candidate)
        if problem:
            run.archive.reject(candidate.id, *problem)
        candidates.append(candidate)
    sound = [candidate for candidate in candidates if run.archive.rejected(candidate.id) is None]
    if sound:
        state = _score(run, state, phase, number, sound, scores)
    for candidate in candidates:
        score, rejected = scores.get(candidate.id), run.archive.rejected(candidate.id)
        run.log(state, kind="candidate", candidate=candidate.id, parent=candidate.parent, axis=candidate.axis,
                score=score and score.mean, turns=score and score.turns, rejected=rejected)  # fmt: skip
        run.progress.candidate(candidate, score, rejected)
    return state


def check_candidate(run: Run, candidate: Candidate, scored: Container[str]) -> tuple[str, str] | None:
    """``(stage, reason)`` if the candidate must not be evaluated, else ``None``. Costs no rollout.

    scored: ids that have a score in this phase; the same code again is not paid twice.
    """
    try:
        check_source(candidate.source, run.domain.allowed_imports)
    except HarnessError as error:
        return "check", str(error)
    twin = run.archive.duplicate_of(candidate.source)
    if twin is not None and twin in scored:
        return "duplicate", f"same code as {twin} under the same policy"
    problem = smoke_run(run.domain, candidate, run.config.limits, run.config.harness.isolation)
    return ("smoke", problem) if problem else None


def search_attempts(run: Run, phase: Phase, harness: Candidate, tasks: Sequence[Task]) -> list[Attempt]:
    """Rollouts a candidate is scored on: same tasks and seeds for all candidates and rounds of the phase."""
    return [
        Attempt(harness, task, sample, derive(run.config.seed, "search", phase.index, task.id, sample))
        for task in tasks
        for sample in range(run.config.search.samples)
    ]


def _score(
    run: Run, state: RunState, phase: Phase, number: int, candidates: Sequence[Candidate], scores: dict[str, Score]
) -> RunState:
    """Evaluate candidates on the search tasks and add their scores; a block holds some tasks of all of them."""
    rollouts: dict[str, list[Rollout]] = {candidate.id: [] for candidate in candidates}
    keys: list[str] = []
    for part, tasks in enumerate(blocks(run.tasks["search"][: run.config.search.tasks], run.config.search.block_tasks)):
        attempts = [search_attempts(run, phase, candidate, tasks) for candidate in candidates]
        name = f"s{phase.index:03d}-{number:03d}-{part:02d}"
        key, done = run.block(name, "search", [attempt for of_one in attempts for attempt in of_one])
        keys.append(key)
        for candidate, of_one in zip(candidates, blocks(done, len(attempts[0])), strict=True):
            rollouts[candidate.id] += of_one
    for candidate in candidates:
        scores[candidate.id] = stats.score(rollouts[candidate.id], candidate.id, state.policy.version)
        run.archive.record(scores[candidate.id], candidate.id, phase.index)
        write_atomic(run.archive.folder / candidate.id / "blocks.json", json.dumps(keys))
    everything = [rollout for of_one in rollouts.values() for rollout in of_one]
    counters = state.counters.model_copy(update={
        "search": state.counters.search + len(everything),
        "sampled_tokens": state.counters.sampled_tokens + sum(r.sampled_tokens for r in everything),
    })  # fmt: skip
    return state.but(counters=counters)


def _pick(run: Run, state: RunState, scores: dict[str, Score]) -> RunState:
    best = accept.paper_rule(scores[state.harness], list(scores.values()))
    if best.harness != state.harness:
        before = scores[state.harness]
        run.store.event("accepted", harness=best.harness, over=state.harness, score=best.mean, before=before.mean)
        run.progress.accepted(best, before)
    return state.but(harness=best.harness, values=(*state.values, best.mean or 0.0))


def _proposals(run: Run, state: RunState, phase: Phase, number: int) -> list[dict[str, Any]]:
    """The proposals of a round, from disk if the proposer has already answered."""
    outbox = run.store.folder / "proposals" / f"{phase.index:03d}-{number:03d}"
    marker = outbox / "done.json"
    if not marker.exists():
        cost = _propose(run, state, phase, number, outbox)
        if cost is None:
            return []
        write_atomic(marker, json.dumps(cost))
    return _read_outbox(outbox)


def _propose(run: Run, state: RunState, phase: Phase, number: int, outbox: Path) -> dict[str, Any] | None:
    """Ask the proposer, again if it left nothing at all; what each try cost is kept in ``proposals.jsonl``.

    A try without output is no round of the search. Raises ProposerError when all of them were. ``None`` if the limits
    on the run's sessions allow no more.
    """
    settings, sessions = run.config.search.proposer, run.store.folder / budget.SESSIONS
    tries = 1 + settings.retries
    for attempt in range(tries):
        if why := budget.refusal(settings, sessions):
            run.store.event("proposer_budget", phase=phase.index, round=number, reason=why)
            run.progress.warn(why)
            return None
        shutil.rmtree(outbox, ignore_errors=True)
        outbox.mkdir(parents=True)
        seed = derive(run.config.seed, "propose", phase.index, number)
        cost = dict(run.proposer.propose(run.archive, state.harness, outbox, run.config.search.candidates, seed))
        for event in cost.pop("events", ()):
            run.store.event(**event, phase=phase.index, round=number)
        run.store.append(budget.SESSIONS, {"phase": phase.index, "round": number, "try": attempt, **cost}, sync=True)
        if cost.get("written") != 0:  # offline proposers do not say: an empty manifest of theirs means no further idea
            return cost
        kept = outbox.with_name(f"{outbox.name}-empty-{time.time_ns()}")
        outbox.rename(kept)
        run.store.event("no_output", phase=phase.index, round=number, outcome=cost.get("outcome"), folder=kept.name)
        run.progress.warn(f"the proposer left no candidate ({cost.get('outcome')}): {cost.get('detail', '')[-300:]}")
    raise ProposerError(
        f"the proposer {run.proposer.name} left no candidate in {tries} tries (search.proposer.retries); read "
        f"session.jsonl in {kept}, mend the cause and give the same command again: finished work is kept"
    )


def _read_outbox(outbox: Path) -> list[dict[str, Any]]:
    manifest: Sequence[dict[str, Any]] = json.loads((outbox / "manifest.json").read_text())
    return [{**entry, "source": (outbox / entry["file"]).read_text()} for entry in manifest]
