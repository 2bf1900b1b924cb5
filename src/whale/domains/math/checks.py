"""Answers that must score 0, made from a task's reference: what ``whale domain check`` tries."""

from __future__ import annotations

import re
from fractions import Fraction

from whale.domains.math.verifier import number
from whale.types import Task

_WHOLE = re.compile(r"[+-]?[0-9]+")


def junk(task: Task) -> list[str]:
    """Replies without a usable box, near misses of the reference, several answers at once, the problem itself."""
    reference = str(task.reference).strip()
    box = "\\boxed{" + reference
    replies = [
        "",
        "I do not know.",
        "\\boxed{}",
        "\\boxed{ }",
        "\\boxed{?}",
        "\\boxed{\\text{answer}}",
        box,  # never closed
        f"{box}}} or rather \\boxed{{{_other(reference)}}}",
        f"{box}, {_other(reference)}}}",
        f"{box}}} and in the end \\boxed{{",
        f"\\boxed{{{_other(reference)}}}",
        f"{box} \\text{{ or }} {_other(reference)}}}",
        f"{box} + C}}",
        "\\boxed{0 = 0}",
    ]
    if len(str(task.inputs.get("problem", ""))) > len(reference):
        replies.append(f"\\boxed{{{task.inputs['problem']}}}")
    return replies + [f"\\boxed{{{miss}}}" for miss in near_misses(reference)]


def near_misses(reference: str) -> list[str]:
    """Other values close to a reference that is a plain number; none for anything else."""
    value = number(reference)
    if value is None or not _WHOLE.fullmatch(reference):
        return []
    misses = [
        str(value + 1),
        str(value - 1),
        f"{value}.5",
        f"{value}0" if value else "10",
        f"\\frac{{{value}}}{{7}}" if value else "7",
    ]
    if value:
        misses.append(str(-value))
    if abs(value) >= 10:
        misses.append(reference[:-1])
        misses.append(reference[:-1] + str((int(reference[-1]) + 1) % 10))
    return misses


def _other(reference: str) -> str:
    """An answer of the same kind that is not the reference's."""
    value = number(reference)
    if isinstance(value, Fraction) and value.denominator == 1:
        return str(value + 1)
    return "987654321" if reference.strip() != "987654321" else "987654322"
