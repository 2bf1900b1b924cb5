"""WHALE: alternate weight training and harness search in one run (paper, algorithm 1)."""

from __future__ import annotations

from whale import schedule
from whale.archive import make_candidate
from whale.evaluate import look
from whale.rsft import train_weights
from whale.run import Run
from whale.search import search_harness
from whale.state import Phase, PhaseRecord, RunState

_PHASES = {"weights": train_weights, "harness": search_harness}


def alternate(run: Run, state: RunState | None) -> RunState:
    """Run to the end, or from where the state says the run was left. Returns the final state.

    Resuming is the same call: finished units are read from the run folder, the rest is done.
    """
    state = _begin(run) if state is None else _restore(run, state)
    while not state.finished:
        phase = state.phase or schedule.next_phase(run.config.schedule, state)
        if phase is None:
            state = run.commit(look(run, state, "end").but(finished=True))
            break
        if state.phase is None:
            state = _enter(run, state, phase)
        state, ended = _PHASES[phase.kind](run, state, phase)
        state = run.commit(_leave(run, state, phase, ended))
    return state


def _begin(run: Run) -> RunState:
    """h0 under the base policy: the point every condition starts from."""
    run.trainer.reset()
    run.archive.add(make_candidate(0, run.domain.seed_harness(), hypothesis="the seed harness"))
    return run.commit(look(run, RunState(policy=run.trainer.policy()), "start"))


def _restore(run: Run, state: RunState) -> RunState:
    if state.policy.version:
        run.trainer.load(run.store.policy_folder(state.policy.version))
    else:
        run.trainer.reset()
    return state


def _enter(run: Run, state: RunState, phase: Phase) -> RunState:
    run.store.event("phase", phase=phase.kind, index=phase.index, rollouts=state.counters.axis)
    run.progress.phase(phase, state)
    start = {"harness": state.harness, "policy": state.policy.version, "rollouts": state.counters.axis}
    return state.but(phase=phase, values=(), versions=(), phase_start=start)


def _leave(run: Run, state: RunState, phase: Phase, ended: str) -> RunState:
    """Close the phase: its record in the history is the only thing that says it is complete."""
    start = state.phase_start
    record = PhaseRecord(
        phase=phase,
        units=len(state.values) - (phase.kind == "harness"),
        values=state.values,
        harness_before=start["harness"],
        harness_after=state.harness,
        policy_before=start["policy"],
        policy_after=state.policy.version,
        rollouts_before=start["rollouts"],
        rollouts_after=state.counters.axis,
        ended=ended,
    )
    run.store.event("phase_end", phase=phase.kind, index=phase.index, ended=ended, rollouts=state.counters.axis)
    run.progress.phase_end(record)
    return state.but(history=(*state.history, record), phase=None, values=(), versions=(), phase_start={})
