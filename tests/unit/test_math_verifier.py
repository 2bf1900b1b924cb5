"""The boxed-answer judge: faults met in practice, with the right verdict for each, and junk of our own."""

from __future__ import annotations

import threading
import time

import pytest

from whale.domains.math.verifier import UNCLOSED, judge, last_box, number
from whale.types import Outcome


def boxed(content: str) -> str:
    return f"\\boxed{{{content}}}"


@pytest.mark.parametrize(
    ("reply", "gold", "reward"),
    [
        # the last box counts, whatever the distance
        ("\\boxed{8}. Wait, recheck: \\boxed{9}", "9", 1),
        ("\\boxed{9}. Wait, recheck: \\boxed{8}", "9", 0),
        # every part, as a set; ordered only where the reference has brackets
        (boxed("7"), "2, 7", 0),
        (boxed("7, 2"), "2, 7", 1),
        (boxed("2, 7, 9"), "2, 7", 0),
        (boxed("2, 2"), "2, 7", 0),
        (boxed("(1, 0)"), "(0,1)", 0),
        (boxed("\\{1, 2\\}"), "\\{2,1\\}", 1),
        # thousands separators, units, ordinals, letter case
        (boxed("10,\\!080"), "10080", 1),
        (boxed("58,500"), "58500", 1),
        (boxed("58,501"), "58500", 0),
        (boxed("15\\text{ cm}^2"), "15", 1),
        (boxed("12^{\\text{th}}"), "12", 1),
        (boxed("\\text{East}"), "\\text{east}", 1),
        (boxed("[0,1]"), "(0,1)", 0),
        (boxed("75^\\circ"), "75", 1),
        # counted braces
        (boxed("\\frac{1}{2}"), "0.5", 1),
        (boxed("\\text{E}"), "E", 1),
        (boxed("1\\frac{1}{2}"), "1.5", 1),
        (boxed("-\\frac12"), "-0.5", 1),
    ],
)
def test_faults_of_practice(reply: str, gold: str, reward: float) -> None:
    assert judge(reply, gold).reward == reward


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("seven", "no_box"),
        ("", "no_box"),
        ("\\boxed 7", "no_box"),
        ("\\boxed{7", "unclosed_box"),
        ("\\boxed{1} then \\boxed{\\frac{7}{1}", "unclosed_box"),
        (boxed(""), "empty_box"),
        (boxed("x"), "not_a_number"),
        (boxed("Traceback (most recent call last):\n  NameError: name 'gcd' is not defined"), "code_failed"),
        ("Traceback (most recent call last): nothing else", "code_failed"),
        (boxed("3+4"), "not_a_number"),
        (boxed("9^{9^{9^{9}}}"), "not_a_number"),
        (boxed("8"), "wrong"),
        (boxed("7"), "right"),
    ],
)
def test_reasons(reply: str, reason: str) -> None:
    assert judge(reply, "7").reason == reason


@pytest.mark.parametrize(
    "content",
    [
        "7/0", "7x", "7 8", "7,8", "7e999", "--7", "07 or 8", "\x00", "\u0667\u0667", "7" * 5000, "{" * 50 + "}" * 50,
        "nan", "inf", "SyntaxError: invalid syntax (line 7)", "\\frac{7}{", "not 7", "7 = 8", "6.9999", "True",
    ],
)  # fmt: skip
def test_junk_is_wrong_and_never_an_exception(content: str) -> None:
    assert judge(boxed(content), "7").reward == 0


@pytest.mark.parametrize("gold", ["", "  ", None])
def test_an_empty_reference_is_a_data_fault(gold: str | None) -> None:
    verdict = judge(boxed(""), gold)
    assert verdict.reward is None
    assert verdict.outcome == Outcome.UNSCORABLE


def test_exact_before_tolerance() -> None:
    assert judge(boxed("0.30000000000000004"), "0.3").reward == 1
    assert judge(boxed("0.3001"), "0.3").reward == 0
    assert judge(boxed("58500.0000001"), "58500").reward == 1
    big = "123456789012345678901"
    assert judge(boxed("123456789012345678902"), big).reward == 0


def test_from_another_thread() -> None:
    rewards: list[float | None] = []
    thread = threading.Thread(target=lambda: rewards.append(judge(boxed("\\frac{1}{3}"), "1/3").reward))
    thread.start()
    thread.join()
    assert rewards == [1.0]


def test_long_replies_are_judged_quickly() -> None:
    began = time.perf_counter()
    for text in ("\\boxed{" * 20000, "\\boxed{" + "(" * 100_000 + "}", "\\boxed{" + "1," * 50_000 + "}"):
        assert judge(text, "7").reward == 0
    assert time.perf_counter() - began < 2


def test_parts() -> None:
    assert last_box("\\boxed{a{b}c} \\boxed{d\\}e}") == "d\\}e"
    assert last_box("\\boxed{") == UNCLOSED
    assert last_box("none") is None
    assert number("1e3") == 1000
    assert number("3 apples") == 3
