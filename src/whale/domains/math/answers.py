"""Equality of two answers in three values: yes, no, or a list of formula pairs that only algebra can decide.

Structure is compared here (lists, sets, tuples, intervals, matrices, assignments, equations), and so are numbers and
formulas that ``value`` can evaluate. What remains are pairs of formulas without structure; ``Comparison.open`` holds
them, a decision about each goes into ``known``, and the comparison is made again.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from whale.domains.math import relations, units
from whale.domains.math.latex import (
    SET_CLOSE,
    SET_OPEN,
    TEXT_CLOSE,
    TEXT_OPEN,
    brackets,
    compact,
    matrix,
    members,
    split,
    tidy,
    words,
)
from whale.domains.math.value import Number, Unreadable, close, combine, evaluate, letters

Pair = tuple[str, str]
Decision = bool | None

LONGEST = 1000
"""Characters of an answer that is read; a longer one is wrong. The longest reference of MATH has about 300."""

_MOST_MEMBERS = 40  # of a list whose order does not matter: every pair may have to be compared
_POINTS = 3
_BASED = re.compile(r"([+-]?[0-9A-Za-z]+(?:\.[0-9A-Za-z]+)?)_\{?\(?([0-9]+)\)?\}?")
_BASE_WORDS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
_GROUPED = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_DECIMAL_POINT = re.compile(r"\.[0-9]")
_WORDS = re.compile(r"[A-Za-z][A-Za-z'-]{2,}(?: [A-Za-z'-]+)*")
_TWO_NUMBERS = re.compile(r"[0-9]\s+[0-9.]")
INTEGER = re.compile(r"\s*[+-]?[0-9]+\s*", re.ASCII)
_INFINITE = {"\\infty", "+\\infty"}
_CONSTANTS = frozenset("ei")


def all_of(decisions: Sequence[Decision]) -> Decision:
    """No if any is no, else open if any is open."""
    if False in decisions:
        return False
    return None if None in decisions else True


class Comparison:
    """One answer against one reference. known: what algebra has decided. open: what it would have to decide."""

    def __init__(self, known: Mapping[Pair, bool] | None = None) -> None:
        self._known = known or {}
        self.open: list[Pair] = []

    def same(self, given: str, gold: str) -> Decision:
        """Whether both mean the same; ``None`` if that hangs on pairs in ``open``. Raises nothing for any text."""
        if len(given) > LONGEST:
            return False
        if INTEGER.fullmatch(given) and INTEGER.fullmatch(gold):  # most answers there are
            return int(given) == int(gold)
        return self._whole(tidy(given), tidy(gold))

    def _whole(self, given: str, gold: str) -> Decision:
        if not given or not gold:
            return False
        if compact(given) == compact(gold):
            return True
        given, gold = relations.claim(given), relations.claim(gold)
        if _is_text(gold) and "," not in gold:
            return words(given) == words(gold)
        given, gold = _unmarked(given), _unmarked(gold)
        return self._lists(*_as_lists(given, gold))

    def _lists(self, given: list[str], gold: list[str]) -> Decision:
        return self._unordered(given, gold) if len(gold) > 1 or len(given) > 1 else self._member(given[0], gold[0])

    def _unordered(self, given: list[str], gold: list[str]) -> Decision:
        if len(given) != len(gold) or len(gold) > _MOST_MEMBERS:
            return False
        rest, open_ = list(given), False
        for wanted in gold:
            decisions = [self._member(one, wanted) for one in rest]
            if True in decisions:
                del rest[decisions.index(True)]
            elif None in decisions:
                open_ = True
            else:
                return False
        return None if open_ else True

    def _member(self, given: str, gold: str) -> Decision:
        if compact(given) == compact(gold):
            return True
        relation = relations.between(given, gold)
        if relation is not None:
            return all_of([self._pair(pair) for pair in relation])
        unions = split(given, "\\cup"), split(gold, "\\cup")
        if len(unions[0]) > 1 or len(unions[1]) > 1:
            return self._unordered(*unions)
        return self._bracketed(given, gold)

    def _pair(self, pair: relations.Claim) -> Decision:
        if isinstance(pair, bool):
            return pair
        return self._equations(pair) if pair.equations else self._member(pair.given, pair.gold)

    def _bracketed(self, given: str, gold: str) -> Decision:
        left, right = matrix(given), matrix(gold)
        if left is not None or right is not None:
            return self._matrices(left, right)
        kinds = brackets(given), brackets(gold)
        if SET_OPEN + SET_CLOSE in kinds:
            inner = [text[1:-1] if kind == SET_OPEN + SET_CLOSE else text for text, kind in zip((given, gold), kinds)]  # noqa: B905
            return self._lists(members(inner[0]), members(inner[1]))
        parts = [split(text[1:-1], ",") if kind else [text] for text, kind in zip((given, gold), kinds)]  # noqa: B905
        if len(parts[0]) > 1 or len(parts[1]) > 1:
            if kinds[0] != kinds[1] or len(parts[0]) != len(parts[1]):
                return False
            return all_of([self._member(a, b) for a, b in zip(*parts, strict=True)])
        if kinds[0] in ("()", "{}") or kinds[1] in ("()", "{}"):
            bare = [text[1:-1].strip() if kind in ("()", "{}") else text for text, kind in zip((given, gold), kinds)]  # noqa: B905
            return self._member(*bare) if all(bare) else False
        return self._atom(given, gold)

    def _matrices(self, given: list[list[str]] | None, gold: list[list[str]] | None) -> Decision:
        if given is None or gold is None or [len(row) for row in given] != [len(row) for row in gold]:
            return False
        return all_of([self._member(a, b) for x, y in zip(given, gold, strict=True) for a, b in zip(x, y, strict=True)])

    def _atom(self, given: str, gold: str) -> Decision:
        if _is_text(gold) or ":" in gold:
            return words(compact(given)) == words(compact(gold))
        if (based := _based(given, gold)) is not None:
            return based
        (given, unit, percent), (gold, wanted, of_hundred) = units.strip(given), units.strip(gold)
        if units.clash(unit, wanted) or not given or not gold:
            return False
        if compact(given) == compact(gold):
            return True
        if {compact(given), compact(gold)} & (_INFINITE | {"-\\infty"}):
            return compact(given) in _INFINITE and compact(gold) in _INFINITE
        decision = self._values(given, gold)
        if decision is not True and percent != of_hundred:
            one = (f"\\frac{{{given}}}{{100}}", gold) if percent else (given, f"\\frac{{{gold}}}{{100}}")
            return self._values(*one) or decision
        return decision

    def _values(self, given: str, gold: str) -> Decision:
        if not letters(given) <= letters(gold) | _CONSTANTS or TEXT_OPEN in given:
            return False  # a variable that the reference does not know, or words
        if _TWO_NUMBERS.search(given) and not _TWO_NUMBERS.search(gold):
            return False
        decision = by_value(given, gold)
        return self._ask(given, gold) if decision is None else decision

    def _equations(self, pair: relations.Sides) -> Decision:
        if not letters(pair.given) <= letters(pair.gold):
            return False
        decision = by_ratio(split(pair.given, "="), split(pair.gold, "="))
        return self._ask(pair.given, pair.gold) if decision is None else decision

    def _ask(self, given: str, gold: str) -> Decision:
        pair = (compact(given), compact(gold))
        if pair not in self._known and pair not in self.open:
            self.open.append(pair)
        return self._known.get(pair)


def _is_text(text: str) -> bool:
    """Words or the letter of a choice, nothing to calculate with."""
    if text.startswith(TEXT_OPEN) and text.endswith(TEXT_CLOSE):
        return True
    return bool(_WORDS.fullmatch(text)) or bool(re.fullmatch(r"\(?[A-Z]\)?", text))


def _unmarked(text: str) -> str:
    """A list of words in one pair of marks (``A, C``) becomes a list of bare words."""
    inner = text[1:-1]
    whole = text.startswith(TEXT_OPEN) and text.endswith(TEXT_CLOSE) and TEXT_OPEN not in inner
    return inner if whole else text


def _as_lists(given: str, gold: str) -> tuple[list[str], list[str]]:
    """Members of both; ``1,234`` is one number, and the braces of a set say no more than a list does."""
    given, gold = (text[1:-1].strip() if brackets(text) == SET_OPEN + SET_CLOSE else text for text in (given, gold))
    return _one_or_list(given), _one_or_list(gold)


def _one_or_list(text: str) -> list[str]:
    bare = units.strip(text)[0]
    return [text] if _GROUPED.fullmatch(bare) else members(text)


def _based(given: str, gold: str) -> Decision:
    """Numbers with their base as subscript. The reference's base need not be repeated; another one is wrong."""
    for word, base in _BASE_WORDS.items():
        given = given.replace(f"_{TEXT_OPEN}{word}{TEXT_CLOSE}", f"_{base}")
        given = given.replace(f"_{{{TEXT_OPEN}{word}{TEXT_CLOSE}}}", f"_{base}")
    left, right = _BASED.fullmatch(compact(given)), _BASED.fullmatch(compact(gold))
    if right is None:
        if left is None or left[1].isalpha():
            return None
        return left[2] == "10" and compact(gold) == left[1]
    if right[1].isalpha():
        return None
    if left is None:
        return compact(given).upper() == right[1].upper()
    return left[1].upper() == right[1].upper() and left[2] == right[2]


