"""The task text: what a proposer is asked to do this time. It follows Meta-Harness (arXiv 2603.28052) in its order:
read code, scores and traces; describe failures; one falsifiable hypothesis and one mechanism per slot; write whole
files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Round:
    """What a round is about. reasons: failures of the parent's latest evaluation and how often each occurred. seconds:
    time the proposer has."""

    parent: str
    slots: int
    reasons: Mapping[str, int]
    seconds: float


GENERAL_SKILL = """# Proposing harnesses

A harness is one Python file with `class Harness` and `async def run(self, task, session) -> str`. It decides what a
language model (the policy) sees, when and how it is called, what is done with its replies and what is returned as the
answer. `task` has the task's inputs as attributes. `reply = await session.chat(messages, tools=None, max_tokens=None,
stop=None)` gives `reply.text`, `reply.reasoning`, `reply.tool_calls`, `reply.finish` and `reply.message` (append it
unchanged). `await session.tools.NAME(...)` runs a tool. Only modules of the standard library that compute can be
imported. Sampling settings and limits belong to the run.

The policy makes the decision: a harness may present, call, run tools on what the policy wrote, parse, retry, verify,
vote and remember. It may not compute, rank or search for the answer itself.
"""
"""For domains without a brief of their own."""


def task_text(asked: Round) -> str:
    """What is handed to the proposer, also as ``TASK.md``."""
    slots = "one candidate" if asked.slots == 1 else f"{asked.slots} candidates"
    return f"""You improve the harness of a language model agent. The current folder is a copy of all that is known.
Write {slots} that may do better than the incumbent, {asked.parent}. You have {asked.seconds / 60:.0f} minutes.

1. Read `SKILL.md` (the domain and its rules), `IDEAS.md` (all that was tried, with results and reasons of rejection),
   `harnesses/{asked.parent}/harness.py` and its `score.json`, then `harnesses/{asked.parent}/rollouts.jsonl`: one JSON
   object per rollout, failed ones first, with what the policy was shown and wrote, what the tools returned, the reward
   and the verifier's reason. Look at other candidates where they help.
2. {_failures(asked)} Describe for yourself what in the harness lets the commonest failures happen.
3. Choose for each candidate one mechanism and one falsifiable hypothesis ("if ..., then fewer failures of kind ...").
   Candidates of one round change different axes. Editable is the whole file: system prompt, user prompt,
   demonstrations, presentation of the task, tool code and what it returns, what is said after a slip, parsing of the
   reply, several calls per task (plan, verify, vote), memory within the task, turn budget and stop rule. New wording or
   other constants alone are no mechanism. Do not repeat what was tried and rejected unless you mend the cause.
4. Write each candidate as a complete, self-contained file: `outbox/1/harness.py`, `outbox/2/harness.py`, ...
5. Last, write `outbox/manifest.json`, a list with one object per candidate:
   `{{"file": "1/harness.py", "axis": "...", "mechanism": "...", "hypothesis": "..."}}`

Rules:
- The policy makes the decision. A harness presents, calls, runs tools on what the policy wrote, parses, retries,
  verifies, votes, remembers. It does not compute, rank or search for the answer itself, and holds no answers, no names
  of data sets and no branches on the text of particular tasks.
- Run no benchmarks and call no model: candidates are checked and evaluated after you have finished.
- Write into `outbox/` only. Everything else is checked for changes.
- Only files count. What you say at the end is not read.
"""


def _failures(asked: Round) -> str:
    failures = {name: count for name, count in asked.reasons.items() if name != "right"}
    if not failures:
        return f"No failures of {asked.parent} are recorded."
    counted = ", ".join(f"{name} {count}" for name, count in sorted(failures.items(), key=lambda item: -item[1]))
    return f"Failures of {asked.parent} under the present weights: {counted}."
