"""The program of one algebra process: reads pairs of formulas, says which are equal. Imports nothing of whale.

Started with a socket's number, a limit of memory in bytes and of processor time per request in seconds. Messages are
lines of JSON: ``{"ready": true}`` first, then ``[[given, gold], ...]`` in and ``[true, false, ...]`` out. It may
hang or die over a formula at any time: whoever started it watches the clock.
"""

from __future__ import annotations

import json
import logging
import re
import resource
import socket
import string
import sys
from collections.abc import Callable
from typing import Any

Decide = Callable[[str, str], bool]

_COMMAND_OR_LETTER = re.compile(r"\\[A-Za-z]+|[A-Za-z]")
_GREEK = r"\\(?:alpha|beta|gamma|delta|theta|lambda|mu|phi|varphi|psi|omega|pi)(?![a-z])"
_FUNCTION = r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc|log|ln)"
_POWER = re.compile(
    rf"({_FUNCTION})\^(?:\{{([0-9]+)\}}|([0-9]))\s*(\{{[^{{}}]*\}}|\([^()]*\)|[0-9]*\s*(?:{_GREEK}|[A-Za-z]))"
)
_BARE = re.compile(rf"({_FUNCTION})\s*([0-9]*[A-Za-z]|[0-9]+|[0-9]*{_GREEK})(?![A-Za-z(])")
_DEGREES = re.compile(r"([0-9]+(?:\.[0-9]+)?)\\circ")


def main(descriptor: int, memory_bytes: int, cpu_seconds: int) -> None:
    """Serve until the other end closes."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable(logging.CRITICAL)  # the library warns that its own clock is off, which is wanted
    decide = _load()
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    with socket.socket(fileno=descriptor) as sock, sock.makefile("rwb") as stream:
        _write(stream, {"ready": True})
        for line in stream:
            _allow(cpu_seconds)
            _write(stream, [_safely(decide, given, gold) for given, gold in json.loads(line)])


def _write(stream: Any, message: Any) -> None:
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


def _allow(seconds: int) -> None:
    """Processor time for one more request: a process whose owner is gone must not calculate for ever."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + seconds + 1, hard))


def _safely(decide: Decide, given: str, gold: str) -> bool:
    try:
        return decide(given, gold)
    except Exception:  # a formula that the library chokes on is not equal to anything
        return False


def _load() -> Decide:
    import sympy
    from math_verify import LatexExtractionConfig, parse, verify

    config = [LatexExtractionConfig(boxed_match_priority=-1)]

    def read(text: str) -> list[Any]:
        found = parse(f"${text}$", extraction_config=config, fallback_mode="no_fallback", parsing_timeout=None)  # type: ignore[arg-type]
        return [_with_i(sympy, formula) for formula in found]

    def decide(given: str, gold: str) -> bool:
        given, gold = plain(given, gold)
        ours, theirs = read(given), read(gold)
        if len(ours) != 1 or len(theirs) != 1:
            return False
        if isinstance(ours[0], sympy.Eq) or isinstance(theirs[0], sympy.Eq):
            return _same_equation(sympy, ours[0], theirs[0])
        if not ours[0].free_symbols <= theirs[0].free_symbols:
            return False
        decision = _at_points(sympy, ours[0], theirs[0])
        if decision is not None:
            return decision
        return bool(verify(theirs, ours, float_rounding=9, numeric_precision=30, timeout_seconds=None))

    return decide


def _with_i(sympy: Any, formula: Any) -> Any:
    return formula.subs({symbol: sympy.I for symbol in formula.free_symbols if symbol.name == "i"})


def _at_points(sympy: Any, ours: Any, theirs: Any) -> bool | None:
    """Equality by values at points on both sides of zero; ``None`` if one has no value there."""
    if not (isinstance(ours, sympy.Expr) and isinstance(theirs, sympy.Expr)):
        return None
    names = sorted(theirs.free_symbols, key=str)
    for number in range(3):
        point = {
            name: sympy.Rational((-1) ** number * (1009 + 613 * k + 97 * number), 997) for k, name in enumerate(names)
        }
        left, right = (sympy.N(formula.doit().subs(point), 30) for formula in (ours, theirs))
        if not (left.is_number and right.is_number and left.is_finite and right.is_finite):
            return None
        if abs(left - right) > 1e-20 * max(1, abs(right)):
            return False
    return True


def _same_equation(sympy: Any, ours: Any, theirs: Any) -> bool:
    """Left minus right is the same up to a constant factor; a tautology is no equation."""
    if not (isinstance(ours, sympy.Eq) and isinstance(theirs, sympy.Eq)):
        return False
    left, right = sympy.simplify(ours.lhs - ours.rhs), sympy.simplify(theirs.lhs - theirs.rhs)
    if left == 0 or right == 0:
        return False
    ratio = sympy.simplify(left / right)
    return bool(ratio.is_number and ratio.is_finite and ratio != 0)


def plain(given: str, gold: str) -> tuple[str, str]:
    """Both formulas with one case of letters (the library folds it), degrees as radians, powers behind functions."""
    given, gold = (_DEGREES.sub(r"\\frac{\1\\pi}{180}", text) for text in (given, gold))
    given, gold = (_functions(text) for text in (given, gold))
    letters = [token for text in (gold, given) for token in _COMMAND_OR_LETTER.findall(text) if len(token) == 1]
    free = [letter for letter in string.ascii_lowercase if letter not in letters and letter not in "deijlo"]
    names = dict(zip(sorted({letter for letter in letters if letter.isupper()}), reversed(free), strict=False))
    given, gold = (_COMMAND_OR_LETTER.sub(lambda match: names.get(match[0], match[0]), text) for text in (given, gold))
    return given, gold


def _functions(text: str) -> str:
    text = _POWER.sub(lambda match: f"({match[1]}({match[4].strip('(){}')}))^{{{match[2] or match[3]}}}", text)
    return _BARE.sub(r"\1(\2)", text)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