def _point(number: int) -> Callable[[str], Fraction]:
    """Values of variables at the point ``number``: fractions above one of no special kind."""
    return lambda name: Fraction(1009 + zlib.crc32(f"{number}/{name}".encode()) % 8999, 997)


def by_value(given: str, gold: str) -> Decision:
    """Two formulas by what they evaluate to, at several points if they hold variables; ``None``: not evaluable."""
    decimal = bool(_DECIMAL_POINT.search(given) or _DECIMAL_POINT.search(gold))
    try:
        if not letters(given) and not letters(gold):
            return close(evaluate(given), evaluate(gold), decimal)
        points = [_point(number) for number in range(_POINTS)]
        equal = all(close(evaluate(given, point), evaluate(gold, point), decimal) for point in points)
    except Unreadable:
        return None
    # i is a variable to the evaluation: what is equal so is equal, the reverse needs i^2 = -1
    return equal or (None if {"i", "e"} & (letters(given) | letters(gold)) else False)


def by_ratio(given: Sequence[str], gold: Sequence[str]) -> Decision:
    """Two equations: the same if left minus right is the same up to a constant factor that is not zero."""
    if len(given) != 2 or len(gold) != 2:
        return False
    try:
        ratios: list[Number] = []
        for number in range(_POINTS):
            point = _point(number)
            ours, theirs = (
                combine("-", evaluate(left, point), evaluate(right, point)) for left, right in (given, gold)
            )
            if not ours or not theirs:
                return False  # a tautology, or a point that happens to lie on the curve: never, by the points' choice
            ratios.append(combine("/", ours, theirs))
    except Unreadable:
        return None
    return all(close(ratio, ratios[0], decimal=False) for ratio in ratios)
