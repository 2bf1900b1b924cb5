"""Values of formulas: exact where they can be, refused where they are not understood."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest

from whale.domains.math.value import Unreadable, close, evaluate, letters


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", Fraction(7)),
        ("-7", Fraction(-7)),
        ("1,234", Fraction(1234)),
        (".5", Fraction(1, 2)),
        ("1e3", Fraction(1000)),
        ("2.5e-1", Fraction(1, 4)),
        ("0.\\overline{3}", Fraction(1, 3)),
        ("-1.2\\overline{34}", Fraction(-611, 495)),
        ("\\frac{1}{2}", Fraction(1, 2)),
        ("\\frac12", Fraction(1, 2)),
        ("\\frac 9{20}", Fraction(9, 20)),
        ("1\\frac{1}{2}", Fraction(3, 2)),
        ("-1\\frac12", Fraction(-3, 2)),
        ("3\\frac{4}{2}", Fraction(6)),
        ("2^{10}", Fraction(1024)),
        ("2^10", Fraction(1024)),
        ("2^{-1}", Fraction(1, 2)),
        ("2^3^2", Fraction(64)),
        ("8^{2/3}", Fraction(4)),
        ("\\sqrt{16}", Fraction(4)),
        ("\\sqrt[3]{-27}", Fraction(-3)),
        ("5!", Fraction(120)),
        ("\\binom{5}{2}", Fraction(10)),
        ("2(3+4)", Fraction(14)),
        ("3 \\times 10^8", Fraction(300_000_000)),
        ("6/3/2", Fraction(1)),
        ("2 \\cdot -3", Fraction(-6)),
    ],
)
def test_exact(text: str, value: Fraction) -> None:
    found = evaluate(text)
    assert isinstance(found, Fraction)
    assert found == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("\\sqrt{2}", "1.41421356237309504880168872420969807856967187537694"),
        ("2\\pi", "6.28318530717958647692528676655900576839433879875021"),
        ("\\sqrt[3]{2}", "1.25992104989487316476721060727822835057025146470150"),
        ("\\frac{1+\\sqrt5}{2}", "1.61803398874989484820458683436563811772030917980576"),
        ("2^{\\sqrt{2}}", "2.66514414269022518865029724987313984827421131371465"),
    ],
)
def test_fifty_digits(text: str, value: str) -> None:
    assert abs(Decimal(evaluate(text)) - Decimal(value)) < Decimal("1e-49")


@pytest.mark.parametrize(
    "text",
    [
        "", "+", "1 2", "(1", "1)", "(1]", "1+", "\\frac{1}", "\\sin 1", "x", "1/2x", "1/2\\pi", "\\sqrt{-2}", "1/0",
        "0^{-1}", "9^{9^{9^{9}}}", "2^{1000000}", "1.5!", "(-2)^{\\sqrt2}", "|3|", "\\triangle", "2^",
        "(" * 60 + "1" + ")" * 60,
        "99999!", "\\binom{1}{-1}", "\\sqrt[1.5]{2}",
    ],
)  # fmt: skip
def test_unreadable(text: str) -> None:
    with pytest.raises(Unreadable):
        evaluate(text)


def test_variables_keep_their_case_and_take_values() -> None:
    assert letters("2x_1 + R\\sin r - \\theta") == {"x_1", "R", "r", "\\theta"}
    assert evaluate("2x(x+1)", lambda name: Fraction(3)) == 24
    assert evaluate("\\theta^2", lambda name: Fraction(3)) == 9


def test_close() -> None:
    third = Fraction(1, 3)
    assert close(third, third, decimal=False)
    assert not close(third, Fraction("0.333333333333"), decimal=False)
    assert close(third, Fraction("0.3333333333333"), decimal=True)
    assert not close(third, Fraction("0.333333"), decimal=True)
    root = evaluate("\\sqrt{2}")
    assert close(root, evaluate("\\frac{2}{\\sqrt2}"), decimal=False)
    assert not close(root, evaluate("1.4142135623"), decimal=False)
    assert not close(root, evaluate("1.414213"), decimal=True)
    assert not close(Fraction(58500), Fraction(58501), decimal=True)
