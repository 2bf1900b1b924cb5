"""From a harness's answer to a verdict: where the answer stands, and whether it is the reference.

With ``formulas`` off the judges of ``verifier`` are used as they are: no processes, numbers and words only. With it
on, ``answers`` compares, and pairs of formulas that it leaves open go to the algebra processes.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from whale.domains.math.algebra import AlgebraError, AlgebraPool, AlgebraTimeout
from whale.domains.math.answers import INTEGER, Comparison, Pair, by_value
from whale.domains.math.latex import brackets, tidy
from whale.domains.math.units import strip
from whale.domains.math.value import letters
from whale.domains.math.verifier import TRACEBACK, UNCLOSED, judge, judge_flexible, last_box, last_number
from whale.types import Outcome, Verdict

MODES = ("strict", "flexible", "lenient")

_ROUNDS = 4  # of algebra: a decision may open a comparison that was not needed before
_SAYS = re.compile(
    r"(?:\banswer(?:\s+is|\s*:|\s*=)|####)[ \t]*:?[ \t]*(?:\*\*)?[ \t]*((?:(?!\.(?:\s|\Z)|\*\*)[^\n])+)", re.IGNORECASE
)  # up to the end of the sentence; #### is what GSM8K's own solutions end with

Find = Callable[[str], str | None]


def find_strict(answer: str) -> str | None:
    """The last box, as ``last_box``."""
    return last_box(answer)


def find_flexible(answer: str) -> str | None:
    """The last box, or without any the last number."""
    box = last_box(answer)
    return last_number(answer) if box is None else box


def find_lenient(answer: str) -> str | None:
    """The last box; without any, what the last line of the form "answer is ..." says; without it the last number."""
    box = last_box(answer)
    if box is not None:
        return box
    said = [_formula(text.strip()) for text in _SAYS.findall(answer)]
    said = [text for text in said if text]
    return said[-1] if said else last_number(answer)


def _formula(said: str) -> str:
    """The formula alone where what is said begins with one: ``$x = 5$ in this case``."""
    match = re.match(r"\$+([^$]+)\$+", said)
    return match[1] if match else said


_FINDS: dict[str, Find] = {"strict": find_strict, "flexible": find_flexible, "lenient": find_lenient}


class Judge:
    """Judges answers. mode: one of ``MODES``. formulas: compare formulas too. seconds, memory_mb: limits of one
    formula check by algebra (processor time, address space). Raises DomainError where algebra is not installed."""

    def __init__(self, mode: str, formulas: bool, seconds: float = 5.0, memory_mb: int = 2048) -> None:
        self._mode, self._find = mode, _FINDS[mode]
        self._pool = AlgebraPool(seconds=seconds, memory_mb=memory_mb) if formulas else None

    async def __call__(self, answer: str, reference: object) -> Verdict:
        """Reward 1 or 0 and a reason (those of ``verifier.judge`` and ``verifier_timeout``); ``None`` for a reference
        that is empty or a fault of the verifier."""
        if self._pool is None:
            return self._simple(answer, reference)
        verdict = await self._full(answer, "" if reference is None else str(reference).strip(), self._pool)
        failed = verdict.reward == 0 and TRACEBACK in answer and verdict.outcome is Outcome.SCORED
        return Verdict(0.0, "code_failed") if failed else verdict

    def close(self) -> None:
        """End the algebra processes, if there are any; they start again when needed."""
        if self._pool is not None:
            self._pool.close()

    def _simple(self, answer: str, reference: object) -> Verdict:
        if self._mode == "strict":
            return judge(answer, reference)
        if self._mode == "flexible":
            return judge_flexible(answer, reference)
        found = find_lenient(answer)
        boxed = answer if found is None or found is UNCLOSED else f"\\boxed{{{found}}}"
        return judge(boxed, reference)

    async def _full(self, answer: str, gold: str, pool: AlgebraPool) -> Verdict:
        if not gold:
            return Verdict(None, "empty_reference", Outcome.UNSCORABLE)
        found = self._find(answer)
        if found is None or found is UNCLOSED:
            return Verdict(0.0, "no_box" if found is None else "unclosed_box")
        if not found.strip():
            return Verdict(0.0, "empty_box")
        try:
            equal = await _equal(found, gold, pool)
        except AlgebraTimeout:
            return Verdict(0.0, "verifier_timeout", Outcome.VERIFIER_TIMEOUT)
        except AlgebraError:
            return Verdict(None, "verifier_error", Outcome.VERIFIER_ERROR)
        if equal:
            return Verdict(1.0, "right")
        return Verdict(0.0, "not_a_number" if _is_number(gold) and not _is_number(found) else "wrong")


async def _equal(given: str, gold: str, pool: AlgebraPool) -> bool:
    known: dict[Pair, bool] = {}
    for _ in range(_ROUNDS):
        comparison = Comparison(known)
        decision = comparison.same(given, gold)
        if decision is not None:
            return decision
        known |= await pool.decide(comparison.open)
    return False


def _is_number(text: str) -> bool:
    """True for one value without variables."""
    if INTEGER.fullmatch(text):
        return True
    bare = strip(tidy(text[:200]))[0]
    return not letters(bare) and not brackets(bare) and by_value(bare, bare) is True
