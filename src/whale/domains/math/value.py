"""The value of a formula: exact fractions as far as they go, sixty digits where roots or pi come in.

A formula with variables is evaluated at points, which tells two formulas apart as surely as algebra does: two that
agree at several points of no special kind are the same. What is not understood (functions, complex numbers, ambiguous
notation, numbers too large) raises ``Unreadable`` and is left to others. No ``eval``; work is bounded by the length
of the text and by the size that a power may have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, DecimalException
from fractions import Fraction
from functools import lru_cache
from math import comb, factorial, isqrt

Number = Fraction | Decimal

DIGITS = 60
_CONTEXT = Context(prec=DIGITS, Emax=20000, Emin=-20000)
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899")
_DEEPEST = 40
_MOST_BITS = 40000  # of an exact power; 2^4950 still is one
_CLOSE = Decimal("1e-40")

RELATIVE_TOLERANCE = Fraction(1, 10**9)
"""Between values of which one is written as a decimal: what binary floating point may add to a right result."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?(?![0-9])|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)|"
    r"(?P<command>\\[A-Za-z]+)|(?P<letter>[A-Za-z](?:_(?:\{[A-Za-z0-9]+\}|[A-Za-z0-9]))?)|(?P<sign>\S))"
)
_REPEATING = re.compile(r"([+-]?[0-9]*)\.([0-9]*)\\overline ?\{([0-9]+)\}")
_SCIENTIFIC = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))[eE]([+-]?[0-9]{1,3})")
_VARIABLES = frozenset(
    "\\" + name
    for name in "alpha beta gamma delta epsilon theta lambda mu nu rho sigma tau phi varphi psi omega".split()  # noqa: SIM905
)


class Unreadable(ValueError):
    """Not a formula of the kind that is evaluated here."""


@lru_cache(maxsize=1024)
def letters(text: str) -> frozenset[str]:
    """Variables of a formula, case kept; names of functions are none."""
    found = set()
    for match in _TOKEN.finditer(text):
        if match["letter"] or match["command"] in _VARIABLES:
            found.add(match[match.lastgroup or 0])
    return frozenset(found)


def evaluate(text: str, point: Callable[[str], Fraction] | None = None) -> Number:
    """Value of a formula. point: the value of each variable, ``None`` if it may have none. Raises Unreadable."""
    if match := _REPEATING.fullmatch(text):
        return _repeating(match[1], match[2], match[3])
    if match := _SCIENTIFIC.fullmatch(text):
        return Fraction(match[1].rstrip(".")) * Fraction(10) ** int(match[2])
    try:
        return _Parser(text, point).whole()
    except (DecimalException, ZeroDivisionError, OverflowError, RecursionError) as error:
        raise Unreadable(f"{type(error).__name__} in the calculation") from None


def close(left: Number, right: Number, decimal: bool) -> bool:
    """Equality: exact for fractions, to forty digits otherwise; nine digits if ``decimal`` (one side is written so)."""
    if left == right:
        return True
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        noise = RELATIVE_TOLERANCE * abs(right)
        if right.denominator == 1:  # half a unit of a large whole number is no noise
            noise = min(noise, Fraction(1, 100))
        return decimal and abs(left - right) <= noise
    try:
        a, b = _decimal(left), _decimal(right)
        gap, size = _CONTEXT.subtract(a, b).copy_abs(), max(a.copy_abs(), b.copy_abs())
        limit = _decimal(RELATIVE_TOLERANCE) if decimal else _CLOSE
        return gap <= _CONTEXT.multiply(limit, size + _CLOSE)
    except DecimalException:
        return False


def _repeating(whole: str, fixed: str, period: str) -> Fraction:
    scale = 10 ** len(fixed)
    value = Fraction(int(f"{whole.lstrip('+-') or 0}{fixed}"), scale)
    value += Fraction(int(period), (10 ** len(period) - 1) * scale)
    return -value if whole.startswith("-") else value


def _decimal(value: Number) -> Decimal:
    if isinstance(value, Decimal):
        return value
    return _CONTEXT.divide(_CONTEXT.create_decimal(value.numerator), _CONTEXT.create_decimal(value.denominator))


