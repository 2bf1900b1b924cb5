"""The smoke run: a candidate works toy tasks with scripted replies, in its real sandbox, before it costs anything."""

from __future__ import annotations

from dataclasses import replace

from whale.errors import SandboxError
from whale.protocols import Domain
from whale.rollout import Attempt, Setting, run_rollouts
from whale.scripted import ScriptedEngine
from whale.types import OWNED, Candidate, Limits, Outcome, Sampling

_FATAL = {Outcome.HARNESS_ERROR, Outcome.HARNESS_TIMEOUT}
_SECONDS = 3.0


def smoke_run(domain: Domain, candidate: Candidate, limits: Limits, isolation: str) -> str | None:
    """Why the candidate must not be evaluated, or ``None``. A wrong answer is fine; a crash is not.

    Raises SandboxError where the sandbox itself is the trouble: that is no fault of the candidate.
    """
    tasks, replies = domain.smoke()
    engine = ScriptedEngine(replies)
    setting = Setting(
        engine=engine, domain=domain, sampling=Sampling(), isolation=isolation, retries=0,
        limits=replace(limits, seconds=min(limits.seconds, _SECONDS)),
    )  # fmt: skip
    attempts = [Attempt(candidate, task, 0, 0) for task in tasks]
    for rollout in run_rollouts(setting, attempts, engine.version):
        if rollout.outcome in _FATAL:
            return f"{rollout.outcome}: {rollout.detail}"
        if rollout.outcome not in OWNED and rollout.outcome != Outcome.UNSCORABLE:
            raise SandboxError(f"smoke run of {candidate.id}: {rollout.detail or rollout.outcome}")
    return None
