"""Equality of real answers: spellings that mean the same, near misses that do not, and what only algebra can decide."""

from __future__ import annotations

import pytest

from whale.domains.math.answers import LONGEST, Comparison

# (reference, answer)
SAME = [
    ("10080", r"10,\!080"),
    ("58500", "58,500"),
    ("58,500", "58500"),
    ("15", r"15\text{ cm}^2"),
    ("12", r"12^{\text{th}}"),
    (r"\text{east}", r"\text{East}"),
    (r"\text{east}", "East"),
    ("2, 7", "7, 2"),
    ("2,7", r"\{7,2\}"),
    (r"\{4,5,7\}", "4,7,5"),
    ("0.5", r"\frac{1}{2}"),
    (r"\frac43", r"\dfrac{4}{3}"),
    (r"\frac 59", "5/9"),
    (r"\frac9{19}", r"\frac{9}{19}"),
    (r"11\sqrt2", r"11 \sqrt{2}"),
    (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"),
    (r"3 \pm 2 \sqrt{2}", r"3 - 2\sqrt{2}, 3+2\sqrt{2}"),
    (r"\{1\pm\sqrt{5},-2\}", r"-2, 1+\sqrt5, 1-\sqrt5"),
    ("x=5", "5"),
    ("x=5", "x = 5"),
    ("5", "x = 5"),
    ("113", "m+n = 113"),
    ("5", "x = 2+3 = 5"),
    ("y = 2x + 3", "2x+3"),
    ("y = 2x + 3", "2x - y + 3 = 0"),
    ("5x - 7y + 11z + 4 = 0", "7y - 5x - 11z = 4"),
    ("4210_{5}", "4210_5"),
    ("4210_{5}", "4210"),
    ("4343_6", r"4343_{\text{six}}"),
    ("36", "36_{10}"),
    (r"90^\circ", "90"),
    ("90", r"90^{\circ}"),
    (r"50\%", "50"),
    ("0.5", r"50\%"),
    (r"\$32,\!348", "32348"),
    (r"\$32,\!348", r"\$32{,}348"),
    (r"11,\! 111,\! 111,\! 100", "11111111100"),
    (r"864 \mbox{ inches}^2", "864"),
    (r"864 \mbox{ inches}^2", r"864 \text{ square inches}"),
    (r"5.4 \text{ cents}", "5.4"),
    (r"1\frac{4}{5}", "1.8"),
    (r"137 \frac{1}{2}", "137.5"),
    (r"137 \frac{1}{2}", r"\frac{275}{2}"),
    (r"\text{(C)}", "C"),
    (r"\text{(C)}", "(C)"),
    (r"\text{(C)}", r"\text{C}"),
    (r"x \in [-2,7]", "[-2,7]"),
    (r"x \in [-2,7]", r"-2 \le x \le 7"),
    ("(3,4]", r"3 < x \leq 4"),
    (r"(2,\infty)", "x > 2"),
    (r"(-\infty, 2) \cup (3, \infty)", r"(3,\infty)\cup(-\infty,2)"),
    (
        r"\begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix}",
        r"\begin{bmatrix} -\frac13 \\ \frac23 \\ \frac53 \end{bmatrix}",
    ),
    (r"\left( 3, \frac{\pi}{2} \right)", r"(3, \pi/2)"),
    ("(a+5)(b+2)", "ab + 2a + 5b + 10"),
    ("x^5 - x^4 + x^3 - x^2 + x - 1", "(x-1)(x^4+x^2+1)"),
    ("6 - 5i", "-5i + 6"),
    (".35625", "0.35625"),
    (r"\frac{20000}{\pi}", r"20000/\pi"),
    (r"12\pi", r"12 \cdot \pi"),
    (r"0.56 = 56\%", "0.56"),
    (r"\$\dfrac23 \approx \$0.67", r"\frac{2}{3}"),
    (r"\approx 8.24 \text{ mph}", "8.24"),
    (r"8\!:\!34 \text{ p.m.}", "8:34 pm"),
    ("1:2", "1 : 2"),
    (r"\text{A, D, F, G, H}", "A, D, F, H, G"),
    (r"2, 3, \text{ and } 4", "2,3,4"),
    (r"-12 \text{ or } -30", "-30, -12"),
    ("(-4, 27);(2, 15)", "(2,15), (-4,27)"),
    ("AB=9, CD=4", "AB = 9, CD = 4"),
    ("a=-30.5", "-30.5"),
    ("a=-30.5", r"-\frac{61}{2}"),
    ("f(2) < f(1) < f(4)", "f(4) > f(1) > f(2)"),
    (r"-80\leq g(x)\leq 82", r"-80 \le g(x) \le 82"),
    (r"-80\leq g(x)\leq 82", "[-80, 82]"),
    (r"34\text{ sq. units}", "34"),
    (r"480 + 480\sqrt{3}\text{ feet}", r"480(1+\sqrt3)"),
    (r"99\pi \text{ square inches}", r"99\pi"),
    (r"\text{October 30}", "October 30"),
    (r"\text{4:30 p.m.}", "4:30 p.m."),
    (r"9\text{ a.m.}", r"9\text{ a.m.}"),
    (r"3\sqrt{13}", r"\sqrt{117}"),
    ("2^{4950}", "2^{4950}"),
    ("2^{100} - 2", "2(2^{99}-1)"),
    (r"\frac{1}{2^{98}}", "2^{-98}"),
    (r"-\frac{2 \pi}{3}, 0, \frac{2 \pi}{3}", r"0, \frac{2\pi}{3}, -\frac{2\pi}{3}"),
    ("10^{12}", "10^12"),
    ("1/3", r"0.\overline{3}"),
    ("14{,}916", "14916"),
    (r"\frac{3\sqrt{3}}{4}", r"\frac{3}{4}\sqrt{3}"),
    ("5", r"5 \text{ apples}"),
    ("5", r"\text{5 apples}"),
    ("5", r"\text{5}"),
    (r"1 + \sqrt[3]{2}", r"\sqrt[3]{2}+1"),
    (r"\dfrac{1+\sqrt{5}}{2}", r"\frac{1}{2}+\frac{\sqrt{5}}{2}"),
    ("None", "none"),
    (r"\text{odd}", "odd"),
    ("x^2 + y^2 = 13", "y^2 + x^2 = 13"),
    ("2n^2 - n", "n(2n-1)"),
    (r"\frac{x^2}{16} - \frac{y^2}{9} = 1", "9x^2 - 16y^2 = 144"),
    (r"[2 \sqrt{2},4]", r"[\sqrt{8}, 4]"),
    (r"10x \sqrt{21x}", r"10\sqrt{21}x^{3/2}"),
    ("-3, 4", "x=-3, x=4"),
    ("(2,4)", "(x,y) = (2,4)"),
    ("5", "+5"),
    ("-5", "\u22125"),
    ("\\frac{1}{2}", "\u00bd"),
    ("\\sqrt{2}", "\u221a2"),
    ("2016532", "2{,}016{,}532"),
    ("\\pi", "\u03c0"),
    ("0", "-0"),
    ("5", r"\textbf{5}"),
    ("5", "$5$"),
    ("5", r"\(5\)"),
    ("5", "5."),
    ("5", "5.0"),
    ("120", "5!"),
    (r"\frac{1}{7}\triangle ABC", r"\frac17 \triangle ABC"),
    (r"3 \times 10^8", "300000000"),
    (r"3 \times 10^8", "3e8"),
    ("1.5", "1\u00bd"),
    (r"\frac{1}{2}", r"\frac12"),
    (r"\emptyset", r"\varnothing"),
]

OTHER = [
    ("15,600", "600, 15"),
    (r"2,\!880", "880, 2"),
    ("(20,100)", "20100"),
    ("673673673", "673673673.5"),
    ("58500", "58,501"),
    ("58500", "58, 500"),
    ("(0,1)", "[0,1]"),
    ("(0,1)", "(0,1]"),
    ("2, 7", "7"),
    ("2, 7", "2,7,9"),
    ("(1,0)", "(0,1)"),
    (r"\frac{\sqrt{3}}{3}", r"\frac{\sqrt{3}}{2}"),
    (r"\{1\pm\sqrt{5},-2\}", r"1+\sqrt5, 1-\sqrt5"),
    ("x=5", "y=5"),
    ("x=5", "5=5"),
    ("x=5", "0=0"),
    ("5", "5=5"),
    ("5", "x"),
    ("x", "x=x"),
    ("5", "2x=5"),
    ("5", "x=5=6"),
    ("5x - 7y + 11z + 4 = 0", "5x - 7y + 11z - 4 = 0"),
    ("5x - 7y + 11z + 4 = 0", "0=0"),
    ("5x - 7y + 11z + 4 = 0", "x=x"),
    ("4210_{5}", "4210_6"),
    ("4210_{5}", "555"),
    ("100", "100_2"),
    ("50", "0.5"),
    (r"5.4 \text{ cents}", r"5.4 \text{ dollars}"),
    (r"\text{(C)}", "B"),
    ("A", "B"),
    ("A", "A, B"),
    ("(3,4]", "3 < x < 4"),
    (r"(-\infty, 2) \cup (3, \infty)", r"(3,\infty)"),
    (r"(-\infty, 2) \cup (3, \infty)", r"(-\infty, 2] \cup (3, \infty)"),
    (r"\begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix}", r"\begin{pmatrix} 2/3 \\ -1/3 \\ 5/3 \end{pmatrix}"),
    (r"\left( 3, \frac{\pi}{2} \right)", r"(3, -\pi/2)"),
    ("(a+5)(b+2)", "ab + 2a + 5b + 11"),
    ("3R^2", "3r^2"),
    ("5", "9^9"),
    (r"12\pi", "37.7"),
    (r"8\!:\!34 \text{ p.m.}", "8:34 am"),
    ("1:2", "2:1"),
    (r"\text{A, D, F, G, H}", "A, D, F, G"),
    ("f(2) < f(1) < f(4)", "f(1) < f(2) < f(4)"),
    (r"\text{October 30}", "October 31"),
    ("2^{4950}", "2^{4951}"),
    (r"-\frac{2 \pi}{3}, 0, \frac{2 \pi}{3}", r"0, \frac{2\pi}{3}"),
    ("1/3", "0.333333"),
    ("3.21", "3.2100001"),
    ("5", "5 or 6"),
    ("5", "5, 6"),
    ("5", "5 6"),
    ("5", ""),
    ("5", "five"),
    ("5", "5x"),
    ("2", "2xy"),
    ("30", "30 or"),
    ("x^2 + y^2 = 13", "x^2 + y^2 = 14"),
    ("(2,4)", "x=2, y=4"),
    ("7", "7=8"),
    ("0", "-0.0001"),
    ("120", "6!"),
    ("5", "Traceback (most recent call last)"),
    ("5", "5 + C"),
    ("56", "5 6"),
    ("2, 3", "2,,3"),
]

ALGEBRA = [
    ("2i", "(1+i)^2"),
    (r"\cot x", r"\frac{\cos x}{\sin x}"),
    ("5", "9^{9^{9^{9}}}"),
    (r"\sin 3x", r"3\sin x - 4\sin^3 x"),
]


@pytest.mark.parametrize(("gold", "given"), SAME)
def test_the_same(gold: str, given: str) -> None:
    assert Comparison().same(given, gold) is True


@pytest.mark.parametrize(("gold", "given"), OTHER)
def test_another(gold: str, given: str) -> None:
    assert Comparison().same(given, gold) is False


@pytest.mark.parametrize(("gold", "given"), ALGEBRA)
def test_only_algebra_can_tell(gold: str, given: str) -> None:
    comparison = Comparison()
    assert comparison.same(given, gold) is None
    (pair,) = comparison.open
    for decision in (True, False):
        assert Comparison({pair: decision}).same(given, gold) is decision


def test_a_list_with_open_parts() -> None:
    gold, given = r"2i, \cot x, 7", r"7, \frac{\cos x}{\sin x}, (1+i)^2"
    comparison = Comparison()
    assert comparison.same(given, gold) is None
    right = {("(1+i)^2", "2i"), (r"\frac{\cos x}{\sin x}", r"\cot x")}
    known = {pair: pair in right for pair in comparison.open}
    assert Comparison(known).same(given, gold) is True
    assert Comparison(dict.fromkeys(known, False)).same(given, gold) is False
    assert Comparison(known).same(r"7, (1+i)^2, (1+i)^2", gold) is not True


@pytest.mark.parametrize("more", [", 987654321", r" \text{ or } 987654321", " + C", r" \text{ or }", "x"])
def test_more_than_a_number_behind_a_sign_of_approximation_is_part_of_the_answer(more: str) -> None:
    reference = r"\$\dfrac23 \approx \$0.67"
    assert Comparison().same(reference, reference) is True
    assert Comparison().same(reference + more, reference) is (more == r" \text{ or }")


@pytest.mark.parametrize("reference", [gold for gold, _ in SAME if "approx" not in gold])
def test_every_reference_is_itself_and_not_another(reference: str) -> None:
    assert Comparison().same(reference, reference) is True
    assert Comparison().same(reference + "1", reference) is not True
    assert Comparison().same("", reference) is False


@pytest.mark.parametrize(
    "text",
    [
        "{" * 400, "}" * 400, "(" * 999, "[" * 500 + "]" * 499, "\\frac" * 150, "\\sqrt" * 150, "^" * 500, "!" * 300,
        "9!!!!!", "=" * 300, "x=" * 300, "," * 500, "1," * 400, "\\pm" * 200, "\\text{" * 120, "\\begin{pmatrix}" * 50,
        "\\a\\b" * 200 + "1", "\\aaaa " * 100 + "=1", "a" * 900 + "=5", "2^" * 300 + "2", "1/0", "0^{-1}",
        "\\frac{1}{0}", "\\sqrt{-1}", "10^{10^{10}}", "\\binom{10^9}{5}", "(10^9)!", "<" * 200, "1<" * 200 + "2",
        "\x00", "\ud800", "\u0661", "\\cup" * 200, "5" * 5000, "\\", "$" * 50, "\\\\" * 100, "\ue000" * 300,
        "\ue000and\ue001" * 80,
    ],
)  # fmt: skip
@pytest.mark.timeout(30)
def test_junk_is_no_answer_and_cannot_hold_the_judge(text: str) -> None:
    for gold in ("7", r"\frac{1}{2}", "(1,2)", "x=5", r"\{1,2\}", "x+1", r"\text{east}"):
        assert Comparison().same(text, gold) is not True


def test_a_long_answer_is_wrong() -> None:
    assert Comparison().same("1" + "+0" * (LONGEST // 2), "1") is False