_EXACT: Mapping[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}
_ROUNDED: Mapping[str, Callable[[Decimal, Decimal], Decimal]] = {
    "+": _CONTEXT.add,
    "-": _CONTEXT.subtract,
    "*": _CONTEXT.multiply,
    "/": _CONTEXT.divide,
}


def combine(sign: str, left: Number, right: Number) -> Number:
    """``left sign right`` for one of ``+ - * /``, exact while both are fractions. Raises ZeroDivisionError and such."""
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        if sign != "/" and left.denominator.bit_length() + right.denominator.bit_length() > _MOST_BITS:
            raise Unreadable("the numbers are too large")
        return _EXACT[sign](left, right)
    return _ROUNDED[sign](_decimal(left), _decimal(right))


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(exponent, Fraction) and exponent.denominator == 1:
        times = exponent.numerator
        if isinstance(base, Fraction):
            bits = max(base.numerator.bit_length(), base.denominator.bit_length())
            if abs(times) * bits > _MOST_BITS:
                raise Unreadable("the power is too large")
            return base**times
        if abs(times) > _MOST_BITS:
            raise Unreadable("the power is too large")
        return _CONTEXT.power(base, times)
    if isinstance(exponent, Fraction) and exponent.denominator < 100 and exponent.numerator.bit_length() < 12:
        return _root(_power(base, Fraction(exponent.numerator)), exponent.denominator)
    if base <= 0:
        raise Unreadable("a power of what is not positive")
    return _CONTEXT.power(_decimal(base), _decimal(exponent))


def _root(value: Number, degree: int) -> Number:
    if value < 0:
        if degree % 2 == 0:
            raise Unreadable("the even root of a negative number")
        return combine("*", Fraction(-1), _root(-value, degree))
    if isinstance(value, Fraction):
        if degree == 2:
            top, bottom = isqrt(value.numerator), isqrt(value.denominator)
            if top * top == value.numerator and bottom * bottom == value.denominator:
                return Fraction(top, bottom)
        elif (near := _near_root(value, degree)) is not None:
            return near
    if degree == 2:
        return _CONTEXT.sqrt(_decimal(value))
    return Fraction(0) if not value else _CONTEXT.power(_decimal(value), _CONTEXT.divide(Decimal(1), Decimal(degree)))


def _near_root(value: Fraction, degree: int) -> Fraction | None:
    """The exact root if it is a fraction of small numbers."""
    if max(value.numerator, value.denominator) > 10**15:
        return None
    guess = Fraction(round(value.numerator ** (1 / degree)), round(value.denominator ** (1 / degree)) or 1)
    return guess if guess**degree == value else None


