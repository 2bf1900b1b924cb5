"""The texts of rendered harnesses: instructions per form, system prompts, labels and invented demonstrations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

INSTRUCTIONS = {
    "": "Put your final answer within \\boxed{}.",
    "direct_box": "Reply with the answer in a box and nothing else: \\boxed{number}",
    "steps": "Think step by step in short lines, then put your final answer within \\boxed{}.",
    "answer_line": "Reply with the number only.",
    "equation": "Write the calculation and its result as one equation.",
    "expression": "Write one Python expression that calculates the answer.",
    "program": "Write a short Python program that prints the answer.",
}

LABELS = {"equation": "Equation", "expression": "Expression", "program": "Program"}
"""What a labelled reply is called; ``Answer`` for the other forms."""

SYSTEM = {
    "translator": "You translate problems into Python. You never explain.",
    "careful": "You are a careful mathematician. You copy numbers exactly and check your work.",
    "terse": "You answer in as few words as possible.",
}


class Demo(NamedTuple):
    """An invented problem, the calculation and its result."""

    problem: str
    expression: str
    result: str


# Written by hand to show a form. None comes from a task generator, and a test holds them against every split.
DEMOS = (
    Demo("What is 52 - 17 + 9?", "52 - 17 + 9", "44"),
    Demo("How many wheels do 7 cars have?", "7 * 4", "28"),
    Demo("What is 31 times 6?", "31 * 6", "186"),
    Demo("What is gcd(90, 105)?", "gcd(90, 105)", "15"),
    Demo("Calculate 7 * (8 - 12).", "7 * (8 - 12)", "-28"),
    Demo("How many wings do 12 birds have?", "12 * 2", "24"),
)


def _program(demo: Demo) -> str:
    import_line = "from math import gcd\n" if "gcd" in demo.expression else ""
    return f"```python\n{import_line}print({demo.expression})\n```"


def _box(demo: Demo) -> str:
    return f"\\boxed{{{demo.result}}}"


_REPLIES: dict[str, Callable[[Demo], str]] = {
    "expression": lambda demo: demo.expression,
    "program": _program,
    "equation": lambda demo: f"{demo.expression} = {demo.result}",
    "answer_line": lambda demo: demo.result,
    "steps": lambda demo: f"{demo.expression} = {demo.result}\n\\boxed{{{demo.result}}}",
}


def demonstrations(form: str, demos: Sequence[Demo]) -> list[tuple[str, str]]:
    """The problems of ``demos`` with the reply that ``form`` wants."""
    reply = _REPLIES.get(form, _box)
    return [(demo.problem, reply(demo)) for demo in demos]
