"""Answers with a relation sign: assignments, chains of equal values, equations, inequalities, membership."""

from __future__ import annotations

import re
from dataclasses import dataclass

from whale.domains.math.latex import TEXT_CLOSE, TEXT_OPEN, brackets, compact, split

_NAME = re.compile(
    r"(?:\\[A-Za-z]+(?![A-Za-z])|[A-Za-z](?:_(?:\{[A-Za-z0-9]+\}|[A-Za-z0-9]))?'?|"
    rf"{TEXT_OPEN}[^{TEXT_CLOSE}]+{TEXT_CLOSE}|[+*/(){{}}|,\s-])+"
)
_SINGLE = re.compile(r"\\?[A-Za-z]+(?:_(?:\{[A-Za-z0-9]+\}|[A-Za-z0-9]))?'?(?:\([a-z](?:,[a-z])*\))?|[A-Z]{2,4}")
_MEMBER_OF = re.compile(r"[A-Za-z](?:\([a-z]\))?\s*\\in\s*(?=\S)")
# One number, maybe of money or with a unit: what else stands behind a sign of approximation is part of the answer.
_APPROXIMATE = re.compile(
    rf"\\?\$?\s*[-+]?(?:\d{{1,3}}(?:,\d{{3}})+|\d+)?(?:\.\d+)?\s*(?:\\?%|\^\\circ|{TEXT_OPEN}[^{TEXT_CLOSE}\d]*{TEXT_CLOSE})?"
)
_ORDER = re.compile(r"(\\le(?![A-Za-z])|\\ge(?![A-Za-z])|<|>)")
_TURNED = {"\\le": "\\ge", "\\ge": "\\le", "<": ">", ">": "<"}


@dataclass(frozen=True)
class Sides:
    """Two texts that have to mean the same; as equations if ``equations``."""

    given: str
    gold: str
    equations: bool = False


Claim = Sides | bool


def claim(text: str) -> str:
    """What is claimed exactly: without a leading sign of approximation, an approximate value behind, ``x \\in``."""
    text = text.removeprefix("\\approx").strip()
    parts = split(text, "\\approx")
    exact = parts[0] if all(_APPROXIMATE.fullmatch(part.strip()) for part in parts[1:]) else text
    return _MEMBER_OF.sub("", exact, count=1) if _MEMBER_OF.match(exact) else exact


def between(given: str, gold: str) -> list[Claim] | None:
    """Claims that together make both the same; ``None`` if neither holds a relation sign outside its brackets."""
    left, right = split(given, "="), split(gold, "=")
    if len(left) == 1 and len(right) == 1:
        return _inequalities(given, gold)
    if not all(left) or not all(right):
        return [False]
    if len(right) == 1:
        return _given_equation(left, gold)
    if not _has_letters(gold):  # a chain of equal numbers, such as 0.56 = 56\%
        return [Sides(side, right[0]) for side in left] if len(left) == 1 or not _has_letters(given) else [False]
    if _SINGLE.fullmatch(compact(right[0])):
        return _gold_assignment(left, right)
    if len(left) != 2 or len(right) != 2:
        return [False]
    return [Sides(given, gold, equations=True)]


def _has_letters(text: str) -> bool:
    return bool(re.search(r"(?<!\\)(?<![A-Za-z])[A-Za-z]", text))


def _given_equation(given: list[str], gold: str) -> list[Claim]:
    """``m + n = 113`` for 113: a name on the left, the value on the right. ``5 = 5`` names nothing."""
    named = _NAME.fullmatch(given[0]) and re.search("[A-Za-z]", given[0])
    if not named or compact(given[0]) == compact(given[-1]):
        return [False]
    return [Sides(side, gold) for side in given[1:]]


def _gold_assignment(given: list[str], gold: list[str]) -> list[Claim]:
    if len(given) == 1:
        return [Sides(given[0], gold[-1])]
    if compact(given[0]) == compact(gold[0]) or (len(given) == 2 and compact(given[1]) == compact(gold[0])):
        value = given[1:] if compact(given[0]) == compact(gold[0]) else given[:1]
        return [Sides(side, gold[-1]) if compact(side) != compact(gold[0]) else False for side in value]
    if len(given) == len(gold) == 2:
        return [Sides("=".join(given), "=".join(gold), equations=True)]
    return [False]


def _inequalities(given: str, gold: str) -> list[Claim] | None:
    left, right = _ORDER.split(given), _ORDER.split(gold)
    if len(left) == 1 and len(right) == 1:
        return None
    if len(left) > 1 and len(right) > 1:
        left, right = _rising(left), _rising(right)
        if left[1::2] != right[1::2]:
            return [False]
        return [Sides(one.strip(), other.strip()) for one, other in zip(left[::2], right[::2], strict=True)]
    interval = _interval(left if len(left) > 1 else right)
    other = gold if len(left) > 1 else given
    if interval is None or brackets(other) not in ("()", "[]", "(]", "[)"):
        return [False]
    return [Sides(interval, other)] if len(left) > 1 else [Sides(other, interval)]


def _rising(parts: list[str]) -> list[str]:
    """The same chain with the smallest side first, if all its signs point the other way."""
    if all(sign in (">", "\\ge") for sign in parts[1::2]):
        return [part if index % 2 == 0 else _TURNED[part] for index, part in reversed(list(enumerate(parts)))]
    return parts


def _interval(parts: list[str]) -> str | None:
    """``2 < x \\le 5`` as an interval; ``None`` if the variable does not stand alone between, or beside, the bounds."""
    parts = [part.strip() for part in _rising(parts)]
    if any(sign not in ("<", "\\le") for sign in parts[1::2]):
        return None
    if len(parts) == 5 and _SINGLE.fullmatch(compact(parts[2])):
        return f"{'(' if parts[1] == '<' else '['}{parts[0]},{parts[4]}{')' if parts[3] == '<' else ']'}"
    if len(parts) == 3 and _SINGLE.fullmatch(compact(parts[0])):
        return f"(-\\infty,{parts[2]}{')' if parts[1] == '<' else ']'}"
    if len(parts) == 3 and _SINGLE.fullmatch(compact(parts[2])):
        return f"{'(' if parts[1] == '<' else '['}{parts[0]},\\infty)"
    return None