class _Parser:
    """Recursive descent over the tokens of one formula."""

    def __init__(self, text: str, point: Callable[[str], Fraction] | None) -> None:
        self._tokens = [(str(match.lastgroup), match[match.lastgroup or 0]) for match in _TOKEN.finditer(text)]
        self._at, self._depth, self._point = 0, 0, point

    def whole(self) -> Number:
        value = self._sum()
        if self._at != len(self._tokens):
            raise Unreadable(f"{self._peek()!r} is not expected there")
        return value

    def _peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _kind(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def _take(self, wanted: str = "") -> str:
        found = self._peek()
        if not found or (wanted and found != wanted):
            raise Unreadable(f"{wanted or 'something'} is expected, found {found!r}")
        self._at += 1
        return found

    def _sum(self) -> Number:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise Unreadable("too many brackets")
        negative = self._peek() == "-"
        if self._peek() in ("+", "-"):
            self._take()
        value = self._product()
        value = combine("*", Fraction(-1), value) if negative else value
        while self._peek() in ("+", "-"):
            value = combine(self._take(), value, self._product())
        self._depth -= 1
        return value

    def _product(self) -> Number:
        start = self._at
        value = self._mixed() or self._factor()
        slash = False
        while sign := self._multiplies():
            if sign == "juxtaposed" and slash:
                raise Unreadable("1/2x may be read in two ways")
            if sign != "juxtaposed":
                self._take()
            slash = sign == "/"
            value = combine("/" if slash else "*", value, self._signed() if sign != "juxtaposed" else self._factor())
        if self._at == start:
            raise Unreadable("a value is missing")
        return value

    def _multiplies(self) -> str:
        found = self._peek()
        if found in ("/", "\\div"):
            return "/"
        if found in ("*", "\\cdot", "\\times"):
            return "*"
        if self._kind() == "letter" or found in ("(", "[", "{", "\\frac", "\\sqrt", "\\pi", "\\binom"):
            return "juxtaposed"
        return "juxtaposed" if found in _VARIABLES else ""

    def _mixed(self) -> Number | None:
        """``2\\frac{1}{2}``: a whole number before a fraction of plain numbers is added to it."""
        if self._kind() != "number" or not self._peek().isdigit():
            return None
        match = [token for _, token in self._tokens[self._at + 1 : self._at + 8]]
        plain = match[:1] == ["\\frac"] and all(token.isdigit() or token in "{}" for token in match[1:4])
        braces = len(match) >= 7 and match[1] == "{" and match[3] == "}" and match[4] == "{" and match[6] == "}"
        bare = len(match) >= 2 and match[1].isdigit()
        if not plain or not (bare or (braces and match[5].isdigit())):
            return None
        before, kept, whole = self._at, list(self._tokens), Fraction(self._take())
        fraction = self._factor()
        if not isinstance(fraction, Fraction) or not 0 <= fraction < 1:
            self._at, self._tokens = before, kept
            return None
        return whole + fraction

    def _signed(self) -> Number:
        if self._peek() in ("+", "-"):
            return combine("*", Fraction(-1 if self._take() == "-" else 1), self._factor())
        return self._factor()

    def _factor(self) -> Number:
        value = self._atom()
        while self._peek() in ("^", "!"):
            value = _factorial(value) if self._take() == "!" else _power(value, self._exponent())
        return value

    def _exponent(self) -> Number:
        """``2^10`` and ``x^-1`` are read as they are meant, though LaTeX would want braces."""
        negative = self._peek() == "-"
        if negative:
            self._take()
        value = Fraction(self._take()) if self._kind() == "number" and self._peek().isdigit() else self._argument()
        return combine("*", Fraction(-1), value) if negative else value

    def _atom(self) -> Number:
        kind, token = self._kind(), self._take()
        if kind == "number":
            return Fraction(token.replace(",", ""))
        if kind == "letter" or token in _VARIABLES:
            if self._point is None:
                raise Unreadable("it holds a variable")
            return self._point(token)
        if token in "([{":
            value = self._sum()
            self._take({"(": ")", "[": "]", "{": "}"}[token])
            return value
        if token == "\\pi":
            return _PI
        if token == "\\frac":
            return combine("/", self._argument(), self._argument())
        if token == "\\sqrt":
            return self._square_root()
        if token == "\\binom":
            return _choose(self._argument(), self._argument())
        raise Unreadable(f"{token!r} is not understood")

    def _square_root(self) -> Number:
        degree: Number = Fraction(2)
        if self._peek() == "[":
            self._take()
            degree = self._sum()
            self._take("]")
        if not isinstance(degree, Fraction) or degree.denominator != 1 or not 2 <= degree <= 99:
            raise Unreadable("the degree of a root is a small whole number")
        return _root(self._argument(), degree.numerator)

    def _argument(self) -> Number:
        """What a command or an exponent takes: a group in braces, or one digit, letter or command."""
        if self._peek() == "{":
            return self._atom()
        if self._kind() == "number" and len(self._peek()) > 1:
            # \frac12 takes one digit at a time; what is left of the number stays in line
            token = self._tokens[self._at][1]
            self._tokens[self._at] = ("number", token[1:])
            if not token[0].isdigit() or token[1] in ".,":
                raise Unreadable("a number without braces behind a command")
            return Fraction(token[0])
        if self._peek() == "-":
            raise Unreadable("a sign without braces behind a command")
        return self._atom()


def _whole_number(value: Number, most: int) -> int:
    if not isinstance(value, Fraction) or value.denominator != 1 or not 0 <= value <= most:
        raise Unreadable("a small whole number is expected")
    return value.numerator


def _factorial(value: Number) -> Fraction:
    return Fraction(factorial(_whole_number(value, 1000)))


def _choose(n: Number, k: Number) -> Fraction:
    return Fraction(comb(_whole_number(n, 2000), _whole_number(k, 2000)))
